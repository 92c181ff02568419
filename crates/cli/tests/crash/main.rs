//! `kill -9` of the real program under load, round after round on one log; after each round, the ledger.
//!
//! Clients of ours write and come back by themselves, others only listen and are strict. Acknowledged is what its sender
//! saw come back as its own. A seed repeats who sends what, through which caps, and when the host is killed; what the host is
//! doing in that moment is up to the machine, so a failing seed may need a few runs.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chance;
mod fleet;
mod follower;
mod host;
mod ledger;
mod life;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../../host/tests/nats/mod.rs"]
mod nats;
mod reading;
mod writer;

use ledger::Sabotage;
use life::{Plan, Summary};

/// Rounds on one log. Each reads all of it, so more of them are done on several logs, each with the next seed.
const ROUNDS_A_LIFE: u64 = 20;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn run(plan: &Plan) -> Result<Summary, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let done = runtime.block_on(life::live(plan));
    runtime.shutdown_background();
    let again =
        |error| format!("{error}\nrun it again: cargo xtask crash --rounds {} --seed {}", plan.rounds, plan.seed);
    done.map_err(again)
}

#[test]
fn nothing_acknowledged_is_lost_duplicated_or_reordered_by_kill_9() {
    let number = |name, default| variable(name).map_or(default, |text| text.parse().expect(name));
    let (mut left, mut seed) = (number("BREAKBULK_CRASH_ROUNDS", ROUNDS_A_LIFE), number("BREAKBULK_CRASH_SEED", 1));
    let sabotage = variable("BREAKBULK_CRASH_SABOTAGE").map(|name| Sabotage::named(&name));
    let mut all = Summary::default();
    while left > 0 {
        let rounds = left.min(ROUNDS_A_LIFE);
        let summary = run(&Plan { seed, rounds, sabotage }).unwrap_or_else(|error| panic!("{error}"));
        assert!(summary.acknowledged > 0 && summary.shown > 0, "there was load: {summary}");
        all.add(&summary);
        (left, seed) = (left - rounds, seed + 1);
    }
    println!("{all}: 0 lost, 0 duplicated, 0 reordered, 0 altered");
}

#[test]
fn a_reading_that_lacks_one_acknowledged_action_fails_the_round() {
    let error = run(&Plan { seed: 7, rounds: 1, sabotage: Some(Sabotage::Drop) }).unwrap_err();
    assert!(error.contains("1 lost, 0 duplicated, 0 reordered, 0 altered"), "{error}");
    assert!(error.contains("cargo xtask crash --rounds 1 --seed 7"), "{error}");
}
