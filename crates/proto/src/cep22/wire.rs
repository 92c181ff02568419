//! The wire form: transfer frames as MCP progress notifications, read and written.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::Violation;
use crate::json::{self, Found, Kind as Json, Number, Path, Paths, Scanner, Span};
use crate::message::{Message, len_usize};
use crate::rpc::{ENVELOPE, Envelope, Kind};

/// What we look for in every frame and message: the envelope, then the members of a transfer frame.
pub(super) static PATHS: [Path; 18] = [
    ENVELOPE[0],
    ENVELOPE[1],
    ENVELOPE[2],
    ENVELOPE[3],
    ENVELOPE[4],
    ENVELOPE[5],
    &["params", "progressToken"],
    &["params", "progress"],
    &["params", "cvm"],
    &["params", "cvm", "type"],
    &["params", "cvm", "frameType"],
    &["params", "cvm", "data"],
    &["params", "cvm", "digest"],
    &["params", "cvm", "totalBytes"],
    &["params", "cvm", "totalChunks"],
    &["params", "cvm", "completionMode"],
    &["params", "_meta"],
    &["params", "_meta", "progressToken"],
];
const TOKEN: usize = 6;
const PROGRESS: usize = 7;
const TYPE: usize = 9;
const FRAME_TYPE: usize = 10;
const DATA: usize = 11;
const DIGEST: usize = 12;
const TOTAL_BYTES: usize = 13;
const TOTAL_CHUNKS: usize = 14;
const MODE: usize = 15;
const META: usize = 16;
const OWN_TOKEN: usize = 17;

/// The longest token that we remember, in bytes. A longer one counts as none: the peer pays no rent for it.
pub(super) const MAX_TOKEN: usize = 256;

/// How much of a long message is read at a time. A shorter one is read whole.
const LOOK: usize = 16 << 10;

/// A message and where its members lie.
pub(super) struct Text {
    pub(super) message: Message,
    pub(super) envelope: Envelope,
    paths: Paths<18>,
}

impl Text {
    /// Reads one frame, or one message of ours.
    ///
    /// # Errors
    /// It is not one JSON object, or a key of the envelope comes twice.
    pub(super) fn read(message: Message) -> Result<Self, Violation> {
        let paths = json::find(message.slices(), &PATHS).map_err(Violation::FrameNotJson)?;
        Self::found(message, paths)
    }

    /// Reads a message of ours, and of a long one only until what we act on was seen: its receiver checks the rest.
    ///
    /// # Errors
    /// What was seen is not the front of one JSON object, or a key of the envelope comes twice.
    pub(super) fn read_front(message: Message) -> Result<Self, Violation> {
        let mut scanner = Scanner::new(Paths::new(&PATHS));
        let mut blocks = message.slices().flat_map(|part| part.chunks(LOOK));
        let paths = loop {
            if message.len() > LOOK && is_enough(scanner.visitor()) {
                break scanner.visitor().clone();
            }
            match blocks.next() {
                Some(block) => scanner.feed(block).map_err(Violation::FrameNotJson)?,
                None => break scanner.finish().map_err(Violation::FrameNotJson)?,
            }
        };
        drop(blocks);
        Self::found(message, paths)
    }

    /// The same for a text that was checked while it arrived.
    pub(super) fn found(message: Message, paths: Paths<18>) -> Result<Self, Violation> {
        let envelope = Envelope::read(&paths)?;
        Ok(Self { message, envelope, paths })
    }

    /// Whether this is `notifications/progress`.
    pub(super) fn is_progress(&self) -> bool {
        self.envelope.kind == Kind::Notification && self.is(self.envelope.method, "notifications/progress")
    }

    /// Whether this is a frame of a transfer, well formed or not.
    pub(super) fn is_part(&self) -> bool {
        self.is_progress() && self.is(self.paths.get(TYPE), "oversized-transfer")
    }

    /// The token in `params.progressToken`: where it lies and its string form.
    pub(super) fn token(&self) -> Option<(Span, String)> {
        self.token_at(TOKEN)
    }

    /// The token in `params._meta.progressToken`, with which a request allows transfers.
    pub(super) fn own_token(&self) -> Option<(Span, String)> {
        self.token_at(OWN_TOKEN)
    }

