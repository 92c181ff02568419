//! `cargo xtask segments`: the tests of the TypeScript package, and what they need.

use std::fs;
use std::process::Command;

use crate::args::Args;
use crate::interop::once;
use crate::run::{Failure, cargo, must, root};
use crate::tools;

/// Runs the tests alone.
pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let seeds: Option<u64> = args.value("--seeds")?;
    let from: Option<u64> = args.value("--from")?;
    args.end()?;
    install()?;
    must(&mut cargo("test --workspace --all-features --test vectors"))?;
    test(seeds, from)
}

/// Installs what the tests need: npm packages, and a browser.
pub(crate) fn install() -> Result<(), Failure> {
    tools::system("node", "nodejs")?;
    tools::system("npm", "npm")?;
    tools::system("chromium", "chromium")?;
    let package = root().join("packages/segments");
    once(&package.join("package-lock.json"), &package.join("node_modules/.installed"), || {
        must(Command::new("npm").arg("ci").current_dir(&package))
    })
}

/// Checks that the committed build is what the sources make, runs the tests against the machine and the program of this tree, and compares
/// how many vectors ran with what the Rust test has counted.
pub(crate) fn test(seeds: Option<u64>, from: Option<u64>) -> Result<(), Failure> {
    // As `cargo xtask test` has built the programs before, this builds nothing then.
    must(&mut cargo("test --workspace --all-features --no-run --test cli --test peers"))?;
    let package = root().join("packages/segments");
    let mut tests = Command::new("npm");
    tests.args(["test", "--silent"]).current_dir(&package);
    for (key, value) in [("BREAKBULK_SEGMENTS_SEEDS", seeds), ("BREAKBULK_SEGMENTS_FROM", from)] {
        if let Some(value) = value {
            tests.env(key, value.to_string());
        }
    }
    must(&mut tests)?;
    compare_counts()
}

/// Each file of vectors that the TypeScript test runs has run as often in both languages.
fn compare_counts() -> Result<(), Failure> {
    let read = |path: &str| {
        let path = root().join(path);
        fs::read_to_string(&path).map_err(|error| Failure::Failed(format!("cannot read {}: {error}", path.display())))
    };
    let typescript = read("packages/segments/build/vector-counts.txt")?;
    let rust = read("target/tmp/vector-counts.txt")?;
    let is_shared = |line: &&str| line.starts_with("vectors: ahp-") || line.starts_with("vectors: json-");
    let rust: Vec<&str> = rust.lines().filter(is_shared).collect();
    let typescript: Vec<&str> = typescript.lines().collect();
    if rust == typescript && !rust.is_empty() {
        println!("vectors: {} files ran as often in TypeScript as in Rust", rust.len());
        return Ok(());
    }
    Err(Failure::Failed(format!("vectors differ: Rust ran {rust:?}, TypeScript ran {typescript:?}")))
}
