//! What replaces a channel's old entries: a snapshot, and rows that are encoded once.

use std::sync::Arc;

use bytes::Bytes;

use super::Seq;

/// Bytes before the JSON of a row: its offset among the others, which only the host uses.
pub(crate) const ROW_HEADER: usize = 8;

/// The state of a channel after an entry, as one version of the reducers made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The last entry that the state contains. Later entries of the channel apply to it.
    pub seq: Seq,
    /// The version of the reducers that made it. Other versions may not be able to read it.
    pub version: String,
    /// The state, without what is in rows.
    pub body: Bytes,
}

/// What is saved for a channel in one step.
///
/// Rows contain what never changes again (completed turns), each encoded when it was complete: a snapshot of a long chat is a
/// join of its body and its rows. Rows may be saved before the snapshot that refers to them; a follower that starts from an
/// older snapshot makes the same rows again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Save {
    /// The channel's URI. It must be open.
    pub channel: Arc<str>,
    /// A new snapshot, if it is time for one. One that is older than the saved one is refused.
    pub snapshot: Option<Snapshot>,
    /// Removes the rows from this index on, before those below are written.
    pub cut_rows: Option<u64>,
    /// Rows by index, below 2^32.
    pub rows: Vec<(u64, Bytes)>,
}

impl Save {
    /// Saves nothing yet.
    #[must_use]
    pub fn new(channel: impl Into<Arc<str>>) -> Self {
        Self { channel: channel.into(), snapshot: None, cut_rows: None, rows: Vec::new() }
    }

    /// With this snapshot.
    #[must_use]
    pub fn snapshot(mut self, seq: Seq, version: impl Into<String>, body: impl Into<Bytes>) -> Self {
        self.snapshot = Some(Snapshot { seq, version: version.into(), body: body.into() });
        self
    }

    /// With this row.
    #[must_use]
    pub fn row(mut self, index: u64, body: impl Into<Bytes>) -> Self {
        self.rows.push((index, body.into()));
        self
    }

    /// Without the rows from this index on.
    #[must_use]
    pub const fn cut_rows(mut self, from: u64) -> Self {
        self.cut_rows = Some(from);
        self
    }
}

/// Rows of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rows {
    /// Each with its index, ascending.
    pub rows: Vec<(u64, Bytes)>,
    /// One more than the channel's highest index; 0 without rows.
    pub total: u64,
}
