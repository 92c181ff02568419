//! One message that is arriving in frames: in order into a checked buffer, those ahead of a gap held aside.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::wire::Header;
use crate::budget::{Grant, group_cost};
use crate::buffer::{Buffer, Pool};
use crate::error::{SendError, Violation};
use crate::json::{Key, Kind as Json, Paths, Scanner, Utf8, Visit};
use crate::machine::Meta;
use crate::message::{Message, len_usize, len64};
use crate::rpc::{self, ENVELOPE, Envelope};

/// What a held frame costs beside its bytes: its place in the tree and its allocation.
const HELD_COST: u64 = 64;
/// A longer id is not kept for an answer.
const MAX_ID: usize = 256;

/// A message, some frames of which have come.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) ordinal: u64,
    pub(super) meta: Meta,
    /// When it is given up, by the time during which we read.
    pub(super) deadline: Duration,
    total: u32,
    /// Bytes in all, as the first frame lets one expect.
    declared: u64,
    /// The first frame that is missing; all before it are in `text`.
    next: u32,
    text: Text,
    places: Places,
    held: BTreeMap<u32, Box<[u8]>>,
    held_bytes: u64,
    received: u64,
    max_bytes: u64,
    grant: Grant,
    /// The id of the request of ours that this seems to answer.
    answers: Option<Bytes>,
}

impl Group {
    /// A group of which nothing has come yet.
    pub(super) fn new(opening: Opening, max_bytes: u64, grant: Grant, pool: Pool) -> Self {
        let Opening { ordinal, meta, deadline, total, declared } = opening;
        Self {
            ordinal,
            meta,
            deadline,
            total,
            declared,
            next: 0,
            text: Text::new(pool),
            places: Places::default(),
            held: BTreeMap::new(),
            held_bytes: 0,
            received: 0,
            max_bytes,
            grant,
            answers: None,
        }
    }

    /// Bytes that have come.
    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    /// Bytes in all, as far as one can tell.
    pub(super) fn expected(&self) -> u64 {
        self.declared.max(self.received)
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.next >= self.total
    }

    /// Whether others need its room more.
    pub(super) fn is_evicted(&self) -> bool {
        self.grant.evicted()
    }

    /// Takes a frame. One that came before, and is the same, changes nothing.
    ///
    /// # Errors
    /// The rule that the message broke.
    pub(super) fn add(&mut self, header: Header, data: &[u8], now: Instant) -> Result<(), Violation> {
        let (index, total) = numbers(header)?;
        if total != self.total {
            return Err(Violation::TotalChanged { got: total, want: self.total });
        }
        if let Some(same) = self.repeats(index, data) {
            return if same { Ok(()) } else { Err(Violation::ChunkConflict { at: index.into() }) };
        }
        let size = self.received.saturating_add(len64(data.len()));
        if size > self.max_bytes {
            return Err(Violation::MessageTooLarge { size, limit: self.max_bytes });
        }
        self.received = size;
        self.grant.note_received(size);
        if index == self.next {
            self.append(data, now)?;
            return self.release_held(now);
        }
        self.make_room(held_cost(data), now)?;
        self.held_bytes = self.held_bytes.saturating_add(held_cost(data));
        self.held.insert(index, data.into());
        Ok(())
    }

    /// The message, if it is one.
    pub(super) fn finish(self) -> Result<(Message, Meta), Violation> {
        Ok((self.text.finish()?, self.meta))
    }

    /// For a failed answer to a request of ours: the error that its caller should see.
    pub(super) fn reply(&self, violation: &Violation) -> Option<Message> {
        self.answers.as_deref().map(|id| failed_answer(id, violation))
    }

    /// Whether frame `index` came before, and if so whether it was the same.
    fn repeats(&self, index: u32, data: &[u8]) -> Option<bool> {
        if index >= self.next {
            return self.held.get(&index).map(|held| **held == *data);
        }
        let end = if index.saturating_add(1) < self.next {
            self.places.start(index.saturating_add(1))
        } else {
            self.text.buffer.len()
        };
        let start = self.places.start(index);
        Some(end.saturating_sub(start) == data.len() && self.text.buffer.holds(start, data))
    }

