//! Keeps the summaries of chats and sessions up to date: a session lists its chats, the catalogue lists the sessions.

use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{PartialChatSummary, SessionChatUpdatedAction, SessionTitleChangedAction, StateAction};
use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{ChatState, ChatSummary, SessionState, SessionStatus, SessionSummary};

use super::super::log_writer::{LogWriter, Transaction};
use super::super::{chats, sessions};
use super::task_writer::{TaskStopped, TaskWriter, if_readable};
use crate::files::time;
use crate::log::Seq;
use crate::state::entry::CatalogueNotification;

/// The bits of a status that say what is going on; the others are marks such as "read".
const ACTIVITY_BITS: u32 = 0b1_1111;

/// The most characters of a title that is made from a prompt.
const MAX_TITLE_CHARS: usize = 80;

/// Logs what has changed of these chats, in the list of their session and in the catalogue. A chat and a session without
/// a title get this one.
pub(super) async fn update(
    log_writer: &LogWriter,
    writer: &TaskWriter,
    session: &str,
    chats: &[Arc<str>],
    title: Option<&str>,
) -> Result<(), TaskStopped> {
    if chats.is_empty() {
        return Ok(());
    }
    let now = time::now();
    let make = || async {
        let mut listings = Vec::new();
        for chat in chats {
            listings.extend(if_readable(log_writer.chat(chat, |chat, _| ChatListing::of(chat, title)).await)?);
        }
        let Some(listed) = if_readable(log_writer.state().session(session).await)? else { return Ok(None) };
        let summary_changes =
            log_writer.session(session, |there, seq| summary_changes(there, seq, &listings, &listed, &now)).await;
        Ok(if_readable(summary_changes)?.flatten())
    };
    writer.transact(make).await.map(drop)
}

/// A title for a prompt: its first line that is not empty.
pub(super) fn title_of(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let mut title: String = line.chars().take(MAX_TITLE_CHARS).collect();
    if title.len() < line.len() {
        title.pop();
        title.push('…');
    }
    Some(title)
}

/// What the catalogue shows of a session, by the rules of [`SessionSummary`]. It leaves `modified_at` out: chats have the
/// times that clients gave to their turns, and the catalogue is ordered by the host's own time.
pub(crate) fn summarize(session: &SessionState) -> PartialSessionSummary {
    let main = session.chats.iter().find(|chat| Some(&chat.resource) == session.default_chat.as_ref());
    let main = main.or_else(|| session.chats.iter().max_by_key(|chat| &chat.modified_at));
    let with = |bits: u32| session.chats.iter().find(|chat| chat.status & bits == bits);
    let first = with(SessionStatus::InputNeeded.bits()).or_else(|| with(SessionStatus::Error.bits())).or(main);
    let going_on = first.map_or(SessionStatus::Idle.bits(), |chat| chat.status & ACTIVITY_BITS);
    PartialSessionSummary {
        title: Some(session.title.clone()),
        status: Some(session.status & !ACTIVITY_BITS | going_on),
        activity: first.and_then(|chat| chat.activity.clone()),
        chats: Some(session.chats.iter().map(chats::compact).collect()),
        default_chat: session.default_chat.clone(),
        ..PartialSessionSummary::default()
    }
}

/// What a session lists of a chat.
struct ChatListing {
    chat: String,
    title: Option<String>,
    status: u32,
    activity: Option<String>,
    modified_at: String,
    directories: Option<Vec<String>>,
}

impl ChatListing {
    fn of(chat: &ChatState, title: Option<&str>) -> Self {
        Self {
            chat: chat.resource.clone(),
            title: title.map(str::to_owned),
            status: chat.status,
            activity: chat.activity.clone(),
            modified_at: chat.modified_at.clone(),
            directories: chat.working_directories.clone(),
        }
    }

    /// What has to change in the list. The title changes there only: no action changes it in the chat itself.
    fn changes(&self, listed: &ChatSummary) -> PartialChatSummary {
        let is_untitled = listed.title.is_empty() || listed.title == chats::UNTITLED;
        PartialChatSummary {
            title: self.title.clone().filter(|_| is_untitled),
            status: Some(self.status).filter(|status| *status != listed.status),
            activity: self.activity.clone().filter(|_| self.activity != listed.activity),
            modified_at: Some(&self.modified_at).filter(|at| **at != listed.modified_at).cloned(),
            working_directories: self.directories.clone().filter(|_| self.directories != listed.working_directories),
            ..PartialChatSummary::default()
        }
    }
}

