//! A `cep22` world: several clients and a server that know each other only through a relay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use breakbulk_proto::cep22::{Config, Connection};
use breakbulk_proto::{
    Budget, BudgetConfig, CloseReason, Event, Input, Lane as Order, Limits, LimitsConfig, Machine, Meta, SendError,
    Ticket, Transmit, Violation,
};
use serde_json::Value;

use crate::sim::ledger::{Lane, Ledger, Strictness};
use crate::sim::middle::{DOWN, UP};
use crate::sim::relay::{Deed, Manner, Relay};
use crate::sim::rng::Rng;
use crate::sim::tally::Tally;
use crate::sim::trace::{front, trace};
use crate::sim::world::Outcome;

const SERVER: &str = "server";
const MAX_STEPS: u32 = 20_000;

/// Runs a world to its end.
pub(crate) fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    while world.steps < MAX_STEPS && !world.is_at_rest() {
        world.step();
    }
    world.finish()
}

struct World {
    rng: Rng,
    now: Instant,
    relay: Relay,
    /// The server is the first.
    peers: Vec<Peer>,
    ledger: Ledger,
    tally: Tally,
    /// A relay that never answers leaves a sender in doubt about what arrived.
    doubtful: bool,
    /// Parts of transfers are corrupted: then much may fail, but nothing may arrive that nobody sent.
    flips: bool,
    /// Nothing goes wrong, so no transfer may fail.
    calm: bool,
    /// A token that is free is used again.
    reuses: bool,
    operations: u32,
    next_operation: Instant,
    max_text: u64,
    steps: u32,
}

