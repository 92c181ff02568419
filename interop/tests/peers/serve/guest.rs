//! The official client with a memory: each channel that it follows, as the official reducers make it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp::reducers::{
    apply_action_to_changeset, apply_action_to_chat, apply_action_to_root, apply_action_to_session,
    apply_action_to_terminal,
};
use ahp::{BoxedTransport, Client, ClientConfig, ClientError, ClientEvent, ClientEventStream, SubscriptionEvent};
use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::commands::ReconnectResult;
use ahp_types::state::{ChatState, Snapshot, SnapshotState};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::soon;
use crate::world::patient;

/// A client, connected.
pub(crate) struct Guest {
    pub(crate) client: Client,
    pub(crate) memory: Arc<Memory>,
    /// Puts what comes into the memory.
    pump: JoinHandle<()>,
}

/// What a client knows. It outlives the connection.
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
}

/// A channel that is followed.
#[derive(Default)]
struct Channel {
    state: Option<SnapshotState>,
    seq: i64,
    /// What came before the snapshot was here.
    early: Vec<ActionEnvelope>,
}

impl Guest {
    /// A client that is there for the first time.
    pub(crate) async fn arrive(transport: BoxedTransport, id: &str) -> Self {
        let (client, events) = connect(transport).await;
        let offered = ahp_types::SUPPORTED_PROTOCOL_VERSIONS.iter().map(|&version| version.into()).collect();
        let hello = soon(client.initialize(id.into(), offered, vec![])).await.unwrap();
        assert_eq!(hello.protocol_version, "1.0.0");
        let memory = Memory::new();
        memory.known.lock().unwrap().seen = hello.server_seq;
        Self::begun(client, events, Arc::new(memory))
    }

    /// The same client on another connection, with what it remembers. Says how many actions it had missed, if it was
    /// told them; `None` if it got snapshots.
    pub(crate) async fn come_back(
        transport: BoxedTransport,
        id: &str,
        memory: Arc<Memory>,
    ) -> Result<(Self, Option<usize>), ClientError> {
        let (client, events) = connect(transport).await;
        let (seen, channels) = memory.cursor();
        let missed = match soon(client.reconnect(id.into(), seen, channels)).await? {
            ReconnectResult::Replay(replay) => {
                assert_eq!(replay.missing, Vec::<String>::new());
                let count = replay.actions.len();
                replay.actions.into_iter().for_each(|action| memory.hear(action));
                Some(count)
            }
            ReconnectResult::Snapshot(shown) => {
                shown.snapshots.into_iter().for_each(|snapshot| memory.take(snapshot));
                None
            }
        };
        // The answer goes before what follows it: the client gives us both, in two ways.
        Ok((Self::begun(client, events, memory), missed))
    }

    /// Ends the connection, if it has not ended; gives all that it brought.
    pub(crate) async fn leave(self) -> Arc<Memory> {
        self.client.shutdown().await;
        soon(self.pump).await.unwrap();
        self.memory
    }

    /// The handshake is over: from now on, what comes is heard.
    fn begun(client: Client, mut events: ClientEventStream, memory: Arc<Memory>) -> Self {
        let heard = Arc::clone(&memory);
        let pump = tokio::spawn(async move {
            while let Some(ClientEvent { event, .. }) = events.recv().await {
                if let SubscriptionEvent::Action(action) = event {
                    heard.hear(action);
                }
            }
        });
        Self { client, memory, pump }
    }

    /// Calls a method.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        let answer = soon(self.client.request::<_, Value>(method, params)).await;
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Follows a channel.
    pub(crate) async fn follow(&self, channel: &str) {
        let (subscribed, _) = soon(self.client.subscribe(channel.into())).await.unwrap();
        self.memory.take(subscribed.snapshot.expect("a channel with a state"));
    }

    /// Dispatches an action.
    pub(crate) async fn act(&self, channel: &str, action: Value) {
        let action: StateAction = serde_json::from_value(action).unwrap();
        soon(self.client.dispatch(channel.into(), action)).await.unwrap();
    }

    /// Makes a session and follows it, and its chat; gives the chat.
    pub(crate) async fn begin(&self, session: &str) -> String {
        self.ask("createSession", json!({"channel": session})).await;
        self.follow(session).await;
        let chat = self.memory.until(session, |state| session_of(state)["defaultChat"].as_str().map(str::to_owned));
        let chat = chat.await;
        self.follow(&chat).await;
        chat
    }

    /// Sends a prompt.
    pub(crate) async fn prompt(&self, chat: &str, turn: &str, text: &str) {
        self.act(chat, started(turn, text)).await;
    }

    /// Sends a prompt, and waits for the end of its turn; gives the turn.
    pub(crate) async fn turn(&self, chat: &str, turn: &str, text: &str) -> Value {
        self.prompt(chat, turn, text).await;
        self.memory.turn(chat, turn).await
    }

