//! The seq from which a client may resume: messages get ordinals as they begin to arrive, and settle in that order.

use std::collections::{BTreeMap, HashMap};

/// Follows messages from their first frame to their delivery.
///
/// *Settled* is everything before the first message that is not delivered. A message that expired is never delivered, so nothing
/// after it settles.
#[derive(Debug, Default)]
pub(crate) struct Cursor<T> {
    next: u64,
    /// Messages that have begun and are not delivered, with what the caller stores about each.
    open: BTreeMap<u64, T>,
    /// For each message that blocks others, the highest seq that was delivered after it. That seq settles together with it.
    waiting: BTreeMap<u64, u64>,
    seq: Option<u64>,
}

impl<T> Cursor<T> {
    /// A message begins. Returns its ordinal.
    pub(crate) fn begin(&mut self, about: T) -> u64 {
        let ordinal = self.next;
        self.next = self.next.saturating_add(1);
        self.open.insert(ordinal, about);
        ordinal
    }

    /// What the caller stores about a message that is not delivered.
    pub(crate) fn get_mut(&mut self, ordinal: u64) -> Option<&mut T> {
        self.open.get_mut(&ordinal)
    }

    /// A message was delivered; `seq` is its seq, if it has one.
    pub(crate) fn deliver(&mut self, ordinal: u64, seq: Option<u64>) {
        if self.open.remove(&ordinal).is_some() {
            let behind = self.waiting.remove(&ordinal);
            self.note(ordinal, seq.max(behind));
        }
    }

    /// A delivered message turns out to carry `seq`.
    pub(crate) fn note(&mut self, ordinal: u64, seq: Option<u64>) {
        let Some(seq) = seq else { return };
        match self.open.range(..ordinal).next_back() {
            Some((blocker, _)) => {
                let highest = self.waiting.entry(*blocker).or_default();
                *highest = seq.max(*highest);
            }
            None => self.seq = self.seq.max(Some(seq)),
        }
    }

    /// The first ordinal that is not settled.
    pub(crate) fn settled(&self) -> u64 {
        self.open.keys().next().copied().unwrap_or(self.next)
    }

    /// The highest seq among settled messages, from which the client may resume.
    pub(crate) const fn seq(&self) -> Option<u64> {
        self.seq
    }
}

/// The highest seq that was applied to each channel, so that nothing is applied twice.
///
/// For applications that resume from a settled cursor: the host repeats what was delivered past the cursor.
#[derive(Debug, Clone, Default)]
pub struct Applied(HashMap<Box<str>, u64>);

impl Applied {
    /// Returns whether to apply the action with this seq. If so, it counts as applied from now on.
    pub fn admit(&mut self, channel: &str, seq: u64) -> bool {
        match self.0.get_mut(channel) {
            Some(applied) if seq <= *applied => return false,
            Some(applied) => *applied = seq,
            None => drop(self.0.insert(channel.into(), seq)),
        }
        true
    }

    /// A snapshot of `channel` holds everything up to `from_seq`. Returns whether to use it: one that is older than what was applied
    /// would undo some of that.
    pub fn snapshot(&mut self, channel: &str, from_seq: u64) -> bool {
        let newest = self.0.get(channel).is_none_or(|applied| *applied <= from_seq);
        if newest {
            self.0.insert(channel.into(), from_seq);
        }
        newest
    }

    /// Forgets a channel that is no longer followed.
    pub fn forget(&mut self, channel: &str) {
        self.0.remove(channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(count: u64) -> Cursor<()> {
        let mut cursor = Cursor::default();
        (0..count).for_each(|ordinal| assert_eq!(cursor.begin(()), ordinal));
        cursor
    }

    #[test]
    fn a_seq_settles_when_everything_before_it_is_delivered() {
        let mut cursor = begun(4);
        cursor.deliver(2, Some(7));
        assert_eq!((cursor.settled(), cursor.seq()), (0, None));
        cursor.deliver(0, Some(5));
        assert_eq!((cursor.settled(), cursor.seq()), (1, Some(5)));
        cursor.deliver(3, Some(8));
        assert_eq!((cursor.settled(), cursor.seq()), (1, Some(5)));
        cursor.deliver(1, None);
        assert_eq!((cursor.settled(), cursor.seq()), (4, Some(8)));
    }

    #[test]
    fn a_message_that_never_comes_pins_the_cursor_for_ever() {
        let mut cursor = begun(4);
        cursor.deliver(3, Some(9));
        cursor.deliver(0, Some(5));
        cursor.deliver(1, Some(6));
        assert_eq!((cursor.settled(), cursor.seq()), (2, Some(6)));
        let later = cursor.begin(());
        cursor.deliver(later, Some(10));
        assert_eq!((cursor.settled(), cursor.seq()), (2, Some(6)));
        assert_eq!((cursor.waiting.len(), cursor.open.len()), (1, 1));
    }

    #[test]
    fn a_seq_noted_late_settles_like_any_other() {
        let mut cursor = begun(2);
        cursor.deliver(1, None);
        cursor.note(1, Some(40));
        assert_eq!(cursor.seq(), None);
        cursor.deliver(0, None);
        assert_eq!(cursor.seq(), Some(40));
        cursor.note(1, Some(30));
        assert_eq!(cursor.seq(), Some(40));
    }

    #[test]
    fn many_deliveries_behind_one_blocker_cost_one_entry() {
        let mut cursor = begun(1000);
        (1..1000).for_each(|ordinal| cursor.deliver(ordinal, Some(ordinal)));
        assert_eq!((cursor.waiting.len(), cursor.open.len()), (1, 1));
        cursor.deliver(0, None);
        assert_eq!((cursor.seq(), cursor.settled()), (Some(999), 1000));
    }

    #[test]
    fn nothing_is_applied_twice_and_a_snapshot_counts() {
        let mut applied = Applied::default();
        assert!(applied.admit("a", 5) && !applied.admit("a", 5) && !applied.admit("a", 4) && applied.admit("b", 4));
        assert!(applied.snapshot("a", 9) && !applied.admit("a", 8) && applied.admit("a", 10));
        assert!(!applied.snapshot("a", 9) && !applied.admit("a", 10));
        applied.forget("a");
        assert!(applied.admit("a", 1));
    }
}
