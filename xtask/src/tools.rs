//! Programs that a task needs, installed when they are missing.

use std::process::{Command, Stdio};

use crate::run::{Failure, cargo, must};

/// Installs the cargo subcommand `cargo-NAME`, if it is not there.
pub(crate) fn subcommand(name: &str) -> Result<(), Failure> {
    if works(&mut cargo(&format!("{name} --version"))) {
        return Ok(());
    }
    println!("cargo-{name} is missing: building it from crates.io, which takes a few minutes");
    must(&mut cargo(&format!("install --locked cargo-{name}")))
}

/// Adds a component of the toolchain, if it is not there. A minimal toolchain lacks `rustfmt` and `clippy`.
pub(crate) fn component(name: &str, probe: &str) -> Result<(), Failure> {
    if works(&mut cargo(probe)) {
        return Ok(());
    }
    println!("{name} is missing: adding it to the toolchain");
    must(Command::new("rustup").args(["component", "add", name]))
}

/// Whether the command can be run at all.
pub(crate) fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
