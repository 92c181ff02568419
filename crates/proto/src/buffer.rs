//! Gathers segments into a message, in blocks that grow with what has arrived, never with what was declared.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::message::{Message, len64};

/// The smallest block: below it the allocator's own overhead would weigh more.
const MIN_BLOCK: usize = 256;
/// The largest block: large enough that blocks are few, small enough that the allocator reuses them.
const MAX_BLOCK: usize = 1 << 20;

/// The smallest block that is kept for the next messages. The allocator keeps smaller ones itself.
const MIN_POOLED: usize = 64 << 10;
/// How many blocks are kept for the next messages, at most.
const MAX_POOLED: usize = 16;

/// Blocks of dropped messages, kept for the next ones, because fresh pages cost more than decoding. A peer's segments are equally long,
/// so the same sizes come again. Cloning shares the pool.
#[derive(Debug, Clone)]
pub(crate) struct BlockPool {
    /// Oldest first.
    blocks: Arc<Mutex<VecDeque<Vec<u8>>>>,
    max_blocks: usize,
}

impl BlockPool {
    /// The pool of a budget of so many bytes. It keeps at most a 32nd of that.
    pub(crate) fn for_budget(budget: u64) -> Self {
        let max_blocks = usize::try_from(budget >> 5).unwrap_or(usize::MAX).div_euclid(MAX_BLOCK).min(MAX_POOLED);
        Self { blocks: Arc::default(), max_blocks }
    }

    /// A block of exactly `size` bytes, if there is one.
    fn take(&self, size: usize) -> Option<Vec<u8>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = blocks.iter().rposition(|block| block.capacity() == size)?;
        blocks.remove(newest)
    }

    /// Keeps a block. Returns the oldest one if there are too many, so that the caller frees it without the lock.
    fn put(&self, block: Vec<u8>) -> Option<Vec<u8>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.push_back(block);
        if blocks.len() > self.max_blocks { blocks.pop_front() } else { None }
    }
}

impl Default for BlockPool {
    fn default() -> Self {
        Self { blocks: Arc::default(), max_blocks: MAX_POOLED }
    }
}

/// Whether blocks of this size are kept for the next messages.
fn is_pooled(size: usize) -> bool {
    (MIN_POOLED..=MAX_BLOCK).contains(&size)
}

/// One block. Only the bytes before `filled` count; what follows is left over from an earlier message, or not allocated yet.
#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    filled: usize,
    pool: BlockPool,
}

impl Block {
    /// The next `len` bytes to be written, if the block has so many left.
    fn next_bytes(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.filled.checked_add(len).filter(|end| *end <= self.bytes.capacity())?;
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes.get_mut(self.filled..end)
    }

    fn free(&self) -> usize {
        self.bytes.capacity().saturating_sub(self.filled)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or_default()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if is_pooled(self.bytes.capacity()) {
            drop(self.pool.put(std::mem::take(&mut self.bytes)));
        }
    }
}

/// Bytes in arrival order, in blocks. A segment costs no memory of its own: it goes into the last block.
///
/// A new block is never larger than what has arrived so far, or than the segment that needs it. So what a peer declares
/// allocates nothing. When the length of the rest is known, blocks fit it exactly.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    blocks: Vec<Block>,
    len: usize,
    capacity: usize,
    /// The block that is being filled; those before it are full.
    filling: usize,
    pool: BlockPool,
}

impl Buffer {
    /// A buffer whose blocks come from `pool`, and go back there when the message is dropped.
    pub(crate) fn pooled(pool: BlockPool) -> Self {
        Self { pool, ..Self::default() }
    }

    /// Bytes that arrived.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated, the list of blocks included.
    pub(crate) fn capacity(&self) -> u64 {
        let list = self.blocks.capacity().saturating_mul(size_of::<Block>());
        len64(self.capacity).saturating_add(len64(list))
    }

    /// How large a new block a segment of `need` bytes requires; 0 if it fits the blocks that are there. `rest` is how many bytes
    /// are expected from here on, this segment included and the last one not, whose length is not known before it comes. `None`
    /// if that is unknown.
    pub(crate) fn block_for(&self, need: usize, rest: Option<usize>) -> usize {
        let free = self.capacity.saturating_sub(self.len);
        let need = need.saturating_sub(free);
        if need == 0 {
            return 0;
        }
        let grown = self.len.clamp(MIN_BLOCK, MAX_BLOCK);
        need.max(grown.min(rest.map_or(usize::MAX, |rest| rest.saturating_sub(free))))
    }

    /// Adds a block of `size` bytes.
    pub(crate) fn add_block(&mut self, size: usize) {
        if size == 0 {
            return;
        }
        let pooled = if is_pooled(size) { self.pool.take(size) } else { None };
        let bytes = pooled.unwrap_or_else(|| Vec::with_capacity(size));
        self.capacity = self.capacity.saturating_add(bytes.capacity());
        self.blocks.push(Block { bytes, filled: 0, pool: self.pool.clone() });
    }

