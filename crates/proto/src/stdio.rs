//! The `stdio` dialect, for a pipe: a line is a message, a frame of a message that is too long for a line, or something for the log.
//!
//! The link adds and strips line ends. Frames are `UUID:index:total:data`, as SwiftAgentKit reads and writes them.

mod receive;
mod send;

use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;

use self::receive::Receiver;
use self::send::Sender;
use crate::budget::Account;
use crate::error::{CloseReason, Counters};
use crate::event_queue::EventQueue;
use crate::limits::Limits;
use crate::machine::{Event, Input, Machine, Meta, Transmit};
use crate::parked::ParkedFrames;

/// The most frames of one message, in either direction. That is about 57 GiB, and any index has at most 6 digits.
const MAX_TOTAL: u32 = 1_000_000;

/// How one end of a pipe behaves.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The longest message in either direction, how much may wait, and how many groups may be open. The frame limit is not used.
    pub limits: Limits,
    /// The longest line that we accept.
    pub max_line_bytes: u64,
    /// Random bytes from which the ids of groups are made. No two connections may have the same.
    pub seed: [u8; 32],
}

impl Config {
    /// Accepts raw lines as long as the longest message.
    #[must_use]
    pub fn new(limits: Limits, seed: [u8; 32]) -> Self {
        Self { limits, max_line_bytes: limits.max_message_bytes, seed }
    }
}

/// One end of a pipe.
///
/// Messages leave in the order in which they were sent, except those marked free and those that may pass the rest of a long one: a
/// `ping`; a response or a `notifications/progress` that fits a line; and a cancel, which passes all but the request that it names.
/// A line or a group that is not valid, or for which
/// the budget has no memory, fails by itself: nothing that the peer writes closes the connection. A message that is arriving is given
/// up when nothing of it has come for 30 s, and in any case after the same part of the group timeout as its length is of the longest
/// message. At the end of the input, every message that is arriving is
/// given up. If it was meant as a request, the peer gets an error as its answer; if as an answer, the caller here does.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    parked: ParkedFrames,
    input: InputState,
    events: EventQueue,
}

/// Whether more lines may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputState {
    Open,
    /// No more frames will come, but some may be parked.
    Ended,
}

impl Connection {
    /// A connection over a new pipe.
    #[must_use]
    pub fn new(config: Config, account: Account) -> Self {
        let receiver = Receiver::new(config.limits, config.max_line_bytes, account);
        Self {
            sender: Sender::new(config.limits, config.seed),
            receiver,
            parked: ParkedFrames::default(),
            input: InputState::Open,
            events: EventQueue::default(),
        }
    }

    /// Queues the error answers that the receiver made for the peer.
    fn answer(&mut self) {
        self.receiver.replies.drain(..).for_each(|answers| self.sender.outgoing.answer(answers));
    }

    /// Takes a line, or keeps it until lines are wanted again.
    fn line(&mut self, bytes: Bytes, meta: Meta, now: Instant) {
        if !self.wants_frames() {
            let limit = self.sender.outgoing.limits.max_message_bytes;
            return self.parked.push(bytes, meta, limit).unwrap_or_else(|reason| self.close(reason));
        }
        self.receiver.line(bytes, meta, now, &mut self.events);
        self.answer();
    }

    /// Takes the lines that were kept, as far as lines are wanted. If no more will come, unfinished messages fail.
    fn take_parked(&mut self, now: Instant) {
        while self.sender.outgoing.may_read()
            && let Some((bytes, meta)) = self.parked.pop()
        {
            self.receiver.line(bytes, meta, now, &mut self.events);
            self.answer();
        }
        if self.input == InputState::Ended && self.parked.is_empty() {
            self.receiver.end(&mut self.events);
            self.answer();
        }
    }

    fn close(&mut self, reason: CloseReason) {
        // If the peer has ended, its unfinished messages are lost, and fail. If we end the connection, we do not want
        // them any more.
        if matches!(reason, CloseReason::Peer { .. }) {
            self.receiver.end(&mut self.events);
            self.receiver.replies.clear();
        }
        self.parked = ParkedFrames::default();
        self.events.close(reason);
        self.sender.outgoing.abandon(|group| group.out, &mut self.events);
        self.receiver.groups.clear();
    }
}

impl Machine for Connection {
    fn handle(&mut self, input: Input, now: Instant) {
        match input {
            Input::Send { ticket, message, lane, meta } => {
                self.sender.accept((ticket, message, lane, meta), &mut self.events);
            }
            _ if self.events.is_closed() => {}
            Input::Frame { bytes, meta } => self.line(bytes, meta, now),
            Input::EndOfInput => {
                self.input = InputState::Ended;
                self.take_parked(now);
            }
            Input::Capacity(link) => {
                if !self.sender.fit_to(&link) {
                    self.close(CloseReason::CapShrank);
                }
            }
            Input::Paused(paused) => self.receiver.clock.pause(paused, now),
            Input::Timeout => {
                self.receiver.timeout(now, &mut self.events);
                self.answer();
            }
            Input::Close(reason) => self.close(reason),
            Input::Acked { .. } => {}
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let line = self.sender.transmit(now, &mut self.events);
        self.take_parked(now);
        line.or_else(|| self.events.poll_transmit_close().map(Transmit::Close))
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.poll_event()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.receiver.poll_timeout()
    }

    fn wake_with(&mut self, waker: &Waker) {
        self.receiver.wake_with(waker);
    }

    fn wants_frames(&self) -> bool {
        self.sender.outgoing.may_read() && self.parked.is_empty()
    }

    fn counters(&self) -> &Counters {
        self.events.counters()
    }
}

#[cfg(test)]
mod tests;
