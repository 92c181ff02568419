//! Gaps in the order of seqs: between the last seq of one run of the log and the first seq of the next run.
//!
//! A run is the time from one opening for writing to the next. Each run begins far above all seqs that earlier runs can have
//! assigned, also those that a restored backup does not contain. So a client's position from a lost run falls into a gap, and
//! is never taken for a position of this log.

use serde::{Deserialize, Serialize};

use super::Seq;

/// JSON numbers are exact up to here.
const MAX_SEQ: Seq = (1 << 53) - 1;

/// Later readings of the clock are ignored: the rest of the numbers is for logs that are ahead of their clock.
const MAX_CLOCK: Seq = MAX_SEQ - (1 << 45);

/// How many seqs a run skips if its clock is behind the log: more than a log assigns between two backups.
const JUMP: Seq = 1 << 24;

/// The largest random number of seqs that are skipped in addition.
const SPREAD: Seq = 1 << 26;

/// Seqs that no run of the log has used, or whose entries it has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The last seq before it; 0 if it is at the beginning.
    pub after: Seq,
    /// The first seq after it.
    pub next: Seq,
    /// The highest seq after `after` that is known to have been acknowledged here, if any: the log was restored from a backup, or
    /// has lost its end.
    pub lost: Option<Seq>,
}

/// All gaps of a log, ascending.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Gaps {
    /// Gaps before this seq have been forgotten.
    known_from: Seq,
    gaps: Vec<Gap>,
}

impl Gaps {
    pub(super) fn new(known_from: Seq, gaps: Vec<Gap>) -> Self {
        Self { known_from, gaps }
    }

    /// Adds the gap before a new run.
    pub(super) fn add(&mut self, gap: Gap) {
        self.gaps.retain(|before| before.after != gap.after);
        self.gaps.push(gap);
    }

    /// The gap before the present run.
    pub(super) fn newest(&self) -> Option<Gap> {
        self.gaps.last().copied()
    }

    /// All gaps, with what was forgotten before the first as one more.
    pub(super) fn all(&self) -> Vec<Gap> {
        let forgotten = Gap { after: 0, next: self.known_from, lost: None };
        let is_known = |gap: &&Gap| gap.after > 0 || self.known_from == 0;
        (self.known_from > 0)
            .then_some(forgotten)
            .into_iter()
            .chain(self.gaps.iter().filter(is_known).copied())
            .collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Gap> + '_ {
        self.gaps.iter().copied()
    }

    /// How many seqs were used after a position, in a log that ends with `last`; `None` if the position is in a gap or
    /// beyond the end.
    pub(super) fn lag(&self, after: Seq, last: Seq) -> Option<u64> {
        let mut behind = last.checked_sub(after).filter(|_| after >= self.known_from)?;
        // The present run may not have used any seq yet.
        for gap in self.gaps.iter().rev().filter(|gap| gap.after < last) {
            if gap.next <= after {
                break;
            }
            if gap.after < after {
                return None;
            }
            behind = behind.saturating_sub(gap.next.saturating_sub(gap.after).saturating_sub(1));
        }
        Some(behind)
    }
}

/// The first seq of a new run, if `used` is the highest seq that is known to have been used.
///
/// The clock counts 2^20 a second, which is more than any log appends, so seqs do not overtake it: a later run begins above all
/// seqs that were assigned before, however many of their entries the log still has. A log that is ahead of its clock (which
/// was set back, or once showed a future time) skips more seqs than it can have assigned since its last backup, and then a
/// random number of further ones, so that two restores of one backup begin at different seqs. There, a position of the one is
/// mistaken for one of the other with a probability of the entries assigned over 2^26.
///
/// Two runs that began with the same log at the same reading of the clock cannot be told apart.
pub(super) fn first_of_run(used: Seq, clock: Seq, random: u64) -> Seq {
    if used < clock && clock <= MAX_CLOCK {
        return clock;
    }
    let next = used.saturating_add(1);
    let jumped = next.saturating_add(JUMP).saturating_add(random % SPREAD);
    // At the end of the numbers nothing can be skipped. It takes four years of one start a second to get there.
    if jumped <= MAX_SEQ { jumped } else { next }
}

/// The time since 1970, 2^20 to a second.
pub(super) fn clock() -> Seq {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let parts = (u64::from(since.subsec_nanos()) << 20) / 1_000_000_000;
    since.as_secs().saturating_mul(1 << 20).saturating_add(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Seq = 1_800_000_000 << 20;

    #[test]
    fn a_life_begins_at_the_clock_and_fits_a_json_number_for_two_centuries() {
        assert_eq!(first_of_run(0, NOW, 7), NOW);
        assert_eq!(first_of_run(NOW - 1, NOW, u64::MAX), NOW);
        let year_2200 = 7_258_118_400 << 20;
        assert_eq!(first_of_run(NOW, year_2200, 7), year_2200);
        assert!(clock() > NOW - (1 << 50) && clock() < year_2200);
    }

    #[test]
    fn a_log_that_is_ahead_of_its_clock_passes_over_what_it_may_have_handed_out() {
        for (clock, random) in [(NOW, 0), (NOW - 1, u64::MAX), (0, 1), (Seq::MAX, 5)] {
            let next = first_of_run(NOW, clock, random);
            assert!((NOW + JUMP..=NOW + JUMP + SPREAD).contains(&next), "{next}");
        }
        assert_eq!(first_of_run(NOW, 1, 9).abs_diff(first_of_run(NOW, 1, 9_000_000)), 8_999_991);
        // At the end of all numbers there is nothing to pass over, but never a step back.
        assert_eq!(first_of_run(MAX_SEQ - 5, 0, 9), MAX_SEQ - 4);
    }

    #[test]
    fn only_positions_of_some_life_have_a_lag() {
        let gap = |after, next| Gap { after, next, lost: None };
        let gaps = Gaps::new(0, vec![gap(0, 100), gap(150, 1_000), gap(1_003, 5_000)]);
        let lag = |after| gaps.lag(after, 5_001);
        assert_eq!(
            [lag(0), lag(100), lag(150), lag(1_000), lag(1_003), lag(5_000), lag(5_001)],
            [Some(57), Some(56), Some(6), Some(5), Some(2), Some(1), Some(0)]
        );
        for in_a_gap in [1, 99, 151, 999, 1_004, 4_999, 5_002, Seq::MAX] {
            assert_eq!(lag(in_a_gap), None, "{in_a_gap}");
        }
        // The newest life has used none yet.
        assert_eq!((gaps.lag(1_003, 1_003), gaps.lag(1_000, 1_003), gaps.lag(1_004, 1_003)), (Some(0), Some(3), None));
        // Of gaps that are forgotten nothing can be said.
        let gaps = Gaps::new(1_000, vec![gap(1_003, 5_000)]);
        assert_eq!((gaps.lag(999, 5_001), gaps.lag(1_000, 5_001)), (None, Some(5)));
    }
}
