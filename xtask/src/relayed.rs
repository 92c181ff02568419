//! `cargo xtask relayed`: cuts connections through a Web PubSub relay many times, and counts what was lost.

use crate::args::Args;
use crate::interop;
use crate::run::{Failure, cargo, must};

/// The test of one seed and so many drops, as part of the interop tests.
const TEST: &str = "a_client_loses_repeats_reorders_and_alters_nothing_while_connections_of_the_relay_are_cut";

/// Cuts this many connections, if nobody says how many.
const DROPS: u64 = 100;
/// With this seed.
const SEED: u64 = 21;

pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let (drops, seed) = (args.value("--drops")?.unwrap_or(DROPS), args.value("--seed")?.unwrap_or(SEED));
    args.end()?;
    interop::install()?;
    let mut test = cargo("test --workspace --test peers");
    test.args(["--", TEST, "--nocapture"]);
    test.env("BREAKBULK_INTEROP_DROPS", drops.to_string()).env("BREAKBULK_INTEROP_SEED", seed.to_string());
    must(&mut test)
}
