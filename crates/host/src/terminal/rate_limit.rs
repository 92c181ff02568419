//! Limits how fast a program's output is logged.

use std::time::Duration;

use tokio::time::Instant;

/// So many seconds' worth of output may be logged at once after a pause.
const BURST: f64 = 4.0;
/// The longest wait in seconds before the rate is checked again.
const LOOK: f64 = 1.0;

/// A token bucket: the credit grows with time, and logged bytes are subtracted.
#[derive(Debug)]
pub(super) struct RateLimit {
    credit: f64,
    at: Instant,
}

impl RateLimit {
    pub(super) fn new(rate: u64, now: Instant) -> Self {
        Self { credit: count(rate) * BURST, at: now }
    }

    /// When to try again; `None` if more may be logged now.
    pub(super) fn wait(&mut self, rate: u64, now: Instant) -> Option<Instant> {
        let rate = count(rate);
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.credit, self.at) = ((self.credit + passed * rate).min(rate * BURST), now);
        (self.credit <= 0.0).then(|| now + Duration::from_secs_f64((1.0 - self.credit / rate).min(LOOK)))
    }

    /// Subtracts logged bytes. A piece is logged as a whole, so the credit may become negative.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.credit -= count(u64::try_from(bytes).unwrap_or(u64::MAX));
    }
}

/// At least one, so that it can be divided by.
#[expect(clippy::cast_precision_loss, reason = "what is so large needs no such precision")]
fn count(bytes: u64) -> f64 {
    bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_time_no_more_goes_than_the_rate_and_one_burst() {
        let (begun, rate) = (Instant::now(), 1000);
        let mut rate_limit = RateLimit::new(rate, begun);
        let (mut now, mut gone) = (begun, 0);
        while now < begun + Duration::from_secs(100) {
            match rate_limit.wait(rate, now) {
                Some(later) => now = later,
                None => {
                    rate_limit.spend(250);
                    gone += 250;
                }
            }
        }
        assert!((100_000..105_000).contains(&gone), "{gone}");
        // With a better rate, what was waited for is there at once.
        rate_limit.spend(4000);
        assert!(rate_limit.wait(rate, now).is_some());
        assert!(rate_limit.wait(1_000_000, now + Duration::from_millis(10)).is_none());
    }
}
