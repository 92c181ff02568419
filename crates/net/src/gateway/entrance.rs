//! Where clients come in: a listener of any sort, or one link that is there already.

use breakbulk_proto::Capacity;
use http::HeaderValue;

use super::End;
use crate::link::unix;
use crate::listen::{Accepted, Listener};

/// What everyone is charged under who had to prove nothing: one quota for all of them.
const ANYONE: &str = "anyone";
/// How long to wait after the system had no room for a client, such as for more open files.
const BREATHER: std::time::Duration = std::time::Duration::from_millis(100);

/// Where clients come in.
#[non_exhaustive]
pub enum Entrance {
    /// By WebSocket.
    WebSocket(Box<Listener>),
    /// By Unix socket.
    Unix {
        /// What listens.
        listener: unix::Listener,
        /// The longest frame that clients take.
        cap: u64,
        /// The longest frame that we take.
        max_frame_bytes: u64,
    },
    /// One client, who is there already.
    Once(Option<End>),
}

/// A client that has come in.
pub(super) struct Entered {
    pub(super) end: End,
    pub(super) principal: String,
    /// The WebSocket subprotocol that it was granted.
    pub(super) protocol: Option<HeaderValue>,
}

impl Entered {
    fn new(end: End, principal: &str) -> Self {
        Self { end, principal: principal.to_owned(), protocol: None }
    }
}

impl Entrance {
    /// The next client; `None` when there will be no more. Cancel-safe.
    pub(super) async fn accept(&mut self) -> Option<Entered> {
        match self {
            Self::WebSocket(listener) => {
                let Accepted { link, peer, principal, protocol, .. } = listener.accept().await;
                // A client is better known by the id that it gives; until then by where it is.
                let end = End::new(link, peer.ip().to_string());
                let entered = match principal.as_deref() {
                    Some(principal) => Entered::new(end.proven(principal), principal),
                    None => Entered::new(end, ANYONE),
                };
                Some(Entered { protocol, ..entered })
            }
            Self::Unix { listener, cap, max_frame_bytes } => loop {
                match listener.accept(Capacity::of(*cap), *max_frame_bytes).await {
                    Ok(link) => return Some(Entered::new(End::new(link, "unix"), ANYONE)),
                    Err(error) => tracing::warn!("a client could not be accepted: {error}"),
                }
                tokio::time::sleep(BREATHER).await;
            },
            Self::Once(end) => Some(Entered::new(end.take()?, ANYONE)),
        }
    }
}
