//! An entry of the log, and what kind of entry it is.
//!
//! The bodies of entries are JSON objects, and the first member that says what an entry is decides its kind:
//!
//! | Body | Kind |
//! |---|---|
//! | `{"channel":…,"action":{…},"origin":{…}}` | [`Action`](EntryKind::Action); `origin` where a client dispatched it |
//! | `{"channel":…,"initial":{"kind":…,"state":{…}}}` | [`Initial`](EntryKind::Initial) |
//! | `{"channel":…,"closed":true}` | [`Closed`](EntryKind::Closed) |
//! | `{"channel":…,"beside":{"chat":…,"turn":…}}` | [`SideChat`](EntryKind::SideChat) |
//! | `{"method":"root/sessionAdded","params":{…}}` | [`Notification`](EntryKind::Notification) |
//!
//! Only this file looks at the front of a body. Everybody else asks the entry.

use std::borrow::Cow;
use std::sync::Arc;

use breakbulk_proto::json::{Path, Paths, Scanner};
use bytes::Bytes;
use serde::Deserialize;

use super::Seq;

/// How much of a body is scanned in one step.
const STEP: usize = 512;

/// One entry as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the order.
    pub seq: Seq,
    /// When it was appended, in milliseconds since 1970. Never less than that of an entry before it.
    pub at_ms: u64,
    /// The channel's URI.
    pub channel: Arc<str>,
    /// What kind of entry it is.
    pub kind: EntryKind,
    /// Raw JSON, without the seq.
    pub body: Bytes,
}

/// What kind of entry something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// An action on its channel.
    Action,
    /// The state that a channel begins with, or begins anew with.
    Initial,
    /// The channel ends here, until it begins anew.
    Closed,
    /// From here on a side chat knows this chat up to a turn, or no longer knows it.
    SideChat,
    /// A notification that is no action, such as `root/sessionAdded`.
    Notification,
    /// Something else, such as an entry that a later version writes.
    Unknown,
}

impl Entry {
    /// An entry with this body, whose kind is found here.
    #[must_use]
    pub fn new(seq: Seq, at_ms: u64, channel: Arc<str>, body: Bytes) -> Self {
        let kind = EntryKind::of(&body);
        Self { seq, at_ms, channel, kind, body }
    }

    /// The `type` of an action. `None` if the entry is no action, or its action has no type.
    #[must_use]
    pub fn action_type(&self) -> Option<Cow<'_, str>> {
        if self.kind != EntryKind::Action {
            return None;
        }
        action_type_in_front(&self.body).map(Cow::Borrowed).or_else(|| read_action_type(&self.body))
    }
}

impl EntryKind {
    /// The members that decide, and what they mean.
    const MEMBERS: [(&'static str, Self); 5] = [
        ("action", Self::Action),
        ("initial", Self::Initial),
        ("closed", Self::Closed),
        ("beside", Self::SideChat),
        ("method", Self::Notification),
    ];

    /// The kind of an entry with this body: that of the first member which is one of the five.
    fn of(body: &[u8]) -> Self {
        Self::in_front(body).unwrap_or_else(|| Self::scan(body))
    }

    /// The kind of a body as this host writes it: the deciding member is the first one, or the second one after `channel`.
    fn in_front(body: &[u8]) -> Option<Self> {
        let member = after_channel(body).or_else(|| body.strip_prefix(b"{"))?.strip_prefix(b"\"")?;
        let is_it = |(name, _): &&(&str, Self)| {
            member.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"\":"))
        };
        Self::MEMBERS.iter().find(is_it).map(|(_, kind)| *kind)
    }

    /// Scans a body that this host did not write, until its kind is known.
    fn scan(body: &[u8]) -> Self {
        static PATHS: [Path; 5] = [&["action"], &["initial"], &["closed"], &["beside"], &["method"]];
        let mut scanner = Scanner::new(Paths::new(&PATHS));
        for step in body.chunks(STEP) {
            let fed = scanner.feed(step);
            let found = Self::MEMBERS.iter().enumerate().filter_map(|(at, (_, kind))| {
                let member = scanner.visitor().get(at)?;
                Some((member.span.start, *kind))
            });
            if let Some((_, kind)) = found.min_by_key(|(start, _)| *start) {
                return kind;
            }
            if fed.is_err() {
                break;
            }
        }
        Self::Unknown
    }
}

