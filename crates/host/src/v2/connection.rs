//! One v2 connection: commands in, events out.
//!
//! A connection holds two commands, one page of events, and the answers to commands. While a command is at work or answers
//! wait, the next one is held; until there is one, the link is read, because that is how a silent peer is noticed. No further
//! page is taken before the last one is written. Everything else waits in the log.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk::{Arrival, BoxLink, Intake, Link, LinkError};
use breakbulk_lifecycle::v2::wire::{Command, ConnectionEvent, Outgoing, Refusal, SessionState};
use breakbulk_proto::{CloseReason, Grant, Message, Meta, Tag, Transmit};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Sleep};
use tracing::{debug, info};

use super::V2Inner;
use super::clients::V2Registration;
use super::commands::{Caller, NotDone, Performed};
use super::permissions::now_ms;
use super::snapshot::StreamError;
use super::watcher::{Joined, Watcher};
use crate::endpoint::{AnswerMemory, EndReason};
use crate::host::new_id;
use crate::log::{BoxFuture, LogHealth};
use crate::size::to_u64;
use crate::state::StateError;

/// Answers to commands that may wait until no further command is read.
const MAX_ANSWER_BYTES: usize = 32 << 10;

/// How long a client may take to answer our close.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// The code of a link that ended without a close.
const NO_CLOSE: u16 = 1006;

/// A connection.
pub(super) struct V2Connection {
    shared: Arc<V2Inner>,
    link: BoxLink,
    principal: Option<Arc<str>>,
    memory: AnswerMemory,
    client: Option<Identity>,
    hello_by: Instant,
    /// What is to be written, in order.
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// When the link last moved while something was to be written, and how far it was.
    moved: (Instant, u64),
    command: Option<BoxFuture<'static, CommandResult>>,
    /// The command that is next.
    held: Option<QueuedCommand>,
    watches: HashMap<Arc<str>, SessionWatch>,
    tasks: JoinSet<()>,
    /// Pages of events. Watchers make one only when it can be taken.
    pages: mpsc::Receiver<EventPage>,
    page_sender: mpsc::Sender<EventPage>,
    last_watch: u64,
    timer: Pin<Box<Sleep>>,
    stop: BoxFuture<'static, ()>,
}

/// A command that waits until the one before it is done, with the memory that it arrived in.
struct QueuedCommand {
    text: Bytes,
    grant: Option<Grant>,
}

/// A client that has said hello.
struct Identity {
    caller: Caller,
    registration: V2Registration,
}

/// A session that the connection watches.
struct SessionWatch {
    /// Its number: a page of an earlier watch of the same session is not sent.
    number: u64,
    task: AbortHandle,
}

/// Events of a session.
struct EventPage {
    session: Arc<str>,
    watch: u64,
    events: Result<Vec<Bytes>, StreamError>,
}

/// What came of a command.
#[derive(Default)]
struct CommandResult {
    says: Vec<Outgoing>,
    /// Sessions that the connection watches from now on.
    joined: Vec<(Arc<str>, Box<Joined>)>,
}

/// What happens on a connection.
enum ConnectionStep {
    Arrived(Option<Result<Arrival, LinkError>>),
    Answered(CommandResult),
    Page(EventPage),
    Failed(LinkError),
    Fenced,
    Stopping,
    Late,
}

impl V2Connection {
    pub(super) fn new(shared: Arc<V2Inner>, mut link: BoxLink, principal: Option<Arc<str>>) -> Self {
        let account = shared.budget.account(principal.as_deref());
        if let Some(memory) = link.receive_memory() {
            let max_frame_bytes = to_u64(shared.config.commands.max_bytes);
            memory.set_intake(Intake { max_frame_bytes, account: Some(account) });
        }
        let (page_sender, pages) = mpsc::channel(1);
        let (now, mut stop) = (Instant::now(), shared.stop.subscribe());
        shared.traffic.connections.fetch_add(1, Relaxed);
        shared.traffic.open.fetch_add(1, Relaxed);
        Self {
            memory: shared.endpoint.answer_memory(principal.clone()),
            hello_by: now + shared.config.hello_time,
            link,
            principal,
            client: None,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            moved: (now, 0),
            command: None,
            held: None,
            watches: HashMap::new(),
            tasks: JoinSet::new(),
            pages,
            page_sender,
            last_watch: 0,
            timer: Box::pin(tokio::time::sleep(shared.config.hello_time)),
            stop: Box::pin(async move { stopped(&mut stop).await }),
            shared,
        }
    }

