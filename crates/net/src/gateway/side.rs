//! One side of a bridge: a machine on a link, what it still has to send, and what is arriving.

use std::collections::HashMap;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use breakbulk_proto::{Account, CloseReason, Event, Grant, Input, Lane, Message, Meta, Progress, Subject, Ticket};

use super::observed_link::ObservedLink;
use crate::deferred_drop::drop_in_background;
use crate::dialect::{AnyMachine, Dialect};
use crate::driver::{Driver, now};
use crate::len64;
use crate::link::{BoxLink, Link, NextFrame, ReceiveMemory};
use crate::look::Look;
use crate::memory::{Reservation, Retry, is_segmented};

/// Bytes that may wait for one side, beside its largest message: past them, the other side is not read. The largest does
/// not count, so that one of thirty megabytes does not hold up the ping behind it.
const ROOM: u64 = 8 << 20;
/// Messages that may wait for one side.
const MOST: usize = 1024;

/// One side of a bridge.
pub(super) struct Side {
    pub(super) driver: Driver<ObservedLink<BoxLink>, AnyMachine>,
    dialect: Dialect,
    /// Whether its peer sends nothing more.
    pub(super) has_ended: bool,
    /// How it was closed.
    pub(super) closed: Option<CloseReason>,
    /// The same in words, for a person.
    pub(super) end_words: String,
    /// Whether the bridge has closed it.
    is_told: bool,
    /// If its peer has closed it: whether that showed how long frames may be.
    pub(super) taught: Option<bool>,
    /// Messages handed to the machine that are not on the link yet.
    sending: HashMap<Ticket, Passage>,
    /// Those of them that have no memory to wait in. Until they have, the other side is not read.
    unreserved: Vec<Ticket>,
    /// The last message that was handed to the link, which may still have it. The next is not taken before.
    leaving: Option<(Message, Reservation)>,
    /// What messages are charged to that were not reserved as they arrived.
    account: Account,
    retry: Retry,
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
    /// The memory that it takes up.
    pub(super) reservation: Reservation,
}

/// What is reserved for a message that has arrived whole.
#[derive(Debug)]
pub(super) enum Arrived {
    /// Nothing: it is short, or ours.
    Unreserved,
    /// Its memory, in the share for messages.
    Message(Grant),
    /// The memory of its frame, in the share for frames.
    Frame(Grant),
}

impl Side {
    /// A side on which nothing has passed. What it is to be sent is charged to `account`.
    pub(super) fn new(driver: Driver<ObservedLink<BoxLink>, AnyMachine>, account: Account, dialect: Dialect) -> Self {
        Self {
            driver,
            dialect,
            has_ended: false,
            closed: None,
            end_words: String::new(),
            is_told: false,
            taught: None,
            sending: HashMap::new(),
            unreserved: Vec::new(),
            leaving: None,
            account,
            retry: Retry::new(),
            waiting_bytes: 0,
            tickets: 0,
            arriving: HashMap::new(),
            is_amid_last: false,
        }
    }

    /// Whether there is room for another message.
    pub(super) fn has_room(&self) -> bool {
        if !self.unreserved.is_empty() {
            return false;
        }
        if self.waiting_bytes < ROOM && self.sending.len() < MOST {
            return true;
        }
        let largest = self.sending.values().map(|passage| passage.message.len()).max().unwrap_or(0);
        self.sending.len() < MOST && self.waiting_bytes.saturating_sub(len64(largest)) < ROOM
    }

    /// Takes over what is reserved for the message that has just arrived here, of so many bytes.
    pub(super) fn take_memory(&mut self, bytes: u64) -> Arrived {
        if let Some(grant) = self.driver.machine_mut().take_grant() {
            return Arrived::Message(grant);
        }
        let frame = self.driver.link_mut().receive_memory().and_then(ReceiveMemory::take_last);
        let Some(mut grant) = frame else { return Arrived::Unreserved };
        grant.complete(bytes);
        if is_segmented(self.dialect) { Arrived::Frame(grant) } else { Arrived::Message(grant) }
    }

