//! A text of a completed turn, read in pieces: the result of a call, or what a person has said.
//!
//! A turn is one JSON text in a row of the log, and may be far longer than anybody wants to hold. It is scanned once, piece by
//! piece: each long string in it is replaced by a short placeholder, and its place is noted. What is left is short, and is
//! parsed as any turn; so what a result reads like is decided where it always is. A placeholder in the text that comes of it
//! stands for the string, which is read from the row when it is wanted.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use ahp_types::state::{Message, ResponsePart, Turn};
use bytes::Bytes;

use super::ContentError;
use crate::endpoint::AnswerMemory;
use crate::endpoint::memory::Reservation;
use crate::host::new_id;
use crate::lock::lock;
use crate::size::to_u64;
use crate::state::{State, TurnRow};

/// How much of a row is read at once. The log finds the place of a piece by its distance from the row's beginning.
const WINDOW: usize = 1 << 20;

/// Longer strings are replaced by placeholders.
const LONG: usize = 1 << 10;

/// About how long the pieces of a long string are.
const PIECE: usize = 64 << 10;

/// How much memory is reserved at once for what is left of a turn: it is there as text and parsed.
const STEP: usize = 1 << 20;
const COPIES: usize = 3;

/// A text of a completed turn.
#[derive(Debug)]
pub(super) struct TurnText {
    row: TurnJson,
    segments: Vec<Segment>,
    size: u64,
    crc: u32,
}

/// A part of a text.
#[derive(Debug)]
enum Segment {
    Short(Bytes),
    Long(LongString),
}

/// A long string of a row.
#[derive(Debug, Clone, Default)]
struct LongString {
    pieces: Vec<Piece>,
    size: u64,
    crc: u32,
}

/// A piece of a long string: where it is in the row, escaped as it is there, and where it is in the string.
#[derive(Debug, Clone)]
struct Piece {
    raw: Range<usize>,
    start: u64,
    size: u64,
}

/// The JSON of a turn.
#[derive(Debug)]
struct TurnJson {
    state: Arc<State>,
    chat: String,
    turn: String,
    place: Mutex<TurnRow>,
    /// What was read last, and where it is.
    window: Mutex<(usize, Bytes)>,
}

impl TurnText {
    /// Finds a text in a completed turn. `find` finds it in the turn's message and parts.
    pub(super) async fn find(
        state: &Arc<State>,
        memory: &AnswerMemory,
        chat: &str,
        turn: &str,
        find: impl Fn(&Message, &[ResponsePart]) -> Option<String> + Send + 'static,
    ) -> Result<Self, ContentError> {
        let place = state.find_row(chat, turn).await?.ok_or(ContentError::NotFound)?;
        let row = TurnJson {
            state: Arc::clone(state),
            chat: chat.to_owned(),
            turn: turn.to_owned(),
            place: Mutex::new(place),
            window: Mutex::default(),
        };
        // It is there until the turn is parsed.
        let mut reservations = vec![memory.reserve(STEP).await?];
        let scanner = row.scan(memory, &mut reservations).await?;
        let segments = move || {
            let Scanner { short, nonce, long, .. } = scanner;
            let turn: Turn = serde_json::from_slice(&short).map_err(|error| ContentError::Failed(error.to_string()))?;
            let text = find(&turn.message, &turn.response_parts).ok_or(ContentError::NotFound)?;
            Ok::<_, ContentError>(segments(&text, &nonce, &long))
        };
        let parsed = tokio::task::spawn_blocking(segments).await;
        let segments = parsed.map_err(|error| ContentError::Failed(error.to_string()))??;
        drop(reservations);
        let (mut size, mut crc) = (0_u64, 0);
        for segment in &segments {
            let (own, sum) = match segment {
                Segment::Short(text) => (to_u64(text.len()), crc32c::crc32c(text)),
                Segment::Long(string) => (string.size, string.crc),
            };
            crc = crc32c::crc32c_combine(crc, sum, usize::try_from(own).unwrap_or(usize::MAX));
            size = size.saturating_add(own);
        }
        Ok(Self { row, segments, size, crc })
    }

    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// The CRC-32C of the text.
    pub(super) const fn crc(&self) -> u32 {
        self.crc
    }

