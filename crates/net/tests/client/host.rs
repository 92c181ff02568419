//! A scripted AHP host in memory: one log of actions, one client at a time, and knobs for how it behaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use breakbulk::{Driver, Link};
use breakbulk_proto::ahp::{self, Connection, Delivery, Negotiated, Role};
use breakbulk_proto::{Budget, BudgetConfig, CloseReason, Event, Input, Limits, LimitsConfig, Message, Ticket};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Duration, sleep, timeout};

use super::line::SOON;

/// The longest frame on the link.
pub(crate) const CAP: u64 = 65_536;

pub(crate) fn limits() -> Limits {
    let config = LimitsConfig { max_frame_bytes: CAP, ..LimitsConfig::default() };
    Limits::prove(config, &BudgetConfig::default()).unwrap()
}

/// The host. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Host(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) log: Vec<Entry>,
    /// The requests and notifications that arrived, without what is large in them.
    pub(crate) heard: Vec<(String, Value)>,
    /// How many messages were handed to the link whole.
    pub(crate) sent: usize,
    pub(crate) knobs: Knobs,
    /// How many actions of the client's were in replays.
    pub(crate) replayed_own: usize,
    /// What the client answered.
    pub(crate) answers: Vec<Value>,
    subscriptions: BTreeSet<String>,
    /// The connection that counts: a new one ends the old.
    current: u64,
    connections: u64,
    live: Option<UnboundedSender<Order>>,
    negotiated: Negotiated,
    budget: Budget,
}

/// How the host behaves.
#[derive(Default, Clone)]
pub(crate) struct Knobs {
    /// Answer a reconnect with snapshots.
    pub(crate) snapshots: bool,
    /// Answer a reconnect with an error.
    pub(crate) refuse_reconnect: bool,
    /// Channels that are gone at the next reconnect.
    pub(crate) missing: Vec<String>,
    /// An error for `initialize`.
    pub(crate) initialize_error: Option<i64>,
    /// Methods that get no answer.
    pub(crate) silent: BTreeSet<String>,
    /// Close with this code when an action of ours arrives.
    pub(crate) close_on_dispatch: Option<u16>,
    /// Show an action just before a reconnect is answered.
    pub(crate) hasty: bool,
    /// Channels without a state.
    pub(crate) stateless: BTreeSet<String>,
    /// Take actions without showing them.
    pub(crate) mute: bool,
}

impl Knobs {
    /// A method gets no answer from now on.
    pub(crate) fn silence(&mut self, method: &str) {
        self.silent.insert(method.into());
    }
}

/// An action in the log.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) channel: String,
    pub(crate) seq: u64,
    pub(crate) origin: Value,
    pub(crate) action: Value,
}

/// What a connection is told.
enum Order {
    Send(Message),
    Close(u16),
    Cut,
}

impl Entry {
    fn envelope(&self) -> Value {
        json!({ "channel": self.channel, "serverSeq": self.seq, "origin": self.origin, "action": self.action })
    }
}

impl Host {
    /// Serves one link.
    pub(crate) fn serve(&self, link: impl Link + 'static) {
        let (orders, taken) = unbounded_channel();
        let number = {
            let mut state = self.lock();
            state.connections += 1;
            state.live = Some(orders);
            state.connections
        };
        tokio::spawn(self.clone().connection(link, number, taken));
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Knobs)) {
        change(&mut self.lock().knobs);
    }

    /// Logs an action, and shows it to whoever follows its channel.
    pub(crate) fn publish(&self, channel: &str, data: &str) {
        self.lock().publish(channel, Value::Null, json!({ "type": "terminal/data", "data": data }));
    }

    /// Sends any message.
    pub(crate) fn send(&self, message: &Value) {
        self.lock().order(Order::Send(message.to_string().into()));
    }

    /// Closes the link with a code.
    pub(crate) fn close(&self, code: u16) {
        self.lock().order(Order::Close(code));
    }

    /// The link is cut.
    pub(crate) fn cut(&self) {
        self.lock().order(Order::Cut);
    }

    /// Waits until a method has been heard.
    pub(crate) async fn hears(&self, method: &str) {
        self.until(|state| state.heard.iter().any(|(heard, _)| heard == method)).await;
    }

    pub(crate) async fn until(&self, is: impl Fn(&State) -> bool) {
        let wait = async {
            while !is(&self.lock()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, wait).await.expect("soon");
    }

    /// How often each method was heard.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        self.lock().heard.iter().for_each(|(method, _)| *counts.entry(method.clone()).or_default() += 1);
        counts
    }

    /// The ids of the turns in the log, in order.
    pub(crate) fn turns(&self) -> Vec<String> {
        self.lock().log.iter().filter_map(|entry| Some(entry.action["turnId"].as_str()?.to_owned())).collect()
    }

    async fn connection(self, link: impl Link, number: u64, mut orders: UnboundedReceiver<Order>) {
        let mut config = ahp::Config::new(Role::Server, limits(), [7; 32]);
        config.delivery = Delivery::Settled;
        let account = {
            let state = self.lock();
            config.negotiated = state.negotiated.clone();
            state.budget.account(Some("client"))
        };
        let mut driver = Driver::new(link, Connection::new(config, account));
        let mut ticket = 0;
        loop {
            tokio::select! {
                event = driver.next() => match event {
                    None | Some(Event::Closed(_)) => return,
                    Some(Event::Message { message, .. }) => {
                        let message = serde_json::from_slice(&message.to_bytes()).unwrap();
                        self.lock().message(number, message);
                    }
                    Some(Event::Sent { .. }) => self.lock().sent += 1,
                    Some(_) => {}
                },
                Some(order) = orders.recv() => match order {
                    Order::Send(message) => {
                        ticket += 1;
                        driver.handle(Input::send(Ticket(ticket), message));
                    }
                    Order::Close(code) => driver.handle(Input::Close(CloseReason::Peer { code })),
                    Order::Cut => return,
                },
            }
        }
    }
}

