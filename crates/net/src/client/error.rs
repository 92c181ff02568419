//! Errors that callers of a client get.

use breakbulk_proto::{Message, SendError};
use thiserror::Error;

/// Why a request has no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The connection ended before the answer came. It is not known whether the host acted on the request, so it is not sent again.
    #[error("disconnected before the answer came")]
    Disconnected,
    /// The host answered with an error.
    #[error("the host refused: {message} ({code})")]
    Remote {
        /// The error's code.
        code: i64,
        /// The error's message.
        message: String,
        /// The error's data, as raw JSON.
        data: Option<Message>,
    },
    /// It was not sent, in most cases because it is larger than the host accepts.
    #[error("not sent: {0}")]
    Unsendable(SendError),
    /// No answer came within the configured time, or there was no connection for so long.
    #[error("no answer in time")]
    Timeout,
    /// The subscription was withdrawn, or the host no longer offers the channel.
    #[error("the subscription was withdrawn")]
    Withdrawn,
    /// The params are not JSON.
    #[error("the params are not JSON")]
    NotJson,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why an action was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// It is not JSON.
    #[error("the action is not JSON")]
    NotJson,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}
