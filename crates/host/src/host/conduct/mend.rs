//! Mends chats: a turn that nobody works on any more is ended, and says why.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahp_types::actions::{ChatErrorAction, SessionInputNeededRemovedAction, StateAction};
use ahp_types::state::{
    ChatState, ErrorInfo, ErrorResponsePart, SessionInputRequest, SessionState, SessionStatus, SessionSummary,
};
use breakbulk_lifecycle::Failure;
use serde_json::Value;
use tracing::warn;

use super::super::StartError;
use super::super::desk::{Desk, Sheet, not_kept};
use super::pen::{Over, Pen, seen};
use super::told::{Glance, glance};
use super::{Shared, mirror};
use crate::host::workshop::PASSING;
use crate::log::{AppendError, Channels, DamagedRecord, Log, ReadError, Seq};
use crate::state::StateError;

/// How many of the last entries are looked at for turns that began just before the end: far more than come before the
/// catalogue has heard of a turn.
const RECENT: u64 = 10_000;

/// What is read of them at once, in bytes.
const PAGE: usize = 1 << 20;

/// The host has begun anew.
pub(super) fn restarted() -> Failure {
    Failure::new("hostRestarted", "The host was restarted while the agent worked on this. Send the message again.")
}

/// The host ends.
pub(super) fn stopped() -> Failure {
    Failure::new("hostStopped", "The host was stopped while the agent worked on this.")
}

/// The conversation broke.
pub(super) fn broken() -> Failure {
    Failure::new("agentLost", "The conversation with the agent broke off.")
}

/// Ends all turns that a last life of the host left open.
pub(super) async fn begin(shared: &Shared, last: Seq) -> Result<(), StartError> {
    let desk = &shared.desk;
    let pen = Pen::hasty(Arc::clone(desk));
    for (session, chat) in suspects(desk, last).await? {
        mend(desk, &pen, &session, &chat, &restarted(), None).await.map_err(|Over| not_kept(AppendError::Unknown))?;
    }
    Ok(())
}

/// Ends a chat's turn, with all that is asked in it, if it has one; but not this one.
pub(super) async fn mend(
    desk: &Desk,
    pen: &Pen,
    session: &Arc<str>,
    chat: &Arc<str>,
    why: &Failure,
    but: Option<&str>,
) -> Result<(), Over> {
    let make = || async {
        let look = |chat: &ChatState, seq| (chat.active_turn.as_ref().map(|turn| turn.id.clone()), seq);
        let Some((turn, seq)) = seen(desk.chat(chat, look).await)? else { return Ok(None) };
        let asked = desk.session(session, |session, _| asked_in(session, chat)).await;
        let asked = seen(asked)?.unwrap_or_default();
        let is_new = turn.is_some() && turn.as_deref() == but;
        if is_new || (turn.is_none() && asked.is_empty()) {
            return Ok(None);
        }
        let mut sheet = Sheet::new().expect(chat, seq);
        if let Some(turn) = turn {
            // The reducer cancels the calls that are open.
            sheet = sheet.action(Arc::clone(chat), &ended(turn, why));
        }
        let removed = asked.into_iter().map(|id| SessionInputNeededRemovedAction { id });
        let removed = removed.map(StateAction::SessionInputNeededRemoved);
        Ok(Some(removed.fold(sheet, |sheet, action| sheet.action(Arc::clone(session), &action))))
    };
    pen.decide(make).await?;
    mirror::show(desk, pen, session, std::slice::from_ref(chat), None).await
}

/// Whether the turn that a chat is in began in a last life of the host.
pub(super) async fn is_left(log: &dyn Log, chat: &str, born: Seq) -> bool {
    let mut after = born;
    loop {
        let Ok(page) = log.read(chat, after.saturating_add(1)..Seq::MAX, PAGE).await else { return false };
        if page.iter().any(|entry| glance(entry) == Glance::Turn) {
            return false;
        }
        let Some(last) = page.last() else { return true };
        after = last.seq;
    }
}

fn ended(turn_id: String, why: &Failure) -> StateAction {
    let (error_type, message) = (why.kind.clone(), why.message.clone());
    let part = ErrorResponsePart { error: ErrorInfo { error_type, message, stack: None, meta: None }, resumable: None };
    // Nobody knows how long somebody worked on it.
    StateAction::ChatError(ChatErrorAction { turn_id, duration: 0, part, meta: None })
}

/// The ids of what a session asks for a chat.
fn asked_in(session: &SessionState, chat: &str) -> Vec<String> {
    let asked = session.input_needed.iter().flatten();
    asked.filter_map(|request| of_chat(request, chat)).collect()
}

/// All kinds of requests name their chat and have an id.
fn of_chat(request: &SessionInputRequest, chat: &str) -> Option<String> {
    let request = serde_json::to_value(request).ok()?;
    let text = |name: &str| request.get(name).and_then(Value::as_str);
    text("chat").filter(|of| *of == chat).and(text("id")).map(str::to_owned)
}

/// The chats that may have been left in a turn, each with its session: those that the catalogue shows so, and those in
/// which one began so late that the catalogue may not have heard of it.
async fn suspects(desk: &Desk, last: Seq) -> Result<BTreeSet<(Arc<str>, Arc<str>)>, StateError> {
    let mut found = BTreeSet::new();
    for summary in desk.state().sessions_with(is_busy).await? {
        let session: Arc<str> = summary.resource.into();
        let look = |session: &SessionState, _| {
            session.chats.iter().map(|chat| Arc::from(&*chat.resource)).collect::<Vec<Arc<str>>>()
        };
        let chats = match desk.session(&session, look).await {
            Ok(chats) => chats.unwrap_or_default(),
            Err(StateError::Closed) => return Err(StateError::Closed),
            Err(_) => continue,
        };
        found.extend(chats.into_iter().map(|chat| (Arc::clone(&session), chat)));
    }
    let recent = recent(&**desk.log(), last).await?;
    if !recent.is_empty() {
        let all = desk.log().channels(None).await?;
        let of = all.into_iter().filter(|info| recent.contains(&info.channel));
        found.extend(of.filter_map(|info| info.session.map(|session| (session, info.channel))));
    }
    Ok(found)
}

fn is_busy(summary: &SessionSummary) -> bool {
    let chats = summary.chats.iter().flatten().filter_map(|chat| chat.status);
    chats.chain([summary.status]).any(|status| status & SessionStatus::InProgress.bits() != 0)
}

/// The chats in which a turn began among the last entries.
async fn recent(log: &dyn Log, last: Seq) -> Result<BTreeSet<Arc<str>>, StateError> {
    let mut tail = log.tail(last.saturating_sub(RECENT), Channels::Except(PASSING));
    let mut found = BTreeSet::new();
    loop {
        match tail.ready(PAGE).await {
            Ok(page) if page.is_empty() => return Ok(found),
            Ok(page) => {
                let turns = page.into_iter().filter(|entry| glance(&entry) == Glance::Turn);
                found.extend(turns.map(|entry| entry.channel));
            }
            Err(ReadError::Trimmed { first }) => tail.seek(first.saturating_sub(1)),
            Err(ReadError::Damaged(DamagedRecord::Entry { seq })) => tail.seek(seq),
            Err(ReadError::Closed) => return Err(StateError::Closed),
            Err(error) => {
                warn!(%error, "the log could not be read to its end: turns that a crash left open may stay open");
                return Ok(found);
            }
        }
    }
}
