//! The model client's memory across its connections: what it applied, what it waits for, and where it resumes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use breakbulk::{AnyMachine, Dialect, Setup};
use breakbulk_proto::ahp::{Applied, Delivery, Negotiated, Role};
use breakbulk_proto::{Account, Budget};
use serde_json::Value;

use crate::sim::follow::Follower;
use crate::sim::host::limits;
use crate::sim::ledger::{Ledger, digest};
use crate::sim::line::Out;
use crate::sim::log::{Log, State, unhex};
use crate::sim::plan::{Mode, Plan, Sabotage};
use crate::sim::rng::Rng;
use crate::sim::shared::{Books, Facts};

/// A client, whatever its connections.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) follower: Follower,
    /// Its last link.
    pub(crate) link: Option<u64>,
    /// What its user wants next.
    pub(crate) todo: VecDeque<Deed>,
    pub(crate) rng: Rng,
    negotiated: Negotiated,
    budget: Budget,
    pub(super) stage: Stage,
    applied: Applied,
    /// The highest seq that it saw.
    highest: u64,
    /// The highest seq that was settled.
    cursor: u64,
    pub(super) known: bool,
    pub(super) pending: BTreeMap<u64, Ask>,
    pub(super) wanted: Vec<String>,
    pub(super) ids: u64,
    /// Connections in a row that came to nothing.
    attempts: u32,
    sabotage: Option<Sabotage>,
}

/// What a user might do.
#[derive(Debug, Clone)]
pub(crate) enum Deed {
    Dispatch(String, usize),
    Write(usize),
    Read(usize),
    Ping,
    Subscribe(String),
}

/// Where a client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Down,
    /// A handshake waits for its answer.
    Asking,
    Up,
}

/// What a request is to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    Initialize,
    Reconnect,
    Subscribe(String),
    Other,
}

/// The client's side of what happens on a connection.
impl Facts {
    /// The client has no connection (any more): how long it waits before the next.
    pub(crate) fn client_down(&mut self, at: usize) -> Duration {
        let client = &mut self.clients[at];
        client.disconnected(&mut self.books);
        client.backoff()
    }

    /// A connection is there: the handshake.
    pub(crate) fn client_greets(&mut self, at: usize) -> Out {
        self.clients[at].connect(&mut self.books)
    }

    /// What the client says without being asked.
    pub(crate) fn client_wants(&mut self, at: usize) -> Vec<Out> {
        self.clients[at].due(&mut self.books)
    }

    /// A message from the host: what the client says to it.
    pub(crate) fn client_hears(
        &mut self,
        at: usize,
        text: &[u8],
        ordinal: u64,
        machine: &mut AnyMachine,
    ) -> Option<Out> {
        let message: Value = serde_json::from_slice(text).expect("what arrives is JSON");
        let (client, log, books) = (&mut self.clients[at], &self.log, &mut self.books);
        let out = match message["method"].as_str() {
            Some("action") => {
                client.action(&message["params"], log, books);
                None
            }
            Some("resourceRead") => Some(client.answer(&message)),
            Some(_) => None,
            None => client.response(&message, ordinal, machine, log, books),
        };
        client.note_cursor(machine);
        out
    }

    /// A request of the client's failed on its own side: its caller sees `reply`.
    pub(crate) fn client_failed(&mut self, at: usize, reply: &[u8]) {
        let reply: Value = serde_json::from_slice(reply).expect("a reply is JSON");
        let client = &mut self.clients[at];
        let ask = reply["id"].as_u64().and_then(|id| client.pending.remove(&id));
        if reply["error"]["data"]["reason"] == "send-disconnected" {
            // The connection's end is about to be told. What is said until then only fails too.
            client.stage = Stage::Down;
        }
        if let Some(Ask::Subscribe(channel)) = &ask {
            client.wanted.push(channel.clone());
        }
        self.books
            .refused(ask.is_some(), || format!("{}: {} failed, which nobody waits for", client.name, reply["id"]));
    }
}

impl Client {
    pub(crate) fn new(name: String, mode: Mode, plan: &Plan, budget: Budget, first: Vec<String>, rng: Rng) -> Self {
        let mut follower = Follower::new(&name);
        let mut nothing = Ledger::default();
        // What a client asks for in its first handshake it follows from the start.
        first.iter().for_each(|channel| follower.snapshot(channel, 0, State::default(), &Log::default(), &mut nothing));
        Self {
            name,
            mode,
            follower,
            link: None,
            todo: VecDeque::new(),
            rng,
            negotiated: Negotiated::default(),
            budget,
            stage: Stage::Down,
            applied: Applied::default(),
            highest: 0,
            cursor: 0,
            known: false,
            pending: BTreeMap::new(),
            wanted: Vec::new(),
            ids: 0,
            attempts: 0,
            sabotage: plan.sabotage,
        }
    }

