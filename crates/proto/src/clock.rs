//! Time as a peer is judged by it: it stands still while we ourselves are not reading.

use std::time::{Duration, Instant};

/// Counts the time during which frames were read.
#[derive(Debug, Default)]
pub(crate) struct ReadClock {
    counted: Duration,
    /// Since when we read; `None` while paused.
    since: Option<Instant>,
    has_started: bool,
}

impl ReadClock {
    /// Starts the clock if it never ran.
    pub(crate) fn start(&mut self, now: Instant) {
        if !self.has_started {
            self.run(true, now);
        }
    }

    /// The reading so far.
    pub(crate) fn at(&self, now: Instant) -> Duration {
        let running = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.counted.saturating_add(running)
    }

    /// Starts or stops the clock.
    pub(crate) fn run(&mut self, running: bool, now: Instant) {
        self.counted = self.at(now);
        self.since = running.then_some(now);
        self.has_started = true;
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
        assert_eq!((clock.at(start + second), clock.when(second)), (Duration::ZERO, None));
        clock.start(start);
        clock.run(true, start + second);
        assert_eq!(clock.at(start + 3 * second), 3 * second);
        assert_eq!(clock.when(5 * second), Some(start + 5 * second));
        clock.run(false, start + 3 * second);
        clock.start(start + 4 * second);
        assert_eq!((clock.at(start + 9 * second), clock.when(5 * second)), (3 * second, None));
        clock.run(true, start + 10 * second);
        assert_eq!((clock.at(start + 11 * second), clock.when(5 * second)), (4 * second, Some(start + 12 * second)));
    }
}
