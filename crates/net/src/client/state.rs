//! The state of a client.

use std::time::Duration;

use thiserror::Error;

/// The state of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// There is no connection. The next attempt begins after a wait.
    Connecting {
        /// The number of attempts since the last steady connection, this one included.
        attempt: u32,
        /// The wait before it.
        after: Duration,
        /// Why the attempt before it failed; `None` if there was none, or if it led to a connection.
        failure: Option<String>,
    },
    /// The link is open, and the handshake is under way.
    Replaying,
    /// The client is connected. What was missed is among the events, and new events follow.
    Live,
    /// The client has ended.
    Closed(Reason),
}

/// Why a client has ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Reason {
    /// The application closed it.
    #[error("closed by us")]
    Asked,
    /// No link can be opened, and trying again would not help.
    #[error("{0}")]
    Refused(String),
    /// The host closed with a code after which the client does not reconnect.
    #[error("closed by the host with code {code}")]
    Peer {
        /// The code.
        code: u16,
    },
    /// The host takes none of the versions that we offer.
    #[error("the host refused to begin: {message} ({code})")]
    Rejected {
        /// The error's code.
        code: i64,
        /// What the host says about it.
        message: String,
    },
}
