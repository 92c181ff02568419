//! A client that only listens, and strictly: what comes must go on exactly where it was, over all crashes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ahp::reducers::{apply_action_to_annotations, apply_action_to_chat, apply_action_to_root, apply_action_to_session};
use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;
use breakbulk::{AnyMachine, BoxLink, Dialect, Driver, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Event, Input, Ticket};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::host::HostAccess;
use crate::reading::{Entry, Trail};

/// How long a host may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One connection, in raw messages.
pub(crate) struct Raw {
    driver: Driver<BoxLink, AnyMachine>,
    ids: u64,
    backlog: VecDeque<String>,
    /// Why it ended.
    end: Option<String>,
}

#[derive(Deserialize)]
struct Wire<'a> {
    id: Option<u64>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<Value>,
}

impl Raw {
    /// `None` if there is no host.
    pub(crate) async fn open(access: &HostAccess) -> Option<Self> {
        let link = access.open().await.ok()?;
        let machine =
            Setup::new(Dialect::Ahp, Role::Client, access.limits()).machine(Budget::default().account(Some("host")));
        Some(Self { driver: Driver::new(link, machine.unwrap()), ids: 0, backlog: VecDeque::new(), end: None })
    }

    /// The result of a request; `None` if the host died.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Option<Result<String, String>> {
        self.ids += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params});
        self.driver.handle(Input::send(Ticket(self.ids), message.to_string()));
        loop {
            let text = self.fresh().await?;
            let wire: Wire = serde_json::from_str(&text).unwrap();
            if wire.method.is_none() && wire.id == Some(self.ids) {
                let result = wire.result.map_or("null", RawValue::get).to_owned();
                return Some(wire.error.map_or(Ok(result), |error| Err(format!("{method}: {error}"))));
            }
            self.backlog.push_back(text);
        }
    }

    /// A channel's snapshot.
    pub(crate) async fn subscribe(&mut self, channel: &str) -> Option<Value> {
        let result = self.call("subscribe", json!({"channel": channel})).await?.unwrap();
        Some(serde_json::from_str::<Value>(&result).unwrap()["snapshot"].take())
    }

    pub(crate) async fn initialize(&mut self, id: &str, channels: &[String]) -> Option<Value> {
        let params = json!({"channel": "ahp-root://", "clientId": id, "protocolVersions": ["1.0.0"],
            "initialSubscriptions": channels});
        Some(serde_json::from_str(&self.call("initialize", params).await?.unwrap()).unwrap())
    }

    /// The envelopes of what was missed since this seq.
    pub(crate) async fn missed(
        &mut self,
        id: &str,
        seen: u64,
        channels: &[String],
    ) -> Option<Result<Vec<String>, String>> {
        #[derive(Deserialize)]
        struct Answer<'a> {
            #[serde(rename = "type")]
            kind: String,
            #[serde(borrow, default)]
            actions: Vec<&'a RawValue>,
            #[serde(default)]
            missing: Vec<String>,
        }
        let params =
            json!({"channel": "ahp-root://", "clientId": id, "lastSeenServerSeq": seen, "subscriptions": channels});
        let answer = match self.call("reconnect", params).await? {
            Ok(answer) => answer,
            Err(error) => return Some(Err(error)),
        };
        let result: Answer = serde_json::from_str(&answer).unwrap();
        if result.kind != "replay" || !result.missing.is_empty() {
            return Some(Err(format!(
                "{} since {seen} instead of a replay, missing {:?}",
                result.kind, result.missing
            )));
        }
        Some(Ok(result.actions.into_iter().map(|action| action.get().to_owned()).collect()))
    }

    /// The next envelope; `None` when the host is dead.
    async fn envelope(&mut self) -> Option<String> {
        loop {
            let text = match self.backlog.pop_front() {
                Some(text) => text,
                None => self.fresh().await?,
            };
            let wire: Wire = serde_json::from_str(&text).unwrap();
            if wire.method.as_deref() == Some("action") {
                return wire.params.map(|params| params.get().to_owned());
            }
        }
    }

    /// Why the connection ended.
    pub(crate) fn end(&self) -> String {
        let text = self.driver.close_text().unwrap_or_default();
        format!("the connection ended by itself: {} {text}", self.end.as_deref().unwrap_or_default())
    }

    async fn fresh(&mut self) -> Option<String> {
        loop {
            match self.driver.next().await? {
                Event::Message { message, .. } => return Some(String::from_utf8(message.to_bytes().to_vec()).unwrap()),
                Event::Closed(reason) => {
                    self.end = Some(format!("{reason:?}"));
                    return None;
                }
                _ => {}
            }
        }
    }
}

/// The seq of an envelope.
pub(crate) fn seq_of(envelope: &str) -> u64 {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Seq {
        server_seq: u64,
    }
    serde_json::from_str::<Seq>(envelope).unwrap().server_seq
}

