//! What an entry of the log means to a chat's task, found without reading what cannot matter.

use ahp_types::actions::StateAction;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tracing::warn;

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

/// What an entry is. Those that the host itself writes, of which deltas are the most, are known by how they begin.
pub(super) fn glance(channel: &str, body: &[u8]) -> Glance {
    if body.starts_with(br#"{"method":"#) {
        return Glance::Other;
    }
    let rest = body.strip_prefix(br#"{"channel":""#).and_then(|rest| rest.strip_prefix(channel.as_bytes()));
    let Some(rest) = rest.and_then(|rest| rest.strip_prefix(br#"","#)) else { return read_glance(body) };
    if rest.starts_with(br#""initial":"#) || rest.starts_with(br#""closed":"#) {
        return Glance::Edge;
    }
    let kind = rest.strip_prefix(br#""action":{"type":""#).and_then(|rest| rest.split(|byte| *byte == b'"').next());
    kind.map_or_else(|| read_glance(body), of_kind)
}

/// The same for a body that somebody else has written.
fn read_glance(body: &[u8]) -> Glance {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        action: Option<&'a RawValue>,
        initial: Option<IgnoredAny>,
        closed: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Action {
        r#type: String,
    }
    let Ok(body) = serde_json::from_slice::<Body<'_>>(body) else { return Glance::Other };
    if body.initial.is_some() || body.closed.is_some() {
        return Glance::Edge;
    }
    let action = body.action.and_then(|action| serde_json::from_str::<Action>(action.get()).ok());
    action.map_or(Glance::Other, |action| of_kind(action.r#type.as_bytes()))
}

fn of_kind(kind: &[u8]) -> Glance {
    match kind {
        b"chat/turnStarted" => Glance::Turn,
        b"chat/turnCancelled"
        | b"chat/toolCallConfirmed"
        | b"chat/truncated"
        | b"chat/pendingMessageSet"
        | b"chat/workingDirectorySet"
        | b"chat/workingDirectoryRemoved"
        | b"chat/isReadChanged"
        | b"chat/isArchivedChanged" => Glance::Deed,
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
    fn an_entry_is_known_by_how_it_begins_and_else_by_reading_it() {
        let of = |body: &str| glance("ahp-chat:/1", body.as_bytes());
        let written = |kind: &str| format!(r#"{{"channel":"ahp-chat:/1","action":{{"type":"{kind}","turnId":"t"}}}}"#);
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

    #[test]
    fn a_channel_whose_name_is_escaped_is_read() {
        let name = "ahp-chat:/\"1\"";
        let body = json!({"channel": name, "action": {"type": "chat/truncated"}}).to_string();
        assert_eq!(glance(name, body.as_bytes()), Glance::Deed);
    }
}
