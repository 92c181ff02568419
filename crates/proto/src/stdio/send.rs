//! From messages to lines: raw when they are short, else in frames cut between characters.

use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};

use super::wire::{GroupId, Header, MAX_FRAME, MAX_HEADER, MAX_PAYLOAD, MAX_RAW, MAX_TOTAL};
use crate::error::SendError;
use crate::limits::Limits;
use crate::machine::{Capacity, Event, Lane, Measure, Progress, Subject};
use crate::message::{Message, Reader, len_usize, len64};
use crate::outbox::Outbox;
use crate::outgoing::Outgoing;
use crate::queue::{Entry, Finish, Fit, LaneKey, Order, Pick, Queue};

/// The longest character, in bytes: a frame that cannot hold one can hold nothing.
const MAX_CHAR: u64 = 4;
/// All messages that are not free: one lane.
const IN_ORDER: Order = Order::Ordered(LaneKey(0));

/// Messages on their way out.
#[derive(Debug)]
pub(super) struct Sender {
    limits: Limits,
    room: Room,
    queue: Queue<Outgoing, Group>,
    seed: [u8; 32],
    groups: u64,
    /// Where frames are written; its memory comes back when the link lets go of them.
    out: BytesMut,
}

impl Sender {
    pub(super) fn new(limits: Limits, seed: [u8; 32]) -> Self {
        let queue = Queue::new(limits.max_queued_bytes());
        Self { limits, room: Room::of(MAX_FRAME), queue, seed, groups: 0, out: BytesMut::new() }
    }

    /// Takes note of the link's cap.
    ///
    /// # Errors
    /// A message has started whose frames no longer fit: its total cannot be changed.
    pub(super) fn fit_to(&mut self, capacity: &Capacity) -> Result<(), CapShrank> {
        self.room = Room::under(capacity);
        let stuck = self.queue.flights().any(|group| len64(group.cuts.max) > self.room.payload);
        if stuck { Err(CapShrank) } else { Ok(()) }
    }

    /// Queues a message, or refuses it.
    pub(super) fn accept(&mut self, out: Outgoing, lane: Lane, outbox: &mut Outbox) {
        let size = len64(out.message().len());
        // What the peer takes is unknown; what we would take is the best guess.
        let limit = self.limits.max_message_bytes();
        if size > limit {
            return self.refuse(out, SendError::TooLarge { size, limit }, outbox);
        }
        let order = match lane {
            Lane::Auto => IN_ORDER,
            Lane::Free => Order::Free,
        };
        if let Err((out, error)) = self.queue.push(out, size, order) {
            self.refuse(out, error, outbox);
        }
    }

    /// The next line.
    pub(super) fn transmit(&mut self, now: Instant, outbox: &mut Outbox) -> Option<Bytes> {
        let slots = len_usize(self.limits.max_groups().into());
        loop {
            let room = self.room;
            let fit = |out: &Outgoing| if room.takes_raw(out.message()) { Fit::Frame } else { Fit::Group };
            let line = match self.queue.pick(now, slots, Finish::InOrder, fit)? {
                Pick::Start(entry) => self.start(entry, now, outbox),
                Pick::Continue(place) => self.go_on(place, outbox),
            };
            if line.is_some() {
                return line;
            }
        }
    }

    /// Fails everything that has not gone out whole.
    pub(super) fn abandon(&mut self, outbox: &mut Outbox) {
        let (waiting, started) = self.queue.clear();
        for out in started.into_iter().map(|group| group.out).chain(waiting) {
            // Nobody is left to get an answer.
            let _ = out.fail(SendError::Disconnected, outbox);
        }
    }

