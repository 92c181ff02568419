//! Events on their way to the application: a bounded queue, and behind it what one message brought at once.

use std::collections::VecDeque;
use std::convert::Infallible;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::event::Event;

/// Events that wait to be taken. While there are any the link is not read, so there are never more than one message
/// brings.
#[derive(Debug)]
pub(super) struct EventFeed {
    queue: mpsc::Sender<Event>,
    waiting: VecDeque<Event>,
}

impl EventFeed {
    pub(super) const fn new(queue: mpsc::Sender<Event>) -> Self {
        Self { queue, waiting: VecDeque::new() }
    }

    /// Adds an event, at the end.
    pub(super) fn push(&mut self, event: Event) {
        self.waiting.push_back(event);
    }

    /// Moves what the queue takes now. Whether nothing waits any more.
    pub(super) fn try_flush(&mut self) -> bool {
        while let Some(event) = self.waiting.pop_front() {
            match self.queue.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.waiting.push_front(event);
                    return false;
                }
                Err(TrySendError::Closed(_)) => self.waiting.clear(),
            }
        }
        true
    }

    /// Waits until nothing waits. Cancel-safe.
    pub(super) async fn flush(&mut self) {
        while !self.try_flush() {
            // Only a place is waited for, and given back: what fills it must not be lost when this is dropped.
            let _ = self.queue.reserve().await;
        }
    }

    /// Flushes, and then does nothing for ever: what goes on beside something else.
    pub(super) async fn keep_flushing(&mut self) -> Infallible {
        self.flush().await;
        std::future::pending().await
    }
}
