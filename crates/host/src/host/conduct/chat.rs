//! A chat's task: stands between the log and the agent, and does what either side wants of the other.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ahp_types::actions::{ChatTurnCancelledAction, ChatTurnStartedAction, StateAction};
use breakbulk_lifecycle::{Failure, Formed};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use super::home::{self, Found, Token};
use super::line::{END_TIME, Line};
use super::pen::{Over, Pen, Stop, seen};
use super::queue::{Waiting, begin_next};
use super::told::{self, Glance, glance};
use super::{Shared, mend, mirror};
use crate::agent::{AgentError, Clock, Command, History, Prompt, Reaction, Step, Translator};
use crate::log::Entry;
use crate::state::StateError;

/// How long to wait before a log that cannot be read is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// What is taken from an agent at once, so that one append carries it: about so many bytes, and so many events.
const MOST_BYTES: usize = 1 << 20;
const MOST_EVENTS: usize = 1_024;

/// Conducts a chat until it is closed. `is_after` one whose task broke.
pub(super) async fn conduct(
    shared: Arc<Shared>,
    uri: Arc<str>,
    pen: Pen,
    mut inbox: mpsc::Receiver<Entry>,
    is_after: bool,
) {
    let Ok(Some(first)) = pen.unless_over(inbox.recv()).await else { return };
    if pen.reached(first.seq).await.is_err() {
        return;
    }
    // None if it was disposed of meanwhile.
    let Ok(Some(found)) = find(&shared, &pen, &uri).await else { return };
    if mend_first(&shared, &pen, &uri, &found, &first, is_after).await.is_err() {
        return;
    }
    let mut chat = Chat::new(shared, uri, found, pen);
    let Err(Over) = chat.work(first, inbox).await;
    chat.end().await;
}

/// Where the chat is at home. A log that cannot be read is asked again: somebody waits for an answer.
async fn find(shared: &Shared, pen: &Pen, uri: &str) -> Result<Option<Found>, Over> {
    loop {
        match pen.unless_over(home::find(&shared.desk, uri)).await? {
            Ok(found) => return Ok(found),
            Err(StateError::Closed) => return Err(Over),
            Err(error) => warn!(chat = %uri, %error, "the agent of a chat cannot be run now"),
        }
        pen.unless_over(tokio::time::sleep(PAUSE)).await?;
    }
}

/// Ends a turn that nobody works on: of a last life of the host, or of a task that broke.
async fn mend_first(
    shared: &Shared,
    pen: &Pen,
    uri: &Arc<str>,
    found: &Found,
    first: &Entry,
    is_after: bool,
) -> Result<(), Over> {
    let begins = glance(first) == Glance::Turn;
    if is_after {
        let said = if begins { told::read(first.body.clone()).await } else { None };
        let new = said.and_then(|said| match said.action {
            StateAction::ChatTurnStarted(action) => Some(action.turn_id),
            _ => None,
        });
        return mend::mend(&shared.desk, pen, &found.session, uri, &mend::broken(), new.as_deref()).await;
    }
    // Where a turn can begin, none is left.
    if !begins && mend::is_left(&**shared.desk.log(), uri, shared.born.load(Relaxed)).await {
        return mend::mend(&shared.desk, pen, &found.session, uri, &mend::restarted(), None).await;
    }
    Ok(())
}

/// A chat, as its task knows it.
pub(super) struct Chat {
    pub(super) shared: Arc<Shared>,
    pub(super) uri: Arc<str>,
    pub(super) session: Arc<str>,
    pub(super) pen: Pen,
    is_worker: bool,
    translator: Translator,
    line: Line,
    /// The turn that the chat is in.
    pub(super) turn: Option<String>,
    /// What the chat shows before the last turn that began.
    before: History,
}

impl Chat {
    fn new(shared: Arc<Shared>, uri: Arc<str>, found: Found, pen: Pen) -> Self {
        let Found { session, is_worker } = found;
        let translator = Translator::new(Arc::clone(&session), Arc::clone(&uri));
        let (line, turn, before) = (Line::new(Arc::clone(&uri)), None, History::default());
        Self { shared, uri, session, pen, is_worker, translator, line, turn, before }
    }

