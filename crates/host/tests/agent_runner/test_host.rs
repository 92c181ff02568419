//! A host on a log, and a client that appends its actions to the log directly.

use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::state::{SessionSummary, SnapshotState};
use breakbulk::{Arrival, Dialect, Driver, Setup, link};
use breakbulk_host::agent::demo::{Demo, DemoConfig};
use breakbulk_host::agent::{Agent, EventSender, History};
use breakbulk_host::log::{AppendError, Batch, Channels, Entry, Log, MemoryLog, Seq};
use breakbulk_host::test_support::demo_with_clock;
use breakbulk_host::test_support::files::uri_of;
use breakbulk_host::test_support::state::entry::{self, CatalogueNotification};
use breakbulk_host::test_support::state::{State, StateConfig, View};
use breakbulk_host::{Host, HostConfig};
use breakbulk_lifecycle::Id;
use breakbulk_lifecycle::v2::wire::{Body, Event as V2Event, Outgoing};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, BudgetConfig, Capacity, Event, Input, Limits, Message, Meta, Tag, Ticket, Transmit};
use futures_core::Stream;
use futures_sink::Sink;
use serde_json::{Value, json};

use crate::clock::QuickClock;
use crate::scripted_agent::{AgentControl, scripted_agent};

pub(crate) const SESSION: &str = "ahp-session:/s";
pub(crate) const CHAT: &str = "ahp-chat:/c";
pub(crate) const OTHER: &str = "ahp-chat:/d";
const ROOT: &str = "ahp-root://";
const NOW: &str = "2026-01-01T00:00:00.000Z";

/// How long anything may take.
const SOON: Duration = Duration::from_secs(20);

/// A demo agent that never waits.
pub(crate) fn quick() -> Arc<dyn Agent> {
    Arc::new(demo_with_clock(DemoConfig::default(), Arc::new(QuickClock::default())))
}

/// A demo agent that is slow.
pub(crate) fn slow() -> Arc<dyn Agent> {
    Arc::new(Demo::new(DemoConfig { pace: Duration::from_millis(20), ..DemoConfig::default() }))
}

pub(crate) struct TestHost {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) inner: Host,
    state: Arc<State>,
    directory: Arc<tempfile::TempDir>,
}

impl TestHost {
    /// A host with this agent, and a session with two chats.
    pub(crate) async fn new(agent: Arc<dyn Agent>) -> Self {
        Self::on(Arc::new(MemoryLog::new()), agent).await
    }

    /// The same, in this directory.
    pub(crate) async fn rooted(agent: Arc<dyn Agent>, directory: tempfile::TempDir) -> Self {
        Self::at(Arc::new(MemoryLog::new()), agent, directory).await
    }

    pub(crate) async fn on(log: Arc<dyn Log>, agent: Arc<dyn Agent>) -> Self {
        Self::at(log, agent, tempfile::tempdir().unwrap()).await
    }

    async fn at(log: Arc<dyn Log>, agent: Arc<dyn Agent>, directory: tempfile::TempDir) -> Self {
        let host = Self::begin(log, Arc::new(directory), agent).await;
        let chats = [CHAT, OTHER].map(summary);
        let session = json!({"provider": host.provider().await, "title": "New session", "status": 1,
            "lifecycle": "ready", "activeClients": [], "chats": chats, "defaultChat": CHAT,
            "config": {"schema": {"type": "object", "properties": {}}, "values": {}},
            "workingDirectories": [uri_of(host.directory.path())], "_meta": {"git": "kept"}});
        let listed = json!({"resource": SESSION, "provider": "demo", "title": "New session", "status": 1,
            "createdAt": NOW, "modifiedAt": NOW});
        let listed: SessionSummary = serde_json::from_value(listed).unwrap();
        let added = json!({"channel": ROOT, "summary": listed});
        let notice = CatalogueNotification::Added(Box::new(serde_json::from_value(added).unwrap()));
        let session = SnapshotState::Session(serde_json::from_value(session).unwrap());
        let mut batch = Batch::new().open(SESSION, Some(SESSION)).open(ROOT, None);
        batch = batch.entry(SESSION, entry::initial(SESSION, &session).unwrap());
        batch = batch.entry(ROOT, entry::catalogue(&notice).unwrap());
        for chat in [CHAT, OTHER] {
            let state = SnapshotState::Chat(serde_json::from_value(chat_state(chat)).unwrap());
            batch = batch.open(chat, Some(SESSION)).entry(chat, entry::initial(chat, &state).unwrap());
        }
        host.log.append(batch).await.unwrap();
        host
    }

    /// A host whose scripted agent has just been sent the turn `t`, with what a test needs to continue it.
    pub(crate) async fn at_work(log: MemoryLog) -> (Self, AgentControl, EventSender, Id) {
        let (agent, mut control) = scripted_agent();
        let host = Self::on(Arc::new(log), agent).await;
        host.prompt(CHAT, "t", "go").await;
        let (_, events) = control.started().await;
        let turn = control.sent().await;
        (host, control, events, turn)
    }

