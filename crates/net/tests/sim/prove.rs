//! Runs seeds, says what came of them, and fails if any has failed or shows nothing.

use crate::sim::runs::Runs;
use crate::sim::world::Outcome;

/// Runs the seeds that the environment names, or so many. In a full run, each of `happens` has to happen somewhere, or the
/// simulation does not show what it claims.
pub(crate) fn prove(count: u64, happens: &[&'static str], run: impl Fn(u64) -> Outcome + Sync) {
    let runs = Runs::from_environment(count);
    println!("simulation: {} seeds from {}", runs.count, runs.from);
    let sums = runs.all(run);
    println!("{} runs in {:.1} s: {}\n{}", sums.runs, sums.seconds, sums.counts, sums.tally.lines());
    if let Some(failure) = sums.failure() {
        panic!("{failure}");
    }
    assert!(sums.counts.is_clean());
    if runs.count >= count {
        assert_eq!(sums.tally.missing(happens), Vec::<&str>::new(), "these never happened");
    }
}
