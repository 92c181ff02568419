//! Messages that were given to the machine and are not on the link yet.

use std::collections::HashMap;

use tokio::sync::OwnedSemaphorePermit;

/// When this many bytes are with the machine and not on the link yet, nothing more is given to it. That is enough to keep a link busy,
/// and what waits elsewhere can still be withdrawn.
const WINDOW: usize = 4 << 20;

/// Messages that are with the machine, by ticket.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    messages: HashMap<u64, HandedMessage>,
    bytes: usize,
    last_ticket: u64,
}

#[derive(Debug)]
struct HandedMessage {
    purpose: SendPurpose,
    bytes: usize,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Why a message was sent: who has to know whether it was.
#[derive(Debug, Clone, Copy)]
pub(super) enum SendPurpose {
    /// A request, by its id.
    Request(u64),
    /// A dispatched action, by its number.
    Action(u64),
    /// Nobody waits for it.
    Other,
}

impl InFlight {
    /// Whether another message may be given to the machine.
    pub(super) const fn has_capacity(&self) -> bool {
        self.bytes < WINDOW
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Adds a message. Returns its ticket.
    pub(super) fn add(&mut self, purpose: SendPurpose, bytes: usize, permit: Option<OwnedSemaphorePermit>) -> u64 {
        self.last_ticket = self.last_ticket.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.messages.insert(self.last_ticket, HandedMessage { purpose, bytes, _permit: permit });
        self.last_ticket
    }

    /// The machine is done with a message. Returns why it was sent.
    pub(super) fn done(&mut self, ticket: u64) -> Option<SendPurpose> {
        let item = self.messages.remove(&ticket)?;
        self.bytes = self.bytes.saturating_sub(item.bytes);
        Some(item.purpose)
    }
}
