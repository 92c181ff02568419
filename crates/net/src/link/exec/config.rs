//! How a child process is started, and why it could not be.

use std::io;
use std::time::Duration;

use thiserror::Error;

use breakbulk_proto::Capacity;

use super::Exit;

/// Enough time for a program to save its state and exit.
const GRACE: Duration = Duration::from_secs(2);

/// A command, and the link to it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExecConfig {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The longest line that it takes, line end included.
    pub capacity: Capacity,
    /// The longest frame that we accept from it.
    pub max_frame_bytes: u64,
    /// When the link is closed, how long the command has to read the rest of its input and exit by itself. After that its process group
    /// gets SIGTERM, and later SIGKILL.
    pub grace: Duration,
}

impl ExecConfig {
    /// A command with a grace period of two seconds.
    #[must_use]
    pub const fn new(command: Vec<String>, capacity: Capacity, max_frame_bytes: u64) -> Self {
        Self { command, capacity, max_frame_bytes, grace: GRACE }
    }
}

/// Why there is no link to a child process.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExecError {
    /// There is no program in the command.
    #[error("the command is empty")]
    NoCommand,
    /// The system did not start it.
    #[error("cannot start {command}: {}", why_not_started(command, source))]
    Start {
        /// The program.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// It has exited, and is not started again.
    #[error("{command} {exit}")]
    Exited {
        /// The program.
        command: String,
        /// How.
        exit: Exit,
    },
}

/// Why a program was not started, where the system's words would not say which file is missing.
fn why_not_started(command: &str, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound if command.contains('/') => format!("there is no file {command}"),
        io::ErrorKind::NotFound => format!("{command} is not in PATH"),
        _ => source.to_string(),
    }
}
