//! The way back for an answer to the host: exactly one goes for each request, and only on the connection that asked.

use std::sync::Arc;

use breakbulk_proto::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::error::DispatchError;
use super::{rope, wire};

/// JSON-RPC's "method not found".
const METHOD_NOT_FOUND: i64 = -32601;

/// Takes the answer to one request of the host's. Dropped without one, it answers that the method is not supported.
///
/// An answer that is given after the connection has ended goes nowhere: its id means nothing on the next one.
#[derive(Debug)]
pub struct Answer {
    id: Message,
    connection: u64,
    replies: Option<mpsc::Sender<Reply>>,
    room: Room,
}

/// An answer on its way to the connection.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) connection: u64,
    pub(super) text: Message,
    pub(super) room: Option<OwnedSemaphorePermit>,
}

impl Answer {
    pub(super) const fn new(id: Message, connection: u64, replies: mpsc::Sender<Reply>, room: Room) -> Self {
        Self { id, connection, replies: Some(replies), room }
    }

    /// Answers with a result. Waits while too many bytes wait to be sent.
    ///
    /// # Errors
    /// The result is not JSON, and the request was refused; or the client is closed.
    pub async fn give(mut self, result: impl Into<Message>) -> Result<(), DispatchError> {
        let result = result.into();
        if !rope::is_json(&result) {
            return Err(DispatchError::NotJson);
        }
        let room = self.room.take(result.len()).await.ok_or(DispatchError::Closed)?;
        self.send(wire::result(&self.id, &result), Some(room));
        Ok(())
    }

    /// Answers with an error.
    pub fn refuse(mut self, code: i64, message: &str) {
        self.send(wire::error(&self.id, code, message), None);
    }

    fn send(&mut self, text: Message, room: Option<OwnedSemaphorePermit>) {
        if let Some(replies) = self.replies.take() {
            // There is a place for each request that was let in; none takes it when the client is closed.
            let _ = replies.try_send(Reply { connection: self.connection, text, room });
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.send(wire::error(&self.id, METHOD_NOT_FOUND, "not supported"), None);
    }
}

/// Bytes that may wait. Cloning shares them.
#[derive(Debug, Clone)]
pub(super) struct Room {
    bytes: Arc<Semaphore>,
    most: u32,
}

/// What a message costs beside its bytes: about one entry in a table.
const ENTRY: u32 = 256;

impl Room {
    pub(super) fn new(most: u32) -> Self {
        let most = most.max(ENTRY);
        // Fits: a pointer has at least 32 bits here, and the semaphore refuses only what is near its end.
        let permits = usize::try_from(most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(permits)), most }
    }

    /// Waits for room. A message of more than all of it takes all. `None` when there is no more room to come.
    pub(super) async fn take(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        let cost = u32::try_from(len).unwrap_or(u32::MAX).saturating_add(ENTRY).min(self.most);
        self.bytes.clone().acquire_many_owned(cost).await.ok()
    }

    /// There is no more room to come: whoever waits for it hears so.
    pub(super) fn close(&self) {
        self.bytes.close();
    }
}
