//! Keeping house: how long things are kept, how the log is, what a walk through all of it found.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{DamagedRecord, Gap, Seq};

/// What is kept. Whatever it says, nothing goes that no saved snapshot stands for; the default keeps everything.
///
/// A client whose position is before what is kept hears [`ReadError::Trimmed`](super::ReadError::Trimmed) on the
/// channels in question, and takes a snapshot instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Entries that are older than this go.
    pub max_age: Option<Duration>,
    /// The oldest entries go until the store uses no more than this.
    pub max_bytes: Option<u64>,
    /// A batch that comes again is known for at least this long.
    pub ids_for: Duration,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        // A day: longer than any caller goes on repeating a batch.
        Self { max_age: None, max_bytes: None, ids_for: Duration::from_secs(24 * 60 * 60) }
    }
}

impl RetentionPolicy {
    /// Whether anything may go from a store that uses so many bytes, so that snapshots are of use; 0 if that is not known.
    #[must_use]
    pub fn wants_snapshots(&self, used: u64) -> bool {
        self.max_age.is_some() || self.max_bytes.is_some_and(|most| used == 0 || used > most)
    }
}

/// Whether the log acknowledges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogHealth {
    /// It does.
    Good,
    /// The store has no room. Appends are refused with [`Full`](super::AppendError::Full); the log tries again by itself.
    Full,
    /// Writing failed. Appends are refused with [`Unknown`](super::AppendError::Unknown) until the log has been opened
    /// again and looked through, which it does by itself.
    Failed {
        /// What the store said.
        reason: String,
    },
    /// The store was opened again, and does not have what was acknowledged. Only a person can decide what to do.
    Lost {
        /// The first acknowledged entry that is not there as it was written.
        seq: Seq,
    },
    /// Another writer has taken over. Nothing brings this one back.
    Fenced,
    /// It was closed.
    Closed,
}

impl fmt::Display for LogHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("it works"),
            Self::Full => f.write_str(
                "its disk is full: free some space there, or erase sessions (disposeSession, `breakbulk log erase`)",
            ),
            Self::Failed { reason } => write!(f, "writing failed ({reason}); the host opens it again by itself"),
            Self::Lost { seq } => {
                write!(
                    f,
                    "entry {seq}, which was acknowledged, is gone: restore a backup, or see `breakbulk log verify`"
                )
            }
            Self::Fenced => f.write_str("another host has opened it and writes to it now: stop one of them"),
            Self::Closed => f.write_str("it was closed"),
        }
    }
}

impl LogHealth {
    /// Whether appends are acknowledged.
    #[must_use]
    pub fn is_good(&self) -> bool {
        *self == Self::Good
    }
}

/// What a walk through the whole log found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Entries that are as they were written.
    pub entries: u64,
    /// Rows that are.
    pub rows: u64,
    /// Snapshots that are.
    pub snapshots: u64,
    /// Bytes of all of these.
    pub bytes: u64,
    /// Those that are not.
    pub damaged: Vec<DamagedRecord>,
    /// What else is wrong with the store, in its own words.
    pub faults: Vec<String>,
    /// The highest seq that was acknowledged in this place, if the log now ends before it: a backup has taken its place, or
    /// it has lost its end. Nobody has opened it for writing since.
    pub missing_end: Option<Seq>,
    /// Gaps in which entries are missing for such a reason, from which the log has gone on.
    pub lost: Vec<Gap>,
}

impl Report {
    /// Whether everything is as it was written. A log that was restored and has gone on is.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty() && self.faults.is_empty() && self.missing_end.is_none()
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
