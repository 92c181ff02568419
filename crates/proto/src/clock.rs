//! Time as a peer is judged by it: it stands still while we ourselves are not reading.

use std::time::{Duration, Instant};

/// Counts the time during which frames were read, from the first reading on.
#[derive(Debug, Default)]
pub(crate) struct ReadClock {
    counted: Duration,
    /// When it was last read; `None` before that, and while paused.
    since: Option<Instant>,
    paused: bool,
}

impl ReadClock {
    /// The reading now.
    pub(crate) fn read(&mut self, now: Instant) -> Duration {
        if !self.paused {
            let since = self.since.replace(now).unwrap_or(now);
            self.counted = self.counted.saturating_add(now.saturating_duration_since(since));
        }
        self.counted
    }

    /// Stops the clock, or lets it go on.
    pub(crate) fn pause(&mut self, paused: bool, now: Instant) {
        self.read(now);
        (self.paused, self.since) = (paused, (!paused).then_some(now));
    }

    /// When the clock will show `reading`, if it goes on as it does; `None` while it stands.
    pub(crate) fn when(&self, reading: Duration) -> Option<Instant> {
        let left = reading.saturating_sub(self.counted);
        self.since?.checked_add(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_while_paused() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut clock = ReadClock::default();
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
        let mut clock = ReadClock::default();
        clock.pause(true, start);
        assert_eq!((clock.read(start + second), clock.when(second)), (Duration::ZERO, None));
        clock.pause(false, start + 2 * second);
        assert_eq!((clock.read(start + 3 * second), clock.when(second)), (second, Some(start + 3 * second)));
    }
}