    /// Serves the client until the connection ends; returns why it ended.
    pub(super) async fn run(mut self: Box<Self>) -> EndReason {
        let end = loop {
            while self.tasks.try_join_next().is_some() {}
            self.take_held();
            self.set_timer();
            let end = match poll_fn(|cx| self.poll_step(cx)).await {
                ConnectionStep::Arrived(arrived) => self.arrived(arrived),
                ConnectionStep::Answered(answer) => {
                    self.answered(answer);
                    None
                }
                ConnectionStep::Page(page) => self.take_page(page),
                ConnectionStep::Failed(error) => Some(lost(&error)),
                ConnectionStep::Fenced => Some(EndReason::Fenced),
                ConnectionStep::Stopping => Some(EndReason::Stopping),
                ConnectionStep::Late => self.late(),
            };
            if let Some(end) = end {
                break end;
            }
        };
        // A client may send a command and close at once.
        if let Some(command) = self.command.take().filter(|_| matches!(end, EndReason::Link(_))) {
            drop(tokio::time::timeout(CLOSE_TIME, command).await);
        }
        self.close(end).await
    }

    /// Closes the link for this reason, and says so.
    pub(super) async fn close(mut self: Box<Self>, end: EndReason) -> EndReason {
        self.tasks.abort_all();
        let transmit = Transmit::Close(end.as_close());
        let closing = poll_fn(|cx| {
            let mut link = Pin::new(&mut self.link);
            std::task::ready!(link.as_mut().poll_ready(cx))?;
            Poll::Ready(link.start_send(transmit.clone()))
        });
        let is_open = !matches!(&end, EndReason::Link(CloseReason::Peer { .. }));
        if is_open && matches!(tokio::time::timeout(CLOSE_TIME, closing).await, Ok(Ok(()))) {
            let closed = poll_fn(|cx| Pin::new(&mut self.link).poll_close(cx));
            drop(tokio::time::timeout(CLOSE_TIME, closed).await);
        }
        self.shared.counts.add(end.name(), 1);
        self.shared.traffic.ends.add(end.name(), 1);
        let (reason, code, unsent_bytes) = (end.name(), end.code(), self.unsent_bytes);
        match &self.client {
            Some(Identity { caller, .. }) => {
                info!(protocol = "v2", client = %caller.client, unsent_bytes, reason, code, "connection closed: {end}");
            }
            None => {
                if let Some(permit) = self.shared.log_limit.permit(reason) {
                    let left_out = permit.left_out();
                    info!(protocol = "v2", reason, code, left_out, "connection closed before its first command: {end}");
                }
            }
        }
        end
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionStep> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(ConnectionStep::Stopping);
        }
        if let Some(Identity { registration, .. }) = &mut self.client
            && Pin::new(&mut registration.fenced).poll(cx).is_ready()
        {
            return Poll::Ready(ConnectionStep::Fenced);
        }
        if let Err(error) = self.write(cx) {
            return Poll::Ready(ConnectionStep::Failed(error));
        }
        if self.held.is_none() {
            if let Poll::Ready(arrived) = Pin::new(&mut self.link).poll_next(cx) {
                return Poll::Ready(ConnectionStep::Arrived(arrived));
            }
        } else if let Some(memory) = self.link.receive_memory()
            && let Poll::Ready(error) = memory.poll_evicted(cx)
        {
            return Poll::Ready(ConnectionStep::Failed(error));
        }
        if let Some(command) = &mut self.command
            && let Poll::Ready(answer) = command.as_mut().poll(cx)
        {
            self.command = None;
            return Poll::Ready(ConnectionStep::Answered(answer));
        }
        if self.unsent.is_empty()
            && let Poll::Ready(Some(page)) = self.pages.poll_recv(cx)
        {
            return Poll::Ready(ConnectionStep::Page(page));
        }
        self.timer.as_mut().poll(cx).map(|()| ConnectionStep::Late)
    }

    /// Writes as much as the link takes.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        let mut link = Pin::new(&mut self.link);
        while !self.unsent.is_empty() {
            match link.as_mut().poll_ready(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(ready) => ready?,
            }
            let Some(event) = self.unsent.pop_front() else { break };
            self.unsent_bytes = self.unsent_bytes.saturating_sub(event.len());
            self.shared.traffic.sent.frame(event.len());
            self.shared.traffic.sent.messages.fetch_add(1, Relaxed);
            let bytes = Message::from(event);
            link.as_mut().start_send(Transmit::Frame { tag: Tag::default(), bytes, meta: Meta::default() })?;
        }
        match link.poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn push(&mut self, event: Bytes) {
        if self.unsent.is_empty() {
            self.moved = (Instant::now(), self.link.status().moved.outward);
        }
        self.unsent_bytes = self.unsent_bytes.saturating_add(event.len());
        self.unsent.push_back(event);
    }

    fn say(&mut self, event: &Outgoing) {
        if let Ok(text) = crate::exact::to_vec(event) {
            self.push(Bytes::from(text));
        }
    }

    fn tell(&mut self, event: ConnectionEvent) {
        self.say(&Outgoing::Connection(event));
    }

    fn arrived(&mut self, arrived: Option<Result<Arrival, LinkError>>) -> Option<EndReason> {
        match arrived {
            None => Some(EndReason::Link(CloseReason::Peer { code: NO_CLOSE })),
            Some(Err(error)) => Some(lost(&error)),
            Some(Ok(Arrival::Frame { bytes, .. })) => {
                self.shared.traffic.received.frame(bytes.len());
                self.shared.traffic.received.messages.fetch_add(1, Relaxed);
                // The bytes stay charged until the command is done.
                let grant = self.link.receive_memory().and_then(|memory| memory.take_last());
                self.held = Some(QueuedCommand { text: bytes, grant });
                None
            }
            Some(Ok(Arrival::Closed { code, .. } | Arrival::Exited { code, .. })) => {
                Some(EndReason::Link(CloseReason::Peer { code }))
            }
            Some(Ok(Arrival::Ended)) => Some(EndReason::Link(CloseReason::Normal)),
            Some(Ok(Arrival::Acked { .. })) => None,
        }
    }

    /// Takes the held command, if nothing is at work and few answers wait.
    fn take_held(&mut self) {
        if self.command.is_none()
            && self.unsent_bytes <= MAX_ANSWER_BYTES
            && let Some(QueuedCommand { text, grant }) = self.held.take()
        {
            self.receive(&text, grant);
        }
    }

    /// Takes a command.
    fn receive(&mut self, text: &[u8], grant: Option<Grant>) {
        let limits = &self.shared.config.commands;
        let command = match crate::long_work::long_work(text.len(), || Command::read(text, limits)) {
            Ok(command) => command,
            Err(error) => {
                self.shared.counts.add("v2-malformed-command", 1);
                return self.say(&Outgoing::Refusal(Refusal::malformed(&error, now_ms())));
            }
        };
        debug!(command = command.name(), "v2 command");
        match (command, &self.client) {
            (Command::Ping {}, _) => self.tell(ConnectionEvent::Pong {}),
            (Command::Hello { .. }, None) => {
                let client_id = new_id();
                self.identify(client_id.as_str().into());
                self.tell_id(client_id);
            }
            (Command::Hello { .. }, Some(Identity { caller, .. })) => {
                let client_id = caller.client.to_string();
                self.tell_id(client_id);
            }
            (Command::Reattach { client_id, sessions }, _) => {
                self.identify(client_id.as_str().into());
                let (shared, memory) = (Arc::clone(&self.shared), self.memory.clone());
                let room = shared.config.max_watches.saturating_sub(self.watches.len());
                self.command = Some(Box::pin(async move {
                    let _grant = grant;
                    let mut answer = CommandResult::default();
                    for (at, session) in sessions.into_iter().enumerate() {
                        let (id, last) = (session.session_id, session.last_seq);
                        let joined = match at < room {
                            true => Watcher::join(&shared, memory.clone(), &id, last).await.map_err(|why| reason(&why)),
                            false => Err(too_many(shared.config.max_watches)),
                        };
                        match joined {
                            Ok(joined) => {
                                answer.says.push(reattached(&client_id, &id, &joined));
                                answer.joined.push((id.into(), Box::new(joined)));
                            }
                            Err(reason) => {
                                let (client_id, session_id) = (client_id.clone(), Some(id));
                                let failed = ConnectionEvent::ReattachFailed { client_id, session_id, reason };
                                answer.says.push(Outgoing::Connection(failed));
                            }
                        }
                    }
                    answer
                }));
            }
            (command, None) => {
                let why = format!("{}: say hello or reattach first", command.name());
                self.refuse(&command, why);
            }
            (Command::Unwatch { session_id }, Some(_)) => {
                self.unwatch(&session_id);
            }
            (Command::Watch { session_id, .. }, Some(_))
                if self.watches.len() >= self.shared.config.max_watches
                    && !self.watches.contains_key(session_id.as_str()) =>
            {
                let why = format!("watch: {}", too_many(self.shared.config.max_watches));
                self.refuse(&Command::Watch { session_id, last_seq: None }, why);
            }
            (command, Some(Identity { caller, .. })) => {
                let (shared, memory, caller) = (Arc::clone(&self.shared), self.memory.clone(), caller.clone());
                let watched: Vec<Arc<str>> = self.watches.keys().cloned().collect();
                self.command = Some(Box::pin(async move {
                    let _grant = grant;
                    perform(&shared, memory, &caller, command, &watched).await
                }));
            }
        }
    }

    /// From now on this is a connection of that client.
    fn identify(&mut self, client: Arc<str>) {
        if self.client.as_ref().is_some_and(|identity| identity.caller.client == client) {
            return;
        }
        let principal = self.principal.clone();
        let registration = self.shared.clients.register(principal.clone(), Arc::clone(&client));
        self.client = Some(Identity { caller: Caller { client, principal }, registration });
    }

    fn tell_id(&mut self, client_id: String) {
        let max_command_bytes = Some(to_u64(self.shared.config.commands.max_bytes));
        self.tell(ConnectionEvent::ClientId { client_id, max_command_bytes });
    }

    fn refuse(&mut self, command: &Command, error: String) {
        self.say(&Outgoing::Refusal(refusal(command, error)));
    }

    fn answered(&mut self, answer: CommandResult) {
        for event in &answer.says {
            self.say(event);
        }
        for (session, joined) in answer.joined {
            self.watch(session, joined.watcher);
        }
    }

    /// Begins to send the events of a session. An earlier watch of it ends.
    fn watch(&mut self, session: Arc<str>, mut watcher: Watcher) {
        self.unwatch(&session);
        self.last_watch = self.last_watch.wrapping_add(1);
        let (number, pages, name) = (self.last_watch, self.page_sender.clone(), Arc::clone(&session));
        let task = self.tasks.spawn(async move {
            loop {
                watcher.ready().await;
                // Nothing is made that cannot be taken.
                let Ok(permit) = pages.reserve().await else { return };
                let events = watcher.take().await;
                let is_last = events.is_err();
                if is_last || events.as_ref().is_ok_and(|events| !events.is_empty()) {
                    permit.send(EventPage { session: Arc::clone(&name), watch: number, events });
                }
                if is_last {
                    return;
                }
            }
        });
        self.shared.watches.fetch_add(1, Relaxed);
        self.watches.insert(session, SessionWatch { number, task });
    }

    fn unwatch(&mut self, session: &str) {
        if let Some(watch) = self.watches.remove(session) {
            watch.task.abort();
            self.shared.watches.fetch_sub(1, Relaxed);
        }
    }

    fn take_page(&mut self, page: EventPage) -> Option<EndReason> {
        let EventPage { session, watch, events } = page;
        if self.watches.get(&session).is_none_or(|known| known.number != watch) {
            return None;
        }
        match events {
            Ok(events) => events.into_iter().for_each(|event| self.push(event)),
            Err(StreamError::Memory(error)) => return Some(EndReason::NoMemory(error)),
            Err(error) => {
                // The session is gone. Its last event may be erased with it, so the client is told in another way.
                self.unwatch(&session);
                let command = Command::Watch { session_id: session.to_string(), last_seq: None };
                self.refuse(&command, format!("watch: the session can be watched no longer: {}", reason(&error)));
            }
        }
        None
    }

    /// Sets the timer to the next moment at which something may be late.
    fn set_timer(&mut self) {
        let config = &self.shared.config;
        let due = match (&self.client, self.unsent.is_empty()) {
            (None, _) => self.hello_by,
            (Some(_), false) => self.moved.0 + config.stall_time,
            (Some(_), true) => Instant::now() + config.stall_time,
        };
        self.timer.as_mut().reset(due);
    }

    fn late(&mut self) -> Option<EndReason> {
        let (now, config) = (Instant::now(), &self.shared.config);
        if self.client.is_none() && now >= self.hello_by {
            return Some(EndReason::NoHandshake(config.hello_time));
        }
        let (since, before) = self.moved;
        let outward = self.link.status().moved.outward;
        if self.unsent.is_empty() || outward != before {
            self.moved = (now, outward);
            return None;
        }
        let after = now.saturating_duration_since(since);
        (after >= config.stall_time).then_some(EndReason::Stalled { bytes: self.unsent_bytes, after })
    }
}

