//! The truth: what the host's log says happened on each channel.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::sim::ledger::{Digest, digest};

/// One action.
#[derive(Debug, Clone)]
pub(crate) struct Action {
    pub(crate) seq: u64,
    pub(crate) channel: String,
    pub(crate) text: String,
    pub(crate) digest: Digest,
}

impl Action {
    /// The action's envelope; with `by_reference`, its text is only named.
    pub(crate) fn envelope(&self, by_reference: bool) -> String {
        let Self { seq, channel, text, digest } = self;
        let body = if by_reference {
            format!(r#"{{"type":"ref","text":"{}"}}"#, hex(digest))
        } else {
            format!(r#"{{"type":"say","text":"{text}"}}"#)
        };
        format!(r#"{{"channel":"{channel}","action":{body},"serverSeq":{seq},"origin":null}}"#)
    }
}

/// What all actions of a channel up to some point come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) count: u64,
    pub(crate) sum: Digest,
}

impl State {
    pub(crate) fn apply(&mut self, action: &Digest) {
        self.count += 1;
        self.sum = Sha256::new().chain_update(self.sum).chain_update(action).finalize().into();
    }
}

/// All actions, and the state after each.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) seq: u64,
    actions: BTreeMap<u64, Action>,
    states: BTreeMap<(String, u64), State>,
}

impl Log {
    /// Appends an action, `gap` numbers after the last.
    pub(crate) fn append(&mut self, gap: u64, channel: &str, text: String) {
        self.seq += gap;
        let digest = digest(text.as_bytes());
        let mut state = self.state(channel, self.seq);
        state.apply(&digest);
        self.states.insert((channel.into(), self.seq), state);
        self.actions.insert(self.seq, Action { seq: self.seq, channel: channel.into(), text, digest });
    }

    /// The state of a channel after everything up to `seq`.
    pub(crate) fn state(&self, channel: &str, seq: u64) -> State {
        let upto = (channel.to_owned(), 0)..=(channel.to_owned(), seq);
        self.states.range(upto).next_back().map(|(_, state)| *state).unwrap_or_default()
    }

    pub(crate) fn get(&self, seq: u64) -> Option<&Action> {
        self.actions.get(&seq)
    }

    /// All actions after `seq`.
    pub(crate) fn after(&self, seq: u64) -> impl Iterator<Item = &Action> {
        self.actions.range(seq.saturating_add(1)..).map(|(_, action)| action)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Digest> {
    let mut bytes = [0; 32];
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}
