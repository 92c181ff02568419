//! Passes events to the application through a bounded channel, and keeps those that do not fit.

use std::collections::VecDeque;
use std::convert::Infallible;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::event::Event;

/// Events for the application. While some do not fit the channel, the link is not read: so no more than the events of one message are
/// kept here.
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

    /// Moves as many events into the channel as fit. Returns whether all did.
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

    /// Waits until all events are in the channel. Cancel-safe.
    pub(super) async fn flush(&mut self) {
        while !self.try_flush() {
            // Waits only for a place, and gives it back. An event that is moved here would be lost when this future is dropped.
            let _ = self.queue.reserve().await;
        }
    }

    /// Flushes, and never resolves: to be polled beside something else.
    pub(super) async fn keep_flushing(&mut self) -> Infallible {
        self.flush().await;
        std::future::pending().await
    }
}
