//! What callers ask of the task behind a client. It is asked in one queue, so that nothing passes what it depends on; what
//! depends on nothing goes ahead when the task takes it.

use breakbulk_proto::ahp::may_pass;
use breakbulk_proto::json::Path;
use breakbulk_proto::{Lane, Message};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::error::RequestError;
use super::session::Waiter;
use super::text;
use super::unconfirmed::Dispatched;

/// Something that is asked.
#[derive(Debug)]
pub(super) enum Command {
    Request(Request),
    Dispatch(Dispatched),
    Subscribe { channel: String, waiter: Waiter },
    Unsubscribe { channel: String },
}

/// A request of the application's.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) params: Message,
    pub(super) answer: ResponseSender,
    pub(super) order: SendOrder,
    /// Until it is on the link.
    pub(super) permit: OwnedSemaphorePermit,
}

/// When something leaves that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendOrder {
    /// After all that was asked before it.
    InOrder,
    /// As soon as nothing waits any more that was asked before it for the same channel: it answers or cancels something.
    Ahead,
    /// At once: the caller says that it depends on nothing.
    Free,
}

impl SendOrder {
    /// When an action leaves, by its type. The type of a long one is not looked for: it would not go in one frame.
    pub(super) fn of_action(action: &Message) -> Self {
        static TYPE: [Path; 1] = [&["type"]];
        let [kind] = if action.len() <= SHORT { text::string_at(action, &TYPE) } else { [None] };
        if kind.is_some_and(|kind| may_pass(&kind)) { Self::Ahead } else { Self::InOrder }
    }

    /// When a request leaves.
    pub(super) fn of_request(method: &str) -> Self {
        if method == "ping" { Self::Free } else { Self::InOrder }
    }

    pub(super) const fn lane(self) -> Lane {
        // What goes ahead is known to the machine, too.
        if matches!(self, Self::Free) { Lane::Free } else { Lane::Auto }
    }
}

/// Up to here an action may go ahead.
pub(super) const SHORT: usize = 64 << 10;

/// Somebody who waits for the result of a request.
pub(super) type ResponseSender = oneshot::Sender<Result<Message, RequestError>>;
