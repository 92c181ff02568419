//! Where terminals, changesets and watches append their actions.

use std::collections::VecDeque;

use ahp_types::actions::StateAction;

use crate::log::{AppendError, BoxFuture, Seq};

/// Appends actions to the log.
pub trait ActionSink: Send + Sync + 'static {
    /// Appends these actions, each to its channel, in this order: all or none. Resolves to their seqs when they are
    /// durable.
    fn append_actions<'a>(
        &'a self,
        actions: Vec<(String, StateAction)>,
    ) -> BoxFuture<'a, Result<Vec<Seq>, AppendError>>;

    /// Lets the log drop the channel's actions up to this seq: the state that they made is enough. By default all are
    /// kept.
    fn trim<'a>(&'a self, _channel: &'a str, _upto: Seq) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Decides when the oldest actions of a busy channel are trimmed: always one or two steps of the newest bytes are kept, so
/// a follower that is less than a step behind misses nothing.
#[derive(Debug, Default)]
pub(crate) struct TrimSchedule {
    bytes_since_mark: u64,
    /// The last seq of each step that is still in the log.
    marks: VecDeque<Seq>,
}

/// What an entry takes in the log beside its text, in bytes.
const ENTRY_OVERHEAD: usize = 256;

impl TrimSchedule {
    /// Counts a logged action with this many bytes of text; returns the seq up to which the channel can be trimmed now.
    pub(crate) fn add(&mut self, seq: Seq, bytes: usize, step: u64) -> Option<Seq> {
        let bytes = bytes.saturating_add(ENTRY_OVERHEAD);
        self.bytes_since_mark = self.bytes_since_mark.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        if self.bytes_since_mark < step {
            return None;
        }
        self.bytes_since_mark = 0;
        self.marks.push_back(seq);
        (self.marks.len() > 1).then(|| self.marks.pop_front()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_one_and_two_steps_old_may_go() {
        let mut schedule = TrimSchedule::default();
        let trimmed: Vec<_> =
            (1..=40).filter_map(|seq| Some((seq, schedule.add(seq, 1000 - ENTRY_OVERHEAD, 10_000)?))).collect();
        assert_eq!(trimmed, [(20, 10), (30, 20), (40, 30)]);
    }
}