    /// The memory of a message of so many bytes that is to be sent here.
    pub(super) fn reserve(&self, arrived: Arrived, bytes: u64) -> Reservation {
        match arrived {
            Arrived::Unreserved => Reservation::waiting(&self.account, None, bytes),
            Arrived::Message(grant) => Reservation::waiting(&self.account, Some(grant), bytes),
            Arrived::Frame(grant) => {
                // It waits no more for the rest of a frame, so it leaves that share if it can.
                let message = Reservation::waiting(&self.account, None, bytes);
                if message.is_none() { Reservation::waiting(&self.account, Some(grant), bytes) } else { message }
            }
        }
    }

    /// Whether nothing is on its way in or out.
    pub(super) fn is_idle(&self) -> bool {
        self.sending.is_empty() && self.arriving.is_empty() && !self.is_amid_last
    }

    /// Whether a part of a message has come, and the rest has not.
    pub(super) fn is_receiving(&self) -> bool {
        !self.arriving.is_empty() || self.driver.link().status().is_amid_frame
    }

    /// The program stops: a frame that has begun to come in is the last that is waited for.
    pub(super) fn wind_up(&mut self) {
        self.is_amid_last = self.driver.link().status().is_amid_frame;
    }

    /// Looks after the memory of what waits here. Ready when all of it has memory again; with an error when something was
    /// evicted, because others need its memory more.
    pub(super) fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        // Once we have closed it, memory is given back as messages fail.
        while !self.is_told && (!self.sending.is_empty() || self.leaving.is_some()) {
            ready!(self.retry.poll(cx));
            let leaving = self.leaving.iter().map(|(_, reservation)| reservation);
            if self.sending.values().map(|passage| &passage.reservation).chain(leaving).any(Reservation::is_evicted) {
                return Poll::Ready(Err(CloseReason::Evicted));
            }
            if self.reserve_all() {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// Asks again for memory for what has none. Whether all has now that did not.
    fn reserve_all(&mut self) -> bool {
        let had_none = !self.unreserved.is_empty();
        while let Some(ticket) = self.unreserved.last() {
            if let Some(passage) = self.sending.get_mut(ticket) {
                passage.reservation = Reservation::waiting(&self.account, None, len64(passage.message.len()));
                if passage.reservation.is_none() {
                    return false;
                }
            }
            self.unreserved.pop();
        }
        had_none
    }

    /// The next event. With it, the link may have written what it was handed.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if is_segmented(self.dialect) {
            let next = if self.arriving.is_empty() { NextFrame::Begins } else { NextFrame::GoesOn };
            if let Some(memory) = self.driver.link_mut().receive_memory() {
                memory.set_next_frame(next);
            }
        }
        let event = self.driver.poll_next(cx);
        if self.driver.has_flushed() {
            self.flushed();
        }
        event
    }

    /// The link has nothing left to write.
    fn flushed(&mut self) {
        if let Some((message, reservation)) = self.leaving.take() {
            drop_in_background(message, reservation);
        }
    }

    /// Whether all that it was handed is on the link.
    pub(super) fn has_sent_all(&self) -> bool {
        self.sending.is_empty()
    }

    /// How many messages it was handed that are not on the link yet.
    pub(super) fn unsent(&self) -> u64 {
        len64(self.sending.len())
    }

    /// Hands it a message.
    pub(super) fn send(&mut self, passage: Passage, meta: Meta) {
        self.tickets = self.tickets.saturating_add(1);
        let (ticket, message) = (Ticket(self.tickets), passage.message.clone());
        self.waiting_bytes = self.waiting_bytes.saturating_add(len64(message.len()));
        self.driver.link_mut().begin(message.len());
        if passage.reservation.is_none() {
            self.unreserved.push(ticket);
        }
        self.sending.insert(ticket, passage);
        self.driver.handle(Input::Send { ticket, message, lane: Lane::Auto, meta });
    }

    /// A message that it was handed was sent, or was not. If it was, the link may still have it.
    pub(super) fn done(&mut self, ticket: Ticket, is_sent: bool) -> Option<Passage> {
        let mut passage = self.sending.remove(&ticket)?;
        self.unreserved.retain(|unreserved| *unreserved != ticket);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(len64(passage.message.len()));
        if is_sent {
            self.flushed();
            self.leaving = Some((passage.message.clone(), std::mem::take(&mut passage.reservation)));
        }
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
                    passage.reservation.note_progress(done);
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
        self.end_words = self.driver.describe_end(&reason);
        self.closed = Some(reason);
        self.flushed();
    }
}

