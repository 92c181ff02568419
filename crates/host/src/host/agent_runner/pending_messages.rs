//! Turns that no client starts: of messages that waited for the end of a turn, and of the agent itself.

use ahp_types::actions::{ChatTurnStartedAction, StateAction};
use ahp_types::state::{ChatState, Message, MessageKind, MessageOrigin, PendingMessage};

use super::super::log_writer::{LogWriter, Transaction};
use super::super::names;
use super::task_writer::{TaskStopped, TaskWriter, if_readable};
use crate::files::time;

/// Which waiting messages may start a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnSource {
    /// The queue.
    Queue,
    /// The steering message, then the queue. A steering message is for the turn that runs, but agents take none while they
    /// work, so it is sent as soon as the turn has ended.
    SteeringThenQueue,
}

/// Logs the start of a turn with the next waiting message, if no turn is open. The task hears of it through the log.
pub(super) async fn start_next_turn(
    log_writer: &LogWriter,
    writer: &TaskWriter,
    chat: &str,
    which: TurnSource,
) -> Result<(), TaskStopped> {
    let turn = names::new_id();
    let make = || async {
        let read = |chat: &ChatState, seq| next(chat, which).cloned().map(|message| (message, seq));
        let next = if_readable(log_writer.chat(chat, read).await)?;
        Ok(next.flatten().map(|(PendingMessage { id, message }, seq)| {
            let started = ChatTurnStartedAction {
                turn_id: turn.clone(),
                started_at: time::now(),
                message,
                queued_message_id: Some(id),
                meta: None,
            };
            Transaction::new().expect(chat, seq).action(chat, &StateAction::ChatTurnStarted(started))
        }))
    };
    writer.transact(make).await.map(drop)
}

/// Logs the start of a turn that the agent has begun by itself; returns whether it did. It does not if a turn is open.
pub(super) async fn start_agent_turn(
    log_writer: &LogWriter,
    writer: &TaskWriter,
    chat: &str,
    turn: &str,
) -> Result<bool, TaskStopped> {
    let make = || async {
        let read = |chat: &ChatState, seq| chat.active_turn.is_none().then_some(seq);
        let seq = if_readable(log_writer.chat(chat, read).await)?.flatten();
        Ok(seq.map(|seq| {
            let started = ChatTurnStartedAction {
                turn_id: turn.to_owned(),
                started_at: time::now(),
                message: agent_message(),
                queued_message_id: None,
                meta: None,
            };
            Transaction::new().expect(chat, seq).action(chat, &StateAction::ChatTurnStarted(started))
        }))
    };
    writer.transact(make).await.map(|seq| seq.is_some())
}

/// What stands where a user's message stands in other turns.
fn agent_message() -> Message {
    Message {
        text: "The agent has begun this turn by itself.".to_owned(),
        origin: MessageOrigin { kind: MessageKind::Agent },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    }
}

fn next(chat: &ChatState, which: TurnSource) -> Option<&PendingMessage> {
    if chat.active_turn.is_some() {
        return None;
    }
    let steering = chat.steering_message.as_ref().filter(|_| which == TurnSource::SteeringThenQueue);
    steering.or_else(|| chat.queued_messages.iter().flatten().next())
}
