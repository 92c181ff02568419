//! The mirror: what a chat is now, as its session and the catalogue show it.

use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{PartialChatSummary, SessionChatUpdatedAction, SessionTitleChangedAction, StateAction};
use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{ChatState, ChatSummary, SessionState, SessionStatus, SessionSummary};

use super::super::desk::{Desk, Sheet};
use super::super::{chats, sessions};
use super::pen::{Over, Pen, seen};
use crate::files::time;
use crate::log::Seq;
use crate::state::entry::CatalogueNotification;

/// The bits of a status that say what is going on; the others are marks.
const ACTIVITY: u32 = 0b1_1111;

/// The most characters of a title that is made from a prompt.
const TITLE: usize = 80;

/// Shows these chats in their session, and the session in the catalogue; nothing if nothing has changed. With a title, a
/// chat and a session that have none yet get it.
pub(super) async fn show(
    desk: &Desk,
    pen: &Pen,
    session: &str,
    chats: &[Arc<str>],
    title: Option<&str>,
) -> Result<(), Over> {
    if chats.is_empty() {
        return Ok(());
    }
    let now = time::now();
    let make = || async {
        let mut faces = Vec::new();
        for chat in chats {
            faces.extend(seen(desk.chat(chat, |chat, _| Face::of(chat, title)).await)?);
        }
        let Some(listed) = seen(desk.state().session(session).await)? else { return Ok(None) };
        let made = desk.session(session, |there, seq| made(there, seq, &faces, &listed, &now)).await;
        Ok(seen(made)?.flatten())
    };
    pen.decide(make).await.map(drop)
}

/// A title from what somebody has said: the first line, or none.
pub(super) fn title_of(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let mut title: String = line.chars().take(TITLE).collect();
    if title.len() < line.len() {
        title.pop();
        title.push('…');
    }
    Some(title)
}

/// What a list shows of a session that has these chats: the rules are those of [`SessionSummary`]. Not when it was
/// modified: chats have the times that clients gave to their turns, and the list of sessions is in the order of our own.
pub(crate) fn summarize(session: &SessionState) -> PartialSessionSummary {
    let main = session.chats.iter().find(|chat| Some(&chat.resource) == session.default_chat.as_ref());
    let main = main.or_else(|| session.chats.iter().max_by_key(|chat| &chat.modified_at));
    let with = |bits: u32| session.chats.iter().find(|chat| chat.status & bits == bits);
    let first = with(SessionStatus::InputNeeded.bits()).or_else(|| with(SessionStatus::Error.bits())).or(main);
    let going_on = first.map_or(SessionStatus::Idle.bits(), |chat| chat.status & ACTIVITY);
    PartialSessionSummary {
        title: Some(session.title.clone()),
        status: Some(session.status & !ACTIVITY | going_on),
        activity: first.and_then(|chat| chat.activity.clone()),
        chats: Some(session.chats.iter().map(chats::compact).collect()),
        default_chat: session.default_chat.clone(),
        ..PartialSessionSummary::default()
    }
}

/// What a list shows of a chat.
struct Face {
    chat: String,
    title: Option<String>,
    status: u32,
    activity: Option<String>,
    modified_at: String,
    directories: Option<Vec<String>>,
}

impl Face {
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

    /// What is not so in the list yet. There is no action that changes the title in the chat itself.
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

/// What is to be written, if anything. A session whose chats were modified was modified now.
fn made(there: &SessionState, seq: Seq, faces: &[Face], listed: &SessionSummary, now: &str) -> Option<Sheet> {
    let (mut actions, mut modified_at) = (Vec::new(), None);
    // Only what is looked at below.
    let mut after = SessionState { customizations: None, changesets: None, ..there.clone() };
    for face in faces {
        let Some(summary) = after.chats.iter().find(|chat| chat.resource == face.chat) else { continue };
        let changes = face.changes(summary);
        if changes.modified_at.is_some() {
            modified_at = Some(now.to_owned());
        }
        if changes != PartialChatSummary::default() {
            let chat = face.chat.clone();
            actions.push(StateAction::SessionChatUpdated(SessionChatUpdatedAction { chat, changes }));
        }
    }
    let title = faces.iter().find_map(|face| face.title.clone());
    if let Some(title) = title.filter(|_| there.title.is_empty() || there.title == sessions::UNTITLED) {
        actions.push(StateAction::SessionTitleChanged(SessionTitleChangedAction { title }));
    }
    for action in &actions {
        ahp::reducers::apply_action_to_session(&mut after, action);
    }
    let session = &listed.resource;
    let changes = news(PartialSessionSummary { modified_at, ..summarize(&after) }, listed);
    let mut sheet = Sheet::new().expect(session, seq);
    if changes != PartialSessionSummary::default() {
        let (channel, session) = (ROOT_RESOURCE_URI.to_owned(), session.clone());
        let params = SessionSummaryChangedParams { channel, session, changes };
        // First: whoever sees the session as it is after this finds the catalogue in accord.
        sheet = sheet.notice(&listed.resource, &CatalogueNotification::Changed(Box::new(params)));
    } else if actions.is_empty() {
        return None;
    }
    Some(actions.iter().fold(sheet, |sheet, action| sheet.action(session.as_str(), action)))
}

/// Without what the catalogue says already.
fn news(mut new: PartialSessionSummary, listed: &SessionSummary) -> PartialSessionSummary {
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
