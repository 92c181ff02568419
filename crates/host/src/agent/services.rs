//! What a host does for its agents: files and terminals inside the roots, which clients see as their own.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::log::BoxFuture;

/// What a host does for an agent that wants its host to read files and to run commands. Cheap to copy.
#[derive(Clone, Default)]
pub struct HostServices(Option<Arc<dyn AgentServices>>);

/// Why a host did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// It is outside of the roots, or not allowed for another reason.
    #[error("{0}")]
    Denied(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

/// A command that an agent runs in a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TerminalCommand {
    /// The program and its arguments. They reach the program as they are, without a shell.
    pub command: Vec<OsString>,
    /// Set in the program's environment beside what every terminal has.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory; the session's without one.
    pub directory: Option<PathBuf>,
}

/// What a terminal has shown, and how its command has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TerminalOutput {
    /// What it has shown, as far as it is kept.
    pub text: String,
    /// How the command ended; none while it runs.
    pub exit: Option<TerminalExit>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TerminalExit {
    /// The exit code; none if a signal ended it.
    pub code: Option<i64>,
}

/// What a host does for the agent of one chat.
pub(crate) trait AgentServices: Send + Sync + 'static {
    fn read_file(&self, path: PathBuf) -> BoxFuture<'_, Result<String, ServiceError>>;
    fn write_file(&self, path: PathBuf, text: String) -> BoxFuture<'_, Result<(), ServiceError>>;
    fn create_terminal(&self, command: TerminalCommand) -> BoxFuture<'_, Result<String, ServiceError>>;
    fn terminal_output<'a>(&'a self, terminal: &'a str) -> BoxFuture<'a, Result<TerminalOutput, ServiceError>>;
    fn wait_for_exit<'a>(&'a self, terminal: &'a str) -> BoxFuture<'a, Result<TerminalExit, ServiceError>>;
    fn kill_terminal<'a>(&'a self, terminal: &'a str) -> BoxFuture<'a, Result<(), ServiceError>>;
    fn release_terminal<'a>(&'a self, terminal: &'a str) -> BoxFuture<'a, Result<(), ServiceError>>;
}

impl HostServices {
    pub(crate) fn new(services: impl AgentServices) -> Self {
        Self(Some(Arc::new(services)))
    }

    /// Whether there are any: a conversation outside of a host has none.
    #[must_use]
    pub const fn are_offered(&self) -> bool {
        self.0.is_some()
    }

    /// Reads a text file.
    ///
    /// # Errors
    /// The file is outside of the roots, is not there, or is no text.
    pub async fn read_file(&self, path: PathBuf) -> Result<String, ServiceError> {
        self.offered()?.read_file(path).await
    }

    /// Writes a text file, and tells those who follow changes. Directories that are missing are made.
    ///
    /// # Errors
    /// The file is outside of the roots, or cannot be written.
    pub async fn write_file(&self, path: PathBuf, text: String) -> Result<(), ServiceError> {
        self.offered()?.write_file(path, text).await
    }

    /// Runs a command in a terminal that clients see; returns the URI of its channel.
    ///
    /// # Errors
    /// The directory is outside of the roots, there are too many terminals, or the command cannot be started.
    pub async fn create_terminal(&self, command: TerminalCommand) -> Result<String, ServiceError> {
        self.offered()?.create_terminal(command).await
    }

    /// What a terminal has shown so far.
    ///
    /// # Errors
    /// There is no such terminal of this chat.
    pub async fn terminal_output(&self, terminal: &str) -> Result<TerminalOutput, ServiceError> {
        self.offered()?.terminal_output(terminal).await
    }

    /// Waits until the command of a terminal has ended.
    ///
    /// # Errors
    /// There is no such terminal of this chat.
    pub async fn wait_for_exit(&self, terminal: &str) -> Result<TerminalExit, ServiceError> {
        self.offered()?.wait_for_exit(terminal).await
    }

    /// Kills the command of a terminal. The terminal stays.
    ///
    /// # Errors
    /// There is no such terminal of this chat.
    pub async fn kill_terminal(&self, terminal: &str) -> Result<(), ServiceError> {
        self.offered()?.kill_terminal(terminal).await
    }

    /// Ends a terminal, with its command if that still runs.
    ///
    /// # Errors
    /// There is no such terminal of this chat.
    pub async fn release_terminal(&self, terminal: &str) -> Result<(), ServiceError> {
        self.offered()?.release_terminal(terminal).await
    }

    fn offered(&self) -> Result<&Arc<dyn AgentServices>, ServiceError> {
        self.0.as_ref().ok_or_else(|| ServiceError::Denied("this host does not offer that".to_owned()))
    }
}

impl fmt::Debug for HostServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostServices").field("are_offered", &self.are_offered()).finish()
    }
}
