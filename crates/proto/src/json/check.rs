//! Checks that bytes are exactly one JSON value, in any number of pieces.

use thiserror::Error;

use super::input::{Nest, ScanInput};
use super::key::Capture;
use super::text::{hex, short_escape};
use super::visit::{ValueKind, Visit};
use crate::message::len64;

/// Why bytes are not one JSON text, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fault} at byte {offset}")]
pub struct JsonError {
    /// What is wrong.
    pub fault: Fault,
    /// Bytes before that, from the first one fed.
    pub offset: u64,
}

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A byte that the grammar does not allow there.
    #[error("not JSON")]
    Syntax,
    /// An array or object is nested deeper than the limit.
    #[error("nested too deep")]
    TooDeep,
    /// One value was complete, and another one begins.
    #[error("a second JSON value")]
    SecondValue,
    /// The text ended before its value did.
    #[error("the JSON text ends too early")]
    Unfinished,
    /// Bytes that are not UTF-8.
    #[error("not UTF-8")]
    Utf8,
}

/// A push checker of the grammar of RFC 8259: feed it pieces, then finish.
///
/// The verdict does not depend on how the text was cut. Bytes inside of strings are not checked to be UTF-8; that is
/// the work of [`Utf8`](super::Utf8). The check is iterative: what it holds is a bit for each open array or object.
#[derive(Clone, Debug)]
pub struct Scanner<V = ()> {
    visit: V,
    offset: u64,
    state: State,
    nest: Nest,
    /// The key that we are in, as far as it cannot be borrowed from the piece.
    capture: Capture,
    error: Option<JsonError>,
}

impl<V: Visit> Scanner<V> {
    /// A checker without a depth limit. For a text that was checked before, or that is so short that a bit of memory for each of its bytes
    /// does not matter.
    pub fn new(visit: V) -> Self {
        Self::with_max_depth(visit, u32::MAX)
    }

    /// A checker that refuses an array or object inside of `max_depth` others.
    pub fn with_max_depth(visit: V, max_depth: u32) -> Self {
        Self {
            visit,
            offset: 0,
            state: State::Value,
            nest: Nest::new(max_depth),
            capture: Capture::default(),
            error: None,
        }
    }

    /// Bytes found good so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What has been seen so far.
    pub const fn visitor(&self) -> &V {
        &self.visit
    }

    /// How many arrays and objects may be open.
    pub(crate) const fn max_depth(&self) -> u32 {
        self.nest.limit()
    }

    /// Bytes that it has allocated for the arrays and objects that are open.
    pub(crate) fn allocated(&self) -> usize {
        self.nest.allocated()
    }

