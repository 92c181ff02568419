//! What the scanner reads from, and the containers that it is in.

use super::check::{Fault, State};
use super::special::plain_len;

/// A piece, and how far it was read.
pub(super) struct ScanInput<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> ScanInput<'a> {
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline(always)]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Callers have seen so many bytes, so this does not pass the end.
    #[inline(always)]
    pub(super) fn skip(&mut self, n: usize) {
        self.at = self.at.wrapping_add(n);
    }

    /// Takes bytes that stand for themselves in a string.
    #[inline(always)]
    pub(super) fn take_plain(&mut self) -> &'a [u8] {
        let rest = self.rest();
        let len = plain_len(rest);
        self.skip(len);
        rest.get(..len).unwrap_or_default()
    }

    #[inline(always)]
    pub(super) fn skip_digits(&mut self) {
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.skip(1);
        }
    }

    /// Skips white space and stays in `state`, or faults because `byte`, the next one, is something else.
    #[inline(always)]
    pub(super) fn skip_space(&mut self, byte: u8, state: State) -> Result<State, Fault> {
        if !is_space(byte) {
            return Err(Fault::Syntax);
        }
        self.skip(1);
        while self.peek().is_some_and(is_space) {
            self.skip(1);
        }
        Ok(state)
    }
}

/// Whether JSON allows `byte` between tokens.
pub(super) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The open containers, a bit each: 1 is an object.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    /// The innermost up to 128, the innermost of all lowest.
    bits: u128,
    /// Those around them. Few texts have any, so that this is small.
    outer: Option<Box<Outer>>,
    depth: u32,
    limit: u32,
}

/// Containers around those in `bits`, 128 at a time.
#[derive(Clone, Debug, Default)]
struct Outer(Vec<u128>);

/// Containers in `bits`.
const WORD: u32 = 128;
/// Words that are allocated at once: a deep text takes little more than it needs.
const WORDS: usize = 16;

impl Nest {
    pub(super) const fn new(limit: u32) -> Self {
        Self { bits: 0, outer: None, depth: 0, limit }
    }

    pub(super) const fn limit(&self) -> u32 {
        self.limit
    }

    #[inline(always)]
    pub(super) fn depth(&self) -> usize {
        usize::try_from(self.depth).unwrap_or(usize::MAX)
    }

    /// Bytes that were allocated.
    pub(super) fn allocated(&self) -> usize {
        let words = |outer: &Outer| outer.0.capacity().saturating_mul(size_of::<u128>());
        self.outer.as_ref().map_or(0, |outer| words(outer).saturating_add(size_of::<Outer>()))
    }

    #[inline(always)]
    pub(super) const fn in_object(&self) -> bool {
        self.bits & 1 == 1
    }

    #[inline(always)]
    pub(super) fn push(&mut self, object: bool) -> Result<(), Fault> {
        if self.depth >= self.limit {
            return Err(Fault::TooDeep);
        }
        if self.depth.is_multiple_of(WORD) && self.depth > 0 {
            self.spill();
        }
        self.bits = self.bits << 1 | u128::from(object);
        self.depth = self.depth.wrapping_add(1);
        Ok(())
    }

    /// Callers are inside of a container.
    #[inline(always)]
    pub(super) fn pop(&mut self) {
        self.bits >>= 1;
        self.depth = self.depth.wrapping_sub(1);
        if self.depth.is_multiple_of(WORD) {
            self.restore();
        }
    }

    #[cold]
    fn spill(&mut self) {
        let Outer(outer) = &mut **self.outer.get_or_insert_default();
        if outer.len() == outer.capacity() {
            outer.reserve_exact(WORDS);
        }
        outer.push(self.bits);
    }

    #[cold]
    fn restore(&mut self) {
        self.bits = self.outer.as_mut().and_then(|outer| outer.0.pop()).unwrap_or_default();
    }
}
