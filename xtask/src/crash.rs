//! `cargo xtask crash`: many rounds of `kill -9` under load, each followed by the ledger.

use crate::args::Args;
use crate::run::{Failure, cargo, must};

/// What the tests run too; the sabotage beside it proves the harness, not the host.
const TEST: &str = "nothing_acknowledged_is_lost_duplicated_or_reordered_by_kill_9";

pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let rounds: Option<u64> = args.value("--rounds")?;
    let seed: Option<u64> = args.value("--seed")?;
    args.end()?;
    let Some(rounds) = rounds.filter(|rounds| *rounds > 0) else {
        return Err(Failure::Usage("crash needs --rounds N".into()));
    };
    let mut command = cargo("test -p breakbulk-cli --test crash -- --exact --nocapture");
    command.arg(TEST).env("BREAKBULK_CRASH_ROUNDS", rounds.to_string());
    if let Some(seed) = seed {
        command.env("BREAKBULK_CRASH_SEED", seed.to_string());
    }
    must(&mut command)
}
