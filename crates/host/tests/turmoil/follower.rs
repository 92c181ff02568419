//! What somebody was told, step by step, and what the official reducers make of it.

use std::collections::BTreeMap;

use ahp::reducers::{apply_action_to_annotations, apply_action_to_chat, apply_action_to_root, apply_action_to_session};
use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::sim::ledger::{Digest, digest};

/// What somebody was told of the channels that they follow.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    pub(crate) channels: BTreeMap<String, Followed>,
}

/// What somebody was told of one channel.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) steps: Vec<Step>,
    pub(crate) state: SnapshotState,
    /// The conversation began anew, and no state has come yet.
    pub(crate) is_void: bool,
}

/// One thing that somebody was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A state that holds everything up to this seq.
    ChannelSnapshot(u64),
    Action(u64, Digest),
}

/// An action's envelope.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    server_seq: u64,
    channel: String,
    action: StateAction,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChannelSnapshot<'a> {
    resource: String,
    from_seq: u64,
    #[serde(borrow)]
    state: &'a RawValue,
}

impl Follower {
    /// A state comes: its seq.
    pub(crate) fn snapshot(&mut self, text: &[u8]) -> u64 {
        let ChannelSnapshot { resource, from_seq, state } = serde_json::from_slice(text).unwrap();
        let (state, step) = (decode(&resource, state.get()), Step::ChannelSnapshot(from_seq));
        let mut steps = self.channels.remove(&resource).map(|before| before.steps).unwrap_or_default();
        steps.push(step);
        self.channels.insert(resource, Followed { steps, state, is_void: false });
        from_seq
    }

    /// An action comes.
    pub(crate) fn action(&mut self, text: &[u8]) -> Result<(), String> {
        let Envelope { server_seq, channel, action } = serde_json::from_slice(text).unwrap();
        let Some(followed) = self.channels.get_mut(&channel) else {
            return Err(format!("{server_seq} comes on {channel}, which nobody follows"));
        };
        followed.steps.push(Step::Action(server_seq, digest(&body(server_seq, text))));
        reduce(&mut followed.state, &action);
        Ok(())
    }

    /// The seq up to which everything of a channel is known.
    pub(crate) fn position(&self, channel: &str) -> Option<u64> {
        let last = self.channels.get(channel)?.steps.last()?;
        Some(match last {
            Step::ChannelSnapshot(seq) | Step::Action(seq, _) => *seq,
        })
    }
}

/// What the log has of an action.
fn body(seq: u64, envelope: &[u8]) -> Vec<u8> {
    let front = format!(r#"{{"serverSeq":{seq},"#);
    let rest = envelope.strip_prefix(front.as_bytes()).unwrap_or_default();
    [b"{", rest].concat()
}

/// A state from its text, by the kind of its channel.
pub(crate) fn decode(channel: &str, text: &str) -> SnapshotState {
    if channel.ends_with("/annotations") {
        SnapshotState::Annotations(serde_json::from_str(text).unwrap())
    } else if channel.starts_with("ahp-chat") {
        SnapshotState::Chat(serde_json::from_str(text).unwrap())
    } else if channel.starts_with("ahp-session") {
        SnapshotState::Session(serde_json::from_str(text).unwrap())
    } else {
        SnapshotState::Root(serde_json::from_str(text).unwrap())
    }
}

/// What the official reducers make of an action.
pub(crate) fn reduce(state: &mut SnapshotState, action: &StateAction) {
    match state {
        SnapshotState::Annotations(state) => drop(apply_action_to_annotations(state, action)),
        SnapshotState::Chat(state) => drop(apply_action_to_chat(state, action)),
        SnapshotState::Session(state) => drop(apply_action_to_session(state, action)),
        SnapshotState::Root(state) => drop(apply_action_to_root(state, action)),
        _ => panic!("no channel of this world"),
    }
}

/// A state as JSON. What a window leaves out of a chat is not compared: how many turns there are, is said beside it.
pub(crate) fn comparable(state: &SnapshotState) -> (Value, Vec<Value>) {
    let mut value = serde_json::to_value(state).unwrap();
    let turns = value.get_mut("turns").map(Value::take).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("turnsNextCursor");
    }
    (value, turns.as_array().cloned().unwrap_or_default())
}