impl Drop for V2Connection {
    fn drop(&mut self) {
        self.shared.traffic.open.fetch_sub(1, Relaxed);
        self.shared.watches.fetch_sub(to_u64(self.watches.len()), Relaxed);
    }
}

/// Does a command of a client that has said hello.
async fn perform(
    shared: &Arc<V2Inner>,
    memory: AnswerMemory,
    caller: &Caller,
    command: Command,
    watched: &[Arc<str>],
) -> CommandResult {
    let (name, client_msg_id) = (command.name().to_owned(), command.client_msg_id().map(str::to_owned));
    let refused = refusal(&command, String::new());
    let refuse = |why: &str| {
        // Only the host that has taken over the log knows what became of the command.
        if *shared.services.log_writer().log().health().borrow() == LogHealth::Fenced {
            return CommandResult { says: Vec::new(), joined: Vec::new() };
        }
        let refusal =
            Refusal { error: format!("{}: {why}", refused.command.as_deref().unwrap_or_default()), ..refused };
        CommandResult { says: vec![Outgoing::Refusal(refusal)], joined: Vec::new() }
    };
    match command {
        Command::List { cursor, limit } => match shared.list(cursor, limit).await {
            Ok((sessions, next_cursor)) => {
                let says = vec![Outgoing::Connection(ConnectionEvent::Sessions { sessions, next_cursor })];
                CommandResult { says, joined: Vec::new() }
            }
            Err(error) => refuse(&error.to_string()),
        },
        Command::Watch { session_id, last_seq } => match Watcher::join(shared, memory, &session_id, last_seq).await {
            Ok(joined) => CommandResult {
                says: vec![reattached(&caller.client, &session_id, &joined)],
                joined: vec![(session_id.into(), Box::new(joined))],
            },
            Err(error) => refuse(&reason(&error)),
        },
        command => {
            let opens = matches!(command, Command::Open { .. });
            let Performed { outcome, session, repeated } = match shared.perform(caller, command, watched).await {
                Ok(performed) => performed,
                Err(NotDone::Refused(why)) => return refuse(&why),
                Err(NotDone::Repeated(_) | NotDone::Nothing) => return refuse("there is nothing to do"),
            };
            let session_id = Some(session.clone());
            let ack = ConnectionEvent::Ack { command: name, client_msg_id, session_id, outcome, repeated };
            let mut answer = CommandResult { says: vec![Outgoing::Connection(ack)], joined: Vec::new() };
            let can_watch =
                watched.len() < shared.config.max_watches && !watched.iter().any(|known| **known == *session);
            // Whoever makes a session wants to see it.
            if opens
                && can_watch
                && let Ok(joined) = Watcher::join(shared, memory, &session, None).await
            {
                answer.joined.push((session.into(), Box::new(joined)));
            }
            answer
        }
    }
}

