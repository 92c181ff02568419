//! How a client reaches the host: plain, on the official transport alone, or through a cap, with ours.

use ahp::{BoxedTransport, TransportError};
use ahp_ws::WebSocketTransport;
use breakbulk::Dialer;
use breakbulk::ahp::{Negotiated, Segmented};
use breakbulk_proto::Limits;

use super::place::{Place, path};
use crate::relay::{Cut, Relay};

/// The cap of a way that has one.
pub(crate) const CAP: u64 = 65_536;

/// One of the two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The official client and its own WebSocket, which knows nothing of segments.
    Plain,
    /// No frame is longer than 64 KiB, in either direction.
    Capped,
}

impl Way {
    /// A host that is reached so.
    pub(crate) fn place(self, more: &[&str]) -> Place {
        Place::new(self.query(), more)
    }

    /// What a host's address says of the cap.
    pub(crate) const fn query(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Capped => "?cap=65536",
        }
    }

    /// A relay before the host, which measures frames, and cuts connections as planned.
    pub(crate) async fn relay(self, place: &Place, plan: impl IntoIterator<Item = Cut>) -> Relay {
        Relay::to(&format!("ws://{}", place.authority), plan).await
    }

    /// A connection to a host at `url`, such as `ws://127.0.0.1:40000`, by one who may have been there before.
    pub(crate) async fn transport(self, url: &str, memory: &Negotiated) -> Result<BoxedTransport, TransportError> {
        let io = |error: &dyn ToString| TransportError::Io(error.to_string());
        let url = format!("{url}{}", path());
        match self {
            Self::Plain => {
                let transport = WebSocketTransport::connect(&url).await;
                transport.map(BoxedTransport::new).map_err(|error| io(&error))
            }
            Self::Capped => {
                let link = Dialer::default().dial(&format!("{url}&cap={CAP}").parse().unwrap()).await;
                let link = link.map_err(|error| io(&error))?;
                Ok(BoxedTransport::new(Segmented::over_link(link, Limits::default(), memory.clone())))
            }
        }
    }

    /// Asserts that no frame was longer than it may be; says what has passed.
    pub(crate) fn assert_kept(self, relay: &Relay) {
        let (frame, message) = (relay.longest_frame(), relay.longest_message());
        println!("{self:?}: {} frames, the longest of {frame} bytes, the longest message {message}", relay.frames());
        if self == Self::Capped {
            assert!(frame <= CAP && message <= CAP, "{frame} {message}");
        }
    }
}
