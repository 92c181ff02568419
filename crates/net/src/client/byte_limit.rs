//! Bounds the bytes that wait: a caller waits until its message fits.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds the bytes of waiting messages. Cloning shares the bound.
#[derive(Debug, Clone)]
pub(super) struct ByteLimit {
    bytes: Arc<Semaphore>,
    max_bytes: u32,
}

/// The cost of a message in addition to its bytes: about one entry in a table.
const ENTRY: u32 = 256;

impl ByteLimit {
    pub(super) fn new(max_bytes: u32) -> Self {
        let max_bytes = max_bytes.max(ENTRY);
        // Fits: a pointer has at least 32 bits here, and the semaphore refuses only what is near its end.
        let permits = usize::try_from(max_bytes).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(permits)), max_bytes }
    }

    /// Waits until a message of `len` bytes fits. One that is longer than the bound waits until nothing else waits. `None` after
    /// [`close`](Self::close).
    pub(super) async fn acquire(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        let cost = u32::try_from(len).unwrap_or(u32::MAX).saturating_add(ENTRY).min(self.max_bytes);
        self.bytes.clone().acquire_many_owned(cost).await.ok()
    }

    /// Ends all waiting, now and later: the client is closed.
    pub(super) fn close(&self) {
        self.bytes.close();
    }
}
