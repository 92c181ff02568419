//! The host of a gateway, and how a client gets a link to it.

use std::time::Duration;

use http::{HeaderValue, header};

use super::Endpoint;
use crate::address::Address;
use crate::dial::{DialError, Dialer};
use crate::link::Child;

/// Long enough for most tools, and no longer than the next client may wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The host of a gateway.
#[non_exhaustive]
pub struct Upstream {
    /// How it is reached.
    pub dialer: Dialer,
    /// Where it is.
    pub address: Address,
    /// A child process that outlives its links, and is the host.
    pub kept: Option<Child>,
    /// How long a kept child process has to answer the requests of a client that has left, before the next client gets
    /// it. These answers are dropped. A child that has not answered all by then is ended, and started again for the
    /// next client. 10 s.
    pub answer_timeout: Duration,
}

impl Upstream {
    /// A host to which each client gets a new link.
    #[must_use]
    pub const fn new(dialer: Dialer, address: Address) -> Self {
        Self { dialer, address, kept: None, answer_timeout: ANSWER_TIMEOUT }
    }

    /// Opens a link to the host for a client, with the subprotocol that the client requested.
    pub(super) async fn open(&self, protocol: Option<HeaderValue>) -> Result<Endpoint, DialError> {
        let name = self.address.to_string();
        Ok(match (&self.kept, protocol) {
            (Some(child), _) => Endpoint::child(child.link().await?, name, self.answer_timeout),
            (None, Some(protocol)) => Endpoint::new(self.dialer_with(protocol).dial(&self.address).await?, name),
            (None, None) => Endpoint::new(self.dialer.dial(&self.address).await?, name),
        })
    }

    /// The dialer, asking for a subprotocol unless it was told to ask for another one.
    fn dialer_with(&self, protocol: HeaderValue) -> Dialer {
        let mut dialer = self.dialer.clone();
        dialer.headers.entry(header::SEC_WEBSOCKET_PROTOCOL).or_insert(protocol);
        dialer
    }
}
