//! How fast the link takes our frames, as far as it can be told from when it asks for the next one.

use std::time::{Duration, Instant};

/// The shortest busy time that says something: below it, only buffers between us and the wire are seen.
/// A busy machine may stand still for a good part of a second, and that is not the link.
const WINDOW: Duration = Duration::from_secs(2);
/// The fewest bytes that say something.
const SAMPLE: u64 = 64 << 10;
/// How long a rate is believed after it was measured, on that link and on the peer's next ones. A peer that was slow once may
/// be as fast as any by now, and as long as messages are refused for their length, nothing is measured; but each message
/// that is begun in vain costs a link.
const BELIEVED: Duration = Duration::from_mins(5);

/// How many times as long as all others a frame has to take that says nothing about the rest. Less is how a link takes what is
/// written in one go: much at once, and then nothing for a while.
const OUTLIER: u32 = 4;

/// How fast a peer's link was, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Bytes a second.
    pub(crate) bytes: u64,
    pub(crate) measured: Instant,
}

/// Measures bytes a second while the link is kept busy.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// What was measured on an earlier link of the peer's. It counts until there is a rate of this one.
    remembered: Option<Rate>,
    /// A rate was measured of which nobody has been told.
    has_news: bool,
    /// When the link got the last frame, and how long that was.
    last: Option<(Instant, u64)>,
    /// What it has taken while it was busy, in which time.
    taken: (u64, Duration),
    /// That of it which took the longest: a peer that stands still, such as one that has no room, is not slow.
    slowest: (u64, Duration),
    /// The last two rates, and when they were measured, the older one first.
    rates: [Option<(u64, Instant)>; 2],
}

impl Pace {
    /// Bytes a second; `None` until enough was seen, on this link or on an earlier one, and when that was long ago.
    pub(crate) fn rate(&self, now: Instant) -> Option<u64> {
        let rate = self.measured().or(self.remembered)?;
        (now.saturating_duration_since(rate.measured) < BELIEVED).then_some(rate.bytes)
    }

    /// Notes what was measured on an earlier link of this peer's.
    pub(crate) fn recall(&mut self, rate: Option<Rate>) {
        self.remembered = rate.or(self.remembered);
    }

    /// What was measured since this was last asked, to be remembered beyond this link.
    pub(crate) fn news(&mut self) -> Option<Rate> {
        if std::mem::take(&mut self.has_news) { self.measured() } else { None }
    }

    /// The better of two rates in a row.
    fn measured(&self) -> Option<Rate> {
        let [before, last] = [self.rates[0]?, self.rates[1]?];
        Some(Rate { bytes: before.0.max(last.0), measured: last.1 })
    }

    /// The link asked for a frame and gets one of `bytes` bytes. What it got before has been taken by now.
    pub(crate) fn frame(&mut self, bytes: u64, now: Instant) {
        if let Some((then, len)) = self.last.replace((now, bytes)) {
            let time = now.saturating_duration_since(then);
            self.taken = (self.taken.0.saturating_add(len), self.taken.1.saturating_add(time));
            self.slowest = if time > self.slowest.1 { (len, time) } else { self.slowest };
        }
        let ((mut bytes, mut time), (len, slowest)) = (self.taken, self.slowest);
        if slowest >= time.saturating_sub(slowest).saturating_mul(OUTLIER) {
            (bytes, time) = (bytes.saturating_sub(len), time.saturating_sub(slowest));
        }
        if time >= WINDOW && bytes >= SAMPLE {
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
            let measured = bytes.saturating_mul(1_000_000).checked_div(micros).unwrap_or(0).max(1);
            let (remembered, rates) = (self.remembered, [self.rates[1], Some((measured, now))]);
            *self = Self { remembered, has_news: true, last: self.last, rates, ..Self::default() };
        }
    }

    /// The link asked for a frame and there was none: the time until the next says nothing.
    pub(crate) fn idle(&mut self) {
        let Self { remembered, has_news, rates, .. } = *self;
        *self = Self { remembered, has_news, rates, ..Self::default() };
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
        pace.frame(100_000, at(40));
        assert_eq!(pace.rate(at(40)), Some(100_000));
        (41..=80).for_each(|step| pace.frame(100_000, at(step)));
        assert_eq!(pace.rate(at(80)), Some(1_000_000));
    }

