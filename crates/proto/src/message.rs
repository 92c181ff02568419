//! A message as a rope: shared pieces of known total length, cut and joined without copying.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::json::{self, Span};

/// One JSON-RPC text, in pieces. Cloning shares the bytes.
///
/// A received message has a piece for each block that it arrived in. A message to send may be a join of stored rows.
#[derive(Clone, Default)]
pub struct Message {
    /// The only piece, if there is only one. Most frames have one piece, and need no list.
    only: Option<Bytes>,
    parts: Arc<[Bytes]>,
    len: usize,
    /// The message that this is a copy of, if it is sent to many peers.
    shared: Option<Arc<SharedMessage>>,
    /// The depth to which it is nested at most, if it was checked as it arrived.
    checked_depth: Option<u32>,
}

/// A change to a message: one span of it is replaced.
#[derive(Debug, Clone, Default)]
pub(crate) struct Edit(Option<(Span, Bytes)>);

impl Edit {
    /// Replaces `span` by `insert`.
    pub(crate) const fn replace(span: Span, insert: Bytes) -> Self {
        Self(Some((span, insert)))
    }

    /// The message after the change.
    pub(crate) fn apply(&self, message: &Message) -> Message {
        self.0.as_ref().map_or_else(|| message.clone(), |(span, insert)| message.splice(*span, insert.clone()))
    }

    /// The span of a value after the change. `None` if a part of the value, or all of it, was replaced.
    pub(crate) fn moved(&self, value: Span) -> Option<Span> {
        let Some((gone, insert)) = &self.0 else { return Some(value) };
        let past =
            |at: u64| Some(at.checked_sub(gone.end)?.saturating_add(gone.start).saturating_add(len64(insert.len())));
        if value.end <= gone.start {
            Some(value)
        } else if value.start >= gone.end {
            Some(Span { start: past(value.start)?, end: past(value.end)? })
        } else if value.start < gone.start {
            Some(Span { start: value.start, end: past(value.end)? })
        } else {
            None
        }
    }
}

/// A message that is sent to many peers. Its base64 text is made once, when the first of them gets it in segments, and is freed
/// together with the last copy of the message.
pub struct SharedMessage {
    message: Message,
    coded: OnceLock<Bytes>,
    /// The depth to which it is nested at most.
    depth: OnceLock<u64>,
}

impl SharedMessage {
    /// A message that will be sent to many peers.
    #[must_use]
    pub const fn new(message: Message) -> Self {
        Self { message, coded: OnceLock::new(), depth: OnceLock::new() }
    }

    /// The message, for one of the peers.
    #[must_use]
    pub fn message(self: &Arc<Self>) -> Message {
        Message { shared: Some(self.clone()), ..self.message.clone() }
    }
}

