//! Where a message is cut: chunks of even weight, so that their number is known before the first one is made.

use bytes::{BufMut, BytesMut};
use sha2::{Digest, Sha256};

use crate::error::SendError;
use crate::json::{self, Utf8};
use crate::machine::{Capacity, Measure};
use crate::message::{Message, len_usize, len64};

use super::wire::{Start, Writer};

/// How much heavier than its share a chunk may get: one character's weight, its last bytes, and a rounding.
const SLACK: u64 = 12;
/// A frame that has less room for data than this is no use.
const MIN_ROOM: u64 = 4 * SLACK;

/// What a byte weighs at most, escaped once.
const HEAVIEST: u64 = 6;
/// Bytes that are not worth writing apart.
const SHORT: usize = 256;

/// How a message will be cut.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) start: Start,
    /// The most bytes that a chunk frame will take.
    pub(super) frame: u64,
    weigh: Weigh,
    weight: u64,
}

/// The start of a chunk inside a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Chunks before it.
    pub(super) index: u64,
    /// Bytes before it.
    pub(super) bytes: u64,
    weight: u64,
    part: usize,
    at: usize,
}

impl Plan {
    /// Weighs the message and hashes it.
    ///
    /// # Errors
    /// The text is not UTF-8, or there is too little room in a frame for it.
    pub(super) fn make(
        message: &Message,
        token: &str,
        capacity: &Capacity,
        max_chunks: u64,
        writer: &mut Writer,
    ) -> Result<Self, SendError> {
        let size = len64(message.len());
        let too_many = SendError::TooManySegments { size, limit: max_chunks };
        // The largest that the frames can be beside their data.
        let last = max_chunks.saturating_add(3);
        let widest = Start { digest: [0xff; 32], bytes: size, chunks: max_chunks };
        let first = measure(&writer.start(token, 1, &widest));
        let empty = measure(&writer.chunk(token, last, 0, |_| ()).0);
        let (weigh, room) = Weigh::choose(capacity, empty);
        if room < MIN_ROOM || !capacity.fits(first) {
            return Err(too_many);
        }
        let (mut hash, mut utf8, mut weight) = (Sha256::new(), Utf8::new(), 0_u64);
        // By blocks that stay in the nearest cache, since each is read three times.
        for block in message.slices().flat_map(|part| part.chunks(16 << 10)) {
            hash.update(block);
            utf8.feed(block).map_err(|_| SendError::NotJsonRpc)?;
            weight = weight.saturating_add(weigh.of(block));
        }
        utf8.finish().map_err(|_| SendError::NotJsonRpc)?;
        let chunks = weight.div_ceil(room.saturating_sub(SLACK)).max(1);
        if chunks > max_chunks {
            return Err(too_many);
        }
        let start = Start { digest: hash.finalize().into(), bytes: size, chunks };
        Ok(Self { start, frame: empty.bytes.saturating_add(room), weigh, weight })
    }

    /// Writes the chunk at `place`, escaped; returns the place after it.
    pub(super) fn write(&self, message: &Message, mut place: Place, out: &mut BytesMut) -> Place {
        let target = self.target(place.index);
        place.index = place.index.saturating_add(1);
        while let Some(part) = message.parts().get(place.part) {
            let rest = part.get(place.at..).unwrap_or_default();
            let (len, weight) = self.weigh.write(rest, target.saturating_sub(place.weight), out);
            place.weight = place.weight.saturating_add(weight);
            place.forward(len, part.len());
            if len < rest.len() {
                break;
            }
        }
        // A character that the pieces cut stays whole.
        for _ in 0..3 {
            let Some(part) = message.parts().get(place.part) else {
                break;
            };
            let Some(byte @ 0x80..=0xbf) = part.get(place.at) else {
                break;
            };
            out.put_u8(*byte);
            place.weight = place.weight.saturating_add(1);
            place.forward(1, part.len());
        }
        place
    }

