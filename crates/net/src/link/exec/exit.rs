//! How a child process ended.

use std::fmt;

use rustix::process::WaitIdStatus;

use crate::link::Arrival;

/// How a child process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// By itself, with a status.
    Status(i32),
    /// By a signal.
    Signal(i32),
    /// Not known, because other code in this process has reaped the child.
    Unknown,
}

impl Exit {
    /// Whether it ended by itself and says that all went well.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Status(0))
    }

    /// As the end of a link.
    pub(super) fn arrival(self, name: &str) -> Arrival {
        Arrival::Exited { code: if self.is_success() { 1000 } else { 1011 }, text: format!("{name} {self}") }
    }
}

impl From<&WaitIdStatus> for Exit {
    fn from(status: &WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(status), _) => Self::Status(status),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

/// Follows the name of the program.
impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exited with status {status}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::Unknown => f.write_str("ended, and how is not known"),
        }
    }
}
