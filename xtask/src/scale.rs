//! `cargo xtask scale`: a simulated fleet, at a size that no machine here has.

use crate::args::Args;
use crate::run::{Failure, cargo, must};

pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let seed: Option<u64> = args.value("--seed")?;
    let small = args.flag("--small");
    args.end()?;
    let mut command = cargo("run --release -p breakbulk-scale --");
    if let Some(seed) = seed {
        command.args(["--seed", &seed.to_string()]);
    }
    // The page has the run with the first seed.
    match (small, seed) {
        (true, _) => must(command.arg("--small")),
        (false, Some(_)) => must(&mut command),
        (false, None) => must(command.args(["--write", "docs"])),
    }
}
