//! The sending half: a short message is a line as it is, a long one is cut into frames between characters.

use std::fmt::Write;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};

use super::MAX_TOTAL;
use crate::error::{Over, SendError};
use crate::event_queue::EventQueue;
use crate::limits::Limits;
use crate::machine::{Capacity, Lane, Meta, Ticket, Transmit};
use crate::message::{Message, MessageReader, len_usize, len64};
use crate::outgoing::{Outgoing, SendQueue, group_name, largest};
use crate::plain::Framing;
use crate::queue::{Finish, Fit, Pick};

/// The longest line, without its end. SwiftAgentKit takes 61,440 bytes with it.
const MAX_LINE: u64 = 61_439;
/// The longest message that is sent as it is, on one line.
const MAX_RAW: u64 = 61_340;
/// The longest header: a UUID, three colons, an index of 6 digits and a total of 7.
const MAX_HEADER: u64 = 36 + 3 + 6 + 7;
/// The longest character, in bytes. A step must be at least as long, so that each frame has data.
const MAX_CHAR: u64 = 4;
/// How many bytes a byte can take inside a JSON string.
const MAX_ESCAPED: u64 = 6;

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) outgoing: SendQueue<OutgoingGroup>,
    /// The longest line that the link takes.
    line: u64,
    seed: [u8; 32],
    groups: u64,
    /// The buffer in which frames are written. Its memory is used again when the link has dropped them.
    out: BytesMut,
}

impl Sender {
    pub(super) fn new(limits: Limits, seed: [u8; 32]) -> Self {
        Self { outgoing: SendQueue::new(limits, Framing::Lines), line: MAX_LINE, seed, groups: 0, out: BytesMut::new() }
    }

    /// Sets the link's cap. Returns whether the frames of all messages in flight still fit it. They cannot be cut again.
    pub(super) fn fit_to(&mut self, link: &Capacity) -> bool {
        self.line = largest(link, MAX_LINE, |bytes| bytes.saturating_mul(MAX_ESCAPED));
        self.outgoing.queue.flights().all(|group| group.step <= step(self.line))
    }

    /// Accepts a message of the application, or refuses it.
    pub(super) fn accept(&mut self, send: (Ticket, Message, Lane, Meta), events: &mut EventQueue) {
        self.outgoing.accept(send, Some(self.line.min(MAX_RAW)), events);
    }

    /// The next line.
    pub(super) fn transmit(&mut self, now: Instant, events: &mut EventQueue) -> Option<Transmit> {
        let (raw, limits) = (self.line.min(MAX_RAW), self.outgoing.limits);
        while let Some(answer) = self.outgoing.next_answer() {
            if len64(answer.message.len()) <= raw {
                let tag = self.outgoing.last_tag.next();
                return Some(answer.frame(tag, answer.message.to_bytes(), answer.message.len(), events));
            }
            events.count("answer-too-large");
        }
        let slots = len_usize(limits.max_groups.into());
        let fit = |out: &Outgoing| if len64(out.message.len()) <= raw { Fit::Frame } else { Fit::Group };
        loop {
            let tag = self.outgoing.last_tag.next();
            let place = match self.outgoing.queue.pick(now, slots, Finish::InOrder, fit)? {
                Pick::Continue(place) => place,
                Pick::Start(entry) => {
                    let (rank, out) = (entry.rank, entry.item);
                    if fit(&out) == Fit::Frame {
                        return Some(out.frame(tag, out.message.to_bytes(), out.message.len(), events));
                    }
                    let (step, size, limit) = (step(self.line), len64(out.message.len()), u64::from(MAX_TOTAL));
                    let total = size.div_ceil(step.max(1));
                    if step < MAX_CHAR || total > limit {
                        self.outgoing.queue.settle(rank);
                        self.outgoing.refuse(out, SendError::TooManySegments(Over { size, limit }), events);
                        continue;
                    }
                    self.groups = self.groups.saturating_add(1);
                    let (name, reader) =
                        (uuid(group_name(&self.seed, self.groups)), MessageReader::new(out.message.clone()));
                    let group = OutgoingGroup { out, name, index: 0, total, step, reader };
                    self.outgoing.queue.begin_group(rank, group, now, limits.group_timeout())
                }
            };
            let group = self.outgoing.queue.flight(place)?;
            let bytes = group.next_frame(&mut self.out);
            let line = group.out.frame(tag, bytes, group.reader.done(), events);
            if group.reader.left() == 0 {
                self.outgoing.queue.finish_group(place);
            }
            return Some(line);
        }
    }
}

/// How many bytes of a message each frame takes. If the last character is cut there, the frame takes the rest of it, too.
const fn step(line: u64) -> u64 {
    line.saturating_sub(MAX_HEADER).saturating_sub(MAX_CHAR - 1)
}

