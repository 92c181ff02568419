//! A host with the demo agent, and v2 clients.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::common::JsonObject;
use ahp_types::state::{AgentInfo, SessionConfigSchema};
use breakbulk::link::{self, InProcessLink};
use breakbulk::{Arrival, Dialect, Driver, Setup};
use breakbulk_host::agent::demo::{Demo, DemoConfig};
use breakbulk_host::agent::{Agent, AgentError, Start, Started, merge_actions};
use breakbulk_host::endpoint::EndReason;
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{BoxFuture, Log, MemoryLog};
use breakbulk_host::test_support::demo_with_clock;
use breakbulk_host::test_support::state::{State, StateConfig, View};
use breakbulk_host::{Host, HostConfig};
use breakbulk_lifecycle::v2::wire::{Body, ConnectionEvent, Event, Outgoing, Refusal};
use breakbulk_lifecycle::v2::{MessageState, Model};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{
    Budget, Capacity, CloseReason, Event as MachineEvent, Input, Limits, Message, Meta, Tag, Ticket, Transmit,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::clock::QuickClock;

/// How long anything may take.
const SOON: Duration = Duration::from_secs(60);

/// What happens within a minute.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it happens within a minute")
}

/// The demo agent, with a permission mode to choose.
pub(crate) struct DemoWithMode(Demo);

impl DemoWithMode {
    /// One that never waits.
    pub(crate) fn quick() -> Arc<dyn Agent> {
        Arc::new(Self(demo_with_clock(DemoConfig::default(), Arc::new(QuickClock::default()))))
    }

    /// One that says something each second after `/slow`.
    pub(crate) fn steady() -> Arc<dyn Agent> {
        let (pace, slow_pace) = (Duration::from_millis(1), Duration::from_secs(1));
        Arc::new(Self(Demo::new(DemoConfig { pace, slow_pace, ..DemoConfig::default() })))
    }

    /// One that takes its time after `/slow`.
    pub(crate) fn patient() -> Arc<dyn Agent> {
        let (pace, slow_pace) = (Duration::from_millis(1), Duration::from_secs(3_600));
        Arc::new(Self(Demo::new(DemoConfig { pace, slow_pace, ..DemoConfig::default() })))
    }
}

impl Agent for DemoWithMode {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn info(&self) -> AgentInfo {
        self.0.info()
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
        self.0.start(start)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        self.0.check()
    }

    fn options(&self, _chosen: &JsonObject) -> SessionConfigSchema {
        serde_json::from_value(json!({"type": "object", "properties": {"mode": {"type": "string", "title": "Mode",
            "enum": ["default", "plan"], "default": "default", "sessionMutable": true}}}))
        .unwrap()
    }
}

pub(crate) struct TestHost {
    pub(crate) log: Arc<dyn Log>,
    /// The same, if it is on the disk.
    durable: Option<SqliteLog>,
    pub(crate) host: Host,
    directory: Arc<tempfile::TempDir>,
}

impl TestHost {
    pub(crate) async fn new(agent: Arc<dyn Agent>) -> Self {
        Self::with(agent, |_| {}).await
    }

