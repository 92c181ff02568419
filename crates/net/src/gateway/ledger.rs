//! The ledger of one direction of a bridge: one record per message, from its first frame until the link to its receiver has
//! written its last.
//!
//! A record is an [`Arriving`] until the message is whole. Then it is a [`Transit`], which waits under a ticket until the machine
//! of its receiver has sent it, and after that as the [`Leaving`] one, until the link has written it.

use std::collections::HashMap;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use breakbulk_proto::{Account, CloseReason, Grant, Message, Ticket};

use super::FrameCounts;
use super::parsed_message::ParsedMessage;
use crate::deferred_drop::drop_in_background;
use crate::driver::now;
use crate::len64;
use crate::memory::{Reservation, Retry};

/// Bytes that may wait for a receiver, not counting its largest message. Beyond them, the sender is not read. The
/// largest does not count, so that a message of thirty megabytes does not hold up the ping behind it.
const MAX_WAITING_BYTES: u64 = 8 << 20;
/// Messages that may wait for a receiver.
const MAX_WAITING_MESSAGES: usize = 1024;

/// The messages that go to one side, and come from the other.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Messages of which only a part has arrived, by ordinal.
    arriving: HashMap<u64, Arriving>,
    begun_frame: BegunFrame,
    /// Messages that the receiver's machine was given, and has not sent yet.
    waiting: HashMap<Ticket, Transit>,
    /// How many bytes these messages have.
    waiting_bytes: u64,
    /// Those of them that have no memory to wait in. Until they have, their sender is not read.
    unreserved: Vec<Ticket>,
    /// The message that the link was given last, and may not have written. It gets the next one only when this is written.
    leaving: Option<Leaving>,
    last_ticket: u64,
    /// The account for messages that were not charged when they arrived.
    account: Account,
    retry: Retry,
}

/// A frame that has arrived in part. Its message is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BegunFrame {
    /// The end of the bridge does not wait for it.
    Ignored,
    /// It had begun to arrive when the program was told to stop: the end waits for it.
    Awaited,
}

/// A message of which only a part has arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arriving {
    /// When its first frame came.
    began: Instant,
    /// How many frames have come.
    frames: u32,
}

/// A message that has arrived whole.
#[derive(Debug)]
pub(super) struct Transit {
    pub(super) parsed: ParsedMessage,
    began: Instant,
    /// Without the last frame that is sent.
    frames: FrameCounts,
    reservation: Reservation,
}

/// A message that the link was given, and may not have written.
#[derive(Debug)]
struct Leaving {
    message: Message,
    reservation: Reservation,
}

/// The memory in which a message has arrived.
#[derive(Debug)]
pub(super) enum ArrivalMemory {
    /// None is reserved: the message is short, or was made here.
    Unreserved,
    /// That of the message, in the share for messages.
    Message(Grant),
    /// That of its frame, in the share for frames.
    Frame(Grant),
}

impl Ledger {
    /// A direction in which nothing has passed. A message that was not reserved as it arrived is charged to `account`.
    pub(super) fn new(account: Account) -> Self {
        Self {
            arriving: HashMap::new(),
            begun_frame: BegunFrame::Ignored,
            waiting: HashMap::new(),
            waiting_bytes: 0,
            unreserved: Vec::new(),
            leaving: None,
            last_ticket: 0,
            account,
            retry: Retry::new(),
        }
    }

    /// A frame of a message has arrived, and it is not the last one.
    pub(super) fn note_frame(&mut self, ordinal: u64) {
        self.begun_frame = BegunFrame::Ignored;
        let arriving = self.arriving.entry(ordinal).or_insert_with(Arriving::now);
        arriving.frames = arriving.frames.saturating_add(1);
    }

    /// A line has arrived that is no message.
    pub(super) const fn note_line(&mut self) {
        self.begun_frame = BegunFrame::Ignored;
    }

    /// The program stops, and a frame has begun to arrive.
    pub(super) const fn await_begun_frame(&mut self) {
        self.begun_frame = BegunFrame::Awaited;
    }

