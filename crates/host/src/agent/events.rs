//! The queue of events from an agent to the host: bounded in bytes, and well formed at the receiving end.

use std::sync::Arc;

use breakbulk_lifecycle::{Event, Failure, Formed, Id, Outcome, Writer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// How many events may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventsConfig {
    /// Bytes that may wait; one event of any size always fits. 4 MiB: a burst of deltas, not a history.
    pub max_bytes: u32,
    /// Events that may wait. 1,024.
    pub max_events: u32,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self { max_bytes: 4 << 20, max_events: 1_024 }
    }
}

/// A queue from an agent to the host.
#[must_use]
pub fn events(config: EventsConfig) -> (EventSender, EventStream) {
    let (sender, receiver) = mpsc::channel(config.max_events.max(1) as usize);
    let free_bytes = Arc::new(Semaphore::new(config.max_bytes.max(1) as usize));
    let sender = EventSender { sender, free_bytes, max_bytes: config.max_bytes.max(1) };
    (sender, EventStream { receiver, writer: Writer::new() })
}

/// Takes the events of an agent, in any order.
#[derive(Debug, Clone)]
pub struct EventSender {
    sender: mpsc::Sender<Queued>,
    free_bytes: Arc<Semaphore>,
    max_bytes: u32,
}

/// An event with its share of the bytes that may wait.
type Queued = (Event, OwnedSemaphorePermit);

/// The receiver is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody listens to the agent any more")]
pub struct NoListener;

impl EventSender {
    /// Adds an event to the queue. Waits while the queue is full.
    ///
    /// # Errors
    /// The receiver is gone.
    pub async fn send(&self, event: Event) -> Result<(), NoListener> {
        let permit = Arc::clone(&self.free_bytes).acquire_many_owned(self.weight(&event));
        let permit = tokio::select! {
            permit = permit => permit.map_err(|_closed| NoListener)?,
            () = self.sender.closed() => return Err(NoListener),
        };
        self.sender.send((event, permit)).await.map_err(|_closed| NoListener)
    }

    /// Waits until the queue has space for this event. Dropping the future loses nothing, so an agent can wait for other things at
    /// the same time.
    ///
    /// # Errors
    /// The receiver is gone.
    pub async fn reserve(&self, event: &Event) -> Result<EventPermit<'_>, NoListener> {
        let permit = Arc::clone(&self.free_bytes).acquire_many_owned(self.weight(event));
        let permit = tokio::select! {
            permit = permit => permit.map_err(|_closed| NoListener)?,
            () = self.sender.closed() => return Err(NoListener),
        };
        let slot = self.sender.reserve().await.map_err(|_closed| NoListener)?;
        Ok(EventPermit { slot, permit })
    }

    /// Adds an event to the queue if it is not full; returns whether it did. For an agent that cannot wait.
    #[must_use]
    pub fn try_send(&self, event: Event) -> bool {
        let permit = Arc::clone(&self.free_bytes).try_acquire_many_owned(self.weight(&event));
        permit.is_ok_and(|permit| self.sender.try_send((event, permit)).is_ok())
    }

    fn weight(&self, event: &Event) -> u32 {
        u32::try_from(event.weight()).unwrap_or(u32::MAX).min(self.max_bytes)
    }
}

/// Space in the queue for one event.
#[derive(Debug)]
pub struct EventPermit<'a> {
    slot: mpsc::Permit<'a, Queued>,
    permit: OwnedSemaphorePermit,
}

impl EventPermit<'_> {
    /// Adds the event to the queue.
    pub fn send(self, event: Event) {
        self.slot.send((event, self.permit));
    }
}

/// The well-formed events of an agent. If all senders are dropped in the middle of a turn, the turn has failed.
#[derive(Debug)]
pub struct EventStream {
    receiver: mpsc::Receiver<Queued>,
    writer: Writer,
}

impl EventStream {
    /// The next event; none when the agent has ended. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Formed> {
        loop {
            if let Some(formed) = self.writer.poll() {
                return Some(formed);
            }
            let Some((event, _permit)) = self.receiver.recv().await else {
                self.writer.end(ended());
                return self.writer.poll();
            };
            self.writer.write(event);
        }
    }

    /// The next event that is queued already, so that the receiver can take all queued events at once.
    pub fn ready(&mut self) -> Option<Formed> {
        loop {
            if let Some(formed) = self.writer.poll() {
                return Some(formed);
            }
            let (event, _permit) = self.receiver.try_recv().ok()?;
            self.writer.write(event);
        }
    }

    /// The agent's own id of a tool call in the open turn. It differs if the agent used an id twice.
    #[must_use]
    pub fn given(&self, tool: &Id) -> Option<Id> {
        self.writer.given(tool)
    }

    /// How many events made no sense where they came, and were dropped.
    #[must_use]
    pub const fn strays(&self) -> u64 {
        self.writer.strays()
    }
}

fn ended() -> Outcome {
    Outcome::Failed(Failure::new("agentEnded", "The agent ended in the middle of a turn."))
}
