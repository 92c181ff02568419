//! The model client: subscribes, asks, dispatches, and resumes where its mode says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use breakbulk_proto::Budget;
use breakbulk_proto::ahp::{Applied, Connection, Negotiated};
use serde_json::Value;

use crate::sim::follow::Follower;
use crate::sim::host::{Out, ROOT, What};
use crate::sim::ledger::{Lane, Ledger, digest};
use crate::sim::log::{Log, State, unhex};
use crate::sim::plan::{Mode, Plan, Sabotage};
use crate::sim::rng::Rng;
use crate::sim::tally::Tally;

/// A client, whatever its connections.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) negotiated: Negotiated,
    pub(crate) budget: Budget,
    pub(crate) stage: Stage,
    pub(crate) follower: Follower,
    applied: Applied,
    /// The highest seq that it saw.
    highest: u64,
    /// The highest seq that was settled.
    cursor: u64,
    /// A group has expired on this connection.
    expired: bool,
    known: bool,
    pending: BTreeMap<u64, Ask>,
    wanted: Vec<String>,
    /// Channels that it left, or whose snapshot was refused, on this connection: without one, actions mean nothing.
    without: BTreeSet<String>,
    /// The version of the catalogue that it knows.
    catalogue: Option<u64>,
    ids: u64,
    old_version: bool,
    flips: bool,
    sabotage: Option<Sabotage>,
}

/// Where a client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Without a link until then.
    Down(Instant),
    /// A handshake waits for its answer.
    Asking,
    Up,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Ask {
    Initialize,
    Reconnect,
    Subscribe(String),
    List,
    Other,
}

/// What surrounds a client when something happens to it.
pub(crate) struct Around<'a> {
    pub(crate) log: &'a Log,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) tally: &'a mut Tally,
}

impl Client {
    pub(crate) fn new(name: String, mode: Mode, plan: &Plan, budget: Budget, first: Vec<String>, now: Instant) -> Self {
        let mut follower = Follower::new(&name);
        let mut nothing = Ledger::default();
        // What a client asks for in its first handshake it follows from the start.
        first.iter().for_each(|channel| follower.snapshot(channel, 0, State::default(), &Log::default(), &mut nothing));
        Self {
            follower,
            name,
            mode,
            negotiated: Negotiated::default(),
            budget,
            stage: Stage::Down(now),
            applied: Applied::default(),
            highest: 0,
            cursor: 0,
            expired: false,
            known: false,
            pending: BTreeMap::new(),
            wanted: Vec::new(),
            without: BTreeSet::new(),
            catalogue: None,
            ids: 0,
            old_version: plan.old_version,
            flips: plan.flips.is_some(),
            sabotage: plan.sabotage,
        }
    }

    /// A link is there: the handshake.
    pub(crate) fn connect(&mut self, tally: &mut Tally) -> Out {
        self.stage = Stage::Asking;
        self.without.clear();
        if !self.known {
            return self.initialize();
        }
        tally.one("resumes");
        if self.mode == Mode::Settled && self.is_ahead() {
            tally.one("resumes from before what was seen");
        }
        let (name, channels, last) = (self.name.clone(), self.channels(), self.resume_from());
        self.expired = false;
        self.ask(
            Ask::Reconnect,
            "reconnect",
            &format!(
                r#""channel":"{ROOT}","clientId":"{name}","lastSeenServerSeq":{last},"subscriptions":[{channels}]"#
            ),
        )
    }

    /// The link is gone.
    pub(crate) fn disconnected(&mut self, until: Instant) {
        self.stage = Stage::Down(until);
        self.catalogue = None;
        for (_, ask) in std::mem::take(&mut self.pending) {
            if let Ask::Subscribe(channel) = ask {
                self.wanted.push(channel);
            }
        }
    }

    /// A group of the host's expired.
    pub(crate) fn expired(&mut self) {
        self.expired = true;
    }

    /// Takes note of how far the connection has settled. Before its handshake is answered this means nothing.
    pub(crate) fn note_cursor(&mut self, connection: &Connection) {
        if self.stage == Stage::Up {
            self.cursor = self.cursor.max(connection.cursor().unwrap_or(0));
        }
    }

    /// Whether it has seen more than what has settled.
    pub(crate) fn is_ahead(&self) -> bool {
        self.highest > self.cursor
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.stage == Stage::Up && self.pending.is_empty() && self.wanted.is_empty()
    }

