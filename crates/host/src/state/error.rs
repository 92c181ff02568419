//! Why the state cannot answer.

use ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use thiserror::Error;

use crate::error::MethodError;
use crate::log::{DamagedRecord, ReadError, WriteError};

/// Why the state cannot answer, one variant for each reaction of a caller.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StateError {
    /// There is no such channel.
    #[error("there is no such channel")]
    NotFound,
    /// The channel is no chat, so it has no turns.
    #[error("the channel is not a chat")]
    NotAChat,
    /// The cursor is not one of this host, or what it points to no longer exists.
    #[error("the cursor is not one that this host gave, or what it points to is gone")]
    Cursor,
    /// A list of no entries, or of fewer, was asked for.
    #[error("limit must be at least 1")]
    Limit,
    /// A record that is needed is damaged. Snapshots show the channel as it was before that record where possible; it takes no
    /// more actions.
    #[error("{0} is damaged")]
    Damaged(DamagedRecord),
    /// A saved state or row is missing or cannot be parsed: this is a bug.
    #[error("a saved snapshot or turn cannot be read: the log of the host is inconsistent")]
    Gone,
    /// The log cannot be read now.
    #[error("the log cannot be read: {0}")]
    Log(String),
    /// The log has no space for what the state has to save before it can answer.
    #[error("the log is full")]
    Full,
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

impl StateError {
    /// The code for a client.
    #[must_use]
    pub const fn code(&self) -> i32 {
        match self {
            Self::NotFound => ahp_error_codes::NOT_FOUND,
            Self::NotAChat | Self::Cursor | Self::Limit => json_rpc_error_codes::INVALID_PARAMS,
            Self::Damaged(_) | Self::Gone | Self::Log(_) | Self::Full | Self::Closed => {
                json_rpc_error_codes::INTERNAL_ERROR
            }
        }
    }
}

impl From<StateError> for MethodError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Full => Self::log_full(),
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

impl From<ReadError> for StateError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged(record) => Self::Damaged(record),
            ReadError::Closed => Self::Closed,
            // Only entries before a saved snapshot are trimmed, and the state begins at a snapshot.
            ReadError::Trimmed { .. } => Self::Gone,
            ReadError::Store(reason) => Self::Log(reason),
        }
    }
}

impl From<WriteError> for StateError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Closed => Self::Closed,
            WriteError::NotOpen(_) => Self::NotFound,
            WriteError::Full => Self::Full,
            other => Self::Log(other.to_string()),
        }
    }
}

impl From<serde_json::Error> for StateError {
    fn from(_: serde_json::Error) -> Self {
        Self::Gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_is_one_error_whoever_meets_it() {
        let met = MethodError::from(StateError::from(WriteError::Full));
        assert_eq!(met, MethodError::log_full());
        assert!(!met.message.contains("read"), "{}", met.message);
    }
}
