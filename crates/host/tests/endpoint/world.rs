//! A host in memory: a log, its state by the official reducers, a few methods, and the endpoint that is tested.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp::reducers::{apply_action_to_chat, apply_action_to_terminal};
use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;
use breakbulk::link::{self, InProcessLink};
use breakbulk_host::MethodError;
use breakbulk_host::log::{Batch, BoxFuture, Channels, Log, MemoryLog, Seq, Tail};
use breakbulk_host::test_support::endpoint::{
    ChannelSnapshot, ClientInfo, DispatchError, Dispatched, EndReason, Endpoint, EndpointConfig, Methods, RawParams,
    RejectedAction, Reply, SnapshotError, SnapshotSource, View, not_offered,
};
use breakbulk_host::test_support::new_endpoint;
use breakbulk_proto::{Budget, Capacity, Message};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// A terminal and another one, and a chat.
pub(crate) const A: &str = "ahp-terminal:/a";
pub(crate) const B: &str = "ahp-terminal:/b";
pub(crate) const CHAT: &str = "ahp-chat:/1";

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) views: Arc<Reduced>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) endpoint: Endpoint,
}

impl World {
    /// A host with two terminals and a chat of four turns.
    pub(crate) async fn new() -> Self {
        Self::with(EndpointConfig::default()).await
    }

    pub(crate) async fn with(config: EndpointConfig) -> Self {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
        let world = Self::over(log, config);
        world.begin().await;
        world
    }

    /// A host over a log as it is.
    pub(crate) fn over(log: Arc<dyn Log>, config: EndpointConfig) -> Self {
        let views = Arc::new(Reduced::new(&*log));
        let desk = Arc::new(Desk::new(log.clone()));
        let endpoint = new_endpoint(log.clone(), views.clone(), desk.clone(), config, Budget::default());
        Self { log, views, desk, endpoint }
    }

    pub(crate) async fn begin(&self) {
        let turns: Vec<_> = (0..4).map(turn).collect();
        let chat =
            json!({"resource": CHAT, "title": "t", "status": 1, "modifiedAt": "2026-01-01T00:00:00Z", "turns": turns});
        let batch = Batch::new().open(A, None).open(B, None).open(CHAT, None);
        let batch = batch.entry(A, initial(A, "terminal", &terminal())).entry(B, initial(B, "terminal", &terminal()));
        self.log.append(batch.entry(CHAT, initial(CHAT, "chat", &chat))).await.unwrap();
    }

    /// Appends output of a terminal.
    pub(crate) async fn data(&self, channel: &str, text: &str) -> Seq {
        self.action(channel, json!({"type": "terminal/data", "data": text})).await
    }

    /// Appends an action.
    pub(crate) async fn action(&self, channel: &str, action: Value) -> Seq {
        let body = json!({"channel": channel, "action": action}).to_string();
        self.log.append(Batch::new().entry(channel, body)).await.unwrap()[0]
    }

    /// A link to the host on which frames have at most `cap` bytes, `depth` of them under way; and how its connection ends.
    pub(crate) fn link(&self, cap: u64, depth: usize) -> (InProcessLink, JoinHandle<EndReason>) {
        self.link_of(cap, depth, Some("someone"))
    }

    pub(crate) fn link_of(
        &self,
        cap: u64,
        depth: usize,
        principal: Option<&str>,
    ) -> (InProcessLink, JoinHandle<EndReason>) {
        let (near, far) = link::pair(&Capacity::of(cap), depth);
        let (endpoint, principal) = (self.endpoint.clone(), principal.map(Into::into));
        (near, tokio::spawn(async move { endpoint.serve(far, principal).await }))
    }

    /// The state of a channel by the log.
    pub(crate) async fn state(&self, channel: &str) -> Value {
        let snapshot = self.views.snapshot(channel, View::FULL, 0).await.unwrap();
        serde_json::from_slice::<Value>(&snapshot.body.to_bytes()).unwrap()["state"].clone()
    }
}

pub(crate) fn terminal() -> Value {
    let (lifecycle, claim) = (json!({"status": "running"}), json!({"kind": "client", "clientId": "c"}));
    json!({"title": "t", "content": [], "lifecycle": lifecycle, "claim": claim})
}

