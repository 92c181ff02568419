//! What a run measures: times as a histogram, and one row for each second.

/// Times between 10 µs and 1,000 s in buckets of 5 %.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    buckets: Vec<u64>,
    count: u64,
    max: f64,
}

const SHORTEST: f64 = 1e-5;
const GROWTH: f64 = 1.05;
const BUCKETS: usize = 380; // 1.05^380 × 10 µs is over 1,000 s

impl Default for Times {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, max: 0.0 }
    }
}

impl Times {
    pub(crate) fn add(&mut self, time: f64, weight: u64) {
        let bucket = (time.max(SHORTEST) / SHORTEST).ln() / GROWTH.ln();
        let last = BUCKETS - 1;
        self.buckets[(bucket as usize).min(last)] += weight;
        self.count += weight;
        self.max = self.max.max(time);
    }

    /// The time below which this share of all times is, to 5 %.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut left = (self.count as f64 * share).ceil() as u64;
        for (bucket, count) in self.buckets.iter().enumerate() {
            if *count >= left {
                return (SHORTEST * GROWTH.powi(bucket as i32 + 1)).min(self.max);
            }
            left -= count;
        }
        self.max
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn max(&self) -> f64 {
        self.max
    }
}

/// What happened in one second.
#[derive(Debug, Clone, Default)]
pub(crate) struct Second {
    /// From a client's action to the client that sees it.
    pub(crate) latency: Times,
    /// Actions that waited at the end of the second, for a publish or for an owner.
    pub(crate) waiting: u64,
    /// The longest queue of one host at the end of the second.
    pub(crate) longest_queue: u64,
    /// Clients without a connection at the end of the second.
    pub(crate) disconnected: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_five_per_cent() {
        let mut times = Times::default();
        for n in 1..=1000 {
            times.add(f64::from(n) / 1000.0, 1);
        }
        for (share, expected) in [(0.5, 0.5), (0.99, 0.99), (1.0, 1.0)] {
            let got = times.quantile(share);
            assert!((got / expected - 1.0).abs() < 0.06, "{share}: {got}");
        }
        assert_eq!((times.count(), times.max()), (1000, 1.0));
    }
}