/// The rest of a body after its channel, if the channel comes first. A name with a backslash in it gives `None`: the
/// scanner reads such a body.
fn after_channel(body: &[u8]) -> Option<&[u8]> {
    let name = body.strip_prefix(br#"{"channel":""#)?;
    let end = name.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    name.get(end..)?.strip_prefix(b"\",")
}

/// The type of an action whose first member it is, as this host writes it.
fn action_type_in_front(body: &[u8]) -> Option<&str> {
    let rest = after_channel(body)?.strip_prefix(br#""action":{"type":""#)?;
    let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    if rest.get(end) == Some(&b'\\') {
        return None;
    }
    std::str::from_utf8(rest.get(..end)?).ok()
}

/// The type of an action that this host did not write.
fn read_action_type(body: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        action: Action<'a>,
    }
    #[derive(Deserialize)]
    struct Action<'a> {
        #[serde(borrow, rename = "type")]
        name: Cow<'a, str>,
    }
    serde_json::from_slice::<Body<'_>>(body).ok().map(|body| body.action.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(body: impl Into<Bytes>) -> Entry {
        Entry::new(1, 0, "c".into(), body.into())
    }

    #[test]
    fn the_first_deciding_member_is_the_kind() {
        let long = "x".repeat(3 * STEP);
        for (body, kind) in [
            (r#"{"channel":"c","action":{"type":"x"}}"#.to_owned(), EntryKind::Action),
            (format!(r#"{{"channel":"{long}","action":{{"method":1}}}}"#), EntryKind::Action),
            (format!(r#"{{"channel":"c","action":{{"a":"{long}"}},"method":1}}"#), EntryKind::Action),
            (r#"{"action":{"type":"x"},"channel":"c"}"#.to_owned(), EntryKind::Action),
            (r#"{"method":"root/sessionAdded","params":{"action":1}}"#.to_owned(), EntryKind::Notification),
            (r#"{"params":{"action":1},"method":"root/sessionAdded"}"#.to_owned(), EntryKind::Notification),
            (r#"{"channel":"c","initial":{"action":1}}"#.to_owned(), EntryKind::Initial),
            (r#"{"initial":{},"channel":"c"}"#.to_owned(), EntryKind::Initial),
            (r#"{"channel":"c","closed":true}"#.to_owned(), EntryKind::Closed),
            (r#"{ "channel": "c", "closed": true }"#.to_owned(), EntryKind::Closed),
            (r#"{"channel":"c","beside":{"chat":"d"}}"#.to_owned(), EntryKind::SideChat),
            (r#"{"channel":"c"}"#.to_owned(), EntryKind::Unknown),
            (r#"{"channel":"c","actions":[]}"#.to_owned(), EntryKind::Unknown),
            ("[".to_owned(), EntryKind::Unknown),
            (String::new(), EntryKind::Unknown),
        ] {
            assert_eq!(EntryKind::of(body.as_bytes()), kind, "{body:.80}");
        }
    }

    #[test]
    fn a_channel_whose_name_is_escaped_does_not_hide_the_kind() {
        for name in ["\"", "\",\"closed\":", "\\", "a\\\",\"closed\":1,\""] {
            let entry = entry(format!(r#"{{"channel":{},"action":{{"type":"chat/truncated"}}}}"#, json!(name)));
            assert_eq!(
                (entry.kind, entry.action_type().as_deref()),
                (EntryKind::Action, Some("chat/truncated")),
                "{name}"
            );
        }
    }

    #[test]
    fn the_type_of_an_action_is_found_wherever_it_is_written() {
        for body in [
            r#"{"channel":"c","action":{"type":"chat/delta","turnId":"t"}}"#,
            r#"{"action":{"turnId":"t","type":"chat/delta"},"channel":"c"}"#,
            r#"{"channel":"c","action":{"type":"chat\/delta"}}"#,
        ] {
            assert_eq!(entry(body).action_type().as_deref(), Some("chat/delta"), "{body}");
        }
        for body in [r#"{"channel":"c","initial":{"type":"chat/delta"}}"#, r#"{"channel":"c","action":1}"#, "no JSON"] {
            assert_eq!(entry(body).action_type(), None, "{body}");
        }
    }
}
