//! What a child process is started from, and why it cannot be.

use std::io;
use std::time::Duration;

use thiserror::Error;

use breakbulk_proto::Capacity;

use super::Exit;

/// A moment to exit by itself, for a program that saves its state.
const GRACE: Duration = Duration::from_secs(2);

/// A command, and the link to it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExecConfig {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long a line it takes, line end counted.
    pub capacity: Capacity,
    /// How long a frame we take from it.
    pub max_frame_bytes: u64,
    /// How long it has to read the rest of its input and exit by itself when the link is closed. Then its process group
    /// gets SIGTERM, and later SIGKILL.
    pub grace: Duration,
}

impl ExecConfig {
    /// A command with two seconds of grace.
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
    #[error("cannot start {command}: {source}")]
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
