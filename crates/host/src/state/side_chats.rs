//! Which turns of a chat its side chats know: rows of the chat, and copies of rows that the chat has lost.
//!
//! A row is copied only when the chat loses it; until then both read the same row. So the turns that a side chat knows cost
//! nothing at first, and neither a truncation nor the end of the chat removes any of them.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What all side chats of a chat know. Field names are part of the saved state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct SideChats {
    /// By the URI of the side chat.
    known: BTreeMap<String, KnownTurns>,
    /// The row number of the next copy. Copies have lower numbers than the rows of the chat.
    next: u64,
}

/// The turns that one side chat knows: rows of the chat, then copies.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KnownTurns {
    shared: Range<u64>,
    copies: Vec<Range<u64>>,
    /// Whether the last turn was still active when the side chat was made.
    pub(super) is_unfinished: bool,
}

impl SideChats {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.next == 0
    }

    /// The number of the next copy.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn get(&self, side: &str) -> Option<&KnownTurns> {
        self.known.get(side)
    }

    /// Records that a side chat knows these rows of the chat. If the last turn is still active, it comes after them as a copy,
    /// whose row number is returned.
    pub(super) fn insert(&mut self, side: String, shared: Range<u64>, is_unfinished: bool) -> Option<u64> {
        let number = is_unfinished.then(|| self.take(1));
        let copies = number.map(|number| number..number + 1).into_iter().collect();
        self.known.insert(side, KnownTurns { shared, copies, is_unfinished });
        number
    }

    /// Removes a side chat; returns the numbers of copies that no other side chat knows.
    pub(super) fn remove(&mut self, side: &str) -> Vec<u64> {
        let Some(gone) = self.known.remove(side) else { return Vec::new() };
        let others = self.known.values().flat_map(|known| &known.copies);
        gone.copies
            .into_iter()
            .flatten()
            .filter(|number| !others.clone().any(|copies| copies.contains(number)))
            .collect()
    }

    /// The rows from `end` on that some side chat knows.
    pub(super) fn beyond(&self, end: u64) -> Option<Range<u64>> {
        let theirs = self.known.values().filter_map(|known| known.beyond(end));
        theirs.reduce(|all, theirs| all.start.min(theirs.start)..all.end.max(theirs.end))
    }

    /// Records that the chat loses these rows and that they are copied; returns the number of the first copy.
    pub(super) fn copied(&mut self, lost: &Range<u64>) -> u64 {
        let first = self.take(lost.end - lost.start);
        for known in self.known.values_mut() {
            if let Some(theirs) = known.beyond(lost.start) {
                known.copies.insert(0, first + (theirs.start - lost.start)..first + (theirs.end - lost.start));
                known.shared.end = theirs.start;
            }
        }
        first
    }

    /// The side chats that know any row from `end` on.
    pub(super) fn side_chats_with(&self, end: u64) -> Vec<String> {
        let known = self.known.iter().filter(|(_, known)| known.beyond(end).is_some());
        known.map(|(side, _)| side.clone()).collect()
    }

    fn take(&mut self, count: u64) -> u64 {
        let first = self.next;
        self.next += count;
        first
    }
}

impl KnownTurns {
    /// The numbers of all rows, in order.
    pub(super) fn rows(&self) -> Vec<Range<u64>> {
        [&self.shared].into_iter().chain(&self.copies).filter(|rows| !rows.is_empty()).cloned().collect()
    }

    fn beyond(&self, end: u64) -> Option<Range<u64>> {
        let theirs = self.shared.start.max(end)..self.shared.end;
        (!theirs.is_empty()).then_some(theirs)
    }
}
