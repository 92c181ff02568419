//! A chat's task: tells the agent what clients have logged, and logs what the agent says.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ahp_types::actions::{ChatTurnCancelledAction, ChatTurnStartedAction, StateAction};
use breakbulk_lifecycle::{Failure, Formed, Id};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::agent_handle::{AgentHandle, END_TIME};
use super::conversation::{self, ChatLocation, ChatRole, ResumeToken};
use super::entry_class::{self, EntryClass, LoggedAction, classify};
use super::pending_messages::{TurnSource, start_agent_turn, start_next_turn};
use super::task_writer::{StopRequest, TaskStopped, TaskWriter, if_readable};
use super::{RunnerContext, repair, summaries};
use crate::agent::{Clock, Command, History, Prompt, Reaction, Step, Translator};
use crate::log::{Entry, Seq};
use crate::state::StateError;

/// How long to wait before the state is read again after a failure.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Events that are already queued are logged with one append, up to about this many bytes and this many events.
const MAX_APPEND_BYTES: usize = 1 << 20;
const MAX_APPEND_EVENTS: usize = 1_024;

/// Why a task begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskStart {
    /// A client has done something in a chat without a task.
    FirstAction,
    /// The chat's task ended or got stuck, and may have left a turn open.
    Replacement,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// The agent has completed it: the next queued message begins.
    Completed,
    /// It was cancelled or failed: queued messages wait until somebody does something.
    Aborted,
}

/// Runs the agent of a chat until the chat is closed or the host stops.
pub(super) async fn run(
    context: Arc<RunnerContext>,
    uri: Arc<str>,
    writer: TaskWriter,
    mut inbox: mpsc::Receiver<Entry>,
    start: TaskStart,
) {
    let Ok(Some(first)) = writer.unless_stopped(inbox.recv()).await else { return };
    if writer.applied(first.seq).await.is_err() {
        return;
    }
    // `None` if the chat was disposed of meanwhile.
    let Ok(Some(location)) = locate(&context, &writer, &uri).await else { return };
    if end_abandoned_turn(&context, &writer, &uri, &location, &first, start).await.is_err() {
        return;
    }
    let mut task = ChatTask::new(context, uri, location, writer);
    let Err(TaskStopped) = task.work(first, inbox).await;
    task.end().await;
}

/// Finds the chat's session. Retries if the log cannot be read, because a client waits for an answer.
async fn locate(context: &RunnerContext, writer: &TaskWriter, uri: &str) -> Result<Option<ChatLocation>, TaskStopped> {
    loop {
        match writer.unless_stopped(conversation::locate_chat(&context.log_writer, uri)).await? {
            Ok(location) => return Ok(location),
            Err(StateError::Closed) => return Err(TaskStopped),
            Err(error) => warn!(chat = %uri, %error, "the agent of a chat cannot be run now"),
        }
        writer.unless_stopped(tokio::time::sleep(RETRY_AFTER)).await?;
    }
}

/// Ends a turn that nobody works on: an earlier run of the host, or the task before this one, left it open.
async fn end_abandoned_turn(
    context: &RunnerContext,
    writer: &TaskWriter,
    uri: &Arc<str>,
    location: &ChatLocation,
    first: &Entry,
    start: TaskStart,
) -> Result<(), TaskStopped> {
    let log_writer = &context.log_writer;
    let starts_turn = classify(first) == EntryClass::TurnStarted;
    match start {
        TaskStart::Replacement => {
            let logged = if starts_turn { entry_class::read_action(first.body.clone()).await } else { None };
            // The turn that this task is about to work on stays open.
            let new_turn = logged.and_then(|logged| match logged.action {
                StateAction::ChatTurnStarted(action) => Some(action.turn_id),
                _ => None,
            });
            let why = repair::task_lost();
            repair::end_open_turn(log_writer, writer, &location.session, uri, &why, new_turn.as_deref()).await
        }
        // A turn can begin only where none is open.
        TaskStart::FirstAction if starts_turn => Ok(()),
        TaskStart::FirstAction => {
            let started_after = context.started_after.load(Relaxed);
            if repair::is_turn_of_earlier_run(&**log_writer.log(), uri, started_after).await {
                let why = repair::host_restarted();
                repair::end_open_turn(log_writer, writer, &location.session, uri, &why, None).await?;
            }
            Ok(())
        }
    }
}

