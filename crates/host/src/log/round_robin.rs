//! Deficit round robin over sources, and within each source over its channels.
//!
//! A lane that had nothing waiting is served first, once. After that it takes turns with the others, and each turn allows it
//! [`QUANTUM`] more bytes. So a source with an occasional small batch does not wait for others, and a source with gigabytes
//! gets what others leave. Items of one lane keep their order.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Bytes that each turn allows a lane.
pub(super) const QUANTUM: usize = 64 << 10;

/// A queue whose items have costs.
pub(super) trait CostedQueue {
    type Item;

    /// The cost of the next item, if it is at most `most`.
    fn next_cost(&mut self, most: usize) -> NextCost;

    /// Takes the item whose cost was returned last.
    fn take(&mut self) -> Option<Self::Item>;
}

/// The cost of a queue's next item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextCost {
    Empty,
    /// It costs more than allowed.
    TooLarge,
    Costs(usize),
}

/// Items in the order in which they were added, each with its cost.
#[derive(Debug)]
pub(super) struct Fifo<T>(VecDeque<(usize, T)>);

impl<T> Fifo<T> {
    pub(super) fn push(&mut self, cost: usize, item: T) {
        self.0.push_back((cost, item));
    }
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> CostedQueue for Fifo<T> {
    type Item = T;

    fn next_cost(&mut self, most: usize) -> NextCost {
        match self.0.front() {
            None => NextCost::Empty,
            Some((cost, _)) if *cost > most => NextCost::TooLarge,
            Some((cost, _)) => NextCost::Costs(*cost),
        }
    }

    fn take(&mut self) -> Option<T> {
        self.0.pop_front().map(|(_, item)| item)
    }
}

/// Queues that take turns.
#[derive(Debug)]
pub(super) struct RoundRobin<K, L> {
    lanes: HashMap<K, Lane<L>>,
    /// Lanes that had nothing waiting. They are served first.
    new_lanes: VecDeque<K>,
    /// All other lanes. An empty one stays for one turn, so that it is not new again at once.
    served_lanes: VecDeque<K>,
}

#[derive(Debug)]
struct Lane<L> {
    queue: L,
    /// Bytes that it may still take before its next turn.
    deficit: usize,
}

impl<K, L> Default for RoundRobin<K, L> {
    fn default() -> Self {
        Self { lanes: HashMap::new(), new_lanes: VecDeque::new(), served_lanes: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, L: CostedQueue + Default> RoundRobin<K, L> {
    /// The queue of a key, to which the caller adds something.
    pub(super) fn queue(&mut self, key: &K) -> &mut L {
        let new_lanes = &mut self.new_lanes;
        let lane = self.lanes.entry(key.clone()).or_insert_with(|| {
            new_lanes.push_back(key.clone());
            Lane { queue: L::default(), deficit: QUANTUM }
        });
        &mut lane.queue
    }
}

impl<K: Clone + Eq + Hash, L: CostedQueue> CostedQueue for RoundRobin<K, L> {
    type Item = L::Item;

    /// Gives turns until some lane may take its next item. The result is valid until an item is added or taken.
    fn next_cost(&mut self, most: usize) -> NextCost {
        let mut too_large = false;
        loop {
            let mut grows = false;
            for _ in 0..self.new_lanes.len() + self.served_lanes.len() {
                let is_fresh = !self.new_lanes.is_empty();
                let list = if is_fresh { &mut self.new_lanes } else { &mut self.served_lanes };
                let Some(key) = list.pop_front() else { break };
                let Some(lane) = self.lanes.get_mut(&key) else { continue };
                match lane.queue.next_cost(most) {
                    NextCost::Costs(cost) if cost <= lane.deficit => {
                        list.push_front(key);
                        return NextCost::Costs(cost);
                    }
                    NextCost::Costs(_) => {
                        lane.deficit = lane.deficit.saturating_add(QUANTUM);
                        grows = true;
                        self.served_lanes.push_back(key);
                    }
                    NextCost::TooLarge => {
                        too_large = true;
                        self.served_lanes.push_back(key);
                    }
                    NextCost::Empty if is_fresh => self.served_lanes.push_back(key),
                    NextCost::Empty => drop(self.lanes.remove(&key)),
                }
            }
            if !grows {
                return if too_large { NextCost::TooLarge } else { NextCost::Empty };
            }
        }
    }

    fn take(&mut self) -> Option<L::Item> {
        let key = self.new_lanes.front().or(self.served_lanes.front())?;
        let lane = self.lanes.get_mut(key)?;
        if let NextCost::Costs(cost) = lane.queue.next_cost(usize::MAX) {
            lane.deficit = lane.deficit.saturating_sub(cost);
        }
        lane.queue.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TwoLevels = RoundRobin<&'static str, RoundRobin<&'static str, Fifo<u32>>>;

    fn add(queue: &mut TwoLevels, source: &'static str, channel: &'static str, cost: usize, item: u32) {
        queue.queue(&source).queue(&channel).push(cost, item);
    }

    fn drain(queue: &mut TwoLevels, most: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        while let NextCost::Costs(_) = queue.next_cost(most) {
            taken.extend(queue.take());
        }
        taken
    }

    #[test]
    fn a_small_batch_passes_all_that_another_source_has_waiting() {
        let mut queue = TwoLevels::default();
        for n in 0..40 {
            add(&mut queue, "bulk", "a", 30 << 20, n);
        }
        assert!(matches!(queue.next_cost(usize::MAX), NextCost::Costs(_)));
        assert_eq!(queue.take(), Some(0));
        add(&mut queue, "small", "b", 300, 100);
        assert!(matches!(queue.next_cost(usize::MAX), NextCost::Costs(300)));
        assert_eq!(queue.take(), Some(100));
        // It comes again at once, and is not behind all of the others either.
        add(&mut queue, "small", "b", 300, 101);
        let order = drain(&mut queue, usize::MAX);
        assert!(order.iter().position(|item| *item == 101) <= Some(1), "{order:?}");
        assert_eq!(order.iter().filter(|item| **item < 100).copied().collect::<Vec<_>>(), (1..40).collect::<Vec<_>>());
    }

    #[test]
    fn a_small_batch_passes_what_its_own_source_has_waiting_on_another_channel_but_not_on_the_same() {
        let mut queue = TwoLevels::default();
        for n in 0..5 {
            add(&mut queue, "one", "a", 1 << 20, n);
        }
        add(&mut queue, "one", "a", 100, 5);
        add(&mut queue, "one", "b", 100, 6);
        let order = drain(&mut queue, usize::MAX);
        assert_eq!(order.first(), Some(&6));
        assert_eq!(order.iter().filter(|item| **item != 6).copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn sources_with_much_to_do_get_about_the_same_bytes() {
        let mut queue = TwoLevels::default();
        for n in 0..640 {
            add(&mut queue, "pieces", "a", 16 << 10, n);
        }
        for n in 0..10 {
            add(&mut queue, "blocks", "b", 1 << 20, 1_000 + n);
        }
        let half = drain(&mut queue, usize::MAX).into_iter().take(320).collect::<Vec<_>>();
        let blocks = half.iter().filter(|item| **item >= 1_000).count();
        assert!((3..=6).contains(&blocks), "{blocks} MiB beside {} of 16 KiB", half.len() - blocks);
    }

    #[test]
    fn somebody_who_always_comes_back_at_once_does_not_starve_the_others() {
        let mut queue = TwoLevels::default();
        add(&mut queue, "waits", "a", 4 << 20, 0);
        for n in 1..200 {
            add(&mut queue, "again", "b", 60 << 10, n);
            assert!(matches!(queue.next_cost(usize::MAX), NextCost::Costs(_)));
            if queue.take() == Some(0) {
                return;
            }
        }
        panic!("never served");
    }

    #[test]
    fn what_is_too_large_now_is_passed_by_others_and_keeps_its_place() {
        let mut queue = TwoLevels::default();
        add(&mut queue, "large", "a", 5 << 20, 1);
        add(&mut queue, "large", "a", 10, 2);
        add(&mut queue, "small", "b", 10, 3);
        assert_eq!(drain(&mut queue, 1 << 20), [3]);
        assert_eq!(queue.next_cost(1 << 20), NextCost::TooLarge);
        assert_eq!(drain(&mut queue, usize::MAX), [1, 2]);
        assert_eq!(queue.next_cost(usize::MAX), NextCost::Empty);
        assert!(queue.lanes.is_empty() && queue.served_lanes.is_empty() && queue.new_lanes.is_empty());
    }
}
