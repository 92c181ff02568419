//! Errors of a log, one variant for each reaction of a caller.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use super::Seq;

/// Why a batch is not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AppendError {
    /// A channel does not end where the batch expects. Nothing was appended.
    #[error("{channel} ends at {last}, not at {expected}")]
    Conflict {
        /// The channel.
        channel: Arc<str>,
        /// What the batch expects.
        expected: Seq,
        /// Its last seq.
        last: Seq,
    },
    /// A channel was never opened, or was erased. Nothing was appended.
    #[error("{0} is not open")]
    NotOpen(Arc<str>),
    /// A channel is open for another session. Nothing was appended.
    #[error("{0} belongs to another session")]
    OtherSession(Arc<str>),
    /// The batch is larger than the log takes at once. Nothing was appended.
    #[error("a batch of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// What the bodies have.
        bytes: usize,
        /// What they may have.
        limit: usize,
    },
    /// The batch changes from channel to channel more often than a stream takes at once. Nothing was appended.
    #[error("a batch of {messages} messages is over the limit of {limit}: it changes between channels too often")]
    TooManyMessages {
        /// How many messages it would be: entries of one channel next to each other are one.
        messages: usize,
        /// How many it may be.
        limit: usize,
    },
    /// The disk is full. Nothing was appended; the same batch may be tried again.
    #[error("the disk of the log is full: free some space there, or erase sessions")]
    Full,
    /// Another writer has taken over. Nothing was appended, and nothing will be.
    #[error("another writer has taken over the log")]
    Fenced,
    /// It may have been appended or not. Appending the same batch again finds out, and never appends it twice.
    #[error("not known whether it was appended")]
    Unknown,
    /// The log is closed. Nothing was appended.
    #[error("the log is closed")]
    Closed,
}

/// Why nothing (more) can be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Some of the requested entries are trimmed. A position of `first - 1` or later can be followed.
    #[error("trimmed: the log begins at {first}")]
    Trimmed {
        /// From here on everything is there.
        first: Seq,
    },
    /// A record is not what was written. Everything before it can be read, and everything after it can be requested.
    #[error("{0} is damaged")]
    Damaged(DamagedRecord),
    /// The store cannot be read.
    #[error("the log cannot be read: {0}")]
    Store(String),
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

/// A record that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum DamagedRecord {
    /// An entry.
    #[error("entry {seq}")]
    Entry {
        /// Its seq.
        seq: Seq,
    },
    /// A snapshot.
    #[error("the snapshot of {channel}")]
    Snapshot {
        /// Its channel.
        channel: Arc<str>,
    },
    /// A row.
    #[error("row {index} of {channel}")]
    Row {
        /// Its channel.
        channel: Arc<str>,
        /// Its index.
        index: u64,
    },
    /// All entries with these seqs, whatever their channels: a part of the file cannot be read.
    #[error("the part of the file with entries {first} to {last}")]
    Entries {
        /// The first seq that may be lost.
        first: Seq,
        /// The last one.
        last: Seq,
    },
    /// All entries of one channel after this one: a part of the file cannot be read.
    #[error("the part of the file after entry {seq}")]
    After {
        /// The last entry that could be read; 0 if none.
        seq: Seq,
    },
}

impl DamagedRecord {
    /// The position after which a follower of the log can continue; `None` if this is no entry.
    #[must_use]
    pub const fn end(&self) -> Option<Seq> {
        match self {
            Self::Entry { seq } => Some(*seq),
            Self::Entries { last, .. } => Some(*last),
            Self::Snapshot { .. } | Self::Row { .. } | Self::After { .. } => None,
        }
    }
}

/// Why a write other than an append failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The channel was never opened, or was erased.
    #[error("{0} is not open")]
    NotOpen(Arc<str>),
    /// A later snapshot is saved.
    #[error("a later snapshot is saved, at {saved}")]
    Older {
        /// Its seq.
        saved: Seq,
    },
    /// A snapshot claims to be later than the log.
    #[error("a snapshot at {seq} is past the log's end")]
    Future {
        /// What it claims.
        seq: Seq,
    },
    /// No saved snapshot covers the entries that would be removed.
    #[error("no saved snapshot covers the entries to remove")]
    NoSnapshot {
        /// The seq of the saved snapshot; 0 if there is none.
        saved: Seq,
    },
    /// A row's index is 2^32 or more.
    #[error("row {0} is past the last index")]
    RowIndex(u64),
    /// The disk is full.
    #[error("the disk of the log is full: free some space there, or erase sessions")]
    Full,
    /// Another writer has taken over.
    #[error("another writer has taken over the log")]
    Fenced,
    /// A part of the file cannot be read. The log copies itself without that part, and can then be asked again.
    #[error("a part of the log cannot be read, and it is copied without that part: try it again")]
    Unreadable,
    /// It may have been done or not. Doing it again is harmless.
    #[error("not known whether it was done")]
    Unknown,
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

/// Why a log does not open.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another log in this one, has it open for writing.
    #[error("{} is in use by another writer", .0.display())]
    InUse(PathBuf),
    /// A later version of this program wrote it.
    #[error("{} has version {found}, and this program knows versions up to {known}: use a later one", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The latest known.
        known: i64,
    },
    /// The file is not a log.
    #[error("{} is not a log", .0.display())]
    NotALog(PathBuf),
    /// There is no log to read.
    #[error("{} has no log", .0.display())]
    Missing(PathBuf),
    /// The disk of the store is full.
    #[error("cannot open {}: its disk is full; free 16 MiB there", .0.display())]
    Full(PathBuf),
    /// A part of the file that is needed cannot be read.
    #[error(
        "a part of {} cannot be read: restore a backup, or save what can be read with `breakbulk log export` and start with an empty directory",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The store does not open.
    #[error("{}: {source}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// What the store says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
