//! What an agent says, on its way to the host: bounded in bytes, and well formed at the far end.

use std::sync::Arc;

use breakbulk_lifecycle::{Event, Failure, Formed, Id, Outcome, Writer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// How much an agent may say before somebody listens.
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
    let room = Arc::new(Semaphore::new(config.max_bytes.max(1) as usize));
    let sender = EventSender { sender, room, max_bytes: config.max_bytes.max(1) };
    (sender, EventStream { receiver, writer: Writer::new() })
}

/// Where an agent's adapter puts what the agent says, in any order.
#[derive(Debug, Clone)]
pub struct EventSender {
    sender: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    max_bytes: u32,
}

/// An event, and the room that it takes.
type Queued = (Event, OwnedSemaphorePermit);

/// Nobody listens any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody listens to the agent any more")]
pub struct NoListener;

impl EventSender {
    /// Puts an event into the queue, when there is room.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub async fn send(&self, event: Event) -> Result<(), NoListener> {
        let room = Arc::clone(&self.room).acquire_many_owned(self.weight(&event));
        let room = tokio::select! {
            room = room => room.map_err(|_closed| NoListener)?,
            () = self.sender.closed() => return Err(NoListener),
        };
        self.sender.send((event, room)).await.map_err(|_closed| NoListener)
    }

    /// Puts an event into the queue if there is room now; says whether it did. For an agent that has no time to wait.
    #[must_use]
    pub fn try_send(&self, event: Event) -> bool {
        let room = Arc::clone(&self.room).try_acquire_many_owned(self.weight(&event));
        room.is_ok_and(|room| self.sender.try_send((event, room)).is_ok())
    }

    fn weight(&self, event: &Event) -> u32 {
        u32::try_from(event.weight()).unwrap_or(u32::MAX).min(self.max_bytes)
    }
}

/// What an agent says, well formed. When all senders are gone in the middle of a turn, that turn has failed.
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
            let Some((event, _room)) = self.receiver.recv().await else {
                self.writer.end(ended());
                return self.writer.poll();
            };
            self.writer.write(event);
        }
    }

    /// The next event that is there already, so that whoever listens can take what has queued up in one piece.
    pub fn ready(&mut self) -> Option<Formed> {
        loop {
            if let Some(formed) = self.writer.poll() {
                return Some(formed);
            }
            let (event, _room) = self.receiver.try_recv().ok()?;
            self.writer.write(event);
        }
    }

    /// What the agent itself calls a call of the open turn: another name, if it has used one twice.
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