    /// The weight at which chunk `index` ends: its share of the whole.
    fn target(&self, index: u64) -> u64 {
        let share = u128::from(self.weight).saturating_mul(u128::from(index).saturating_add(1));
        let share = share.checked_div(self.start.chunks.into()).unwrap_or(0);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

impl Place {
    fn forward(&mut self, by: usize, part: usize) {
        self.bytes = self.bytes.saturating_add(len64(by));
        self.at = self.at.saturating_add(by);
        if self.at >= part {
            self.part = self.part.saturating_add(1);
            self.at = 0;
        }
    }
}

/// What counts as weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weigh {
    /// The length as `data` of a frame.
    Once,
    /// The length of that inside a JSON string of the link.
    Twice,
}

impl Weigh {
    /// What to weigh by on a link, and the heaviest data that fits a frame which measures `empty` without.
    fn choose(capacity: &Capacity, empty: Measure) -> (Self, u64) {
        let fits = |once: u64, twice: u64| {
            let bytes = empty.bytes.saturating_add(once);
            capacity.fits(Measure { bytes, escaped: empty.escaped.saturating_add(twice) })
        };
        let even = largest(capacity.cap, |weight| fits(weight, weight));
        if !capacity.overhead.needs_escaped() {
            return (Self::Once, even);
        }
        // Escaping what is escaped at most doubles it. If that changes nothing, the link does not escape.
        let doubled = largest(capacity.cap, |weight| fits(weight, weight.saturating_mul(2)));
        if doubled == even { (Self::Once, even) } else { (Self::Twice, even) }
    }

    fn of(self, text: &[u8]) -> u64 {
        match self {
            Self::Once => json::escaped_len(text),
            Self::Twice => text.iter().fold(0, |sum: u64, &byte| sum.saturating_add(twice(byte))),
        }
    }

    /// Writes the longest front of `text`, cut at a character, that weighs at most `max`: its bytes, its weight.
    fn write(self, text: &[u8], max: u64, out: &mut BytesMut) -> (usize, u64) {
        let (mut len, mut weight) = (0_usize, 0_u64);
        // What surely fits is weighed by writing it.
        while self == Self::Once && len < text.len() {
            let sure = len_usize(max.saturating_sub(weight) / HEAVIEST);
            if sure < SHORT {
                break;
            }
            let end = len.saturating_add(sure).min(text.len());
            let before = out.len();
            json::escape_into(out, text.get(len..end).unwrap_or_default());
            weight = weight.saturating_add(len64(out.len().saturating_sub(before)));
            len = end;
        }
        let rest = text.get(len..).unwrap_or_default();
        let (more, heavier) = self.prefix(rest, max.saturating_sub(weight));
        json::escape_into(out, rest.get(..more).unwrap_or_default());
        (len.saturating_add(more), weight.saturating_add(heavier))
    }

    /// The longest front of `text`, cut at a character, that weighs at most `max`: its bytes, its weight.
    fn prefix(self, text: &[u8], max: u64) -> (usize, u64) {
        if self == Self::Once {
            return json::escaped_prefix(text, max);
        }
        let (mut len, mut weight) = (0_usize, 0_u64);
        for &byte in text {
            let with = weight.saturating_add(twice(byte));
            if with > max {
                break;
            }
            (len, weight) = (len.saturating_add(1), with);
        }
        // Every byte of a character of many bytes weighs one.
        while len > 0 && matches!(text.get(len), Some(0x80..=0xbf)) {
            (len, weight) = (len.saturating_sub(1), weight.saturating_sub(1));
        }
        (len, weight)
    }
}

/// What a byte takes when it is escaped, and that is escaped again.
const fn twice(byte: u8) -> u64 {
    match byte {
        b'"' | b'\\' => 4,
        0x08 | b'\t' | b'\n' | 0x0c | b'\r' => 3,
        0..0x20 => 7,
        _ => 1,
    }
}

/// The largest number up to `max` that passes, if all smaller ones do; 0 when none does.
fn largest(max: u64, passes: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0_u64, max);
    while low < high {
        let half = high.saturating_sub(low).div_ceil(2);
        let middle = low.saturating_add(half);
        if passes(middle) {
            low = middle;
        } else {
            high = middle.saturating_sub(1);
        }
    }
    low
}

/// The measure of a text.
fn measure(text: &[u8]) -> Measure {
    Measure { bytes: len64(text.len()), escaped: json::escaped_len(text) }
}
