//! Decides how many bytes are collected for one write: many for large messages, few where a small message may have to wait for them.

/// The size of writes while the connection takes them as fast as frames are made. Large messages need few, large system calls. Nothing
/// waits for that, because collecting takes no time of its own.
const MAX_BATCH: usize = 384 << 10;
/// The size of writes while the connection is full: a small message has to wait for what was collected before it.
const MIN_BATCH: usize = 64 << 10;
/// The core makes frames of up to this length when a small message may follow soon.
const SHORT_FRAME: usize = 64 << 10;
/// The size of writes of such short frames.
const MAX_BATCH_OF_SHORT: usize = 96 << 10;

/// The next frame is taken although so much of the last write is left. Otherwise that rest would be a packet of its own.
const MAX_LEFTOVER: usize = 4 << 10;

/// How many bytes should be queued for one write.
#[derive(Debug)]
pub(super) struct WriteBatch {
    /// The present size of writes, from `MIN_BATCH` to `MAX_BATCH`.
    bound: usize,
    /// Whether the last frame was short.
    is_short: bool,
    /// Whether the connection did not take all of the last write.
    is_stuck: bool,
}

impl WriteBatch {
    /// Whether another frame may be queued before a write, if so many bytes wait.
    pub(super) const fn takes_more(&self, waiting: usize) -> bool {
        let bound = if self.is_short && self.bound > MAX_BATCH_OF_SHORT { MAX_BATCH_OF_SHORT } else { self.bound };
        waiting < if self.is_stuck { MAX_LEFTOVER } else { bound }
    }

    /// Notes a frame with a payload of `len`.
    pub(super) const fn note_frame(&mut self, len: usize) {
        self.is_short = len <= SHORT_FRAME;
    }

    /// Adapts to a write: the connection took all of it at once, a part of it, or the rest of an earlier one.
    pub(super) fn note_write(&mut self, is_all: bool) {
        let was_stuck = std::mem::replace(&mut self.is_stuck, !is_all);
        match (was_stuck, is_all) {
            (false, true) => self.bound = self.bound.saturating_mul(2).min(MAX_BATCH),
            (false, false) => self.bound = (self.bound / 2).max(MIN_BATCH),
            (true, _) => {}
        }
    }
}

impl Default for WriteBatch {
    fn default() -> Self {
        Self { bound: MAX_BATCH, is_short: false, is_stuck: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_is_full_gathers_less_and_one_that_is_open_more() {
        let mut batch = WriteBatch::default();
        let bounds = |batch: &mut WriteBatch, outcomes: &[bool]| -> Vec<usize> {
            let each = outcomes.iter().map(|is_all| {
                batch.note_write(*is_all);
                batch.bound >> 10
            });
            each.collect()
        };
        // Each pair: not all at once, then the rest.
        assert_eq!(
            bounds(&mut batch, &[false, true, false, true, false, true, false, true])[..],
            [192, 192, 96, 96, 64, 64, 64, 64]
        );
        assert_eq!(bounds(&mut batch, &[true, true, true, true]), [128, 256, 384, 384]);
    }

    #[test]
    fn there_is_room_up_to_the_bound_and_only_behind_a_short_rest_while_a_write_is_stuck() {
        let mut batch = WriteBatch::default();
        assert!(batch.takes_more(MAX_BATCH - 1) && !batch.takes_more(MAX_BATCH));
        batch.note_write(false);
        assert!(batch.takes_more(MAX_LEFTOVER - 1) && !batch.takes_more(MAX_LEFTOVER));
        batch.note_write(true);
        assert!(batch.takes_more(MAX_LEFTOVER));
    }

    #[test]
    fn of_short_frames_less_is_gathered() {
        let mut batch = WriteBatch::default();
        assert!(batch.takes_more(MAX_BATCH_OF_SHORT));
        batch.note_frame(SHORT_FRAME);
        assert!(batch.takes_more(MAX_BATCH_OF_SHORT - 1) && !batch.takes_more(MAX_BATCH_OF_SHORT));
        batch.note_frame(SHORT_FRAME + 1);
        assert!(batch.takes_more(MAX_BATCH_OF_SHORT));
    }
}
