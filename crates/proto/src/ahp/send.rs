//! Messages become frames: looked at, queued in order, cut when they start, one frame at a time.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::negotiate::Chunking;
use super::wire::{self, Codec, GroupId, Plan};
use crate::error::{CloseReason, SendError};
use crate::limits::{Limits, MIN_FRAME_BYTES};
use crate::machine::{Capacity, Measure, Progress, Subject, Ticket};
use crate::message::{Message, Reader, len64};
use crate::outgoing::{group_name, measure};
use crate::pace::Pace;
use crate::queue::{Entry, Finish, Fit, Order, Pick, Queue};

/// Segments take at most about this long on the wire, so that others get their turn: a twentieth of a second.
const SEGMENTS_PER_SECOND: u64 = 20;
/// The shortest frame that is chosen for a slow link: below it, the template would weigh too much.
const SLOW_FRAME: u64 = 16 << 10;
/// The longest frame that is chosen while others wait.
const SHARED_FRAME: u64 = 64 << 10;

/// A message of ours that waits.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) ticket: Ticket,
    pub(super) message: Message,
    pub(super) nature: Nature,
    measure: Measure,
}

/// How a message is treated because of its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nature {
    /// As any other.
    Common,
    /// A handshake request: it cannot wait for what it asks about, and others wait for it.
    Handshake,
    /// A segment, which is never segmented.
    Segment,
}

/// A message of ours of which some segments have gone.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) ticket: Ticket,
    reader: Reader,
    id: GroupId,
    plan: Plan,
    index: u64,
}

impl Group {
    const fn is_done(&self) -> bool {
        self.index >= self.plan.total
    }

    fn progress(&self) -> Progress {
        let total = len64(self.reader.message().len());
        Progress { subject: Subject::Outgoing(self.ticket), done: len64(self.reader.done()), total }
    }
}

/// What became of a poll.
#[derive(Debug)]
pub(super) enum Made {
    /// A frame, and what can be said about its message.
    Frame { bytes: Bytes, ticket: Ticket, progress: Option<Progress>, done: bool },
    /// A message that cannot be sent: nothing of it was.
    Refused(Outgoing, Order, SendError),
}

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    queue: Queue<Outgoing, Group>,
    pace: Pace,
    link: Capacity,
    seed: [u8; 32],
    groups: u64,
}

impl Sender {
    pub(super) fn new(limits: &Limits, seed: [u8; 32]) -> Self {
        Self {
            queue: Queue::new(limits.max_queued_bytes()),
            pace: Pace::default(),
            link: Capacity::of(u64::MAX),
            seed,
            groups: 0,
        }
    }

    /// The link's cap changed. A group that has started cannot be cut anew.
    pub(super) fn set_capacity(&mut self, link: Capacity) -> Result<(), CloseReason> {
        self.link = link;
        let largest = wire::largest_frame(u64::MAX, &self.link);
        let fits = self.queue.flights().all(|group| group.plan.longest_frame() <= largest);
        if fits { Ok(()) } else { Err(CloseReason::CapShrank) }
    }

    /// Whether a message fits one frame.
    pub(super) fn fits(&self, message: &Message, theirs: Option<Chunking>) -> bool {
        fits_frame(measure(message, &self.link), theirs, &self.link)
    }

    /// Accepts a message.
    pub(super) fn push(
        &mut self,
        ticket: Ticket,
        message: Message,
        nature: Nature,
        order: Order,
    ) -> Result<(), (Outgoing, SendError)> {
        let bytes = len64(message.len());
        let measure = measure(&message, &self.link);
        let item = Outgoing { ticket, message, nature, measure };
        if nature == Nature::Handshake {
            self.queue.push_first(item, bytes, order);
            return Ok(());
        }
        self.queue.push(item, bytes, order)
    }

    /// The next frame. `theirs` is what the peer takes; `waiting` while that is being asked.
    pub(super) fn poll(
        &mut self,
        theirs: Option<Chunking>,
        waiting: bool,
        codec: &mut Codec,
        now: Instant,
    ) -> Option<Made> {
        let slots = theirs.map_or(1, |theirs| usize::try_from(theirs.max_groups).unwrap_or(usize::MAX));
        let finish = if theirs.is_some_and(|theirs| theirs.settled_cursor) { Finish::PerLane } else { Finish::InOrder };
        let link = self.link.clone();
        let fit = |item: &Outgoing| {
            // Until the peer has said what it takes, only what any peer takes may go.
            if waiting && item.nature != Nature::Handshake && item.measure.bytes > MIN_FRAME_BYTES {
                Fit::Wait
            } else if fits_frame(item.measure, theirs, &link) {
                Fit::Frame
            } else {
                Fit::Group
            }
        };
        let Some(pick) = self.queue.pick(now, slots, finish, fit) else {
            self.pace.idle();
            return None;
        };
        let made = match pick {
            Pick::Continue(place) => self.advance(place, codec)?,
            Pick::Start(entry) => self.start(entry, theirs, codec, now)?,
        };
        if let Made::Frame { bytes, .. } = &made {
            self.pace.frame(len64(bytes.len()), now);
        }
        Some(made)
    }

