//! Buffers that small bodies are copied into, and that are reused when nobody holds any of their bodies. Without them, a replay
//! would spend as much time on allocating memory as on reading.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// A body up to this length shares a buffer with others.
const SMALL: usize = 4 << 10;
/// The length of a buffer: whoever keeps one body keeps no more than this alive.
const LEN: usize = 32 << 10;
/// How many buffers are tracked: enough for a page of a megabyte.
const MOST: usize = 34;

/// A buffer that is being filled, and those that readers use.
#[derive(Debug)]
pub(super) struct BufferPool {
    free: BytesMut,
    lent: VecDeque<BytesMut>,
}

impl BufferPool {
    /// Copies a body.
    pub(super) fn copy(&mut self, body: &[u8]) -> Bytes {
        if body.len() > SMALL {
            return Bytes::copy_from_slice(body);
        }
        if self.free.capacity() < body.len() {
            self.turn();
        }
        self.free.extend_from_slice(body);
        self.free.split().freeze()
    }

    /// Takes the oldest buffer if none of its bodies is used any more, else a new one.
    fn turn(&mut self) {
        let unused = self.lent.front_mut().is_some_and(|oldest| oldest.try_reclaim(LEN));
        let next = if unused { self.lent.pop_front() } else { None };
        let next = next.unwrap_or_else(|| BytesMut::with_capacity(LEN));
        if self.lent.len() == MOST {
            // A body in the oldest buffer has been held for long. The buffer is no longer tracked.
            self.lent.pop_front();
        }
        self.lent.push_back(std::mem::replace(&mut self.free, next));
    }
}

impl Default for BufferPool {
    fn default() -> Self {
        Self { free: BytesMut::with_capacity(LEN), lent: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_never_overwritten_while_somebody_has_it() {
        let mut buffers = BufferPool::default();
        let mut kept: Vec<(Vec<u8>, Bytes)> = Vec::new();
        for n in 0..20_000_usize {
            let body = vec![(n % 251) as u8; n * 37 % (SMALL + 100)];
            let copy = buffers.copy(&body);
            // Some stay to the end, most go soon.
            if n % 100 != 0 && kept.len() > 50 {
                kept.swap_remove(n % 50);
            }
            kept.push((body, copy));
            assert!(buffers.lent.len() <= MOST);
        }
        assert!(kept.iter().all(|(body, copy)| body == copy));
    }

    #[test]
    fn memory_that_nobody_uses_is_used_again() {
        let mut buffers = BufferPool::default();
        for _ in 0..100 {
            let page: Vec<Bytes> = (0..100).map(|n| buffers.copy(&vec![n; 1_000])).collect();
            assert!((0..100).zip(&page).all(|(n, copy)| **copy == *vec![n; 1_000]));
        }
        // A page needs four of them.
        assert!(buffers.lent.len() <= 4, "{}", buffers.lent.len());
    }
}
