//! `cargo xtask fuzz`: each fuzz target for a while.

use crate::args::Args;
use crate::run::{Failure, Steps, cargo, must, output};
use crate::tools;

/// Long enough that a regression in a parser shows, short enough to wait for.
const SECONDS: u64 = 60;

pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let seconds = args.value("--seconds")?.unwrap_or(SECONDS);
    let only: Option<String> = args.value("--target")?;
    args.end()?;
    tools::subcommand("fuzz")?;
    let all = output(&mut cargo("fuzz list"))?;
    let targets: Vec<&str> = all.lines().filter(|name| only.as_deref().is_none_or(|only| only == *name)).collect();
    if targets.is_empty() {
        return Err(Failure::Usage(format!("no such fuzz target; there are:\n{all}")));
    }
    let mut steps = Steps::default();
    let result = targets.iter().try_for_each(|target| steps.step(target, || one(target, seconds)));
    steps.summary();
    result
}

fn one(target: &str, seconds: u64) -> Result<(), Failure> {
    // The sanitizer and the coverage counters are unstable flags; with this variable a stable compiler takes them.
    let mut command = cargo(&format!("fuzz run {target} -- -max_total_time={seconds} -dict=fuzz/words.dict"));
    must(command.env("RUSTC_BOOTSTRAP", "1"))
}
