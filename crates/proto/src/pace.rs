//! How fast the link takes our frames, as far as it can be told from when it asks for the next one.

use std::time::{Duration, Instant};

/// The shortest busy time that says something: below it, only buffers between us and the wire are seen.
/// A busy machine may stand still for a good part of a second, and that is not the link.
const WINDOW: Duration = Duration::from_secs(2);
/// The fewest bytes that say something.
const SAMPLE: u64 = 64 << 10;
/// How long a rate is believed after it was measured. A peer that once stood still may be as fast as any by now, and as
/// long as messages are refused for their length, nothing is measured.
const BELIEVED: Duration = Duration::from_secs(30);

/// Measures bytes a second while the link is kept busy.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Since when the link is busy, and what it got since.
    since: Option<Instant>,
    bytes: u64,
    /// The last two rates, and when they were measured, the older one first.
    rates: [Option<(u64, Instant)>; 2],
}

impl Pace {
    /// Bytes a second; `None` until enough was seen, and when that was long ago. It is the better of two rates in a row: a
    /// peer that stood still once, such as one that had no room, is not slow.
    pub(crate) fn rate(&self, now: Instant) -> Option<u64> {
        let [before, last] = [self.rates[0]?, self.rates[1]?];
        (now.saturating_duration_since(last.1) < BELIEVED).then_some(before.0.max(last.0))
    }

    /// The link asked for a frame and gets one of `bytes` bytes. What it got before has been taken by now.
    pub(crate) fn frame(&mut self, bytes: u64, now: Instant) {
        let elapsed = now.saturating_duration_since(*self.since.get_or_insert(now));
        if elapsed >= WINDOW && self.bytes >= SAMPLE {
            let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
            let measured = self.bytes.saturating_mul(1_000_000).checked_div(micros).unwrap_or(0).max(1);
            self.rates = [self.rates[1], Some((measured, now))];
            (self.since, self.bytes) = (Some(now), 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The link asked for a frame and there was none: the time until the next says nothing.
    pub(crate) const fn idle(&mut self) {
        (self.since, self.bytes) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_what_the_link_takes_while_busy() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let at = |step: u64| start + Duration::from_millis(100 * step);
        (0..40).for_each(|step| pace.frame(10_000, at(step)));
        assert_eq!(pace.rate(at(39)), None, "once is not enough");
        pace.frame(10_000, at(40));
        assert_eq!(pace.rate(at(40)), Some(100_000));
        (41..=80).for_each(|step| pace.frame(100_000, at(step)));
        assert_eq!(pace.rate(at(80)), Some(1_000_000));
    }

    #[test]
    fn a_link_that_stood_still_once_is_not_slow() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let at = |step: u64| start + Duration::from_millis(100 * step);
        (0..=40).for_each(|step| pace.frame(100_000, at(step)));
        // Twenty seconds without anything, then as before.
        (240..=259).for_each(|step| pace.frame(100_000, at(step)));
        assert_eq!(pace.rate(at(259)), Some(1_000_000));
        (260..=300).for_each(|step| pace.frame(100_000, at(step)));
        assert_eq!(pace.rate(at(300)), Some(1_000_000));
    }

    #[test]
    fn a_rate_of_long_ago_says_nothing() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let slow = Duration::from_secs(60);
        let end = start + 2 * slow;
        [start, start + slow, end].into_iter().for_each(|at| pace.frame(1 << 20, at));
        assert_eq!(pace.rate(end + BELIEVED / 2), Some((1 << 20) / 60));
        assert_eq!(pace.rate(end + BELIEVED), None);
        // What is measured next is not mixed with it.
        pace.idle();
        pace.frame(1 << 20, end + BELIEVED);
        pace.frame(1, end + BELIEVED + WINDOW);
        assert_eq!(pace.rate(end + BELIEVED + WINDOW), Some(1 << 19));
    }

    #[test]
    fn idle_time_and_small_samples_say_nothing() {
        let start = Instant::now();
        let mut pace = Pace::default();
        for step in 0..20 {
            pace.frame(1 << 20, start + Duration::from_secs(step));
            pace.idle();
        }
        assert_eq!(pace.rate(start + Duration::from_secs(20)), None);
        pace.frame(10, start);
        pace.frame(10, start + Duration::from_secs(60));
        assert_eq!(pace.rate(start + Duration::from_secs(60)), None);
    }
}
