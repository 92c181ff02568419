//! Finds where the values of a few fixed paths lie, in one pass and without allocating.

use super::check::{JsonError, Scanner};
use super::visit::{ValueKind, Visit};

/// The keys that lead from the root object to a value: at most 4, of at most 32 bytes each.
pub type Path = &'static [&'static str];

/// Most paths that one pass can look for; a bit each.
const MAX_PATHS: usize = 32;

/// Most keys in a path.
const MAX_KEYS: usize = 4;

/// A stretch of a text, by offsets from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// Just past the last byte.
    pub end: u64,
}

/// A value that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What sort of value it is.
    pub kind: ValueKind,
    /// Where it lies, quotes and brackets included.
    pub span: Span,
}

/// A visitor that remembers the spans of fixed paths. Only members of objects count: an array on the way matches nothing.
#[derive(Clone, Debug)]
pub struct Paths<const N: usize> {
    paths: &'static [Path; N],
    /// For each number of keys, the paths that have so many.
    of_len: [u32; MAX_KEYS + 1],
    /// For each depth, the paths on which the value now open there lies.
    live: [u32; MAX_KEYS + 1],
    /// The number of keys in the longest path.
    longest: usize,
    /// Paths whose value is open.
    open: u32,
    seen: u32,
    repeated: u32,
    root: Option<ValueKind>,
    found: [Option<Found>; N],
}

impl<const N: usize> Paths<N> {
    /// Looks for `paths`. One with too many keys or with too long a key is never found.
    #[must_use]
    pub fn new(paths: &'static [Path; N]) -> Self {
        const { assert!(N <= MAX_PATHS, "a pass looks for at most 32 paths") };
        let mut of_len = [0; MAX_KEYS + 1];
        let (mut all, mut longest, mut bit) = (0, 0, 1_u32);
        for path in paths {
            if let Some(of_len) = of_len.get_mut(path.len()) {
                *of_len |= bit;
                all |= bit;
                longest = path.len().max(longest);
            }
            bit <<= 1;
        }
        let live = [all, 0, 0, 0, 0];
        Self { paths, of_len, live, longest, open: 0, seen: 0, repeated: 0, root: None, found: [None; N] }
    }

    /// The first value at path `i`, if there was one.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<Found> {
        *self.found.get(i)?
    }

    /// Whether path `i` came more than once, by duplicate keys on the way; escaped ones count too.
    #[must_use]
    pub fn repeated(&self, i: usize) -> bool {
        i < N && self.repeated >> i & 1 == 1
    }

    /// What sort of value the whole text is.
    #[must_use]
    pub fn root(&self) -> Option<ValueKind> {
        self.root
    }

    #[cold]
    fn record(&mut self, hits: u32, found: Found) {
        self.repeated |= hits & self.seen;
        let fresh = hits & !self.seen;
        self.seen |= fresh;
        self.open |= fresh;
        for i in bits(fresh) {
            if let Some(slot) = self.found.get_mut(i) {
                *slot = Some(found);
            }
        }
    }

    #[cold]
    fn close(&mut self, ended: u32, at: u64) {
        self.open &= !ended;
        for i in bits(ended) {
            if let Some(Some(found)) = self.found.get_mut(i) {
                found.span.end = at;
            }
        }
    }
}

impl<const N: usize> Visit for Paths<N> {
    #[inline]
    fn depth(&self) -> usize {
        self.longest
    }

    #[inline]
    fn key(&mut self, depth: usize, key: Option<&[u8]>) {
        let Some([parent, live]) = self.live.get_mut(depth.wrapping_sub(1)..=depth) else { return };
        if *parent == 0 {
            return;
        }
        *live = bits(*parent)
            .filter(|&i| {
                let name = self.paths.get(i).and_then(|path| path.get(depth.wrapping_sub(1)));
                name.map(|name| name.as_bytes()) == key
            })
            .fold(0, |live, i| live | 1 << i);
    }

    #[inline]
    fn begin(&mut self, depth: usize, kind: ValueKind, at: u64) {
        if depth == 0 {
            self.root = Some(kind);
        }
        if let Some(below) = self.live.get_mut(depth.wrapping_add(1)) {
            *below = 0;
        }
        let (Some(live), Some(ends)) = (self.live.get(depth), self.of_len.get(depth)) else { return };
        let hits = live & ends;
        if hits != 0 {
            self.record(hits, Found { kind, span: Span { start: at, end: at } });
        }
    }

    #[inline]
    fn end(&mut self, depth: usize, at: u64) {
        if self.open == 0 {
            return;
        }
        let ended = self.open & self.of_len.get(depth).copied().unwrap_or(0);
        if ended != 0 {
            self.close(ended, at);
        }
    }
}

/// Checks a text in pieces and finds `paths` in it.
pub fn find<'a, const N: usize>(
    parts: impl IntoIterator<Item = &'a [u8]>,
    paths: &'static [Path; N],
) -> Result<Paths<N>, JsonError> {
    let mut scanner = Scanner::new(Paths::new(paths));
    for part in parts {
        scanner.feed(part)?;
    }
    scanner.finish()
}

/// The positions of the bits that are set, lowest first.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let i = usize::try_from(mask.trailing_zeros()).ok().filter(|_| mask != 0)?;
        mask &= mask.wrapping_sub(1);
        Some(i)
    })
}
