//! An object's key that cannot be borrowed, because it has escapes or lies across two feeds.

use super::text::unescaped;

/// Most bytes of a key that are gathered, escapes as they are written: no path has a key of more than 32 characters.
const MAX_RAW: usize = 32 * 6;

/// The part of a key that has arrived, as it is written. Of a key that is too long, only enough is kept to tell that it
/// is too long.
#[derive(Clone, Debug, Default)]
pub(super) struct Capture(Vec<u8>);

impl Capture {
    /// Forgets the last key.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether nothing was added yet.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what comes next.
    pub(super) fn extend(&mut self, run: &[u8]) {
        let left = MAX_RAW.saturating_add(1).saturating_sub(self.0.len());
        self.0.extend(run.iter().take(left));
    }

    /// The key, unescaped. `None` if it is too long, or has half of a surrogate pair: then it equals no key that is searched for.
    pub(super) fn key(&self) -> Option<Vec<u8>> {
        if self.0.len() <= MAX_RAW { unescaped(&self.0) } else { None }
    }
}
