//! One pipe: lines that are messages, frames of messages too long for a line, or neither.
//!
//! The link adds and strips line ends. Frames are `UUID:index:total:data`, as SwiftAgentKit reads and writes them.

mod group;
mod receive;
mod send;
mod wire;

use std::time::Instant;

use self::receive::Receiver;
use self::send::Sender;
use crate::budget::Account;
use crate::error::{CloseReason, Counters, SendError};
use crate::limits::Limits;
use crate::machine::{Event, Input, Machine, Meta, Tag, Transmit};
use crate::outbox::Outbox;
use crate::outgoing::Outgoing;

/// How one end of a pipe behaves.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The longest message either way, and what may wait, be open and be held. Its frame limit is not used.
    pub limits: Limits,
    /// The longest line that we take.
    pub max_line_bytes: u64,
    /// Names of groups are made from it: random, and never the same for two connections.
    pub seed: [u8; 32],
}

impl Config {
    /// Takes a raw line as long as the longest message.
    #[must_use]
    pub const fn new(limits: Limits, seed: [u8; 32]) -> Self {
        Self { limits, max_line_bytes: limits.max_message_bytes(), seed }
    }
}

/// One end of a pipe.
///
/// Messages go out in the order in which they were sent; only those marked free pass, and are passed. A bad group
/// fails alone: nothing that the peer writes closes the connection.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    tags: u64,
    outbox: Outbox,
}

impl Connection {
    /// A connection that has seen nothing yet.
    #[must_use]
    pub fn new(config: Config, account: Account) -> Self {
        Self {
            sender: Sender::new(config.limits, config.seed),
            receiver: Receiver::new(config.limits, config.max_line_bytes, account),
            tags: 0,
            outbox: Outbox::default(),
        }
    }

    fn close(&mut self, reason: CloseReason) {
        if self.outbox.is_closed() {
            return;
        }
        self.outbox.close(reason);
        self.sender.abandon(&mut self.outbox);
        self.receiver.abandon();
    }
}

impl Machine for Connection {
    fn handle(&mut self, input: Input, now: Instant) {
        match input {
            Input::Send { ticket, message, lane, .. } => {
                let Some(out) = Outgoing::read(ticket, message, &mut self.outbox) else { return };
                if self.outbox.is_closed() {
                    let _ = out.fail(SendError::Disconnected, &mut self.outbox);
                    return;
                }
                self.sender.accept(out.on_one_line(), lane, &mut self.outbox);
            }
            _ if self.outbox.is_closed() => {}
            Input::Frame { bytes, meta } => self.receiver.receive(bytes, meta, now, &mut self.outbox),
            Input::Capacity(capacity) => {
                if self.sender.fit_to(&capacity).is_err() {
                    self.close(CloseReason::CapShrank);
                }
            }
            Input::Paused(paused) => self.receiver.pause(paused, now),
            Input::Timeout => self.receiver.timeout(now, &mut self.outbox),
            Input::Close(reason) => self.close(reason),
            Input::Acked { .. } => {}
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if self.outbox.is_closed() {
            return self.outbox.poll_transmit_close().map(Transmit::Close);
        }
        let bytes = self.sender.transmit(now, &mut self.outbox)?;
        let tag = Tag(self.tags);
        self.tags = self.tags.saturating_add(1);
        Some(Transmit::Frame { tag, bytes, meta: Meta::default() })
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.outbox.poll_event()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.receiver.poll_timeout()
    }

    fn wants_frames(&self) -> bool {
        self.receiver.wants_frames()
    }

    fn counters(&self) -> &Counters {
        self.outbox.counters()
    }
}

#[cfg(test)]
mod tests;
