//! A link through Web PubSub: what a host and its clients say to each other through the groups of a hub.
//!
//! ```text
//!  client ── hello ──▶ group breakbulk.HOST ──────────▶ host        one connection to the hub for all clients of a host
//!  client ◀─ frames ── group breakbulk.HOST.LINK.down ◀─ host
//!  client ── frames ─▶ group breakbulk.HOST.LINK.up ───▶ host       a pair of groups for each link
//! ```
//!
//! A `HubConnection` is the reliable connection to the hub: it acknowledges at once what arrives, keeps
//! what the service has not acknowledged, recovers, and sends again what may be lost. A `PeerLink` is a link on top
//! of it. Frames of a link are numbered, so that one that is lost anyhow closes the link and never goes unnoticed.
//!
//! The service drops who does not acknowledge 16 MB or 1,000 messages. So the receiver of frames grants their sender how many may be under
//! way (see `link/credit.rs`), and the sender has only a part of that unacknowledged by the service.

mod acceptor;
mod address;
mod connector;
mod credit;
mod escape;
mod hub_connection;
mod peer;
mod peer_link;
mod peers;
mod presence;

pub use self::acceptor::WebPubSubAcceptor;
pub use self::address::{WebPubSubAddress, WebPubSubAddressError};
pub use self::connector::WebPubSubConnector;

use std::time::Duration;

/// How long nothing may come from a peer, not even a sign of life, before it counts as gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a client that sends nothing shows that it is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
