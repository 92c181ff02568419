//! Where a client is.

use std::time::Duration;

use thiserror::Error;

/// Where a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// There is no connection, and the next attempt is due.
    Connecting {
        /// The attempts since a connection last was steady, this one counted.
        attempt: u32,
        /// The wait before it.
        after: Duration,
    },
    /// The link is open, and the host says what was missed.
    Replaying,
    /// What was missed is among the events, and what happens follows.
    Live,
    /// The client has ended.
    Closed(Reason),
}

/// Why a client has ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Reason {
    /// We asked for it.
    #[error("closed by us")]
    Asked,
    /// There can be no link.
    #[error("{0}")]
    Refused(String),
    /// The host closed with a code that means "never".
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
