//! The log at the end: the actions of each channel, the state that the reducers make of them, and who dispatched them.

use std::collections::BTreeMap;

use ahp_types::state::SnapshotState;
use breakbulk_host::log::Entry;
use serde_json::Value;

use crate::sim::actions;
use crate::sim::follower::{decode, reduce};
use crate::sim::ledger::{Digest, digest};

/// What the log says.
#[derive(Debug, Default)]
pub(crate) struct FinalLog {
    pub(crate) channels: BTreeMap<String, Channel>,
    /// Actions of clients, in order: whose, their number, and the digest of their text.
    pub(crate) dispatched: Vec<(String, u64, Digest)>,
}

/// What the log says of a channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) actions: Vec<Action>,
    pub(crate) state: SnapshotState,
}

/// An action in the log.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) seq: u64,
    pub(crate) digest: Digest,
    /// It may reach somebody as one with others.
    pub(crate) is_delta: bool,
}

impl FinalLog {
    pub(crate) fn read(entries: &[Entry]) -> Self {
        let mut truth = Self::default();
        for entry in entries {
            truth.add(entry);
        }
        truth
    }

    fn add(&mut self, entry: &Entry) {
        let body: Value = serde_json::from_slice(&entry.body).unwrap();
        if let Some(initial) = body.get("initial") {
            let state = decode(&entry.channel, &initial["state"].to_string());
            self.channels.insert(entry.channel.to_string(), Channel { actions: Vec::new(), state });
        }
        let Some(action) = body.get("action") else { return };
        if let (Some(client), Some(number)) =
            (body["origin"]["clientId"].as_str(), body["origin"]["clientSeq"].as_u64())
        {
            let text = digest(actions::text_of(action).unwrap_or_default().as_bytes());
            self.dispatched.push((client.to_owned(), number, text));
        }
        let channel = self.channels.get_mut(&*entry.channel).expect("a channel begins with its state");
        // Those that a host makes one of, for who would rather wait a little.
        let kinds = ["chat/delta", "chat/reasoning"];
        let is_delta = action["type"].as_str().is_some_and(|kind| kinds.contains(&kind));
        channel.actions.push(Action { seq: entry.seq, digest: digest(&entry.body), is_delta });
        reduce(&mut channel.state, &serde_json::from_value(action.clone()).unwrap());
    }
}
