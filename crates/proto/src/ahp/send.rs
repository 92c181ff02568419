//! The sending half: messages are queued in order, cut when they start, and sent one frame at a time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::handshake::Role;
use super::negotiate::Chunking;
use super::order;
use super::wire::{self, SegmentPlan, SegmentWriter};
use crate::error::{Over, SendError};
use crate::event_queue::EventQueue;
use crate::limits::{Limits, MIN_FRAME_BYTES};
use crate::machine::{Capacity, Measure, Tag, Transmit};
use crate::message::{Message, MessageReader, len64};
use crate::outgoing::{MAX_ANSWERS, Outgoing, check_depth, group_name, measure};
use crate::pace::{Pace, Rate};
use crate::queue::{Bond, Fit, Order, Pick, Queue};

/// On a slow link, segments are so short that about this many pass in a second, so that other messages get their turn.
const SEGMENTS_PER_SECOND: u64 = 20;
/// The shortest frame that is chosen for a slow link. In shorter ones, the segment's template would take too large a part.
const SLOW_FRAME: u64 = 16 << 10;
/// The longest frame that is chosen at all. The peer works on one frame while the next is made and sent. With longer ones it
/// would wait longer for the first, and they would not fit the second-level cache of either end. Above 128 KiB a text is a
/// large object to V8, for which it asks the system for memory each time.
const LONG_FRAME: u64 = 120 << 10;
/// The longest frame that is chosen while other messages wait, or have just been sent.
const SHARED_FRAME: u64 = 64 << 10;
/// When two messages without segments were sent within this time, more of them are expected.
const LIVELY: Duration = Duration::from_millis(500);

/// A message of ours that waits.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    pub(super) out: Outgoing,
    pub(super) class: MessageClass,
    measure: Measure,
}

/// What a message is, as far as sending it depends on that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageClass {
    /// Any request or notification.
    Ordinary,
    /// A handshake request. It does not wait for the peer's limits, because it asks for them, and other messages wait for it.
    Handshake,
    /// A segment that the application itself made. It is never segmented again.
    Segment,
    /// A response. If it cannot be sent, an error is sent in its place.
    Response,
}

/// A message of which some segments have been sent.
#[derive(Debug)]
struct OutgoingGroup {
    out: Outgoing,
    reader: MessageReader,
    id: u128,
    plan: SegmentPlan,
    index: u64,
}

/// A message that cannot be sent. Nothing of it was.
#[derive(Debug)]
pub(super) struct UnsentMessage {
    pub(super) item: QueuedMessage,
    pub(super) order: Order,
    pub(super) error: SendError,
}

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    queue: Queue<QueuedMessage, OutgoingGroup>,
    writer: SegmentWriter,
    /// Error answers in place of responses that cannot be sent. They are sent before everything else.
    pub(super) answers: VecDeque<Outgoing>,
    pub(super) pace: Pace,
    /// When the last two messages without segments were sent.
    short: [Option<Instant>; 2],
    link: Capacity,
    role: Role,
    max_depth: u32,
    seed: [u8; 32],
    groups: u64,
    last_tag: Tag,
}

impl Sender {
    pub(super) fn new(role: Role, limits: &Limits, seed: [u8; 32]) -> Self {
        Self {
            queue: Queue::new(limits.max_queued_bytes),
            writer: SegmentWriter::default(),
            answers: VecDeque::new(),
            pace: Pace::default(),
            short: [None; 2],
            link: Capacity::of(u64::MAX),
            role,
            max_depth: limits.max_depth,
            seed,
            groups: 0,
            last_tag: Tag::default(),
        }
    }

    /// Whether the peer may be read: not while many error answers of our own wait, because it does not read them.
    pub(super) fn may_read(&self) -> bool {
        self.answers.len() < MAX_ANSWERS
    }

    /// Whether an earlier message of this order was not sent whole yet.
    pub(super) fn has_unfinished(&self, order: Order) -> bool {
        self.queue.has_unfinished(order)
    }

    /// The link's cap changed.
    pub(super) fn set_capacity(&mut self, link: Capacity) {
        self.queue.waiting_mut().for_each(|item| item.measure = measure(&item.out.message, &link));
        self.link = link;
    }

