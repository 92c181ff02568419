//! The `cep22` dialect: messages too large for one relay event, as transfers inside MCP progress notifications.
//!
//! Many peers may share a link, and many transfers may be open at once. A transfer that fails is aborted and reported, and the
//! connection goes on.

mod cut;
mod incoming_transfer;
mod outgoing_message;
mod receive;
mod records;
mod send;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::HashMap;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::budget::Account;
use crate::clock::ReadClock;
use crate::error::Counters;
use crate::event_queue::EventQueue;
use crate::limits::Limits;
use crate::machine::{Capacity, Event, Input, Machine, Transmit};
use crate::outgoing::too_late;

use incoming_transfer::IncomingTransfer;
use records::{Key, Records};
use send::SendQueues;

/// How a connection behaves. Both ends use the same settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The longest frame and message that we take, and what may wait to be sent.
    pub limits: Limits,
    /// The most chunks in a transfer, in either direction. 10,000, as in the official SDKs.
    pub max_chunks: u64,
    /// The most transfers that each peer may have open, and the most that we have open ourselves. 64, as in the official SDKs.
    pub max_transfers: u32,
    /// The most transfers that all peers together may have open.
    pub max_transfers_in_all: u32,
    /// The most chunks of a transfer that may wait for an earlier one. 42, twice what the official SDKs have in flight.
    pub window: u32,
    /// How long a transfer may go without a valid frame, or without an acknowledgement of the link.
    pub soft_timeout: Duration,
    /// How long a transfer that arrives may take in all. 300 s, as in the official SDKs. A long message gets more: the same part of
    /// the [group timeout](Limits::group_timeout) as its length is of the longest message.
    pub hard_timeout: Duration,
    /// How long we wait for `accept`. 30 s, as in the official SDKs.
    pub accept_timeout: Duration,
    /// On a link that acknowledges frames: how many chunks may be sent after the oldest unacknowledged one. 21, which is how far out
    /// of order the official SDKs accept them.
    pub publish_window: u32,
    /// Whether the link acknowledges each frame.
    pub acks: bool,
    /// Whether every peer is known to take transfers.
    pub known_support: bool,
    /// Whether requests without a progress token get one, so that their answers may be large. The application does not see the
    /// progress notifications that follow from it. For a gateway.
    pub inject_tokens: bool,
    /// Makes injected tokens differ from those of other connections.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_chunks: 10_000,
            max_transfers: 64,
            max_transfers_in_all: 1024,
            window: 42,
            soft_timeout: Duration::from_secs(60),
            hard_timeout: Duration::from_secs(300),
            accept_timeout: Duration::from_secs(30),
            publish_window: 21,
            acks: false,
            known_support: false,
            inject_tokens: false,
            seed: 0,
        }
    }
}

/// One end of a link on which oversized messages travel as transfers.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    account: Account,
    records: Records,
    events: EventQueue,
    /// The capacity of the link.
    capacity: Capacity,
    queues: SendQueues,
    arriving: HashMap<Key, IncomingTransfer>,
    /// A buffer in which chunks are unescaped.
    scratch: Vec<u8>,
    clock: ReadClock,
    /// The clock's last reading.
    read: Duration,
    /// When the machine last got an input.
    heard: Option<Instant>,
    ordinal: u64,
}

impl Connection {
    /// A connection over a link whose capacity is not known yet.
    #[must_use]
    pub fn new(config: Config, account: Account) -> Self {
        Self {
            config,
            clock: account.clock(),
            account,
            records: Records::default(),
            events: EventQueue::default(),
            capacity: Capacity::of(u64::MAX),
            queues: SendQueues::default(),
            arriving: HashMap::new(),
            scratch: Vec::new(),
            read: Duration::ZERO,
            heard: None,
            ordinal: 0,
        }
    }
}

impl Machine for Connection {
    fn handle(&mut self, input: Input, now: Instant) {
        if self.events.is_closed() {
            return too_late(input, &mut self.events);
        }
        (self.read, self.heard) = (self.clock.read(now), Some(now));
        match input {
            Input::Frame { bytes, meta } => self.frame(bytes, &meta, now),
            Input::Send { ticket, message, meta, .. } => self.send(ticket, message, meta),
            Input::Acked { tag, result } => self.acked(tag, result, now),
            Input::Capacity(capacity) => (self.capacity, self.queues.learned) = (capacity, None),
            Input::Paused(paused) => self.clock.pause(paused, now),
            Input::Timeout => {
                self.queues.paused_until = self.queues.paused_until.filter(|until| now < *until);
                self.sweep_arrivals();
                self.sweep_departures();
            }
            Input::EndOfInput => self.end_arrivals(),
            Input::Close(reason) => {
                self.disconnect();
                self.arriving.clear();
                self.events.close(reason);
            }
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if self.events.is_closed() {
            return self.events.poll_transmit_close().map(Transmit::Close);
        }
        self.read = self.clock.read(now);
        self.next_frame(now)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.poll_event()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.events.is_closed() {
            return None;
        }
        let begun = self.queues.begun.iter().filter_map(|item| item.due(&self.config));
        let due = self.arriving.values().map(IncomingTransfer::due).chain(begun).min();
        // An evicted transfer is dropped at once.
        let evicted = self.heard.filter(|_| self.arriving.values().any(IncomingTransfer::is_evicted));
        due.and_then(|due| self.clock.when(due)).into_iter().chain(evicted).chain(self.queues.paused_until).min()
    }

    fn wake_with(&mut self, waker: &Waker) {
        self.account.wake_with(waker);
    }

    fn wants_frames(&self) -> bool {
        true
    }

    fn counters(&self) -> &Counters {
        self.events.counters()
    }
}