/// A completed turn of about ten thousand bytes.
fn turn(n: usize) -> Value {
    let message = json!({"text": format!("{n:>10000}"), "origin": {"kind": "user"}});
    json!({"id": format!("t{n}"), "message": message, "responseParts": [], "state": "complete"})
}

pub(crate) fn initial(channel: &str, kind: &str, state: &Value) -> String {
    json!({"channel": channel, "initial": {"kind": kind, "state": state}}).to_string()
}

/// A state from its JSON, by the kind of its channel.
pub(crate) fn decode(channel: &str, state: Value) -> SnapshotState {
    if channel.starts_with("ahp-chat") {
        SnapshotState::Chat(serde_json::from_value(state).unwrap())
    } else {
        SnapshotState::Terminal(serde_json::from_value(state).unwrap())
    }
}

/// What the official reducers make of an action.
pub(crate) fn reduce(state: &mut SnapshotState, action: &StateAction) {
    match state {
        SnapshotState::Terminal(state) => apply_action_to_terminal(state, action),
        SnapshotState::Chat(state) => apply_action_to_chat(state, action),
        _ => unreachable!("there are only terminals and chats"),
    };
}

/// The state of everything, in memory.
pub(crate) struct Reduced {
    inner: tokio::sync::Mutex<Inner>,
    pub(crate) reached: AtomicU64,
    /// Snapshots that were taken.
    pub(crate) taken: AtomicU64,
    /// How long a snapshot takes to make, once it was taken.
    pub(crate) delay: Mutex<Duration>,
    /// What snapshots claim to know, if it is more than they do.
    pretended: AtomicU64,
}

struct Inner {
    tail: Box<dyn Tail>,
    states: BTreeMap<String, SnapshotState>,
    /// The last entry of each.
    seqs: BTreeMap<String, Seq>,
}

impl Reduced {
    pub(crate) fn new(log: &dyn Log) -> Self {
        let inner = Inner { tail: log.tail(0, Channels::All), states: BTreeMap::new(), seqs: BTreeMap::new() };
        Self {
            inner: tokio::sync::Mutex::new(inner),
            reached: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            delay: Mutex::default(),
            pretended: AtomicU64::new(0),
        }
    }

    /// From now on snapshots claim to know everything up to here.
    pub(crate) fn pretend(&self, seq: Seq) {
        self.pretended.store(seq, Ordering::Relaxed);
    }

    async fn look(&self, channel: &str, view: View) -> Result<ChannelSnapshot, SnapshotError> {
        let mut inner = self.inner.lock().await;
        loop {
            let page = inner.tail.ready(1 << 20).await.unwrap();
            if page.is_empty() {
                break;
            }
            for entry in page {
                inner.seqs.insert(entry.channel.to_string(), entry.seq);
                let body: Value = serde_json::from_slice(&entry.body).unwrap();
                if let Some(initial) = body.get("initial") {
                    let state = decode(&entry.channel, initial["state"].clone());
                    inner.states.insert(entry.channel.to_string(), state);
                } else if let Some(action) = body.get("action")
                    && let Some(state) = inner.states.get_mut(&*entry.channel)
                {
                    reduce(state, &serde_json::from_value(action.clone()).unwrap());
                }
            }
        }
        let from_seq = inner.tail.position().max(self.pretended.load(Ordering::Relaxed));
        self.reached.store(from_seq, Ordering::Relaxed);
        let mut state = inner.states.get(channel).ok_or(SnapshotError::NotFound)?.clone();
        if let (SnapshotState::Chat(chat), Some(turns)) = (&mut state, view.turns) {
            let cut = chat.turns.len().saturating_sub(usize::try_from(turns).unwrap());
            chat.turns.drain(..cut);
            chat.turns_next_cursor = (cut > 0).then(|| cut.to_string());
        }
        let body = json!({"resource": channel, "state": state, "fromSeq": from_seq});
        Ok(ChannelSnapshot { from_seq, body: Message::from(body.to_string()) })
    }
}