    /// Whether the segments of the groups in flight still fit the frame limits. They cannot be cut again.
    pub(super) fn can_go_on(&self, theirs: Option<Chunking>) -> bool {
        let largest = || wire::largest_frame(theirs.map_or(u64::MAX, |theirs| theirs.max_frame_bytes), &self.link);
        self.queue.flights().all(|group| group.plan.longest_frame() <= largest())
    }

    /// Whether a message fits one frame.
    pub(super) fn fits(&self, message: &Message, theirs: Option<Chunking>) -> bool {
        fits_frame(measure(message, &self.link), theirs, &self.link)
    }

    /// Accepts a message, or refuses it.
    pub(super) fn push(
        &mut self,
        out: Outgoing,
        class: MessageClass,
        order: Order,
        bond: Bond,
    ) -> Option<UnsentMessage> {
        let measure = measure(&out.message, &self.link);
        let item = QueuedMessage { out, class, measure };
        if let Err(error) = check_depth(&item.out.message, self.max_depth) {
            return Some(UnsentMessage { item, order, error });
        }
        if class == MessageClass::Handshake {
            self.queue.push_first(item, measure.bytes, order);
            return None;
        }
        self.queue.push(item, measure.bytes, order, bond).err().map(|(item, error)| UnsentMessage {
            item,
            order,
            error,
        })
    }

    /// The next frame. `theirs` are the limits of the peer. `waiting` is true while the handshake that tells them is not answered.
    pub(super) fn poll(
        &mut self,
        (theirs, waiting): (Option<Chunking>, bool),
        now: Instant,
        events: &mut EventQueue,
    ) -> Option<Result<Transmit, UnsentMessage>> {
        if self.queue.barriers() == 0
            && let Some(answer) = self.answers.pop_front()
        {
            return Some(Ok(self.whole(&answer, now, events)));
        }
        let slots = theirs.map_or(1, |theirs| usize::try_from(theirs.max_groups).unwrap_or(usize::MAX));
        let finish = order::finish(self.role, theirs);
        let (link, role, spare) = (self.link.clone(), self.role, self.spare(now));
        let fit = |item: &QueuedMessage| {
            // Until the peer's limits are known, only messages that any peer takes are sent, and those that the peer may be waiting for.
            // A server may wait for a client's response; a client waits only for the answer to its handshake.
            let can_wait = match item.class {
                MessageClass::Handshake => false,
                MessageClass::Response => role == Role::Server,
                MessageClass::Ordinary | MessageClass::Segment => true,
            };
            if waiting && can_wait && item.measure.bytes > MIN_FRAME_BYTES {
                Fit::Wait
            } else if fits_frame(item.measure, theirs, &link) {
                Fit::Frame
            } else if item.measure.bytes > spare {
                Fit::Wait
            } else {
                Fit::Group
            }
        };
        let Some(pick) = self.queue.pick(now, slots, finish, fit) else {
            self.pace.idle(now);
            return None;
        };
        match pick {
            Pick::Continue(place) => self.advance(place, now, events).map(Ok),
            Pick::Start(entry) if fit(&entry.item) == Fit::Frame => Some(Ok(self.whole(&entry.item.out, now, events))),
            Pick::Start(entry) => match self.plan(&entry.item, theirs, now) {
                Ok((plan, timeout)) => {
                    let group = self.group(entry.item.out, plan);
                    let place = self.queue.begin_group(entry.rank, group, now, timeout);
                    self.advance(place, now, events).map(Ok)
                }
                Err(error) => {
                    self.queue.settle(entry.rank);
                    Some(Err(UnsentMessage { order: entry.rank.order, item: entry.item, error }))
                }
            },
        }
    }

    /// Fails everything that was not sent whole. The peer gets no answers, because the connection is closed.
    pub(super) fn abandon(&mut self, events: &mut EventQueue) {
        self.answers.clear();
        let (waiting, groups) = self.queue.clear();
        let groups = groups.into_iter().map(|group| group.out);
        for out in groups.chain(waiting.into_iter().map(|item| item.out)) {
            let _ = out.fail(SendError::Disconnected, events);
        }
    }

