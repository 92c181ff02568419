//! Measures how fast the link takes our frames, from the times at which it asks for the next one.

use std::time::{Duration, Instant};

/// The shortest busy time from which a rate is computed. In a shorter time only the buffers between us and the wire would be
/// measured, or a pause of a busy machine, which can be a good part of a second.
const WINDOW: Duration = Duration::from_secs(2);
/// The fewest bytes from which a rate is computed.
const SAMPLE: u64 = 64 << 10;
/// How long a measured rate is used, on its link and on the next ones to the same peer. Not for ever: a peer that was slow may be fast
/// by now, and while long messages are refused because of a low rate, no rate is measured over a whole [`WINDOW`]. Not too short
/// either: each long message that is begun in vain costs a connection.
///
/// It ends sooner when a message that is not refused shows that the link is faster now: see [`Run::rate`]. An error for a message that
/// is refused says when this time ends.
const BELIEVED: Duration = Duration::from_mins(5);
/// What a link takes in the first moment of a busy time, beyond its rate, lies in buffers and says nothing about the rate.
const FIRST_MOMENT: Duration = Duration::from_millis(FIRST_MOMENT_MS);
const FIRST_MOMENT_MS: u64 = 100;
/// A rate that was measured in less than a [`WINDOW`] counts only if it is this many times as high as the one that is used.
const MUCH_FASTER: u64 = 2;

/// A frame that takes this many times as long as all others together is ignored. Smaller differences are normal: a link takes much
/// at once, and then nothing for a while.
const OUTLIER: u32 = 4;

/// The rate of a link, and when it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Bytes a second.
    pub(crate) bytes: u64,
    pub(crate) measured: Instant,
    /// How many bytes the link took at once, before its buffers were full.
    pub(crate) buffered: u64,
}

/// The bytes that the link has taken since it was last idle.
#[derive(Debug, Clone, Copy)]
struct Run {
    started: Instant,
    taken: u64,
    /// How much of that it took in the [`FIRST_MOMENT`].
    at_once: u64,
}

impl Run {
    fn new(started: Instant) -> Self {
        Self { started, taken: 0, at_once: 0 }
    }

    fn take(&mut self, bytes: u64, now: Instant) {
        self.taken = self.taken.saturating_add(bytes);
        if now.saturating_duration_since(self.started) <= FIRST_MOMENT {
            self.at_once = self.taken;
        }
    }

    /// The rate of this run, if it is long enough. The first `buffered` bytes do not count: they filled buffers, which
    /// would make a slow link look fast.
    fn rate(&self, buffered: u64, now: Instant) -> Option<u64> {
        let beyond = self.taken.saturating_sub(buffered);
        let is_enough = beyond >= SAMPLE.max(buffered / 2);
        is_enough.then(|| rate(beyond, now.saturating_duration_since(self.started)))
    }
}

/// Bytes a second.
fn rate(bytes: u64, time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
    bytes.saturating_mul(1_000_000).checked_div(micros).unwrap_or(0).max(1)
}

/// Measures bytes a second while the link is kept busy.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The rate of an earlier link to the peer. Used until this link has a rate of its own.
    remembered: Option<Rate>,
    /// Whether a rate was measured since [`news`](Self::news) was last called.
    has_news: bool,
    /// When the link got the last frame, and the length of that frame.
    last: Option<(Instant, u64)>,
    /// How many bytes the link has taken while it was busy, and in which time.
    taken: (u64, Duration),
    /// The length and the time of the slowest frame. A peer that stops for a while, for example because it waits for
    /// memory, is not slow.
    slowest: (u64, Duration),
    /// What the link has taken since it was last idle.
    run: Option<Run>,
    /// The last two rates, and when they were measured. The older one comes first.
    rates: [Option<(u64, Instant)>; 2],
    /// How many bytes the buffers of the link took at once, when the rate was last measured.
    buffered: u64,
}

impl Pace {
    /// Bytes a second. `None` if no rate was measured on this link or an earlier one, or if that was too long ago.
    pub(crate) fn rate(&self, now: Instant) -> Option<u64> {
        self.believed(now).map(|(rate, _)| rate.bytes)
    }

    /// The rate that is used, and for how much longer.
    pub(crate) fn believed(&self, now: Instant) -> Option<(Rate, Duration)> {
        let rate = self.measured().or(self.remembered)?;
        let left = BELIEVED.saturating_sub(now.saturating_duration_since(rate.measured));
        (!left.is_zero()).then_some((rate, left))
    }

    /// Sets the rate that was measured on an earlier link to this peer.
    pub(crate) fn recall(&mut self, rate: Option<Rate>) {
        self.remembered = rate.or(self.remembered);
    }

    /// The rate, if a new one was measured since the last call. To be remembered for the next link.
    pub(crate) fn news(&mut self) -> Option<Rate> {
        if std::mem::take(&mut self.has_news) { self.measured() } else { None }
    }

    /// The higher of the last two rates.
    fn measured(&self) -> Option<Rate> {
        let [before, last] = [self.rates[0]?, self.rates[1]?];
        Some(Rate { bytes: before.0.max(last.0), measured: last.1, buffered: self.buffered })
    }

