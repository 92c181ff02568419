//! Where the clients of a gateway come from: a listener of any sort, or one link that is there already.

use http::HeaderValue;

use super::Endpoint;
use crate::external::{Acceptor, ExternalPeer};
use crate::listen::{Accepted, Listener};

/// The principal of all clients that had to prove nothing: they share one quota.
const ANYONE: &str = "anyone";

/// Where the clients of a gateway come from.
#[non_exhaustive]
pub enum Downstream {
    /// By WebSocket.
    WebSocket(Box<Listener>),
    /// By Unix socket ([`unix::Peers`](crate::link::unix::Peers)), or by a transport that another crate provides.
    External(Box<dyn Acceptor>),
    /// One client, who is there already.
    Once(Option<Endpoint>),
}

/// A client that has connected.
pub(super) struct NewClient {
    pub(super) endpoint: Endpoint,
    pub(super) principal: String,
    /// The WebSocket subprotocol that it was granted.
    pub(super) protocol: Option<HeaderValue>,
}

impl NewClient {
    fn new(endpoint: Endpoint, principal: &str) -> Self {
        Self { endpoint, principal: principal.to_owned(), protocol: None }
    }
}

impl Downstream {
    /// The next client; `None` when there will be no more. Cancel-safe.
    pub(super) async fn accept(&mut self) -> Option<NewClient> {
        match self {
            Self::WebSocket(listener) => {
                let Accepted { link, peer, principal, protocol, .. } = listener.accept().await;
                // A client is better known by the id that it gives; until then by where it is.
                let endpoint = Endpoint::new(link, peer.ip().to_string());
                let client = match principal.as_deref() {
                    Some(principal) => NewClient::new(endpoint.proven(principal), principal),
                    None => NewClient::new(endpoint, ANYONE),
                };
                Some(NewClient { protocol, ..client })
            }
            Self::External(acceptor) => {
                let ExternalPeer { link, name, principal } =
                    std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await?;
                let endpoint = Endpoint::new(link, name);
                Some(match principal.as_deref() {
                    Some(principal) => NewClient::new(endpoint.proven(principal), principal),
                    None => NewClient::new(endpoint, ANYONE),
                })
            }
            Self::Once(endpoint) => Some(NewClient::new(endpoint.take()?, ANYONE)),
        }
    }
}