    #[test]
    fn a_link_that_stands_still_now_and_then_is_not_slow() {
        let start = Instant::now();
        let mut pace = Pace::default();
        // Three seconds of frames, and twenty of nothing, again and again.
        for step in 0..300 {
            pace.frame(100_000, start + Duration::from_millis(100 * step + 20_000 * (step / 30)));
            assert!(pace.rates.iter().flatten().all(|(rate, _)| *rate == 1_000_000), "{pace:?}");
        }
        assert!(pace.rates[0].is_some());
    }

    #[test]
    fn nor_is_one_that_once_stood_still_twice_in_a_short_time() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let at = |step: u64| start + Duration::from_millis(100 * step);
        (0..=42).chain(300..305).chain(600..690).for_each(|step| {
            pace.frame(100_000, at(step));
            assert!(pace.rate(at(step)).is_none_or(|rate| rate == 1_000_000), "{pace:?}");
        });
        assert_eq!(pace.rate(at(690)), Some(1_000_000));
    }

    #[test]
    fn what_a_link_takes_in_one_go_is_paid_for_by_the_time_in_which_it_then_stands() {
        let start = Instant::now();
        let mut pace = Pace::default();
        // Four frames at once, every eight tenths of a second.
        let at = |step: u64| start + Duration::from_millis(800 * (step / 4));
        (0..=32).for_each(|step| pace.frame(16_000, at(step)));
        assert_eq!(pace.rate(at(32)), Some(80_000));
    }

    #[test]
    fn only_what_takes_four_times_as_long_as_all_others_is_left_out() {
        for (slow, rate) in [(8000, 200_000), (7999, 50_005)] {
            let mut at = Instant::now();
            let mut pace = Pace::default();
            pace.frame(100_000, at);
            for time in [slow, 500, 500, 500, 500] {
                at += Duration::from_millis(time);
                pace.frame(100_000, at);
            }
            assert_eq!(pace.rates[1].map(|(rate, _)| rate), Some(rate), "{slow}");
        }
    }

    #[test]
    fn a_rate_of_long_ago_says_nothing() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let slow = Duration::from_secs(60);
        let end = start + 4 * slow;
        (0..=4).for_each(|n| pace.frame(1 << 20, start + n * slow));
        assert_eq!(pace.rate(end + BELIEVED / 2), Some((1 << 20) / 60));
        assert_eq!(pace.rate(end + BELIEVED), None);
        // What is measured next is not mixed with it.
        pace.idle();
        let later = end + BELIEVED;
        [(1 << 20, later), (1 << 20, later + WINDOW)].into_iter().for_each(|(len, at)| pace.frame(len, at));
        assert_eq!(pace.rate(later + WINDOW), None);
        pace.frame(1, later + 2 * WINDOW);
        assert_eq!(pace.rate(later + 2 * WINDOW), Some(1 << 19));
    }

    #[test]
    fn what_an_earlier_link_showed_counts_until_this_one_has_shown_something() {
        let start = Instant::now();
        let at = |step: u64| start + Duration::from_millis(100 * step);
        let mut first = Pace::default();
        (0..=40).for_each(|step| first.frame(10_000, at(step)));
        let rate = first.news();
        assert_eq!(rate, Some(Rate { bytes: 100_000, measured: at(40) }));
        assert_eq!(first.news(), None, "it is told once");
        let mut second = Pace::default();
        second.recall(rate);
        second.recall(None);
        second.idle();
        assert_eq!((second.rate(at(50)), second.news()), (Some(100_000), None));
        assert_eq!(second.rate(at(40) + BELIEVED), None);
        (50..=90).for_each(|step| second.frame(100_000, at(step)));
        assert_eq!(second.rate(at(90)), Some(1_000_000));
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
        (0..9).for_each(|step| pace.frame(10, start + Duration::from_secs(60 * step)));
        assert_eq!(pace.rate(start + Duration::from_secs(480)), None);
    }
}
