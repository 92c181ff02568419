//! One side of a bridge: a machine on a link, what it still has to send, and what is arriving.

use std::collections::HashMap;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use breakbulk_proto::{CloseReason, Event, Input, Lane, Message, Meta, Progress, Subject, Ticket};

use super::store::Store;
use super::watch::Watched;
use crate::dialect::AnyMachine;
use crate::driver::{Driver, now};
use crate::link::{BoxLink, Link};
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
    /// If its peer has closed it: whether that showed how long frames may be.
    pub(super) taught: Option<bool>,
    /// Messages handed to the machine that are not on the link yet.
    sending: HashMap<Ticket, Passage>,
    /// What those take up.
    store: Store,
    waiting_bytes: u64,
    tickets: u64,
    /// Messages of which only a part has arrived: when they began, and how many frames came.
    arriving: HashMap<u64, (Instant, u32)>,
    /// Whether a frame is waited for that had begun when the program was told to stop.
    is_amid_last: bool,
}

/// A message on its way through a bridge.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) message: Message,
    pub(super) look: Look,
    pub(super) began: Instant,
    /// Frames in which it came, and in which it left.
    pub(super) frames: (u32, u32),
}

impl Side {
    /// A side on which nothing has passed.
    pub(super) fn new(driver: Driver<Watched<BoxLink>, AnyMachine>, store: Store) -> Self {
        let (sending, arriving) = (HashMap::new(), HashMap::new());
        let (has_ended, closed, is_told, taught, is_amid_last) = (false, None, false, None, false);
        let (waiting_bytes, tickets) = (0, 0);
        Self {
            driver,
            has_ended,
            closed,
            is_told,
            taught,
            sending,
            store,
            waiting_bytes,
            tickets,
            arriving,
            is_amid_last,
        }
    }

    /// Whether there is room for another message.
    pub(super) fn has_room(&self) -> bool {
        if !self.store.has_room() {
            return false;
        }
        if self.waiting_bytes < ROOM && self.sending.len() < MOST {
            return true;
        }
        let largest = self.sending.values().map(|passage| passage.message.len()).max().unwrap_or(0);
        self.sending.len() < MOST && self.waiting_bytes.saturating_sub(wide(largest)) < ROOM
    }

    /// Whether nothing is on its way in or out.
    pub(super) fn is_idle(&self) -> bool {
        self.sending.is_empty() && self.arriving.is_empty() && !self.is_amid_last
    }

    /// The program stops: a frame that has begun to come in is the last that is waited for.
    pub(super) fn wind_up(&mut self) {
        self.is_amid_last = self.driver.link().is_amid_frame();
    }

    /// Looks after what waits. Ready when there is room again where there was none; with an error when what waits here
    /// has to go, because others need its room more.
    pub(super) fn poll_store(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        // What we have closed already is let go of as its messages fail.
        if self.is_told { Poll::Pending } else { self.store.poll(cx) }
    }

    /// What has come: an event, and with it perhaps more room.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = self.driver.poll_next(cx);
        if self.driver.has_flushed() {
            self.store.flushed();
        }
        event
    }

    /// Whether all that it was handed is on the link.
    pub(super) fn has_sent_all(&self) -> bool {
        self.sending.is_empty()
    }

    /// How many messages it was handed that are not on the link yet.
    pub(super) fn unsent(&self) -> u64 {
        wide(self.sending.len())
    }

    /// Hands it a message.
    pub(super) fn send(&mut self, passage: Passage, meta: Meta) {
        self.tickets = self.tickets.saturating_add(1);
        let (ticket, message) = (Ticket(self.tickets), passage.message.clone());
        self.waiting_bytes = self.waiting_bytes.saturating_add(wide(message.len()));
        self.driver.link_mut().begin(message.len());
        self.store.add(ticket, wide(message.len()));
        self.sending.insert(ticket, passage);
        self.driver.handle(Input::Send { ticket, message, lane: Lane::Auto, meta });
    }

    /// A message that it was handed was sent, or was not.
    pub(super) fn done(&mut self, ticket: Ticket, is_sent: bool) -> Option<Passage> {
        let passage = self.sending.remove(&ticket)?;
        self.store.remove(ticket, is_sent.then(|| passage.message.clone()));
        self.waiting_bytes = self.waiting_bytes.saturating_sub(wide(passage.message.len()));
        Some(passage)
    }

    /// A frame of a message has passed.
    pub(super) fn note_frame(&mut self, Progress { subject, done, .. }: Progress) {
        match subject {
            Subject::Incoming(ordinal) => {
                self.is_amid_last = false;
                let (_, frames) = self.arriving.entry(ordinal).or_insert_with(|| (now(), 0));
                *frames = frames.saturating_add(1);
            }
            Subject::Outgoing(ticket) => {
                if let Some(passage) = self.sending.get_mut(&ticket) {
                    passage.frames.1 = passage.frames.1.saturating_add(1);
                    self.store.note_sent(ticket, done);
                }
            }
        }
    }

    /// A line has come that is no message.
    pub(super) const fn note_line(&mut self) {
        self.is_amid_last = false;
    }

    /// A message has arrived whole, or failed: when it began, and in how many frames it came.
    pub(super) fn arrived(&mut self, ordinal: u64) -> (Instant, u32) {
        self.is_amid_last = false;
        let (began, frames) = self.arriving.remove(&ordinal).unwrap_or_else(|| (now(), 0));
        (began, frames.saturating_add(1))
    }

    /// Ends it, if it has not ended.
    pub(super) fn close(&mut self, reason: CloseReason) {
        self.is_told = true;
        self.driver.handle(Input::Close(reason));
    }

    /// It has ended: its link has nothing any more.
    pub(super) fn end(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
        self.store.flushed();
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
    use breakbulk_proto::{Budget, Capacity, Limits, Transmit};
    use futures_util::SinkExt;

    fn side() -> (Side, Memory) {
        let (near, peer) = link::pair(&Capacity::of(1000), 4);
        let budget = Budget::default();
        let machine = Setup::new(Dialect::Plain, Role::Server, Limits::default()).machine(budget.account(None));
        let link: BoxLink = Box::new(near);
        let driver = Driver::new(Watched::new(link, u64::MAX), machine.expect("random bytes"));
        (Side::new(driver, Store::new(budget.account(None), budget.account(None))), peer)
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
