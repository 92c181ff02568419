//! The events of a client, in the order in which they happened.

use std::pin::Pin;
use std::task::{Context, Poll};

use breakbulk_proto::{Message, SendError};
use futures_core::Stream;
use tokio::sync::mpsc;

use super::responder::Responder;

/// The events of a client. None is left out: an application that takes events slowly slows down the link.
///
/// Take them in a task of their own, because answers to requests wait behind events that nobody takes. When this is dropped, events are
/// discarded, and the client goes on.
#[derive(Debug)]
pub struct Events(pub(super) mpsc::Receiver<Event>);

impl Events {
    /// The next event; `None` when the client is closed and all have been taken. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.poll_recv(cx)
    }
}

/// Something that happened. Payloads are raw JSON, as the host wrote it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A conversation begins: at the first connection, and when the host could not resume. Discard everything that was known of the
    /// channels. Their snapshots follow.
    Started {
        /// The result of `initialize`.
        result: Message,
    },
    /// The connection is back. What was missed follows: actions, or snapshots.
    Resumed,
    /// A channel's state, which replaces what was known of it.
    Snapshot {
        /// The channel.
        channel: String,
        /// Which seq it holds everything up to.
        from_seq: u64,
        /// The `Snapshot` object.
        snapshot: Message,
    },
    /// An action, each exactly once, in its channel's order.
    Action {
        /// The channel.
        channel: String,
        /// Its place in the host's order. Gaps are normal.
        seq: u64,
        /// Its number, if this client dispatched it. The host has accepted it, or refused it with a `rejectionReason`.
        own: Option<u64>,
        /// The `ActionEnvelope` object.
        envelope: Message,
    },
    /// A notification other than an action. The host does not repeat those that were lost with a connection. So request what they are
    /// about after [`Event::Started`] and [`Event::Resumed`].
    Notification {
        /// Its method.
        method: String,
        /// Its params; empty if it has none.
        params: Message,
    },
    /// A request of the host. Dropping the responder refuses it.
    Request {
        /// Its method.
        method: String,
        /// Its params; empty if it has none.
        params: Message,
        /// Takes the answer.
        responder: Responder,
    },
    /// The host no longer offers these channels. They are not followed any more.
    Missing {
        /// Their names.
        channels: Vec<String>,
    },
    /// A dispatched action that may not have reached the host, and is not sent again.
    Lost(LostAction),
}

/// A dispatched action that may not have reached the host, and is not sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostAction {
    /// Its number.
    pub client_seq: u64,
    /// The channel.
    pub channel: String,
    /// The action.
    pub action: Message,
    /// Why.
    pub why: LossReason,
}

/// Why a dispatched action is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// It cannot be sent: most often because it is larger than the host takes.
    Unsendable(SendError),
    /// It was sent, the connection ended, and it is not known whether it arrived: the snapshot of the host does not show it, or
    /// `resend` is off.
    Unknown,
    /// The host no longer offers its channel.
    ChannelMissing,
    /// The host closed the connection with 1009 (too big) each time that it was sent.
    TooBigForHost,
    /// The client was closed first.
    Closed,
}