    /// Where a token can be put into a request that has none, and the text around it.
    pub(super) fn token_place(&self) -> Option<(u64, &'static str, &'static str)> {
        let inside = |found: Found| {
            let at = found.span.start.saturating_add(1);
            // A container that begins with more white space than this is no real one.
            let front = self.message.read(Span { start: at, end: at.saturating_add(4096) });
            let first = front.iter().find(|byte| !byte.is_ascii_whitespace())?;
            (found.kind == Json::Object).then_some((at, *first == b'}'))
        };
        match (self.envelope.params, self.paths.get(META), self.paths.get(OWN_TOKEN)) {
            (_, _, Some(_)) => None,
            (_, Some(meta), None) => {
                let (at, empty) = inside(meta)?;
                Some((at, r#""progressToken":"#, if empty { "" } else { "," }))
            }
            (Some(params), None, None) => {
                let (at, empty) = inside(params)?;
                Some((at, r#""_meta":{"progressToken":"#, if empty { "}" } else { "}," }))
            }
            (None, None, None) => {
                let at = self.envelope.method?.span.end;
                Some((at, r#","params":{"_meta":{"progressToken":"#, "}}"))
            }
        }
    }

    /// The transfer frame that this is. `None` when it names no transfer.
    pub(super) fn part(&self) -> Option<Part<'_>> {
        let token = self.token()?.1;
        let progress = self.found_at(PROGRESS).and_then(|raw| json::number(&raw).to_u64());
        Some(Part { token, progress, starts: self.is(self.paths.get(FRAME_TYPE), "start"), body: self.body() })
    }

    fn body(&self) -> Result<Body<'_>, Violation> {
        if let Some(twice) = (TOKEN..=MODE).find(|i| self.paths.repeated(*i)) {
            let name = PATHS.get(twice).and_then(|path| path.last()).copied().unwrap_or_default();
            return Err(Violation::DuplicateKey(name));
        }
        let kind = self.paths.get(FRAME_TYPE);
        if self.is(kind, "chunk") {
            let data = self.paths.get(DATA).filter(|data| data.kind == Json::String).ok_or(Violation::DataMissing)?;
            let inside = Span { start: data.span.start.saturating_add(1), end: data.span.end.saturating_sub(1) };
            return Ok(Body::Chunk(self.message.read(inside)));
        }
        if self.is(kind, "start") {
            return self.start().map(Body::Start);
        }
        let plain = [("accept", Body::Accept), ("end", Body::End), ("abort", Body::Abort)];
        Ok(plain.into_iter().find(|(name, _)| self.is(kind, name)).map_or(Body::Unknown, |(_, body)| body))
    }

    fn start(&self) -> Result<Start, Violation> {
        let mode = self.paths.get(MODE);
        if mode.is_some() && !self.is(mode, "render") {
            return Err(Violation::CompletionModeUnknown);
        }
        let digest = self.found_at(DIGEST).and_then(|raw| digest(&raw)).ok_or(Violation::DigestInvalid)?;
        let total = |i| self.found_at(i).and_then(|raw| positive(&raw)).ok_or(Violation::TotalsInvalid);
        Ok(Start { digest, bytes: total(TOTAL_BYTES)?, chunks: total(TOTAL_CHUNKS)? })
    }

    fn token_at(&self, i: usize) -> Option<(Span, String)> {
        let found = self.paths.get(i)?;
        let raw = self.message.read(found.span);
        let text = match found.kind {
            Json::String => json::string(&raw)?.into_owned(),
            Json::Number => match json::number(&raw) {
                Number::Int(value) => value.to_string(),
                _ => String::from_utf8(raw.into_owned()).ok()?,
            },
            _ => return None,
        };
        (text.len() <= MAX_TOKEN).then_some((found.span, text))
    }

    fn found_at(&self, i: usize) -> Option<Cow<'_, [u8]>> {
        self.paths.get(i).map(|found| self.message.read(found.span))
    }

    fn is(&self, found: Option<Found>, want: &str) -> bool {
        found.is_some_and(|found| json::string_eq(&self.message.read(found.span), want))
    }
}

/// One frame of a transfer.
pub(super) struct Part<'a> {
    /// Which transfer, in string form.
    pub(super) token: String,
    /// Its place; `None` when it has none that is usable.
    pub(super) progress: Option<u64>,
    /// Whether it is a `start`, well formed or not.
    pub(super) starts: bool,
    /// What it says, or the rule that it breaks.
    pub(super) body: Result<Body<'a>, Violation>,
}

/// A chunk that may be one: whether `inside` is the inside of a string is not known yet.
pub(super) struct QuickChunk<'a> {
    pub(super) token: &'a str,
    pub(super) at: u64,
    pub(super) inside: &'a [u8],
}

/// Reads a chunk written exactly as we and the official TypeScript SDK write it; `None` means look closer.
///
/// If `inside` unescapes, the frame ends where it seems to: the inside of a string has no bare quote.
pub(super) fn quick_chunk(frame: &[u8]) -> Option<QuickChunk<'_>> {
    let rest = frame.strip_prefix(HEAD.as_bytes())?;
    let end = rest.iter().take(MAX_TOKEN.saturating_add(1)).position(|&byte| byte == b'"' || byte == b'\\')?;
    let (token, rest) = rest.split_at_checked(end)?;
    let rest = rest.strip_prefix(PROGRESS_KEY.as_bytes())?;
    let (digits, rest) = rest.split_at_checked(rest.iter().take(20).position(|&byte| byte == b',')?)?;
    let inside = rest.strip_prefix(CVM.as_bytes())?.strip_prefix(CHUNK.as_bytes())?;
    let inside = inside.strip_suffix(CHUNK_END.as_bytes())?;
    let token = std::str::from_utf8(token).ok().filter(|token| !token.contains(char::is_control))?;
    Some(QuickChunk { token, at: json::number(digits).to_u64()?, inside })
}

