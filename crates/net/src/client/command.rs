//! What callers ask of the background task of a client. All commands are in one queue, so that none overtakes another that it depends
//! on. A command that depends on nothing is carried out as soon as the task takes it from the queue.

use breakbulk_proto::ahp::may_pass;
use breakbulk_proto::json::Path;
use breakbulk_proto::{Lane, Message};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::error::RequestError;
use super::session::Waiter;
use super::text;
use super::unconfirmed::Dispatched;

/// A command of a caller.
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

/// When a request or an action is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendOrder {
    /// After all earlier ones.
    InOrder,
    /// As soon as no earlier action for the same channel waits: it answers or cancels something.
    Ahead,
    /// At once, because the caller says that it depends on nothing.
    Free,
}

impl SendOrder {
    /// When an action is sent, by its type. A long action is sent in order, because it would not fit one frame.
    pub(super) fn of_action(action: &Message) -> Self {
        static TYPE: [Path; 1] = [&["type"]];
        let [kind] = if action.len() <= SHORT { text::string_at(action, &TYPE) } else { [None] };
        if kind.is_some_and(|kind| may_pass(&kind)) { Self::Ahead } else { Self::InOrder }
    }

    /// When a request is sent, by its method.
    pub(super) fn of_request(method: &str) -> Self {
        if method == "ping" { Self::Free } else { Self::InOrder }
    }

    pub(super) const fn lane(self) -> Lane {
        // The machine recognises actions that may overtake others by itself.
        if matches!(self, Self::Free) { Lane::Free } else { Lane::Auto }
    }
}

/// The longest action that may overtake others.
pub(super) const SHORT: usize = 64 << 10;

/// Where the result of a request goes.
pub(super) type ResponseSender = oneshot::Sender<Result<Message, RequestError>>;
