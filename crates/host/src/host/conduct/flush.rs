//! What an agent has said goes into the log, and what follows from it is done.

use std::sync::Arc;

use ahp_types::actions::{ChatResponsePartAction, ChatTurnStartedAction, SessionChatAddedAction, StateAction};
use ahp_types::state::{
    ChatInteractivity, ChatOrigin, Message, MessageKind, MessageOrigin, ResponsePart, SessionStatus, SnapshotState,
    SystemNotificationResponsePart,
};
use tracing::warn;

use super::super::chats::Plan;
use super::super::desk::Sheet;
use super::chat::Chat;
use super::mirror::title_of;
use super::pen::{Over, Unwritten};
use crate::agent::{Step, SubAgentChat};
use crate::files::time;
use crate::log::Seq;

/// From this size on, what is to be written is encoded on a thread that may block.
const LARGE: usize = 128 << 10;

impl Chat {
    /// Writes what has gathered, all in one piece if it can be. `bytes` is about what it holds.
    pub(super) async fn flush(&mut self, acts: &mut Vec<Step>, bytes: usize) -> Result<(), Over> {
        if acts.is_empty() {
            return Ok(());
        }
        let acts = std::mem::take(acts);
        let mut after = After::of(&acts, self);
        for worker in acts.iter().filter_map(as_worker) {
            self.shared.roster.add_worker(&worker.chat, &self.uri);
        }
        let acts = Arc::new(acts);
        let seq = match self.write(&acts, 0..acts.len(), bytes).await {
            Err(Unwritten::TooLarge) => self.write_each(&acts, bytes).await?,
            written => written.map_err(|_| Over)?,
        };
        if after.changed.is_empty() {
            return Ok(());
        }
        self.pen.reached(seq).await?;
        if let Some(in_time) = after.ends {
            self.shared.roster.forget_workers(&self.uri);
            // It is shown when all is over.
            after.changed.retain(|chat| *chat != self.uri);
            self.show(&after.changed, None).await?;
            return self.over(in_time).await;
        }
        self.show(&after.changed, None).await
    }

    async fn write(
        &self,
        acts: &Arc<Vec<Step>>,
        which: std::ops::Range<usize>,
        bytes: usize,
    ) -> Result<Seq, Unwritten> {
        let (acts, session) = (Arc::clone(acts), Arc::clone(&self.session));
        let make = move || {
            acts.get(which).unwrap_or_default().iter().fold(Sheet::new(), |sheet, act| add(sheet, &session, act))
        };
        let sheet = match bytes < LARGE {
            true => make(),
            false => tokio::task::spawn_blocking(make).await.map_err(|_| Unwritten::Over)?,
        };
        self.pen.write(sheet).await
    }

    /// One after the other. What is too large even alone is left out, and the chat says so.
    async fn write_each(&self, acts: &Arc<Vec<Step>>, bytes: usize) -> Result<Seq, Over> {
        let mut last = 0;
        for at in 0..acts.len() {
            match self.write(acts, at..at + 1, bytes).await {
                Ok(seq) => last = seq,
                Err(Unwritten::TooLarge) => {
                    warn!(chat = %self.uri, bytes, "something that an agent said is too large for the log and left out");
                    let Some(turn) = &self.turn else { continue };
                    let sheet = Sheet::new().action(Arc::clone(&self.uri), &left_out(turn));
                    last = self.pen.write(sheet).await.map_err(|_| Over)?;
                }
                Err(_) => return Err(Over),
            }
        }
        Ok(last)
    }
}

/// What follows when these are in the log.
struct After {
    /// Chats of which a list shows something else now.
    changed: Vec<Arc<str>>,
    /// The chat's turn ends; in its own time or not.
    ends: Option<bool>,
}

impl After {
    fn of(acts: &[Step], chat: &Chat) -> Self {
        use StateAction as A;
        let (mut changed, mut ends) = (Vec::new(), None);
        for act in acts {
            let (channel, end) = match act {
                Step::Open(worker) => (&worker.chat, None),
                Step::Act { channel, action } => match &**action {
                    A::ChatToolCallReady(_) | A::ChatToolCallConfirmed(_) => (channel, None),
                    A::ChatTurnComplete(action) => (channel, Some((&action.turn_id, true))),
                    A::ChatTurnCancelled(action) => (channel, Some((&action.turn_id, false))),
                    A::ChatError(action) => (channel, Some((&action.turn_id, false))),
                    _ => continue,
                },
                _ => continue,
            };
            if !changed.contains(channel) {
                changed.push(Arc::clone(channel));
            }
            let is_its = |turn: &String| *channel == chat.uri && chat.turn.as_ref() == Some(turn);
            ends = end.filter(|(turn, _)| is_its(turn)).map(|(_, in_time)| in_time).or(ends);
        }
        Self { changed, ends }
    }
}

fn add(sheet: Sheet, session: &Arc<str>, act: &Step) -> Sheet {
    match act {
        Step::Act { channel, action } => sheet.action(Arc::clone(channel), action),
        Step::Open(worker) => open(sheet, session, worker),
        Step::Tell(_) | Step::Remember { .. } => sheet,
    }
}

/// A chat in which people can watch a sub-agent.
fn open(sheet: Sheet, session: &Arc<str>, worker: &SubAgentChat) -> Sheet {
    let now = time::now();
    let origin = ChatOrigin::Tool { chat: worker.parent.to_string(), tool_call_id: worker.tool.to_string() };
    let mut plan = Plan::new(worker.chat.to_string(), origin);
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
    sheet
        .open(&worker.chat, Some(session), &SnapshotState::Chat(Box::new(state)))
        .action(Arc::clone(session), &StateAction::SessionChatAdded(SessionChatAddedAction { summary }))
        .action(Arc::clone(&worker.chat), &StateAction::ChatTurnStarted(started))
}

/// What a call tells its agent.
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