/// What a frame of a transfer says.
pub(super) enum Body<'a> {
    Start(Start),
    Accept,
    /// The inside of the string `data`, still escaped.
    Chunk(Cow<'a, [u8]>),
    End,
    Abort,
    /// A frame type of a later version.
    Unknown,
}

/// What a `start` declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) digest: [u8; 32],
    pub(super) bytes: u64,
    pub(super) chunks: u64,
}

const HEAD: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":""#;
const PROGRESS_KEY: &str = r#"","progress":"#;
const CVM: &str = r#","cvm":{"type":"oversized-transfer","frameType":""#;
const CHUNK: &str = r#"chunk","data":""#;
const CHUNK_END: &str = r#""}}}"#;

/// Writes frames, in memory that is used again once the link has dropped a frame.
#[derive(Debug, Default)]
pub(super) struct Writer(BytesMut);

impl Writer {
    /// A chunk; `data` writes the inside of its string.
    pub(super) fn chunk<T>(
        &mut self,
        token: &str,
        at: u64,
        room: u64,
        data: impl FnOnce(&mut BytesMut) -> T,
    ) -> (Bytes, T) {
        self.0.reserve(len_usize(room));
        self.head(token, at, CHUNK);
        let result = data(&mut self.0);
        self.0.put_slice(CHUNK_END.as_bytes());
        (self.take(), result)
    }

    pub(super) fn start(&mut self, token: &str, at: u64, start: &Start) -> Bytes {
        self.head(token, at, r#"start","completionMode":"render","digest":"sha256:"#);
        for byte in start.digest {
            self.put(format_args!("{byte:02x}"));
        }
        self.put(format_args!(r#"","totalBytes":{},"totalChunks":{}}}}}}}"#, start.bytes, start.chunks));
        self.take()
    }

    pub(super) fn accept(&mut self, token: &str, at: u64) -> Bytes {
        self.head(token, at, r#"accept"}}}"#);
        self.take()
    }

    pub(super) fn end(&mut self, token: &str, at: u64) -> Bytes {
        self.head(token, at, r#"end"}}}"#);
        self.take()
    }

    pub(super) fn abort(&mut self, token: &str, at: u64, reason: &str) -> Bytes {
        self.head(token, at, r#"abort","reason":""#);
        json::escape_into(&mut self.0, reason.as_bytes());
        self.0.put_slice(br#""}}}"#);
        self.take()
    }

    /// The token goes out as a string, as the official SDKs write it.
    fn head(&mut self, token: &str, at: u64, kind: &str) {
        self.0.put_slice(HEAD.as_bytes());
        json::escape_into(&mut self.0, token.as_bytes());
        self.put(format_args!("{PROGRESS_KEY}{at}{CVM}{kind}"));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to memory that grows does not fail.
        let _ = self.0.write_fmt(text);
    }

    fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

/// Whether a message's kind, id and token are known: those of a response, or of a request that has a token.
fn is_enough(paths: &Paths<18>) -> bool {
    let Ok(envelope) = Envelope::read(paths) else {
        return false;
    };
    let is_whole = |found: Option<Found>| found.is_some_and(|found| found.span.end > found.span.start);
    let rest = match envelope.kind {
        Kind::Response => true,
        Kind::Request => is_whole(envelope.method) && is_whole(paths.get(OWN_TOKEN)),
        _ => false,
    };
    rest && is_whole(envelope.id)
}

/// Reads `"sha256:…"`.
fn digest(raw: &[u8]) -> Option<[u8; 32]> {
    let text = json::string(raw)?;
    let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.is_ascii())?;
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(0)? << 4 | digit(1)?;
    }
    Some(digest)
}

/// A positive integer in any spelling. One that no memory could hold counts as the largest.
fn positive(raw: &[u8]) -> Option<u64> {
    match json::number(raw) {
        Number::Int(value) if value > 0 => Some(u64::try_from(value).unwrap_or(u64::MAX)),
        Number::Huge { negative: false } => Some(u64::MAX),
        _ => None,
    }
}
