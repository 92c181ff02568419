//! Transports that other crates provide: how their addresses look, and what dials and accepts their links.
//!
//! This crate parses an address of such a scheme, as [`Transport::External`](crate::Transport::External), and knows no more about it.
//! A [`Connector`] in [`Dialer::connector`](crate::Dialer::connector) opens links to it; an [`Acceptor`] in
//! [`Downstream::External`](crate::gateway::Downstream::External) brings the peers that come in through it. A program chooses both by
//! the scheme's name.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::dial::DialError;
use crate::dialect::{Dialect, Feedback};
use crate::link::BoxLink;

/// What is known about a scheme before its crate is asked.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scheme {
    /// What addresses begin with, without the colon.
    pub name: &'static str,
    /// How an address looks, for people.
    pub form: &'static str,
    /// The wire form if none is named.
    pub dialect: Dialect,
    /// The longest frame if none is named, with what the transport adds to it.
    pub cap: Option<u64>,
    /// What its links tell beside frames.
    pub feedback: Feedback,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 2] = [
        Self {
            name: "nostr",
            form: "nostr:wss://RELAY?key=FILE",
            dialect: Dialect::Cep22,
            // Most relays take events of 64 KiB, and a little less is a margin.
            cap: Some(60_000),
            feedback: Feedback::Full,
        },
        Self {
            name: "webpubsub",
            form: "webpubsub:'Endpoint=…;AccessKey=…;Version=1.0;'?hub=NAME",
            dialect: Dialect::Ahp,
            cap: Some(1_000_000),
            feedback: Feedback::None,
        },
    ];

    /// The scheme with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        static ALL: [Scheme; 2] = Scheme::ALL;
        ALL.iter().find(|scheme| scheme.name == name)
    }
}

/// Opens links to one address. It is made from the address, and may share one connection to a relay among its links.
pub trait Connector: Send + Sync {
    /// Opens a link. The caller drops the future when that takes too long.
    fn connect(&self, request: LinkRequest) -> Connecting<'_>;
}

/// A link that is being opened.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<BoxLink, DialError>> + Send + 'a>>;

/// What a link has to respect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkRequest {
    /// The longest frame that the transport takes, with what it adds: the basis of the link's [`capacity`](crate::Link::capacity).
    pub cap: u64,
    /// The longest frame that we accept.
    pub max_frame_bytes: u64,
}

impl LinkRequest {
    /// A request for a link with this cap, on which frames of at most `max_frame_bytes` are accepted.
    #[must_use]
    pub const fn new(cap: u64, max_frame_bytes: u64) -> Self {
        Self { cap, max_frame_bytes }
    }
}

/// Accepts peers that connect through a transport. When this is dropped, no more are accepted; accepted links stay
/// open.
pub trait Acceptor: Send {
    /// The next peer; `None` when no more will come. Problems with a single peer, and temporary ones, are its own affair.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<ExternalPeer>>;
}

/// A peer that has come in through a transport.
pub struct ExternalPeer {
    /// Its link.
    pub link: BoxLink,
    /// Its name in logs, which stays the same when it comes again.
    pub name: String,
    /// The principal as which the peer has authenticated: its bytes are charged to this. `None` if any peer could claim
    /// the name.
    pub principal: Option<Arc<str>>,
}