struct Peer {
    name: Arc<str>,
    machine: Connection,
    budget: Budget,
    closed: bool,
    ids: u64,
    /// Requests without an answer, with their tokens.
    pending: BTreeMap<u64, Option<u64>>,
    injects: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xCE22);
        let now = Instant::now();
        let calm = rng.chance(25);
        let cap = rng.range(1500, 6000);
        let manner = Manner {
            cap,
            real_cap: if !calm && rng.chance(15) { cap * 2 / 3 } else { cap },
            latency: rng.millis(1, 80),
            jitter: if calm { Duration::ZERO } else { rng.millis(0, 120) },
            repeats: if calm { 0 } else { rng.pick(&[0, 5, 30]) },
            per_second: (!calm && rng.chance(40)).then(|| rng.range(5, 60)),
            flips: if !calm && rng.chance(15) { 4 } else { 0 },
            unanswered: if !calm && rng.chance(10) { 3 } else { 0 },
        };
        let budget = BudgetConfig { process_bytes: 4 << 20, principal_bytes: 1 << 20, floor_bytes: 64 << 10 };
        let (clients, max_transfers) = (rng.range(1, 4), rng.range(1, 64) as u32);
        let peer = |n: u64, rng: &mut Rng| {
            let limits = LimitsConfig {
                max_frame_bytes: 8 << 10,
                max_message_bytes: rng.range(24 << 10, 64 << 10),
                ..LimitsConfig::default()
            };
            let name: Arc<str> = if n == 0 { SERVER.into() } else { format!("client-{n}").into() };
            let injects = n > 0 && rng.chance(30);
            let config = Config {
                limits: Limits::prove(limits, &budget).expect("the limits hold together"),
                acks: true,
                known_support: rng.chance(20),
                inject_tokens: injects,
                publish_window: rng.range(1, 21) as u32,
                max_transfers,
                seed: rng.next(),
                ..Config::default()
            };
            let own = Budget::new(budget);
            let machine = Connection::new(config, own.account(Some(&name)));
            Peer { name, machine, budget: own, closed: false, ids: 0, pending: BTreeMap::new(), injects }
        };
        let relay = Relay::new(manner);
        let mut peers: Vec<_> = (0..=clients).map(|n| peer(n, &mut rng)).collect();
        let mut ledger = Ledger::default();
        for (n, peer) in peers.iter_mut().enumerate() {
            peer.machine.handle(Input::Capacity(relay.capacity()), now);
            ledger.open((n as u64, UP), format!("requests of {}", peer.name), Strictness::PerLane);
            ledger.open((n as u64, DOWN), format!("answers to {}", peer.name), Strictness::PerLane);
        }
        Self {
            now,
            relay,
            peers,
            ledger,
            tally: Tally::default(),
            doubtful: manner.unanswered > 0 || manner.flips > 0,
            flips: manner.flips > 0,
            calm,
            reuses: calm || rng.chance(50),
            operations: rng.range(3, 25) as u32,
            next_operation: now,
            max_text: rng.pick(&[2000, 10_000, 30_000]),
            steps: 0,
            rng,
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        while self.operations > 0 && self.next_operation <= self.now {
            self.operations -= 1;
            self.next_operation = self.now + self.rng.millis(0, 200);
            self.request();
        }
        while let Some((to, deed)) = self.relay.next(self.now) {
            let Some(peer) = self.peers.iter_mut().find(|peer| peer.name == to) else { continue };
            let input = match deed {
                Deed::Deliver { bytes, meta } => {
                    trace(|| format!("{} reads {}", peer.name, front(&bytes)));
                    Input::Frame { bytes, meta }
                }
                Deed::Answer { tag, result } => Input::Acked { tag, result },
            };
            peer.machine.handle(input, self.now);
            self.poll_all();
        }
        for peer in &mut self.peers {
            if peer.machine.poll_timeout().is_some_and(|at| at <= self.now) {
                peer.machine.handle(Input::Timeout, self.now);
            }
        }
        self.poll_all();
        for peer in &self.peers {
            let due = peer.machine.poll_timeout().is_some_and(|at| at <= self.now);
            assert!(!due, "{}: a timeout is due at once: {:?}", peer.name, peer.machine);
        }
        self.pass_time();
    }

    fn poll_all(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..self.peers.len() {
                while let Some(transmit) = self.peers[at].machine.poll_transmit(self.now) {
                    moved = true;
                    self.transmit(at, transmit);
                }
                while let Some(event) = self.peers[at].machine.poll_event() {
                    moved = true;
                    self.event(at, event);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn transmit(&mut self, at: usize, transmit: Transmit) {
        match transmit {
            Transmit::Frame { tag, bytes, meta } => {
                let bytes = bytes.to_bytes();
                let name = self.peers[at].name.clone();
                trace(|| format!("{name} writes {}", front(&bytes)));
                self.relay.publish(&name, (tag, bytes, meta), self.now, &mut self.rng, &mut self.tally);
            }
            Transmit::Close(_) => {
                assert!(!std::mem::replace(&mut self.peers[at].closed, true), "Close comes twice");
            }
        }
    }

    /// A client calls a tool: with a token that other clients use too, or without one.
    fn request(&mut self) {
        let at = self.rng.range(1, self.peers.len() as u64 - 1) as usize;
        let (size, answer) = (self.text_len(), self.text_len());
        let text = self.rng.text(size as usize);
        let peer = &mut self.peers[at];
        peer.ids += 1;
        let id = peer.ids;
        // A token is used again at once: what is left of its last use may still be on its way.
        let free = |token: &u64| !peer.pending.values().any(|used| *used == Some(*token));
        let token = if self.reuses { (1..).find(free) } else { Some(id) };
        let token = token.filter(|_| self.rng.chance(85));
        // A number or a string: on the wire they are the same.
        let meta = match token {
            Some(token) if token % 2 == 0 => format!(r#","_meta":{{"progressToken":{token}}}"#),
            Some(token) => format!(r#","_meta":{{"progressToken":"{token}"}}"#),
            None => String::new(),
        };
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"answer":{answer},"text":"{text}"{meta}}}}}"#
        );
        peer.pending.insert(id, token);
        self.tally.one("relay requests");
        self.ledger.handed((at as u64, UP), id, Lane::Free, text.as_bytes());
        self.send(at, id, text, SERVER.into());
    }

    fn send(&mut self, at: usize, ticket: u64, text: String, to: Arc<str>) {
        let meta = Meta { peer: Some(to), ..Meta::default() };
        let input = Input::Send { ticket: Ticket(ticket), message: text.into(), lane: Order::Auto, meta };
        self.peers[at].machine.handle(input, self.now);
    }

    fn event(&mut self, at: usize, event: Event) {
        trace(|| format!("{} event {event:?}", self.peers[at].name));
        match event {
            Event::Message { message, meta, ordinal, .. } => {
                let text = message.to_bytes();
                if at == 0 { self.asked(&text, &meta) } else { self.answered(at, &text, ordinal) }
            }
            Event::SendFailed { ticket, error, reply } if at > 0 => {
                self.doubt(&error);
                if self.doubtful && error == SendError::Refused {
                    self.ledger.excuse((at as u64, UP), ticket.0);
                    self.ledger.excuse((at as u64, DOWN), ticket.0);
                } else {
                    self.ledger.failed((at as u64, UP), ticket.0);
                }
                let waits = self.peers[at].pending.contains_key(&ticket.0);
                assert!(reply.is_some() || !waits, "a request fails, and its caller is not told");
                if reply.is_some() {
                    self.resolve(at, ticket.0);
                }
            }
            Event::SendFailed { ticket, error, .. } => {
                self.doubt(&error);
                let (client, id) = (ticket.0 >> 32, ticket.0 & 0xFFFF_FFFF);
                self.ledger.excuse((client, DOWN), id);
            }
            Event::ReceiveFailed { violation, reply, .. } => {
                self.tally.one("transfers that failed");
                let told = matches!(violation, Violation::MessageTooLarge { .. } | Violation::Aborted);
                if self.calm && !told {
                    self.ledger.lost(format!("a transfer failed on a relay without faults: {violation}"));
                }
                if let Some(reply) = reply.filter(|_| at > 0) {
                    self.answered(at, &reply.to_bytes(), 0);
                }
            }
            Event::Expired { .. } => self.tally.one("transfers that expired"),
            Event::Closed(_) => self.tally.one("relay peers closed"),
            _ => {}
        }
    }

    /// The server gets a request, and answers it.
    fn asked(&mut self, text: &[u8], meta: &Meta) {
        if self.is_garbled(text) {
            return;
        }
        let from = meta.peer.clone().expect("a relay names senders");
        let client = self.peers.iter().position(|peer| peer.name == from).expect("a client");
        let text = if self.peers[client].injects { without_token(text) } else { text.to_vec() };
        self.ledger.arrived((client as u64, UP), 0, &text);
        self.tally.one("relay messages received");
        let request: Value = serde_json::from_slice(&text).expect("what arrives is JSON");
        let id = request["id"].as_u64().unwrap_or(0);
        let len = request["params"]["answer"].as_u64().unwrap_or(0);
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"text":"{}"}}}}"#, self.rng.text(len as usize));
        self.ledger.handed((client as u64, DOWN), id, Lane::Free, answer.as_bytes());
        if !self.peers[client].pending.contains_key(&id) {
            // Its caller was told that it failed, because the relay never said that it arrived.
            self.ledger.excuse((client as u64, DOWN), id);
        }
        self.send(0, (client as u64) << 32 | id, answer, from);
    }

    /// A client gets an answer, or hears that there will be none.
    fn answered(&mut self, at: usize, text: &[u8], ordinal: u64) {
        let answer: Value = serde_json::from_slice(text).expect("what arrives is JSON");
        if self.is_garbled(text) {
            return;
        }
        let id = answer["id"].as_u64().unwrap_or(0);
        if answer.get("error").is_some() {
            self.tally.one("callers told of a failure");
            self.ledger.excuse((at as u64, UP), id);
            self.ledger.excuse((at as u64, DOWN), id);
        } else {
            self.tally.one("relay messages received");
            self.ledger.arrived((at as u64, DOWN), ordinal, text);
        }
        self.resolve(at, id);
    }

    /// Whether this was a part of a transfer until its method or its type was corrupted.
    fn is_garbled(&self, text: &[u8]) -> bool {
        self.flips && serde_json::from_slice::<Value>(text).is_ok_and(|value| value.get("id").is_none())
    }

    fn resolve(&mut self, at: usize, id: u64) {
        let peer = &mut self.peers[at];
        if peer.pending.remove(&id).is_none() && !self.doubtful {
            self.ledger.duplicated(format!("{}: a second answer to {id}", peer.name));
        }
    }

    fn doubt(&mut self, error: &SendError) {
        self.tally.one(error.name());
        let told = matches!(error, SendError::NoToken { .. } | SendError::TooLarge { .. });
        if self.calm && !told && !matches!(error, SendError::Aborted) {
            self.ledger.lost(format!("a message failed on a relay without faults: {error}"));
        }
    }

    fn text_len(&mut self) -> u64 {
        let high = if self.rng.chance(50) { 500 } else { self.max_text };
        self.rng.range(10, high)
    }

    fn pass_time(&mut self) {
        let timers = self.peers.iter().filter_map(|peer| peer.machine.poll_timeout());
        let operation = (self.operations > 0).then_some(self.next_operation);
        let wake = timers.chain(self.relay.wake()).chain(operation).min();
        self.now = self.now.max(wake.unwrap_or(self.now));
    }

    fn is_at_rest(&self) -> bool {
        self.operations == 0
            && self.relay.wake().is_none()
            && self.peers.iter().all(|peer| peer.machine.poll_timeout().is_none())
    }

    fn finish(mut self) -> Outcome {
        if self.steps >= MAX_STEPS {
            self.ledger.lost("the world did not come to rest".into());
        }
        if self.flips {
            self.tally.one("runs with a relay that flips bits");
        } else {
            for (peer, id) in self.peers.iter().flat_map(|peer| peer.pending.keys().map(move |id| (peer, id))) {
                self.ledger.lost(format!("{}: the caller of {id} was never told", peer.name));
            }
            self.ledger.settle();
        }
        let held: u64 = self.peers.iter().map(|peer| peer.budget.held()).sum();
        if held > 0 {
            self.ledger.altered(format!("{held} bytes are charged at rest"));
        }
        for at in 0..self.peers.len() {
            self.peers[at].machine.handle(Input::Close(CloseReason::Normal), self.now);
        }
        self.poll_all();
        assert!(self.peers.iter().all(|peer| peer.closed), "no Close after a close");
        self.tally.one("runs with a relay");
        self.tally.add("relay steps", self.steps.into());
        Outcome { counts: self.ledger.counts, notes: self.ledger.notes, tally: self.tally }
    }
}

/// The request as its application wrote it, before its machine added a token.
fn without_token(text: &[u8]) -> Vec<u8> {
    const ADDED: &str = r#""_meta":{"progressToken":"bb-"#;
    let text = String::from_utf8(text.to_vec()).expect("what arrives is UTF-8");
    let Some(at) = text.find(ADDED) else { return text.into_bytes() };
    let end = text[at..].find("},").expect("a token ends") + at + 2;
    [&text[..at], &text[end..]].concat().into_bytes()
}