    /// What its next machine is made from.
    pub(crate) fn setup(&self, plan: &Plan) -> (Setup, Account) {
        let dialect = if self.mode == Mode::Plain { Dialect::Plain } else { Dialect::Ahp };
        let mut setup = Setup::new(dialect, Role::Client, limits(dialect, plan));
        setup.negotiated = self.negotiated.clone();
        setup.delivery = if self.mode == Mode::Settled { Delivery::Settled } else { Delivery::StartOrder };
        (setup, self.budget.account(Some(&self.name)))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// Whether it has seen more than what has settled.
    pub(crate) const fn is_ahead(&self) -> bool {
        matches!(self.mode, Mode::Settled) && self.highest > self.cursor
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_up() && self.pending.is_empty() && self.wanted.is_empty() && self.todo.is_empty()
    }

    /// What it waits for.
    pub(crate) fn about(&self) -> String {
        let Self { name, mode, stage, pending, wanted, todo, link, .. } = self;
        format!("{name} {mode:?} {stage:?} on {link:?} waits for {pending:?}, wants {wanted:?}, {todo:?}")
    }

    fn disconnected(&mut self, books: &mut Books) {
        self.stage = Stage::Down;
        self.todo.clear();
        books.rejected(self.pending.len());
        for (_, ask) in std::mem::take(&mut self.pending) {
            if let Ask::Subscribe(channel) = ask {
                self.wanted.push(channel);
            }
        }
    }

    /// Full jitter: any time up to twice as long as the last time.
    fn backoff(&mut self) -> Duration {
        let most = 40 << self.attempts.min(5);
        self.attempts += 1;
        self.rng.millis(0, most)
    }

    fn response(
        &mut self,
        message: &Value,
        ordinal: u64,
        machine: &mut AnyMachine,
        log: &Log,
        books: &mut Books,
    ) -> Option<Out> {
        let ask = message["id"].as_u64().and_then(|id| self.pending.remove(&id));
        books.answered(ask.is_some(), || format!("{}: an answer that nobody waits for: {}", self.name, message["id"]));
        let ask = ask?;
        if message.get("error").is_some() {
            return self.refused(ask, &message["error"], books);
        }
        let result = &message["result"];
        assert!(result.get("capabilities").is_none(), "the client's application sees a capability");
        let settled = match ask {
            Ask::Initialize => {
                (self.stage, self.known, self.attempts) = (Stage::Up, true, 0);
                self.snapshots(&result["snapshots"], log, books);
                result["serverSeq"].as_u64()
            }
            Ask::Reconnect => {
                (self.stage, self.attempts) = (Stage::Up, 0);
                let from = self.resume_from();
                let actions = result["actions"].as_array().into_iter().flatten();
                let replayed = actions.map(|action| self.action(action, log, books)).max().unwrap_or(0);
                Some(from.max(replayed).max(self.snapshots(&result["snapshots"], log, books)))
            }
            Ask::Subscribe(_) => self.snapshot(&result["snapshot"], log, books),
            Ask::Other => None,
        };
        if let Some(seq) = settled {
            self.highest = self.highest.max(seq);
            if let AnyMachine::Ahp(connection) = machine {
                connection.note_seq(ordinal, seq);
            }
        }
        None
    }

    /// The answer is an error: a gateway could not reach the host any more, or the real one could not be sent.
    fn refused(&mut self, ask: Ask, error: &Value, books: &mut Books) -> Option<Out> {
        let is_cut_off = error["data"]["reason"] == "send-disconnected";
        books.tally.one(if is_cut_off { "answers by a gateway cut off" } else { "answers that could not be sent" });
        match ask {
            Ask::Initialize | Ask::Reconnect => {
                self.known = false;
                Some(self.initialize(books))
            }
            Ask::Subscribe(channel) => {
                self.wanted.push(channel);
                None
            }
            Ask::Other => None,
        }
    }

    /// Applies an action, unless it has been applied: its seq.
    fn action(&mut self, envelope: &Value, log: &Log, books: &mut Books) -> u64 {
        let channel = envelope["channel"].as_str().unwrap_or_default();
        let seq = envelope["serverSeq"].as_u64().unwrap_or(0);
        let text = envelope["action"]["text"].as_str().unwrap_or_default();
        if self.stage == Stage::Asking {
            books.tally.one("actions before the handshake");
            return seq;
        }
        let is_new = self.mode != Mode::Settled || self.applied.admit(channel, seq);
        if !is_new && self.sabotage != Some(Sabotage::AppliedTwice) {
            books.tally.one("actions skipped as applied");
            return seq;
        }
        self.highest = self.highest.max(seq);
        books.tally.one("actions applied");
        self.follower.apply(channel, seq, digest(text.as_bytes()), log, &mut books.ledger);
        seq
    }

    fn snapshots(&mut self, snapshots: &Value, log: &Log, books: &mut Books) -> u64 {
        let snapshots = snapshots.as_array().into_iter().flatten();
        snapshots.filter_map(|snapshot| self.snapshot(snapshot, log, books)).max().unwrap_or(0)
    }

    fn snapshot(&mut self, snapshot: &Value, log: &Log, books: &mut Books) -> Option<u64> {
        let channel = snapshot["resource"].as_str()?;
        let from = snapshot["fromSeq"].as_u64()?;
        let sum = unhex(snapshot["state"]["sum"].as_str()?)?;
        let state = State { count: snapshot["state"]["count"].as_u64()?, sum };
        if self.mode != Mode::Settled || self.applied.snapshot(channel, from) {
            self.follower.snapshot(channel, from, state, log, &mut books.ledger);
        }
        Some(from)
    }

    /// Takes note of how far the connection has settled. Before its handshake is answered this means nothing.
    fn note_cursor(&mut self, machine: &AnyMachine) {
        if let AnyMachine::Ahp(connection) = machine
            && self.is_up()
        {
            self.cursor = self.cursor.max(connection.cursor().unwrap_or(0));
        }
    }

    /// The seq to resume from.
    pub(super) fn resume_from(&self) -> u64 {
        let is_settled = self.mode == Mode::Settled && self.sabotage != Some(Sabotage::HighestCursor);
        if is_settled { self.cursor } else { self.highest }
    }
}