    /// Answers what the session asks about.
    pub(crate) async fn answer(&self, session: &str, chat: &str, is_allowed: bool) {
        let need = self.memory.until(session, |state| session_of(state)["inputNeeded"].get(0).cloned()).await;
        let mut answer = json!({"type": "chat/toolCallConfirmed", "turnId": need["turnId"],
            "toolCallId": need["toolCall"]["toolCallId"], "approved": is_allowed});
        if is_allowed {
            answer["confirmed"] = json!("user-action");
        } else {
            answer["reason"] = json!("denied");
        }
        self.act(chat, answer).await;
    }
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { known: Mutex::default(), changed: watch::Sender::new(0) }
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
        let mut changed = self.changed.subscribe();
        let wait = async {
            loop {
                changed.borrow_and_update();
                let found = self.known.lock().unwrap().channels.get(channel).and_then(|it| is(it.state.as_ref()?));
                if let Some(found) = found {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(Duration::from_secs(60), wait).await {
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
        serde_json::to_value(&self.known.lock().unwrap().channels[channel].state).unwrap()
    }

    /// The highest seq, and the channels.
    pub(crate) fn cursor(&self) -> (i64, Vec<String>) {
        let known = self.known.lock().unwrap();
        (known.seen, known.channels.keys().cloned().collect())
    }

    /// All actions of a channel that came: seq and type.
    pub(crate) fn heard(&self, channel: &str) -> Vec<(u64, String)> {
        let known = self.known.lock().unwrap();
        known.heard.iter().filter(|heard| heard.1 == channel).map(|heard| (heard.0, heard.2.clone())).collect()
    }

    /// Asserts that what came was in order, and nothing came twice.
    pub(crate) fn assert_in_order(&self) {
        let known = self.known.lock().unwrap();
        let wrong: Vec<_> = known.heard.windows(2).filter(|pair| pair[1].0 <= pair[0].0).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        println!("{} actions heard, each once, in order", known.heard.len());
    }

    pub(crate) fn hear(&self, action: ActionEnvelope) {
        let mut known = self.known.lock().unwrap();
        let kind = serde_json::to_value(&action.action).unwrap()["type"].as_str().unwrap().to_owned();
        known.heard.push((action.server_seq, action.channel.clone(), kind));
        known.seen = known.seen.max(action.server_seq.try_into().unwrap());
        known.channels.entry(action.channel.clone()).or_default().apply(action);
        drop(known);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn take(&self, snapshot: Snapshot) {
        let mut known = self.known.lock().unwrap();
        let channel = known.channels.entry(snapshot.resource).or_default();
        if channel.state.is_none() || channel.seq <= snapshot.from_seq {
            channel.state = Some(snapshot.state);
            channel.seq = snapshot.from_seq;
        }
        std::mem::take(&mut channel.early).into_iter().for_each(|action| channel.apply(action));
        drop(known);
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Channel {
    fn apply(&mut self, envelope: ActionEnvelope) {
        let seq = i64::try_from(envelope.server_seq).unwrap();
        let Some(state) = &mut self.state else { return self.early.push(envelope) };
        if seq <= self.seq || envelope.rejection_reason.is_some() {
            return;
        }
        self.seq = seq;
        let action = &envelope.action;
        match state {
            SnapshotState::Session(state) => _ = apply_action_to_session(state, action),
            SnapshotState::Chat(state) => _ = apply_action_to_chat(state, action),
            SnapshotState::Terminal(state) => _ = apply_action_to_terminal(state, action),
            SnapshotState::Changeset(state) => _ = apply_action_to_changeset(state, action),
            SnapshotState::Root(state) => _ = apply_action_to_root(state, action),
            other => panic!("an action for {other:?}"),
        }
    }
}

/// The client on a connection, and what will come on it, kept from the beginning.
async fn connect(transport: BoxedTransport) -> (Client, ClientEventStream) {
    let config = ClientConfig { subscription_buffer: 4096, ..patient() };
    let client = soon(Client::connect(transport, config)).await.unwrap();
    let events = client.events();
    (client, events)
}

/// A session's state, to look at.
pub(crate) fn session_of(state: &SnapshotState) -> Value {
    serde_json::to_value(state).unwrap()
}

/// A chat's state.
pub(crate) fn chat_of(state: &SnapshotState) -> &ChatState {
    match state {
        SnapshotState::Chat(state) => state,
        other => panic!("no chat: {other:?}"),
    }
}

/// The action that begins a turn.
pub(crate) fn started(turn: &str, text: &str) -> Value {
    let message = json!({"text": text, "origin": {"kind": "user"}});
    json!({"type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00.000Z", "message": message})
}

/// All that a turn says in words.
pub(crate) fn words(turn: &Value) -> String {
    let parts = turn["responseParts"].as_array().unwrap().iter();
    parts.filter(|part| part["kind"] == "markdown").map(|part| part["content"].as_str().unwrap()).collect()
}

/// The calls of a turn.
pub(crate) fn calls(turn: &Value) -> Vec<&Value> {
    let parts = turn["responseParts"].as_array().unwrap().iter();
    parts.filter(|part| part["kind"] == "toolCall").map(|part| &part["toolCall"]).collect()
}

/// The root channel.
pub(crate) const ROOT: &str = ROOT_RESOURCE_URI;
