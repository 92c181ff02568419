//! What a gateway counts: clients, messages, bytes, and whether the host can be reached.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::sides::{Pair, SideId};

/// What a gateway has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Clients that are connected now.
    pub clients: u64,
    /// Clients that were let in.
    pub accepted: u64,
    /// Clients that were told to come again later, because there were too many.
    pub refused: u64,
    /// Clients whose host could not be reached.
    pub unreachable: u64,
    /// What went to clients.
    pub to_clients: Traffic,
    /// What went to the host.
    pub to_host: Traffic,
    /// Whether the latest attempt to reach the host has failed.
    pub is_host_down: bool,
}

/// What went in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The counters from which [`Stats`] are made.
#[derive(Debug, Default)]
pub(super) struct StatsCounters {
    clients: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    unreachable: AtomicU64,
    /// By the side that messages went to.
    traffic: Pair<TrafficCounters>,
    is_host_down: AtomicBool,
    refusals: Mutex<RefusalLog>,
}

#[derive(Debug, Default)]
struct TrafficCounters {
    messages: AtomicU64,
    bytes: AtomicU64,
}

/// What the log says of refused clients.
#[derive(Debug, Default)]
struct RefusalLog {
    last_logged: Option<Instant>,
    /// Refusals since then.
    unlogged: u64,
}

/// Refusals are logged no more often than this: whoever causes them must not fill the log.
pub(super) const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl StatsCounters {
    /// Counts a client as connected until the returned guard is dropped.
    pub(super) fn note_client(&self) -> ConnectedClient<'_> {
        self.clients.fetch_add(1, Relaxed);
        self.accepted.fetch_add(1, Relaxed);
        ConnectedClient(self)
    }

    /// A client was refused. How many were since that was last logged, if it is time to say so again.
    pub(super) fn refuse(&self, now: Instant) -> Option<u64> {
        self.refused.fetch_add(1, Relaxed);
        let mut log = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        log.unlogged = log.unlogged.saturating_add(1);
        if log.last_logged.is_some_and(|last| now.saturating_duration_since(last) < LOG_INTERVAL) {
            return None;
        }
        log.last_logged = Some(now);
        Some(std::mem::take(&mut log.unlogged))
    }

    /// How many refusals were not logged yet, if any. They count as logged from now on.
    pub(super) fn take_unlogged_refusals(&self, now: Instant) -> Option<u64> {
        let mut log = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let unlogged = Some(std::mem::take(&mut log.unlogged)).filter(|unlogged| *unlogged > 0)?;
        log.last_logged = Some(now);
        Some(unlogged)
    }

    /// The host was reached for a client, or was not.
    pub(super) fn note_dial(&self, is_reached: bool) {
        self.is_host_down.store(!is_reached, Relaxed);
        if !is_reached {
            self.unreachable.fetch_add(1, Relaxed);
        }
    }

    /// A message went to this side.
    pub(super) fn note_passed(&self, to: SideId, bytes: usize) {
        let TrafficCounters { messages, bytes: all_bytes } = &self.traffic[to];
        messages.fetch_add(1, Relaxed);
        all_bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn stats(&self) -> Stats {
        let Pair { downstream, upstream } = self
            .traffic
            .as_ref()
            .map(|counters| Traffic { messages: counters.messages.load(Relaxed), bytes: counters.bytes.load(Relaxed) });
        Stats {
            clients: self.clients.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            unreachable: self.unreachable.load(Relaxed),
            to_clients: downstream,
            to_host: upstream,
            is_host_down: self.is_host_down.load(Relaxed),
        }
    }
}

/// A client that is connected until this is dropped.
pub(super) struct ConnectedClient<'a>(&'a StatsCounters);

impl Drop for ConnectedClient<'_> {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_once_in_a_while_with_their_number() {
        let (counters, now) = (StatsCounters::default(), Instant::now());
        let logged: Vec<_> = (0..1_000).filter_map(|_| counters.refuse(now)).collect();
        assert_eq!(logged, [1]);
        assert_eq!(counters.refuse(now + LOG_INTERVAL), Some(1_000));
        assert_eq!(counters.stats().refused, 1_001);
        // What came last is told, too.
        assert_eq!(counters.take_unlogged_refusals(now + LOG_INTERVAL), None);
        assert_eq!(counters.refuse(now + LOG_INTERVAL), None);
        assert_eq!(counters.take_unlogged_refusals(now + LOG_INTERVAL), Some(1));
    }

    #[test]
    fn a_client_counts_while_it_is_connected() {
        let counters = StatsCounters::default();
        let client = counters.note_client();
        assert_eq!((counters.stats().clients, counters.stats().accepted), (1, 1));
        drop(client);
        assert_eq!((counters.stats().clients, counters.stats().accepted), (0, 1));
    }
}