    async fn work(&mut self, first: Entry, mut inbox: mpsc::Receiver<Entry>) -> Result<Infallible, Over> {
        self.hear(first).await?;
        loop {
            tokio::select! {
                biased;
                _ = self.pen.over() => return Err(Over),
                entry = inbox.recv() => match entry {
                    Some(entry) => self.hear(entry).await?,
                    None => return Err(Over),
                },
                event = self.line.next() => match event {
                    Some(event) => self.listen(event).await?,
                    None => self.lost().await?,
                },
            }
        }
    }

    /// Takes what somebody else has put into the log.
    async fn hear(&mut self, entry: Entry) -> Result<(), Over> {
        let Entry { seq, channel, body, .. } = entry;
        let Some(said) = told::read(body).await else { return Ok(()) };
        self.pen.reached(seq).await?;
        let is_mine = *channel == *self.uri;
        match said.action {
            StateAction::ChatTurnStarted(action) if is_mine && !self.is_worker => self.begun(action).await,
            _ if !said.by_client => Ok(()),
            StateAction::ChatTurnCancelled(action) => {
                let ends = is_mine && self.turn.as_ref() == Some(&action.turn_id);
                self.client(&channel, StateAction::ChatTurnCancelled(action)).await?;
                if ends { self.over(false).await } else { self.show(&[channel], None).await }
            }
            StateAction::ChatToolCallConfirmed(action) => {
                self.client(&channel, StateAction::ChatToolCallConfirmed(action)).await?;
                self.show(&[channel], None).await
            }
            StateAction::ChatTruncated(_) if is_mine => self.truncated().await,
            // Set while a turn ran, it waits for the end of that, whatever is the case by now.
            StateAction::ChatPendingMessageSet(_) if self.turn.is_some() => Ok(()),
            StateAction::ChatPendingMessageSet(_) if is_mine && !self.is_worker => {
                begin_next(&self.shared.desk, &self.pen, &self.uri, Waiting::Queued).await
            }
            // What a client has marked or moved is in the chat's state now.
            _ => self.show(&[channel], None).await,
        }
    }

    /// A turn begins. One that is over already is not the agent's affair.
    async fn begun(&mut self, action: ChatTurnStartedAction) -> Result<(), Over> {
        let Some(before) = self.before(&action.turn_id).await? else { return Ok(()) };
        (self.turn, self.before) = (Some(action.turn_id.clone()), before);
        let title = mirror::title_of(&action.message.text);
        self.client(&Arc::clone(&self.uri), StateAction::ChatTurnStarted(action)).await?;
        self.show(&[Arc::clone(&self.uri)], title.as_deref()).await
    }

    /// What the chat shows before this turn, if it is in it.
    async fn before(&self, turn: &str) -> Result<Option<History>, Over> {
        seen(self.shared.desk.state().history_before(&self.uri, turn).await)
    }

    /// Turns were taken back, of which the agent knows. The next turn begins another conversation, with those that are left.
    async fn truncated(&mut self) -> Result<(), Over> {
        if let Some(turn_id) = self.turn.clone() {
            if self.before(&turn_id).await?.is_some() {
                // It named no turn of this chat, and changed nothing.
                return Ok(());
            }
            let cancelled = ChatTurnCancelledAction { turn_id, duration: 0, meta: None };
            self.client(&Arc::clone(&self.uri), StateAction::ChatTurnCancelled(cancelled)).await?;
            self.over(false).await?;
        }
        home::remember(&self.shared.desk, &self.pen, &self.session, &self.uri, None).await?;
        self.lost().await?;
        self.show(&[Arc::clone(&self.uri)], None).await
    }

    /// What a client has done becomes what the agent is told.
    async fn client(&mut self, channel: &Arc<str>, action: StateAction) -> Result<(), Over> {
        let Reaction { command, steps } = self.translator.client(channel, action, self.shared.clock.now());
        let tell = command.map(Step::Tell);
        self.carry_out(tell.into_iter().chain(steps).collect(), 0).await
    }