impl SnapshotSource for Reduced {
    fn snapshot<'a>(
        &'a self,
        channel: &'a str,
        view: View,
        at_least: Seq,
    ) -> BoxFuture<'a, Result<ChannelSnapshot, SnapshotError>> {
        Box::pin(async move {
            let snapshot = self.look(channel, view).await?;
            self.taken.fetch_add(1, Ordering::Relaxed);
            assert!(snapshot.from_seq >= at_least);
            let delay = *self.delay.lock().unwrap();
            tokio::time::sleep(delay).await;
            Ok(snapshot)
        })
    }

    fn size_of<'a>(&'a self, channel: &'a str, view: View) -> BoxFuture<'a, Result<u64, SnapshotError>> {
        Box::pin(async move { Ok(self.look(channel, view).await?.body.len() as u64) })
    }

    fn version<'a>(&'a self, channel: &'a str, at_least: Seq) -> BoxFuture<'a, Result<Option<Seq>, SnapshotError>> {
        Box::pin(async move {
            let snapshot = self.look(channel, View::FULL).await?;
            assert!(snapshot.from_seq >= at_least);
            Ok(self.inner.lock().await.seqs.get(channel).copied())
        })
    }
}

/// What the host does: echoes, waits, breaks, asks back, and takes terminal input.
pub(crate) struct Desk {
    log: Arc<dyn Log>,
    /// What was called and dispatched, in the order in which it was done.
    pub(crate) done: Mutex<Vec<String>>,
    /// Calls of `wait` end when this has a permit for each.
    pub(crate) gate: tokio::sync::Semaphore,
    /// Calls that have begun, and those that were given up.
    pub(crate) begun: AtomicU64,
    pub(crate) given_up: Arc<AtomicU64>,
}

impl Desk {
    async fn take(&self, client: &ClientInfo, dispatched: &Dispatched) -> Result<(), DispatchError> {
        let origin = dispatched.origin(client);
        let StateAction::TerminalData(data) = &dispatched.action else {
            return Err(DispatchError::new("only data"));
        };
        if data.data == "slow" {
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.gate.acquire().await.unwrap().forget();
        }
        let body = json!({"channel": dispatched.channel, "action": dispatched.action, "origin": origin});
        let batch = Batch::new().entry(dispatched.channel.as_str(), body.to_string());
        self.log.append(batch).await.map_err(|error| DispatchError::new(error.to_string()))?;
        self.note(data.data.chars().take(20).collect::<String>());
        Ok(())
    }

    pub(crate) fn new(log: Arc<dyn Log>) -> Self {
        let gate = tokio::sync::Semaphore::new(0);
        Self { log, done: Mutex::default(), gate, begun: AtomicU64::new(0), given_up: Arc::default() }
    }

    fn note(&self, what: impl Into<String>) {
        self.done.lock().unwrap().push(what.into());
    }
}

/// Counts when it is dropped before it was done.
struct Counted(Option<Arc<AtomicU64>>);

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Methods for Desk {
    fn call<'a>(
        &'a self,
        client: &'a ClientInfo,
        method: &'a str,
        params: RawParams,
    ) -> BoxFuture<'a, Result<Reply, MethodError>> {
        Box::pin(async move {
            self.begun.fetch_add(1, Ordering::Relaxed);
            let result = match method {
                "echo" => Ok(Message::from(params.text().clone())),
                "typed" => params.parse::<u64>().map(|number| Message::from(number.to_string())),
                "break" => panic!("as it was asked to"),
                "wait" | "resourceWrite" => {
                    let mut counted = Counted(Some(self.given_up.clone()));
                    self.gate.acquire().await.unwrap().forget();
                    counted.0 = None;
                    self.note(method);
                    Ok(Message::from("{}"))
                }
                "whoAmI" => Ok(Message::from(json!(client.version).to_string())),
                "resourceRead" => Ok(Message::from(json!("x".repeat(3_000_000)).to_string())),
                "askBack" => {
                    let asked = client.handle.ask("resourceRead", &json!({"uri": "client:/x"})).await;
                    asked.map(Message::from).map_err(|error| MethodError::new(-32001, error.to_string()))
                }
                _ => Err(not_offered(method)),
            };
            result.map(Reply::from)
        })
    }

    fn dispatch<'a>(
        &'a self,
        client: &'a ClientInfo,
        dispatched: Dispatched,
    ) -> BoxFuture<'a, Result<(), RejectedAction>> {
        Box::pin(async move {
            let taken = self.take(client, &dispatched).await;
            taken.map_err(|error| RejectedAction { error, action: Box::new(dispatched.action) })
        })
    }
}

/// What happens within a minute.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it happens within a minute")
}
