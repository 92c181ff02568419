//! Where rooms put their actions.

use std::collections::VecDeque;

use ahp_types::actions::StateAction;

use crate::log::{AppendError, BoxFuture, Seq};

/// Puts actions into the log. All or none; answers when they are durable.
pub trait Act: Send + Sync + 'static {
    /// Appends these actions, each to its channel, in this order; answers with their seqs.
    fn act<'a>(&'a self, actions: Vec<(String, StateAction)>) -> BoxFuture<'a, Result<Vec<Seq>, AppendError>>;

    /// The channel's actions up to this seq are not needed any more: what they made of it is. By default all are kept.
    fn trim<'a>(&'a self, _channel: &'a str, _upto: Seq) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Says when the oldest actions of a busy channel may go: of what it writes, the last one or two steps stay.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    since: u64,
    marks: VecDeque<Seq>,
}

/// What an action takes in the log beside its text.
const BESIDE: usize = 256;

impl Ledger {
    /// An action with so much text is in the log; what may go now, if something may. Those who follow the channel and are
    /// less than a step behind lose nothing.
    pub(crate) fn add(&mut self, seq: Seq, bytes: usize, step: u64) -> Option<Seq> {
        let bytes = bytes.saturating_add(BESIDE);
        self.since = self.since.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        if self.since < step {
            return None;
        }
        self.since = 0;
        self.marks.push_back(seq);
        (self.marks.len() > 1).then(|| self.marks.pop_front()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_one_and_two_steps_old_may_go() {
        let mut ledger = Ledger::default();
        let gone: Vec<_> = (1..=40).filter_map(|seq| Some((seq, ledger.add(seq, 1000 - BESIDE, 10_000)?))).collect();
        assert_eq!(gone, [(20, 10), (30, 20), (40, 30)]);
    }
}
