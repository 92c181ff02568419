//! The line to an agent: what it is told, and what it knows by that.

use std::sync::Arc;
use std::time::Duration;

use breakbulk_lifecycle::{Answer as Verdict, Event, Formed, Id};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use crate::agent::{AgentError, History, Prompt, Started};

/// How long an agent may take to take a call, which it does at once if it works.
const CALL_TIME: Duration = Duration::from_secs(30);

/// How long an agent may take to end a turn that was cancelled.
const CANCEL_TIME: Duration = Duration::from_secs(30);

/// How long an agent has to end in order, and then the log to hear of it. Together less than the whole task has.
pub(super) const END_TIME: Duration = Duration::from_secs(2);

/// A chat's line to its agent, while there is one.
pub(super) struct Line {
    chat: Arc<str>,
    live: Option<Started>,
    /// What the chat showed before the last turn that the agent has taken: with that one, this is all that it knows.
    knows: Option<History>,
    /// The turn that it was told of and has not ended.
    sent: Option<Id>,
    /// Until then it may take to end one that was cancelled.
    patience: Option<Instant>,
}

impl Line {
    pub(super) const fn new(chat: Arc<str>) -> Self {
        Self { chat, live: None, knows: None, sent: None, patience: None }
    }

    /// Begins a turn of a chat that shows this before it. An agent that knows anything else than just that is replaced by one
    /// that `begin` gives; so is one that has ended.
    pub(super) async fn send<F>(
        &mut self,
        prompt: Prompt,
        before: History,
        begin: impl FnOnce(History) -> F,
    ) -> Result<(), AgentError>
    where
        F: Future<Output = Result<Started, AgentError>>,
    {
        let turn = prompt.turn.clone();
        let is_up_to_date = self.knows.take().is_some_and(|knows| before.follows(&knows));
        let told = match self.live.as_ref().filter(|_| is_up_to_date) {
            Some(live) => call(&self.chat, live.conversation.send(prompt.clone())).await,
            None => None,
        };
        match told {
            None | Some(Err(AgentError::Ended)) => {
                self.live = None;
                let live = &*self.live.insert(begin(before.clone()).await?);
                let late = || AgentError::Unavailable("it takes no calls".to_owned());
                call(&self.chat, live.conversation.send(prompt)).await.ok_or_else(late)??;
            }
            Some(told) => told?,
        }
        (self.knows, self.sent) = (Some(before), Some(turn));
        Ok(())
    }

    /// Stops a turn.
    pub(super) async fn cancel(&mut self, turn: Id) {
        self.patience = self.sent.is_some().then(|| Instant::now() + CANCEL_TIME);
        if let Some(live) = &self.live {
            let told = call(&self.chat, live.conversation.cancel(turn)).await;
            self.told(told);
        }
    }

    /// Answers what was asked about a call.
    pub(super) async fn answer(&mut self, tool: &Id, answer: Verdict) {
        let Some(live) = &self.live else { return };
        let Some(tool) = live.events.given(tool) else { return };
        let told = call(&self.chat, live.conversation.answer(tool, answer)).await;
        self.told(told);
    }

    /// The next event; none when the agent has ended. Without an agent there is nothing to wait for. Dropping the future loses
    /// nothing.
    pub(super) async fn next(&mut self) -> Option<Formed> {
        let Some(live) = &mut self.live else { return std::future::pending().await };
        let event = tokio::select! {
            event = live.events.next() => event,
            () = until(self.patience) => {
                warn!(chat = %self.chat, "an agent does not end a cancelled turn and is dropped");
                None
            }
        };
        self.heard(event)
    }

    /// The next event that is there already.
    pub(super) fn ready(&mut self) -> Option<Formed> {
        let event = self.live.as_mut()?.events.ready();
        self.heard(event)
    }

    /// Ends it at once. The turn that the agent was in, if any, is nobody's now.
    pub(super) fn cut(&mut self) -> Option<Id> {
        (self.live, self.patience) = (None, None);
        self.sent.take()
    }

    /// Ends it in order, or soon.
    pub(super) async fn end(self) {
        let Some(live) = self.live else { return };
        if timeout(END_TIME, live.conversation.dispose()).await.is_err() {
            warn!(chat = %self.chat, "an agent does not end and is dropped");
        }
    }

    fn heard(&mut self, event: Option<Formed>) -> Option<Formed> {
        if let Some(Event::TurnEnded { turn, .. }) = event.as_deref()
            && self.sent.as_ref() == Some(turn)
        {
            (self.sent, self.patience) = (None, None);
        }
        event
    }

    fn told(&mut self, told: Option<Result<(), AgentError>>) {
        match told {
            Some(Ok(())) => {}
            // It says itself what became of the turn.
            Some(Err(error)) => debug!(%error, "an agent has not taken a call"),
            None => self.patience = Some(Instant::now()),
        }
    }
}

/// What an agent answers; nothing if it does not.
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
