//! What a gateway counts: clients, messages, bytes, and whether the host can be reached.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// What went one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The same while it is being counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    clients: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    unreachable: AtomicU64,
    /// By the side that messages went to.
    messages: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    is_host_down: AtomicBool,
    /// When a refusal was last logged, and how many there were since.
    logged: Mutex<(Option<Instant>, u64)>,
}

/// Refusals are logged no more often than this: whoever causes them must not fill the log.
const LOG_EVERY: Duration = Duration::from_secs(10);

impl Counters {
    /// A client is here for as long as this is held.
    pub(super) fn enter(&self) -> Present<'_> {
        self.clients.fetch_add(1, Relaxed);
        self.accepted.fetch_add(1, Relaxed);
        Present(self)
    }

    /// A client was refused. How many were since that was last logged, if it is time to say so again.
    pub(super) fn refuse(&self, now: Instant) -> Option<u64> {
        self.refused.fetch_add(1, Relaxed);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.1 = logged.1.saturating_add(1);
        if logged.0.is_some_and(|last| now.saturating_duration_since(last) < LOG_EVERY) {
            return None;
        }
        logged.0 = Some(now);
        Some(std::mem::take(&mut logged.1))
    }

    /// The host was reached for a client, or was not.
    pub(super) fn dialed(&self, is_reached: bool) {
        self.is_host_down.store(!is_reached, Relaxed);
        if !is_reached {
            self.unreachable.fetch_add(1, Relaxed);
        }
    }

    /// A message went to this side.
    pub(super) fn passed(&self, to: usize, bytes: usize) {
        if let (Some(messages), Some(all)) = (self.messages.get(to), self.bytes.get(to)) {
            messages.fetch_add(1, Relaxed);
            all.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Relaxed);
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let [near, far] = [0, 1].map(|side| Traffic {
            messages: self.messages.get(side).map_or(0, |count| count.load(Relaxed)),
            bytes: self.bytes.get(side).map_or(0, |count| count.load(Relaxed)),
        });
        Stats {
            clients: self.clients.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            unreachable: self.unreachable.load(Relaxed),
            to_clients: near,
            to_host: far,
            is_host_down: self.is_host_down.load(Relaxed),
        }
    }
}

/// A client that is here.
pub(super) struct Present<'a>(&'a Counters);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_once_in_a_while_with_their_number() {
        let (counters, now) = (Counters::default(), Instant::now());
        let logged: Vec<_> = (0..1_000).filter_map(|_| counters.refuse(now)).collect();
        assert_eq!(logged, [1]);
        assert_eq!(counters.refuse(now + LOG_EVERY), Some(1_000));
        assert_eq!(counters.stats().refused, 1_001);
    }

    #[test]
    fn a_client_counts_while_it_is_here() {
        let counters = Counters::default();
        let present = counters.enter();
        assert_eq!((counters.stats().clients, counters.stats().accepted), (1, 1));
        drop(present);
        assert_eq!((counters.stats().clients, counters.stats().accepted), (0, 1));
    }
}