    pub(crate) async fn with(agent: Arc<dyn Agent>, change: impl FnOnce(&mut HostConfig)) -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        Self::start(Arc::new(MemoryLog::new()), None, directory, agent, change).await
    }

    /// A host whose log is on the disk.
    pub(crate) async fn durable(agent: Arc<dyn Agent>) -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let log = open_log(directory.path()).await;
        Self::start(Arc::new(log.clone()), Some(log), directory, agent, |_| {}).await
    }

    async fn start(
        log: Arc<dyn Log>,
        durable: Option<SqliteLog>,
        directory: Arc<tempfile::TempDir>,
        agent: Arc<dyn Agent>,
        change: impl FnOnce(&mut HostConfig),
    ) -> Self {
        let mut config = HostConfig::new([directory.path()]);
        change(&mut config);
        let host = Host::start(Arc::clone(&log), vec![agent], config, Budget::default()).await.unwrap();
        Self { log, durable, host, directory }
    }

    /// Drops the host without stopping it, and starts another one on the same log, which is read from the disk if it is there.
    pub(crate) async fn crash(self, agent: Arc<dyn Agent>) -> Self {
        let Self { log, durable, host, directory } = self;
        drop(host);
        let Some(durable) = durable else { return Self::start(log, None, directory, agent, |_| {}).await };
        durable.close().await;
        drop((log, durable));
        let log = open_log(directory.path()).await;
        Self::start(Arc::new(log.clone()), Some(log), directory, agent, |_| {}).await
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A client that has said nothing.
    pub(crate) fn link(&self) -> Client {
        self.link_with(1 << 20, 64)
    }

    /// A client on whose link few frames are under way.
    pub(crate) fn link_with(&self, cap: u64, depth: usize) -> Client {
        let (near, far) = link::pair(&Capacity::of(cap), depth);
        let v2 = self.host.v2().clone();
        let served = tokio::spawn(async move { v2.serve(far, Some("someone".into())).await });
        Client { link: near, served, id: String::new(), models: BTreeMap::new(), seen: Vec::new(), looked: 0 }
    }

    /// A client that has said hello.
    pub(crate) async fn client(&self) -> Client {
        let mut client = self.link();
        client.hello().await;
        client
    }

    /// A client with a session of its own that it watches.
    pub(crate) async fn opened(&self) -> (Client, String) {
        let mut client = self.client().await;
        let session = client.open(self.path(), None).await;
        client.until(|client| client.model(&session).last_seq().is_some()).await;
        (client, session)
    }

    /// A client that comes to see a session.
    pub(crate) async fn watcher(&self, session: &str) -> Client {
        let mut client = self.client().await;
        client.watch(session, None).await;
        client.until(|client| client.model(session).last_seq().is_some()).await;
        client
    }

    /// The state of a channel as AHP clients get it.
    pub(crate) async fn ahp(&self, channel: &str) -> Value {
        let state = State::open(Arc::clone(&self.log), StateConfig::default()).await.unwrap();
        let snapshot = state.snapshot(channel, View::FULL, 0).await.unwrap();
        serde_json::from_slice::<Value>(&snapshot.body.to_bytes()).unwrap()["state"].clone()
    }

    /// An AHP client connects, and asks for one thing.
    pub(crate) async fn ahp_call(&self, method: &str, params: Value) -> Value {
        let (near, far) = link::pair(&Capacity::of(1 << 20), 64);
        let endpoint = self.host.endpoint().clone();
        tokio::spawn(async move { endpoint.serve(far, None).await });
        let setup = Setup::new(Dialect::Plain, Role::Client, Limits::default());
        let mut driver = Driver::new(near, setup.machine(Budget::default().account(None)).unwrap());
        let hello = json!({"channel": "ahp-root://", "clientId": "caller", "protocolVersions": ["1.0.0"]});
        let mut answer = Value::Null;
        for (id, method, params) in [(1, "initialize", hello), (2, method, params)] {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            driver.handle(Input::send(Ticket(id), request.to_string()));
            while answer["id"] != id {
                if let Some(MachineEvent::Message { message, .. }) = soon(driver.next()).await {
                    answer = serde_json::from_slice(&message.to_bytes()).unwrap();
                }
            }
        }
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    /// Removes all entries of a channel that a saved snapshot contains.
    pub(crate) async fn trim(&self, channel: &str) {
        let state = State::open(Arc::clone(&self.log), StateConfig::default()).await.unwrap();
        state.save(channel).await.unwrap();
        let all = self.log.channels(None).await.unwrap();
        let saved = all.iter().find(|info| *info.channel == *channel).unwrap().snapshot.unwrap();
        assert!(self.log.trim(channel, saved).await.unwrap() > 0);
    }

    /// The main chat of a session.
    pub(crate) async fn chat_of(&self, session: &str) -> String {
        self.ahp(session).await["defaultChat"].as_str().unwrap().to_owned()
    }
}

/// As the program opens it. Its directory is beside the one of the session.
async fn open_log(directory: &Path) -> SqliteLog {
    let mut options = Options::default();
    options.merge = Some(Arc::new(merge_actions));
    SqliteLog::open(&directory.join("log"), options).await.unwrap()
}

/// Fails with the first difference between two states.
pub(crate) fn assert_same(left: &MessageState, right: &MessageState) {
    let [left_text, right_text] = [left, right].map(|state| format!("{state:#?}"));
    let differs = left_text.lines().zip(right_text.lines()).find(|(left, right)| left != right);
    if let Some((left, right)) = differs {
        panic!("{} and {} differ", &left[..left.len().min(300)], &right[..right.len().min(300)]);
    }
    assert_eq!(left_text.len(), right_text.len());
}

/// A v2 client.
pub(crate) struct Client {
    link: InProcessLink,
    pub(crate) served: JoinHandle<EndReason>,
    pub(crate) id: String,
    pub(crate) models: BTreeMap<String, Model>,
    /// Everything that came.
    pub(crate) seen: Vec<Outgoing>,
    /// How much of it `event` has looked at.
    looked: usize,
}

impl Client {
    pub(crate) async fn say_text(&mut self, text: String) {
        let frame = Transmit::Frame { tag: Tag::default(), bytes: Message::from(text), meta: Meta::default() };
        soon(std::future::poll_fn(|cx| {
            use futures_sink::Sink;
            let mut link = std::pin::Pin::new(&mut self.link);
            std::task::ready!(link.as_mut().poll_ready(cx)).unwrap();
            link.start_send(frame.clone()).unwrap();
            std::task::Poll::Ready(())
        }))
        .await;
    }

    pub(crate) async fn say(&mut self, command: Value) {
        self.say_text(command.to_string()).await;
    }

    /// What comes next; `None` at the end of the link.
    pub(crate) async fn arrival(&mut self) -> Option<Outgoing> {
        use futures_core::Stream;
        let arrived = soon(std::future::poll_fn(|cx| std::pin::Pin::new(&mut self.link).poll_next(cx))).await;
        let Some(Ok(Arrival::Frame { bytes, .. })) = arrived else { return None };
        let outgoing: Outgoing = serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {bytes:?}"));
        if let Outgoing::Event(event) = &outgoing {
            let session = event.session_id.to_string();
            self.models.entry(session.clone()).or_insert_with(|| Model::new(session.as_str())).apply(event);
        }
        self.seen.push(outgoing.clone());
        Some(outgoing)
    }

    pub(crate) async fn next(&mut self) -> Outgoing {
        self.arrival().await.expect("the link is open")
    }

    /// Takes what comes until this is so.
    pub(crate) async fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            self.next().await;
        }
    }

    /// The next such event after the last one that was asked for, also if it has come already.
    pub(crate) async fn event(&mut self, is_it: impl Fn(&Body) -> bool) -> Event {
        loop {
            while let Some(outgoing) = self.seen.get(self.looked) {
                self.looked += 1;
                if let Outgoing::Event(event) = outgoing
                    && is_it(&event.body)
                {
                    return (**event).clone();
                }
            }
            self.next().await;
        }
    }

    pub(crate) async fn answer(&mut self) -> ConnectionEvent {
        loop {
            match self.next().await {
                Outgoing::Connection(event) => return event,
                Outgoing::Refusal(refusal) => panic!("{refusal:?}"),
                Outgoing::Event(_) => {}
            }
        }
    }

    pub(crate) async fn refusal(&mut self) -> Refusal {
        loop {
            if let Outgoing::Refusal(refusal) = self.next().await {
                return refusal;
            }
        }
    }

    pub(crate) async fn hello(&mut self) {
        self.say(json!({"type": "hello", "protocolVersion": 2})).await;
        let ConnectionEvent::ClientId { client_id, .. } = self.answer().await else { panic!("no client_id") };
        self.id = client_id;
    }

    pub(crate) async fn open(&mut self, cwd: &Path, id: Option<&str>) -> String {
        self.say(json!({"type": "open", "agent": "demo", "cwd": cwd, "clientMsgId": id})).await;
        match self.answer().await {
            ConnectionEvent::Ack { session_id: Some(session), .. } => session,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn watch(&mut self, session: &str, last_seq: Option<u64>) -> ConnectionEvent {
        self.say(json!({"type": "watch", "sessionId": session, "lastSeq": last_seq})).await;
        self.answer().await
    }

    /// Comes back as another client, with what that one had.
    pub(crate) async fn reattach(&mut self, gone: Self, session: &str) -> ConnectionEvent {
        let last = gone.models.get(session).and_then(Model::last_seq);
        self.id = gone.id;
        self.models = gone.models;
        self.say(json!({"type": "reattach", "clientId": self.id,
            "sessions": [{"sessionId": session, "lastSeq": last}]}))
            .await;
        self.answer().await
    }

    pub(crate) async fn send(&mut self, session: &str, prompt: &str, id: &str) -> ConnectionEvent {
        self.say(json!({"type": "send", "sessionId": session, "prompt": prompt, "clientMsgId": id})).await;
        self.answer().await
    }

    /// Sends a prompt, and takes what comes until its turn is over.
    pub(crate) async fn turn(&mut self, session: &str, prompt: &str, id: &str) {
        self.send(session, prompt, id).await;
        self.turn_ended(session, id).await;
    }

    /// Takes what comes until the turn of a prompt is over.
    pub(crate) async fn turn_ended(&mut self, session: &str, id: &str) {
        let is_over = |client: &Self| {
            let events = client.events(session);
            let turn = events.iter().find_map(|event| match &event.body {
                Body::UserMessage { turn_id, client_msg_id: Some(named), .. } if named == id => Some(turn_id),
                _ => None,
            });
            turn.is_some_and(|turn| {
                events.iter().any(|event| matches!(&event.body, Body::TurnEnd { turn_id, .. } if turn_id == turn))
            })
        };
        self.until(is_over).await;
        self.idle(session).await;
    }

    pub(crate) async fn idle(&mut self, session: &str) {
        self.until(|client| {
            let state = client.model(session).state();
            !state.running && state.current.is_none() && state.queue.is_empty() && client.is_settled(session)
        })
        .await;
    }

    /// Takes what comes until the agent asks for a permission; returns its id.
    pub(crate) async fn asked(&mut self, session: &str) -> String {
        let is_asked = |client: &Self| !client.state(session).permissions.is_empty() && client.is_settled(session);
        self.until(is_asked).await;
        self.model(session).state().permissions[0].perm_id.to_string()
    }

    pub(crate) async fn decide(&mut self, permission: &str, decision: &str) {
        self.say(json!({"type": "permission_response", "permId": permission, "decision": decision})).await;
        assert!(matches!(self.answer().await, ConnectionEvent::Ack { .. }));
    }

    pub(crate) fn model(&self, session: &str) -> &Model {
        static EMPTY: std::sync::LazyLock<Model> = std::sync::LazyLock::new(|| Model::new(""));
        self.models.get(session).unwrap_or(&EMPTY)
    }

    pub(crate) fn state(&self, session: &str) -> &MessageState {
        self.model(session).state()
    }

    /// The events of a session, in the order in which they came.
    pub(crate) fn events(&self, session: &str) -> Vec<&Event> {
        let of = |outgoing: &'_ Outgoing| matches!(outgoing, Outgoing::Event(event) if *event.session_id == *session);
        let events = self.seen.iter().filter(|outgoing| of(outgoing));
        events
            .filter_map(|outgoing| match outgoing {
                Outgoing::Event(event) => Some(&**event),
                _ => None,
            })
            .collect()
    }

    /// Whether all events of the last entry have come.
    fn is_settled(&self, session: &str) -> bool {
        self.events(session).last().is_none_or(|event| !event.more)
    }

    /// What the user has said.
    pub(crate) fn prompts(&self, session: &str) -> Vec<String> {
        let messages = self.state(session).messages.iter();
        let by_user = messages.filter(|message| message.author == breakbulk_lifecycle::v2::Author::User);
        by_user.map(|message| message.blocks[0].content.clone()).collect()
    }

    /// Closes the link; returns how the connection ended.
    pub(crate) async fn close(mut self) -> EndReason {
        use futures_sink::Sink;
        soon(std::future::poll_fn(|cx| {
            let mut link = std::pin::Pin::new(&mut self.link);
            std::task::ready!(link.as_mut().poll_ready(cx)).unwrap();
            link.start_send(Transmit::Close(CloseReason::Normal)).unwrap();
            std::task::Poll::Ready(())
        }))
        .await;
        let Self { link, served, .. } = self;
        drop(link);
        soon(served).await.unwrap()
    }

    /// How the connection ends by itself.
    pub(crate) async fn ended(mut self) -> EndReason {
        while self.arrival().await.is_some() {}
        drop(self.link);
        soon(self.served).await.unwrap()
    }
}