    fn append(&mut self, data: &[u8], now: Instant) -> Result<(), Violation> {
        if self.next == 0 {
            self.answers = answered_id(data).filter(|_| self.total > 1);
        }
        self.places.note(self.next, self.text.buffer.len(), data.len());
        self.next = self.next.saturating_add(1);
        self.text.check(data)?;
        let left = len_usize(self.total.saturating_sub(self.next).into());
        let rest = left.saturating_mul(self.places.first_len);
        let known = left == 0 || rest >= data.len();
        let block = self.text.buffer.block_for(data.len(), known.then_some(rest));
        self.make_room(len64(block), now)?;
        self.text.buffer.add_block(block);
        self.text.buffer.extend(data);
        Ok(())
    }

    fn release_held(&mut self, now: Instant) -> Result<(), Violation> {
        while let Some(data) = self.held.remove(&self.next) {
            self.append(&data, now)?;
            self.held_bytes = self.held_bytes.saturating_sub(held_cost(&data));
        }
        Ok(())
    }

    /// Asks for room for `more` bytes beside those held, before they are allocated.
    fn make_room(&mut self, more: u64, now: Instant) -> Result<(), Violation> {
        let held = self.text.buffer.capacity().saturating_add(self.places.cost()).saturating_add(self.held_bytes);
        let size = held.saturating_add(more);
        self.grant.grow_to(group_cost(size), now).map_err(|_| Violation::NoRoom { size })
    }
}

/// What is known of a group when it begins.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) ordinal: u64,
    pub(super) meta: Meta,
    pub(super) deadline: Duration,
    pub(super) total: u32,
    pub(super) declared: u64,
}

/// A frame's numbers, proven: the index is below the total, and the total is one that we take.
pub(super) fn numbers(header: Header) -> Result<(u32, u32), Violation> {
    let Header { index, total, .. } = header;
    match (u32::try_from(index), u32::try_from(total)) {
        (Ok(index), Ok(total)) if index < total && total <= super::wire::MAX_TOTAL => Ok((index, total)),
        _ => Err(Violation::FrameNumbersInvalid { index, total }),
    }
}

/// The error that the caller of request `id` gets when the answer to it fails on arrival.
pub(super) fn failed_answer(id: &[u8], violation: &Violation) -> Message {
    match *violation {
        Violation::MessageTooLarge { size, limit } | Violation::LineTooLong { size, limit } => {
            rpc::send_failed(id, &SendError::TooLarge { size, limit })
        }
        _ => {
            let data = format!(r#"{{"reason":"{}"}}"#, violation.name());
            rpc::error_response(id, -32603, &violation.to_string(), Some(&data))
        }
    }
}

/// The id in the front of a response, if it comes that early.
pub(super) fn answered_id(front: &[u8]) -> Option<Bytes> {
    let mut paths = Paths::new(&ENVELOPE);
    // The front of a message is unfinished JSON: what was seen up to there is enough.
    let _ = Scanner::new(Seen(&mut paths)).feed(front);
    let envelope = Envelope::read(&paths).ok()?;
    let span = envelope.id.filter(|id| matches!(id.kind, Json::String | Json::Number))?.span;
    let is_response = envelope.method.is_none() && envelope.result.or(envelope.error).is_some();
    let id = front.get(len_usize(span.start)..len_usize(span.end))?;
    (is_response && !id.is_empty() && id.len() <= MAX_ID).then(|| Bytes::copy_from_slice(id))
}

/// Lends a visitor to a scanner that does not give it back.
struct Seen<'a>(&'a mut Paths<6>);

impl Visit for Seen<'_> {
    const DEPTH: u32 = <Paths<6> as Visit>::DEPTH;

    fn key(&mut self, depth: u32, key: Key<'_>) {
        self.0.key(depth, key);
    }

    fn begin(&mut self, depth: u32, kind: Json, at: u64) {
        self.0.begin(depth, kind, at);
    }

    fn end(&mut self, depth: u32, at: u64) {
        self.0.end(depth, at);
    }
}

