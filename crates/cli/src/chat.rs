//! `breakbulk chat`: a person talks to an agent of a host, line by line.

mod input;
mod output;
mod screen;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use breakbulk::client::{Client, Config, ConnectError, Event, Events, RequestError, State};
use breakbulk::{BoxLink, Dialect, Route};
use breakbulk_proto::{Budget, Message};
use serde_json::{Value, json};
use tokio::sync::watch;

use self::input::{Input, TypedLine};
use self::output::ChatOutput;
use self::screen::{Ending, Piece, Screen};
use crate::args::{ChatOptions, Format};
use crate::failure::{Error, no_link};
use crate::open;
use crate::runtime;
use crate::settings::{Layers, LinkSettings, Origin, PATH, Settings, USUAL, in_full, to_peer};
use crate::shutdown::{Signal, Signals};
use crate::units;

/// The validated settings of `chat`.
#[derive(Debug)]
pub(crate) struct ChatSettings {
    route: Route,
    link: LinkSettings,
    choice: Choice,
    agent: Option<String>,
    format: Format,
}

/// Which session.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    /// One that is there, by its URI or a part of it, or `last`.
    Existing(String),
    New,
    /// A person chooses; a pipe gets a new one.
    Ask,
}

impl ChatSettings {
    pub(crate) fn prove(args: ChatOptions, mut settings: Settings, mut layers: Layers) -> Result<Self, Error> {
        let url = args.url.as_deref().map_or_else(|| USUAL.to_owned(), with_path);
        layers.put("connect", &url, Origin::Argument("URL"));
        settings.connect = layers.read("connect")?;
        if let Some(connect) = &mut settings.connect {
            connect.dialect = connect.dialect.or(settings.dialect).or(Some(Dialect::Ahp));
            if connect.dialect != Some(Dialect::Ahp) {
                return Err(layers.refuse("connect", "allowed is the dialect ahp, or none".into()).into());
            }
            // Whoever talks to the usual host without naming it has its token in the same environment.
            if let (None, None, Some(token)) = (&args.url, &connect.token, &settings.token) {
                let token = token.reveal().parse::<breakbulk::Token>();
                connect.token = Some(token.map_err(|why| layers.refuse("token", why.to_string()))?);
            }
        }
        let (route, link) = to_peer(settings, &layers)?;
        let choice = match args.session {
            Some(session) => Choice::Existing(session),
            None if args.new => Choice::New,
            None => Choice::Ask,
        };
        Ok(Self { route, link, choice, agent: args.agent, format: args.format })
    }
}

/// Talks until the person or the pipe has nothing more to say.
pub(crate) fn run(settings: ChatSettings) -> Result<(), Error> {
    runtime::run(async move {
        let signals = Signals::new().map_err(Error::Runtime)?;
        let input = Input::open(settings.format == Format::Text).map_err(Error::Runtime)?;
        let output = ChatOutput::new(settings.format, input.is_terminal);
        let mut chat = Chat::connect(&settings, signals, input, output).await?;
        let result = chat.hold(&settings).await;
        chat.client.close().await;
        result
    })
}

/// How many sessions are offered to choose from.
const OFFERED: usize = 20;
/// The channel of the host itself.
const ROOT: &str = "ahp-root://";
/// How many turns of a session are shown to who comes back to it.
const HISTORY: usize = 5;
/// Bytes of randomness in what we call ourselves, our sessions and our turns.
const ID_BYTES: usize = 8;
/// How many different failures to connect are told while there is no connection.
const MAX_FAILURES: usize = 16;
/// The connection may be lost for so long without a message to the person.
const SHORT_DROP: Duration = Duration::from_millis(500);

const NEEDS_TOKEN: &str = "the host needs its token: use the address that `serve` printed, with #token=TOKEN at its end, or set \
                           BREAKBULK_TOKEN and give no address";

const HELP: &str = "\
Every line that you type is a prompt, except these:
  :sessions     list sessions, and go to one
  :new          begin a new session
  :stop         interrupt an answer to somebody else
  :help         print this list
  :quit         leave (or Ctrl-D)
While the agent answers, Ctrl-C interrupts it, and a second one leaves.";