impl Message {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, in order.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        self.only.as_ref().map_or(&self.parts, std::slice::from_ref)
    }

    /// The pieces as slices, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts().iter().map(AsRef::as_ref)
    }

    /// The whole text in one piece. Copies it only if it has several.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        if let [only] = self.parts() {
            return only.clone();
        }
        self.parts().concat().into()
    }

    /// The bytes of `span`, borrowed when they lie in one piece. What lies past the end is left out.
    #[must_use]
    pub fn read(&self, span: Span) -> Cow<'_, [u8]> {
        let mut runs = self.runs(span);
        let first = Cow::Borrowed(runs.next().unwrap_or_default());
        runs.fold(first, |mut joined, run| {
            joined.to_mut().extend_from_slice(run);
            joined
        })
    }

    /// The same message with `span` replaced by `insert`; all other bytes are shared, not copied.
    #[must_use]
    pub fn splice(&self, span: Span, insert: Bytes) -> Self {
        let shared = |span| self.cut(span).map(|(part, range)| part.slice(range));
        let (before, after) = (Span { start: 0, end: span.start }, Span { start: span.end, end: u64::MAX });
        shared(before).chain([insert]).chain(shared(after)).collect()
    }

    /// The same message with an owner, such as the grant that its bytes are charged to. The owner is dropped together with the last
    /// of the bytes, whoever holds them. Nothing is copied.
    #[must_use]
    pub fn with_owner<T: Send + Sync + 'static>(&self, owner: &Arc<T>) -> Self {
        let owned = |part: &Bytes| Bytes::from_owner(Owned { bytes: part.clone(), _owner: Arc::clone(owner) });
        self.parts().iter().map(owned).collect()
    }

    /// Its base64 text, if it is sent to many peers. `code` makes it at the first call.
    pub(crate) fn coded(&self, code: impl FnOnce(&Self) -> Bytes) -> Option<&Bytes> {
        self.shared.as_ref().map(|shared| shared.coded.get_or_init(|| code(&shared.message)))
    }

    /// The same message, after it was checked to be nested at most `depth` deep.
    #[must_use]
    pub(crate) fn checked(self, depth: u32) -> Self {
        Self { checked_depth: Some(depth), ..self }
    }

    /// Checks that its arrays and objects are nested at most `limit` deep, if it is JSON. That costs next to nothing if it has few of
    /// them, or was checked as it arrived.
    ///
    /// # Errors
    /// They are nested deeper. The error is how deep.
    pub fn check_depth(&self, limit: u32) -> Result<(), u64> {
        let most = u64::from(limit);
        // Each level takes at least one byte.
        if self.checked_depth.is_some_and(|depth| depth <= limit) || len64(self.len) <= most {
            return Ok(());
        }
        let bound = self
            .shared
            .as_ref()
            .map_or_else(|| self.depth(most), |shared| *shared.depth.get_or_init(|| self.depth(most)));
        if bound <= most {
            return Ok(());
        }
        let depth = json::deepest(self.slices());
        if depth <= most { Ok(()) } else { Err(depth) }
    }

    /// An upper bound of how deep it is nested. Exact if it could be more than `most`.
    fn depth(&self, most: u64) -> u64 {
        let openings = self.slices().fold(0_u64, |sum, part| sum.saturating_add(json::openings(part)));
        if openings <= most { openings } else { json::deepest(self.slices()) }
    }

    /// The bytes of `span`, as one slice for each piece that they lie in.
    pub(crate) fn runs(&self, span: Span) -> impl Iterator<Item = &[u8]> {
        self.cut(span).filter_map(|(part, range)| part.get(range))
    }

    /// The pieces that overlap `span`, each with the range that does.
    fn cut(&self, span: Span) -> impl Iterator<Item = (&Bytes, Range<usize>)> {
        let pieces = self.parts().iter().scan(0_u64, |next, part| {
            let at = *next;
            *next = at.saturating_add(len64(part.len()));
            Some((at, part))
        });
        pieces.filter_map(move |(at, part)| {
            let clip = |offset: u64| len_usize(offset.saturating_sub(at)).min(part.len());
            let range = clip(span.start)..clip(span.end);
            (!range.is_empty()).then_some((part, range))
        })
    }
}

/// Bytes, and what is dropped with them.
struct Owned<T> {
    bytes: Bytes,
    _owner: Arc<T>,
}

impl<T> AsRef<[u8]> for Owned<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A text in one piece.
impl<T: Into<Bytes>> From<T> for Message {
    fn from(text: T) -> Self {
        let bytes = text.into();
        Self { len: bytes.len(), only: Some(bytes), ..Self::default() }
    }
}

/// A join of pieces.
impl FromIterator<Bytes> for Message {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let parts: Arc<[Bytes]> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let len = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        Self { parts, len, ..Self::default() }
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.slices().flatten().eq(other.slices().flatten())
    }
}

impl Eq for Message {}

impl fmt::Debug for Message {
    /// Sizes only, because a peer's bytes must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes in {})", self.len, self.parts().len())
    }
}

impl fmt::Debug for SharedMessage {
    /// Sizes only, as for its message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

/// Reads a message from front to back, in slices of at most a given length.
#[derive(Debug, Clone)]
pub(crate) struct MessageReader {
    message: Message,
    part: usize,
    at: usize,
    done: usize,
}

impl MessageReader {
    pub(crate) const fn new(message: Message) -> Self {
        Self { message, part: 0, at: 0, done: 0 }
    }

    pub(crate) const fn message(&self) -> &Message {
        &self.message
    }

    /// Bytes read so far.
    pub(crate) const fn done(&self) -> usize {
        self.done
    }

    /// Bytes yet to be read.
    pub(crate) const fn left(&self) -> usize {
        self.message.len.saturating_sub(self.done)
    }

    /// The next bytes of one piece, at most `max` of them. Empty at the end.
    pub(crate) fn run(&mut self, max: usize) -> &[u8] {
        while let Some(part) = self.message.parts().get(self.part) {
            let rest = part.get(self.at..).unwrap_or_default();
            if !rest.is_empty() {
                let run = rest.get(..max).unwrap_or(rest);
                self.at = self.at.saturating_add(run.len());
                self.done = self.done.saturating_add(run.len());
                return run;
            }
            (self.part, self.at) = (self.part.saturating_add(1), 0);
        }
        &[]
    }

    /// Passes over the next `len` bytes.
    pub(crate) fn skip(&mut self, len: usize) {
        let end = self.done.saturating_add(len).min(self.message.len);
        while self.done < end {
            self.run(end.saturating_sub(self.done));
        }
    }