fn refusal(command: &Command, error: String) -> Refusal {
    let session_id = match command {
        Command::Watch { session_id, .. }
        | Command::Unwatch { session_id }
        | Command::Interrupt { session_id, .. }
        | Command::Stop { session_id }
        | Command::SetMode { session_id, .. } => Some(session_id.clone()),
        Command::Send(prompt) | Command::Queue(prompt) => Some(prompt.session_id.clone()),
        _ => None,
    };
    Refusal {
        ts: now_ms(),
        error,
        command: Some(command.name().to_owned()),
        field: None,
        client_msg_id: command.client_msg_id().map(str::to_owned),
        session_id,
    }
}

fn reattached(client: &str, session: &str, joined: &Joined) -> Outgoing {
    let standing = joined.standing;
    let state = if standing.is_over { SessionState::Idle } else { standing.state };
    Outgoing::Connection(ConnectionEvent::Reattached {
        client_id: client.to_owned(),
        session_id: Some(session.to_owned()),
        running: state != SessionState::Idle,
        state: Some(state),
        ended: standing.is_over,
        snapshot: joined.reason,
    })
}

fn reason(error: &StreamError) -> String {
    match error {
        StreamError::State(StateError::NotFound | StateError::NotAChat) => "there is no such session".to_owned(),
        error => error.to_string(),
    }
}

fn too_many(limit: usize) -> String {
    format!("a connection may watch {limit} sessions")
}

fn lost(error: &LinkError) -> EndReason {
    debug!(%error, "a link failed");
    if let LinkError::FrameTooLarge(over) = error {
        return EndReason::CommandTooLong(*over);
    }
    EndReason::Link(match error {
        LinkError::OverBudget(bytes) => CloseReason::OverBudget(*bytes),
        LinkError::Silent(silence) => CloseReason::Idle(*silence),
        _ => CloseReason::Peer { code: NO_CLOSE },
    })
}

/// Waits until the endpoint stops.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