/// A conversation.
struct Chat {
    client: Client,
    events: Events,
    /// Events that came while something else was waited for.
    backlog: VecDeque<Event>,
    state: watch::Receiver<State>,
    /// The first Ctrl-C is for the agent.
    signals: Signals,
    input: Input,
    output: ChatOutput,
    screen: Screen,
    /// The state of the root channel when the conversation began.
    root: Value,
    session: String,
    chat: String,
    /// Our prompt that is under way.
    prompt: Option<Prompt>,
    /// Which question the line answers that is being read.
    reading: Reading,
    /// The call about which the person is being asked.
    asked: Option<String>,
    /// Tool calls that the person has yet to be asked about, and the questions.
    questions: VecDeque<Piece>,
    /// Prompts that came before they were asked for.
    lines: VecDeque<String>,
    link: LinkState,
    /// Why attempts to connect failed, as far as that was told since the last connection.
    told_failures: BTreeSet<String>,
    /// Whether the input is at its end.
    is_over: bool,
    /// Why a turn of ours failed, if one did.
    failure: Option<String>,
}

/// Which question a line answers. Reading a line cannot be cancelled, so an answer may come for a question that is no
/// longer open.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reading {
    Prompt,
    /// Whether this call may run.
    Question(String),
}

/// A turn that we have asked for.
struct Prompt {
    turn: String,
    /// The number of the action.
    number: u64,
    is_interrupted: bool,
}

/// The state of the connection, as it was last shown to the person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkState {
    /// There was no connection yet.
    Opening,
    Up,
    /// It is gone, which may pass before it is worth a word.
    Dropped(tokio::time::Instant),
    /// It is gone, and that was said.
    Announced,
}

/// What happens next.
enum ChatEvent {
    Event(Option<Event>),
    Typed(TypedLine),
    Interrupt,
    Terminate,
    StateChanged,
    DropLasts,
}

/// Whether the conversation goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Leave,
}

impl Chat {
    async fn connect(
        settings: &ChatSettings,
        signals: Signals,
        input: Input,
        output: ChatOutput,
    ) -> Result<Self, Error> {
        let (dialer, address) = (open::dialer(&settings.route, &settings.link)?, settings.route.address.clone());
        // If the first attempt fails, the program ends with the reason instead of trying again.
        let mut first: Option<BoxLink> =
            Some(dialer.dial(&address).await.map_err(|error| no_link(error, NEEDS_TOKEN))?);
        let connect = move || {
            let (first, dialer, address) = (first.take(), dialer.clone(), address.clone());
            async move {
                match first {
                    Some(link) => Ok(link),
                    None => dialer.dial(&address).await.map_err(ConnectError::from),
                }
            }
        };
        let mut config = Config::new(format!("breakbulk-chat-{}", random()?));
        config.limits = settings.route.setup.limits;
        config.budget = Budget::new(settings.link.budget);
        config.retry_cap = Duration::from_secs(5);
        config.connect_timeout = settings.link.connect_timeout;
        let info = json!({"name": "breakbulk-chat", "version": env!("CARGO_PKG_VERSION")});
        config.introduction.insert("clientInfo".to_owned(), info);
        let (client, events) = Client::start(connect, config);
        let mut chat = Self {
            state: client.state(),
            client,
            events,
            backlog: VecDeque::new(),
            signals,
            input,
            output,
            screen: Screen::default(),
            root: Value::Null,
            session: String::new(),
            chat: String::new(),
            prompt: None,
            reading: Reading::Prompt,
            asked: None,
            questions: VecDeque::new(),
            lines: VecDeque::new(),
            link: LinkState::Opening,
            told_failures: BTreeSet::new(),
            is_over: false,
            failure: None,
        };
        chat.await_start().await?;
        Ok(chat)
    }

    /// Waits for the first handshake. Whoever waits is told why it fails; a script is not kept waiting.
    async fn await_start(&mut self) -> Result<(), Error> {
        loop {
            tokio::select! {
                event = self.events.next() => match event {
                    Some(event) => {
                        let is_started = matches!(event, Event::Started { .. });
                        self.backlog.push_back(event);
                        if is_started {
                            self.link = LinkState::Up;
                            self.told_failures.clear();
                            return Ok(());
                        }
                    }
                    None => return Err(self.closed()),
                },
                Ok(()) = self.state.changed() => self.state_changed()?,
                signal = self.signals.next() => return Err(Error::Interrupted(signal)),
            }
        }
    }

