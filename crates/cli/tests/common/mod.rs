//! The program in surroundings that a test made.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `breakbulk` in `dir`, with nothing in the environment but `variables`.
pub(crate) fn breakbulk(dir: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_breakbulk"))
        .args(args)
        .current_dir(dir)
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