    /// The link asked for a frame, and gets one of `bytes` bytes. So it has taken the one before.
    pub(crate) fn frame(&mut self, bytes: u64, now: Instant) {
        let last = self.last.replace((now, bytes));
        let run = self.run.get_or_insert_with(|| Run::new(now));
        if let Some((then, len)) = last {
            run.take(len, now);
            let time = now.saturating_duration_since(then);
            self.taken = (self.taken.0.saturating_add(len), self.taken.1.saturating_add(time));
            self.slowest = if time > self.slowest.1 { (len, time) } else { self.slowest };
        }
        let ((mut bytes, mut time), (len, slowest)) = (self.taken, self.slowest);
        if slowest >= time.saturating_sub(slowest).saturating_mul(OUTLIER) {
            (bytes, time) = (bytes.saturating_sub(len), time.saturating_sub(slowest));
        }
        if time >= WINDOW && bytes >= SAMPLE {
            let measured = rate(bytes, time);
            let in_a_moment = measured.checked_div(1000 / FIRST_MOMENT_MS).unwrap_or(0);
            let buffered = self.run.map_or(0, |run| run.at_once.saturating_sub(in_a_moment));
            let rates = [self.rates[1], Some((measured, now))];
            self.restart(rates, buffered);
        }
        self.notice_speed(now);
    }

    /// The link asked for a frame and there was none, so it has taken the last one. The time until the next frame is not measured.
    pub(crate) fn idle(&mut self, now: Instant) {
        if let (Some(run), Some((_, len))) = (&mut self.run, self.last) {
            run.take(len, now);
            self.notice_speed(now);
        }
        let Self { remembered, has_news, rates, buffered, .. } = *self;
        *self = Self { remembered, has_news, rates, buffered, ..Self::default() };
    }

    /// If the link has become much faster than the rate that is used, the new rate is used at once.
    fn notice_speed(&mut self, now: Instant) {
        let (Some(run), Some((believed, _))) = (self.run, self.believed(now)) else { return };
        let Some(measured) = run.rate(believed.buffered, now) else { return };
        if measured >= believed.bytes.saturating_mul(MUCH_FASTER) {
            self.restart([Some((measured, now)); 2], believed.buffered);
        }
    }

    /// There are new rates, and a new window begins. The run goes on.
    fn restart(&mut self, rates: [Option<(u64, Instant)>; 2], buffered: u64) {
        let Self { remembered, last, run, .. } = *self;
        *self = Self { remembered, has_news: true, last, run, rates, buffered, ..Self::default() };
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
        pace.idle(end);
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
        assert_eq!(rate, Some(Rate { bytes: 100_000, measured: at(40), buffered: 0 }));
        assert_eq!(first.news(), None, "it is told once");
        let mut second = Pace::default();
        second.recall(rate);
        second.recall(None);
        second.idle(at(45));
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
            pace.idle(start + Duration::from_secs(step));
        }
        assert_eq!(pace.rate(start + Duration::from_secs(20)), None);
        (0..9).for_each(|step| pace.frame(10, start + Duration::from_secs(60 * step)));
        assert_eq!(pace.rate(start + Duration::from_secs(480)), None);
    }

    /// A link whose buffers take `buffer` bytes at once, and then `rate` bytes a second, takes `bytes` bytes in frames of 10,000. Returns
    /// when it is done.
    fn pass(pace: &mut Pace, bytes: u64, (buffer, rate): (u64, u64), start: Instant) -> Instant {
        let mut at = start;
        for sent in (0..bytes).step_by(10_000) {
            at = start + Duration::from_micros(sent.saturating_sub(buffer) * 1_000_000 / rate);
            pace.frame(10_000, at);
        }
        pace.idle(at);
        at
    }

    #[test]
    fn a_smaller_message_that_passes_fast_lifts_a_slow_rate_at_once() {
        for buffer in [0, 300_000] {
            let mut pace = Pace::default();
            let end = pass(&mut pace, 2_000_000, (buffer, 200_000), Instant::now());
            let slow = pace.rate(end).unwrap();
            assert!((190_000..=400_000).contains(&slow), "{slow}");
            let (remembered, mut next) = (pace.news(), Pace::default());
            next.recall(remembered);
            let later = end + Duration::from_secs(10);
            assert_eq!(next.rate(later), Some(slow));
            let done = pass(&mut next, 700_000, (buffer, 50_000_000), later);
            assert!(next.rate(done).is_some_and(|rate| rate > 10_000_000), "{:?}", next.rate(done));
            assert!(next.news().is_some_and(|rate| rate.bytes > 10_000_000), "the next link knows");
        }
    }

    #[test]
    fn a_slow_link_with_buffers_does_not_look_fast() {
        let mut pace = Pace::default();
        let link = (300_000, 200_000);
        let mut end = pass(&mut pace, 3_000_000, link, Instant::now());
        for bytes in [100_000, 300_000, 700_000, 1_000_000] {
            end = pass(&mut pace, bytes, link, end + Duration::from_secs(10));
            assert!(pace.rate(end).is_some_and(|rate| rate < 450_000), "{bytes}: {:?}", pace.rate(end));
        }
    }

    #[test]
    fn it_is_known_for_how_much_longer_a_rate_is_used() {
        let mut pace = Pace::default();
        let end = pass(&mut pace, 1_000_000, (0, 100_000), Instant::now());
        let (_, left) = pace.believed(end + Duration::from_secs(60)).unwrap();
        assert!((Duration::from_secs(230)..=Duration::from_secs(240)).contains(&left), "{left:?}");
    }
}
