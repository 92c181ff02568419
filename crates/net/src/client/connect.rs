//! How a client comes by a fresh link, and whether to try again when it does not.

use std::error::Error;
use std::future::Future;

use crate::dial::DialError;
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

/// What a person must mend before it can work is never tried again.
impl From<DialError> for ConnectError {
    fn from(error: DialError) -> Self {
        let is_final = match &error {
            DialError::Status { status, .. } => matches!(status, 401 | 403 | 421),
            // Without advice it may have been cut off.
            DialError::Tls { hint, .. } => !hint.is_empty(),
            DialError::TlsSetup(_) | DialError::Header(_) | DialError::Target | DialError::ProxyInvalid { .. } => true,
            _ => false,
        };
        if is_final { Self::never(error) } else { Self::again(error) }
    }
}