impl Passage {
    pub(super) fn took(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Setup;
    use crate::link::{self, InProcessLink};
    use breakbulk_proto::ahp::Role;
    use breakbulk_proto::{Budget, BudgetConfig, Capacity, Limits, Schedule, Transmit};
    use futures_util::{FutureExt, SinkExt, StreamExt};
    use std::future::poll_fn;

    fn side() -> (Side, InProcessLink) {
        side_with(Budget::default().account(None))
    }

    /// A side of which what waits is charged to `account`, and its peer.
    fn side_with(account: Account) -> (Side, InProcessLink) {
        let (near, peer) = link::pair(&Capacity::of(1_000_000), 4);
        let budget = Budget::default();
        let machine = Setup::new(Dialect::Plain, Role::Server, Limits::default()).machine(budget.account(None));
        let link: BoxLink = Box::new(near);
        let driver = Driver::new(ObservedLink::new(link, u64::MAX), machine.expect("random bytes"));
        (Side::new(driver, account, Dialect::Plain), peer)
    }

    async fn end(side: &mut Side) -> String {
        let Some(Event::Closed(reason)) = side.driver.next().await else { panic!("it does not end") };
        side.end(reason);
        side.end_words.clone()
    }

    fn notification(len: usize) -> Message {
        format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(len)).into()
    }

    fn hand(side: &mut Side, message: Message) {
        let reservation = side.reserve(Arrived::Unreserved, len64(message.len()));
        let look = Look::front(&message);
        side.send(Passage { message, look, began: now(), frames: (0, 0), reservation }, Meta::default());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_reader_does_not_take_is_evicted_when_others_need_its_memory() {
        let budget = Budget::new(BudgetConfig { process_bytes: 100_000, principal_bytes: 90_000, floor_bytes: 0 });
        let (mut side, _peer) = side_with(budget.account(Some("stalled")));
        hand(&mut side, notification(70_000));
        let other = budget.account(Some("other"));
        let press = || {
            let schedule = Schedule { started: now(), timeout: Duration::from_secs(30) };
            assert!(other.reserve(50_000, schedule).is_err());
        };
        press();
        assert!(poll_fn(|cx| side.poll_memory(cx)).now_or_never().is_none(), "it has its time");
        tokio::time::advance(Duration::from_secs(30)).await;
        press();
        assert_eq!(poll_fn(|cx| side.poll_memory(cx)).await, Err(CloseReason::Evicted));
    }

    #[tokio::test(start_paused = true)]
    async fn without_memory_a_message_goes_on_and_the_next_waits_until_there_is_some() {
        let budget = Budget::new(BudgetConfig { process_bytes: 100_000, principal_bytes: 100_000, floor_bytes: 0 });
        let (mut side, mut peer) = side_with(budget.account(Some("one")));
        let taken = budget.account(Some("other")).reserve(50_000, Schedule { started: now(), timeout: Duration::MAX });
        hand(&mut side, notification(70_000));
        assert!(!side.has_room() && budget.held() == 50_000);
        drop(taken);
        poll_fn(|cx| side.poll_memory(cx)).await.expect("memory");
        assert!(side.has_room() && budget.held() > 70_000);
        let Some(Event::Sent { ticket }) = side.driver.next().await else { panic!("it is not sent") };
        assert!(side.done(ticket, true).is_some() && budget.held() > 70_000, "the link may still have it");
        assert!(matches!(peer.next().await, Some(Ok(_))));
        assert!(poll_fn(|cx| side.poll_event(cx)).now_or_never().is_none());
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn the_log_says_who_closed() {
        let (mut side, mut peer) = self::side();
        peer.send(Transmit::Close(CloseReason::Restart)).await.expect("a link");
        assert_eq!(end(&mut side).await, r#"closed by the peer with code 1012, which says "restarting""#);

        let (mut side, mut peer) = self::side();
        peer.send(Transmit::Close(CloseReason::Program(1009, "max length: 1\u{1b}[2J".into()))).await.expect("a link");
        assert_eq!(end(&mut side).await, r#"closed by the peer with code 1009, which says "max length: 1\u{1b}[2J""#);

        let (mut side, _peer) = self::side();
        side.close(CloseReason::Peer { code: 1001 });
        assert_eq!(end(&mut side).await, "closed by us with code 1001, as the other side ended");

        let (mut side, _peer) = self::side();
        side.close(CloseReason::Restart);
        assert_eq!(end(&mut side).await, "closed by us: restarting");
    }
}