/// The state of a chat's task.
pub(super) struct ChatTask {
    pub(super) context: Arc<RunnerContext>,
    pub(super) uri: Arc<str>,
    pub(super) session: Arc<str>,
    pub(super) writer: TaskWriter,
    role: ChatRole,
    translator: Translator,
    agent: AgentHandle,
    /// The id of the open turn.
    pub(super) turn: Option<String>,
    /// The last entry of the chat that this task knows of. What the agent says is appended only after it.
    pub(super) chat_end: Seq,
    /// The turns that the chat showed before the last one that began.
    history: History,
}

impl ChatTask {
    fn new(context: Arc<RunnerContext>, uri: Arc<str>, location: ChatLocation, writer: TaskWriter) -> Self {
        let ChatLocation { session, role } = location;
        Self {
            translator: Translator::new(Arc::clone(&session), Arc::clone(&uri)),
            agent: AgentHandle::new(Arc::clone(&uri)),
            turn: None,
            chat_end: 0,
            history: History::default(),
            context,
            uri,
            session,
            writer,
            role,
        }
    }

    async fn work(&mut self, first: Entry, mut inbox: mpsc::Receiver<Entry>) -> Result<Infallible, TaskStopped> {
        self.take_entry(first).await?;
        loop {
            tokio::select! {
                biased;
                () = self.writer.stopped() => return Err(TaskStopped),
                entry = inbox.recv() => match entry {
                    Some(entry) => self.take_entry(entry).await?,
                    None => return Err(TaskStopped),
                },
                event = self.agent.next() => match event {
                    Some(event) => self.take_events(event).await?,
                    None => self.agent_ended().await?,
                },
            }
        }
    }

    /// Reacts to an entry that somebody else has appended.
    async fn take_entry(&mut self, entry: Entry) -> Result<(), TaskStopped> {
        let Entry { seq, channel, body, .. } = entry;
        let Some(LoggedAction { action, is_by_client }) = entry_class::read_action(body).await else { return Ok(()) };
        self.writer.applied(seq).await?;
        let is_own = *channel == *self.uri;
        if is_own {
            self.chat_end = self.chat_end.max(seq);
        }
        let has_agent = self.role == ChatRole::Conversation;
        match action {
            // The agent began it, and knows it already.
            StateAction::ChatTurnStarted(action) if is_own && self.turn.as_ref() == Some(&action.turn_id) => Ok(()),
            StateAction::ChatTurnStarted(action) if is_own && has_agent => self.turn_started(action).await,
            StateAction::SessionConfigChanged(_) => self.config_changed(&channel).await,
            _ if !is_by_client => Ok(()),
            StateAction::SessionMetaChanged(_) => self.session_stopped(&channel).await,
            StateAction::ChatTurnCancelled(action) => {
                let ends_turn = is_own && self.turn.as_ref() == Some(&action.turn_id);
                self.tell_agent(&channel, StateAction::ChatTurnCancelled(action)).await?;
                match ends_turn {
                    true => self.turn_ended(TurnEnd::Aborted).await,
                    false => self.update_summaries(&[channel], None).await,
                }
            }
            StateAction::ChatToolCallConfirmed(action) => {
                self.tell_agent(&channel, StateAction::ChatToolCallConfirmed(action)).await?;
                self.update_summaries(&[channel], None).await
            }
            StateAction::ChatTruncated(_) if is_own => self.truncated().await,
            // It was set during a turn, so it waits for the end of that turn.
            StateAction::ChatPendingMessageSet(_) if self.turn.is_some() => Ok(()),
            StateAction::ChatPendingMessageSet(_) if is_own && has_agent => {
                start_next_turn(&self.context.log_writer, &self.writer, &self.uri, TurnSource::Queue).await
            }
            // The state of the chat has it now: read, archived, working directories.
            _ => self.update_summaries(&[channel], None).await,
        }
    }

    /// The options of a session have changed. If it is this chat's, its agent hears of it.
    async fn config_changed(&mut self, session: &str) -> Result<(), TaskStopped> {
        if *session == *self.session
            && let Some(config) = conversation::read_config(&self.context.log_writer, session).await
        {
            let writer = self.writer.clone();
            writer.unless_stopped(self.agent.configure(config)).await?;
        }
        Ok(())
    }

