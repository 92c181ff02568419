//! A client in a few lines: JSON over the machine, and a mirror of what it follows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;
use breakbulk::link::InProcessLink;
use breakbulk::{Acked, AnyMachine, Arrival, Dialect, Driver, Link, LinkError, LinkStatus, ReceiveMemory, Setup};
use breakbulk_proto::ahp::{Delivery, Negotiated, Role};
use breakbulk_proto::{Budget, Capacity, CloseReason, Event, Input, Limits, Ticket, Transmit};
use futures_core::Stream;
use futures_sink::Sink;
use serde_json::{Value, json};

use super::world::{decode, reduce, soon};

/// A link that breaks after so many frames have come.
pub(crate) struct Cut {
    link: InProcessLink,
    left: Arc<AtomicUsize>,
}

impl Link for Cut {
    fn capacity(&self) -> Capacity {
        self.link.capacity()
    }

    fn status(&self) -> LinkStatus {
        self.link.status()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.link.receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.link.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        self.link.end_output()
    }
}

impl Stream for Cut {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return Poll::Ready(None);
        }
        let arrival = Pin::new(&mut self.link).poll_next(cx);
        if matches!(arrival, Poll::Ready(Some(Ok(Arrival::Frame { .. })))) {
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
        arrival
    }
}

impl Sink<Transmit> for Cut {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        Pin::new(&mut self.link).start_send(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_close(cx)
    }
}

/// One connection of a client.
pub(crate) struct Raw {
    driver: Driver<Cut, AnyMachine>,
    ids: u64,
    /// What came while something else was waited for.
    pub(crate) backlog: VecDeque<Value>,
    pub(crate) closed: Option<CloseReason>,
    /// Frames that may still come.
    pub(crate) frames: Arc<AtomicUsize>,
}

impl Raw {
    /// One that takes segments.
    pub(crate) fn new(link: InProcessLink) -> Self {
        Self::with(link, &Negotiated::default(), Delivery::StartOrder, Limits::default())
    }

    /// One that has never heard of segments.
    pub(crate) fn plain(link: InProcessLink) -> Self {
        Self::on(link, &Setup::new(Dialect::Plain, Role::Client, Limits::default()))
    }

    pub(crate) fn with(link: InProcessLink, memory: &Negotiated, delivery: Delivery, limits: Limits) -> Self {
        let mut setup = Setup::new(Dialect::Ahp, Role::Client, limits);
        (setup.negotiated, setup.delivery) = (memory.clone(), delivery);
        Self::on(link, &setup)
    }

    fn on(link: InProcessLink, setup: &Setup) -> Self {
        let machine = setup.machine(Budget::default().account(Some("host"))).unwrap();
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let driver = Driver::new(Cut { link, left: left.clone() }, machine);
        Self { driver, ids: 0, backlog: VecDeque::new(), closed: None, frames: left }
    }

    /// Sends a text as it is.
    pub(crate) fn say(&mut self, message: &Value) {
        self.driver.handle(Input::send(Ticket(self.ids), message.to_string()));
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.say(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request; its id.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.ids += 1;
        self.say(&json!({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params}));
        self.ids
    }

    /// Sends what it has to say, and reads nothing.
    pub(crate) async fn send_only(&mut self) {
        self.driver.set_reading(false);
        let sending = async { while self.driver.next().await.is_some() {} };
        drop(tokio::time::timeout(std::time::Duration::from_millis(50), sending).await);
        self.driver.set_reading(true);
    }

    /// The next message; `None` when the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        if let Some(message) = self.backlog.pop_front() {
            return Some(message);
        }
        self.fresh().await
    }

    async fn fresh(&mut self) -> Option<Value> {
        loop {
            match soon(self.driver.next()).await? {
                Event::Message { message, .. } => return Some(serde_json::from_slice(&message.to_bytes()).unwrap()),
                Event::Closed(reason) => self.closed = Some(reason),
                _ => {}
            }
        }
    }

    /// The answer to a request; what comes before it waits.
    pub(crate) async fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.fresh().await.expect("an answer before the end");
            if message.get("method").is_none() && message["id"] == json!(id) {
                return message;
            }
            self.backlog.push_back(message);
        }
    }

    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.ask(method, params);
        let mut answer = self.answer(id).await;
        answer.get_mut("result").map(Value::take).ok_or_else(|| answer["error"].clone())
    }

    pub(crate) async fn initialize(&mut self, client: &str, subscriptions: &[&str]) -> Value {
        self.call("initialize", initialize(client, subscriptions)).await.unwrap()
    }

    pub(crate) async fn reconnect(&mut self, client: &str, seen: i64, subscriptions: &[&str]) -> Value {
        let params = json!({"channel": "ahp-root://", "clientId": client, "lastSeenServerSeq": seen, "subscriptions": subscriptions});
        self.call("reconnect", params).await.unwrap()
    }

    pub(crate) async fn subscribe(&mut self, channel: &str) -> Value {
        self.call("subscribe", json!({"channel": channel})).await.unwrap()
    }

    /// The next action: its seq and itself.
    pub(crate) async fn action(&mut self) -> (u64, Value) {
        let message = self.next().await.expect("an action before the end");
        assert_eq!(message["method"], "action", "{message}");
        (message["params"]["serverSeq"].as_u64().unwrap(), message["params"].clone())
    }

    /// Where to resume, for a client that keeps a settled cursor.
    pub(crate) fn cursor(&self) -> Option<u64> {
        match self.driver.machine() {
            AnyMachine::Ahp(machine) => machine.cursor(),
            _ => None,
        }
    }

    /// The code with which the connection ended.
    pub(crate) async fn code(mut self) -> u16 {
        while self.fresh().await.is_some() {}
        self.closed.unwrap().code()
    }
}

