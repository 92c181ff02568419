//! The model host: a log of actions, sessions that outlive connections, and answers to every request.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use breakbulk_proto::SendError;
use breakbulk_proto::ahp::{Chunking, Negotiated};
use serde_json::Value;

use crate::sim::ledger::Lane;
use crate::sim::log::{Action, Log, hex};
use crate::sim::plan::{Plan, Sabotage};
use crate::sim::rng::Rng;
use crate::sim::tally::Tally;

pub(crate) const ROOT: &str = "ahp-root://";

/// A message that an application hands to its machine.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) text: String,
    pub(crate) lane: Lane,
    pub(crate) what: What,
}

/// What a message is to its sender, should it fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Action,
    /// The answer to a handshake: it has snapshots, which may be made smaller.
    Handshake,
    /// The answer to `subscribe`, for this channel.
    Snapshot(String),
    Other,
}

/// The host, whatever its connections.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) log: Log,
    pub(crate) channels: Vec<String>,
    pub(crate) negotiated: Negotiated,
    sessions: HashMap<String, Session>,
    /// How many sessions the catalogue lists.
    catalogue: u64,
    /// How many requests of its own it has made.
    asked: u64,
    rng: Rng,
    old_version: bool,
    floods: bool,
    flips: bool,
    sabotage: Option<Sabotage>,
}

/// What the host knows about a client beyond its connection.
#[derive(Debug, Default, Clone, Copy)]
struct Session {
    /// Longer actions go by reference, because they did not go otherwise.
    max_action: Option<u64>,
    /// Snapshots are kept small, because a full one did not go.
    small: bool,
}

/// The host's side of one connection.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    client: String,
    /// Everything up to here has been handed to the machine, as far as the client follows it.
    position: u64,
    follows: BTreeSet<String>,
    ready: bool,
    /// Messages handed over that are neither sent nor failed, with their sizes.
    under_way: BTreeMap<u64, (What, u64)>,
    tickets: u64,
    /// An action that a saboteur keeps back, and how many may pass it.
    kept: Option<(Action, u32)>,
}

/// What the link lets through, as the host knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) peer: Option<Chunking>,
    pub(crate) cap: u64,
}

impl Room {
    fn message(&self) -> u64 {
        self.peer.map_or(self.cap, |peer| peer.max_message_bytes)
    }
}

impl Host {
    pub(crate) fn new(plan: &Plan, rng: Rng) -> Self {
        Self {
            log: Log::default(),
            channels: (0..plan.channels).map(|n| format!("ahp-session:/{n}")).collect(),
            negotiated: Negotiated::default(),
            sessions: HashMap::new(),
            catalogue: 0,
            asked: 0,
            rng,
            old_version: plan.old_version,
            floods: plan.floods,
            flips: plan.flips.is_some(),
            sabotage: plan.sabotage,
        }
    }

    /// Something happens on a channel.
    pub(crate) fn act(&mut self, channel: &str, text: String) {
        let gap = self.rng.pick(&[1, 1, 1, 2, 7]);
        self.log.append(gap, channel, text);
    }

