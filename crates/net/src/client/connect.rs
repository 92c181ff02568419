//! Opens a new link for a client, and says whether to try again when that fails.

use std::error::Error;
use std::future::Future;

use crate::dial::DialError;
use crate::link::{Link, LinkError};

/// Opens a new link for each attempt of a client to connect. Implemented by closures that return a future.
pub trait Connect: Send + 'static {
    /// The type of link.
    type Link: Link;

    /// Opens a link that is ready for frames.
    ///
    /// # Errors
    /// No link could be opened; see [`ConnectError`].
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
    /// It may work the next time: the host is down, its name does not resolve, a 503.
    #[error("{0}")]
    Again(#[source] Box<dyn Error + Send + Sync>),
    /// Trying again would not help: an HTTP 401 or 403, a certificate that is not trusted. The client ends.
    #[error("{0}")]
    Never(#[source] Box<dyn Error + Send + Sync>),
}

impl ConnectError {
    /// It may work the next time.
    pub fn again(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Again(error.into())
    }

    /// Trying again would not help.
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

/// Errors that a person has to fix are not tried again.
impl From<DialError> for ConnectError {
    fn from(error: DialError) -> Self {
        let is_final = match &error {
            DialError::Status { status, .. } => matches!(status, 401 | 403 | 421),
            // Without a hint, the connection may just have been cut off.
            DialError::Tls { hint, .. } => !hint.is_empty(),
            DialError::TlsSetup(_) | DialError::Header(_) | DialError::Target | DialError::ProxyInvalid { .. } => true,
            DialError::Private(error) => error.is_final(),
            _ => false,
        };
        if is_final { Self::never(error) } else { Self::again(error) }
    }
}