    /// The whole conversation.
    async fn hold(&mut self, settings: &ChatSettings) -> Result<(), Error> {
        // There the host says when another client disposes of a session. Chatting works without it.
        self.root = match self.follow(ROOT).await {
            Err(error @ Error::Interrupted(_)) => return Err(error),
            followed => followed.unwrap_or_default(),
        };
        let session = match &settings.choice {
            Choice::New => None,
            Choice::Existing(name) => Some(self.find(name).await?),
            Choice::Ask if self.input.is_terminal => match self.choose().await? {
                Chosen::Existing(session) => Some(session),
                Chosen::New => None,
                Chosen::Nothing => return Ok(()),
            },
            Choice::Ask => None,
        };
        self.enter(session, settings.agent.as_deref()).await?;
        if self.input.is_terminal {
            self.note("Type a prompt, or :help.")?;
        }
        loop {
            if self.ask_for_more()? == Flow::Leave {
                break;
            }
            let next = self.next().await;
            if self.take(next, settings).await? == Flow::Leave {
                break;
            }
        }
        self.output.end_line(&mut self.input)?;
        match self.failure.take() {
            Some(failure) if !self.input.is_terminal => Err(Error::Turn(failure)),
            _ => Ok(()),
        }
    }

    /// Begins to read the next line, if the person may type one now.
    fn ask_for_more(&mut self) -> Result<Flow, Error> {
        self.ask_next()?;
        if let Some(call) = self.asked.clone() {
            // The question is printed above, and not as the prompt: a prompt would stay when another client answers.
            self.read("> ", Reading::Question(call));
            return Ok(Flow::On);
        }
        if self.prompt.is_some() || self.screen.turn().is_some() && !self.input.is_terminal {
            return Ok(Flow::On);
        }
        if self.is_over && self.lines.is_empty() {
            return Ok(Flow::Leave);
        }
        if self.lines.is_empty() && !self.input.is_asked() {
            self.output.end_line(&mut self.input)?;
            self.read("> ", Reading::Prompt);
        }
        Ok(Flow::On)
    }

    /// Asks for a line, unless one is asked for already.
    fn read(&mut self, prompt: &str, reading: Reading) {
        if !self.input.is_asked() {
            self.input.ask(prompt);
            self.reading = reading;
        }
    }

