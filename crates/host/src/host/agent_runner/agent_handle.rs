//! The handle of a chat's agent: passes calls to it, and keeps what it has been told, and thus what it knows.

use std::sync::Arc;
use std::time::Duration;

use ahp_types::common::JsonObject;
use breakbulk_lifecycle::{Answer as Verdict, Event, Formed, Id};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::super::config::MAX_AGENT_CANCEL;
use crate::agent::{AgentError, History, Prompt, Started};

/// How long an agent may take to accept a call. A working agent accepts it at once.
const CALL_TIME: Duration = Duration::from_secs(30);

/// How long an agent may take to end a turn that was cancelled.
const CANCEL_TIME: Duration = MAX_AGENT_CANCEL.saturating_add(Duration::from_secs(10));

/// How long an agent may take to end in order, and then the log to record that. Twice this is less than what the chat's
/// task has.
pub(super) const END_TIME: Duration = Duration::from_secs(2);

/// A chat's agent, while it has one.
pub(super) struct AgentHandle {
    chat: Arc<str>,
    started: Option<Started>,
    /// The turns that the chat showed before the last turn that the agent accepted. The agent knows these and that turn, and
    /// no others.
    known: Option<History>,
    /// The turn that the agent works on.
    open_turn: Option<Id>,
    /// When the agent is dropped: it has not accepted a call, or has not ended a cancelled turn by then.
    drop_at: Option<Instant>,
}

impl AgentHandle {
    pub(super) const fn new(chat: Arc<str>) -> Self {
        Self { chat, started: None, known: None, open_turn: None, drop_at: None }
    }

    /// Starts a turn of a chat that shows this history before it. An agent that has ended, or that knows other turns than
    /// these, is replaced by the one that `start` returns.
    pub(super) async fn send<F>(
        &mut self,
        prompt: Prompt,
        history: History,
        start: impl FnOnce(History) -> F,
    ) -> Result<(), AgentError>
    where
        F: Future<Output = Result<Started, AgentError>>,
    {
        let turn = prompt.turn.clone();
        let is_up_to_date = self.known.take().is_some_and(|known| history.follows(&known));
        let called = match self.started.as_ref().filter(|_| is_up_to_date) {
            Some(started) => call(&self.chat, started.conversation.send(prompt.clone())).await,
            None => None,
        };
        match called {
            None | Some(Err(AgentError::Ended)) => {
                self.started = None;
                let started = &*self.started.insert(start(history.clone()).await?);
                let late = || AgentError::Unavailable("it takes no calls".to_owned());
                call(&self.chat, started.conversation.send(prompt)).await.ok_or_else(late)??;
            }
            Some(called) => called?,
        }
        self.known = Some(history);
        self.open_turn = Some(turn);
        Ok(())
    }

    /// The agent has begun a turn by itself, in a chat that shows this history before it.
    pub(super) fn began(&mut self, turn: Id, history: History) {
        self.known = Some(history);
        self.open_turn = Some(turn);
    }

    /// Cancels a turn.
    pub(super) async fn cancel(&mut self, turn: Id) {
        self.drop_at = self.open_turn.is_some().then(|| Instant::now() + CANCEL_TIME);
        if let Some(started) = &self.started {
            let called = call(&self.chat, started.conversation.cancel(turn)).await;
            self.check_called(called);
        }
    }

    /// Answers the agent's question about a tool call.
    pub(super) async fn answer(&mut self, tool: &Id, answer: Verdict) {
        let Some(started) = &self.started else { return };
        let Some(tool) = started.events.given(tool) else { return };
        let called = call(&self.chat, started.conversation.answer(tool, answer)).await;
        self.check_called(called);
    }

    /// Tells the agent that the options of the session are these now.
    pub(super) async fn configure(&mut self, config: JsonObject) {
        if let Some(started) = &self.started {
            let called = call(&self.chat, started.conversation.configure(config)).await;
            self.check_called(called);
        }
    }

    /// The next event; `None` when the agent has ended. Never resolves without an agent. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Option<Formed> {
        let Some(started) = &mut self.started else { return std::future::pending().await };
        let event = tokio::select! {
            event = started.events.next() => event,
            () = until(self.drop_at) => {
                warn!(chat = %self.chat, "an agent does not end a cancelled turn and is dropped");
                None
            }
        };
        self.note_turn_end(event)
    }

    /// The next event, if one is queued.
    pub(super) fn ready(&mut self) -> Option<Formed> {
        let event = self.started.as_mut()?.events.ready();
        self.note_turn_end(event)
    }

    /// Drops the agent. Returns the turn that it worked on, which somebody has to end now.
    pub(super) fn disconnect(&mut self) -> Option<Id> {
        self.started = None;
        self.drop_at = None;
        self.open_turn.take()
    }

    /// Ends the conversation. A turn that is open stays so until [`disconnect`](Self::disconnect).
    pub(super) async fn stop(&mut self) {
        let Some(started) = self.started.take() else { return };
        if timeout(END_TIME, started.conversation.dispose()).await.is_err() {
            warn!(chat = %self.chat, "an agent does not end and is dropped");
        }
    }

    /// Lets the agent end in order, for a short time.
    pub(super) async fn dispose(mut self) {
        self.stop().await;
    }

    fn note_turn_end(&mut self, event: Option<Formed>) -> Option<Formed> {
        if let Some(Event::TurnEnded { turn, .. }) = event.as_deref()
            && self.open_turn.as_ref() == Some(turn)
        {
            self.open_turn = None;
            self.drop_at = None;
        }
        event
    }

    fn check_called(&mut self, called: Option<Result<(), AgentError>>) {
        match called {
            Some(Ok(())) => {}
            // The agent's events say how the turn goes on.
            Some(Err(error)) => debug!(%error, "an agent has not taken a call"),
            None => self.drop_at = Some(Instant::now()),
        }
    }
}

/// Awaits a call of an agent; `None` if the agent does not accept it in time.
async fn call<T>(chat: &str, called: impl Future<Output = T>) -> Option<T> {
    let answer = timeout(CALL_TIME, called).await.ok();
    if answer.is_none() {
        warn!(chat, "an agent does not answer and is dropped");
    }
    answer
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
