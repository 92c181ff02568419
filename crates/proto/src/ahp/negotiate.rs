//! The chunking capability: read from the messages of a handshake, written into them, and remembered between connections.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::envelope::ENVELOPE;
use crate::json::{self, Found, Path, Span, ValueKind};
use crate::limits::{Limits, LimitsConfig};
use crate::message::{Edit, Message, len64};
use crate::pace::Rate;
use crate::recent::Recent;

/// The limits of one side: `capabilities.chunking` on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunking {
    /// The longest frame, segment or not.
    pub max_frame_bytes: u64,
    /// The longest message, reassembled.
    pub max_message_bytes: u64,
    /// How many groups may be open.
    pub max_groups: u32,
    /// How long a group may take.
    pub group_timeout: Duration,
    /// Whether this side resumes from a settled cursor, so that messages may finish out of order across lanes.
    pub settled_cursor: bool,
}

/// The value of `maxIncomingGroups` if it is left out.
const DEFAULT_GROUPS: u64 = 8;
/// The value of `groupTimeoutMs` if it is left out.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

impl Chunking {
    fn to_json(self) -> String {
        let Self { max_frame_bytes, max_message_bytes, max_groups, group_timeout, settled_cursor } = self;
        let sizes =
            format!(r#""maxIncomingFrameBytes":{max_frame_bytes},"maxIncomingMessageBytes":{max_message_bytes}"#);
        let groups = format!(r#""maxIncomingGroups":{max_groups},"groupTimeoutMs":{}"#, group_timeout.as_millis());
        format!(r#"{{{sizes},{groups},"settledCursor":{settled_cursor}}}"#)
    }

    /// Reads `capabilities.chunking`. `None` if it is not valid.
    fn parse(raw: &Message) -> Option<Self> {
        static PATHS: [Path; 5] = [
            &["maxIncomingFrameBytes"],
            &["maxIncomingMessageBytes"],
            &["maxIncomingGroups"],
            &["groupTimeoutMs"],
            &["settledCursor"],
        ];
        let found = json::find(raw.slices(), &PATHS).ok()?;
        let text = |i| found.get(i).map(|value| raw.read(value.span));
        let positive = |raw: &[u8]| match json::number(raw) {
            json::Number::Int(value) if value > 0 => Some(u64::try_from(value).unwrap_or(u64::MAX)),
            json::Number::Huge { negative: false } => Some(u64::MAX),
            _ => None,
        };
        let chunking = Self {
            max_frame_bytes: positive(&text(0)?)?,
            max_message_bytes: positive(&text(1)?)?,
            max_groups: u32::try_from(text(2).map_or(Some(DEFAULT_GROUPS), |raw| positive(&raw))?).unwrap_or(u32::MAX),
            group_timeout: text(3).map_or(Some(DEFAULT_TIMEOUT), |raw| positive(&raw).map(Duration::from_millis))?,
            settled_cursor: found.get(4).is_some_and(|value| value.kind == ValueKind::True),
        };
        (chunking.max_message_bytes >= chunking.max_frame_bytes).then_some(chunking)
    }
}

impl From<&Limits> for Chunking {
    fn from(limits: &Limits) -> Self {
        let LimitsConfig { max_frame_bytes, max_message_bytes, max_groups, .. } = **limits;
        let group_timeout = limits.group_timeout();
        Self { max_frame_bytes, max_message_bytes, max_groups, group_timeout, settled_cursor: true }
    }
}

/// What was negotiated on earlier connections, and the rates of their links. Clients and endpoints keep one, and pass it to each
/// new connection.
///
/// Cloning shares it. An endpoint that serves many clients keeps one for all of them: entries are by `clientId`, and the oldest are
/// forgotten first.
#[derive(Debug, Clone, Default)]
pub struct Negotiated(Arc<Mutex<Memory>>);

#[derive(Debug, Default)]
struct Memory {
    clients: Recent<ClientKey, Remembered, 2048>,
    /// The last rate of the links to each client.
    rates: Recent<ClientKey, Rate, 2048>,
    hasher: RandomState,
}

/// A client's id as a hash, since an id may be of any length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey(u64);

/// What a client and a server agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// The limits of the other side; `None` if it takes no segments.
    pub(crate) theirs: Option<Chunking>,
    /// Whether the protocol version in use has chunking.
    pub(crate) version: bool,
}

impl Negotiated {
    pub(crate) fn key(&self, client: &str) -> ClientKey {
        self.with(|memory| ClientKey(memory.hasher.hash_one(client)))
    }

    pub(crate) fn recall(&self, client: ClientKey) -> Option<Remembered> {
        self.with(|memory| memory.clients.get(client).copied())
    }

    pub(crate) fn remember(&self, client: ClientKey, remembered: Remembered) {
        self.with(|memory| memory.clients.insert(client, remembered));
    }

    /// The last rate of the links to this client.
    pub(crate) fn rate(&self, client: ClientKey) -> Option<Rate> {
        self.with(|memory| memory.rates.get(client).copied())
    }

    pub(crate) fn note_rate(&self, client: ClientKey, rate: Rate) {
        self.with(|memory| memory.rates.insert(client, rate));
    }

    fn with<R>(&self, act: impl FnOnce(&mut Memory) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What was read in a handshake message: who sent it, what it offers, and where its capability is or would be.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub(crate) client: Option<String>,
    pub(crate) offers_chunking_version: bool,
    pub(crate) version_allows: Option<bool>,
    pub(crate) theirs: Option<Chunking>,
    /// Whether there is a capability that is not valid.
    pub(crate) invalid: bool,
    /// Where the capability is.
    pub(crate) chunking: Option<Found>,
    body: Option<Found>,
    capabilities: Option<Found>,
}

impl Handshake {
    /// Reads an `initialize` or `reconnect` request, or the result of one.
    pub(crate) fn read(message: &Message) -> Self {
        static PATHS: [Path; 10] = [
            ENVELOPE[3],
            ENVELOPE[4],
            &["params", "capabilities"],
            &["result", "capabilities"],
            &["params", "capabilities", "chunking"],
            &["result", "capabilities", "chunking"],
            &["params", "clientId"],
            &["result", "clientId"],
            &["params", "protocolVersions"],
            &["result", "protocolVersion"],
        ];
        let found = json::find(message.slices(), &PATHS).ok();
        let get = |asked, told| found.as_ref().and_then(|found| found.get(asked).or(found.get(told)));
        let text = |found: Found| message.read(found.span).into_owned();
        let versions = get(8, 9).map(text);
        let chunking = get(4, 5);
        let theirs = chunking.and_then(|found| Chunking::parse(&text(found).into()));
        Self {
            client: get(6, 7).and_then(|found| Some(json::string(&text(found))?.into_owned())),
            offers_chunking_version: versions.as_deref().is_some_and(any_version_chunks),
            version_allows: versions.as_deref().and_then(json::string).map(|version| version_chunks(&version)),
            theirs,
            invalid: theirs.is_none() && chunking.is_some_and(|found| found.kind != ValueKind::Null),
            body: get(0, 1),
            capabilities: get(2, 3),
            chunking,
        }
    }

    /// Puts our capability into the message.
    pub(crate) fn with(&self, message: &Message, ours: Chunking) -> Edit {
        let ours = ours.to_json();
        if let Some(chunking) = self.chunking {
            return Edit::replace(chunking.span, Bytes::from(ours));
        }
        let capabilities = format!(r#"{{"chunking":{ours}}}"#);
        match (self.capabilities, self.body) {
            (Some(object), _) if object.kind == ValueKind::Object => insert(message, object, "chunking", &ours),
            (Some(other), _) => Edit::replace(other.span, Bytes::from(capabilities)),
            (None, Some(body)) if body.kind == ValueKind::Object => {
                insert(message, body, "capabilities", &capabilities)
            }
            _ => Edit::default(),
        }
    }

    /// Takes the capability out of the message, and `capabilities` too if nothing else is in it.
    pub(crate) fn without(&self, message: &Message) -> Edit {
        let member = |found: Option<Found>| Member::of(message, found?.span);
        let gone = member(self.chunking).and_then(|own| if own.only { member(self.capabilities) } else { Some(own) });
        gone.map_or_else(Edit::default, |gone| Edit::replace(gone.span, Bytes::new()))
    }
}

/// Adds a member at the front of an object.
fn insert(message: &Message, object: Found, key: &str, value: &str) -> Edit {
    let inside = Span { start: object.span.start.saturating_add(1), end: object.span.end.saturating_sub(1) };
    // Read a piece at a time, because a host's answer may be many megabytes.
    let piece = |start: u64| message.read(Span { start, end: inside.end.min(start.saturating_add(len64(WINDOW))) });
    let mut starts = (inside.start..inside.end).step_by(WINDOW);
    let comma = if starts.any(|start| !piece(start).trim_ascii().is_empty()) { "," } else { "" };
    let at = Span { start: inside.start, end: inside.start };
    Edit::replace(at, Bytes::from(format!(r#""{key}":{value}{comma}"#)))
}

/// How many bytes are read at first on each side of a value: enough for the longest escaped spelling of `capabilities`, and some
/// white space.
const WINDOW: usize = 256;

/// A member of an object: its key, its value and one comma, if there is one.
struct Member {
    span: Span,
    only: bool,
}

impl Member {
    /// The member whose value has this span, in a message that is known to be JSON. There may be any amount of white space between
    /// the key and the value, so ever more bytes are read until the whole member is found.
    fn of(message: &Message, value: Span) -> Option<Self> {
        let windows = std::iter::successors(Some(len64(WINDOW)), |window| window.checked_mul(4));
        windows.take(16).find_map(|window| Self::within(message, value, window))
    }

    fn within(message: &Message, value: Span, window: u64) -> Option<Self> {
        let from = value.start.saturating_sub(window);
        let before = message.read(Span { start: from, end: value.start });
        let after = message.read(Span { start: value.end, end: value.end.saturating_add(window) });
        let key = before.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end().strip_suffix(b"\"")?;
        let front = key.get(..key.iter().rposition(|byte| *byte == b'"')?)?;
        // If only white space was read on a side, there may be a comma behind it: read more.
        let _ = (front.trim_ascii().first()?, after.trim_ascii().first()?);
        let comma_before = front.trim_ascii_end().strip_suffix(b",");
        let comma_after = after.trim_ascii_start().strip_prefix(b",").filter(|_| comma_before.is_none());
        let start = from.saturating_add(len64(comma_before.unwrap_or(front).len()));
        let gone = comma_after.map_or(0, |rest| after.len().saturating_sub(rest.len()));
        let only = comma_before.or(comma_after).is_none();
        Some(Self { span: Span { start, end: value.end.saturating_add(len64(gone)) }, only })
    }
}

/// Whether any version of a JSON array of strings has chunking.
fn any_version_chunks(raw: &[u8]) -> bool {
    let inside = raw.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).unwrap_or_default();
    let mut versions = inside.split(|byte| *byte == b',').filter_map(|item| json::string(item.trim_ascii()));
    versions.any(|version| version_chunks(&version))
}

/// Whether this protocol version has chunking: 0.3.0 or later.
fn version_chunks(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u64>().ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten().unwrap_or(0));
    major.is_some_and(|major| (major, minor) >= (0, 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(params: &str) -> (Message, Handshake) {
        let message = Message::from(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#));
        let handshake = Handshake::read(&message);
        (message, handshake)
    }

    fn text(message: &Message) -> String {
        String::from_utf8(message.to_bytes().to_vec()).unwrap()
    }

    const FULL: &str = r#"{"maxIncomingFrameBytes":900000,"maxIncomingMessageBytes":33554432,"maxIncomingGroups":4,"groupTimeoutMs":5,"settledCursor":true}"#;

    #[test]
    fn params_that_are_no_object_stay_as_they_are() {
        let chunking = Chunking::parse(&FULL.into()).unwrap();
        for params in ["[1,2]", "7", "[]"] {
            let (message, handshake) = request(params);
            assert_eq!(handshake.with(&message, chunking).apply(&message), message);
            assert_eq!(handshake.without(&message).apply(&message), message);
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let chunking = Chunking::parse(&FULL.into()).unwrap();
        assert_eq!(chunking.to_json(), FULL);
        assert_eq!((chunking.max_frame_bytes, chunking.max_groups), (900_000, 4));
    }

    #[test]
    fn left_out_groups_and_timeout_have_defaults_and_numbers_any_spelling() {
        let chunking =
            Chunking::parse(&r#"{"maxIncomingFrameBytes":9e2,"maxIncomingMessageBytes":1e99}"#.into()).unwrap();
        assert_eq!((chunking.max_frame_bytes, chunking.max_message_bytes), (900, u64::MAX));
        assert_eq!((chunking.max_groups, chunking.group_timeout), (8, Duration::from_secs(30)));
        assert!(!chunking.settled_cursor);
    }

    #[test]
    fn an_invalid_capability_counts_as_absent() {
        for bad in [
            r#"{}"#,
            r#"[]"#,
            r#"{"maxIncomingFrameBytes":900,"maxIncomingMessageBytes":899}"#,
            r#"{"maxIncomingFrameBytes":0,"maxIncomingMessageBytes":899}"#,
            r#"{"maxIncomingFrameBytes":-1,"maxIncomingMessageBytes":899}"#,
            r#"{"maxIncomingFrameBytes":1.5,"maxIncomingMessageBytes":899}"#,
            r#"{"maxIncomingFrameBytes":"9","maxIncomingMessageBytes":899}"#,
            r#"{"maxIncomingFrameBytes":9,"maxIncomingMessageBytes":899,"maxIncomingGroups":0}"#,
            r#"{"maxIncomingFrameBytes":9,"maxIncomingMessageBytes":899,"groupTimeoutMs":0}"#,
        ] {
            let (_, handshake) = request(&format!(r#"{{"capabilities":{{"chunking":{bad}}}}}"#));
            assert!(handshake.theirs.is_none() && handshake.invalid, "{bad}");
        }
        let (_, absent) = request("{}");
        assert!(absent.theirs.is_none() && !absent.invalid);
    }

    #[test]
    fn our_capability_is_added_where_it_belongs_and_all_else_is_kept() {
        let ours = Chunking::parse(&FULL.into()).unwrap();
        for (params, want) in [
            ("{}", format!(r#"{{"capabilities":{{"chunking":{FULL}}}}}"#)),
            (r#"{ "a":1}"#, format!(r#"{{"capabilities":{{"chunking":{FULL}}}, "a":1}}"#)),
            (r#"{"capabilities":{}}"#, format!(r#"{{"capabilities":{{"chunking":{FULL}}}}}"#)),
            (r#"{"capabilities":{"x":1}}"#, format!(r#"{{"capabilities":{{"chunking":{FULL},"x":1}}}}"#)),
            (r#"{"capabilities":null}"#, format!(r#"{{"capabilities":{{"chunking":{FULL}}}}}"#)),
            (r#"{"capabilities":{"chunking":7}}"#, format!(r#"{{"capabilities":{{"chunking":{FULL}}}}}"#)),
        ] {
            let (message, handshake) = request(params);
            let (want, _) = request(&want);
            assert_eq!(text(&handshake.with(&message, ours).apply(&message)), text(&want));
        }
    }

    #[test]
    fn a_capability_is_removed_with_its_comma() {
        for (params, want) in [
            (r#"{"capabilities":{"chunking":7}}"#, r#"{}"#),
            (r#"{"a":1, "capabilities" : { "chunking" : {"x":[1,2]} } , "b":2}"#, r#"{"a":1 , "b":2}"#),
            (r#"{"capabilities":{"chunking":{"a":{}}},"b":2}"#, r#"{"b":2}"#),
            (r#"{"capabilities":{"chunking":{},"x":1},"b":2}"#, r#"{"capabilities":{"x":1},"b":2}"#),
            (r#"{"capabilities":{"x":1,"ch\u0075nking":{}}}"#, r#"{"capabilities":{"x":1}}"#),
            (r#"{"capabilities":{"x":1}}"#, r#"{"capabilities":{"x":1}}"#),
        ] {
            let (message, handshake) = request(params);
            let (want, _) = request(want);
            assert_eq!(text(&handshake.without(&message).apply(&message)), text(&want), "{params}");
        }
    }

    #[test]
    fn white_space_of_any_length_hides_no_comma_and_no_key() {
        let chunking = Chunking::parse(&FULL.into()).unwrap();
        for len in [200, 300, 3000, 300_000] {
            let space = " ".repeat(len);
            for (params, want) in [
                (r#"{"a":1,_"capabilities":{"chunking":{}}}"#, r#"{"a":1}"#),
                (r#"{"capabilities":{"chunking":{}}_,"a":1}"#, r#"{"a":1}"#),
                (r#"{"capabilities"_:_{"chunking":{}_,"x":1}}"#, r#"{"capabilities"_:_{"x":1}}"#),
                (r#"{"capabilities":{_"chunking"_:_{}}}"#, r#"{}"#),
            ] {
                let ((message, handshake), (want, _)) =
                    (request(&params.replace('_', &space)), request(&want.replace('_', &space)));
                let without = text(&handshake.without(&message).apply(&message));
                let compact = |text: &str| text.replace(' ', "");
                assert!(compact(&without) == compact(&text(&want)), "{params} with {len} spaces");
            }
            let (message, handshake) = request(&format!(r#"{{"capabilities":{{{space}}}}}"#));
            let (with, _) = request(&format!(r#"{{"capabilities":{{"chunking":{FULL}{space}}}}}"#));
            assert!(handshake.with(&message, chunking).apply(&message) == with, "{len} spaces in an empty object");
            let (message, handshake) = request(&format!(r#"{{"capabilities":{{{space}"x":1}}}}"#));
            let (with, _) = request(&format!(r#"{{"capabilities":{{"chunking":{FULL},{space}"x":1}}}}"#));
            assert!(handshake.with(&message, chunking).apply(&message) == with, "{len} spaces before a member");
        }
    }

    #[test]
    fn adding_and_removing_restores_the_bytes() {
        let ours = Chunking::parse(&FULL.into()).unwrap();
        for params in ["{}", r#"{"a":1}"#, "{ \"capabilities\" : {\"x\":1}\n}", "{\n \"a\":1}"] {
            let (message, handshake) = request(params);
            let with = handshake.with(&message, ours).apply(&message);
            let back = Handshake::read(&with);
            assert_eq!(back.theirs, Some(ours));
            assert_eq!(text(&back.without(&with).apply(&with)), text(&message));
        }
    }

    #[test]
    fn chunking_needs_version_0_3_or_later() {
        for (version, chunks) in [
            ("0.2.9", false),
            ("0.3.0", true),
            ("0.10", true),
            ("1.0.0", true),
            ("1", true),
            ("0.3.0-rc1", true),
            ("x", false),
            ("", false),
        ] {
            assert_eq!(version_chunks(version), chunks, "{version}");
        }
        assert!(any_version_chunks(br#"[ "0.2.0" , "0.3.0"]"#));
        assert!(!any_version_chunks(br#"["0.2.0"]"#) && !any_version_chunks(b"[]") && !any_version_chunks(b"7"));
        let (_, handshake) = request(r#"{"clientId":"c\u0031","protocolVersions":["0.1.0","0.4.0"]}"#);
        assert!(handshake.offers_chunking_version && handshake.client.as_deref() == Some("c1"));
        let result = Message::from(r#"{"id":1,"result":{"protocolVersion":"0.2.0"}}"#);
        assert_eq!(Handshake::read(&result).version_allows, Some(false));
    }

    #[test]
    fn an_endpoint_remembers_many_clients_and_forgets_the_oldest() {
        let memory = Negotiated::default();
        let one = Remembered { theirs: Chunking::parse(&FULL.into()), version: true };
        let none = Remembered { theirs: None, version: false };
        let [first, second] = ["first", "second"].map(|client| memory.key(client));
        memory.remember(first, one);
        memory.remember(second, none);
        assert_eq!((memory.recall(first), memory.recall(second)), (Some(one), Some(none)));
        memory.remember(first, none);
        assert_eq!(memory.recall(first), Some(none));
        (0..5000).for_each(|n| memory.remember(memory.key(&n.to_string()), one));
        assert_eq!((memory.recall(first), memory.recall(second)), (None, None));
        assert_eq!(memory.recall(memory.key("4000")), Some(one));
    }
}
