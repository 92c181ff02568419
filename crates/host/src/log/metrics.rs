//! Counters and times of a log, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters of one log. They only grow, except for those that are marked as gauges.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Batches that were acknowledged.
    pub batches: AtomicU64,
    /// Entries that were written.
    pub entries: AtomicU64,
    /// Bytes of their bodies.
    pub bytes: AtomicU64,
    /// Deltas that became part of the entry before them.
    pub merged: AtomicU64,
    /// Batches that were repeated.
    pub repeated: AtomicU64,
    /// Batches that were refused with [`Conflict`](super::AppendError::Conflict).
    pub conflicts: AtomicU64,
    /// Times that the store failed or was full.
    pub failures: AtomicU64,
    /// Times that it was opened again and found good.
    pub recoveries: AtomicU64,
    /// Checkpoints of the write-ahead log.
    pub checkpoints: AtomicU64,
    /// Pages that readers took from memory, and from the file.
    pub pages_shared: AtomicU64,
    /// Pages that readers took from the file.
    pub pages_read: AtomicU64,
    /// Entries that were trimmed or erased.
    pub removed: AtomicU64,
    /// Gauge: damaged records that readers found, each counted once.
    pub damaged: Arc<AtomicU64>,
    /// Gauge: bytes of batches that wait.
    pub queued_bytes: AtomicU64,
    /// Gauge: bytes of the recent entries that readers share.
    pub recent_bytes: AtomicU64,
    /// Gauge: bytes that the store uses.
    pub store_bytes: AtomicU64,
    /// From the call of `append` to its answer, in microseconds.
    pub append_us: Histogram,
    /// One commit with its sync, in microseconds.
    pub commit_us: Histogram,
    /// Batches in one commit.
    pub commit_batches: Histogram,
    /// Syncs of the disk: one for a commit, two for a checkpoint.
    pub syncs: Arc<AtomicU64>,
    /// The syncs for which a batch of at most 64 KiB waited in the queue, with the one under way and its own.
    pub small_append_syncs: Histogram,
    /// One checkpoint, in microseconds.
    pub checkpoint_us: Histogram,
}

/// How many observations there were of each magnitude: bucket `n` counts those below 2^n and not below 2^(n-1).
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; Histogram::BUCKETS],
    sum: AtomicU64,
}

impl Histogram {
    /// Enough for an hour in microseconds.
    pub const BUCKETS: usize = 32;

    /// Counts a value.
    pub fn observe(&self, value: u64) {
        let magnitude = usize::try_from(u64::BITS - value.leading_zeros()).unwrap_or_default();
        if let Some(bucket) = self.buckets.get(magnitude.min(Self::BUCKETS - 1)) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
    }

    /// Counts a time, in microseconds.
    pub fn observe_time(&self, time: Duration) {
        self.observe(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// How many values each bucket has.
    pub fn counts(&self) -> [u64; Self::BUCKETS] {
        std::array::from_fn(|at| self.buckets.get(at).map_or(0, |bucket| bucket.load(Relaxed)))
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.counts().iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_the_bucket_of_its_magnitude() {
        let histogram = Histogram::default();
        for value in [0, 1, 7, 8, u64::MAX >> 1] {
            histogram.observe(value);
        }
        let counts = histogram.counts();
        assert_eq!((counts[0], counts[1], counts[3], counts[4], counts[31]), (1, 1, 1, 1, 1));
        assert_eq!(histogram.count(), 5);
    }
}
