//! `cargo xtask sim`: many seeds of the simulation, optimized.

use crate::args::Args;
use crate::run::{Failure, cargo, must};

pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let seeds: Option<u64> = args.value("--seeds")?;
    let from: Option<u64> = args.value("--from")?;
    args.end()?;
    let Some(seeds) = seeds else {
        return Err(Failure::Usage("sim needs --seeds N".into()));
    };
    let mut command = cargo("test --release -p breakbulk-proto --test sim -- --nocapture");
    command.env("BREAKBULK_SIM_SEEDS", seeds.to_string());
    if let Some(from) = from {
        command.env("BREAKBULK_SIM_FROM", from.to_string());
    }
    must(&mut command)
}
