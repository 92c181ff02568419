//! Times several ways in turn, round after round, so that a busy moment strikes all of them alike.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// Runtimes that a race is run in, one after the other: how threads and memory come to lie is chance, and stays as it is
/// for as long as a runtime lives.
const RUNTIMES: usize = 5;

/// What one run took, in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    pub(crate) wall: f64,
    /// Of this process alone.
    pub(crate) cpu: f64,
}

/// What races in several runtimes of `threads` threads saw, all of their rounds.
pub(crate) fn in_runtimes<T>(threads: usize, race: impl Fn(&Runtime) -> Vec<T>) -> Vec<T> {
    (0..RUNTIMES).flat_map(|_| race(&runtime(threads))).collect()
}

pub(crate) fn runtime(threads: usize) -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("threads")
}

/// Times each of `N` things once a round. Just before, it runs once untimed, so that what the one before it left behind
/// does not show. Each thing says what it took, so that it can prepare and clean up outside of that.
pub(crate) fn race<const N: usize>(mut things: [&mut dyn FnMut() -> Took; N]) -> Vec<[Took; N]> {
    let mut round = || {
        things.each_mut().map(|thing| {
            thing();
            thing()
        })
    };
    (0..rounds()).map(|_| round()).collect()
}

/// Runs a thing once; what it made is dropped after its time was taken.
pub(crate) fn timed<T>(thing: impl FnOnce() -> T) -> Took {
    let (begin, cpu) = (Instant::now(), cpu_time());
    let made = thing();
    let took = Took { wall: begin.elapsed().as_secs_f64(), cpu: (cpu_time() - cpu).as_secs_f64() };
    drop(made);
    took
}

/// The median over all rounds of a figure made from one round.
pub(crate) fn median<T>(rounds: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    percentile(rounds.iter().map(figure).collect(), 0.5)
}

/// The figure that this part of all figures do not exceed.
pub(crate) fn percentile(mut figures: Vec<f64>, part: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[((figures.len() - 1) as f64 * part) as usize]
}

/// How many rounds to run: `BREAKBULK_BENCH_ROUNDS`, or as many as still fit a coffee break.
pub(crate) fn rounds() -> usize {
    let set = std::env::var("BREAKBULK_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok());
    set.filter(|rounds| *rounds > 0).unwrap_or(21)
}

/// CPU time of the whole process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
