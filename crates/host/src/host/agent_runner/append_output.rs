//! Appends what an agent says to the log, and reacts to it: summaries change, turns end, sub-agents get chats.

use std::ops::Range;
use std::sync::Arc;

use ahp_types::actions::{ChatResponsePartAction, ChatTurnStartedAction, SessionChatAddedAction, StateAction};
use ahp_types::state::{
    ChatInteractivity, ChatOrigin, Message, MessageKind, MessageOrigin, ResponsePart, SessionStatus, SnapshotState,
    SystemNotificationResponsePart,
};
use tracing::warn;

use super::super::chats::NewChat;
use super::super::log_writer::Transaction;
use super::chat_task::{ChatTask, RETRY_AFTER, TurnEnd};
use super::summaries::title_of;
use super::task_writer::{TaskStopped, WriteFailure, if_readable};
use crate::agent::{Step, SubAgentChat};
use crate::files::time;
use crate::log::Seq;
use crate::state::StateError;

/// From this size on, actions are encoded on a thread that may block.
const BLOCKING_BYTES: usize = 128 << 10;

impl ChatTask {
    /// Appends these actions, in one transaction if the log takes that. `bytes` is about the size of all.
    pub(super) async fn append(&mut self, actions: &mut Vec<Step>, bytes: usize) -> Result<(), TaskStopped> {
        if actions.is_empty() {
            return Ok(());
        }
        let actions = std::mem::take(actions);
        let mut effects = Effects::of(&actions, self);
        for worker in actions.iter().filter_map(as_worker) {
            self.context.tasks.add_worker(&worker.chat, &self.uri);
        }
        let actions = Arc::new(actions);
        let Written { seq, turn } = match self.write(&actions, 0..actions.len(), bytes).await {
            Err(WriteFailure::TooLarge) => self.write_each(&actions, bytes).await?,
            written => written.map_err(|_| TaskStopped)?,
        };
        if turn == TurnState::Over {
            // Whoever ended it is told to the task by the log.
            effects.turn_end = None;
        }
        if effects.changed_chats.is_empty() {
            return Ok(());
        }
        self.writer.applied(seq).await?;
        if let Some(end) = effects.turn_end {
            self.context.tasks.forget_workers(&self.uri);
            // `turn_ended` updates the summary of this chat.
            effects.changed_chats.retain(|chat| *chat != self.uri);
            self.update_summaries(&effects.changed_chats, None).await?;
            return self.turn_ended(end).await;
        }
        self.update_summaries(&effects.changed_chats, None).await
    }