/// The transaction that brings the summaries up to date; `None` if they are. A session is modified when one of its chats is.
fn summary_changes(
    there: &SessionState,
    seq: Seq,
    listings: &[ChatListing],
    listed: &SessionSummary,
    now: &str,
) -> Option<Transaction> {
    let (mut actions, mut modified_at) = (Vec::new(), None);
    // Without the large parts, which a summary does not show.
    let mut after = SessionState { customizations: None, changesets: None, ..there.clone() };
    for listing in listings {
        let Some(summary) = after.chats.iter().find(|chat| chat.resource == listing.chat) else { continue };
        let changes = listing.changes(summary);
        if changes.modified_at.is_some() {
            modified_at = Some(now.to_owned());
        }
        if changes != PartialChatSummary::default() {
            let chat = listing.chat.clone();
            actions.push(StateAction::SessionChatUpdated(SessionChatUpdatedAction { chat, changes }));
        }
    }
    let title = listings.iter().find_map(|listing| listing.title.clone());
    if let Some(title) = title.filter(|_| there.title.is_empty() || there.title == sessions::UNTITLED) {
        actions.push(StateAction::SessionTitleChanged(SessionTitleChangedAction { title }));
    }
    for action in &actions {
        ahp::reducers::apply_action_to_session(&mut after, action);
    }
    let session = &listed.resource;
    let changes = without_unchanged(PartialSessionSummary { modified_at, ..summarize(&after) }, listed);
    let mut transaction = Transaction::new().expect(session, seq);
    if changes != PartialSessionSummary::default() {
        let (channel, session) = (ROOT_RESOURCE_URI.to_owned(), session.clone());
        let params = SessionSummaryChangedParams { channel, session, changes };
        // The catalogue comes first: a client that sees the new session state finds the catalogue up to date.
        transaction = transaction.notice(&listed.resource, &CatalogueNotification::Changed(Box::new(params)));
    } else if actions.is_empty() {
        return None;
    }
    Some(actions.iter().fold(transaction, |transaction, action| transaction.action(session.as_str(), action)))
}

/// Removes what the catalogue shows already.
fn without_unchanged(mut new: PartialSessionSummary, listed: &SessionSummary) -> PartialSessionSummary {
    new.title.take_if(|title| *title == listed.title);
    new.status.take_if(|status| *status == listed.status);
    new.activity.take_if(|activity| Some(&*activity) == listed.activity.as_ref());
    new.modified_at.take_if(|at| *at == listed.modified_at);
    new.chats.take_if(|chats| Some(&*chats) == listed.chats.as_ref());
    new.default_chat.take_if(|chat| Some(&*chat) == listed.default_chat.as_ref());
    new
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn session(chats: &[(&str, u32)], default: Option<&str>) -> SessionState {
        let chats: Vec<_> = chats
            .iter()
            .map(|(name, status)| json!({"resource": name, "title": name, "status": status, "modifiedAt": name}))
            .collect();
        let state = json!({"provider": "p", "title": "t", "status": 33, "lifecycle": "ready", "activeClients": [],
            "chats": chats, "defaultChat": default});
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn the_default_chat_speaks_for_its_session_unless_another_needs_somebody() {
        let status = |chats: &[(&str, u32)], default| summarize(&session(chats, default)).status.unwrap();
        assert_eq!(status(&[("a", 1), ("b", 8)], Some("a")), 33);
        assert_eq!(status(&[("a", 1), ("b", 8)], None), 40);
        assert_eq!(status(&[("a", 1), ("b", 2)], Some("a")), 34);
        assert_eq!(status(&[("a", 8), ("b", 2), ("c", 24 | 64)], Some("a")), 32 | 24);
        assert_eq!(status(&[], None), 33);
    }

    #[test]
    fn a_title_is_the_first_line_and_short() {
        assert_eq!(title_of("\n  one \ntwo").as_deref(), Some("one"));
        assert_eq!(title_of(" \n"), None);
        let long = title_of(&"ü".repeat(100)).unwrap();
        assert_eq!((long.chars().count(), long.ends_with("ü…")), (80, true));
        assert_eq!(title_of(&"x".repeat(80)).unwrap(), "x".repeat(80));
    }
}
