//! The wire form: transfer frames are MCP progress notifications.

use std::borrow::Cow;
use std::fmt::{Arguments, Write as _};

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use crate::envelope::{ENVELOPE, Envelope, Kind};
use crate::error::Violation;
use crate::json::{self, Number, Path, Paths, Span, ValueKind};
use crate::mcp_order::{self, CANCELLED};
use crate::message::Message;
use crate::outgoing::Scan;
use crate::queue::Bond;

pub(super) const PATH_COUNT: usize = 19;
/// What is searched for in every frame and message: the envelope, then the members of a transfer frame, then those of a cancel.
pub(super) static PATHS: [Path; PATH_COUNT] = [
    ENVELOPE[0],
    ENVELOPE[1],
    ENVELOPE[2],
    ENVELOPE[3],
    ENVELOPE[4],
    ENVELOPE[5],
    &["params", "progressToken"],
    &["params", "progress"],
    &["params", "cvm", "type"],
    &["params", "cvm", "frameType"],
    &["params", "cvm", "data"],
    &["params", "cvm", "digest"],
    &["params", "cvm", "totalBytes"],
    &["params", "cvm", "totalChunks"],
    &["params", "cvm", "completionMode"],
    &["params", "_meta"],
    &["params", "_meta", "progressToken"],
    CANCELLED[0],
    CANCELLED[1],
];
const PARAMS: usize = 3;
/// The token of a progress notification.
pub(super) const TOKEN: usize = 6;
const PROGRESS: usize = 7;
const TYPE: usize = 8;
/// The type of a transfer frame.
pub(super) const FRAME_TYPE: usize = 9;
const DATA: usize = 10;
const DIGEST: usize = 11;
const TOTAL_BYTES: usize = 12;
const TOTAL_CHUNKS: usize = 13;
const MODE: usize = 14;
const META: usize = 15;
/// The token with which a request allows transfers.
pub(super) const OWN_TOKEN: usize = 16;

/// Where a cancel names its request.
const CANCELLED_AT: [usize; 2] = [17, 18];

/// The longest token or id that we remember, in bytes. A longer one counts as none, so that peers cannot make us store much.
pub(super) const MAX_TOKEN: usize = 256;

/// A message, and the positions of its members.
pub(super) struct ParsedMessage {
    pub(super) message: Message,
    pub(super) envelope: Envelope,
    pub(super) paths: Paths<PATH_COUNT>,
}

impl ParsedMessage {
    /// Reads a message to send. A response is read only until its id was found, because its receiver checks the rest.
    ///
    /// # Errors
    /// What was read is not one JSON object, or a key of the envelope comes twice.
    pub(super) fn to_send(message: Message) -> Result<Self, Violation> {
        let enough = |scan: &Scan<PATH_COUNT>| scan.envelope.has_id() && scan.envelope.kind() == Kind::Response;
        let Scan { envelope, paths, .. } = Scan::new(&message, &PATHS, enough)?;
        Ok(Self { message, envelope, paths })
    }

    /// Reads a message that arrived, which may be nested `max_depth` deep.
    ///
    /// # Errors
    /// It is not one JSON object, nested too deep, or a key of the envelope comes twice.
    pub(super) fn arrived(message: Message, max_depth: u32) -> Result<Self, Violation> {
        let Scan { envelope, paths, .. } = Scan::within(&message, &PATHS, max_depth, |_| false)?;
        Ok(Self { message: message.checked(max_depth), envelope, paths })
    }

    /// How it is bound to a request: it is one, or it cancels one.
    pub(super) fn bond(&self) -> Bond {
        mcp_order::bond(&self.message, &self.envelope, CANCELLED_AT.map(|at| self.paths.get(at)))
    }

    /// Whether this is `notifications/progress`.
    pub(super) fn is_progress(&self) -> bool {
        self.envelope.kind() == Kind::Notification
            && self.envelope.method(&self.message).is_some_and(|method| method == "notifications/progress")
    }

    /// Whether this is a transfer frame, valid or not.
    pub(super) fn is_part(&self) -> bool {
        self.is_progress() && self.string(TYPE) == "oversized-transfer"
    }

