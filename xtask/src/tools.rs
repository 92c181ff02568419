//! Programs that a task needs, installed when they are missing.

use std::process::{Command, Stdio};

use crate::run::{Failure, cargo, must};

/// Installs the cargo subcommand `cargo-NAME`, if it is not there. Unoptimized: that is built in half the time, and what
/// these do takes seconds.
pub(crate) fn subcommand(name: &str) -> Result<(), Failure> {
    if works(&mut cargo(&format!("{name} --version"))) {
        return Ok(());
    }
    println!("cargo-{name} is missing: building it from crates.io, unoptimized, which takes a minute or two");
    let fast = [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "16")];
    let fast = fast.map(|(key, value)| (format!("CARGO_PROFILE_RELEASE_{key}"), value));
    must(cargo(&format!("install --locked cargo-{name}")).envs(fast))
}

/// Adds a component of the toolchain, if it is not there. A minimal toolchain lacks `rustfmt` and `clippy`.
pub(crate) fn component(name: &str, probe: &str) -> Result<(), Failure> {
    if works(&mut cargo(probe)) {
        return Ok(());
    }
    println!("{name} is missing: adding it to the toolchain");
    must(Command::new("rustup").args(["component", "add", name]))
}

/// Installs system packages with `apt-get`, if the program is not there and we may.
pub(crate) fn system(program: &str, packages: &str) -> Result<(), Failure> {
    if works(Command::new(program).arg("--version")) {
        return Ok(());
    }
    let may = cfg!(target_os = "linux") && works(Command::new("apt-get").arg("--version")) && is_root();
    if !may {
        return Err(Failure::Failed(format!("{program} is missing: install it, and run this again")));
    }
    println!("{program} is missing: installing {packages}");
    must(Command::new("apt-get").args(["update", "--quiet"]))?;
    must(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends"]).args(packages.split(' ')))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Whether the command can be run at all.
pub(crate) fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
