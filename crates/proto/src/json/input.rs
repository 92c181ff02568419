//! What the scanner reads from, and the containers that it is in.

use super::check::{Fault, MAX_DEPTH, State};
use super::special::plain_len;

/// A piece, and how far it was read.
pub(super) struct Input<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Input<'a> {
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

/// The open containers, a bit each, the innermost lowest: 1 is an object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nest {
    bits: u128,
    depth: usize,
}

impl Nest {
    #[inline(always)]
    pub(super) const fn depth(&self) -> usize {
        self.depth
    }

    #[inline(always)]
    pub(super) const fn in_object(&self) -> bool {
        self.bits & 1 == 1
    }

    #[inline(always)]
    pub(super) fn push(&mut self, object: bool) -> Result<(), Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::TooDeep);
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
    }
}
