//! `cargo xtask count`: instructions per byte of splitting and of joining, which no busy machine disturbs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::{Failure, cargo, output, root};
use crate::tools;

/// Dialect and frame cap, as `crates/proto/benches/count.rs` takes them.
const CASES: [(&str, &str); 4] = [("ahp", "900000"), ("ahp", "65536"), ("cep22", "65536"), ("stdio", "61440")];

pub(crate) fn run() -> Result<(), Failure> {
    if !tools::works(Command::new("valgrind").arg("--version")) {
        let how = "install it with the system's packages (`apt-get install valgrind`, `dnf install valgrind`)";
        return Err(Failure::Failed(format!("valgrind is missing: {how}")));
    }
    let program = build()?;
    println!("| dialect | cap | split, instructions per byte | join, instructions per byte |");
    println!("|---|--:|--:|--:|");
    for (dialect, cap) in CASES {
        // Each stage does what the one before does, and one thing more: the difference is that thing's cost.
        let [built, split, joined] = ["build", "split", "join"].map(|stage| count(&program, [dialect, cap, stage]));
        let (built, split, joined) = (built?, split?, joined?);
        let per_byte = |more: u64, less: u64| more.saturating_sub(less) as f64 / split.bytes as f64;
        let (split_cost, join_cost) =
            (per_byte(split.instructions, built.instructions), per_byte(joined.instructions, split.instructions));
        println!("| {dialect} | {cap} | {split_cost:.3} | {join_cost:.3} |");
    }
    println!("\nvalgrind knows no AVX-512 and no SHA instructions: on a processor that has them, shorter code runs.");
    println!("Most of cep22's figures is SHA-256 done without them.");
    Ok(())
}

/// Builds the program that is counted; returns where it lies.
fn build() -> Result<PathBuf, Failure> {
    let mut command = cargo("build --profile bench --package breakbulk-proto --bench count --message-format json");
    let printed = output(command.stderr(Stdio::inherit()))?;
    let mut paths = printed.lines().filter_map(|line| {
        let (_, rest) = line.split_once(r#""executable":""#)?;
        rest.split_once('"').map(|(path, _)| PathBuf::from(path))
    });
    paths.next_back().ok_or_else(|| Failure::Failed("cargo built no bench named count".into()))
}

struct Count {
    /// Executed instructions.
    instructions: u64,
    /// Length of the message, as the program prints it.
    bytes: u64,
}

fn count(program: &Path, args: [&str; 3]) -> Result<Count, Failure> {
    let out = root().join("target/callgrind.out");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet"]).arg(format!("--callgrind-out-file={}", out.display()));
    let printed = output(command.arg(program).args(args))?;
    let profile = fs::read_to_string(&out).map_err(|error| Failure::Failed(format!("no profile: {error}")))?;
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok());
    let instructions = number(profile.lines().find_map(|line| line.strip_prefix("summary:")));
    match (instructions, number(printed.lines().last())) {
        (Some(instructions), Some(bytes)) => Ok(Count { instructions, bytes }),
        _ => Err(Failure::Failed("the profile has no summary, or the program printed no length".into())),
    }
}