    /// What is due as soon as the handshake is done.
    pub(crate) fn due(&mut self) -> Vec<Out> {
        if self.stage != Stage::Up {
            return Vec::new();
        }
        let mut out = Vec::new();
        if self.catalogue.is_none() && !self.pending.values().any(|ask| *ask == Ask::List) {
            out.push(self.ask(Ask::List, "listSessions", &format!(r#""channel":"{ROOT}""#)));
        }
        for channel in std::mem::take(&mut self.wanted) {
            let params = format!(r#""channel":"{channel}""#);
            out.push(self.ask(Ask::Subscribe(channel), "subscribe", &params));
        }
        out
    }

    /// Does something that its user might do.
    pub(crate) fn act(&mut self, plan: &Plan, rng: &mut Rng, channels: &[String]) -> Option<Out> {
        let channel = channels[rng.below(channels.len() as u64) as usize].clone();
        let len = plan.text_len(rng);
        let what = if plan.restless && rng.chance(60) { rng.range(8, 9) } else { rng.below(10) };
        match what {
            0..3 => {
                self.ids += 1;
                let (n, text) = (self.ids, rng.text(len));
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{{"channel":"{channel}","n":{n},"text":"{text}"}}}}"#
                );
                Some(Out { text, lane: Lane::Named("fifo".into()), what: What::Other })
            }
            3..5 => {
                let text = rng.text(len);
                Some(self.ask(Ask::Other, "resourceWrite", &format!(r#""channel":"{ROOT}","data":"{text}""#)))
            }
            5..7 => Some(self.ask(Ask::Other, "resourceRead", &format!(r#""channel":"{ROOT}","size":{len}"#))),
            7 => Some(self.ask(Ask::Other, "ping", &format!(r#""channel":"{ROOT}""#))),
            8 if self.stage == Stage::Up => self.unsubscribe(),
            _ => {
                let asked = self.pending.values().any(|ask| *ask == Ask::Subscribe(channel.clone()));
                if !asked && !self.follower.follows(&channel) && !self.wanted.contains(&channel) {
                    self.wanted.push(channel);
                }
                None
            }
        }
    }

    /// Leaves a channel, perhaps to come back.
    fn unsubscribe(&mut self) -> Option<Out> {
        let channel = self.follower.channels().next()?.to_owned();
        self.follower.leave(&channel);
        self.applied.forget(&channel);
        self.without.insert(channel.clone());
        self.ids += 1;
        let n = self.ids;
        let text = format!(r#"{{"jsonrpc":"2.0","method":"unsubscribe","params":{{"channel":"{channel}","n":{n}}}}}"#);
        Some(Out { text, lane: Lane::Named("fifo".into()), what: What::Other })
    }

    /// A message from the host.
    pub(crate) fn message(
        &mut self,
        text: &[u8],
        ordinal: u64,
        connection: &mut Connection,
        around: &mut Around<'_>,
    ) -> Vec<Out> {
        let message: Value = serde_json::from_slice(text).expect("what arrives is JSON");
        let params = &message["params"];
        match message["method"].as_str() {
            Some("action") => self.action(params, around),
            Some("resourceRead") => return vec![answer(&message)],
            Some("root/sessionAdded") => self.session_added(params["version"].as_u64().unwrap_or(0), around),
            Some(_) => {}
            None => return self.response(&message, ordinal, connection, around),
        }
        Vec::new()
    }

    /// A request of this client failed on this side: its caller sees `reply`.
    pub(crate) fn failed(&mut self, reply: &[u8], around: &mut Around<'_>) {
        let reply: Value = serde_json::from_slice(reply).expect("a reply is JSON");
        around.tally.one("requests that failed here");
        // A handshake that goes down with its link is sent again on the next one.
        let is_cut_off = reply["error"]["data"]["reason"] == "send-disconnected";
        match reply["id"].as_u64().and_then(|id| self.pending.remove(&id)) {
            Some(Ask::Subscribe(channel)) => self.wanted.push(channel),
            Some(Ask::Initialize | Ask::Reconnect) if !is_cut_off => {
                around.ledger.lost(format!("{}: a handshake could not be sent", self.name));
            }
            _ => {}
        }
    }

    fn response(
        &mut self,
        message: &Value,
        ordinal: u64,
        connection: &mut Connection,
        around: &mut Around<'_>,
    ) -> Vec<Out> {
        let id = message["id"].as_u64().unwrap_or(0);
        let Some(ask) = self.pending.remove(&id) else {
            around.ledger.duplicated(format!("{}: an answer to {id}, which nobody waits for", self.name));
            return Vec::new();
        };
        if message.get("error").is_some() {
            return self.refused(ask, around);
        }
        let result = &message["result"];
        assert!(self.flips || result.get("capabilities").is_none(), "the client's application sees a capability");
        let settled = match ask {
            Ask::Initialize => {
                self.stage = Stage::Up;
                self.known = true;
                self.snapshots(&result["snapshots"], around);
                result["serverSeq"].as_u64()
            }
            Ask::Reconnect => {
                self.stage = Stage::Up;
                let from = self.resume_from();
                let seqs = result["actions"].as_array().into_iter().flatten().map(|action| {
                    self.action(action, around);
                    action["serverSeq"].as_u64().unwrap_or(0)
                });
                let replayed = seqs.max().unwrap_or(0);
                Some(from.max(replayed).max(self.snapshots(&result["snapshots"], around)))
            }
            Ask::Subscribe(_) => self.snapshot(&result["snapshot"], around),
            Ask::List => {
                self.catalogue = result["sessions"].as_u64();
                None
            }
            Ask::Other => None,
        };
        if let Some(seq) = settled {
            self.highest = self.highest.max(seq);
            connection.note_seq(ordinal, seq);
        }
        Vec::new()
    }

    /// The host's answer is an error: it was too large, and will be smaller the next time.
    fn refused(&mut self, ask: Ask, around: &mut Around<'_>) -> Vec<Out> {
        around.tally.one("answers that were too large");
        match ask {
            Ask::Initialize | Ask::Reconnect => {
                around.tally.one("falls back to initialize");
                self.known = false;
                vec![self.initialize()]
            }
            Ask::Subscribe(channel) => {
                self.without.insert(channel.clone());
                self.wanted.push(channel);
                Vec::new()
            }
            Ask::List | Ask::Other => Vec::new(),
        }
    }

    fn action(&mut self, envelope: &Value, around: &mut Around<'_>) {
        let channel = envelope["channel"].as_str().unwrap_or_default();
        let seq = envelope["serverSeq"].as_u64().unwrap_or(0);
        let text = envelope["action"]["text"].as_str().unwrap_or_default();
        if self.stage == Stage::Asking || self.without.contains(channel) {
            around.tally.one("actions without a snapshot");
            return;
        }
        if self.mode == Mode::Settled && !self.applied.admit(channel, seq) {
            around.tally.one("actions skipped as applied");
            return;
        }
        self.highest = self.highest.max(seq);
        let digest = if envelope["action"]["type"] == "ref" {
            around.tally.one("actions by reference");
            unhex(text).unwrap_or_default()
        } else {
            digest(text.as_bytes())
        };
        around.tally.one("actions applied");
        around.tally.add("actions applied after an expiry", self.expired.into());
        self.follower.apply(channel, seq, digest, around.log, around.ledger);
    }

    fn snapshots(&mut self, snapshots: &Value, around: &mut Around<'_>) -> u64 {
        let snapshots = snapshots.as_array().into_iter().flatten();
        snapshots.filter_map(|snapshot| self.snapshot(snapshot, around)).max().unwrap_or(0)
    }

    fn snapshot(&mut self, snapshot: &Value, around: &mut Around<'_>) -> Option<u64> {
        let channel = snapshot["resource"].as_str()?;
        let from = snapshot["fromSeq"].as_u64()?;
        let sum = unhex(snapshot["state"]["sum"].as_str()?)?;
        let state = State { count: snapshot["state"]["count"].as_u64()?, sum };
        self.without.remove(channel);
        let counts = self.sabotage != Some(Sabotage::SnapshotAppliedTwice);
        if self.mode != Mode::Settled || !counts || self.applied.snapshot(channel, from) {
            self.follower.snapshot(channel, from, state, around.log, around.ledger);
        }
        Some(from)
    }

    fn session_added(&mut self, version: u64, around: &mut Around<'_>) {
        // Before the list is there, it cannot be added to.
        let Some(known) = self.catalogue else { return };
        let about = format!("{}: catalogue version {version} after {known}", self.name);
        match version.cmp(&(known + 1)) {
            std::cmp::Ordering::Equal => self.catalogue = Some(version),
            std::cmp::Ordering::Less => around.ledger.duplicated(about),
            std::cmp::Ordering::Greater => around.ledger.lost(about),
        }
    }

    fn initialize(&mut self) -> Out {
        let version = if self.old_version { r#""0.2.0""# } else { r#""0.3.0","0.2.0""# };
        let (name, channels) = (self.name.clone(), self.channels());
        self.ask(Ask::Initialize, "initialize", &format!(
            r#""channel":"{ROOT}","protocolVersions":[{version}],"clientId":"{name}","initialSubscriptions":[{channels}]"#
        ))
    }

    fn ask(&mut self, ask: Ask, method: &str, params: &str) -> Out {
        self.ids += 1;
        self.pending.insert(self.ids, ask);
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{{{params}}}}}"#, self.ids);
        // A ping waits for nothing, and everything else waits for a handshake.
        let free = matches!(method, "ping" | "initialize" | "reconnect");
        let lane = if free { Lane::Free } else { Lane::Named("fifo".into()) };
        Out { text, lane, what: What::Other }
    }

    fn channels(&self) -> String {
        self.follower.channels().map(|channel| format!(r#""{channel}""#)).collect::<Vec<_>>().join(",")
    }

    /// The seq to resume from.
    fn resume_from(&self) -> u64 {
        let ignores_expiry = self.sabotage == Some(Sabotage::CursorPastExpired) && self.expired;
        if self.mode == Mode::Settled && !ignores_expiry { self.cursor } else { self.highest }
    }
}

/// What a client answers when the host asks for a resource.
fn answer(request: &Value) -> Out {
    let (id, size) = (&request["id"], request["params"]["size"].as_u64().unwrap_or(0));
    let data = "x".repeat(size.min(100_000) as usize);
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"data":"{data}"}}}}"#);
    Out { text, lane: Lane::Free, what: What::Other }
}
