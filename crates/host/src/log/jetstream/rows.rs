//! Which rows a channel has, and in which generation each of them is.
//!
//! A row is a message on a subject with its generation and its index. Rows that are cut off and written anew have another
//! generation, so that no late message of an earlier owner can take their place.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The rows of a channel, as ascending ranges of indices. A chat that was never cut has one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RowRanges(Vec<(Range<u64>, Arc<str>)>);

impl RowRanges {
    /// Adds a row, or replaces it.
    pub(super) fn set(&mut self, index: u64, generation: &Arc<str>) {
        // Rows are nearly always added at the end.
        if let Some((range, known)) = self.0.last_mut()
            && range.end == index
            && known == generation
        {
            range.end += 1;
            return;
        }
        let mut kept = Vec::with_capacity(self.0.len() + 2);
        for (range, known) in self.0.drain(..) {
            let (before, after) = (range.start..range.end.min(index), range.start.max(index + 1)..range.end);
            kept.extend([before, after].into_iter().filter(|part| !part.is_empty()).map(|part| (part, known.clone())));
        }
        let at = kept.partition_point(|(range, _)| range.start < index);
        kept.insert(at, (index..index + 1, generation.clone()));
        for (range, known) in kept {
            match self.0.last_mut() {
                Some((last, same)) if last.end == range.start && *same == known => last.end = range.end,
                _ => self.0.push((range, known)),
            }
        }
    }

    /// Removes all rows from an index on.
    pub(super) fn cut(&mut self, from: u64) {
        self.0.retain(|(range, _)| range.start < from);
        if let Some((range, _)) = self.0.last_mut() {
            range.end = range.end.min(from);
        }
    }

    /// The generation of a row.
    pub(super) fn generation(&self, index: u64) -> Option<&Arc<str>> {
        self.0.iter().find(|(range, _)| range.contains(&index)).map(|(_, generation)| generation)
    }

    /// The generation of the last row.
    pub(super) fn newest(&self) -> Option<&Arc<str>> {
        self.0.last().map(|(_, generation)| generation)
    }

    /// The rows with these indices, each with its generation.
    pub(super) fn within(&self, indices: Range<u64>) -> impl Iterator<Item = (u64, &Arc<str>)> {
        let part = move |range: &Range<u64>| range.start.max(indices.start)..range.end.min(indices.end);
        self.0.iter().flat_map(move |(range, generation)| part(range).map(move |index| (index, generation)))
    }

    /// One more than the highest index.
    pub(super) fn total(&self) -> u64 {
        self.0.last().map_or(0, |(range, _)| range.end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_hold_what_a_map_of_rows_holds(steps in proptest::collection::vec((0..30_u64, 0..4_u8, any::<bool>()), 1..60)) {
            let (mut ranges, mut map) = (RowRanges::default(), BTreeMap::new());
            for (index, generation, cuts) in steps {
                if cuts {
                    ranges.cut(index);
                    map.split_off(&index);
                } else {
                    let generation: Arc<str> = generation.to_string().into();
                    ranges.set(index, &generation);
                    map.insert(index, generation);
                }
                let held: BTreeMap<u64, Arc<str>> = ranges.within(0..100).map(|(at, name)| (at, name.clone())).collect();
                prop_assert_eq!(&held, &map);
                prop_assert_eq!(ranges.total(), map.last_key_value().map_or(0, |(at, _)| at + 1));
            }
        }
    }

    #[test]
    fn rows_that_are_added_one_after_the_other_are_one_range() {
        let (mut ranges, generation) = (RowRanges::default(), Arc::from("1-0"));
        (0..10_000).for_each(|index| ranges.set(index, &generation));
        assert_eq!(ranges.0.len(), 1);
    }
}