/// A message of which some frames have been sent.
#[derive(Debug)]
pub(super) struct OutgoingGroup {
    pub(super) out: Outgoing,
    name: String,
    index: u64,
    total: u64,
    step: u64,
    reader: MessageReader,
}

impl OutgoingGroup {
    /// Frame `n` ends at the first character that begins at or after byte `(n + 1) * step`.
    fn next_frame(&mut self, line: &mut BytesMut) -> Bytes {
        line.reserve(len_usize(self.step.saturating_add(MAX_HEADER).saturating_add(MAX_CHAR)));
        // Writing to memory does not fail.
        let _ = write!(line, "{}:{}:{}:", self.name, self.index, self.total);
        self.index = self.index.saturating_add(1);
        let end = len_usize(self.index.saturating_mul(self.step)).min(self.out.message.len());
        while self.reader.done() < end {
            line.put_slice(self.reader.run(end.saturating_sub(self.reader.done())));
        }
        for _ in 1..MAX_CHAR {
            if !matches!(self.reader.clone().run(1), [0x80..=0xbf]) {
                break;
            }
            line.put_slice(self.reader.run(1));
        }
        line.split().freeze()
    }
}

/// A random (version 4) UUID in upper case, as SwiftAgentKit writes it.
fn uuid(id: u128) -> String {
    let id = id & !(0xf << 76) | 4 << 76;
    let id = id & !(0b11 << 62) | 0b10 << 62;
    let (a, b, c, d) = (id >> 96, id >> 80 & 0xffff, id >> 64 & 0xffff, id >> 48 & 0xffff);
    format!("{a:08X}-{b:04X}-{c:04X}-{d:04X}-{:012X}", id & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Overhead;

    fn data(line: &Transmit) -> &[u8] {
        let Transmit::Frame { bytes, .. } = line else { panic!("{line:?}") };
        bytes.parts()[0].splitn(4, |byte| *byte == b':').nth(3).unwrap()
    }

    #[test]
    fn frames_are_cut_between_characters_wherever_the_pieces_are_cut() {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"m","params":["{}"]}}"#, "aé漢𝄞".repeat(50));
        let bytes = Bytes::from(text.clone());
        for pieces in [1, 2, 3, 7, 900] {
            let parts: Vec<_> =
                (0..bytes.len()).step_by(pieces).map(|at| bytes.slice(at..bytes.len().min(at + pieces))).collect();
            let message = Message::from_iter(parts);
            for step in 4..30 {
                let mut sender = Sender::new(Limits::default(), [7; 32]);
                sender.line = step + MAX_HEADER + MAX_CHAR - 1;
                let mut events = EventQueue::default();
                sender.accept((Ticket(1), message.clone(), Lane::Auto, Meta::default()), &mut events);
                let mut joined = String::new();
                let mut count = 0;
                while let Some(line) = sender.transmit(Instant::now(), &mut events) {
                    let data = std::str::from_utf8(data(&line)).expect("whole characters");
                    assert!(!data.is_empty() && data.len() < step as usize + 4, "{} of {step}", data.len());
                    joined.push_str(data);
                    count += 1;
                }
                assert_eq!((&joined, count), (&text, text.len().div_ceil(step as usize)));
            }
        }
    }

    #[test]
    fn a_line_is_what_the_link_takes_and_never_more_than_the_wire_form() {
        let with = |cap, overhead| {
            let mut sender = Sender::new(Limits::default(), [7; 32]);
            assert!(sender.fit_to(&Capacity { cap, overhead }));
            sender.line
        };
        assert_eq!(step(MAX_LINE), 61_384);
        assert_eq!(with(u64::MAX, Overhead::default()), 61_439);
        assert_eq!(with(61_440, Overhead::new(|_| 1)), 61_439);
        assert_eq!(with(1000, Overhead::new(|_| 1)), 999);
        assert_eq!(with(1000, Overhead::new(|m| m.escaped - m.bytes)), 166);
        assert_eq!(with(10, Overhead::new(|_| 10)), 0);
    }

    #[test]
    fn names_are_upper_case_version_4_and_differ_by_seed_and_count() {
        let name = |seed, n| uuid(group_name(&[seed; 32], n));
        let names: std::collections::BTreeSet<_> = (0..2).flat_map(|s| (0..200).map(move |n| name(s, n))).collect();
        assert_eq!(names.len(), 400);
        for name in &names {
            assert_eq!((&name[14..15], name.len()), ("4", 36));
            assert!("89AB".contains(&name[19..20]) && *name == name.to_uppercase(), "{name}");
        }
        assert_eq!(name(1, 1), name(1, 1));
    }
}
