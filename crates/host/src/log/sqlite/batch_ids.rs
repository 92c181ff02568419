//! The newest batch ids, to tell a new batch from a repeated one without a query.

use std::collections::BTreeSet;

use super::super::BatchId;

/// How many ids are kept: those of some seconds of a busy host, in about half a megabyte.
const MOST: usize = 16_384;

/// The newest ids. Every id in the store is one of these, or not above the floor.
#[derive(Debug)]
pub(super) struct BatchIds {
    floor: BatchId,
    newest: BTreeSet<BatchId>,
}

impl BatchIds {
    /// For a store whose highest id is this.
    pub(super) fn new(highest: BatchId) -> Self {
        Self { floor: highest, newest: BTreeSet::new() }
    }

    /// Whether the store may have this id. A new id begins with the present time, so that the answer is mostly no.
    pub(super) fn may_know(&self, id: BatchId) -> bool {
        id <= self.floor || self.newest.contains(&id)
    }

    /// The store will have this id.
    pub(super) fn add(&mut self, id: BatchId) {
        if id > self.floor {
            self.newest.insert(id);
        }
        while self.newest.len() > MOST
            && let Some(lowest) = self.newest.pop_first()
        {
            self.floor = lowest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_that_was_added_is_ever_taken_for_a_new_one() {
        let mut ids = BatchIds::new(BatchId::at(1_000));
        // Times go up and down, and far more come than are held.
        let added: Vec<_> = (0..40_000).map(|n| BatchId::at(990 + n * 7_919 % 50_000)).collect();
        assert!(!ids.may_know(BatchId::at(1_001)));
        added.iter().for_each(|id| ids.add(*id));
        assert!(added.iter().all(|id| ids.may_know(*id)));
        assert!(ids.newest.len() <= MOST);
        assert!(!ids.may_know(BatchId::at(60_000)));
    }
}
