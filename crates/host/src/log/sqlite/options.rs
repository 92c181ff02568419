//! The options of a log.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use super::super::Merge;

/// Limits of a log. The defaults suit a host with a few hundred clients.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// How deltas of one part become one entry. Without it they do not.
    pub merge: Option<Arc<dyn Merge>>,
    /// The largest batch. 256 MiB: more than the largest message of any peer.
    pub max_batch_bytes: usize,
    /// Bytes of batches that may wait for the disk; further appends wait before the queue. A larger batch waits alone.
    pub max_queued_bytes: usize,
    /// Bytes of the newest entries that readers share in memory.
    pub recent_bytes: usize,
    /// The length of the write-ahead log. Shorter means more checkpoints; 8 MiB are some thousand small commits.
    pub wal_bytes: u64,
    /// Bytes of disk space that are reserved inside the log, and released when the disk is full, so that it can still be opened,
    /// erased from and compacted, and takes small batches. Reserved again when twice as much is free. 0 for none.
    pub reserve_bytes: u64,
    /// How many reads run at the same time.
    pub readers: usize,
    pub(super) faults: InjectedFaults,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            merge: None,
            max_batch_bytes: 256 << 20,
            max_queued_bytes: 64 << 20,
            recent_bytes: 16 << 20,
            wal_bytes: 8 << 20,
            reserve_bytes: 8 << 20,
            readers: 4,
            faults: InjectedFaults::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            merge,
            max_batch_bytes,
            max_queued_bytes,
            recent_bytes,
            wal_bytes,
            reserve_bytes,
            readers,
            faults: _,
        } = self;
        f.debug_struct("Options")
            .field("merge", &merge.is_some())
            .field("max_batch_bytes", max_batch_bytes)
            .field("max_queued_bytes", max_queued_bytes)
            .field("recent_bytes", recent_bytes)
            .field("wal_bytes", wal_bytes)
            .field("reserve_bytes", reserve_bytes)
            .field("readers", readers)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "test-support")]
impl Options {
    /// The faults that a test injects. Clones of the options share them.
    #[doc(hidden)]
    #[must_use]
    pub const fn faults(&self) -> &InjectedFaults {
        &self.faults
    }
}

/// Faults that tests inject, to prove that they would notice them. Without the feature `test-support`, nobody can set any.
#[derive(Debug, Clone, Default)]
pub struct InjectedFaults {
    /// Never syncs: a power cut loses entries that were acknowledged.
    pub no_sync: Arc<AtomicBool>,
    /// The next commit fails, and nothing of it is in the file.
    pub fail_before_commit: Arc<AtomicBool>,
    /// The next commit fails, and all of it is in the file.
    pub fail_after_commit: Arc<AtomicBool>,
    /// The most pages that the database may have; 0 for any number. Read when it is opened.
    pub max_pages: Arc<AtomicU32>,
    /// The reading of the clock when a log is opened, 2^20 a second, without the random part; 0 for the real time.
    pub clock: Arc<AtomicU64>,
}
