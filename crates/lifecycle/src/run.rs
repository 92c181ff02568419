//! What the translators of all programs share: what became of a line, and why a program has ended.

use crate::{Failure, Outcome};

/// How a line of an agent's program was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// It was understood.
    Taken,
    /// It is of a kind that says nothing here.
    Ignored,
    /// It could not be read, and was skipped.
    Malformed {
        /// How long it was.
        bytes: usize,
    },
}

/// Why an agent's program has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// The host has stopped it, because somebody wanted its turn or its conversation to end.
    Stopped,
    /// It died, or had to be killed.
    Failed(Failure),
}

impl ExitReason {
    /// How a turn ends that was open.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Stopped => Outcome::Cancelled,
            Self::Failed(failure) => Outcome::Failed(failure.clone()),
        }
    }
}
