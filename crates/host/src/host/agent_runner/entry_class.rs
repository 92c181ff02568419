//! Which entries of the log matter to a chat's task, found without parsing those that do not.

use ahp_types::actions::StateAction;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tracing::warn;

use crate::log::{Entry, EntryKind};

/// From this size on, a body is parsed on a thread that may block.
const BLOCKING_BYTES: usize = 128 << 10;

/// What an entry means to the task of its chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryClass {
    /// A channel was opened or closed.
    ChannelEdge,
    /// A turn was started in a chat, by a client or by the host.
    TurnStarted,
    /// The options of a session were changed.
    ConfigChanged,
    /// A client has stopped a session.
    SessionStopped,
    /// Another action that matters if a client has dispatched it.
    ClientAction,
    /// An entry that does not matter.
    Irrelevant,
}

/// Classifies an entry by its kind and the type of its action.
pub(super) fn classify(entry: &Entry) -> EntryClass {
    match entry.kind {
        EntryKind::Initial | EntryKind::Closed => EntryClass::ChannelEdge,
        EntryKind::Action => match entry.action_type() {
            // Each turn changes what is kept beside a session. Only the end of a session matters.
            Some(name) if name == "session/metaChanged" && stops_session(&entry.body) => EntryClass::SessionStopped,
            Some(name) => class_of_action(&name),
            None => EntryClass::Irrelevant,
        },
        _ => EntryClass::Irrelevant,
    }
}

fn class_of_action(name: &str) -> EntryClass {
    match name {
        "chat/turnStarted" => EntryClass::TurnStarted,
        "session/configChanged" => EntryClass::ConfigChanged,
        "chat/turnCancelled"
        | "chat/toolCallConfirmed"
        | "chat/truncated"
        | "chat/pendingMessageSet"
        | "chat/workingDirectorySet"
        | "chat/workingDirectoryRemoved"
        | "chat/isReadChanged"
        | "chat/isArchivedChanged" => EntryClass::ClientAction,
        _ => EntryClass::Irrelevant,
    }
}

/// Whether an action that changes a session's `_meta` says that the session was stopped.
fn stops_session(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Body {
        action: Action,
    }
    #[derive(Deserialize)]
    struct Action {
        #[serde(rename = "_meta")]
        meta: Option<Meta>,
    }
    #[derive(Deserialize)]
    struct Meta {
        breakbulk: Option<Ours>,
    }
    #[derive(Deserialize)]
    struct Ours {
        #[serde(default)]
        ended: bool,
    }
    let ours = serde_json::from_slice::<Body>(body).ok().and_then(|body| body.action.meta?.breakbulk);
    ours.is_some_and(|ours| ours.ended)
}

/// An action, and whether a client has dispatched it.
#[derive(Debug)]
pub(super) struct LoggedAction {
    pub(super) action: StateAction,
    pub(super) is_by_client: bool,
}

/// Parses the action of an entry; `None` if it has none that can be parsed.
pub(super) async fn read_action(body: Bytes) -> Option<LoggedAction> {
    #[derive(Deserialize)]
    struct Body {
        action: StateAction,
        origin: Option<IgnoredAny>,
    }
    let large = body.len() >= BLOCKING_BYTES;
    let read_action = move || serde_json::from_slice::<Body>(&body);
    let body = if large { tokio::task::spawn_blocking(read_action).await.ok()? } else { read_action() };
    match body {
        Ok(Body { action, origin }) => Some(LoggedAction { action, is_by_client: origin.is_some() }),
        Err(error) => {
            warn!(%error, "an entry of the log cannot be read and is skipped");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_is_known_by_its_kind_and_the_type_of_its_action() {
        let of = |body: &str| classify(&Entry::new(1, 0, "ahp-chat:/1".into(), body.to_owned().into()));
        let written = |name: &str| format!(r#"{{"channel":"ahp-chat:/1","action":{{"type":"{name}","turnId":"t"}}}}"#);
        assert_eq!(of(&written("chat/turnStarted")), EntryClass::TurnStarted);
        assert_eq!(of(&written("chat/turnCancelled")), EntryClass::ClientAction);
        assert_eq!(of(&written("chat/delta")), EntryClass::Irrelevant);
        assert_eq!(of(r#"{"channel":"ahp-chat:/1","initial":{}}"#), EntryClass::ChannelEdge);
        assert_eq!(of(r#"{"method":"root/sessionAdded","params":{}}"#), EntryClass::Irrelevant);
        let other = json!({"action": {"turnId": "t", "type": "chat/turnStarted"}, "channel": "ahp-chat:/1"});
        assert_eq!(of(&other.to_string()), EntryClass::TurnStarted);
        assert_eq!(of(r#"{"initial":{},"channel":"ahp-chat:/1"}"#), EntryClass::ChannelEdge);
        assert_eq!(of("no JSON"), EntryClass::Irrelevant);
        let meta = |ours: serde_json::Value| {
            let action = json!({"type": "session/metaChanged", "_meta": {"breakbulk": ours}});
            of(&json!({"channel": "ahp-session:/1", "action": action}).to_string())
        };
        assert_eq!(meta(json!({"ended": true, "resume": {}})), EntryClass::SessionStopped);
        assert_eq!(meta(json!({"resume": {"ended": true}})), EntryClass::Irrelevant);
    }
}