    /// Empties the queue; the tickets of all that will not be sent.
    pub(super) fn clear(&mut self) -> Vec<Ticket> {
        let (waiting, groups) = self.queue.clear();
        let groups = groups.into_iter().map(|group| group.ticket);
        groups.chain(waiting.into_iter().map(|item| item.ticket)).collect()
    }

    /// A message starts: in one frame, as a group, or not at all.
    fn start(
        &mut self,
        entry: Entry<Outgoing>,
        theirs: Option<Chunking>,
        codec: &mut Codec,
        now: Instant,
    ) -> Option<Made> {
        let (started, order, item) = (entry.started(), entry.order, entry.item);
        if fits_frame(item.measure, theirs, &self.link) {
            self.queue.settle(started);
            let (bytes, ticket) = (item.message.to_bytes(), item.ticket);
            return Some(Made::Frame { bytes, ticket, progress: None, done: true });
        }
        match self.plan(&item, theirs) {
            Ok((plan, timeout)) => {
                let group = self.group(item, plan);
                let place = self.queue.launch(started, group, now, timeout);
                self.advance(place, codec)
            }
            Err(error) => {
                self.queue.settle(started);
                Some(Made::Refused(item, order, error))
            }
        }
    }

    /// The next segment of a group under way.
    fn advance(&mut self, place: usize, codec: &mut Codec) -> Option<Made> {
        let group = self.queue.flight(place)?;
        let bytes = codec.write(&group.id, group.index, group.plan, &mut group.reader);
        group.index = group.index.saturating_add(1);
        let (ticket, done, progress) = (group.ticket, group.is_done(), group.progress());
        if done {
            self.queue.land(place);
        }
        Some(Made::Frame { bytes, ticket, progress: Some(progress), done })
    }

    /// How to cut a message that does not fit a frame, and how long it may take.
    fn plan(&self, item: &Outgoing, theirs: Option<Chunking>) -> Result<(Plan, Duration), SendError> {
        let size = item.measure.bytes;
        let Some(theirs) = theirs.filter(|_| item.nature != Nature::Segment) else {
            return Err(SendError::NoSegments { size, limit: self.link.cap });
        };
        if size > theirs.max_message_bytes {
            return Err(SendError::TooLarge { size, limit: theirs.max_message_bytes });
        }
        let largest = wire::largest_frame(theirs.max_frame_bytes, &self.link);
        let slow = self.pace.rate().and_then(|rate| rate.checked_div(SEGMENTS_PER_SECOND)).map(|n| n.max(SLOW_FRAME));
        let shared = self.queue.has_waiting().then_some(SHARED_FRAME);
        let chosen = largest.min(slow.unwrap_or(u64::MAX)).min(shared.unwrap_or(u64::MAX));
        let plan = Plan::new(size, chosen).or_else(|_| Plan::new(size, largest))?;
        if let Some(rate) = self.pace.rate() {
            let wire_bytes = u128::from(plan.total).saturating_mul(plan.longest_frame().into());
            let limit_ms = theirs.group_timeout.as_millis();
            let possible = u128::from(rate).saturating_mul(limit_ms).checked_div(1000).unwrap_or(0);
            if wire_bytes > possible {
                let limit_ms = u64::try_from(limit_ms).unwrap_or(u64::MAX);
                return Err(SendError::TooSlow { size, limit_ms, rate });
            }
        }
        Ok((plan, theirs.group_timeout))
    }

    fn group(&mut self, item: Outgoing, plan: Plan) -> Group {
        self.groups = self.groups.wrapping_add(1);
        let id = group_name(&self.seed, self.groups);
        Group { ticket: item.ticket, reader: Reader::new(item.message), id: GroupId(id), plan, index: 0 }
    }
}

fn fits_frame(measure: Measure, theirs: Option<Chunking>, link: &Capacity) -> bool {
    theirs.is_none_or(|theirs| measure.bytes <= theirs.max_frame_bytes) && link.fits(measure)
}
