//! What a caller of a client hears when something did not work.

use breakbulk_proto::{Message, SendError};
use thiserror::Error;

/// Why a request has no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The connection ended before the answer came. Whether the host acted on the request is not known, so it is not
    /// sent again.
    #[error("disconnected before the answer came")]
    Disconnected,
    /// The host answered with an error.
    #[error("the host refused: {message} ({code})")]
    Remote {
        /// The error's code.
        code: i64,
        /// What the host says about it.
        message: String,
        /// What it adds, as raw JSON.
        data: Option<Message>,
    },
    /// Nothing of it was sent: most often because it is larger than the host takes.
    #[error("not sent: {0}")]
    Unsendable(SendError),
    /// No answer came in the configured time, or there was no connection for so long.
    #[error("no answer in time")]
    Timeout,
    /// A subscription that is no longer wanted, or to a channel that the host can no longer offer.
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
