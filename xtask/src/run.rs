//! Running commands so that whoever reads the output knows what ran, how long, and what failed.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Why a task did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense. Exits with 2.
    Usage(String),
    /// A step failed. Exits with 1.
    Failed(String),
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// `cargo` with `args`, split at spaces, in the repository's root.
pub(crate) fn cargo(args: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args.split_whitespace()).current_dir(root());
    // What cargo told this program about itself makes build scripts that read it run again: `ring` would be built anew
    // each time that a task follows a plain `cargo` command, or the other way round.
    let about_us = |key: &str| key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_");
    std::env::vars_os().filter_map(|(key, _)| key.into_string().ok()).filter(|key| about_us(key)).for_each(|key| {
        command.env_remove(key);
    });
    command
}

/// The command as one would type it, with the variables that it sets.
pub(crate) fn line(command: &Command) -> String {
    let mut line = String::new();
    for (key, value) in command.get_envs().filter_map(|(key, value)| Some((key, value?))) {
        let value = value.to_string_lossy();
        let quote = if value.contains(' ') { "'" } else { "" };
        let _ = write!(line, "{}={quote}{value}{quote} ", key.to_string_lossy());
    }
    // Whoever types it has `cargo` on the path; where it lies is of no interest.
    let program = Path::new(command.get_program());
    line += &program.file_stem().unwrap_or(command.get_program()).to_string_lossy();
    for arg in command.get_args() {
        let _ = write!(line, " {}", arg.to_string_lossy());
    }
    line
}

/// Prints the command and runs it to its end.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus, Failure> {
    println!("$ {}", line(command));
    command.status().map_err(|error| Failure::Failed(format!("cannot run `{}`: {error}", line(command))))
}

/// Prints the command and runs it; it must succeed.
pub(crate) fn must(command: &mut Command) -> Result<(), Failure> {
    let status = status(command)?;
    if status.success() { Ok(()) } else { Err(Failure::Failed(format!("`{}` failed ({status})", line(command)))) }
}

/// What the command prints; it must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let why = match command.output() {
        Ok(done) if done.status.success() => return Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        Ok(done) => format!("{}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim()),
        Err(error) => error.to_string(),
    };
    Err(Failure::Failed(format!("`{}` failed ({why})", line(command))))
}

/// Named steps, run in order until one fails; then a summary.
#[derive(Default)]
pub(crate) struct Steps(Vec<(String, Duration)>);

impl Steps {
    /// Runs a step, with its name before and its time after.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        println!("\n== {name}");
        let begin = Instant::now();
        let result = step();
        let took = begin.elapsed();
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("== {name}: {verdict} in {:.1} s", took.as_secs_f64());
        self.0.push((format!("{verdict:<7} {name}"), took));
        result
    }

    /// Prints what ran.
    pub(crate) fn summary(&self) {
        println!("\nSummary");
        for (text, took) in &self.0 {
            println!("  {text} ({:.1} s)", took.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/opt/bin/cargo");
        command.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(line(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_failing_command_is_named() {
        let failure = must(cargo("no-such-subcommand").stderr(std::process::Stdio::null()));
        assert!(matches!(failure, Err(Failure::Failed(text)) if text.contains("cargo no-such-subcommand")));
    }
}