/// Who listens: what it was shown, and what the official reducers make of it.
pub(crate) struct Follower {
    id: String,
    access: HostAccess,
    channels: Vec<String>,
    states: BTreeMap<String, SnapshotState>,
    seen: u64,
    pub(crate) trail: Trail,
}

impl Follower {
    /// Comes in for the first time.
    pub(crate) async fn new(id: &str, access: HostAccess, channels: &[String]) -> Self {
        let mut raw = Raw::open(&access).await.unwrap();
        let greeting = raw.initialize(id, channels).await.unwrap();
        let mut follower = Self {
            id: id.to_owned(),
            access,
            channels: channels.to_vec(),
            states: BTreeMap::new(),
            seen: greeting["serverSeq"].as_u64().unwrap(),
            trail: Trail::default(),
        };
        for snapshot in greeting["snapshots"].as_array().unwrap() {
            let channel = snapshot["resource"].as_str().unwrap();
            follower.states.insert(channel.to_owned(), decode(channel, snapshot["state"].clone()));
            follower.trail.snapshot(channel, snapshot["fromSeq"].as_u64().unwrap()).unwrap();
        }
        assert_eq!(follower.states.len(), channels.len());
        follower
    }

    /// Comes back and listens until the host dies, or until it has seen this seq. Says when it is back.
    pub(crate) async fn follow(&mut self, until: u64, back: oneshot::Sender<()>) -> Result<(), String> {
        let Some(mut raw) = Raw::open(&self.access).await else { return Ok(()) };
        let Some(missed) = raw.missed(&self.id, self.seen, &self.channels).await else { return Ok(()) };
        for envelope in missed? {
            self.take(&envelope)?;
        }
        // Nobody may wait for it.
        let _ = back.send(());
        while self.seen < until {
            let Some(envelope) = raw.envelope().await else { return Ok(()) };
            self.take(&envelope)?;
        }
        Ok(())
    }

    fn take(&mut self, envelope: &str) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Envelope {
            channel: String,
            action: StateAction,
        }
        let seq = seq_of(envelope);
        self.trail.action(&Entry::of_envelope(seq, envelope)?)?;
        self.seen = self.seen.max(seq);
        let Envelope { channel, action } = serde_json::from_str(envelope).map_err(|error| error.to_string())?;
        reduce(self.states.get_mut(&channel).ok_or("a channel that nobody follows")?, &action);
        Ok(())
    }

    /// Whether its states are those of fresh snapshots.
    pub(crate) async fn compare(&self) -> Result<(), String> {
        let mut raw = Raw::open(&self.access).await.unwrap();
        let greeting = raw.initialize("fresh", &self.channels).await.unwrap();
        let snapshots = greeting["snapshots"].as_array().unwrap();
        for (channel, state) in &self.states {
            let snapshot = snapshots.iter().find(|snapshot| snapshot["resource"] == **channel).unwrap();
            // Both ways through the official types: what they leave out, both leave out.
            let fresh = serde_json::to_value(decode(channel, snapshot["state"].clone())).unwrap();
            let ours = serde_json::to_value(state).unwrap();
            if fresh != ours {
                return Err(format!("{channel}: {}", difference("", &ours, &fresh)));
            }
        }
        Ok(())
    }
}

/// Where two values differ first.
fn difference(at: &str, ours: &Value, fresh: &Value) -> String {
    match (ours, fresh) {
        (Value::Object(one), Value::Object(other)) => {
            let keys = one.keys().chain(other.keys());
            let differs = |key: &&String| one.get(*key) != other.get(*key);
            let key = keys.into_iter().find(differs).unwrap();
            difference(&format!("{at}.{key}"), &ours[key], &fresh[key])
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let n = (0..one.len()).find(|n| one[*n] != other[*n]).unwrap();
            difference(&format!("{at}[{n}]"), &one[n], &other[n])
        }
        _ => format!(
            "{at} is {:.300} after all crashes, and {:.300} in a fresh snapshot",
            ours.to_string(),
            fresh.to_string()
        ),
    }
}

fn decode(channel: &str, state: Value) -> SnapshotState {
    let is = |front: &str| channel.starts_with(front);
    match () {
        () if channel.ends_with("/annotations") => SnapshotState::Annotations(serde_json::from_value(state).unwrap()),
        () if is("ahp-chat") => SnapshotState::Chat(serde_json::from_value(state).unwrap()),
        () if is("ahp-session") => SnapshotState::Session(serde_json::from_value(state).unwrap()),
        () => SnapshotState::Root(serde_json::from_value(state).unwrap()),
    }
}

fn reduce(state: &mut SnapshotState, action: &StateAction) {
    match state {
        SnapshotState::Annotations(state) => drop(apply_action_to_annotations(state, action)),
        SnapshotState::Chat(state) => drop(apply_action_to_chat(state, action)),
        SnapshotState::Session(state) => drop(apply_action_to_session(state, action)),
        SnapshotState::Root(state) => drop(apply_action_to_root(state, action)),
        _ => unreachable!("no such channel is followed"),
    }
}
