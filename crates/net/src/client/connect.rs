//! How a client comes by a fresh link, and whether to try again when it does not.

use std::error::Error;
use std::future::Future;

use crate::link::{Link, LinkError};

/// Gives a client a fresh link for each attempt. A closure that returns a future does.
pub trait Connect: Send + 'static {
    /// What it gives.
    type Link: Link;

    /// Makes a link that is ready for frames.
    ///
    /// # Errors
    /// There is none now, or there never will be; see [`ConnectError`].
    fn connect(&mut self) -> impl Future<Output = Result<Self::Link, ConnectError>> + Send;
}

impl<F, R, L> Connect for F
where
    F: FnMut() -> R + Send + 'static,
    R: Future<Output = Result<L, ConnectError>> + Send,
    L: Link,
{
    type Link = L;

    fn connect(&mut self) -> impl Future<Output = Result<L, ConnectError>> + Send {
        self()
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// It may work the next time: a peer that is down, a name that does not resolve, a 503.
    #[error("{0}")]
    Again(#[source] Box<dyn Error + Send + Sync>),
    /// It never will: an HTTP 401 or 403, a certificate that nobody trusts. The client ends.
    #[error("{0}")]
    Never(#[source] Box<dyn Error + Send + Sync>),
}

impl ConnectError {
    /// It may work the next time.
    pub fn again(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Again(error.into())
    }

    /// It never will.
    pub fn never(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Never(error.into())
    }
}

impl From<LinkError> for ConnectError {
    fn from(error: LinkError) -> Self {
        Self::again(error)
    }
}

impl From<std::io::Error> for ConnectError {
    fn from(error: std::io::Error) -> Self {
        Self::again(error)
    }
}
