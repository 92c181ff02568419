//! The official `ahp` client with messages of any size: a transport for it that segments both ways.
//!
//! ```no_run
//! use ahp::{Client, ClientConfig};
//! use breakbulk::ahp::{Negotiated, Segmented};
//! use breakbulk_proto::Limits;
//!
//! # async fn run(transport: impl ahp::Transport) -> Result<(), ahp::ClientError> {
//! let negotiated = Negotiated::default();
//! let transport = Segmented::new(transport, Limits::default(), negotiated.clone());
//! let ended = transport.ended();
//! let client = Client::connect(transport, ClientConfig::default()).await?;
//! // … when it is over:
//! println!("closed with {}", ended.wait().await.code());
//! # Ok(()) }
//! ```
//!
//! Give each reconnect the same [`Negotiated`]: a `reconnect` request may then be segmented at once, and so may its
//! answer.

mod link;

use ::ahp::{Transport, TransportError, TransportMessage};
use bytes::Bytes;

use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Account, Budget, Capacity, CloseReason, Limits, Message, Violation};

use crate::dialect::{Dialect, Setup};
use crate::link::Link;
use crate::pump::Port;

pub use self::link::TransportLink;
pub use crate::pump::Ended;
pub use breakbulk_proto::ahp::Negotiated;

/// A transport for the official client. What is under it runs in a task of its own, which ends when this is dropped.
///
/// If a request cannot be sent, its caller gets an error response, never a transport error, because that would end the client. Actions
/// arrive in the order in which they began, because the client uses the highest seq that it saw as its cursor.
#[derive(Debug)]
pub struct Segmented {
    port: Port,
}

impl Segmented {
    /// On any other transport, whose own cap is not known: frames are as long as the host accepts. For a connection with a cap, use
    /// [`TransportLink`] and [`over_link`](Self::over_link).
    ///
    /// A frame that is longer than the limits allow closes the link. A host that knows no segments does not know these limits. If it may
    /// send long frames, set `max_frame_bytes` to 16 MiB, which is the most that the official WebSocket transport takes.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn new<T: Transport>(transport: T, limits: Limits, negotiated: Negotiated) -> Self {
        Self::over_link(TransportLink::new(transport, Capacity::of(u64::MAX)), limits, negotiated)
    }

    /// On a link of ours, such as a [`WebSocket`](crate::link::WebSocket), which knows its cap and its close codes.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn over_link<L: Link + 'static>(link: L, limits: Limits, negotiated: Negotiated) -> Self {
        Self::charged_to(Budget::default().account(Some("host")), link, limits, negotiated)
    }

    /// The same, charged to an account. Without one, each connection has a default budget of its own. Limits that were proven against a
    /// larger budget need an account of that budget.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn charged_to<L: Link + 'static>(account: Account, link: L, limits: Limits, negotiated: Negotiated) -> Self {
        let mut setup = Setup::new(Dialect::Ahp, Role::Client, limits);
        setup.negotiated = negotiated;
        Self { port: Port::open(link, &setup, account) }
    }

    /// How the connection ends. Take it before the client takes the transport.
    #[must_use]
    pub fn ended(&self) -> Ended {
        self.port.ended().clone()
    }
}

impl Transport for Segmented {
    /// Waits only while more bytes are unsent than the limits allow.
    async fn send(&mut self, message: TransportMessage) -> Result<(), TransportError> {
        let message = Message::from(bytes(message)?);
        self.port.sender().send(message).await.map_err(|_| TransportError::Closed)
    }

    /// Cancel-safe.
    async fn recv(&mut self) -> Result<Option<TransportMessage>, TransportError> {
        match self.port.recv().await {
            Some(message) => text(message.to_bytes()).map(Some),
            None => self.port.ended().reason().map_or(Ok(None), end),
        }
    }

    async fn close(&mut self) -> Result<(), TransportError> {
        self.port.close().await;
        Ok(())
    }
}

/// The end of a connection as the client sees it: a normal end, or an error with the reason and the close code.
fn end(reason: CloseReason) -> Result<Option<TransportMessage>, TransportError> {
    let told = format!("{reason} (close code {})", reason.code());
    match reason {
        // 1005 is a close without a code.
        CloseReason::Normal | CloseReason::Peer { code: 1000 | 1001 | 1005 } => Ok(None),
        CloseReason::Violation(Violation::FrameTooLarge(_)) => Err(TransportError::Io(told)),
        CloseReason::Violation(_) => Err(TransportError::Protocol(told)),
        _ => Err(TransportError::Io(told)),
    }
}

/// A message of the official crate's, as bytes.
fn bytes(message: TransportMessage) -> Result<Bytes, TransportError> {
    match message {
        TransportMessage::Text(text) => Ok(text.into()),
        TransportMessage::Binary(bytes) => Ok(bytes.into()),
        TransportMessage::Parsed(parsed) => match TransportMessage::encode(&parsed)? {
            TransportMessage::Text(text) => Ok(text.into()),
            other => Err(TransportError::Protocol(format!("encoded as {other:?}"))),
        },
    }
}

/// Bytes, as a message of the official crate's.
fn text(bytes: Bytes) -> Result<TransportMessage, TransportError> {
    let text = String::from_utf8(bytes.into()).map_err(|error| TransportError::Protocol(error.to_string()))?;
    Ok(TransportMessage::Text(text))
}
