//! Frames that a driver passes in while none are wanted, because it had read them already. They wait, within a bound.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::error::{CloseReason, Over};
use crate::machine::Meta;
use crate::message::len64;

/// What a frame costs beside its bytes: its entry in the list.
const ENTRY_COST: u64 = 64;

/// Frames that wait until frames are wanted again. Every dialect that stops reading has these.
#[derive(Debug, Default)]
pub(crate) struct ParkedFrames {
    frames: VecDeque<(Bytes, Meta)>,
    bytes: u64,
}

impl ParkedFrames {
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// The frames take more than `limit` bytes, and the connection has to close. A single frame may be of any length: its link
    /// bounds it.
    pub(crate) fn push(&mut self, bytes: Bytes, meta: Meta, limit: u64) -> Result<(), CloseReason> {
        self.bytes = self.bytes.saturating_add(cost(&bytes));
        if !self.frames.is_empty() && self.bytes > limit {
            return Err(CloseReason::Unwanted(Over { size: self.bytes, limit }));
        }
        self.frames.push_back((bytes, meta));
        Ok(())
    }

    /// The first frame. It stays here until [`pop`](Self::pop) is called.
    pub(crate) fn first(&self) -> Option<Bytes> {
        self.frames.front().map(|(bytes, _)| bytes.clone())
    }

    /// Takes the first frame out.
    pub(crate) fn pop(&mut self) -> Option<(Bytes, Meta)> {
        let (bytes, meta) = self.frames.pop_front()?;
        self.bytes = self.bytes.saturating_sub(cost(&bytes));
        Some((bytes, meta))
    }
}

fn cost(frame: &Bytes) -> u64 {
    len64(frame.len()).saturating_add(ENTRY_COST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_frame_always_waits_and_more_within_the_bound() {
        let frame = Bytes::from_static(&[0; 36]);
        let mut parked = ParkedFrames::default();
        assert!(parked.push(frame.clone(), Meta::default(), 50).is_ok());
        assert_eq!(
            parked.push(frame.clone(), Meta::default(), 199),
            Err(CloseReason::Unwanted(Over { size: 200, limit: 199 }))
        );
        let mut parked = ParkedFrames::default();
        for _ in 0..100 {
            assert!(parked.push(frame.clone(), Meta::default(), 200).is_ok());
            assert!(parked.push(frame.clone(), Meta::default(), 200).is_ok());
            assert!(parked.first().is_some() && parked.pop().is_some() && parked.pop().is_some());
        }
        assert!(parked.is_empty() && parked.pop().is_none());
    }
}
