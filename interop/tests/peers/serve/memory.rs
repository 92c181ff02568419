//! What a client knows: each channel that it follows, as the official reducers make it, and every action that came.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use ahp::reducers::{
    ReduceOutcome, apply_action_to_changeset, apply_action_to_chat, apply_action_to_root, apply_action_to_session,
    apply_action_to_terminal,
};
use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::state::{Snapshot, SnapshotState};
use serde_json::Value;
use tokio::sync::watch;

use super::guest::{Guest, chat_of};
use crate::soon;

/// What a client knows. It outlives the connection. Whoever looks into it fails if the official reducers have refused an
/// action.
pub(crate) struct Memory {
    known: Mutex<Known>,
    /// Changes with each event.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Known {
    channels: HashMap<String, Channel>,
    /// The highest seq that was seen.
    seen: i64,
    /// Every action that came, live or in a replay: its seq, its channel, its type.
    heard: Vec<(u64, String, String)>,
    /// The actions that the official reducers did not apply, each with what they said of it.
    refused: Vec<String>,
}

/// A channel that is followed.
#[derive(Default)]
struct Channel {
    state: Option<SnapshotState>,
    seq: i64,
    /// What came before the snapshot was here.
    early: Vec<ActionEnvelope>,
}

impl Memory {
    /// Of one who knows nothing, but where the host was.
    pub(crate) fn after(seen: i64) -> Self {
        let known = Known { seen, ..Known::default() };
        Self { known: Mutex::new(known), changed: watch::Sender::new(0) }
    }

    /// Asserts that a channel is to us what it is to one who comes now.
    pub(crate) async fn assert_as_fresh(&self, other: &Guest, channel: &str) {
        let mut sides = (Value::Null, Value::Null);
        let is_same = async {
            loop {
                other.follow(channel).await;
                soon(other.client.unsubscribe(channel.into())).await.unwrap();
                sides = (self.state(channel), other.memory.state(channel));
                if sides.0 == sides.1 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let is_same = tokio::time::timeout(Duration::from_secs(20), is_same).await.is_ok();
        let (ours, fresh) = (sides.0.to_string(), sides.1.to_string());
        assert!(is_same, "{channel}: {:.2000}\n{:.2000}", ours, fresh);
        println!("{channel}: as a fresh snapshot, {} bytes", fresh.len());
    }

    /// Waits until a channel is so.
    pub(crate) async fn until<T>(&self, channel: &str, is: impl Fn(&SnapshotState) -> Option<T>) -> T {
        self.until_within(Duration::from_secs(60), channel, is).await
    }

    /// The same, if it may take longer or must be sooner.
    pub(crate) async fn until_within<T>(
        &self,
        time: Duration,
        channel: &str,
        is: impl Fn(&SnapshotState) -> Option<T>,
    ) -> T {
        let mut changed = self.changed.subscribe();
        let wait = async {
            loop {
                changed.borrow_and_update();
                let found = self.known().channels.get(channel).and_then(|it| is(it.state.as_ref()?));
                if let Some(found) = found {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(time, wait).await {
            Ok(found) => found,
            Err(_) => panic!("not in time: {channel} is {:.4000}", self.state(channel).to_string()),
        }
    }

    /// Waits for the end of a turn.
    pub(crate) async fn turn(&self, chat: &str, id: &str) -> Value {
        let find = |state: &SnapshotState| chat_of(state).turns.iter().find(|turn| turn.id == id).cloned();
        serde_json::to_value(self.until(chat, find).await).unwrap()
    }

    /// A channel's state.
    pub(crate) fn state(&self, channel: &str) -> Value {
        serde_json::to_value(&self.known().channels[channel].state).unwrap()
    }

    /// The highest seq, and the channels.
    pub(crate) fn cursor(&self) -> (i64, Vec<String>) {
        let known = self.known();
        (known.seen, known.channels.keys().cloned().collect())
    }

    /// All actions of a channel that came: seq and type.
    pub(crate) fn heard(&self, channel: &str) -> Vec<(u64, String)> {
        let known = self.known();
        known.heard.iter().filter(|heard| heard.1 == channel).map(|heard| (heard.0, heard.2.clone())).collect()
    }

    /// Asserts that what came was in order, and nothing came twice.
    pub(crate) fn assert_in_order(&self) {
        let known = self.known();
        let wrong: Vec<_> = known.heard.windows(2).filter(|pair| pair[1].0 <= pair[0].0).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        println!("{} actions heard, each once, in order", known.heard.len());
    }

    pub(crate) fn hear(&self, action: ActionEnvelope) {
        let mut known = self.known.lock().unwrap();
        let kind = serde_json::to_value(&action.action).unwrap()["type"].as_str().unwrap().to_owned();
        known.heard.push((action.server_seq, action.channel.clone(), kind));
        known.seen = known.seen.max(action.server_seq.try_into().unwrap());
        let refused = known.channels.entry(action.channel.clone()).or_default().apply(action);
        known.refused.extend(refused);
        drop(known);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn take(&self, snapshot: Snapshot) {
        let mut known = self.known.lock().unwrap();
        let Known { channels, refused, .. } = &mut *known;
        let channel = channels.entry(snapshot.resource).or_default();
        if channel.state.is_none() || channel.seq <= snapshot.from_seq {
            channel.state = Some(snapshot.state);
            channel.seq = snapshot.from_seq;
        }
        refused.extend(std::mem::take(&mut channel.early).into_iter().filter_map(|action| channel.apply(action)));
        drop(known);
        self.changed.send_modify(|count| *count += 1);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        let known = self.known.lock().unwrap();
        assert!(known.refused.is_empty(), "the official reducers refuse: {:#?}", known.refused);
        known
    }
}

impl Channel {
    /// Applies an action; returns what the official reducers said of it if they did not take it.
    fn apply(&mut self, envelope: ActionEnvelope) -> Option<String> {
        let seq = i64::try_from(envelope.server_seq).unwrap();
        let Some(state) = &mut self.state else {
            self.early.push(envelope);
            return None;
        };
        if seq <= self.seq || envelope.rejection_reason.is_some() {
            return None;
        }
        self.seq = seq;
        let action = &envelope.action;
        let outcome = match state {
            SnapshotState::Session(state) => apply_action_to_session(state, action),
            SnapshotState::Chat(state) => apply_action_to_chat(state, action),
            SnapshotState::Terminal(state) => apply_action_to_terminal(state, action),
            SnapshotState::Changeset(state) => apply_action_to_changeset(state, action),
            SnapshotState::Root(state) => apply_action_to_root(state, action),
            other => panic!("an action for {other:?}"),
        };
        match outcome {
            ReduceOutcome::Applied => None,
            // What is typed changes no state, whatever it is.
            ReduceOutcome::NoOp if matches!(action, StateAction::TerminalInput(_)) => None,
            outcome => Some(format!("{outcome:?}: seq {seq} of {}: {:.400}", envelope.channel, format!("{action:?}"))),
        }
    }
}
