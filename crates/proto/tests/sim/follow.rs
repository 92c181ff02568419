//! What a client made of the log: each action applied once, in order, and the same state in the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::sim::ledger::{Digest, Ledger};
use crate::sim::log::{Log, State};

/// One client's view of the channels that it follows.
#[derive(Debug)]
pub(crate) struct Follower {
    name: String,
    channels: BTreeMap<String, View>,
}

#[derive(Debug, Default)]
struct View {
    /// Seqs of this channel that were applied or came in a snapshot.
    covered: BTreeSet<u64>,
    /// Everything up to here came in a snapshot.
    floor: u64,
    /// Seqs of this channel that were passed over.
    skipped: BTreeSet<u64>,
    state: State,
}

impl Follower {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), channels: BTreeMap::new() }
    }

    pub(crate) fn follows(&self, channel: &str) -> bool {
        self.channels.contains_key(channel)
    }

    pub(crate) fn channels(&self) -> impl Iterator<Item = &str> {
        self.channels.keys().map(String::as_str)
    }

    /// The client no longer follows a channel.
    pub(crate) fn leave(&mut self, channel: &str) {
        self.channels.remove(channel);
    }

    /// The client applies an action.
    pub(crate) fn apply(&mut self, channel: &str, seq: u64, digest: Digest, log: &Log, ledger: &mut Ledger) {
        let about = format!("{}: {channel} action {seq}", self.name);
        let Some(view) = self.channels.get_mut(channel) else {
            return ledger.reordered(format!("{about} came before its channel's snapshot"));
        };
        let last = view.covered.last().copied().unwrap_or(0).max(view.floor);
        if seq <= view.floor || !view.covered.insert(seq) {
            ledger.duplicated(format!("{about} was applied again"));
        } else if seq < last {
            ledger.reordered(format!("{about} was applied after {last}"));
        }
        for gap in log.after(last).take_while(|action| action.seq < seq).filter(|action| action.channel == channel) {
            view.skipped.insert(gap.seq);
            ledger.lost(format!("{about} was applied without {} before it", gap.seq));
        }
        let real = log.get(seq).filter(|action| action.channel == channel);
        if real.is_none_or(|action| action.digest != digest) {
            ledger.altered(format!("{about} is not what the host logged"));
        }
        view.state.apply(&digest);
    }

    /// The client takes a snapshot in place of what it had.
    pub(crate) fn snapshot(&mut self, channel: &str, from: u64, state: State, log: &Log, ledger: &mut Ledger) {
        let view = self.channels.entry(channel.into()).or_default();
        let last = view.covered.last().copied().unwrap_or(0).max(view.floor);
        if from < last && log.state(channel, from) != log.state(channel, last) {
            ledger.reordered(format!("{}: {channel} went back from {last} to a snapshot of {from}", self.name));
        }
        if log.state(channel, from) != state {
            ledger.altered(format!("{}: {channel} snapshot of {from} is not the host's state", self.name));
        }
        view.floor = view.floor.max(from);
        view.state = state;
    }

    /// The world is at rest: everything on the client's channels has been applied, and the states are equal.
    pub(crate) fn settle(&self, log: &Log, ledger: &mut Ledger) {
        for (channel, view) in &self.channels {
            let missed = log.after(view.floor).filter(|action| action.channel == *channel);
            let missed: Vec<_> = missed
                .filter(|action| !view.covered.contains(&action.seq) && !view.skipped.contains(&action.seq))
                .collect();
            for action in &missed {
                ledger.lost(format!("{}: {channel} action {} was never applied", self.name, action.seq));
            }
            let clean = ledger.counts.is_clean();
            if clean && view.state != log.state(channel, log.seq) {
                ledger.altered(format!("{}: {channel} has another state than the host", self.name));
            }
        }
    }
}