    /// Writes a range of the actions in one transaction.
    ///
    /// A client may end the turn while the agent goes on. So the log takes the actions only if nobody else has appended to the chat
    /// since; if somebody has ended the turn, what the agent says in it is left out.
    async fn write(
        &mut self,
        actions: &Arc<Vec<Step>>,
        range: Range<usize>,
        bytes: usize,
    ) -> Result<Written, WriteFailure> {
        let is_said = |step: &Step, chat: &str| matches!(step, Step::Act { channel, .. } if **channel == *chat);
        let steps = actions.get(range.clone()).unwrap_or_default();
        let (says, says_more) =
            (steps.iter().any(|step| is_said(step, &self.uri)), steps.iter().any(|step| !is_said(step, &self.uri)));
        let mut turn = TurnState::Open;
        loop {
            if turn == TurnState::Over && !says_more {
                return Ok(Written { seq: self.chat_end, turn });
            }
            let is_conditional = says && turn == TurnState::Open && self.turn.is_some();
            let (actions, range, session) = (Arc::clone(actions), range.clone(), Arc::clone(&self.session));
            let (chat, chat_end) = (Arc::clone(&self.uri), self.chat_end);
            let make = move || {
                let steps = actions.get(range).unwrap_or_default().iter();
                let steps = steps.filter(|step| turn == TurnState::Open || !is_said(step, &chat));
                let transaction = steps.fold(Transaction::new(), |transaction, step| add(transaction, &session, step));
                if is_conditional { transaction.expect(&chat, chat_end) } else { transaction }
            };
            let transaction = match bytes < BLOCKING_BYTES {
                true => make(),
                false => tokio::task::spawn_blocking(make).await.map_err(|_| WriteFailure::Stopped)?,
            };
            match self.writer.write(&transaction).await {
                Ok(seqs) => {
                    self.chat_end = transaction.last_on(&self.uri, &seqs).unwrap_or(self.chat_end);
                    return Ok(Written { seq: seqs.last().copied().unwrap_or(0), turn });
                }
                Err(WriteFailure::Conflict(last)) => {
                    self.writer.applied(last).await.map_err(|TaskStopped| WriteFailure::Stopped)?;
                    self.chat_end = last;
                    turn = self.turn_state().await.map_err(|TaskStopped| WriteFailure::Stopped)?;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Whether the chat's turn is open. Retries while the log cannot be read: what the agent says must not get lost for that.
    async fn turn_state(&self) -> Result<TurnState, TaskStopped> {
        let turn = self.turn.as_deref().unwrap_or_default();
        loop {
            match self.context.log_writer.state().history_before(&self.uri, turn).await {
                Err(StateError::Log(error)) => {
                    warn!(chat = %self.uri, %error, "the turn of an agent cannot be read now")
                }
                read => {
                    let history = if_readable(read)?;
                    return Ok(if history.is_some() { TurnState::Open } else { TurnState::Over });
                }
            }
            self.writer.unless_stopped(tokio::time::sleep(RETRY_AFTER)).await?;
        }
    }

    /// Writes each action in a transaction of its own. One that is too large even so is left out, and the chat says so.
    async fn write_each(&mut self, actions: &Arc<Vec<Step>>, bytes: usize) -> Result<Written, TaskStopped> {
        let mut last = Written { seq: 0, turn: TurnState::Open };
        for at in 0..actions.len() {
            match self.write(actions, at..at + 1, bytes).await {
                Ok(written) => last = written,
                Err(WriteFailure::TooLarge) => {
                    warn!(chat = %self.uri, bytes, "something that an agent said is too large for the log and left out");
                    let Some(turn) = &self.turn else { continue };
                    let transaction = Transaction::new().action(Arc::clone(&self.uri), &left_out(turn));
                    let seqs = self.writer.write(&transaction).await.map_err(|_| TaskStopped)?;
                    self.chat_end = transaction.last_on(&self.uri, &seqs).unwrap_or(self.chat_end);
                    last.seq = self.chat_end;
                }
                Err(_) => return Err(TaskStopped),
            }
        }
        Ok(last)
    }
}

/// What became of actions.
#[derive(Debug, Clone, Copy)]
struct Written {
    /// The seq of the last entry.
    seq: Seq,
    turn: TurnState,
}

/// Whether the chat's turn is still open for what the agent says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnState {
    Open,
    /// A client has ended it, and what the agent said in it was left out.
    Over,
}

/// What follows from actions when they are in the log.
struct Effects {
    /// Chats whose summaries change.
    changed_chats: Vec<Arc<str>>,
    /// How the chat's turn ends, if it does.
    turn_end: Option<TurnEnd>,
}

impl Effects {
    fn of(actions: &[Step], chat: &ChatTask) -> Self {
        use StateAction as A;
        let mut effects = Self { changed_chats: Vec::new(), turn_end: None };
        for action in actions {
            let (channel, end) = match action {
                Step::Open(worker) => (&worker.chat, None),
                Step::Act { channel, action } => match &**action {
                    A::ChatToolCallReady(_) | A::ChatToolCallConfirmed(_) => (channel, None),
                    A::ChatTurnComplete(action) => (channel, Some((&action.turn_id, TurnEnd::Completed))),
                    A::ChatTurnCancelled(action) => (channel, Some((&action.turn_id, TurnEnd::Aborted))),
                    A::ChatError(action) => (channel, Some((&action.turn_id, TurnEnd::Aborted))),
                    _ => continue,
                },
                _ => continue,
            };
            if !effects.changed_chats.contains(channel) {
                effects.changed_chats.push(Arc::clone(channel));
            }
            if let Some((turn, end)) = end
                && *channel == chat.uri
                && chat.turn.as_ref() == Some(turn)
            {
                effects.turn_end = Some(end);
            }
        }
        effects
    }
}

/// Adds an action of the agent to a transaction.
fn add(transaction: Transaction, session: &Arc<str>, act: &Step) -> Transaction {
    match act {
        Step::Act { channel, action } => transaction.action(Arc::clone(channel), action),
        Step::Open(worker) => open(transaction, session, worker),
        Step::Begin { .. } | Step::Tell(_) | Step::Remember { .. } => transaction,
    }
}

/// Opens a read-only chat that shows the work of a sub-agent.
fn open(transaction: Transaction, session: &Arc<str>, worker: &SubAgentChat) -> Transaction {
    let now = time::now();
    let origin = ChatOrigin::Tool { chat: worker.parent.to_string(), tool_call_id: worker.tool.to_string() };
    let mut plan = NewChat::new(worker.chat.to_string(), origin);
    let name = Some(worker.name.as_str()).filter(|name| !name.is_empty());
    if let Some(title) = name.map(str::to_owned).or_else(|| title_of(&worker.task)) {
        plan.title = title;
    }
    let (mut state, mut summary) = (plan.state(&now), plan.summary(&now));
    state.interactivity = Some(ChatInteractivity::ReadOnly);
    summary.interactivity = Some(ChatInteractivity::ReadOnly);
    summary.status = SessionStatus::InProgress.bits();
    let started = ChatTurnStartedAction {
        turn_id: worker.turn.to_string(),
        started_at: now,
        message: message(&worker.task),
        queued_message_id: None,
        meta: None,
    };
    transaction
        .open(&worker.chat, Some(session), &SnapshotState::Chat(Box::new(state)))
        .action(Arc::clone(session), &StateAction::SessionChatAdded(SessionChatAddedAction { summary }))
        .action(Arc::clone(&worker.chat), &StateAction::ChatTurnStarted(started))
}

/// The prompt that a tool call gives to its sub-agent.
fn message(text: &str) -> Message {
    Message {
        text: text.to_owned(),
        origin: MessageOrigin { kind: MessageKind::Tool },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    }
}

fn left_out(turn: &str) -> StateAction {
    let text = "Something that the agent said here is too large to be kept, and was left out.";
    let part = ResponsePart::SystemNotification(SystemNotificationResponsePart { content: text.into(), meta: None });
    StateAction::ChatResponsePart(ChatResponsePartAction { turn_id: turn.to_owned(), part, meta: None })
}

const fn as_worker(act: &Step) -> Option<&SubAgentChat> {
    match act {
        Step::Open(worker) => Some(worker),
        _ => None,
    }
}