    /// The first bytes of a range of the text, at least one if there are any.
    pub(super) async fn read(&self, range: Range<u64>) -> Result<Bytes, ContentError> {
        let mut begin = 0_u64;
        for segment in &self.segments {
            let size = match segment {
                Segment::Short(text) => to_u64(text.len()),
                Segment::Long(string) => string.size,
            };
            let end = begin.saturating_add(size);
            if range.start < end {
                let inside = range.start.saturating_sub(begin)..range.end.min(end).saturating_sub(begin);
                return match segment {
                    Segment::Short(text) => Ok(part(text, inside)),
                    Segment::Long(string) => self.row.piece(string, inside).await,
                };
            }
            begin = end;
        }
        Ok(Bytes::new())
    }
}

impl TurnJson {
    /// Reads the row from its beginning to its end, and notes what is long.
    async fn scan(&self, memory: &AnswerMemory, reservations: &mut Vec<Reservation>) -> Result<Scanner, ContentError> {
        let mut scanner = Scanner::new();
        let mut at = 0_usize;
        loop {
            let bytes = self.bytes(at..at.saturating_add(WINDOW)).await?;
            if bytes.is_empty() {
                return if scanner.is_damaged { Err(damaged()) } else { Ok(scanner) };
            }
            at = at.saturating_add(bytes.len());
            // On this thread: a piece takes about a millisecond.
            scanner.feed(&bytes);
            tokio::task::yield_now().await;
            while scanner.held().saturating_mul(COPIES) > reservations.len().saturating_mul(STEP) {
                reservations.push(memory.reserve(STEP).await?);
            }
        }
    }

    /// The first bytes of a range of a long string.
    async fn piece(&self, string: &LongString, range: Range<u64>) -> Result<Bytes, ContentError> {
        let at = string.pieces.partition_point(|piece| piece.start.saturating_add(piece.size) <= range.start);
        let Some(piece) = string.pieces.get(at) else { return Ok(Bytes::new()) };
        let (mut raw, mut from) = (Vec::new(), piece.raw.start);
        while from < piece.raw.end {
            let bytes = self.windowed(from..piece.raw.end).await?;
            if bytes.is_empty() {
                return Err(damaged());
            }
            from = from.saturating_add(bytes.len());
            raw.extend_from_slice(&bytes);
        }
        let text = Bytes::from(unescaped(&raw).ok_or_else(damaged)?);
        Ok(part(&text, range.start.saturating_sub(piece.start)..range.end.saturating_sub(piece.start)))
    }

    /// Some bytes of the row, from what was read last if they are there.
    async fn windowed(&self, range: Range<usize>) -> Result<Bytes, ContentError> {
        let known = || {
            let (start, bytes) = &*lock(&self.window);
            let from = range.start.checked_sub(*start).filter(|from| *from < bytes.len())?;
            Some(bytes.slice(from..range.end.saturating_sub(*start).min(bytes.len())))
        };
        if let Some(bytes) = known() {
            return Ok(bytes);
        }
        let bytes = self.bytes(range.start..range.start.saturating_add(WINDOW)).await?;
        *lock(&self.window) = (range.start, bytes);
        Ok(known().unwrap_or_default())
    }

    /// Some bytes of the row. If rows were removed meanwhile, the turn is looked for again.
    async fn bytes(&self, range: Range<usize>) -> Result<Bytes, ContentError> {
        loop {
            let place = *lock(&self.place);
            if let Some(bytes) = self.state.row_bytes(&self.chat, place, range.clone()).await? {
                return Ok(bytes);
            }
            let found = self.state.find_row(&self.chat, &self.turn).await?.ok_or(ContentError::NotFound)?;
            if found == place {
                return Err(ContentError::NotFound);
            }
            *lock(&self.place) = found;
        }
    }
}

/// Follows the JSON of a turn, and takes long strings out of it.
struct Scanner {
    /// What is left, with placeholders.
    short: Vec<u8>,
    /// What placeholders begin with: nobody can have written it before.
    nonce: String,
    long: Vec<LongString>,
    /// How many bytes of the row were taken.
    at: usize,
    inside: Inside,
    is_damaged: bool,
}

/// Whether the scanner is inside of a string.
enum Inside {
    None,
    String(OpenString),
}