    /// The last frame of a message has arrived, or the message was given up.
    pub(super) fn finish_arriving(&mut self, ordinal: u64) -> Arriving {
        self.begun_frame = BegunFrame::Ignored;
        let arriving = self.arriving.remove(&ordinal).unwrap_or_else(Arriving::now);
        Arriving { frames: arriving.frames.saturating_add(1), ..arriving }
    }

    /// The record of a message that is whole.
    pub(super) fn record(&self, parsed: ParsedMessage, arriving: Arriving, memory: ArrivalMemory) -> Transit {
        let reservation = self.reserve(memory, len64(parsed.len()));
        let Arriving { began, frames } = arriving;
        Transit { parsed, began, frames: FrameCounts { received: frames, sent: 0 }, reservation }
    }

    fn reserve(&self, memory: ArrivalMemory, bytes: u64) -> Reservation {
        match memory {
            ArrivalMemory::Unreserved => Reservation::waiting(&self.account, None, bytes),
            ArrivalMemory::Message(grant) => Reservation::waiting(&self.account, Some(grant), bytes),
            ArrivalMemory::Frame(grant) => {
                // The frame is whole, so it leaves that share if there is memory in the share for messages.
                let message = Reservation::waiting(&self.account, None, bytes);
                if message.is_none() { Reservation::waiting(&self.account, Some(grant), bytes) } else { message }
            }
        }
    }

    /// Keeps a message that the receiver's machine is given; returns its ticket.
    pub(super) fn insert(&mut self, transit: Transit) -> Ticket {
        self.last_ticket = self.last_ticket.saturating_add(1);
        let ticket = Ticket(self.last_ticket);
        self.waiting_bytes = self.waiting_bytes.saturating_add(len64(transit.parsed.len()));
        if transit.reservation.is_none() {
            self.unreserved.push(ticket);
        }
        self.waiting.insert(ticket, transit);
        ticket
    }

    /// A frame of a message has left, and with it all bytes up to `done`. It is not the last one.
    pub(super) fn note_frame_sent(&mut self, ticket: Ticket, done: u64) {
        if let Some(transit) = self.waiting.get_mut(&ticket) {
            transit.frames.sent = transit.frames.sent.saturating_add(1);
            transit.reservation.note_progress(done);
        }
    }

    /// The machine has sent a message. The link may not have written it yet.
    pub(super) fn sent(&mut self, ticket: Ticket) -> Option<Transit> {
        let mut transit = self.remove(ticket)?;
        self.flushed();
        let reservation = std::mem::take(&mut transit.reservation);
        self.leaving = Some(Leaving { message: transit.parsed.message.clone(), reservation });
        Some(transit)
    }

