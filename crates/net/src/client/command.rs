//! What callers ask of the task behind a client. It is asked in one queue, so that nothing passes what it depends on.

use breakbulk_proto::Message;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::error::RequestError;
use super::kept::Dispatched;
use super::session::Waiter;

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
    pub(super) answer: Answering,
    /// Until it is on the link.
    pub(super) room: OwnedSemaphorePermit,
}

/// Somebody who waits for the result of a request.
pub(super) type Answering = oneshot::Sender<Result<Message, RequestError>>;
