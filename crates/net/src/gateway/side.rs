//! One side of a bridge: a machine on a link, what it still has to send, and what is arriving.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use breakbulk_proto::{CloseReason, Input, Lane, Message, Meta, Subject, Ticket};

use super::watch::Watched;
use crate::dialect::AnyMachine;
use crate::driver::{Driver, now};
use crate::link::BoxLink;
use crate::look::Look;

/// Bytes that may wait for one side, beside its largest message: past them, the other side is not read. The largest does
/// not count, so that one of thirty megabytes does not hold up the ping behind it.
const ROOM: u64 = 8 << 20;
/// Messages that may wait for one side.
const MOST: usize = 1024;

/// One side of a bridge.
pub(super) struct Side {
    pub(super) driver: Driver<Watched<BoxLink>, AnyMachine>,
    /// Whether its peer sends nothing more.
    pub(super) has_ended: bool,
    /// How it was closed.
    pub(super) closed: Option<CloseReason>,
    /// Whether the bridge has closed it.
    is_told: bool,
    /// Messages handed to the machine that are not on the link yet.
    sending: HashMap<Ticket, Passage>,
    waiting_bytes: u64,
    tickets: u64,
    /// Messages of which only a part has arrived: when they began, and how many frames came.
    arriving: HashMap<u64, (Instant, u32)>,
}

/// A message on its way through a bridge.
#[derive(Debug, Clone)]
pub(super) struct Passage {
    pub(super) message: Message,
    pub(super) look: Look,
    pub(super) began: Instant,
    /// Frames in which it came, and in which it left.
    pub(super) frames: (u32, u32),
}

impl Side {
    pub(super) fn new(driver: Driver<Watched<BoxLink>, AnyMachine>) -> Self {
        let (sending, arriving) = (HashMap::new(), HashMap::new());
        let (has_ended, closed, is_told) = (false, None, false);
        Self { driver, has_ended, closed, is_told, sending, waiting_bytes: 0, tickets: 0, arriving }
    }

    /// Whether there is room for another message.
    pub(super) fn has_room(&self) -> bool {
        if self.waiting_bytes < ROOM && self.sending.len() < MOST {
            return true;
        }
        let largest = self.sending.values().map(|passage| passage.message.len()).max().unwrap_or(0);
        self.sending.len() < MOST && self.waiting_bytes.saturating_sub(wide(largest)) < ROOM
    }

    /// Whether nothing is on its way in or out.
    pub(super) fn is_idle(&self) -> bool {
        self.sending.is_empty() && self.arriving.is_empty()
    }

    /// Whether all that it was handed is on the link.
    pub(super) fn has_sent_all(&self) -> bool {
        self.sending.is_empty()
    }

    /// Hands it a message.
    pub(super) fn send(&mut self, passage: Passage, meta: Meta) {
        self.tickets = self.tickets.saturating_add(1);
        let (ticket, message) = (Ticket(self.tickets), passage.message.clone());
        self.waiting_bytes = self.waiting_bytes.saturating_add(wide(message.len()));
        self.driver.link_mut().begin(message.len());
        self.sending.insert(ticket, passage);
        self.driver.handle(Input::Send { ticket, message, lane: Lane::Auto, meta });
    }

    /// A message that it was handed has left, or failed.
    pub(super) fn done(&mut self, ticket: Ticket) -> Option<Passage> {
        let passage = self.sending.remove(&ticket)?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(wide(passage.message.len()));
        Some(passage)
    }

    /// A frame of a message has passed.
    pub(super) fn note_frame(&mut self, subject: Subject) {
        match subject {
            Subject::Incoming(ordinal) => {
                let (_, frames) = self.arriving.entry(ordinal).or_insert_with(|| (now(), 0));
                *frames = frames.saturating_add(1);
            }
            Subject::Outgoing(ticket) => {
                if let Some(passage) = self.sending.get_mut(&ticket) {
                    passage.frames.1 = passage.frames.1.saturating_add(1);
                }
            }
        }
    }

    /// A message has arrived whole, or failed: when it began, and in how many frames it came.
    pub(super) fn arrived(&mut self, ordinal: u64) -> (Instant, u32) {
        let (began, frames) = self.arriving.remove(&ordinal).unwrap_or_else(|| (now(), 0));
        (began, frames.saturating_add(1))
    }

    /// Ends it, if it has not ended.
    pub(super) fn close(&mut self, reason: CloseReason) {
        self.is_told = true;
        self.driver.handle(Input::Close(reason));
    }

    /// How it ended, and who ended it, for the log.
    pub(super) fn how_it_ended(&self, reason: &CloseReason) -> String {
        let by_peer = !self.is_told || self.driver.close_text().is_some();
        match (self.driver.failure(), reason) {
            (Some(failure), _) => failure.to_string(),
            (None, CloseReason::Peer { .. }) if by_peer => reason.to_string(),
            (None, CloseReason::Peer { code }) => format!("closed by us with code {code}, as the other side ended"),
            (None, reason) => format!("closed by us: {reason}"),
        }
    }
}

impl Passage {
    pub(super) fn took(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{Dialect, Setup};
    use crate::link::{self, Memory};
    use breakbulk_proto::ahp::Role;
    use breakbulk_proto::{Budget, Capacity, Event, Limits, Transmit};
    use futures_util::SinkExt;

    fn side() -> (Side, Memory) {
        let (near, peer) = link::pair(&Capacity::of(1000), 4);
        let machine =
            Setup::new(Dialect::Plain, Role::Server, Limits::default()).machine(Budget::default().account(None));
        let link: BoxLink = Box::new(near);
        (Side::new(Driver::new(Watched::new(link, u64::MAX), machine.expect("random bytes"))), peer)
    }

    async fn end(side: &mut Side) -> String {
        let Some(Event::Closed(reason)) = side.driver.next().await else { panic!("it does not end") };
        side.how_it_ended(&reason)
    }

    #[tokio::test]
    async fn the_log_says_who_closed() {
        let (mut side, mut peer) = self::side();
        peer.send(Transmit::Close(CloseReason::Restart)).await.expect("a link");
        assert_eq!(end(&mut side).await, "closed by the peer with code 1012");

        let (mut side, _peer) = self::side();
        side.close(CloseReason::Peer { code: 1001 });
        assert_eq!(end(&mut side).await, "closed by us with code 1001, as the other side ended");

        let (mut side, _peer) = self::side();
        side.close(CloseReason::Restart);
        assert_eq!(end(&mut side).await, "closed by us: restarting");
    }
}