    /// A message in one frame.
    fn whole(&mut self, out: &Outgoing, now: Instant, events: &mut EventQueue) -> Transmit {
        let (message, tag) = (out.message.clone(), self.last_tag.next());
        self.pace.frame(len64(message.len()), now);
        self.short = [self.short[1], Some(now)];
        out.frame(tag, message, out.message.len(), events)
    }

    /// The next segment of a group in flight.
    fn advance(&mut self, place: usize, now: Instant, events: &mut EventQueue) -> Option<Transmit> {
        let tag = self.last_tag.next();
        let group = self.queue.flight(place)?;
        let bytes = self.writer.write(group.id, group.index, group.plan, &mut group.reader);
        group.index = group.index.saturating_add(1);
        self.pace.frame(len64(bytes.len()), now);
        let frame = group.out.frame(tag, bytes, group.reader.done(), events);
        if group.index >= group.plan.total {
            self.queue.finish_group(place);
        }
        Some(frame)
    }

    /// How long a message may be that starts now, so that all groups in flight still finish in time. Unlimited while the rate of the
    /// link is not known.
    pub(super) fn spare(&self, now: Instant) -> u64 {
        let (Some(rate), Some(due)) = (self.pace.rate(now), self.queue.due()) else { return u64::MAX };
        let left = due.saturating_duration_since(now).as_secs();
        let under_way = self.queue.flights().fold(0_u64, |sum, group| sum.saturating_add(len64(group.reader.left())));
        rate.saturating_mul(left).saturating_mul(2).saturating_div(3).saturating_sub(under_way)
    }

    /// How a message that does not fit a frame is cut, and how long its group may take.
    fn plan(
        &self,
        item: &QueuedMessage,
        theirs: Option<Chunking>,
        now: Instant,
    ) -> Result<(SegmentPlan, Duration), SendError> {
        let size = item.measure.bytes;
        let Some(theirs) = theirs.filter(|_| item.class != MessageClass::Segment) else {
            return Err(SendError::NoSegments(Over { size, limit: self.link.cap }));
        };
        Over::check(size, theirs.max_message_bytes).map_err(SendError::TooLarge)?;
        let largest = wire::largest_frame(theirs.max_frame_bytes, &self.link);
        let rate = self.pace.rate(now);
        let slow = rate.and_then(|rate| rate.checked_div(SEGMENTS_PER_SECOND));
        let is_lively = self.short[0].is_some_and(|then| now.saturating_duration_since(then) < LIVELY);
        let longest = if is_lively || self.queue.has_waiting() { SHARED_FRAME } else { LONG_FRAME };
        let chosen = slow.map_or(longest, |n| n.clamp(SLOW_FRAME, longest)).min(largest);
        let plan = SegmentPlan::new(size, chosen).or_else(|_| SegmentPlan::new(size, largest))?;
        if let Some((Rate { bytes: rate, .. }, left)) = self.pace.believed(now) {
            let wire_bytes = plan.total.saturating_mul(plan.longest_frame());
            let limit_ms = u64::try_from(theirs.group_timeout.as_millis()).unwrap_or(u64::MAX);
            let needed_ms = wire_bytes.saturating_mul(1000).checked_div(rate).unwrap_or(u64::MAX);
            if needed_ms > limit_ms {
                let retry_after_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                return Err(SendError::TooSlow { size, needed_ms, limit_ms, rate, retry_after_ms });
            }
        }
        Ok((plan, theirs.group_timeout))
    }

    fn group(&mut self, out: Outgoing, plan: SegmentPlan) -> OutgoingGroup {
        self.groups = self.groups.wrapping_add(1);
        let reader = MessageReader::new(out.message.clone());
        OutgoingGroup { out, reader, id: group_name(&self.seed, self.groups), plan, index: 0 }
    }
}

fn fits_frame(measure: Measure, theirs: Option<Chunking>, link: &Capacity) -> bool {
    theirs.is_none_or(|theirs| measure.bytes <= theirs.max_frame_bytes) && link.fits(measure)
}
