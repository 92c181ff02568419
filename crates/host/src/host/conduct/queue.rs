//! Messages that wait: when a turn has ended in its own time, the next one begins with the first of them.

use ahp_types::actions::{ChatTurnStartedAction, StateAction};
use ahp_types::state::{ChatState, PendingMessage};

use super::super::desk::{Desk, Sheet};
use super::super::names;
use super::pen::{Over, Pen, seen};
use crate::files::time;

/// Which messages may begin a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Those in the queue.
    Queued,
    /// Before them the one that was to steer the last turn: no agent takes such a message while it works, so that it is
    /// said as soon as it can be.
    All,
}

/// Begins a turn with the message that waits, if the chat is free. The turn comes through the log, like any other.
pub(super) async fn begin_next(desk: &Desk, pen: &Pen, chat: &str, which: Waiting) -> Result<(), Over> {
    let turn = names::new_id();
    let make = || async {
        let look = |chat: &ChatState, seq| next(chat, which).cloned().map(|message| (message, seq));
        let next = seen(desk.chat(chat, look).await)?;
        Ok(next.flatten().map(|(PendingMessage { id, message }, seq)| {
            let started = ChatTurnStartedAction {
                turn_id: turn.clone(),
                started_at: time::now(),
                message,
                queued_message_id: Some(id),
                meta: None,
            };
            Sheet::new().expect(chat, seq).action(chat, &StateAction::ChatTurnStarted(started))
        }))
    };
    pen.decide(make).await.map(drop)
}

fn next(chat: &ChatState, which: Waiting) -> Option<&PendingMessage> {
    if chat.active_turn.is_some() {
        return None;
    }
    let steering = chat.steering_message.as_ref().filter(|_| which == Waiting::All);
    steering.or_else(|| chat.queued_messages.iter().flatten().next())
}