    /// Takes what the agent says, with all that it has said meanwhile.
    async fn listen(&mut self, first: Formed) -> Result<(), Over> {
        let now = self.shared.clock.now();
        let (mut steps, mut bytes, mut count) = (VecDeque::new(), 0_usize, 0);
        let mut next = Some(first);
        while let Some(event) = next {
            (bytes, count) = (bytes.saturating_add(event.weight()), count + 1);
            steps.extend(self.translator.event(event, now));
            let has_room = bytes < MOST_BYTES && count < MOST_EVENTS;
            next = if has_room { self.line.ready() } else { None };
        }
        self.carry_out(steps, bytes).await
    }

    /// The agent has ended, or is dropped. The next turn begins it anew.
    async fn lost(&mut self) -> Result<(), Over> {
        let Some(turn) = self.line.cut() else { return Ok(()) };
        let failure = Failure::new("agentEnded", "The agent ended in the middle of a turn.");
        let steps = self.translator.refused(&turn, failure, self.shared.clock.now());
        self.carry_out(steps.into(), 0).await
    }

    /// Does all of this in its order, and what follows from it.
    async fn carry_out(&mut self, mut steps: VecDeque<Step>, bytes: usize) -> Result<(), Over> {
        let mut acts = Vec::new();
        while let Some(step) = steps.pop_front() {
            match step {
                Step::Act { .. } | Step::Open(_) => acts.push(step),
                Step::Tell(command) => {
                    self.flush(&mut acts, bytes).await?;
                    for step in self.tell(command).await?.into_iter().rev() {
                        steps.push_front(step);
                    }
                }
                Step::Remember { token, turn } => {
                    self.flush(&mut acts, bytes).await?;
                    let token = Token { token: &token, turn: &turn };
                    home::remember(&self.shared.desk, &self.pen, &self.session, &self.uri, Some(token)).await?;
                }
            }
        }
        self.flush(&mut acts, bytes).await
    }

    /// Tells the agent something; what follows if it does not take it.
    async fn tell(&mut self, command: Command) -> Result<Vec<Step>, Over> {
        let pen = self.pen.clone();
        match command {
            Command::Send(prompt) => return self.send(prompt).await,
            Command::Cancel { turn } => pen.unless_over(self.line.cancel(turn)).await?,
            Command::Answer { tool, answer } => pen.unless_over(self.line.answer(&tool, answer)).await?,
        }
        Ok(Vec::new())
    }

    /// Begins a turn, and a conversation if there is none of somebody who knows what the chat shows.
    async fn send(&mut self, prompt: Prompt) -> Result<Vec<Step>, Over> {
        let (turn, before) = (prompt.turn.clone(), self.before.clone());
        let begin = |history| home::begin(&self.shared, &self.pen, &self.session, &self.uri, history);
        let Err(error) = self.pen.unless_over(self.line.send(prompt, before, begin)).await? else {
            return Ok(Vec::new());
        };
        let kind = if matches!(error, AgentError::Directory { .. }) { "workingDirectory" } else { "agentUnavailable" };
        Ok(self.translator.refused(&turn, Failure::new(kind, error.to_string()), self.shared.clock.now()))
    }

    /// The chat's turn has ended; in its own time if nobody stopped it.
    pub(super) async fn over(&mut self, in_time: bool) -> Result<(), Over> {
        self.turn = None;
        self.shared.workshop.worked(&self.session);
        self.show(&[Arc::clone(&self.uri)], None).await?;
        if in_time {
            begin_next(&self.shared.desk, &self.pen, &self.uri, Waiting::All).await?;
        }
        Ok(())
    }

    pub(super) async fn show(&self, chats: &[Arc<str>], title: Option<&str>) -> Result<(), Over> {
        mirror::show(&self.shared.desk, &self.pen, &self.session, chats, title).await
    }

    /// The last of it: the agent ends, and if the host does too, the turn says so.
    async fn end(self) {
        self.line.end().await;
        if self.pen.stop() != Stop::Host || self.turn.is_none() {
            return;
        }
        let (desk, why) = (&self.shared.desk, mend::stopped());
        let pen = Pen::hasty(Arc::clone(desk));
        let mend = async {
            for chat in self.shared.roster.workers_of(&self.uri).iter().chain([&self.uri]) {
                mend::mend(desk, &pen, &self.session, chat, &why, None).await?;
            }
            Ok::<_, Over>(())
        };
        // If the log does not hear of it now, the next life says so.
        drop(timeout(END_TIME, mend).await);
    }
}