fn held_cost(data: &[u8]) -> u64 {
    HELD_COST.saturating_add(len64(data.len()))
}

/// The frames so far, as one text that is checked while it grows.
#[derive(Debug)]
struct Text {
    buffer: Buffer,
    utf8: Utf8,
    scanner: Scanner<Paths<6>>,
}

impl Text {
    fn new(pool: Pool) -> Self {
        Self { buffer: Buffer::pooled(pool), utf8: Utf8::new(), scanner: Scanner::new(Paths::new(&ENVELOPE)) }
    }

    /// Checks what is to be added next.
    fn check(&mut self, data: &[u8]) -> Result<(), Violation> {
        self.utf8.feed(data).map_err(|_| Violation::MessageNotUtf8)?;
        self.scanner.feed(data).map_err(Violation::MessageNotJson)
    }

    fn finish(self) -> Result<Message, Violation> {
        self.utf8.finish().map_err(|_| Violation::MessageNotUtf8)?;
        let paths = self.scanner.finish().map_err(Violation::MessageNotJson)?;
        let message = self.buffer.into_message();
        match Envelope::read(&paths) {
            Ok(envelope) if envelope.is_valid(&message) => Ok(message),
            Ok(_) | Err(Violation::FrameNotObject) => Err(Violation::MessageNotJsonRpc),
            Err(violation) => Err(violation),
        }
    }
}

/// Where each frame begins in the text. As long as all are of one length, that is no memory at all.
#[derive(Debug, Default)]
struct Places {
    first_len: usize,
    /// So many frames, from the first, begin at multiples of the first one's length.
    even: u32,
    uneven: bool,
    /// Where the frames after those begin.
    starts: Vec<usize>,
}

impl Places {
    fn note(&mut self, index: u32, start: usize, len: usize) {
        if index == 0 {
            self.first_len = len;
        }
        if self.uneven {
            self.starts.push(start);
        } else {
            self.even = index.saturating_add(1);
            self.uneven = len != self.first_len;
        }
    }

    fn start(&self, index: u32) -> usize {
        match index.checked_sub(self.even) {
            None => len_usize(index.into()).saturating_mul(self.first_len),
            Some(late) => self.starts.get(len_usize(late.into())).copied().unwrap_or(usize::MAX),
        }
    }

    fn cost(&self) -> u64 {
        len64(self.starts.capacity().saturating_mul(size_of::<usize>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_and_even_ones_cost_nothing() {
        for lens in [vec![5; 40], vec![5, 5, 4, 5, 3, 0, 9], vec![0, 0, 1, 2], vec![7, 1]] {
            let mut places = Places::default();
            let mut starts = Vec::new();
            let mut at = 0;
            for (index, len) in lens.iter().enumerate() {
                places.note(index as u32, at, *len);
                starts.push(at);
                at += len;
            }
            let found: Vec<_> = (0..lens.len()).map(|index| places.start(index as u32)).collect();
            assert_eq!(found, starts, "{lens:?}");
            assert!(lens.iter().any(|len| *len != lens[0]) || places.cost() == 0);
        }
    }

    #[test]
    fn the_id_of_an_early_answer_is_found_and_of_anything_else_not() {
        let id = |text: &str| answered_id(text.as_bytes()).map(|id| String::from_utf8(id.to_vec()).unwrap());
        assert_eq!(id(r#"{"jsonrpc":"2.0","id":7,"result":{"a":"#), Some("7".into()));
        assert_eq!(id(r#"{"id":"q","error":{}}"#), Some("\"q\"".into()));
        assert_eq!(id(r#"{"jsonrpc":"2.0","id":7"#), None);
        assert_eq!(id(r#"{"jsonrpc":"2.0","id":7,"method":"m","result":1"#), None);
        assert_eq!(id(r#"{"jsonrpc":"2.0","result":{"id":7}"#), None);
        assert_eq!(id(r#"{"result":1,"id":12"#), None, "perhaps not all of the id");
        assert_eq!(id(&format!(r#"{{"id":"{}","result":1"#, "x".repeat(300))), None);
    }
}
