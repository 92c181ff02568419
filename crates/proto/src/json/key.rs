//! An object's key that cannot be borrowed, because it has escapes or lies across two feeds.

use super::text::unescape_into;

/// Most bytes of a key that are gathered, escapes as they are written: no path has a key of more than 32 characters.
const MAX_RAW: usize = 32 * 6;

/// A key as it is written, as far as it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capture {
    raw: [u8; MAX_RAW],
    /// Past the end of `raw` if the key is too long.
    len: usize,
}

impl Default for Capture {
    fn default() -> Self {
        Self { raw: [0; MAX_RAW], len: 0 }
    }
}

impl Capture {
    /// Forgets the last key.
    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// Whether nothing was added yet.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds what comes next.
    pub(super) fn extend(&mut self, run: &[u8]) {
        let end = self.len.saturating_add(run.len());
        if let Some(room) = self.raw.get_mut(self.len..end) {
            room.copy_from_slice(run);
        }
        self.len = end;
    }

    /// What was gathered, unescaped; `None` if it is too long, or has half of a surrogate pair: it equals nothing.
    pub(super) fn key(&self) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        unescape_into(&mut key, self.raw.get(..self.len)?)?;
        Some(key)
    }
}