    /// Removes a message that the machine does not send.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Transit> {
        let transit = self.waiting.remove(&ticket)?;
        self.unreserved.retain(|unreserved| *unreserved != ticket);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(len64(transit.parsed.len()));
        Some(transit)
    }

    /// The link has written all that it was given, or is gone.
    pub(super) fn flushed(&mut self) {
        if let Some(Leaving { message, reservation }) = self.leaving.take() {
            drop_in_background(message, reservation);
        }
    }

    /// Whether the sender may be read: there is room for one more message.
    pub(super) fn has_capacity(&self) -> bool {
        if !self.unreserved.is_empty() || self.waiting.len() >= MAX_WAITING_MESSAGES {
            return false;
        }
        if self.waiting_bytes < MAX_WAITING_BYTES {
            return true;
        }
        let largest = self.waiting.values().map(|transit| transit.parsed.len()).max().unwrap_or(0);
        self.waiting_bytes.saturating_sub(len64(largest)) < MAX_WAITING_BYTES
    }

    /// Whether a part of a message has arrived, and the rest has not.
    pub(super) fn is_arriving(&self) -> bool {
        !self.arriving.is_empty()
    }

    /// Whether the rest of a message or of a frame has to be waited for before the sender can be closed.
    pub(super) fn awaits_rest(&self) -> bool {
        self.is_arriving() || self.begun_frame == BegunFrame::Awaited
    }

    /// How many messages the receiver's machine has yet to send.
    pub(super) fn unsent(&self) -> u64 {
        len64(self.waiting.len())
    }

    /// Whether the receiver's machine has sent all messages.
    pub(super) fn has_sent_all(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Looks after the memory of the messages that wait. Ready when all of them have memory again; with an error when the
    /// budget has evicted one, because others need its memory more.
    pub(super) fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        while !self.waiting.is_empty() || self.leaving.is_some() {
            ready!(self.retry.poll(cx));
            let leaving = self.leaving.iter().map(|leaving| &leaving.reservation);
            if self.waiting.values().map(|transit| &transit.reservation).chain(leaving).any(Reservation::is_evicted) {
                return Poll::Ready(Err(CloseReason::Evicted));
            }
            if self.reserve_all() {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// Asks again for memory for the messages that have none. Whether there were some, and all have memory now.
    fn reserve_all(&mut self) -> bool {
        let had_none = !self.unreserved.is_empty();
        while let Some(ticket) = self.unreserved.last() {
            if let Some(transit) = self.waiting.get_mut(ticket) {
                transit.reservation = Reservation::waiting(&self.account, None, len64(transit.parsed.len()));
                if transit.reservation.is_none() {
                    return false;
                }
            }
            self.unreserved.pop();
        }
        had_none
    }
}

impl Arriving {
    /// A message of which no frame is known: it came in one, or was made here.
    pub(super) fn now() -> Self {
        Self { began: now(), frames: 0 }
    }
}

impl Transit {
    /// In how many frames it has passed, once all of it is sent.
    pub(super) const fn frames(&self) -> FrameCounts {
        FrameCounts { received: self.frames.received, sent: self.frames.sent.saturating_add(1) }
    }

    /// How long it has taken so far.
    pub(super) fn took(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }

    /// Drops a message that goes nowhere.
    pub(super) fn discard(self) {
        drop_in_background(self.parsed.message, self.reservation);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use breakbulk_proto::{Budget, BudgetConfig, Schedule};
    use futures_util::FutureExt;

    use super::*;

    fn budget() -> Budget {
        Budget::new(BudgetConfig { process_bytes: 100_000, principal_bytes: 90_000, floor_bytes: 0 })
    }

    fn message(len: usize) -> ParsedMessage {
        ParsedMessage::own(Message::from("m".repeat(len)))
    }

    fn insert(ledger: &mut Ledger, len: usize) -> Ticket {
        let transit = ledger.record(message(len), Arriving::now(), ArrivalMemory::Unreserved);
        ledger.insert(transit)
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_counts_frames_and_time_from_the_first_frame_in_to_the_last_frame_out() {
        let mut ledger = Ledger::new(budget().account(Some("one")));
        ledger.note_frame(7);
        assert!(ledger.is_arriving() && ledger.awaits_rest());
        tokio::time::advance(Duration::from_secs(1)).await;
        ledger.note_frame(7);
        let arriving = ledger.finish_arriving(7);
        assert!(!ledger.is_arriving() && !ledger.awaits_rest());
        let transit = ledger.record(message(10), arriving, ArrivalMemory::Unreserved);
        let ticket = ledger.insert(transit);
        tokio::time::advance(Duration::from_secs(1)).await;
        ledger.note_frame_sent(ticket, 5);
        let transit = ledger.sent(ticket).expect("a record");
        assert_eq!(transit.frames(), FrameCounts { received: 3, sent: 2 });
        assert_eq!(transit.took(), Duration::from_secs(2));
        assert!(ledger.sent(ticket).is_none() && ledger.has_sent_all());
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_had_begun_when_the_program_was_stopped_is_waited_for() {
        let mut ledger = Ledger::new(budget().account(Some("one")));
        ledger.await_begun_frame();
        assert!(ledger.awaits_rest() && !ledger.is_arriving());
        ledger.note_line();
        assert!(!ledger.awaits_rest());
        ledger.await_begun_frame();
        ledger.finish_arriving(7);
        assert!(!ledger.awaits_rest());
    }

    #[tokio::test(start_paused = true)]
    async fn past_eight_megabytes_beside_the_largest_message_the_sender_is_not_read() {
        let mut ledger = Ledger::new(Budget::default().account(Some("one")));
        let largest = insert(&mut ledger, 30 << 20);
        assert!(ledger.has_capacity());
        insert(&mut ledger, 8 << 20);
        assert!(!ledger.has_capacity());
        drop(ledger.remove(largest));
        assert!(ledger.has_capacity(), "now it is the largest itself");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_charged_until_the_link_has_written_it() {
        let budget = budget();
        let mut ledger = Ledger::new(budget.account(Some("one")));
        let [first, second, third] = [10_000; 3].map(|len| insert(&mut ledger, len));
        assert_eq!(budget.held(), 30_000);
        drop(ledger.sent(first));
        assert_eq!(budget.held(), 30_000, "the link may have it");
        drop(ledger.sent(second));
        assert_eq!(budget.held(), 20_000, "the link takes no second before the first is gone");
        ledger.flushed();
        assert_eq!(budget.held(), 10_000);
        drop(ledger.remove(third));
        assert_eq!((budget.held(), ledger.unsent()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn without_memory_a_message_goes_on_and_the_next_waits_until_there_is_some() {
        let budget = budget();
        let mut ledger = Ledger::new(budget.account(Some("one")));
        let schedule = Schedule { started: now(), timeout: Duration::MAX };
        let taken = budget.account(Some("other")).reserve(50_000, schedule);
        insert(&mut ledger, 70_000);
        assert!(!ledger.has_capacity() && budget.held() == 50_000);
        drop(taken);
        poll_fn(|cx| ledger.poll_memory(cx)).await.expect("memory");
        assert!(ledger.has_capacity() && budget.held() == 70_000);
        // A message larger than the whole limit does not block later ones after it is sent.
        let huge = insert(&mut ledger, 500_000);
        assert!(!ledger.has_capacity());
        drop(ledger.sent(huge));
        assert!(ledger.has_capacity());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_reader_does_not_take_is_evicted_when_others_need_its_memory() {
        let budget = budget();
        let [mut stalled, mut moving] = ["stalled", "moving"].map(|name| Ledger::new(budget.account(Some(name))));
        insert(&mut stalled, 70_000);
        let ticket = insert(&mut moving, 20_000);
        tokio::time::advance(Duration::from_secs(15)).await;
        moving.note_frame_sent(ticket, 15_000);
        let schedule = Schedule { started: now(), timeout: Duration::from_secs(30) };
        assert!(budget.account(Some("third")).reserve(30_000, schedule).is_err());
        assert_eq!(poll_fn(|cx| stalled.poll_memory(cx)).await, Err(CloseReason::Evicted));
        assert!(poll_fn(|cx| moving.poll_memory(cx)).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_in_which_a_message_arrived_is_kept_or_left_for_that_of_messages() {
        let [messages, frames] = [budget(), budget()];
        let ledger = Ledger::new(messages.account(Some("one")));
        let schedule = Schedule { started: now(), timeout: Duration::from_secs(30) };
        let grant = |budget: &Budget| budget.account(Some("one")).reserve(60_000, schedule).expect("memory");
        let record = |memory| ledger.record(message(60_000), Arriving::now(), memory);
        let kept = record(ArrivalMemory::Message(grant(&messages)));
        assert_eq!((messages.held(), frames.held()), (60_000, 0));
        let without = record(ArrivalMemory::Frame(grant(&frames)));
        assert_eq!((messages.held(), frames.held()), (60_000, 60_000), "there is no memory for messages");
        drop((kept, without));
        let _moved = record(ArrivalMemory::Frame(grant(&frames)));
        assert_eq!((messages.held(), frames.held()), (60_000, 0));
    }
}
