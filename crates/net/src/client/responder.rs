//! Answers a request of the host: exactly once, and only on the connection on which it came.

use breakbulk_proto::Message;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::byte_limit::ByteLimit;
use super::error::DispatchError;
use super::{text, wire};

/// JSON-RPC's "method not found".
const METHOD_NOT_FOUND: i64 = -32601;

/// Answers one request of the host. If it is dropped without an answer, it answers that the method is not supported.
///
/// An answer that is given after the connection has ended is dropped: its id means nothing on the next connection.
#[derive(Debug)]
pub struct Responder {
    id: Message,
    connection: u64,
    replies: Option<mpsc::Sender<Reply>>,
    limit: ByteLimit,
}

/// An answer on its way to the connection.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) connection: u64,
    pub(super) text: Message,
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

impl Responder {
    pub(super) const fn new(id: Message, connection: u64, replies: mpsc::Sender<Reply>, limit: ByteLimit) -> Self {
        Self { id, connection, replies: Some(replies), limit }
    }

    /// Answers with a result. Waits while the limit of unsent bytes is reached.
    ///
    /// # Errors
    /// The result is not JSON, and the request was refused; or the client is closed.
    pub async fn respond(mut self, result: impl Into<Message>) -> Result<(), DispatchError> {
        let result = result.into();
        if !text::is_json(&result) {
            return Err(DispatchError::NotJson);
        }
        let permit = self.limit.acquire(result.len()).await.ok_or(DispatchError::Closed)?;
        self.send(wire::result(&self.id, &result), Some(permit));
        Ok(())
    }

    /// Answers with an error.
    pub fn reject(mut self, code: i64, message: &str) {
        self.send(wire::error(&self.id, code, message), None);
    }

    fn send(&mut self, text: Message, permit: Option<OwnedSemaphorePermit>) {
        if let Some(replies) = self.replies.take() {
            // The channel has a place for each request that was let in. Sending fails only when the client is closed.
            let _ = replies.try_send(Reply { connection: self.connection, text, permit });
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.send(wire::error(&self.id, METHOD_NOT_FOUND, "not supported"), None);
    }
}