pub(crate) fn initialize(client: &str, subscriptions: &[&str]) -> Value {
    json!({
        "channel": "ahp-root://", "clientId": client, "protocolVersions": ["1.0.0"], "initialSubscriptions": subscriptions
    })
}

/// What a client makes of what it hears, by the official reducers. It panics at what comes twice or out of order.
#[derive(Default)]
pub(crate) struct Mirror {
    states: BTreeMap<String, SnapshotState>,
    applied: HashMap<String, u64>,
    /// The highest seq seen.
    pub(crate) seen: u64,
    /// Everything up to here was known when this connection began.
    pub(crate) base: u64,
}

impl Mirror {
    /// The result of a handshake.
    pub(crate) fn greeted(&mut self, result: &Value) {
        let snapshots = result["snapshots"].as_array().into_iter().flatten();
        // All of them know everything up to the lowest.
        let lowest = snapshots.clone().map(|snapshot| snapshot["fromSeq"].as_u64().unwrap()).min();
        self.seen = result["serverSeq"].as_u64().or(lowest).unwrap_or(self.seen);
        snapshots.for_each(|snapshot| self.snapshot(snapshot));
        for action in result["actions"].as_array().into_iter().flatten() {
            // Its channel may have come with a later snapshot, before the link broke.
            let channel = action["channel"].as_str().unwrap();
            if action["serverSeq"].as_u64().unwrap() > self.applied[channel] {
                self.action(action);
            }
        }
        self.base = self.seen;
    }

    pub(crate) fn snapshot(&mut self, snapshot: &Value) {
        let channel = snapshot["resource"].as_str().unwrap();
        self.states.insert(channel.to_owned(), decode(channel, snapshot["state"].clone()));
        self.applied.insert(channel.to_owned(), snapshot["fromSeq"].as_u64().unwrap());
    }

    /// An action that is new to us.
    pub(crate) fn action(&mut self, params: &Value) {
        let (channel, seq) = (params["channel"].as_str().unwrap(), params["serverSeq"].as_u64().unwrap());
        let applied = self.applied.get_mut(channel).expect("an action of a channel that is followed");
        assert!(seq > *applied, "{channel} has {applied}, and {seq} comes");
        *applied = seq;
        self.seen = self.seen.max(seq);
        let action: StateAction = serde_json::from_value(params["action"].clone()).unwrap();
        reduce(self.states.get_mut(channel).unwrap(), &action);
    }

    pub(crate) fn follows(&self, channel: &str) -> bool {
        self.states.contains_key(channel)
    }

    pub(crate) fn followed(&self) -> Vec<String> {
        self.states.keys().cloned().collect()
    }

    pub(crate) fn applied(&self, channel: &str) -> u64 {
        self.applied.get(channel).copied().unwrap_or(0)
    }

    pub(crate) fn forget(&mut self, channel: &str) {
        self.states.remove(channel);
        self.applied.remove(channel);
    }

    pub(crate) fn state(&self, channel: &str) -> Value {
        serde_json::to_value(&self.states[channel]).unwrap()
    }
}