    /// A client has stopped a session. If it is this chat's, its agent ends at once; the next turn starts it again.
    async fn session_stopped(&mut self, session: &str) -> Result<(), TaskStopped> {
        if *session != *self.session {
            return Ok(());
        }
        self.agent.stop().await;
        self.agent_ended().await
    }

    /// A turn was started. If it is over already, the agent does not hear of it.
    async fn turn_started(&mut self, action: ChatTurnStartedAction) -> Result<(), TaskStopped> {
        let Some(history) = self.history_before(&action.turn_id).await? else { return Ok(()) };
        self.turn = Some(action.turn_id.clone());
        self.history = history;
        let title = summaries::title_of(&action.message.text);
        self.tell_agent(&Arc::clone(&self.uri), StateAction::ChatTurnStarted(action)).await?;
        self.update_summaries(&[Arc::clone(&self.uri)], title.as_deref()).await
    }

    /// The turns that the chat shows before this one; `None` if this turn is not open.
    pub(super) async fn history_before(&self, turn: &str) -> Result<Option<History>, TaskStopped> {
        if_readable(self.context.log_writer.state().history_before(&self.uri, turn).await)
    }

    /// Turns that the agent knows were removed. The next turn starts a new conversation with those that are left.
    async fn truncated(&mut self) -> Result<(), TaskStopped> {
        if let Some(turn_id) = self.turn.clone() {
            if self.history_before(&turn_id).await?.is_some() {
                // The turn is still open: the truncation named no turn of this chat, and changed nothing.
                return Ok(());
            }
            let cancelled = ChatTurnCancelledAction { turn_id, duration: 0, meta: None };
            self.tell_agent(&Arc::clone(&self.uri), StateAction::ChatTurnCancelled(cancelled)).await?;
            self.turn_ended(TurnEnd::Aborted).await?;
        }
        conversation::save_token(&self.context.log_writer, &self.writer, &self.session, &self.uri, None).await?;
        self.agent_ended().await?;
        self.update_summaries(&[Arc::clone(&self.uri)], None).await
    }

    /// Translates an action of a client into a command for the agent, and carries it out.
    async fn tell_agent(&mut self, channel: &Arc<str>, action: StateAction) -> Result<(), TaskStopped> {
        let Reaction { command, steps } = self.translator.client(channel, action, self.context.clock.now());
        let command = command.map(Step::Tell);
        self.carry_out(command.into_iter().chain(steps).collect(), 0).await
    }

    /// Translates an event of the agent, together with those that are queued behind it, and carries out what follows.
    async fn take_events(&mut self, first: Formed) -> Result<(), TaskStopped> {
        let now = self.context.clock.now();
        let mut steps = VecDeque::new();
        let (mut bytes, mut count) = (0_usize, 0);
        let mut next = Some(first);
        while let Some(event) = next {
            bytes = bytes.saturating_add(event.weight());
            count += 1;
            let new = self.translator.event(event, now);
            // What comes after the beginning of a turn depends on whether it can begin.
            let begins = new.iter().any(|step| matches!(step, Step::Begin { .. }));
            steps.extend(new);
            let takes_more = !begins && bytes < MAX_APPEND_BYTES && count < MAX_APPEND_EVENTS;
            next = if takes_more { self.agent.ready() } else { None };
        }
        self.carry_out(steps, bytes).await
    }

    /// The agent has ended, or its conversation is to end. The next turn starts a new one.
    async fn agent_ended(&mut self) -> Result<(), TaskStopped> {
        let Some(turn) = self.agent.disconnect() else { return Ok(()) };
        let failure = Failure::new("agentEnded", "The agent ended in the middle of a turn.");
        let steps = self.translator.refused(&turn, failure, self.context.clock.now());
        self.carry_out(steps.into(), 0).await
    }

