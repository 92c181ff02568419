//! Seeded simulation of the real driver, the real WebSocket link and the real gateway, on turmoil's network and clock.
//!
//! A host with a durable log, clients that come back, and two gateways between plain ones; partitions, resets in the
//! middle of a group, stalled readers, pauses, crashes, slow and lossy ways. The ledger is that of the core's simulation.
//! `BREAKBULK_SIM_SEEDS` says how many seeds to run, `BREAKBULK_SIM_FROM` which is the first.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod sim {
    pub(crate) mod client;
    pub(crate) mod client_messages;
    pub(crate) mod faults;
    pub(crate) mod gate;
    pub(crate) mod host;
    pub(crate) mod line;
    pub(crate) mod memory;
    pub(crate) mod model_host;
    pub(crate) mod plan;
    pub(crate) mod prove;
    pub(crate) mod sabotaged_link;
    pub(crate) mod saboteur;
    pub(crate) mod saboteurs;
    pub(crate) mod shared;
    pub(crate) mod trouble;
    pub(crate) mod wire;
    pub(crate) mod world;

    // The words and the books of the core's simulation. Not every part of them is needed here.
    #[path = "../../../proto/tests/sim/follow.rs"]
    #[expect(dead_code, reason = "nobody leaves a channel here")]
    pub(crate) mod follow;
    #[path = "../../../proto/tests/sim/ledger.rs"]
    #[expect(dead_code, reason = "nothing is excused here")]
    pub(crate) mod ledger;
    #[path = "../../../proto/tests/sim/log.rs"]
    pub(crate) mod log;
    #[path = "../../../proto/tests/sim/rng.rs"]
    #[expect(dead_code, reason = "machines get their ids from the system here")]
    pub(crate) mod rng;
    #[path = "../../../proto/tests/sim/runs.rs"]
    pub(crate) mod runs;
    #[path = "../../../proto/tests/sim/segment.rs"]
    #[expect(dead_code, reason = "segments are not cut anew here")]
    pub(crate) mod segment;
    #[path = "../../../proto/tests/sim/tally.rs"]
    pub(crate) mod tally;
    #[path = "../../../proto/tests/sim/trace.rs"]
    pub(crate) mod trace;
}

use sim::plan::{Mode, Plan};
use sim::prove::prove;
use sim::world;

/// Seeds that are run unless somebody asks for more.
const RUNS: u64 = 200;

/// What has to happen somewhere, or the simulation does not show what it claims.
const HAPPENS: [&str; 24] = [
    "partitions",
    "partitions one way",
    "resets",
    "drops inside a group",
    "ways held",
    "latencies changed",
    "runs with lossy ways",
    "readers stalled",
    "ends paused",
    "host paused",
    "crashes of the host",
    "crashes of a gateway",
    "crashes of a client",
    "peers given up as silent",
    "resumes",
    "resumes from before what was seen",
    "replays",
    "snapshots instead of replays",
    "actions skipped as applied",
    "subscribe snapshots",
    "groups expired",
    "requests of the host",
    "requests answered",
    "requests rejected with a disconnect",
];

#[test]
fn nothing_is_lost_duplicated_reordered_or_altered() {
    prove(RUNS, &HAPPENS, |seed| world::run(Plan::new(seed)));
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..20 {
        let prints = [0, 1].map(|_| world::run(Plan::new(seed)).print);
        assert_eq!(prints[0], prints[1], "seed {seed}");
    }
}

/// A gateway whose way to the host broke closes its client. Twice in a row, right after the same message, that was taken
/// for a limit of the client's, and what was longer than half of it was refused from then on.
#[test]
fn a_gateway_learns_nothing_about_a_peer_from_a_close_of_its_own() {
    let outcome = world::run(Plan::new(89).busy(Mode::Plain, 30));
    assert!(outcome.counts.is_clean(), "seed 89: {:?}", outcome.notes);
}
