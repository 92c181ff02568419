//! What an entry of the log means to a chat's task, found without reading what cannot matter.

use ahp_types::actions::StateAction;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tracing::warn;

use crate::log::{Entry, EntryKind};

/// From this size on, a body is read on a thread that may block.
const LARGE: usize = 128 << 10;

/// What an entry is, at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Glance {
    /// A channel begins, or is no more.
    Edge,
    /// A turn begins in a chat, whoever began it.
    Turn,
    /// Something else that a chat's task hears of, if a client has done it.
    Deed,
    /// Nothing that matters here.
    Other,
}

/// What an entry is, from its kind and the type of its action.
pub(super) fn glance(entry: &Entry) -> Glance {
    match entry.kind {
        EntryKind::Initial | EntryKind::Closed => Glance::Edge,
        EntryKind::Action => entry.action_type().map_or(Glance::Other, |name| of_type(&name)),
        _ => Glance::Other,
    }
}

fn of_type(name: &str) -> Glance {
    match name {
        "chat/turnStarted" => Glance::Turn,
        "chat/turnCancelled"
        | "chat/toolCallConfirmed"
        | "chat/truncated"
        | "chat/pendingMessageSet"
        | "chat/workingDirectorySet"
        | "chat/workingDirectoryRemoved"
        | "chat/isReadChanged"
        | "chat/isArchivedChanged" => Glance::Deed,
        _ => Glance::Other,
    }
}

/// An action, and whether a client has dispatched it.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) action: StateAction,
    pub(super) by_client: bool,
}

/// Reads an action. None if it has no meaning here.
pub(super) async fn read(body: Bytes) -> Option<Said> {
    #[derive(Deserialize)]
    struct Body {
        action: StateAction,
        origin: Option<IgnoredAny>,
    }
    let large = body.len() >= LARGE;
    let read = move || serde_json::from_slice::<Body>(&body);
    let body = if large { tokio::task::spawn_blocking(read).await.ok()? } else { read() };
    match body {
        Ok(Body { action, origin }) => Some(Said { action, by_client: origin.is_some() }),
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
        let of = |body: &str| glance(&Entry::new(1, 0, "ahp-chat:/1".into(), body.to_owned().into()));
        let written = |name: &str| format!(r#"{{"channel":"ahp-chat:/1","action":{{"type":"{name}","turnId":"t"}}}}"#);
        assert_eq!(of(&written("chat/turnStarted")), Glance::Turn);
        assert_eq!(of(&written("chat/turnCancelled")), Glance::Deed);
        assert_eq!(of(&written("chat/delta")), Glance::Other);
        assert_eq!(of(r#"{"channel":"ahp-chat:/1","initial":{}}"#), Glance::Edge);
        assert_eq!(of(r#"{"method":"root/sessionAdded","params":{}}"#), Glance::Other);
        let other = json!({"action": {"turnId": "t", "type": "chat/turnStarted"}, "channel": "ahp-chat:/1"});
        assert_eq!(of(&other.to_string()), Glance::Turn);
        assert_eq!(of(r#"{"initial":{},"channel":"ahp-chat:/1"}"#), Glance::Edge);
        assert_eq!(of("no JSON"), Glance::Other);
    }
}