    /// The token at this path ([`TOKEN`] or [`OWN_TOKEN`]): its position, and its value as a string.
    pub(super) fn token(&self, path: usize) -> Option<(Span, String)> {
        let found = self.paths.get(path)?;
        let raw = self.message.read(found.span);
        let text = match (found.kind, json::number(&raw)) {
            (ValueKind::String, _) => json::string(&raw)?.into_owned(),
            (ValueKind::Number, Number::Int(value)) => value.to_string(),
            (ValueKind::Number, _) => String::from_utf8(raw.into_owned()).ok()?,
            _ => return None,
        };
        (text.len() <= MAX_TOKEN).then_some((found.span, text))
    }

    /// Where a token can be inserted into a request that has none: the span that it replaces, and the text before and after it. Some
    /// clients write `null` where they have none.
    pub(super) fn token_place(&self) -> Option<(Span, &'static str, &'static str)> {
        let (object, before, [alone, followed]) =
            match (self.paths.get(PARAMS), self.paths.get(META), self.paths.get(OWN_TOKEN)) {
                (_, _, Some(token)) => return (token.kind == ValueKind::Null).then_some((token.span, "", "")),
                (_, Some(meta), None) => (meta, r#""progressToken":"#, ["", ","]),
                (Some(params), None, None) => (params, r#""_meta":{"progressToken":"#, ["}", "},"]),
                (None, None, None) => {
                    let at = self.envelope.method_end()?;
                    return Some((Span { start: at, end: at }, r#","params":{"_meta":{"progressToken":"#, "}}"));
                }
            };
        let at = object.span.start.saturating_add(1);
        // No real object begins with more white space than this.
        let front = self.message.read(Span { start: at, end: at.saturating_add(4096) });
        let first = front.iter().find(|byte| !byte.is_ascii_whitespace())?;
        let after = if *first == b'}' { alone } else { followed };
        (object.kind == ValueKind::Object).then_some((Span { start: at, end: at }, before, after))
    }

    /// The `progress` of a transfer frame. An error if a member comes twice.
    pub(super) fn place(&self) -> Result<u64, Violation> {
        if let Some(twice) = (TOKEN..=MODE).find(|i| self.paths.repeated(*i)) {
            let name = PATHS.get(twice).and_then(|path| path.last()).copied().unwrap_or_default();
            return Err(Violation::DuplicateKey(name));
        }
        self.number(PROGRESS).to_u64().ok_or(Violation::ProgressInvalid)
    }

    /// The inside of the string `data`, still escaped.
    pub(super) fn data(&self) -> Result<Cow<'_, [u8]>, Violation> {
        let data = self.paths.get(DATA).filter(|data| data.kind == ValueKind::String).ok_or(Violation::DataMissing)?;
        let inside = Span { start: data.span.start.saturating_add(1), end: data.span.end.saturating_sub(1) };
        Ok(self.message.read(inside))
    }

    /// What a `start` declares.
    pub(super) fn start(&self) -> Result<Start, Violation> {
        if self.paths.get(MODE).is_some() && self.string(MODE) != "render" {
            return Err(Violation::CompletionModeUnknown);
        }
        let digest = self.string(DIGEST).strip_prefix("sha256:").map(str::to_ascii_lowercase);
        let digest = digest.filter(|hex| hex.len() == 64 && hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        // A number that is too large for us counts as the largest.
        let total = |path| match self.number(path) {
            Number::Int(value) if value > 0 => Ok(u64::try_from(value).unwrap_or(u64::MAX)),
            Number::Huge { negative: false } => Ok(u64::MAX),
            _ => Err(Violation::TotalsInvalid),
        };
        let digest = digest.ok_or(Violation::DigestInvalid)?;
        Ok(Start { digest, bytes: total(TOTAL_BYTES)?, chunks: total(TOTAL_CHUNKS)? })
    }

    /// The string at a path; empty when there is none.
    pub(super) fn string(&self, path: usize) -> String {
        json::string(&self.raw(path)).unwrap_or_default().into_owned()
    }

    fn number(&self, path: usize) -> Number {
        json::number(&self.raw(path))
    }

    fn raw(&self, path: usize) -> Cow<'_, [u8]> {
        self.paths.get(path).map(|found| self.message.read(found.span)).unwrap_or_default()
    }
}

/// What a `start` declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    /// 64 hex digits in lower case.
    pub(super) digest: String,
    pub(super) bytes: u64,
    pub(super) chunks: u64,
}

const HEAD: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":""#;
const PROGRESS_KEY: &str = r#"","progress":"#;
const CVM: &str = r#","cvm":{"type":"oversized-transfer","frameType":""#;
const CHUNK: &str = r#"chunk","data":""#;
/// The type of an `abort`, and what comes before its reason.
pub(super) const ABORT: &str = r#"abort","reason":""#;
const TAIL: &str = r#""}}}"#;

/// Reads a chunk that is written exactly as we and the official TypeScript SDK write it: its token, its `progress`, and its data,
/// still escaped. `None` if it is not, and has to be parsed.
///
/// If the data can be unescaped, the frame is what it seems to be, because the inside of a string has no bare quote.
pub(super) fn quick_chunk(frame: &[u8]) -> Option<(&str, u64, &[u8])> {
    let rest = frame.strip_prefix(HEAD.as_bytes())?;
    let end = rest.iter().take(MAX_TOKEN.saturating_add(1)).position(|&byte| byte == b'"' || byte == b'\\')?;
    let (token, rest) = rest.split_at_checked(end)?;
    let rest = rest.strip_prefix(PROGRESS_KEY.as_bytes())?;
    let (digits, rest) = rest.split_at_checked(rest.iter().take(20).position(|&byte| byte == b',')?)?;
    let inside = rest.strip_prefix(CVM.as_bytes())?.strip_prefix(CHUNK.as_bytes())?.strip_suffix(TAIL.as_bytes())?;
    let token = std::str::from_utf8(token).ok().filter(|token| !token.contains(char::is_control))?;
    Some((token, json::number(digits).to_u64()?, inside))
}

/// Writes frames. When the link has dropped a frame, its memory is used for the next.
#[derive(Debug, Default)]
pub(super) struct Writer(BytesMut);

impl Writer {
    pub(super) fn start(&mut self, token: &str, start: &Start) -> Bytes {
        let Start { digest, bytes, chunks } = start;
        let front = format_args!(
            r#"start","completionMode":"render","totalBytes":{bytes},"totalChunks":{chunks},"digest":"sha256:{digest}"#
        );
        self.frame((token, 1), front, |_| ())
    }

    /// A chunk. `data` writes the inside of its string; `capacity` is how long the frame will be at most.
    pub(super) fn chunk(&mut self, to: (&str, u64), capacity: usize, data: impl FnOnce(&mut BytesMut)) -> Bytes {
        self.0.reserve(capacity);
        self.frame(to, format_args!("{CHUNK}"), data)
    }

    /// `accept`, `end`, or [`ABORT`] with a reason.
    pub(super) fn text(&mut self, to: (&str, u64), kind: &str, text: &str) -> Bytes {
        self.frame(to, format_args!("{kind}"), |out| json::escape_into(out, text.as_bytes()))
    }

    /// A frame of any type. Each ends inside a string. The token is always written as a string, as the official SDKs do.
    fn frame(&mut self, (token, at): (&str, u64), kind: Arguments<'_>, rest: impl FnOnce(&mut BytesMut)) -> Bytes {
        self.0.put_slice(HEAD.as_bytes());
        json::escape_into(&mut self.0, token.as_bytes());
        // Writing to memory that grows does not fail.
        let _ = write!(self.0, "{PROGRESS_KEY}{at}{CVM}{kind}");
        rest(&mut self.0);
        self.0.put_slice(TAIL.as_bytes());
        self.0.split().freeze()
    }
}

/// A digest in hex.
pub(super) fn hex(hash: Sha256) -> String {
    let digits = hash.finalize().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}