    async fn begin(log: Arc<dyn Log>, directory: Arc<tempfile::TempDir>, agent: Arc<dyn Agent>) -> Self {
        let config = HostConfig::new([directory.path()]);
        let host =
            Host::start(Arc::clone(&log), vec![agent], config, Budget::new(BudgetConfig::default())).await.unwrap();
        let state = State::open(Arc::clone(&log), StateConfig::default()).await.unwrap();
        Self { log, inner: host, state, directory }
    }

    /// Drops the host without stopping it, and starts another one on the same log.
    pub(crate) async fn crash(self, agent: Arc<dyn Agent>) -> Self {
        let Self { log, directory, inner, state } = self;
        drop((inner, state));
        Self::begin(log, directory, agent).await
    }

    async fn provider(&self) -> String {
        self.see(ROOT).await["agents"][0]["provider"].as_str().unwrap().to_owned()
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Connects a client, sends one request, and returns the answer.
    pub(crate) async fn call(&self, method: &str, params: Value) -> Result<Value, Value> {
        let (near, far) = link::pair(&Capacity::of(1 << 20), 64);
        let endpoint = self.inner.endpoint().clone();
        tokio::spawn(async move { endpoint.serve(far, None).await });
        let setup = Setup::new(Dialect::Plain, Role::Client, Limits::default());
        let mut driver = Driver::new(near, setup.machine(Budget::default().account(None)).unwrap());
        let hello = json!({"channel": ROOT, "clientId": "caller", "protocolVersions": ["1.0.0"]});
        let mut answer = Value::Null;
        for (id, method, params) in [(1, "initialize", hello), (2, method, params)] {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            driver.handle(Input::send(Ticket(id), request.to_string()));
            while answer["id"] != id {
                let event = tokio::time::timeout(SOON, driver.next()).await.unwrap();
                if let Event::Message { message, .. } = event.expect("an answer before the end") {
                    answer = serde_json::from_slice(&message.to_bytes()).unwrap();
                }
            }
        }
        answer.get_mut("result").map(Value::take).ok_or_else(|| answer["error"].take())
    }

    /// What completes a text at this offset, in the main chat.
    pub(crate) async fn completions(&self, text: &str, offset: i64) -> Vec<Value> {
        let params = json!({"channel": CHAT, "kind": "userMessage", "text": text, "offset": offset});
        self.call("completions", params).await.unwrap()["items"].as_array().unwrap().clone()
    }

    /// What a v2 client is told that has the session as it was after this entry of the log. No turn may be open.
    pub(crate) async fn v2_events(&self, after: Seq) -> Vec<V2Event> {
        let (near, far) = link::pair(&Capacity::of(1 << 20), 64);
        let v2 = self.inner.v2().clone();
        tokio::spawn(async move { v2.serve(far, Some("someone".into())).await });
        let mut link = std::pin::pin!(near);
        let hello = json!({"type": "hello", "protocolVersion": 2});
        let watch = json!({"type": "watch", "sessionId": SESSION, "lastSeq": after});
        for command in [hello, watch] {
            let bytes = Message::from(command.to_string());
            std::future::poll_fn(|cx| link.as_mut().poll_ready(cx)).await.unwrap();
            link.as_mut().start_send(Transmit::Frame { tag: Tag::default(), bytes, meta: Meta::default() }).unwrap();
        }
        let turns = self.see(CHAT).await["turns"].as_array().unwrap().len();
        let mut events = Vec::new();
        let is_end = |event: &V2Event| matches!(event.body, Body::TurnEnd { .. });
        // The state follows the end of the last turn.
        while events.iter().filter(|event| is_end(event)).count() < turns || events.last().is_none_or(|last| last.more)
        {
            let arrived = tokio::time::timeout(SOON, std::future::poll_fn(|cx| link.as_mut().poll_next(cx))).await;
            let arrived = arrived.unwrap_or_else(|_| panic!("not in time: {events:#?}"));
            let Some(Ok(Arrival::Frame { bytes, .. })) = arrived else { panic!("{arrived:?} after {events:#?}") };
            if let Ok(Outgoing::Event(event)) = serde_json::from_slice(&bytes) {
                events.push(*event);
            }
        }
        events
    }

    /// The turns of a chat up to this one.
    pub(crate) async fn history(&self, chat: &str, turn: &str) -> Option<History> {
        self.state.reached(self.log.bounds().await.unwrap().last).await.unwrap();
        self.state.history_through(chat, turn).await.unwrap()
    }

    /// Logs an action of a client, and retries until the log takes it.
    pub(crate) async fn act(&self, channel: &str, action: Value) -> Seq {
        let action: StateAction = serde_json::from_value(action).unwrap();
        let origin = ActionOrigin { client_id: "client".to_owned(), client_seq: 1 };
        self.append(channel, entry::action(channel, &action, Some(&origin)).unwrap()).await
    }

    pub(crate) async fn append(&self, channel: &str, body: impl Into<breakbulk_host::log::Bytes>) -> Seq {
        let batch = Batch::new().entry(channel, body);
        loop {
            match self.log.append(batch.clone()).await {
                Err(AppendError::Unknown) => tokio::time::sleep(Duration::from_millis(5)).await,
                seqs => return seqs.unwrap()[0],
            }
        }
    }

    pub(crate) async fn prompt(&self, chat: &str, turn: &str, text: &str) -> Seq {
        self.act(chat, started(turn, text)).await
    }

    pub(crate) async fn queue(&self, chat: &str, id: &str, text: &str) {
        let action = json!({"type": "chat/pendingMessageSet", "kind": "queued", "id": id, "message": message(text)});
        self.act(chat, action).await;
    }

    pub(crate) async fn cancel(&self, chat: &str, turn: &str) {
        self.act(chat, json!({"type": "chat/turnCancelled", "turnId": turn, "duration": 5})).await;
    }

    /// Answers all requests for permission.
    pub(crate) async fn answer(&self, approved: bool) {
        for need in self.see(SESSION).await["inputNeeded"].as_array().unwrap() {
            let action = match approved {
                true => json!({"type": "chat/toolCallConfirmed", "turnId": need["turnId"], "approved": true,
                    "toolCallId": need["toolCall"]["toolCallId"], "confirmed": "user-action"}),
                false => json!({"type": "chat/toolCallConfirmed", "turnId": need["turnId"], "approved": false,
                    "toolCallId": need["toolCall"]["toolCallId"], "reason": "denied"}),
            };
            self.act(need["chat"].as_str().unwrap(), action).await;
        }
    }

    /// A channel as a client sees it.
    pub(crate) async fn see(&self, channel: &str) -> Value {
        let last = self.log.bounds().await.unwrap().last;
        let shot = self.state.snapshot(channel, View { turns: None }, last).await.unwrap();
        let shot: Value = serde_json::from_slice(&shot.body.to_bytes()).unwrap();
        shot["state"].clone()
    }

    /// The session in the catalogue.
    pub(crate) async fn listed(&self) -> Value {
        self.state.reached(self.log.bounds().await.unwrap().last).await.unwrap();
        serde_json::to_value(self.state.session(SESSION).await.unwrap().unwrap()).unwrap()
    }

    /// Waits until the state of a channel matches.
    pub(crate) async fn until(&self, channel: &str, is: impl Fn(&Value) -> bool) -> Value {
        until(async || self.see(channel).await, is).await
    }

    /// Waits until a chat has so many completed turns and no open one.
    pub(crate) async fn turns(&self, chat: &str, count: usize) -> Vec<Value> {
        let is = |state: &Value| state["activeTurn"].is_null() && state["turns"].as_array().unwrap().len() == count;
        self.until(chat, is).await["turns"].as_array().unwrap().clone()
    }

    /// Waits until there are so many requests for permission.
    pub(crate) async fn asked(&self, count: usize) -> Vec<Value> {
        let is = |state: &Value| state["inputNeeded"].as_array().map_or(0, Vec::len) == count;
        self.until(SESSION, is).await["inputNeeded"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until the session in the catalogue matches.
    pub(crate) async fn until_listed(&self, is: impl Fn(&Value) -> bool) -> Value {
        until(async || self.listed().await, is).await
    }

    /// All entries of a channel, as JSON.
    pub(crate) async fn entries(&self, channel: &str) -> Vec<Value> {
        let mut tail = self.log.tail(0, Channels::only([channel]));
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let page = tail.ready(1 << 20).await.unwrap();
            if page.is_empty() {
                return entries.iter().map(|entry| serde_json::from_slice(&entry.body).unwrap()).collect();
            }
            entries.extend(page);
        }
    }
}

/// Reads a value until it matches.
async fn until(look: impl AsyncFn() -> Value, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let wait = async {
        loop {
            last = look().await;
            if is(&last) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(SOON, wait).await.is_err() {
        panic!("not in time: {last:#}");
    }
    last
}

pub(crate) fn started(turn: &str, text: &str) -> Value {
    json!({"type": "chat/turnStarted", "turnId": turn, "startedAt": NOW, "message": message(text)})
}

pub(crate) fn message(text: &str) -> Value {
    json!({"text": text, "origin": {"kind": "user"}})
}

fn chat_state(chat: &str) -> Value {
    json!({"resource": chat, "title": "New chat", "status": 1, "modifiedAt": NOW, "turns": []})
}

fn summary(chat: &str) -> Value {
    json!({"resource": chat, "title": "New chat", "status": 1, "modifiedAt": NOW})
}

/// All text of a turn.
pub(crate) fn text(turn: &Value) -> String {
    let parts = turn["responseParts"].as_array().unwrap().iter();
    parts.filter(|part| part["kind"] == "markdown").map(|part| part["content"].as_str().unwrap()).collect()
}

/// The tool calls of a turn.
pub(crate) fn calls(turn: &Value) -> Vec<Value> {
    let parts = turn["responseParts"].as_array().unwrap().iter();
    parts.filter(|part| part["kind"] == "toolCall").map(|part| part["toolCall"].clone()).collect()
}