/// A string that has begun.
#[derive(Default)]
struct OpenString {
    /// What was taken since the last piece.
    raw: Vec<u8>,
    /// Its pieces, once it is known to be long.
    long: Option<LongString>,
    escape: Escape,
    /// Whether the last escape was the first half of a pair.
    is_half: bool,
}

/// How far an escape has come.
#[derive(Default, Clone, Copy)]
enum Escape {
    #[default]
    None,
    Begun,
    Hex {
        left: u8,
        code: u16,
    },
}

impl Scanner {
    fn new() -> Self {
        let nonce = format!("long-string:{}:", new_id());
        Self { short: Vec::new(), nonce, long: Vec::new(), at: 0, inside: Inside::None, is_damaged: false }
    }

    /// How many bytes it holds.
    fn held(&self) -> usize {
        let pieces: usize = self.long.iter().map(|string| string.pieces.len()).sum();
        self.short.len().saturating_add(pieces.saturating_mul(size_of::<Piece>()))
    }

    fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match std::mem::replace(&mut self.inside, Inside::None) {
                Inside::None => {
                    self.short.push(*byte);
                    if *byte == b'"' {
                        self.inside = Inside::String(OpenString::default());
                    }
                }
                Inside::String(string) if *byte == b'"' && string.is_between() => self.end(string),
                Inside::String(mut string) => {
                    if string.may_be_cut_before(*byte) && string.raw.len() >= string.max_raw() {
                        self.is_damaged |= !string.cut(self.at);
                    }
                    string.take(*byte);
                    self.inside = Inside::String(string);
                }
            }
            self.at = self.at.saturating_add(1);
        }
    }

    /// A string has ended.
    fn end(&mut self, mut string: OpenString) {
        if string.long.is_some() {
            self.is_damaged |= !string.cut(self.at);
        }
        match string.long {
            None => self.short.extend_from_slice(&string.raw),
            Some(long) => {
                self.short.extend_from_slice(format!("{}{};", self.nonce, self.long.len()).as_bytes());
                self.long.push(long);
            }
        }
        self.short.push(b'"');
    }
}

impl OpenString {
    const fn is_between(&self) -> bool {
        matches!(self.escape, Escape::None)
    }

    /// Before a first byte of a character that does not belong to the one before.
    const fn may_be_cut_before(&self, byte: u8) -> bool {
        self.is_between() && !self.is_half && byte & 0xC0 != 0x80
    }

    /// How long a piece is: the first one decides whether the string is long.
    const fn max_raw(&self) -> usize {
        if self.long.is_some() { PIECE } else { LONG }
    }

    fn take(&mut self, byte: u8) {
        self.raw.push(byte);
        self.escape = match self.escape {
            Escape::None => {
                self.is_half &= byte == b'\\';
                if byte == b'\\' { Escape::Begun } else { Escape::None }
            }
            Escape::Begun if byte == b'u' => Escape::Hex { left: 4, code: 0 },
            Escape::Begun => Escape::None,
            Escape::Hex { left, code } => {
                let digit = char::from(byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok()).unwrap_or(0);
                let code = code.wrapping_shl(4) | digit;
                self.is_half = left == 1 && (0xD800..0xDC00).contains(&code);
                if left == 1 { Escape::None } else { Escape::Hex { left: left.saturating_sub(1), code } }
            }
        };
    }

    /// Makes a piece of what was taken, which ends before this place in the row. Says whether it can be read.
    fn cut(&mut self, end: usize) -> bool {
        let raw = std::mem::take(&mut self.raw);
        let Some(text) = unescaped(&raw) else { return false };
        let long = self.long.get_or_insert_default();
        let size = to_u64(text.len());
        let start = long.size;
        long.pieces.push(Piece { raw: end.saturating_sub(raw.len())..end, start, size });
        long.size = start.saturating_add(size);
        long.crc = crc32c::crc32c_append(long.crc, text.as_bytes());
        true
    }
}

