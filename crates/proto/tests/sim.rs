//! Seeded simulation: machines, a fake clock, and networks that delay, cut, stall, pause, corrupt, refuse and repeat.
//!
//! A ledger of (lane, n, SHA-256) counts what was lost, duplicated, reordered and altered. `BREAKBULK_SIM_SEEDS` says
//! how many seeds to run, `BREAKBULK_SIM_FROM` which is the first.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod sim {
    pub(crate) mod accounting;
    pub(crate) mod client;
    pub(crate) mod endpoint;
    pub(crate) mod faults;
    pub(crate) mod follow;
    pub(crate) mod host;
    pub(crate) mod ledger;
    pub(crate) mod line;
    pub(crate) mod link;
    pub(crate) mod log;
    pub(crate) mod middle;
    pub(crate) mod opening;
    pub(crate) mod pipe;
    pub(crate) mod plan;
    pub(crate) mod relay;
    pub(crate) mod rng;
    pub(crate) mod runs;
    pub(crate) mod saboteurs;
    pub(crate) mod segment;
    pub(crate) mod tally;
    pub(crate) mod trace;
    pub(crate) mod transfers;
    pub(crate) mod world;
}

use sim::runs::Runs;

/// What has to happen somewhere, or the simulation does not show what it claims.
const HAPPENS: [&str; 40] = [
    "cuts",
    "cuts inside a group",
    "machines dropped with all they held",
    "stalls",
    "pauses",
    "caps shrunk",
    "segments",
    "resumes",
    "resumes from before what was seen",
    "replays",
    "snapshots instead of replays",
    "subscribe snapshots",
    "channels left",
    "actions skipped as applied",
    "actions by reference",
    "groups expired at a client",
    "groups expired at the host",
    "falls back to initialize",
    "requests of the host",
    "steps without room",
    "close-group-expired",
    "close-over-budget",
    "close-evicted",
    "close-held-too-much",
    "close-unsendable",
    "close-cap-shrank",
    "runs with flipped bits",
    "relay refusals: too fast",
    "relay refusals: too large",
    "relay repeats",
    "transfers that failed",
    "transfers that expired",
    "callers told of a failure",
    "runs with a relay that flips bits",
    "pipe frames",
    "pipe frames repeated",
    "pipe frames dropped",
    "pipe log lines",
    "pipe messages that failed",
    "pipe messages that expired",
];

#[test]
fn nothing_is_lost_duplicated_reordered_or_altered() {
    let runs = Runs::from_environment(10_000);
    println!("simulation: {} seeds from {}", runs.count, runs.from);
    let sums = runs.all(|seed| match seed % 8 {
        6 => sim::transfers::run(seed),
        7 => sim::pipe::run(seed),
        _ => sim::world::run(sim::plan::Plan::new(seed)),
    });
    println!("{} runs in {:.1} s: {}\n{}", sums.runs, sums.seconds, sums.counts, sums.tally.lines());
    if let Some(failure) = sums.failure() {
        panic!("{failure}");
    }
    assert!(sums.counts.is_clean());
    if runs.count >= 10_000 {
        assert_eq!(sums.tally.missing(&HAPPENS), Vec::<&str>::new(), "these never happened");
    }
}