    /// Carries out these steps in order, with the steps that follow from them. `bytes` is about the size of their actions.
    async fn carry_out(&mut self, mut steps: VecDeque<Step>, bytes: usize) -> Result<(), TaskStopped> {
        let mut actions = Vec::new();
        while let Some(step) = steps.pop_front() {
            match step {
                Step::Act { .. } | Step::Open(_) => actions.push(step),
                Step::Begin { turn } => {
                    self.append(&mut actions, bytes).await?;
                    if !self.begin_agent_turn(&turn).await? {
                        debug!(chat = %self.uri, "an agent began a turn by itself while a client began another; it is not shown");
                        self.translator.not_begun(&turn);
                    }
                }
                Step::Tell(command) => {
                    self.append(&mut actions, bytes).await?;
                    for step in self.tell(command).await?.into_iter().rev() {
                        steps.push_front(step);
                    }
                }
                Step::Remember { token, turn } => {
                    self.append(&mut actions, bytes).await?;
                    let token = ResumeToken { token: &token, turn: &turn };
                    let (log_writer, writer) = (&self.context.log_writer, &self.writer);
                    conversation::save_token(log_writer, writer, &self.session, &self.uri, Some(token)).await?;
                }
            }
        }
        self.append(&mut actions, bytes).await
    }

    /// Begins a turn that the agent has begun by itself; returns whether the chat shows it.
    async fn begin_agent_turn(&mut self, turn: &Id) -> Result<bool, TaskStopped> {
        if !start_agent_turn(&self.context.log_writer, &self.writer, &self.uri, turn).await? {
            return Ok(false);
        }
        // None if a client has cancelled it already.
        let Some(history) = self.history_before(turn).await? else { return Ok(false) };
        self.turn = Some(turn.to_string());
        self.history = history.clone();
        self.agent.began(turn.clone(), history);
        self.update_summaries(&[Arc::clone(&self.uri)], None).await?;
        Ok(true)
    }

    /// Sends a command to the agent; returns the steps that follow if the agent does not take it.
    async fn tell(&mut self, command: Command) -> Result<Vec<Step>, TaskStopped> {
        let writer = self.writer.clone();
        match command {
            Command::Send(prompt) => return self.send(prompt).await,
            Command::Cancel { turn } => writer.unless_stopped(self.agent.cancel(turn)).await?,
            Command::Answer { tool, answer } => writer.unless_stopped(self.agent.answer(&tool, answer)).await?,
        }
        Ok(Vec::new())
    }

    /// Starts a turn. Starts a new conversation first if there is none, or if its agent does not know exactly the turns
    /// that the chat shows.
    async fn send(&mut self, prompt: Prompt) -> Result<Vec<Step>, TaskStopped> {
        let (turn, history) = (prompt.turn.clone(), self.history.clone());
        let start = |history| conversation::start(&self.context, &self.writer, &self.session, &self.uri, history);
        let Err(error) = self.writer.unless_stopped(self.agent.send(prompt, history, start)).await? else {
            return Ok(Vec::new());
        };
        Ok(self.translator.refused(&turn, error.failure(), self.context.clock.now()))
    }

    /// The chat's turn has ended.
    pub(super) async fn turn_ended(&mut self, end: TurnEnd) -> Result<(), TaskStopped> {
        self.turn = None;
        self.context.workspace.agent_worked(&self.session);
        self.update_summaries(&[Arc::clone(&self.uri)], None).await?;
        match end {
            TurnEnd::Completed => {
                let source = TurnSource::SteeringThenQueue;
                start_next_turn(&self.context.log_writer, &self.writer, &self.uri, source).await
            }
            TurnEnd::Aborted => Ok(()),
        }
    }

    pub(super) async fn update_summaries(&self, chats: &[Arc<str>], title: Option<&str>) -> Result<(), TaskStopped> {
        summaries::update(&self.context.log_writer, &self.writer, &self.session, chats, title).await
    }

    /// Ends the conversation. If the host stops in the middle of a turn, the turn says so.
    async fn end(self) {
        self.agent.dispose().await;
        if self.writer.stop_request() != StopRequest::StopHost || self.turn.is_none() {
            return;
        }
        let (log_writer, why) = (&self.context.log_writer, repair::host_stopped());
        let writer = TaskWriter::without_retries(Arc::clone(log_writer));
        let end_turns = async {
            for chat in self.context.tasks.workers_of(&self.uri).iter().chain([&self.uri]) {
                repair::end_open_turn(log_writer, &writer, &self.session, chat, &why, None).await?;
            }
            Ok::<_, TaskStopped>(())
        };
        // If the log does not take it in time, the next start ends the turns.
        drop(timeout(END_TIME, end_turns).await);
    }
}
