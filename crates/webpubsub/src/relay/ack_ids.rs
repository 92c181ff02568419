//! Which requests of a client were done: the numbers of their acknowledgements, as ranges.

/// Most ranges that are remembered. A client that counts up has one, and a few more while requests overtake each other. With more, the
/// lowest are joined, so that an old number with a gap before it counts as done.
const MAX_RANGES: usize = 256;

/// A set of numbers as ranges without gaps between them, in ascending order.
#[derive(Debug, Default)]
pub(super) struct AckIds(Vec<(u64, u64)>);

impl AckIds {
    /// Whether a number was added before.
    pub(super) fn contains(&self, id: u64) -> bool {
        let at = self.0.partition_point(|(_, end)| *end < id);
        self.0.get(at).is_some_and(|(start, _)| *start <= id)
    }

    /// Adds a number. Returns whether it is new.
    pub(super) fn insert(&mut self, id: u64) -> bool {
        let Self(ranges) = self;
        // The first range that ends just before the number, or later.
        let at = ranges.partition_point(|(_, end)| end.saturating_add(1) < id);
        let Some((start, end)) = ranges.get_mut(at) else {
            ranges.push((id, id));
            self.shrink();
            return true;
        };
        if (*start..=*end).contains(&id) {
            return false;
        }
        if id > *end {
            *end = id;
        } else if id.checked_add(1) == Some(*start) {
            *start = id;
        } else {
            ranges.insert(at, (id, id));
            self.shrink();
            return true;
        }
        let end = ranges.get(at).map_or(id, |(_, end)| *end);
        if let Some((next_start, next_end)) = ranges.get(at + 1).copied()
            && end.checked_add(1) == Some(next_start)
        {
            ranges.remove(at + 1);
            if let Some(range) = ranges.get_mut(at) {
                range.1 = next_end;
            }
        }
        true
    }

    fn shrink(&mut self) {
        if self.0.len() > MAX_RANGES
            && let [first, second, ..] = self.0.as_mut_slice()
        {
            second.0 = first.0;
            self.0.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_number_is_new_exactly_once(ids in prop::collection::vec(0_u64..200, 0..400)) {
            let (mut set, mut want) = (AckIds::default(), BTreeSet::new());
            for id in ids {
                prop_assert_eq!(set.contains(id), want.contains(&id));
                prop_assert_eq!(set.insert(id), want.insert(id));
            }
        }
    }

    #[test]
    fn numbers_with_gaps_take_bounded_memory_and_old_ones_stay_done() {
        let mut set = AckIds::default();
        for id in (0..100_000).step_by(2) {
            assert!(set.insert(id));
        }
        assert_eq!(set.0.len(), MAX_RANGES);
        assert!(!set.insert(0) && !set.insert(99_998) && set.insert(99_997));
        assert!(set.insert(u64::MAX) && !set.insert(u64::MAX) && set.insert(u64::MAX - 1));
    }
}
