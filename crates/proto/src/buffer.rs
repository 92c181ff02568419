//! Where segments become a message: blocks that grow with what arrived, never with what was promised.

use bytes::Bytes;

use crate::message::{Message, len64};

/// The smallest block: below it the allocator's own overhead would weigh more.
const MIN_BLOCK: usize = 256;
/// The largest block: large enough that blocks are few, small enough that the allocator reuses them.
const MAX_BLOCK: usize = 1 << 20;

/// Bytes in arrival order, in blocks. A segment costs no memory of its own: it goes into the last block.
///
/// A new block is never larger than what has arrived so far (or than the segment that asks for it), so a peer's
/// declared size allocates nothing. When the rest is known, blocks fit it exactly.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    blocks: Vec<Vec<u8>>,
    len: usize,
    capacity: usize,
    /// The block that is being filled; those before it are full.
    filling: usize,
}

impl Buffer {
    /// Bytes that arrived.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated, the list of blocks included.
    pub(crate) fn capacity(&self) -> u64 {
        let list = self.blocks.capacity().saturating_mul(size_of::<Vec<u8>>());
        len64(self.capacity).saturating_add(len64(list))
    }

    /// How large a block a segment of `need` bytes asks for; 0 if it fits as it is. `rest` is how many bytes are
    /// expected from here on, this segment included and the last one not, because only its own length is sure;
    /// `None` when nobody knows.
    pub(crate) fn block_for(&self, need: usize, rest: Option<usize>) -> usize {
        let room = self.capacity.saturating_sub(self.len);
        let need = need.saturating_sub(room);
        if need == 0 {
            return 0;
        }
        let grown = self.len.clamp(MIN_BLOCK, MAX_BLOCK);
        need.max(grown.min(rest.map_or(usize::MAX, |rest| rest.saturating_sub(room))))
    }

    /// Adds a block of `size` bytes.
    pub(crate) fn add_block(&mut self, size: usize) {
        if size > 0 {
            let block = Vec::with_capacity(size);
            self.capacity = self.capacity.saturating_add(block.capacity());
            self.blocks.push(block);
        }
    }

    /// Appends bytes, into a new block if no room was made for them.
    pub(crate) fn extend(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(block) = self.blocks.get_mut(self.filling) else {
                self.add_block(self.block_for(bytes.len(), None));
                continue;
            };
            let room = block.capacity().saturating_sub(block.len()).min(bytes.len());
            let (now, later) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            block.extend_from_slice(now);
            self.len = self.len.saturating_add(now.len());
            bytes = later;
            if !bytes.is_empty() {
                self.filling = self.filling.saturating_add(1);
            }
        }
    }

    /// The message, without copying.
    pub(crate) fn into_message(self) -> Message {
        Message::from(self.blocks.into_iter().map(Bytes::from).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds segments as a receiver does; returns the buffer and the most it held beyond twice what had arrived.
    fn fill(lens: &[usize], declared: bool) -> (Buffer, u64) {
        let mut buffer = Buffer::default();
        let first = lens[0];
        let mut worst = 0;
        for (i, len) in lens.iter().enumerate() {
            let left = lens.len() - 1 - i;
            let rest = if left == 0 { 0 } else { left * first };
            let rest = (declared && (left == 0 || rest >= *len)).then_some(rest);
            buffer.add_block(buffer.block_for(*len, rest));
            let bytes: Vec<u8> = (0..*len).map(|b| (i + b) as u8).collect();
            buffer.extend(&bytes);
            worst = worst.max(buffer.capacity().saturating_sub(2 * buffer.len() as u64));
        }
        (buffer, worst)
    }

    #[test]
    fn what_goes_in_comes_out_whatever_the_segment_lengths() {
        for lens in [vec![0, 0, 1], vec![1; 3000], vec![5000, 1, 9000, 0, 2], vec![700_000; 9], vec![3, 2_000_000]] {
            for declared in [false, true] {
                let (buffer, _) = fill(&lens, declared);
                let want: Vec<u8> =
                    lens.iter().enumerate().flat_map(|(i, len)| (0..*len).map(move |b| (i + b) as u8)).collect();
                assert_eq!(buffer.into_message().to_bytes(), want);
            }
        }
    }

    #[test]
    fn never_more_than_twice_what_arrived_is_held() {
        for lens in [vec![1; 60_000], vec![49_152; 200], vec![675_000; 16], vec![100_000, 1, 1, 1]] {
            for declared in [false, true] {
                let (_, worst) = fill(&lens, declared);
                assert!(worst <= 1024, "{worst} for {} × {}", lens.len(), lens[0]);
            }
        }
    }

    #[test]
    fn a_well_declared_message_ends_with_no_slack() {
        for (total, last) in [(2, 3), (3, 675_000), (4, 1), (17, 99)] {
            let mut lens = vec![675_000; total];
            lens[total - 1] = last;
            let (buffer, _) = fill(&lens, true);
            assert!(buffer.capacity() <= buffer.len() as u64 + 2048, "{} for {}", buffer.capacity(), buffer.len());
        }
    }

    #[test]
    fn tiny_segments_share_blocks() {
        let (buffer, _) = fill(&vec![1; 60_000], false);
        assert!(buffer.blocks.len() < 16, "{} blocks", buffer.blocks.len());
    }
}