    /// Shows the next question, if none is open: one at a time, so that it is clear what an answer is to.
    fn ask_next(&mut self) -> Result<(), Error> {
        while self.asked.is_none() {
            let Some(question) = self.questions.pop_front() else { break };
            // Another client may have answered the question meanwhile.
            if let Piece::Confirm { call, .. } = &question
                && self.screen.is_asked(call)
            {
                self.asked = Some(call.clone());
                self.output.show(&question, &mut self.input)?;
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> ChatEvent {
        if self.prompt.is_none()
            && self.asked.is_none()
            && let Some(line) = self.lines.pop_front()
        {
            return ChatEvent::Typed(TypedLine::Line(line));
        }
        if let Some(event) = self.backlog.pop_front() {
            return ChatEvent::Event(Some(event));
        }
        let dropped = async {
            match self.link {
                LinkState::Dropped(since) => tokio::time::sleep_until(since + SHORT_DROP).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            event = self.events.next() => ChatEvent::Event(event),
            typed = self.input.next() => ChatEvent::Typed(typed),
            signal = self.signals.next() => match signal {
                Signal::Interrupt => ChatEvent::Interrupt,
                Signal::Terminate | Signal::Hangup => ChatEvent::Terminate,
            },
            changed = self.state.changed() => match changed {
                Ok(()) => ChatEvent::StateChanged,
                Err(_) => ChatEvent::Event(None),
            },
            () = dropped => ChatEvent::DropLasts,
        }
    }

    async fn take(&mut self, next: ChatEvent, settings: &ChatSettings) -> Result<Flow, Error> {
        match next {
            ChatEvent::Event(Some(event)) => self.event(event, settings).await,
            ChatEvent::Event(None) => Err(self.closed()),
            ChatEvent::Typed(typed) => self.typed(typed, settings).await,
            ChatEvent::Interrupt => self.interrupt().await,
            ChatEvent::Terminate => Ok(Flow::Leave),
            ChatEvent::StateChanged => {
                self.state_changed()?;
                Ok(Flow::On)
            }
            ChatEvent::DropLasts => {
                self.announce_drop()?;
                Ok(Flow::On)
            }
        }
    }

    /// The first time, ends the turn; if that was asked for already, or there is none, ends everything.
    async fn interrupt(&mut self) -> Result<Flow, Error> {
        match &mut self.prompt {
            Some(prompt) if !prompt.is_interrupted => {
                prompt.is_interrupted = true;
                let action = json!({"type": "chat/turnCancelled", "turnId": prompt.turn, "duration": 0});
                self.note("Interrupting; Ctrl-C again leaves.")?;
                self.dispatch(action).await?;
                Ok(Flow::On)
            }
            _ => Ok(Flow::Leave),
        }
    }

    async fn typed(&mut self, typed: TypedLine, settings: &ChatSettings) -> Result<Flow, Error> {
        let reading = std::mem::replace(&mut self.reading, Reading::Prompt);
        if let (TypedLine::Line(line), Reading::Question(call)) = (&typed, &reading)
            && self.asked.as_ref() != Some(call)
        {
            let line = line.clone();
            return self.late_answer(&line, settings).await;
        }
        let was_asked = self.asked.take();
        match (typed, was_asked) {
            (TypedLine::Line(line), Some(call)) => self.answer(call, &line).await,
            (TypedLine::Interrupted, Some(call)) => {
                self.confirm(&call, false).await?;
                self.interrupt().await
            }
            (TypedLine::End, Some(call)) => {
                self.is_over = true;
                self.confirm(&call, false).await?;
                Ok(Flow::On)
            }
            (TypedLine::Line(line), None) => self.line(&line, settings).await,
            (TypedLine::Interrupted, None) if self.prompt.is_some() => self.interrupt().await,
            (TypedLine::Interrupted | TypedLine::End, None) if self.input.is_terminal => Ok(Flow::Leave),
            (TypedLine::Interrupted | TypedLine::End, None) => {
                self.is_over = true;
                Ok(Flow::On)
            }
        }
    }

    /// A line that is a prompt or a command of ours. Those of an agent begin with a slash.
    async fn line(&mut self, line: &str, settings: &ChatSettings) -> Result<Flow, Error> {
        match line.trim() {
            "" => {}
            ":quit" | ":q" | ":exit" => return Ok(Flow::Leave),
            ":help" | ":h" => self.note(HELP)?,
            ":stop" => match self.screen.turn().map(str::to_owned) {
                Some(turn) => {
                    self.dispatch(json!({"type": "chat/turnCancelled", "turnId": turn, "duration": 0})).await?;
                }
                None => self.note("The agent is not answering.")?,
            },
            ":new" => self.enter(None, settings.agent.as_deref()).await?,
            ":sessions" => return self.choose_and_enter(settings).await,
            command if command.starts_with(':') => {
                self.note(&format!("There is no command {command:?}; :help lists them."))?;
            }
            _ if self.screen.turn().is_some() => {
                self.note("The agent is still answering somebody; try again when it is done.")?;
            }
            prompt => self.prompt(prompt).await?,
        }
        Ok(Flow::On)
    }

    async fn prompt(&mut self, text: &str) -> Result<(), Error> {
        let turn = random()?;
        let message = json!({"text": text, "origin": {"kind": "user"}});
        let now = units::moment(SystemTime::now());
        let action = json!({"type": "chat/turnStarted", "turnId": turn, "startedAt": now, "message": message});
        self.screen.begin(&turn);
        self.output.turn(&turn, text)?;
        let number = self.dispatch(action).await?;
        self.prompt = Some(Prompt { turn, number, is_interrupted: false });
        Ok(())
    }

    /// Handles the answer to the question whether a call may run. From a pipe, a line that is neither yes nor no is the
    /// next prompt, and the call is denied.
    async fn answer(&mut self, call: String, line: &str) -> Result<Flow, Error> {
        let approved = match approval(line) {
            Some(approved) => approved,
            None if self.input.is_terminal => {
                self.note("Please say y (allow it) or n (deny it).")?;
                self.asked = Some(call);
                return Ok(Flow::On);
            }
            None => {
                self.lines.push_back(line.to_owned());
                false
            }
        };
        self.confirm(&call, approved).await?;
        Ok(Flow::On)
    }

    /// A line that was asked for by a question which is no longer open. An answer is to that question alone: it is neither a
    /// prompt nor an answer to the next question.
    async fn late_answer(&mut self, line: &str, settings: &ChatSettings) -> Result<Flow, Error> {
        match approval(line) {
            _ if line.trim().is_empty() => {}
            Some(_) => self.note("That question is no longer open: your answer was not sent.")?,
            None if self.asked.is_none() => return self.line(line, settings).await,
            None if self.input.is_terminal => self.note("Please answer the question first.")?,
            None => self.lines.push_back(line.to_owned()),
        }
        Ok(Flow::On)
    }

    /// The question that is open needs no answer any more.
    fn withdraw_question(&mut self, why: &str) -> Result<(), Error> {
        self.asked = None;
        self.note(&format!("{why}: the question is withdrawn."))
    }

    async fn confirm(&mut self, call: &str, approved: bool) -> Result<(), Error> {
        let Some(turn) = self.screen.turn().map(str::to_owned).filter(|_| self.screen.is_asked(call)) else {
            return self.note("It was answered already.");
        };
        let mut action =
            json!({"type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": call, "approved": approved});
        let (key, value) = if approved { ("confirmed", "user-action") } else { ("reason", "denied") };
        action[key] = json!(value);
        self.screen.answer(call);
        self.dispatch(action).await.map(drop)
    }

    async fn dispatch(&mut self, action: Value) -> Result<u64, Error> {
        self.client.dispatch(&self.chat, action.to_string()).await.map_err(|_| self.closed())
    }

    async fn event(&mut self, event: Event, settings: &ChatSettings) -> Result<Flow, Error> {
        match event {
            Event::Action { channel, own, envelope, .. } if channel == self.chat => {
                let envelope: Value = parsed(&envelope);
                if let Some(reason) = envelope["rejectionReason"].as_str() {
                    self.refused(own, reason)?;
                } else {
                    let pieces = self.screen.action(&envelope["action"]);
                    self.show(pieces)?;
                }
            }
            Event::Snapshot { channel, snapshot, .. } if channel == self.chat => {
                let pieces = self.screen.snapshot(&parsed(&snapshot)["state"], 0);
                self.show(pieces)?;
            }
            Event::Resumed | Event::Started { .. } => self.connected_again()?,
            Event::Lost(lost) => {
                self.note("What was sent last may not have arrived: look at the answer before you repeat it.")?;
                self.not_done(Some(lost.client_seq), "the prompt may not have arrived");
            }
            Event::Notification { method, params }
                if method == "root/sessionRemoved" && parsed(&params)["session"] == *self.session =>
            {
                return self.session_gone(settings).await;
            }
            Event::Missing { channels } if channels.contains(&self.chat) || channels.contains(&self.session) => {
                return self.session_gone(settings).await;
            }
            _ => {}
        }
        Ok(Flow::On)
    }

    /// An action of ours did not come about.
    fn refused(&mut self, own: Option<u64>, reason: &str) -> Result<(), Error> {
        self.note(&format!("The host refused it: {reason}"))?;
        self.not_done(own, &format!("the host refused it: {reason}"));
        Ok(())
    }

    /// If this action was our prompt, there will be no answer.
    fn not_done(&mut self, own: Option<u64>, why: &str) {
        if self.prompt.as_ref().is_some_and(|prompt| own == Some(prompt.number)) {
            self.prompt = None;
            self.screen.give_up();
            self.failure = Some(why.to_owned());
        }
    }

    /// The session is gone. A person chooses another one.
    async fn session_gone(&mut self, settings: &ChatSettings) -> Result<Flow, Error> {
        let gone = format!("the session {} is gone", self.session);
        if !self.input.is_terminal {
            return Err(Error::Host(gone));
        }
        self.note(&format!("{}.", gone.replacen('t', "T", 1)))?;
        self.choose_and_enter(settings).await
    }

    async fn choose_and_enter(&mut self, settings: &ChatSettings) -> Result<Flow, Error> {
        match self.choose().await? {
            Chosen::Existing(session) => self.enter(Some(session), None).await?,
            Chosen::New => self.enter(None, settings.agent.as_deref()).await?,
            Chosen::Nothing => return Ok(Flow::Leave),
        }
        Ok(Flow::On)
    }

    fn show(&mut self, pieces: Vec<Piece>) -> Result<(), Error> {
        for piece in pieces {
            match &piece {
                Piece::End(ending) => {
                    if let (Some(_), Ending::Failed(why)) = (self.prompt.take(), ending) {
                        self.failure = Some(why.clone());
                    }
                    self.questions.clear();
                    if self.asked.is_some() {
                        self.withdraw_question("The turn has ended")?;
                    }
                }
                Piece::Tool { call, status, .. } if self.asked.as_ref() == Some(call) => {
                    self.withdraw_question(match *status {
                        "denied" => "Another client denied it",
                        "cancelled" => "It was cancelled",
                        _ => "Another client allowed it",
                    })?;
                }
                // A person who follows another client's turn may allow its calls as well.
                Piece::Confirm { .. } => {
                    self.questions.push_back(piece);
                    continue;
                }
                _ => {}
            }
            self.output.show(&piece, &mut self.input)?;
        }
        Ok(())
    }

    fn state_changed(&mut self) -> Result<(), Error> {
        let State::Connecting { failure, .. } = self.state.borrow_and_update().clone() else { return Ok(()) };
        if self.link == LinkState::Up {
            self.link = LinkState::Dropped(tokio::time::Instant::now());
        }
        failure.map_or(Ok(()), |why| self.attempt_failed(why))
    }

    /// An attempt to connect has failed: says why, once for each cause.
    fn attempt_failed(&mut self, why: String) -> Result<(), Error> {
        match self.link {
            LinkState::Opening if !self.input.is_terminal => return Err(Error::Host(format!("cannot connect: {why}"))),
            LinkState::Dropped(_) => self.announce_drop()?,
            LinkState::Opening | LinkState::Up | LinkState::Announced => {}
        }
        if self.told_failures.len() < MAX_FAILURES && self.told_failures.insert(why.clone()) {
            self.note(&format!("Cannot connect: {why}; trying again"))?;
        }
        Ok(())
    }

    fn announce_drop(&mut self) -> Result<(), Error> {
        self.link = LinkState::Announced;
        self.note("Disconnected; reconnecting …")
    }

    /// The connection is back, which is worth a word if its loss was.
    fn connected_again(&mut self) -> Result<(), Error> {
        self.told_failures.clear();
        match std::mem::replace(&mut self.link, LinkState::Up) {
            LinkState::Announced | LinkState::Dropped(_) => self.note("Connected again."),
            LinkState::Opening | LinkState::Up => Ok(()),
        }
    }

    fn note(&mut self, text: &str) -> Result<(), Error> {
        self.output.show(&Piece::Note(text.to_owned()), &mut self.input)
    }

    /// Why there is no client any more.
    fn closed(&self) -> Error {
        match &*self.state.borrow() {
            State::Closed(reason) if self.link == LinkState::Opening => {
                Error::Host(format!("cannot connect: {reason}"))
            }
            State::Closed(reason) => Error::Host(format!("the conversation has ended: {reason}")),
            _ => Error::Host("the conversation has ended".to_owned()),
        }
    }

    /// Asks the host something. Events that come meanwhile are for later.
    async fn request(&mut self, method: &str, params: Value) -> Result<Value, Error> {
        let client = self.client.clone();
        let params = params.to_string();
        let answer = client.request(method, params);
        let mut answer = std::pin::pin!(answer);
        loop {
            tokio::select! {
                answered = &mut answer => {
                    return answered.map(|result| parsed(&result)).map_err(|error| failed(method, &error));
                }
                event = self.events.next() => match event {
                    Some(event) => self.backlog.push_back(event),
                    None => return Err(self.closed()),
                },
                Ok(()) = self.state.changed() => self.state_changed()?,
                signal = self.signals.next() => return Err(Error::Interrupted(signal)),
            }
        }
    }

    /// Follows a channel; its state.
    async fn follow(&mut self, channel: &str) -> Result<Value, Error> {
        let client = self.client.clone();
        let followed = client.subscribe(channel);
        let mut followed = std::pin::pin!(followed);
        let mut is_followed = false;
        loop {
            let state = self.backlog.iter().find_map(|event| match event {
                Event::Snapshot { channel: of, snapshot, .. } if of == channel => {
                    Some(parsed(snapshot)["state"].take())
                }
                _ => None,
            });
            if let Some(state) = state.filter(|_| is_followed) {
                self.backlog.retain(|event| !matches!(event, Event::Snapshot { channel: of, .. } if of == channel));
                return Ok(state);
            }
            tokio::select! {
                answered = &mut followed, if !is_followed => {
                    answered.map_err(|error| failed("subscribe", &error))?;
                    is_followed = true;
                }
                event = self.events.next() => match event {
                    Some(event) => self.backlog.push_back(event),
                    None => return Err(self.closed()),
                },
                Ok(()) = self.state.changed() => self.state_changed()?,
                signal = self.signals.next() => return Err(Error::Interrupted(signal)),
            }
        }
    }

    /// Goes to a session, or to a new one.
    async fn enter(&mut self, session: Option<String>, agent: Option<&str>) -> Result<(), Error> {
        if !self.session.is_empty() {
            for channel in [self.session.clone(), self.chat.clone()] {
                self.client.unsubscribe(&channel).await.map_err(|_| self.closed())?;
            }
            self.screen = Screen::default();
            self.backlog.clear();
            self.questions.clear();
            (self.prompt, self.asked) = (None, None);
        }
        let is_new = session.is_none();
        self.session = match session {
            Some(session) => session,
            None => {
                let session = format!("ahp-session:/{}", random()?);
                let mut params = json!({ "channel": session });
                if let Some(agent) = agent {
                    params["provider"] = json!(agent);
                }
                if let Err(error) = self.request("createSession", params).await {
                    return Err(self.refused_agent(agent).await.unwrap_or(error));
                }
                session
            }
        };
        let session = self.session.clone();
        let state = self.follow(&session).await?;
        let Some(chat) = state["defaultChat"].as_str().or_else(|| state["chats"][0]["resource"].as_str()) else {
            return Err(Error::Host(format!("the session {session} has no chat")));
        };
        self.chat = chat.to_owned();
        self.output.session(&session, &self.chat, &state, is_new)?;
        let chat = self.chat.clone();
        let state = self.follow(&chat).await?;
        let history = if is_new || !self.input.is_terminal { 0 } else { HISTORY };
        let pieces = self.screen.snapshot(&state, history);
        self.show(pieces)
    }

    /// If the host does not have the agent that was asked for: which ones it has.
    async fn refused_agent(&mut self, agent: Option<&str>) -> Option<Error> {
        let agent = agent?;
        let agents = self.root["agents"].as_array()?;
        let names: Vec<String> =
            agents.iter().filter_map(|agent| agent["provider"].as_str()).map(output::on_one_line).collect();
        let is_known = names.iter().any(|name| name == agent);
        (!is_known).then(|| Error::Host(format!("--agent {agent:?}: the host has: {}", names.join(", "))))
    }

    /// The sessions of the host, the most recently used first.
    async fn sessions(&mut self) -> Result<Vec<Value>, Error> {
        let mut listed = self.request("listSessions", json!({"channel": ROOT})).await?;
        match listed["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Finds a session by its URI or a part of it; `last` is the most recently used one.
    async fn find(&mut self, name: &str) -> Result<String, Error> {
        if name.contains(":/") {
            return Ok(name.to_owned());
        }
        let sessions = self.sessions().await?;
        let uri = |session: &Value| session["resource"].as_str().unwrap_or_default().to_owned();
        let found: Vec<String> = match name {
            "last" => sessions.first().map(uri).into_iter().collect(),
            name => sessions.iter().map(uri).filter(|uri| uri.contains(name)).collect(),
        };
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(Error::Arguments(format!("--session {name:?}: the host has no such session"))),
            many => {
                Err(Error::Arguments(format!("--session {name:?}: {} sessions have that in their names", many.len())))
            }
        }
    }

    /// Lets a person choose a session.
    async fn choose(&mut self) -> Result<Chosen, Error> {
        let mut sessions = self.sessions().await?;
        sessions.truncate(OFFERED);
        if sessions.is_empty() {
            return Ok(Chosen::New);
        }
        for (number, session) in (1..).zip(&sessions) {
            let of = |key: &str| output::on_one_line(session[key].as_str().unwrap_or_default());
            let modified = of("modifiedAt");
            let when = modified.get(..16).unwrap_or(&modified).replace('T', " ");
            let line = format!("{number:>3}  {when}  {:<8}  {}", of("provider"), of("title"));
            self.note(&line)?;
        }
        loop {
            let prompt = format!("Session [1-{}, Enter for a new one]: ", sessions.len());
            if self.input.is_asked() {
                // A line is being typed already, behind another prompt.
                self.note(prompt.trim_end())?;
            }
            self.read(&prompt, Reading::Prompt);
            let typed = tokio::select! {
                typed = self.input.next() => typed,
                _ = self.signals.next() => return Ok(Chosen::Nothing),
            };
            let TypedLine::Line(line) = typed else { return Ok(Chosen::Nothing) };
            let line = line.trim();
            if matches!(line, "" | "n" | "new") {
                return Ok(Chosen::New);
            }
            let number = line.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            match number.and_then(|at| sessions.get(at)?["resource"].as_str()) {
                Some(session) => return Ok(Chosen::Existing(session.to_owned())),
                None => self.note(&format!("There is no session {line:?}."))?,
            }
        }
    }
}

/// Whether a line allows or denies a call; `None` if it is neither answer.
fn approval(line: &str) -> Option<bool> {
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" | "allow" | "approve" => Some(true),
        "n" | "no" | "deny" => Some(false),
        _ => None,
    }
}

/// What a person has chosen.
enum Chosen {
    Existing(String),
    New,
    Nothing,
}

/// An address in full. Where a WebSocket's has no path, it is that of a host.
fn with_path(url: &str) -> String {
    let url = in_full(url);
    let scheme = ["ws://", "wss://"]
        .iter()
        .find(|scheme| url.get(..scheme.len()).is_some_and(|front| front.eq_ignore_ascii_case(scheme)));
    let Some(front) = scheme.map(|scheme| scheme.len()) else { return url };
    let end =
        url.get(front..).and_then(|rest| rest.find(['/', '?', '#'])).map_or(url.len(), |at| at.saturating_add(front));
    match url.split_at_checked(end) {
        Some((authority, rest)) if !rest.starts_with('/') => format!("{authority}{PATH}{rest}"),
        _ => url,
    }
}

fn failed(method: &str, error: &RequestError) -> Error {
    Error::Host(format!("{method}: {error}"))
}

fn parsed(message: &Message) -> Value {
    serde_json::from_slice(&message.to_bytes()).unwrap_or_default()
}

/// A random id.
fn random() -> Result<String, Error> {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_path_is_that_of_a_host() {
        for (typed, meant) in [
            ("h:1", "ws://h:1/ahp"),
            (":4140", "ws://127.0.0.1:4140/ahp"),
            ("ws://h:1", "ws://h:1/ahp"),
            ("wss://h?cap=1M#token=x", "wss://h/ahp?cap=1M#token=x"),
            ("ws://h:1#token=x", "ws://h:1/ahp#token=x"),
            ("ws://h:1/", "ws://h:1/"),
            ("ws://h:1/agent", "ws://h:1/agent"),
            ("unix:/s", "unix:/s"),
        ] {
            assert_eq!(with_path(typed), meant);
        }
    }
}
