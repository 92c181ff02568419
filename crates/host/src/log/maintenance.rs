//! Maintenance of a log: retention, health, and the report of a verification.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{DamagedRecord, Gap, Seq};

/// What is retained. Entries that no saved snapshot covers are always retained; the default retains everything.
///
/// A client whose position is before what is retained gets [`ReadError::Trimmed`](super::ReadError::Trimmed) for its channels,
/// and takes snapshots instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Entries that are older than this are removed.
    pub max_age: Option<Duration>,
    /// The oldest entries are removed until the store uses no more than this.
    pub max_bytes: Option<u64>,
    /// A repeated batch is recognized for at least this long.
    pub ids_for: Duration,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        // A day: longer than any caller goes on repeating a batch.
        Self { max_age: None, max_bytes: None, ids_for: Duration::from_secs(24 * 60 * 60) }
    }
}

impl RetentionPolicy {
    /// Whether anything may be removed from a store that uses so many bytes (0 if unknown), so that snapshots are worth saving.
    #[must_use]
    pub fn wants_snapshots(&self, used: u64) -> bool {
        self.max_age.is_some() || self.max_bytes.is_some_and(|most| used == 0 || used > most)
    }
}

/// Whether the log acknowledges appends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogHealth {
    /// It does.
    Good,
    /// The disk is full. Appends are refused with [`Full`](super::AppendError::Full); the log tries again by itself.
    Full,
    /// Writing failed. Appends are refused with [`Unknown`](super::AppendError::Unknown) until the log has opened and checked the
    /// store again, which it does by itself.
    Failed {
        /// What the store said.
        reason: String,
    },
    /// The store was opened again, and lacks acknowledged entries. A person has to decide what to do.
    Lost {
        /// The first acknowledged entry that is not there as it was written.
        seq: Seq,
    },
    /// Another writer has taken over. This log does not write again.
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

/// What a verification of the whole log found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Intact entries.
    pub entries: u64,
    /// Intact rows.
    pub rows: u64,
    /// Intact snapshots.
    pub snapshots: u64,
    /// Bytes of all intact records.
    pub bytes: u64,
    /// Damaged records.
    pub damaged: Vec<DamagedRecord>,
    /// Other faults of the store, as it reports them.
    pub faults: Vec<String>,
    /// The highest seq that was acknowledged in this directory, if the log ends before it: the log was replaced by a backup, or
    /// has lost its end. It has not been opened for writing since.
    pub missing_end: Option<Seq>,
    /// Gaps in which entries are missing for such a reason, after which the log was continued.
    pub lost: Vec<Gap>,
}

impl Report {
    /// Whether everything is intact. A log that was restored and continued counts as intact.
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