    /// Checks the next piece. After an error, every further piece gets the same one.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), JsonError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut input = ScanInput { bytes, at: 0 };
        let result = self.run(&mut input);
        self.offset = self.offset_of(&input);
        self.error = result.err().map(|fault| JsonError { fault, offset: self.offset });
        self.error.map_or(Ok(()), Err)
    }

    /// The visitor, if exactly one value came.
    pub fn finish(mut self) -> Result<V, JsonError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if let State::Number(Part::Zero | Part::Digits | Part::Fraction | Part::Exponent) = self.state {
            self.state = self.end(&ScanInput { bytes: &[], at: 0 });
        }
        if self.state == State::Done {
            Ok(self.visit)
        } else {
            Err(JsonError { fault: Fault::Unfinished, offset: self.offset })
        }
    }

    /// Takes all of `input`, or stops at the byte that is at fault.
    ///
    /// Each state takes as much as it can: a whole token, and after a key its colon too. All that is not rare is inlined
    /// here, so that `input` stays in registers.
    fn run(&mut self, input: &mut ScanInput<'_>) -> Result<(), Fault> {
        let mut state = self.state;
        while let Some(byte) = input.peek() {
            state = match state {
                State::Value | State::Element => self.value(input, state, byte)?,
                State::Member | State::Key => self.key(input, state, byte)?,
                State::Colon => self.colon(input, byte)?,
                State::Next => self.next(input, byte)?,
                State::Done => self.done(input, byte)?,
                State::Text(role) => self.text(input, role)?,
                State::Escape(role) => self.escape(input, role, byte)?,
                State::Hex(role, left) => self.hex(input, role, left, byte)?,
                State::Word(word, at) => self.rest_of_word(input, word, at)?,
                State::Number(part) => self.number(input, part)?,
            };
        }
        self.state = state;
        Ok(())
    }

    #[inline(always)]
    fn value(&mut self, input: &mut ScanInput<'_>, state: State, byte: u8) -> Result<State, Fault> {
        match byte {
            b'"' => {
                self.begin(input, ValueKind::String);
                input.skip(1);
                self.text(input, StringUse::Value)
            }
            b'{' => {
                self.begin(input, ValueKind::Object);
                self.nest.push(true)?;
                input.skip(1);
                match input.peek() {
                    Some(b'"') => self.key(input, State::Member, b'"'),
                    _ => Ok(State::Member),
                }
            }
            b'[' => {
                self.begin(input, ValueKind::Array);
                self.nest.push(false)?;
                input.skip(1);
                Ok(State::Element)
            }
            b'1'..=b'9' => {
                self.begin(input, ValueKind::Number);
                input.skip(1);
                input.skip_digits();
                match input.peek() {
                    Some(b'.' | b'e' | b'E') | None => self.number(input, Part::Digits),
                    Some(_) => Ok(self.end(input)),
                }
            }
            b'0' | b'-' => {
                self.begin(input, ValueKind::Number);
                input.skip(1);
                self.number(input, if byte == b'-' { Part::Minus } else { Part::Zero })
            }
            b't' => self.word(input, ValueKind::True),
            b'f' => self.word(input, ValueKind::False),
            b'n' => self.word(input, ValueKind::Null),
            b']' if state == State::Element => Ok(self.close(input)),
            _ => input.skip_space(byte, state),
        }
    }

    #[inline(always)]
    fn key(&mut self, input: &mut ScanInput<'_>, state: State, byte: u8) -> Result<State, Fault> {
        match byte {
            b'"' => {
                input.skip(1);
                self.capture.clear();
                self.text(input, StringUse::Key)
            }
            b'}' if state == State::Member => Ok(self.close(input)),
            _ => input.skip_space(byte, state),
        }
    }

    #[inline(always)]
    fn colon(&mut self, input: &mut ScanInput<'_>, byte: u8) -> Result<State, Fault> {
        match byte {
            b':' => {
                input.skip(1);
                Ok(State::Value)
            }
            _ => input.skip_space(byte, State::Colon),
        }
    }

    #[inline(always)]
    fn next(&mut self, input: &mut ScanInput<'_>, byte: u8) -> Result<State, Fault> {
        let object = self.nest.in_object();
        match byte {
            b',' => {
                input.skip(1);
                match input.peek() {
                    _ if !object => Ok(State::Value),
                    Some(b'"') => self.key(input, State::Key, b'"'),
                    _ => Ok(State::Key),
                }
            }
            b'}' if object => Ok(self.close(input)),
            b']' if !object => Ok(self.close(input)),
            _ => input.skip_space(byte, State::Next),
        }
    }

    fn done(&mut self, input: &mut ScanInput<'_>, byte: u8) -> Result<State, Fault> {
        match byte {
            b'"' | b'{' | b'[' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => Err(Fault::SecondValue),
            _ => input.skip_space(byte, State::Done),
        }
    }

    #[inline(always)]
    fn text(&mut self, input: &mut ScanInput<'_>, role: StringUse) -> Result<State, Fault> {
        loop {
            let run = input.take_plain();
            match input.peek() {
                Some(b'"') => {
                    input.skip(1);
                    return Ok(match role {
                        StringUse::Key => self.end_key(input, run),
                        StringUse::Value => self.end(input),
                    });
                }
                Some(b'\\') => {
                    self.gather(role, run);
                    input.skip(1);
                    match input.peek() {
                        Some(byte) if role == StringUse::Value && byte != b'u' => self.escape(input, role, byte)?,
                        _ => return Ok(State::Escape(role)),
                    };
                }
                Some(_) => return Err(Fault::Syntax),
                None => {
                    self.gather(role, run);
                    return Ok(State::Text(role));
                }
            }
        }
    }

    #[inline(always)]
    fn escape(&mut self, input: &mut ScanInput<'_>, role: StringUse, byte: u8) -> Result<State, Fault> {
        if byte != b'u' && short_escape(byte).is_none() {
            return Err(Fault::Syntax);
        }
        input.skip(1);
        self.gather(role, &[b'\\', byte]);
        Ok(if byte == b'u' { State::Hex(role, 4) } else { State::Text(role) })
    }

    fn hex(&mut self, input: &mut ScanInput<'_>, role: StringUse, left: u8, byte: u8) -> Result<State, Fault> {
        hex(byte).ok_or(Fault::Syntax)?;
        input.skip(1);
        self.gather(role, &[byte]);
        Ok(if left > 1 { State::Hex(role, left.wrapping_sub(1)) } else { State::Text(role) })
    }

    #[inline(always)]
    fn word(&mut self, input: &mut ScanInput<'_>, word: ValueKind) -> Result<State, Fault> {
        self.begin(input, word);
        let text = text_of(word);
        if input.rest().starts_with(text) {
            input.skip(text.len());
            return Ok(self.end(input));
        }
        self.rest_of_word(input, word, 0)
    }

    /// A word that is wrong or lies across pieces.
    #[cold]
    fn rest_of_word(&mut self, input: &mut ScanInput<'_>, word: ValueKind, mut at: u8) -> Result<State, Fault> {
        while let Some(&want) = text_of(word).get(usize::from(at)) {
            match input.peek() {
                Some(byte) if byte == want => input.skip(1),
                Some(_) => return Err(Fault::Syntax),
                None => return Ok(State::Word(word, at)),
            }
            at = at.wrapping_add(1);
        }
        Ok(self.end(input))
    }

    #[inline(always)]
    fn number(&mut self, input: &mut ScanInput<'_>, mut part: Part) -> Result<State, Fault> {
        loop {
            if matches!(part, Part::Digits | Part::Fraction | Part::Exponent) {
                input.skip_digits();
            }
            let Some(byte) = input.peek() else { return Ok(State::Number(part)) };
            part = match (part, byte) {
                (Part::Minus, b'0') => Part::Zero,
                (Part::Minus, b'1'..=b'9') => Part::Digits,
                (Part::Zero | Part::Digits, b'.') => Part::Point,
                (Part::Zero | Part::Digits | Part::Fraction, b'e' | b'E') => Part::E,
                (Part::Point, b'0'..=b'9') => Part::Fraction,
                (Part::E, b'+' | b'-') => Part::Sign,
                (Part::E | Part::Sign, b'0'..=b'9') => Part::Exponent,
                (Part::Zero, b'0'..=b'9') | (Part::Minus | Part::Point | Part::E | Part::Sign, _) => {
                    return Err(Fault::Syntax);
                }
                (Part::Zero | Part::Digits | Part::Fraction | Part::Exponent, _) => return Ok(self.end(input)),
            };
            input.skip(1);
        }
    }

    /// A container ends at this byte.
    #[inline(always)]
    fn close(&mut self, input: &mut ScanInput<'_>) -> State {
        input.skip(1);
        self.nest.pop();
        self.end(input)
    }

    /// Whether the visitor sees values at this depth. Most of a large message is deeper, so the code that calls the
    /// visitor is kept out of line.
    #[inline(always)]
    fn is_shown(&self) -> bool {
        self.nest.depth() <= self.visit.depth()
    }

    #[inline(always)]
    fn begin(&mut self, input: &ScanInput<'_>, kind: ValueKind) {
        if self.is_shown() {
            self.show_begin(self.offset_of(input), kind);
        }
    }

    #[cold]
    fn show_begin(&mut self, at: u64, kind: ValueKind) {
        self.visit.begin(self.nest.depth(), kind, at);
    }

    #[inline(always)]
    fn end(&mut self, input: &ScanInput<'_>) -> State {
        if self.is_shown() {
            self.show_end(self.offset_of(input));
        }
        if self.nest.depth() == 0 { State::Done } else { State::Next }
    }

    #[cold]
    fn show_end(&mut self, at: u64) {
        self.visit.end(self.nest.depth(), at);
    }

    /// A key ended with `run`; its colon is taken too if it follows at once.
    #[inline(always)]
    fn end_key(&mut self, input: &mut ScanInput<'_>, run: &[u8]) -> State {
        if self.is_shown() {
            self.show_key(run);
        }
        if input.peek() != Some(b':') {
            return State::Colon;
        }
        input.skip(1);
        State::Value
    }

    #[cold]
    fn show_key(&mut self, run: &[u8]) {
        if self.capture.is_empty() {
            self.visit.key(self.nest.depth(), Some(run));
        } else {
            self.capture.extend(run);
            self.visit.key(self.nest.depth(), self.capture.key().as_deref());
        }
    }

    /// Adds to the captured key, if we are in one that the visitor sees.
    #[inline(always)]
    fn gather(&mut self, role: StringUse, raw: &[u8]) {
        if role == StringUse::Key && self.is_shown() {
            self.capture.extend(raw);
        }
    }

    #[inline(always)]
    fn offset_of(&self, input: &ScanInput<'_>) -> u64 {
        self.offset.saturating_add(len64(input.at))
    }
}

/// How a value that is one word is written.
const fn text_of(word: ValueKind) -> &'static [u8] {
    match word {
        ValueKind::True => b"true",
        ValueKind::False => b"false",
        _ => b"null",
    }
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A value.
    Value,
    /// After `[`: a value or `]`.
    Element,
    /// After `{`: a key or `}`.
    Member,
    /// After a comma in an object: a key.
    Key,
    /// After a key.
    Colon,
    /// After a value in a container: a comma, or its end.
    Next,
    /// After the root value: white space.
    Done,
    /// The rest of a string.
    Text(StringUse),
    /// After a backslash.
    Escape(StringUse),
    /// An escape `\u` of which this many hex digits were read.
    Hex(StringUse, u8),
    /// `true`, `false` or `null`, of which this many bytes were read.
    Word(ValueKind, u8),
    /// The rest of a number.
    Number(Part),
}

/// What a string is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StringUse {
    Key,
    Value,
}

/// The part of a number that was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}
