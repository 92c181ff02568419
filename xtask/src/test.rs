//! `cargo xtask test`: everything that must hold before a change is kept.

use crate::run::{Failure, Steps, cargo, must};
use crate::{interop, page, segments, tools};

pub(crate) fn run() -> Result<(), Failure> {
    let mut steps = Steps::default();
    let result = all(&mut steps);
    steps.summary();
    if result.is_ok() {
        println!("All passed.");
    }
    result
}

fn all(steps: &mut Steps) -> Result<(), Failure> {
    steps.step("tools", || {
        tools::component("rustfmt", "fmt --version")?;
        // The allocator of the program is built with it.
        tools::system("make", "make")?;
        tools::component("clippy", "clippy --version")?;
        tools::subcommand("deny")
    })?;
    steps.step("peers", || interop::install().and_then(|()| segments::install()))?;
    steps.step("browser", page::install)?;
    steps.step("page", page::check)?;
    steps.step("format", || must(&mut cargo("fmt --all --check")))?;
    steps.step("lints", || must(&mut cargo("clippy --workspace --all-targets --all-features -- -D warnings")))?;
    steps.step("dependencies", || {
        println!("Advisories are not checked here: their database needs a network. Run `cargo deny check advisories`.");
        must(&mut cargo("deny check licenses bans sources"))
    })?;
    steps.step("tests", || must(&mut cargo("test --workspace --all-features --no-fail-fast")))?;
    steps.step("segments", || segments::test(None, None))?;
    // With the program that the tests have built.
    steps.step("page in a browser", page::browse)?;
    steps.step("documentation", || {
        must(cargo("doc --workspace --all-features --no-deps").env("RUSTDOCFLAGS", "-D warnings"))
    })
}