    /// The first line of a message; `None` if it is refused after all.
    fn start(&mut self, entry: Entry<Outgoing>, now: Instant, outbox: &mut Outbox) -> Option<Bytes> {
        let started = entry.started();
        let out = entry.item;
        if self.room.takes_raw(out.message()) {
            self.queue.settle(started);
            sent(&out, outbox);
            return Some(out.message().to_bytes());
        }
        let id = GroupId::new(&self.seed, self.groups);
        self.groups = self.groups.saturating_add(1);
        let mut group = match Group::plan(out, id, self.room) {
            Ok(group) => group,
            Err((out, error)) => {
                self.queue.settle(started);
                self.refuse(out, error, outbox);
                return None;
            }
        };
        let line = group.next_frame(&mut self.out);
        group.report(outbox);
        if group.is_done() {
            self.queue.settle(started);
        } else {
            self.queue.launch(started, group, now, self.limits.group_timeout());
        }
        Some(line)
    }

    fn go_on(&mut self, place: usize, outbox: &mut Outbox) -> Option<Bytes> {
        let group = self.queue.flight(place)?;
        let line = group.next_frame(&mut self.out);
        group.report(outbox);
        if group.is_done() {
            self.queue.land(place);
        }
        Some(line)
    }

    /// The answer to a response that cannot be sent goes in order, and past the queue's limit: without it the peer
    /// waits for ever.
    fn refuse(&mut self, out: Outgoing, error: SendError, outbox: &mut Outbox) {
        let Some(answer) = out.fail(error, outbox) else { return };
        let size = len64(answer.message().len());
        if let Err((answer, _)) = self.queue.push(answer, size, IN_ORDER)
            && let Err((answer, error)) = self.queue.push(answer, size, Order::Barrier)
        {
            let _ = answer.fail(error, outbox);
        }
    }
}

/// A message that started no longer fits the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CapShrank;

/// What one line has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    /// The longest message that goes raw.
    raw: u64,
    /// The longest payload of a frame.
    payload: u64,
}

impl Room {
    fn of(line: u64) -> Self {
        Self { raw: line.min(MAX_RAW), payload: line.saturating_sub(MAX_HEADER).min(MAX_PAYLOAD) }
    }

