//! The official client with a memory, and what people do with it.

use std::sync::Arc;

use ahp::{BoxedTransport, Client, ClientConfig, ClientError, ClientEvent, ClientEventStream, SubscriptionEvent};
use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::StateAction;
use ahp_types::commands::ReconnectResult;
use ahp_types::state::{ChatState, SnapshotState};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::memory::Memory;
use crate::soon;
use crate::world::patient;

/// A client, connected.
pub(crate) struct Guest {
    pub(crate) client: Client,
    pub(crate) memory: Arc<Memory>,
    /// Puts what comes into the memory.
    pump: JoinHandle<()>,
}

impl Guest {
    /// A client that is there for the first time.
    pub(crate) async fn arrive(transport: BoxedTransport, id: &str) -> Self {
        let (client, events) = connect(transport).await;
        let offered = ahp_types::SUPPORTED_PROTOCOL_VERSIONS.iter().map(|&version| version.into()).collect();
        let hello = soon(client.initialize(id.into(), offered, vec![])).await.unwrap();
        assert_eq!(hello.protocol_version, "1.0.0");
        Self::begun(client, events, Arc::new(Memory::after(hello.server_seq)))
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
        // What the last turn needed may still be there.
        let turn = self.memory.until(chat, |state| Some(chat_of(state).active_turn.as_ref()?.id.clone())).await;
        let find = |state: &SnapshotState| {
            let state = session_of(state);
            state["inputNeeded"].as_array()?.iter().find(|need| need["turnId"] == turn.as_str()).cloned()
        };
        let need = self.memory.until(session, find).await;
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
