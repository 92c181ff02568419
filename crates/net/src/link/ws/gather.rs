//! How much is collected before it is written: large writes for bulk, and little for a small message to wait for.

/// Frames are gathered into writes of this many bytes while the way takes them as fast as they come. Fewer, larger system
/// calls are what bulk needs; nothing waits for it, because gathering takes no time of its own.
const MOST: u64 = 384 << 10;
/// And of this many while the way is full: what has been gathered is what a small message must wait for.
const LEAST: u64 = 64 << 10;
/// Frames up to here are what the core cuts where a small message may follow soon.
const SHORT: usize = 64 << 10;
/// So little is gathered of those.
const MOST_SHORT: u64 = 96 << 10;

/// What has been queued for one write, and how much more should be.
#[derive(Debug)]
pub(super) struct Gather {
    /// What the count of written bytes will be when all that was queued is written.
    queued_to: u64,
    /// What is gathered at present, between the least and the most.
    bound: u64,
    /// The last frame was a short one.
    is_short: bool,
    /// The way did not take all of the last write.
    is_stuck: bool,
}

impl Gather {
    /// Whether one more frame may be queued before a write, when so much has been written in all.
    pub(super) const fn has_room(&self, written: u64) -> bool {
        let bound = if self.is_short && self.bound > MOST_SHORT { MOST_SHORT } else { self.bound };
        !self.is_stuck && self.queued_to.saturating_sub(written) < bound
    }

    /// Notes a frame with a payload of `len`. Pongs and pings are not noted when they are queued, only in `written`.
    pub(super) fn note_queued(&mut self, len: usize, is_masked: bool, written: u64) {
        let header = match len {
            0..=125 => 2,
            126..=65_535 => 4,
            _ => 10,
        };
        let mask = if is_masked { 4 } else { 0 };
        self.is_short = len <= SHORT;
        let len = u64::try_from(len).unwrap_or(u64::MAX).saturating_add(header + mask);
        self.queued_to = self.queued_to.max(written).saturating_add(len);
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
        Self { queued_to: 0, bound: MOST, is_short: false, is_stuck: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_is_full_gathers_less_and_one_that_is_open_more() {
        let mut gather = Gather::default();
        let bounds = |gather: &mut Gather, outcomes: &[bool]| -> Vec<u64> {
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
    fn there_is_room_up_to_the_bound_and_none_while_a_write_is_stuck() {
        let mut gather = Gather::default();
        gather.note_queued(MOST as usize - 11, false, 0);
        assert!(gather.has_room(0));
        gather.note_queued(SHORT + 1, false, 0);
        assert!(!gather.has_room(0) && gather.has_room(SHORT as u64 + 11));
        gather.note_write(false);
        assert!(!gather.has_room(2 * MOST));
        gather.note_write(true);
        assert!(gather.has_room(2 * MOST));
    }

    #[test]
    fn of_short_frames_less_is_gathered() {
        let mut gather = Gather::default();
        let frames = std::iter::from_fn(|| gather.has_room(0).then(|| gather.note_queued(SHORT, false, 0)));
        assert_eq!(frames.count(), 2);
    }
}