    /// The longest line that a link surely takes. Overhead that depends on escaping is taken at its worst.
    fn under(capacity: &Capacity) -> Self {
        let widest = if capacity.overhead.needs_escaped() { 6 } else { 1 };
        let fits = |bytes: u64| capacity.fits(Measure { bytes, escaped: bytes.saturating_mul(widest) });
        let (mut fitting, mut beyond) = (0_u64, MAX_FRAME.saturating_add(1));
        while let middle = fitting.midpoint(beyond)
            && middle > fitting
        {
            if fits(middle) {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        Self::of(fitting)
    }

    fn takes_raw(self, message: &Message) -> bool {
        len64(message.len()) <= self.raw
    }
}

/// A message in frames, some of which have gone.
#[derive(Debug)]
struct Group {
    out: Outgoing,
    header: Header,
    reader: Reader,
    cuts: Cuts,
}

impl Group {
    /// Counts the frames, without keeping where they are cut.
    fn plan(out: Outgoing, id: GroupId, room: Room) -> Result<Self, (Outgoing, SendError)> {
        let message = out.message().clone();
        let (size, limit) = (len64(message.len()), u64::from(MAX_TOTAL));
        let too_many = SendError::TooManySegments { size, limit };
        if room.payload < MAX_CHAR || size.checked_div(room.payload).is_none_or(|least| least > limit) {
            return Err((out, too_many));
        }
        let cuts = Cuts::new(len_usize(room.payload));
        let mut count = cuts.clone();
        let total = std::iter::from_fn(|| count.next(&message)).fold(0_u64, |sum, _| sum.saturating_add(1));
        if total > limit {
            return Err((out, too_many));
        }
        Ok(Self { out, header: Header { id, index: 0, total }, reader: Reader::new(message), cuts })
    }

    fn next_frame(&mut self, out: &mut BytesMut) -> Bytes {
        let len = self.cuts.next(self.reader.message()).unwrap_or(0);
        out.reserve(len.saturating_add(len_usize(MAX_HEADER)));
        self.header.write(out);
        let mut left = len;
        while left > 0 {
            let run = self.reader.run(left);
            if run.is_empty() {
                break;
            }
            out.put_slice(run);
            left = left.saturating_sub(run.len());
        }
        self.header.index = self.header.index.saturating_add(1);
        out.split().freeze()
    }

    const fn is_done(&self) -> bool {
        self.header.index >= self.header.total
    }

    fn report(&self, outbox: &mut Outbox) {
        if self.is_done() {
            sent(&self.out, outbox);
        } else if let Some(ticket) = self.out.ticket() {
            let (done, total) = (len64(self.reader.done()), len64(self.reader.message().len()));
            outbox.progress(Progress { subject: Subject::Outgoing(ticket), done, total });
        }
    }
}

fn sent(out: &Outgoing, outbox: &mut Outbox) {
    if let Some(ticket) = out.ticket() {
        outbox.event(Event::Sent { ticket });
    }
}

/// Where a message is cut: as late as the payload allows, and never inside a character.
#[derive(Debug, Clone)]
struct Cuts {
    max: usize,
    at: usize,
    /// The piece that holds the last cut, and the offset at which it begins.
    part: usize,
    part_at: usize,
}

impl Cuts {
    const fn new(max: usize) -> Self {
        Self { max, at: 0, part: 0, part_at: 0 }
    }

    /// The length of the next frame's payload.
    fn next(&mut self, message: &Message) -> Option<usize> {
        let from = self.at;
        if from >= message.len() {
            return None;
        }
        let end = from.saturating_add(self.max);
        self.at = if end >= message.len() { message.len() } else { self.between_characters(message, end) };
        Some(self.at.saturating_sub(from))
    }

    /// The last cut between characters at or before `end`.
    fn between_characters(&mut self, message: &Message, end: usize) -> usize {
        let parts = message.parts();
        while let Some(part) = parts.get(self.part)
            && end >= self.part_at.saturating_add(part.len())
        {
            self.part_at = self.part_at.saturating_add(part.len());
            self.part = self.part.saturating_add(1);
        }
        let mut cut = end;
        for _ in 1..MAX_CHAR {
            let next = parts.get(self.part).and_then(|part| part.get(cut.saturating_sub(self.part_at)));
            if !matches!(next, Some(0x80..=0xbf)) {
                break;
            }
            cut = cut.saturating_sub(1);
            while cut < self.part_at
                && let Some(before) = self.part.checked_sub(1)
            {
                self.part = before;
                self.part_at = self.part_at.saturating_sub(parts.get(before).map_or(0, Bytes::len));
            }
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Overhead;

    #[test]
    fn cuts_lie_between_characters_wherever_the_pieces_are_cut() {
        let text = "aé漢𝄞".repeat(50);
        let bytes = Bytes::from(text.clone());
        for step in [1, 2, 3, 7, 500] {
            let parts: Vec<_> =
                (0..bytes.len()).step_by(step).map(|at| bytes.slice(at..bytes.len().min(at + step))).collect();
            let message = Message::from(parts);
            for max in 4..30 {
                let mut cuts = Cuts::new(max);
                let mut at = 0;
                while let Some(len) = cuts.next(&message) {
                    assert!(len > 0 && len <= max && text.is_char_boundary(at + len), "{at}+{len} of {max}");
                    let room = text[at..].char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|end| *end <= max);
                    assert_eq!(Some(len), room.last(), "as late as possible");
                    at += len;
                }
                assert_eq!(at, text.len());
            }
        }
    }

    #[test]
    fn a_line_has_room_for_what_the_link_takes_and_never_more_than_the_wire_form() {
        assert_eq!(Room::of(MAX_FRAME), Room { raw: 61_340, payload: 61_384 });
        assert_eq!(Room::under(&Capacity::of(u64::MAX)), Room::of(61_439));
        let with = |cap, overhead| Room::under(&Capacity { cap, overhead });
        assert_eq!(with(61_440, Overhead::fixed(1)), Room::of(61_439));
        assert_eq!(with(1000, Overhead::fixed(1)), Room { raw: 999, payload: 947 });
        assert_eq!(with(1000, Overhead::new(|m| m.escaped - m.bytes)), Room::of(166));
        assert_eq!(with(10, Overhead::fixed(10)), Room { raw: 0, payload: 0 });
    }
}