    /// Appends bytes. Adds a block if the blocks that are there do not suffice.
    pub(crate) fn extend(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(block) = self.blocks.get_mut(self.filling) else {
                self.add_block(self.block_for(bytes.len(), None));
                continue;
            };
            let (now, later) = bytes.split_at_checked(block.free()).unwrap_or((bytes, &[]));
            if let Some(place) = block.next_bytes(now.len()) {
                place.copy_from_slice(now);
                block.filled = block.filled.saturating_add(now.len());
            }
            self.len = self.len.saturating_add(now.len());
            bytes = later;
            if !bytes.is_empty() {
                self.filling = self.filling.saturating_add(1);
            }
        }
    }

    /// Appends `len` bytes that `write` fills in. They count only if it returns true. If they fit the current block, `write` fills
    /// the block itself, else memory on the stack, from which they are copied. `len` is at most `MAX`.
    pub(crate) fn write<const MAX: usize, E>(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Some(block) = self.blocks.get_mut(self.filling).filter(|block| block.free() >= len) else {
            let mut scratch = [0; MAX];
            let place = scratch.get_mut(..len).unwrap_or_default();
            let written = write(place)?;
            if written {
                self.extend(place);
            }
            return Ok(written);
        };
        let written = write(block.next_bytes(len).unwrap_or_default())?;
        if written {
            block.filled = block.filled.saturating_add(len);
            self.len = self.len.saturating_add(len);
        }
        Ok(written)
    }

    /// Whether the bytes from offset `at` on begin with `bytes`.
    pub(crate) fn holds(&self, at: usize, bytes: &[u8]) -> bool {
        let all = self.blocks.iter().flat_map(AsRef::<[u8]>::as_ref);
        all.skip(at).take(bytes.len()).eq(bytes)
    }

    /// The message, without copying.
    pub(crate) fn into_message(self) -> Message {
        self.blocks.into_iter().map(Bytes::from_owner).collect()
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
            assert!(buffer.capacity() >= buffer.len() as u64);
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
    fn what_is_written_in_place_counts_only_if_it_is_good() {
        let mut buffer = Buffer::default();
        buffer.add_block(400);
        for (round, good) in [true, false, true, false, true].into_iter().enumerate() {
            let written = buffer.write::<300, _>(300, |place| {
                place.fill(round as u8);
                Ok::<_, ()>(good)
            });
            assert_eq!(written, Ok(good));
        }
        assert_eq!(buffer.write::<300, _>(9, |_| Err(7)), Err(7));
        assert_eq!(buffer.len(), 900);
        let want: Vec<u8> = [[0; 300], [2; 300], [4; 300]].concat();
        assert_eq!(buffer.into_message().to_bytes(), want);
    }

    #[test]
    fn large_blocks_are_used_again_and_stale_bytes_never_show() {
        let pool = BlockPool::default();
        let message = |byte: u8| {
            let mut buffer = Buffer::pooled(pool.clone());
            (0..5 * MAX_BLOCK / 1000).for_each(|_| buffer.extend(&[byte; 1000]));
            buffer.into_message()
        };
        let first = message(1);
        let places: Vec<_> = first.parts().iter().filter(|part| part.len() >= MIN_POOLED).map(|p| p.as_ptr()).collect();
        assert!(places.len() > 4 && pool.blocks.lock().unwrap().is_empty());
        drop(first);
        // The last block is pooled too, although little of it was filled.
        assert_eq!(pool.blocks.lock().unwrap().len(), places.len() + 1);
        let second = message(2);
        assert!(places.iter().all(|place| second.parts().iter().any(|part| part.as_ptr() == *place)));
        assert!(second.slices().flatten().all(|byte| *byte == 2));
        let many: Vec<_> = (0..20).map(message).collect();
        drop(many);
        assert_eq!(pool.blocks.lock().unwrap().len(), MAX_POOLED);
    }

    #[test]
    fn what_it_holds_is_known_at_any_offset_and_across_blocks() {
        let text: Vec<u8> = (0..5000).map(|b| (b % 251) as u8).collect();
        let mut buffer = Buffer::default();
        text.chunks(700).for_each(|piece| buffer.extend(piece));
        assert!(buffer.blocks.len() > 1);
        for (from, to) in [(0, 5000), (0, 1), (4999, 5000), (600, 4100), (1023, 1026), (5000, 5000)] {
            assert!(buffer.holds(from, &text[from..to]), "{from} to {to}");
        }
        assert!(!buffer.holds(1, &text[..9]) && !buffer.holds(4999, &text[4998..]));
        let mut other = text.clone();
        other[3000] ^= 1;
        assert!(!buffer.holds(0, &other) && buffer.holds(0, &other[..3000]));
    }

    #[test]
    fn tiny_segments_share_blocks() {
        let (buffer, _) = fill(&vec![1; 60_000], false);
        assert!(buffer.blocks.len() < 16, "{} blocks", buffer.blocks.len());
    }
}
