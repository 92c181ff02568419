//! The waits between attempts to connect, with full jitter, so that many clients of one host do not reconnect at the same time.

use std::time::Duration;

/// The largest exponent: 2^32 times any base exceeds any cap.
const MAX_DOUBLINGS: u32 = 32;

/// Draws the waits between attempts.
///
/// Each wait is a random time from zero to a bound. The bound begins at `base`, doubles with each wait, and stays at `cap`.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    base: Duration,
    cap: Duration,
    doublings: u32,
    random: SplitMix64,
}

impl Backoff {
    /// Waits of up to `base` at first, and up to `cap` in the end. The same seed gives the same waits.
    #[must_use]
    pub(crate) const fn new(base: Duration, cap: Duration, seed: u64) -> Self {
        Self { base, cap, doublings: 0, random: SplitMix64(seed) }
    }

    /// The longest that the next wait may be.
    #[must_use]
    pub(crate) fn bound(&self) -> Duration {
        self.base.saturating_mul(1_u32.checked_shl(self.doublings).unwrap_or(u32::MAX)).min(self.cap)
    }

    /// Draws the next wait, and doubles the bound.
    #[must_use]
    pub(crate) fn draw(&mut self) -> Duration {
        let bound = self.bound();
        self.doublings = self.doublings.saturating_add(1).min(MAX_DOUBLINGS);
        bound.mul_f64(self.random.fraction())
    }

    /// An attempt succeeded: the bound is `base` again.
    pub(crate) const fn reset(&mut self) {
        self.doublings = 0;
    }
}

/// A splitmix64 generator: enough to spread waits.
#[derive(Debug, Clone)]
struct SplitMix64(u64);

impl SplitMix64 {
    /// A number from 0 to 1.
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        f64::from(u32::try_from(bits >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_millis(250);
    const CAP: Duration = Duration::from_secs(30);

    #[test]
    fn the_bound_doubles_up_to_the_cap_and_a_reset_takes_it_back() {
        let mut backoff = Backoff::new(BASE, CAP, 1);
        let bounds: Vec<_> = (0..100)
            .map(|_| {
                let bound = backoff.bound();
                assert!(backoff.draw() <= bound);
                bound.as_millis()
            })
            .collect();
        assert_eq!(bounds[..9], [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert!(bounds[9..].iter().all(|bound| *bound == 30_000));
        backoff.reset();
        assert_eq!(backoff.bound(), BASE);
    }

    #[test]
    fn waits_are_spread_over_the_whole_range() {
        let mut quarters = [0; 4];
        for seed in 0..1000 {
            let wait = Backoff::new(BASE, CAP, seed).draw();
            quarters[(wait.as_micros() * 4 / (BASE.as_micros() + 1)) as usize] += 1;
        }
        assert!(quarters.iter().all(|count| (150..350).contains(count)), "{quarters:?}");
    }

    #[test]
    fn a_base_of_nothing_or_of_everything_is_no_trouble() {
        assert_eq!(Backoff::new(Duration::ZERO, CAP, 1).draw(), Duration::ZERO);
        let mut backoff = Backoff::new(Duration::MAX, CAP, 1);
        (0..50).for_each(|_| assert!(backoff.draw() <= CAP));
    }
}
