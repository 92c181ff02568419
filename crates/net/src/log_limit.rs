//! Limits the log lines that unauthenticated clients, or a stream of messages, can cause.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How many lines of one kind may be logged at once: enough to see a pattern.
const BURST: u32 = 10;
/// After this time one more line of a kind may be logged. So a flood adds a few kilobytes a minute, however long it lasts.
const REFILL: Duration = Duration::from_secs(1);

/// Allows a few log lines of each kind, and counts those that are left out.
///
/// For lines that anyone who can reach a socket can cause without authentication: each costs them a packet, and would cost us disk space.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let log = breakbulk::LogLimit::default();
/// if let Some(permit) = log.permit("no-token") {
///     tracing::info!(left_out = permit.left_out(), "a client was refused");
/// }
/// # }
/// ```
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<HashMap<&'static str, Bucket>>);

/// The permission to write one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct LogPermit(u64);

#[derive(Debug)]
struct Bucket {
    lines: u32,
    refilled: Instant,
    left_out: u64,
}

impl LogLimit {
    /// The permission to write a line of this kind now; `None` if it has to be left out.
    pub fn permit(&self, kind: &'static str) -> Option<LogPermit> {
        self.permit_at(kind, Instant::now())
    }

    fn permit_at(&self, kind: &'static str, now: Instant) -> Option<LogPermit> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(kind).or_insert(Bucket { lines: BURST, refilled: now, left_out: 0 });
        let since = now.saturating_duration_since(bucket.refilled);
        let refill = u32::try_from(since.as_secs() / REFILL.as_secs()).unwrap_or(u32::MAX);
        if refill > 0 {
            bucket.lines = bucket.lines.saturating_add(refill).min(BURST);
            bucket.refilled = now;
        }
        let Some(left) = bucket.lines.checked_sub(1) else {
            bucket.left_out = bucket.left_out.saturating_add(1);
            return None;
        };
        bucket.lines = left;
        Some(LogPermit(std::mem::take(&mut bucket.left_out)))
    }

    /// What was left out since the last line of its kind, and how often: for one last line of each.
    pub(crate) fn into_left_out(self) -> impl Iterator<Item = (&'static str, u64)> {
        let buckets = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        buckets.into_iter().map(|(kind, bucket)| (kind, bucket.left_out)).filter(|(_, left_out)| *left_out > 0)
    }
}

impl LogPermit {
    /// How many lines of the same kind were left out before this one; `None` for none, so that the line does not say it.
    #[must_use]
    pub fn left_out(self) -> Option<u64> {
        Some(self.0).filter(|count| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flood_of_one_kind_is_counted_and_hides_no_other_kind() {
        let (log, start) = (LogLimit::default(), Instant::now());
        let lines = |kind, at: Duration, times: usize| {
            let permits = (0..times).filter_map(|_| log.permit_at(kind, start + at));
            permits.map(LogPermit::left_out).collect::<Vec<_>>()
        };
        assert_eq!(lines("a", Duration::ZERO, 1000), [None; 10]);
        assert_eq!(lines("b", Duration::ZERO, 1), [None]);
        assert_eq!(lines("a", Duration::from_millis(999), 10), []);
        assert_eq!(lines("a", Duration::from_secs(1), 10), [Some(1000)]);
        assert_eq!(lines("a", Duration::from_mins(1), 20).len(), 10);
        assert_eq!(lines("a", Duration::from_mins(2), 1), [Some(10)]);
        assert_eq!(lines("a", Duration::from_mins(2), 12).len(), 9);
        assert_eq!(log.into_left_out().collect::<Vec<_>>(), [("a", 3)]);
    }
}
