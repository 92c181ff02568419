//! `cargo xtask page`: the page's modules, what is vendored into it, and the page in a browser, with what they need installed first.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::interop::{self, once};
use crate::run::{Failure, cargo, must, root};
use crate::tools;

/// Tests the page alone.
pub(crate) fn run() -> Result<(), Failure> {
    install()?;
    // The agents that the page drives.
    interop::install()?;
    check()?;
    must(&mut cargo("build --package breakbulk-cli"))?;
    browse()
}

/// Installs npm packages, and a browser.
pub(crate) fn install() -> Result<(), Failure> {
    tools::system("node", "nodejs")?;
    tools::system("npm", "npm")?;
    tools::system("git", "git")?;
    tools::system("chromium", "chromium")?;
    let web = root().join("web");
    once(&web.join("package-lock.json"), &web.join("node_modules/.installed"), || {
        must(Command::new("npm").arg("ci").current_dir(&web))
    })
}

/// Checks the types of the page's modules, tests them, and compares what is vendored with what the packages make.
pub(crate) fn check() -> Result<(), Failure> {
    must(Command::new("npm").args(["run", "--silent", "check"]).current_dir(root().join("web")))
}

/// Tests the page of the built program in a browser.
pub(crate) fn browse() -> Result<(), Failure> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let mut tests = Command::new("npm");
    tests.args(["run", "--silent", "test:browser"]).current_dir(root().join("web"));
    must(tests.env("BREAKBULK", target.join("debug/breakbulk")))
}
