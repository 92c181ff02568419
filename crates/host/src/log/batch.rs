//! What a caller asks the log to append.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::Seq;

/// Entries that are appended together: all of them if all conditions hold, else none.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Identifies the batch when it is repeated.
    pub id: BatchId,
    /// Channels that exist from this batch on, each with the session that it belongs to. Opening one again has no effect; with
    /// another session it is refused.
    pub open: Vec<(Arc<str>, Option<Arc<str>>)>,
    /// What is appended, in this order.
    pub entries: Vec<NewEntry>,
    /// The seq that each of these channels must end with; 0 for one without entries.
    pub expect: Vec<(Arc<str>, Seq)>,
    /// Who appends it, a client for example. Sources take turns, so that one with much to append does not delay others.
    /// Without a source, the [channel](Batch::channel) is the source.
    pub source: Option<Arc<str>>,
}

impl Batch {
    /// An empty batch with a new id.
    #[must_use]
    pub fn new() -> Self {
        Self::with_id(BatchId::new())
    }

    /// An empty batch with this id.
    #[must_use]
    pub const fn with_id(id: BatchId) -> Self {
        Self { id, open: Vec::new(), entries: Vec::new(), expect: Vec::new(), source: None }
    }

    /// Opens a channel that belongs to a session, or to the host itself.
    #[must_use]
    pub fn open(mut self, channel: impl Into<Arc<str>>, session: Option<&str>) -> Self {
        self.open.push((channel.into(), session.map(Into::into)));
        self
    }

    /// Adds an entry.
    #[must_use]
    pub fn entry(self, channel: impl Into<Arc<str>>, body: impl Into<Bytes>) -> Self {
        self.push(NewEntry::new(channel, body))
    }

    /// Adds an entry with its options.
    #[must_use]
    pub fn push(mut self, entry: NewEntry) -> Self {
        self.entries.push(entry);
        self
    }

    /// Appends only if the channel still ends with this seq.
    #[must_use]
    pub fn expect(mut self, channel: impl Into<Arc<str>>, last: Seq) -> Self {
        self.expect.push((channel.into(), last));
        self
    }

    /// Sets the source.
    #[must_use]
    pub fn from_source(mut self, source: impl Into<Arc<str>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The source, or the channel if there is none.
    #[must_use]
    pub fn source(&self) -> Arc<str> {
        self.source.clone().unwrap_or_else(|| self.channel())
    }

    /// The channel of its first entry, or the first that it opens. Batches of one source and channel keep their order; those
    /// of one source on different channels take turns too.
    #[must_use]
    pub fn channel(&self) -> Arc<str> {
        let first = self.entries.first().map(|entry| &entry.channel);
        first.or(self.open.first().map(|(channel, _)| channel)).cloned().unwrap_or_default()
    }

    /// Bytes of all bodies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.body.len()).sum()
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// An entry that has no seq yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    /// The channel's URI. It must be open.
    pub channel: Arc<str>,
    /// Raw JSON.
    pub body: Bytes,
    /// The session that an entry on a shared channel is about: it is removed when that session is erased.
    pub about: Option<Arc<str>>,
    /// An entry with a part is a delta: while it waits for the disk, it is merged with the next entry of its channel if that has
    /// the same part. The part contains everything that must be equal for two deltas to be merged.
    pub part: Option<Arc<str>>,
}

impl NewEntry {
    /// An entry that is not merged with others.
    #[must_use]
    pub fn new(channel: impl Into<Arc<str>>, body: impl Into<Bytes>) -> Self {
        Self { channel: channel.into(), body: body.into(), about: None, part: None }
    }

    /// Says which session an entry on a shared channel is about.
    #[must_use]
    pub fn about(mut self, session: impl Into<Arc<str>>) -> Self {
        self.about = Some(session.into());
        self
    }

    /// Makes it a delta of this part.
    #[must_use]
    pub fn part(mut self, part: impl Into<Arc<str>>) -> Self {
        self.part = Some(part.into());
        self
    }
}

/// Makes one body of several deltas of one part.
pub trait Merge: Send + Sync + 'static {
    /// The body that does what these do one after the other; `None` if there is none, and each stays an entry.
    fn merge(&self, deltas: &[Bytes]) -> Option<Bytes>;
}

impl<F: Fn(&[Bytes]) -> Option<Bytes> + Send + Sync + 'static> Merge for F {
    fn merge(&self, deltas: &[Bytes]) -> Option<Bytes> {
        self(deltas)
    }
}

/// Identifies a batch when it is repeated. It begins with the time, so that recent ids are together in the store and old ones
/// can be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(u128);

/// The bits of an id that are not its time in milliseconds.
const RANDOM_BITS: u32 = 80;

impl BatchId {
    /// A new id: 48 bits of time and 80 random ones.
    #[must_use]
    pub fn new() -> Self {
        let mut random = [0; 16];
        // Without random bytes, the time and the process id have to do.
        if getrandom::fill(&mut random).is_err() {
            let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
            random = (nanos ^ u128::from(std::process::id()).rotate_left(64)).to_be_bytes();
        }
        Self((Self::at(super::maintenance::now_ms()).0) | (u128::from_be_bytes(random) & ((1 << RANDOM_BITS) - 1)))
    }

    /// The lowest id of this time.
    #[must_use]
    pub fn at(ms: u64) -> Self {
        Self(u128::from(ms & 0xFFFF_FFFF_FFFF) << RANDOM_BITS)
    }

    /// Its bytes, in the order in which ids are sorted.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// An id from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl Default for BatchId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for BatchId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_ids_sort_after_earlier_ones_and_read_back_from_text() {
        let early = BatchId::at(1_000);
        let id = BatchId::new();
        assert!(id > early);
        assert_ne!(id, BatchId::new());
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(BatchId::from_bytes(id.to_bytes()), id);
    }
}
