//! Many seeds on two threads; the first that fails is named, with the command that runs it again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::sim::ledger::Counts;
use crate::sim::tally::Tally;
use crate::sim::world::Outcome;

/// Which seeds to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runs {
    pub(crate) from: u64,
    pub(crate) count: u64,
}

/// What all of them came to.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) runs: u64,
    pub(crate) seconds: f64,
    pub(crate) counts: Counts,
    pub(crate) tally: Tally,
    /// The seeds that failed, and how.
    failures: BTreeMap<u64, String>,
}

const THREADS: usize = 2;
/// Failures that are told beside the first.
const OTHERS: usize = 8;

impl Runs {
    pub(crate) fn from_environment(count: u64) -> Self {
        let number = |key| std::env::var(key).ok().and_then(|value| value.parse().ok());
        match number("BREAKBULK_SIM_SEED") {
            Some(seed) => Self { from: seed, count: 1 },
            None => Self {
                from: number("BREAKBULK_SIM_FROM").unwrap_or(0),
                count: number("BREAKBULK_SIM_SEEDS").unwrap_or(count),
            },
        }
    }

    pub(crate) fn all(self, run: impl Fn(u64) -> Outcome + Sync) -> Sums {
        let started = Instant::now();
        let next = AtomicU64::new(0);
        let sums = Mutex::new(Sums::default());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= self.count {
                            return;
                        }
                        let seed = self.from + n;
                        let outcome = catch_unwind(AssertUnwindSafe(|| run(seed)));
                        sums.lock().unwrap().add(seed, outcome);
                    }
                });
            }
        });
        let mut sums = sums.into_inner().unwrap();
        sums.seconds = started.elapsed().as_secs_f64();
        sums
    }
}

impl Sums {
    fn add(&mut self, seed: u64, outcome: std::thread::Result<Outcome>) {
        self.runs += 1;
        let story = match outcome {
            Ok(outcome) => {
                self.tally.merge(&outcome.tally);
                self.counts.add(outcome.counts);
                if outcome.counts.is_clean() {
                    return;
                }
                format!("{}\n  {}", outcome.counts, outcome.notes.join("\n  "))
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                format!("panicked: {}", text.unwrap_or_default())
            }
        };
        self.failures.insert(seed, story);
    }

    /// What to say about the seeds that failed, the lowest first.
    pub(crate) fn failure(&self) -> Option<String> {
        let (seed, story) = self.failures.first_key_value()?;
        let others = self.failures.iter().skip(1).take(OTHERS).map(|(seed, story)| format!("  seed {seed}: {story}"));
        Some(format!(
            "{} seeds failed, the first is seed {seed}: {story}\n{}\nagain: BREAKBULK_SIM_SEED={seed} \
             cargo test -p {} --test {}",
            self.failures.len(),
            others.collect::<Vec<_>>().join("\n"),
            env!("CARGO_PKG_NAME"),
            env!("CARGO_CRATE_NAME")
        ))
    }
}
