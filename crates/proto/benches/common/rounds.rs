//! Times several things in turn, round after round, so that a busy moment strikes all of them alike.

use std::any::Any;
use std::hint::black_box;
use std::time::Instant;

/// What a thing made. It is dropped after its time was taken.
pub(crate) type Made = Box<dyn Any>;

/// Seconds that each of `N` things took, round by round.
pub(crate) struct Rounds<const N: usize>(Vec<[f64; N]>);

impl<const N: usize> Rounds<N> {
    /// Times each thing once a round, in turn. Just before, it runs once untimed, so that what the one before it left
    /// in caches and in the heap does not show.
    pub(crate) fn race(rounds: usize, things: &mut [&mut dyn FnMut() -> Made; N]) -> Self {
        let mut times = vec![[0.0; N]; rounds];
        for row in &mut times {
            for (thing, seconds) in things.iter_mut().zip(row) {
                drop(black_box(thing()));
                let begin = Instant::now();
                let made = black_box(thing());
                *seconds = begin.elapsed().as_secs_f64();
                drop(made);
            }
        }
        Self(times)
    }

    /// The median over all rounds of a figure made from one round's times.
    pub(crate) fn median(&self, figure: impl Fn(&[f64; N]) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.0.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    }

    /// How many times as fast thing `i` is as thing `j`.
    pub(crate) fn speedup(&self, i: usize, j: usize) -> f64 {
        self.median(|times| times[j] / times[i])
    }
}

/// How many rounds to run: `BREAKBULK_BENCH_ROUNDS`, or as many as still fit a coffee break.
pub(crate) fn rounds() -> usize {
    let set = std::env::var("BREAKBULK_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok());
    set.filter(|rounds| *rounds > 0).unwrap_or(21)
}
