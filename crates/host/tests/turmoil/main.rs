//! Seeded simulation of the whole host on turmoil's network and clock, with the real links, drivers and clients.
//!
//! Clients dispatch, others follow; partitions, resets in the middle of a group, stalled readers, slow ways, a slow log,
//! crashes of the host and of clients, two links of one client. At the end a ledger compares the log with what everybody
//! was told and with what they make of it. `BREAKBULK_SIM_SEEDS` says how many seeds to run, `BREAKBULK_SIM_FROM` which is
//! the first, and `BREAKBULK_SIM_SEED` names one alone. A seed decides what is done and what goes wrong; ids and the order
//! of what happens at the same moment are the system's, so that a rare failure may take a few runs of its seed.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "."]
mod sim {
    pub(crate) mod actions;
    pub(crate) mod agent;
    pub(crate) mod audit;
    pub(crate) mod auditor;
    pub(crate) mod author;
    pub(crate) mod client_run;
    pub(crate) mod faults;
    pub(crate) mod final_log;
    pub(crate) mod follower;
    pub(crate) mod host;
    pub(crate) mod plan;
    pub(crate) mod received;
    pub(crate) mod saboteurs;
    pub(crate) mod shared;
    pub(crate) mod store;
    pub(crate) mod watcher;
    pub(crate) mod world;

    // The words and the books of the other simulations. Not every part of them is needed here.
    #[path = "../../../proto/tests/sim/ledger.rs"]
    #[expect(dead_code, reason = "the books here are of entries, not of messages")]
    pub(crate) mod ledger;
    #[path = "../../../net/tests/sim/prove.rs"]
    pub(crate) mod prove;
    #[path = "../../../proto/tests/sim/rng.rs"]
    #[expect(dead_code, reason = "machines get their ids from the system here")]
    pub(crate) mod rng;
    #[path = "../../../proto/tests/sim/runs.rs"]
    pub(crate) mod runs;
    #[path = "../../../net/tests/sim/sabotaged_link.rs"]
    pub(crate) mod sabotaged_link;
    #[path = "../../../net/tests/sim/saboteur.rs"]
    pub(crate) mod saboteur;
    #[path = "../../../proto/tests/sim/segment.rs"]
    #[expect(dead_code, reason = "segments are not cut anew here")]
    pub(crate) mod segment;
    #[path = "../../../proto/tests/sim/tally.rs"]
    pub(crate) mod tally;
    #[path = "../../../proto/tests/sim/trace.rs"]
    #[expect(dead_code, reason = "messages are not traced here")]
    pub(crate) mod trace;
    #[path = "../../../net/tests/sim/trouble.rs"]
    pub(crate) mod trouble;
    #[path = "../../../net/tests/sim/wire.rs"]
    pub(crate) mod wire;
}

use sim::plan::Plan;
use sim::prove::prove;
use sim::world;

/// Seeds that are run unless somebody asks for more.
const RUNS: u64 = 80;

/// What has to happen somewhere, or the simulation does not show what it claims. Drops inside a group and actions that a
/// follower had already are counted too, and happen in nearly all runs.
const HAPPENS: [&str; 18] = [
    "partitions",
    "resets",
    "ways held",
    "latencies changed",
    "readers stalled",
    "crashes of the host",
    "crashes of a client",
    "moves to a second link",
    "older links fenced",
    "runs on a disk",
    "runs with a cap of 65536",
    "runs with a cap of 900000",
    "runs without a cap",
    "replays",
    "snapshots instead of replays",
    "windows",
    "actions shown to their sender",
    "deltas",
];

#[test]
fn what_is_acknowledged_is_kept_and_everybody_hears_of_it_once_and_in_order() {
    prove(RUNS, &HAPPENS, |seed| world::run(Plan::new(seed)));
}
