//! A clock for the timeouts of a peer. It stops while we do not read, because the peer cannot make progress then.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counts the time during which frames were read, from the first call of `read` on. Cloning shares the clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadClock(Arc<Mutex<Count>>);

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    /// The time that was counted before `since`.
    counted: Duration,
    /// When the clock was last started. `None` before the first call of `read`, and while it is stopped.
    since: Option<Instant>,
    paused: bool,
}

impl ReadClock {
    /// The time on the clock.
    pub(crate) fn read(&self, now: Instant) -> Duration {
        self.with(|count| {
            count.since = count.since.or((!count.paused).then_some(now));
            let running = count.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            count.counted.saturating_add(running)
        })
    }

    /// Stops the clock, or starts it again.
    pub(crate) fn pause(&self, paused: bool, now: Instant) {
        let counted = self.read(now);
        self.with(|count| *count = Count { counted, since: (!paused).then_some(now), paused });
    }

    /// When the clock will show `reading`, if it is not stopped before. `None` while it is stopped.
    pub(crate) fn when(&self, reading: Duration) -> Option<Instant> {
        self.with(|count| count.since?.checked_add(reading.saturating_sub(count.counted)))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Count) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_while_paused() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let clock = ReadClock::default();
        assert_eq!(clock.when(second), None);
        assert_eq!((clock.read(start), clock.read(start + second)), (Duration::ZERO, second));
        assert_eq!(clock.read(start + 3 * second), 3 * second);
        assert_eq!(clock.when(5 * second), Some(start + 5 * second));
        clock.pause(true, start + 3 * second);
        assert_eq!((clock.read(start + 9 * second), clock.when(5 * second)), (3 * second, None));
        clock.pause(true, start + 9 * second);
        clock.pause(false, start + 10 * second);
        assert_eq!((clock.read(start + 11 * second), clock.when(5 * second)), (4 * second, Some(start + 12 * second)));
    }

    #[test]
    fn a_clock_that_is_paused_before_it_was_read_stands_at_zero() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let clock = ReadClock::default();
        clock.pause(true, start);
        assert_eq!((clock.read(start + second), clock.when(second)), (Duration::ZERO, None));
        clock.pause(false, start + 2 * second);
        assert_eq!((clock.read(start + 3 * second), clock.when(second)), (second, Some(start + 3 * second)));
    }
}
