//! Cuts a message into chunks that each fill a frame. All cuts are made first, because `start` tells the number of chunks.

use sha2::{Digest, Sha256};

use crate::error::{Over, SendError};
use crate::json::{self, Span, Utf8};
use crate::machine::{Capacity, Measure};
use crate::message::{Message, MessageReader, len_usize, len64};

use super::wire::{Start, Writer, hex};

/// How many bytes are measured at a time, until they no longer fit.
const STRIDE: usize = 4096;

/// How a message will be cut.
#[derive(Debug)]
pub(super) struct TransferPlan {
    pub(super) start: Start,
    /// Where in the message each chunk ends, after the place where the first begins.
    ends: Vec<u32>,
    /// The most bytes that a chunk frame takes.
    pub(super) frame: u64,
}

impl TransferPlan {
    /// Cuts the message and hashes it.
    ///
    /// # Errors
    /// The text is not UTF-8, or frames are so short that it would need too many chunks.
    pub(super) fn make(
        message: &Message,
        token: &str,
        capacity: &Capacity,
        max_chunks: u64,
        writer: &mut Writer,
    ) -> Result<Self, SendError> {
        let too_many = SendError::TooManySegments(Over { size: len64(message.len()), limit: max_chunks });
        // The frame of a chunk without data, with the longest number that can occur.
        let empty = measure(&writer.chunk((token, max_chunks.saturating_add(3)), 0, |_| ()));
        let (mut hash, mut utf8) = (Sha256::new(), Utf8::default());
        let (mut reader, mut ends, mut frame) = (MessageReader::new(message.clone()), vec![0], 0);
        while reader.left() > 0 {
            let (len, bytes) = cut(reader.clone(), capacity, empty);
            if len == 0 || len64(ends.len()) > max_chunks {
                return Err(too_many);
            }
            let end = reader.done().saturating_add(len);
            while reader.done() < end {
                let run = reader.run(end.saturating_sub(reader.done()));
                hash.update(run);
                utf8.feed(run).map_err(|_| SendError::NotJsonRpc)?;
            }
            ends.push(u32::try_from(end).map_err(|_| too_many.clone())?);
            frame = bytes.max(frame);
        }
        utf8.finish().map_err(|_| SendError::NotJsonRpc)?;
        let digest = hex(hash);
        let start = Start { digest, bytes: len64(message.len()), chunks: len64(ends.len()).saturating_sub(1) };
        let fits = capacity.fits(measure(&writer.start(token, &start)));
        if fits { Ok(Self { start, ends, frame }) } else { Err(too_many) }
    }

    /// Where a chunk lies in the message. They are counted from 1.
    pub(super) fn chunk(&self, number: u64) -> Option<Span> {
        let end = |number| self.ends.get(len_usize(number)).map(|end| u64::from(*end));
        Some(Span { start: end(number.checked_sub(1)?)?, end: end(number)? })
    }
}

/// How many bytes of whole characters fit a frame that measures `total` without them, and how long the frame is then.
fn cut(mut reader: MessageReader, capacity: &Capacity, mut total: Measure) -> (usize, u64) {
    let from = reader.done();
    let mut stride = STRIDE.min(len_usize(capacity.cap));
    while stride > 0 && reader.left() > 0 {
        let mut ahead = reader.clone();
        let more = data_measure(ahead.run(stride), capacity);
        let bytes = total.bytes.saturating_add(more.bytes);
        let with = Measure { bytes, escaped: total.escaped.saturating_add(more.escaped) };
        if capacity.fits(with) {
            (reader, total) = (ahead, with);
        } else {
            stride >>= 1;
        }
    }
    let mut end = reader.done();
    if reader.left() > 0 {
        let next = Span { start: len64(end.saturating_sub(3)), end: len64(end).saturating_add(1) };
        let around = reader.message().read(next);
        let inside = around.iter().rev().take_while(|byte| matches!(byte, 0x80..=0xbf)).count();
        end = end.saturating_sub(inside);
    }
    (end.saturating_sub(from), total.bytes)
}

fn measure(text: &[u8]) -> Measure {
    Measure { bytes: len64(text.len()), escaped: json::escaped_len(text) }
}

/// The measure of a text as data of a frame. Its escaped length is counted only if the link's overhead depends on that.
fn data_measure(text: &[u8], capacity: &Capacity) -> Measure {
    if !capacity.overhead.needs_escaped() {
        return Measure { bytes: json::escaped_len(text), escaped: 0 };
    }
    let mut data = Vec::with_capacity(text.len());
    json::escape_into(&mut data, text);
    measure(&data)
}