/// A text with placeholders, as its parts.
fn segments(text: &str, nonce: &str, long: &[LongString]) -> Vec<Segment> {
    let short = |text: &str| Segment::Short(Bytes::copy_from_slice(text.as_bytes()));
    let mut parts = text.split(nonce);
    let mut segments = vec![short(parts.next().unwrap_or_default())];
    for part in parts {
        let (number, rest) = part.split_once(';').unwrap_or((part, ""));
        let string = number.parse().ok().and_then(|number: usize| long.get(number));
        segments.extend(string.cloned().map(Segment::Long));
        segments.push(short(rest));
    }
    segments
}

/// The text of a string's inside, as JSON writes it.
fn unescaped(raw: &[u8]) -> Option<String> {
    let quoted = [b"\"".as_slice(), raw, b"\""].concat();
    serde_json::from_slice(&quoted).ok()
}

fn part(text: &Bytes, range: Range<u64>) -> Bytes {
    let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(text.len());
    text.slice(at(range.start)..at(range.end).max(at(range.start)))
}

fn damaged() -> ContentError {
    ContentError::Failed("a record of the host's log cannot be read".to_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// What the scanner makes of a JSON text that comes in pieces of this length.
    fn scanned(json: &str, step: usize) -> (Value, Scanner) {
        let mut scanner = Scanner::new();
        json.as_bytes().chunks(step).for_each(|piece| scanner.feed(piece));
        assert!(!scanner.is_damaged);
        (serde_json::from_slice(&scanner.short).unwrap(), scanner)
    }

    /// The whole of a text with placeholders, read back from the JSON.
    fn whole(json: &str, text: &str, scanner: &Scanner) -> String {
        let mut found = String::new();
        for segment in segments(text, &scanner.nonce, &scanner.long) {
            match segment {
                Segment::Short(text) => found.push_str(std::str::from_utf8(&text).unwrap()),
                Segment::Long(string) => {
                    for piece in &string.pieces {
                        assert_eq!(piece.start, found.len() as u64 - (found.len() as u64 - piece.start));
                        let text = unescaped(&json.as_bytes()[piece.raw.clone()]).unwrap();
                        assert_eq!(piece.size, text.len() as u64);
                        found.push_str(&text);
                    }
                }
            }
        }
        found
    }

    #[test]
    fn long_strings_are_taken_out_and_read_back_whatever_is_in_them() {
        let long = "a\"\\\n\u{1}ü漢🚢".repeat(9_000);
        let json = json!({"id": "t", "long": long, "short": "s\"", "list": [long, {"x": long.repeat(2)}]}).to_string();
        for step in [1, 7, 1_000, 1 << 20] {
            let (value, scanner) = scanned(&json, step);
            assert_eq!((&value["id"], &value["short"]), (&json!("t"), &json!("s\"")));
            assert!(scanner.short.len() < 1_000, "{}", scanner.short.len());
            assert!(whole(&json, value["long"].as_str().unwrap(), &scanner) == long);
            assert!(whole(&json, value["list"][1]["x"].as_str().unwrap(), &scanner) == long.repeat(2));
            assert_eq!(scanner.long[0].crc, crc32c::crc32c(long.as_bytes()));
            assert!(scanner.long[0].pieces.iter().all(|piece| piece.raw.len() <= PIECE + 12));
        }
    }

    #[test]
    fn a_pair_of_escapes_is_never_cut() {
        let pairs = "\\ud83d\\udea2".repeat(20_000);
        for before in 0..12 {
            let json = format!(r#"{{"x":"{}{pairs}"}}"#, "a".repeat(before));
            let (value, scanner) = scanned(&json, 999);
            let text = whole(&json, value["x"].as_str().unwrap(), &scanner);
            assert!(text == format!("{}{}", "a".repeat(before), "🚢".repeat(20_000)));
        }
    }

    proptest! {
        #[test]
        fn any_strings_are_read_back(
            text in "(\\PC|[\"\\\\\n\u{0}]){0,40}", times in 1_usize..200, step in 1_usize..5_000,
        ) {
            let long = text.repeat(times);
            let json = json!([long, {"k": [long]}]).to_string();
            let (value, scanner) = scanned(&json, step);
            prop_assert_eq!(whole(&json, value[0].as_str().unwrap(), &scanner), long.clone());
            prop_assert_eq!(whole(&json, value[1]["k"][0].as_str().unwrap(), &scanner), long);
        }
    }
}