    /// Calls `sink` with slices that together are the next `len` bytes. Each but the last has a length that is a multiple of `unit`, and
    /// none is longer than `MAX`. A slice that crosses from one piece to the next is copied onto the stack.
    pub(crate) fn take<const MAX: usize>(&mut self, len: usize, unit: usize, mut sink: impl FnMut(&[u8])) {
        let full = MAX.saturating_sub(MAX.checked_rem(unit).unwrap_or(0));
        let mut left = len.min(self.left());
        while left > 0 {
            let want = left.min(full);
            left = left.saturating_sub(want);
            let run = self.run(want);
            if run.len() == want {
                sink(run);
                continue;
            }
            let mut scratch = [0; MAX];
            let mut place = scratch.get_mut(..want).unwrap_or_default();
            let mut got = place.write(run);
            while !place.is_empty() && got.is_ok_and(|got| got > 0) {
                got = place.write(self.run(place.len()));
            }
            sink(scratch.get(..want).unwrap_or_default());
        }
    }
}

/// A `usize` as a `u64`.
pub(crate) fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// A `u64` as a `usize`, or the largest `usize` if it does not fit.
pub(crate) fn len_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(parts: &[&'static str]) -> Message {
        parts.iter().map(|part| Bytes::from_static(part.as_bytes())).collect()
    }

    #[test]
    fn equality_ignores_where_the_pieces_are_cut() {
        assert_eq!(rope(&["ab", "", "cd"]), rope(&["abcd"]));
        assert_ne!(rope(&["ab"]), rope(&["ac"]));
        assert_ne!(rope(&["ab"]), rope(&["abc"]));
        assert_eq!(rope(&["ab", "cd"]).to_bytes(), "abcd");
        assert!(!rope(&["a"]).is_empty() && rope(&[]).is_empty());
    }

    #[test]
    fn read_borrows_inside_a_piece_and_joins_across_pieces() {
        let message = rope(&["abc", "def", "ghi"]);
        assert!(matches!(message.read(Span { start: 3, end: 6 }), Cow::Borrowed(b"def")));
        assert_eq!(&*message.read(Span { start: 1, end: 8 }), b"bcdefgh");
        assert_eq!(&*message.read(Span { start: 8, end: 80 }), b"i");
        assert_eq!(&*message.read(Span { start: 5, end: 2 }), b"");
    }

    #[test]
    fn splice_replaces_exactly_the_span() {
        let message = rope(&["abc", "def"]);
        assert_eq!(message.splice(Span { start: 2, end: 4 }, Bytes::from_static(b"-")), rope(&["ab-ef"]));
        assert_eq!(message.splice(Span { start: 6, end: 6 }, Bytes::from_static(b"!")), rope(&["abcdef!"]));
        assert_eq!(message.splice(Span { start: 0, end: 0 }, Bytes::new()), message);
    }

    #[test]
    fn take_gives_runs_in_whole_units_across_pieces() {
        fn assert_runs<const MAX: usize>() {
            let mut reader = MessageReader::new(rope(&["a", "bcdefg", "hi", "jklmnopq"]));
            let mut runs = Vec::new();
            reader.take::<MAX>(10, 3, |run| runs.push(run.to_vec()));
            assert!(runs.iter().rev().skip(1).all(|run| run.len() % 3 == 0), "{runs:?}");
            assert!(runs.iter().all(|run| run.len() <= MAX), "{runs:?}");
            assert_eq!(runs.concat(), b"abcdefghij");
            assert_eq!((reader.done(), reader.left()), (10, 7));
            runs.clear();
            reader.take::<MAX>(99, 3, |run| runs.push(run.to_vec()));
            assert_eq!(runs.concat(), b"klmnopq");
        }
        assert_runs::<3>();
        assert_runs::<4>();
        assert_runs::<7>();
        assert_runs::<64>();
    }

    #[test]
    fn skip_passes_over_pieces_and_stops_at_the_end() {
        let mut reader = MessageReader::new(rope(&["abc", "def", "ghi"]));
        reader.skip(0);
        reader.skip(4);
        assert_eq!((reader.done(), reader.run(9)), (4, &b"ef"[..]));
        reader.skip(99);
        assert_eq!((reader.done(), reader.left()), (9, 0));
    }

    #[test]
    fn debug_shows_sizes_and_no_bytes() {
        let secret = rope(&["secret", "s"]);
        assert_eq!(format!("{secret:?}"), "Message(7 bytes in 2)");
        let shared = Arc::new(SharedMessage::new(secret));
        assert!(shared.message().coded(|_| Bytes::from_static(b"coded")).is_some());
        assert_eq!(format!("{shared:?} {:?}", shared.message()), "Message(7 bytes in 2) Message(7 bytes in 2)");
    }
}