impl State {
    fn message(&mut self, number: u64, message: Value) {
        let Some(method) = message["method"].as_str() else {
            return self.answers.push(message);
        };
        let params = &message["params"];
        let is_handshake = matches!(method, "initialize" | "reconnect");
        let is_repeated = is_handshake && self.current == number;
        if is_handshake {
            self.current = self.current.max(number);
        }
        // What the old connection still brings after a new one has begun does not count.
        if number != self.current {
            return;
        }
        let mut noted = params.clone();
        if params.to_string().len() > 4096 {
            noted = json!({ "size": params.to_string().len() });
        }
        self.heard.push((method.to_owned(), noted));
        if self.knobs.silent.contains(method) {
            return;
        }
        let answer = match method {
            // As most hosts do: one handshake a link, however it went.
            _ if is_repeated => Err(-32600),
            "initialize" => self.initialize(params),
            "reconnect" => self.reconnect(params),
            "subscribe" => self.subscribe(params),
            "unsubscribe" => {
                self.subscriptions.remove(params["channel"].as_str().unwrap());
                return;
            }
            "dispatchAction" => return self.dispatched(params),
            "echo" => Ok(params.clone()),
            _ => Err(-32601),
        };
        let id = &message["id"];
        let answer = match answer {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(code) => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": "no" } }),
        };
        self.order(Order::Send(answer.to_string().into()));
    }

    fn initialize(&mut self, params: &Value) -> Result<Value, i64> {
        if let Some(code) = self.knobs.initialize_error {
            return Err(code);
        }
        self.subscriptions = names(&params["initialSubscriptions"]);
        let shots: Vec<_> = self.subscriptions.iter().map(|name| self.shot(name)).collect();
        let seq = self.log.len();
        Ok(json!({ "protocolVersion": params["protocolVersions"][0], "serverSeq": seq, "snapshots": shots }))
    }

    fn reconnect(&mut self, params: &Value) -> Result<Value, i64> {
        if self.knobs.refuse_reconnect {
            return Err(-32001);
        }
        let missing = std::mem::take(&mut self.knobs.missing);
        self.subscriptions = names(&params["subscriptions"]);
        self.subscriptions.retain(|name| !missing.contains(name));
        if self.knobs.snapshots {
            let stateful = self.subscriptions.iter().filter(|name| !self.knobs.stateless.contains(*name));
            let shots: Vec<_> = stateful.map(|name| self.shot(name)).collect();
            return Ok(json!({ "type": "snapshot", "snapshots": shots }));
        }
        let last = params["lastSeenServerSeq"].as_u64().unwrap();
        let missed = self.log.iter().filter(|entry| entry.seq > last && self.subscriptions.contains(&entry.channel));
        let actions: Vec<_> = missed.map(Entry::envelope).collect();
        self.replayed_own += actions.iter().filter(|action| !action["origin"].is_null()).count();
        if self.knobs.hasty {
            let channel = self.subscriptions.first().unwrap().clone();
            self.publish(&channel, Value::Null, json!({ "type": "terminal/data", "data": "early" }));
        }
        Ok(json!({ "type": "replay", "actions": actions, "missing": missing }))
    }

    fn subscribe(&mut self, params: &Value) -> Result<Value, i64> {
        let channel = params["channel"].as_str().unwrap();
        if channel == "nowhere" {
            return Err(-32008);
        }
        self.subscriptions.insert(channel.to_owned());
        if self.knobs.stateless.contains(channel) {
            return Ok(json!({}));
        }
        Ok(json!({ "snapshot": self.shot(channel) }))
    }

    fn dispatched(&mut self, params: &Value) {
        if let Some(code) = self.knobs.close_on_dispatch {
            return self.order(Order::Close(code));
        }
        let origin = json!({ "clientId": "me", "clientSeq": params["clientSeq"] });
        let (channel, action) = (params["channel"].as_str().unwrap().to_owned(), params["action"].clone());
        self.publish(&channel, origin, action);
    }

    fn publish(&mut self, channel: &str, origin: Value, action: Value) {
        let seq = self.log.last().map_or(0, |entry| entry.seq) + 1;
        let entry = Entry { channel: channel.to_owned(), seq, origin, action };
        if self.subscriptions.contains(channel) && !self.knobs.mute {
            let message = json!({ "jsonrpc": "2.0", "method": "action", "params": entry.envelope() });
            self.order(Order::Send(message.to_string().into()));
        }
        self.log.push(entry);
    }

    /// A channel's state: the ids of its turns.
    fn shot(&self, channel: &str) -> Value {
        let turns = self.log.iter().filter(|entry| entry.channel == channel).map(|entry| &entry.action["turnId"]);
        let turns: Vec<_> = turns.filter(|id| !id.is_null()).map(|id| json!({ "id": id })).collect();
        json!({ "resource": channel, "fromSeq": self.log.len(), "state": { "turns": turns } })
    }

    fn order(&self, order: Order) {
        if let Some(live) = &self.live {
            // A connection that is gone takes nothing; the log has it.
            let _ = live.send(order);
        }
    }
}

fn names(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}
