//! Messages that the machine has, until they are on the link.

use std::collections::HashMap;

use tokio::sync::OwnedSemaphorePermit;

/// Bytes handed to the machine and not yet on the link, past which nothing more is handed over. Enough to keep a link
/// busy; what waits elsewhere can still be withdrawn.
const WINDOW: usize = 4 << 20;

/// Messages that the machine has, by ticket.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    messages: HashMap<u64, HandedMessage>,
    bytes: usize,
    last_ticket: u64,
}

#[derive(Debug)]
struct HandedMessage {
    purpose: Purpose,
    bytes: usize,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Purpose a message is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// A request, by its id.
    Request(u64),
    /// A dispatched action, by its number.
    Action(u64),
    /// Nothing that anybody waits for.
    Other,
}

impl InFlight {
    /// Whether there is room for another.
    pub(super) const fn has_room(&self) -> bool {
        self.bytes < WINDOW
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// A message is handed over: its ticket.
    pub(super) fn add(&mut self, purpose: Purpose, bytes: usize, permit: Option<OwnedSemaphorePermit>) -> u64 {
        self.last_ticket = self.last_ticket.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.messages.insert(self.last_ticket, HandedMessage { purpose, bytes, _permit: permit });
        self.last_ticket
    }

    /// The machine has done with a message: what it was.
    pub(super) fn done(&mut self, ticket: u64) -> Option<Purpose> {
        let item = self.messages.remove(&ticket)?;
        self.bytes = self.bytes.saturating_sub(item.bytes);
        Some(item.purpose)
    }
}
