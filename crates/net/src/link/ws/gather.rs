//! How much is collected before it is written: large writes for bulk, and little for a small message to wait for.

/// Frames are gathered into writes of this many bytes while the way takes them as fast as they come. Fewer, larger system
/// calls are what bulk needs; nothing waits for it, because gathering takes no time of its own.
const MOST: usize = 384 << 10;
/// And of this many while the way is full: what has been gathered is what a small message must wait for.
const LEAST: usize = 64 << 10;
/// Frames up to here are what the core cuts where a small message may follow soon.
const SHORT: usize = 64 << 10;
/// So little is gathered of those.
const MOST_SHORT: usize = 96 << 10;

/// The rest of a stuck write that the next frame does not wait for: alone it would be a packet of its own.
const REST: usize = 4 << 10;

/// How much should be queued for one write.
#[derive(Debug)]
pub(super) struct Gather {
    /// What is gathered at present, between the least and the most.
    bound: usize,
    /// The last frame was a short one.
    is_short: bool,
    /// The way did not take all of the last write.
    is_stuck: bool,
}

impl Gather {
    /// Whether one more frame may be queued before a write, when so many bytes wait.
    pub(super) const fn has_room(&self, waiting: usize) -> bool {
        let bound = if self.is_short && self.bound > MOST_SHORT { MOST_SHORT } else { self.bound };
        waiting < if self.is_stuck { REST } else { bound }
    }

    /// Notes a frame with a payload of `len`.
    pub(super) const fn note_frame(&mut self, len: usize) {
        self.is_short = len <= SHORT;
    }

    /// Learns from a write: whether the way took all of it at once, some of it, or the rest of an earlier one.
    pub(super) fn note_write(&mut self, is_all: bool) {
        let was_stuck = std::mem::replace(&mut self.is_stuck, !is_all);
        match (was_stuck, is_all) {
            (false, true) => self.bound = self.bound.saturating_mul(2).min(MOST),
            (false, false) => self.bound = (self.bound / 2).max(LEAST),
            (true, _) => {}
        }
    }
}

impl Default for Gather {
    fn default() -> Self {
        Self { bound: MOST, is_short: false, is_stuck: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_is_full_gathers_less_and_one_that_is_open_more() {
        let mut gather = Gather::default();
        let bounds = |gather: &mut Gather, outcomes: &[bool]| -> Vec<usize> {
            let each = outcomes.iter().map(|is_all| {
                gather.note_write(*is_all);
                gather.bound >> 10
            });
            each.collect()
        };
        // Each pair: not all at once, then the rest.
        assert_eq!(
            bounds(&mut gather, &[false, true, false, true, false, true, false, true])[..],
            [192, 192, 96, 96, 64, 64, 64, 64]
        );
        assert_eq!(bounds(&mut gather, &[true, true, true, true]), [128, 256, 384, 384]);
    }

    #[test]
    fn there_is_room_up_to_the_bound_and_only_behind_a_short_rest_while_a_write_is_stuck() {
        let mut gather = Gather::default();
        assert!(gather.has_room(MOST - 1) && !gather.has_room(MOST));
        gather.note_write(false);
        assert!(gather.has_room(REST - 1) && !gather.has_room(REST));
        gather.note_write(true);
        assert!(gather.has_room(REST));
    }

    #[test]
    fn of_short_frames_less_is_gathered() {
        let mut gather = Gather::default();
        assert!(gather.has_room(MOST_SHORT));
        gather.note_frame(SHORT);
        assert!(gather.has_room(MOST_SHORT - 1) && !gather.has_room(MOST_SHORT));
        gather.note_frame(SHORT + 1);
        assert!(gather.has_room(MOST_SHORT));
    }
}