    /// A session is added to the catalogue: all who are connected are told at once.
    pub(crate) fn add_session(&mut self, tally: &mut Tally) -> Out {
        self.catalogue += 1;
        tally.one("catalogue notifications");
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"root/sessionAdded","params":{{"channel":"{ROOT}","version":{}}}}}"#,
            self.catalogue
        );
        Out { text, lane: Lane::Named(ROOT.into()), what: What::Other }
    }

    /// The host asks a client for a resource.
    pub(crate) fn ask(&mut self, plan: &Plan) -> Out {
        self.asked += 1;
        let (n, size) = (self.asked, plan.text_len(&mut self.rng));
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":"host-{n}","method":"resourceRead","params":{{"channel":"{ROOT}","size":{size}}}}}"#
        );
        Out { text, lane: Lane::Free, what: What::Other }
    }

    /// The actions that the next turn hands over: as many as go, or as wait.
    pub(crate) fn pull(&mut self, desk: &mut Desk, to_the_end: bool) -> Vec<Out> {
        let mut out = Vec::new();
        if !desk.ready {
            return out;
        }
        let session = self.sessions.get(&desk.client).copied().unwrap_or_default();
        let mut bytes: u64 = desk.under_way.values().map(|(_, size)| size).sum();
        for action in self.log.after(desk.position) {
            if bytes > 24 << 10 && !self.floods && !to_the_end {
                break;
            }
            desk.position = action.seq;
            if !desk.follows.contains(&action.channel) {
                continue;
            }
            for action in overtake(desk, action, self.sabotage) {
                let sent = send_action(&action, session);
                bytes += sent.text.len() as u64;
                out.push(sent);
            }
        }
        if out.is_empty()
            && desk.under_way.is_empty()
            && let Some((kept, _)) = desk.kept.take()
        {
            out.push(send_action(&kept, session));
        }
        out
    }

    /// A message from the client: what the host answers. `room` is what the link lets through.
    pub(crate) fn message(&mut self, desk: &mut Desk, text: &[u8], room: Room, tally: &mut Tally) -> Vec<Out> {
        let message: Value = serde_json::from_slice(text).expect("what arrives is JSON");
        let (id, params) = (&message["id"], &message["params"]);
        assert!(self.flips || params.get("capabilities").is_none(), "the host's application sees a capability");
        let answer = |result: String, lane, what| Out {
            text: format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
            lane,
            what,
        };
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => vec![answer(self.initialize(desk, params), Lane::Barrier, What::Handshake)],
            "reconnect" => vec![answer(self.reconnect(desk, params, room, tally), Lane::Barrier, What::Handshake)],
            "subscribe" => {
                let mut out = self.pull(desk, true);
                let channel = params["channel"].as_str().unwrap_or_default().to_owned();
                let snapshot = self.snapshot(desk, &channel);
                desk.follows.insert(channel.clone());
                tally.one("subscribe snapshots");
                let lane = Lane::Named(channel.clone());
                out.push(answer(format!(r#"{{"snapshot":{snapshot}}}"#), lane, What::Snapshot(channel)));
                out
            }
            "listSessions" => {
                let list = format!(r#"{{"sessions":{}}}"#, self.catalogue);
                vec![answer(list, Lane::Named(ROOT.into()), What::Other)]
            }
            "resourceRead" => {
                let size = params["size"].as_u64().unwrap_or(0) as usize;
                vec![answer(format!(r#"{{"data":"{}"}}"#, self.rng.text(size)), Lane::Free, What::Other)]
            }
            "unsubscribe" => {
                desk.follows.remove(params["channel"].as_str().unwrap_or_default());
                tally.one("channels left");
                Vec::new()
            }
            "dispatchAction" => {
                let channel = params["channel"].as_str().unwrap_or_default().to_owned();
                let text = format!("echo {}", params["n"]);
                self.act(&channel, text);
                Vec::new()
            }
            "ping" | "resourceWrite" => vec![answer("{}".into(), Lane::Free, What::Other)],
            _ => Vec::new(),
        }
    }

    /// A message could not be sent. Next time, it is made smaller.
    pub(crate) fn failed(&mut self, desk: &mut Desk, ticket: u64, error: &SendError, tally: &mut Tally) {
        let Some((what, size)) = desk.under_way.remove(&ticket) else { return };
        let session = self.sessions.entry(desk.client.clone()).or_default();
        match (what, error) {
            (_, SendError::Disconnected | SendError::QueueFull { .. }) => {}
            (What::Action, error) => {
                tally.one("actions that the peer cannot take");
                let limit = error.over().map_or(0, |over| over.limit).max(size / 2).min(size - 1);
                session.max_action = Some(session.max_action.map_or(limit, |old| old.min(limit)));
            }
            (What::Handshake, _) => {
                tally.one("snapshots that the peer cannot take");
                session.small = true;
                desk.ready = false;
            }
            (What::Snapshot(channel), _) => {
                tally.one("snapshots that the peer cannot take");
                session.small = true;
                desk.follows.remove(&channel);
            }
            (What::Other, _) => tally.one("responses that the peer cannot take"),
        }
    }

    fn initialize(&mut self, desk: &mut Desk, params: &Value) -> String {
        let version = if self.old_version { "0.2.0" } else { "0.3.0" };
        self.seat(desk, params, "initialSubscriptions");
        let snapshots = self.snapshots(desk);
        let seq = self.log.seq;
        format!(r#"{{"protocolVersion":"{version}","serverSeq":{seq},"snapshots":[{snapshots}]}}"#)
    }

    /// Replays what the client missed, or sends snapshots when that would be too much.
    fn reconnect(&mut self, desk: &mut Desk, params: &Value, room: Room, tally: &mut Tally) -> String {
        self.seat(desk, params, "subscriptions");
        let session = self.sessions.get(&desk.client).copied().unwrap_or_default();
        let last = params["lastSeenServerSeq"].as_u64().unwrap_or(0);
        let missed = self.log.after(last).filter(|action| desk.follows.contains(&action.channel));
        let envelopes: Vec<_> = missed.map(|action| action.envelope(goes_by_reference(action, session))).collect();
        let actions = envelopes.join(",");
        if actions.len() as u64 <= room.message() / 2 && !self.rng.chance(10) {
            tally.one("replays");
            tally.add("replayed actions", envelopes.len() as u64);
            return format!(r#"{{"type":"replay","actions":[{actions}],"missing":[]}}"#);
        }
        tally.one("snapshots instead of replays");
        format!(r#"{{"type":"snapshot","snapshots":[{}]}}"#, self.snapshots(desk))
    }

    fn seat(&mut self, desk: &mut Desk, params: &Value, key: &str) {
        let channels = params[key].as_array().into_iter().flatten().filter_map(Value::as_str);
        desk.client = params["clientId"].as_str().unwrap_or_default().into();
        desk.follows = channels.map(str::to_owned).collect();
        desk.position = self.log.seq;
        desk.ready = true;
    }

    fn snapshots(&mut self, desk: &Desk) -> String {
        let follows: Vec<_> = desk.follows.iter().cloned().collect();
        follows.iter().map(|channel| self.snapshot(desk, channel)).collect::<Vec<_>>().join(",")
    }

    fn snapshot(&mut self, desk: &Desk, channel: &str) -> String {
        let small = self.sessions.get(&desk.client).is_some_and(|session| session.small);
        let len = if small { 0 } else { self.rng.pick(&[0, 0, 100, 2000]) };
        let pad = self.rng.text(len);
        let state = self.log.state(channel, desk.position);
        let (count, sum, from) = (state.count, hex(&state.sum), desk.position);
        format!(
            r#"{{"resource":"{channel}","state":{{"count":{count},"sum":"{sum}","pad":"{pad}"}},"fromSeq":{from}}}"#
        )
    }
}

impl Desk {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether everything in the log has been handed over and sent.
    pub(crate) fn is_level(&self, log: &Log) -> bool {
        self.ready && self.under_way.is_empty() && self.position == log.seq && self.kept.is_none()
    }

    /// A message goes to the machine: its ticket.
    pub(crate) fn handed(&mut self, out: &Out) -> u64 {
        self.tickets += 1;
        self.under_way.insert(self.tickets, (out.what.clone(), out.text.len() as u64));
        self.tickets
    }

    pub(crate) fn sent(&mut self, ticket: u64) {
        self.under_way.remove(&ticket);
    }
}

fn send_action(action: &Action, session: Session) -> Out {
    let envelope = action.envelope(goes_by_reference(action, session));
    let text = format!(r#"{{"jsonrpc":"2.0","method":"action","params":{envelope}}}"#);
    Out { text, lane: Lane::Named(action.channel.clone()), what: What::Action }
}

fn goes_by_reference(action: &Action, session: Session) -> bool {
    session.max_action.is_some_and(|limit| action.text.len() as u64 + 200 > limit && action.text.len() > 64)
}

/// The actions to hand over now. A saboteur lets later ones of other channels pass a large one that has not started.
fn overtake(desk: &mut Desk, action: &Action, sabotage: Option<Sabotage>) -> Vec<Action> {
    if sabotage != Some(Sabotage::BulkOvertaken) {
        return vec![action.clone()];
    }
    match desk.kept.take() {
        None if action.text.len() > 2000 => {
            desk.kept = Some((action.clone(), 2));
            Vec::new()
        }
        None => vec![action.clone()],
        Some((kept, passes)) if passes > 0 && kept.channel != action.channel => {
            desk.kept = Some((kept, passes - 1));
            vec![action.clone()]
        }
        Some((kept, _)) => vec![kept, action.clone()],
    }
}
