//! Where in the stream an entry is: exact for some entries, and a place before it for all others.

use serde::{Deserialize, Serialize};

use super::super::Seq;

/// How many places are kept. With more, every second one is forgotten.
const MAX_PLACES: usize = 16_384;

/// The sequences in the stream of some runs of entries, ascending.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Places {
    /// The first seq of a run, and the sequence of its message.
    places: Vec<(Seq, u64)>,
    /// One of so many messages is noted.
    step: u64,
}

impl Default for Places {
    fn default() -> Self {
        Self { places: Vec::new(), step: 64 }
    }
}

impl Places {
    /// Notes the place of a run, if the last noted one is far enough away.
    pub(super) fn add(&mut self, first: Seq, position: u64) {
        if self.places.last().is_some_and(|(_, noted)| position < noted.saturating_add(self.step)) {
            return;
        }
        self.places.push((first, position));
        if self.places.len() > MAX_PLACES {
            self.step = self.step.saturating_mul(2);
            let mut is_kept = false;
            self.places.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
    }

    /// A sequence in the stream at or before which the entry with this seq is.
    pub(super) fn before(&self, seq: Seq) -> u64 {
        let after = self.places.partition_point(|(first, _)| *first <= seq);
        after.checked_sub(1).and_then(|at| self.places.get(at)).map_or(1, |(_, position)| *position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_forgotten_the_place_of_a_run_is_at_or_before_it() {
        let mut places = Places::default();
        for position in 1..4_000_000 {
            places.add(position * 10, position);
        }
        assert!(places.places.len() <= MAX_PLACES);
        for position in [1, 2, 63, 64, 65, 1_000, 999_999, 3_999_999] {
            let before = places.before(position * 10 + 5);
            assert!(before <= position && before + places.step * 2 > position, "{before} for {position}");
        }
        assert_eq!(places.before(0), 1);
    }
}
