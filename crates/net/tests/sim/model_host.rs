//! The model host: a log that outlives its connections, and the state of each connection that reads it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use breakbulk_proto::ahp::Negotiated;
use serde_json::Value;

use crate::sim::ledger::Lane;
use crate::sim::line::Out;
use crate::sim::log::hex;
use crate::sim::plan::Plan;
use crate::sim::rng::Rng;
use crate::sim::shared::Facts;

pub(crate) const ROOT: &str = "ahp-root://";

/// The host, whatever its connections.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) channels: Vec<String>,
    pub(crate) negotiated: Negotiated,
    /// Requests that it has made, and desks that it has had.
    ids: u64,
    rng: Rng,
    /// More bytes, or more actions, than this are not replayed.
    replay: (usize, usize),
    max_pad: usize,
    /// Bytes that are handed over before any of them is sent.
    window: u64,
}

/// The host's side of one connection.
#[derive(Debug, Default)]
pub(crate) struct HostConnection {
    /// Everything up to here has been handed to the machine, as far as the client follows it.
    position: u64,
    follows: BTreeSet<String>,
    ready: bool,
    /// Messages handed over that are neither sent nor failed, with their sizes and whether they answer a handshake.
    under_way: BTreeMap<u64, (u64, bool)>,
    /// Requests that the client has not answered.
    asked: BTreeSet<u64>,
    /// Sizes of what the client shall be asked for.
    pub(crate) todo: VecDeque<usize>,
}

/// What the host says.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) out: Out,
    pub(crate) is_handshake: bool,
}

impl Host {
    pub(crate) fn new(plan: &Plan, rng: Rng) -> Self {
        let channels = (0..plan.channels).map(|n| format!("ahp-session:/{n}")).collect();
        let Plan { replay, max_pad, window, .. } = *plan;
        Self { channels, negotiated: Negotiated::default(), ids: 0, rng, replay, max_pad, window }
    }
}

impl HostConnection {
    pub(crate) fn handed(&mut self, ticket: u64, size: u64, is_handshake: bool) {
        self.under_way.insert(ticket, (size, is_handshake));
    }

    pub(crate) fn sent(&mut self, ticket: u64) {
        self.under_way.remove(&ticket);
    }

    pub(crate) const fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether everything has been handed over and sent, and nothing is waited for.
    pub(crate) fn is_level(&self, seq: u64) -> bool {
        let is_idle = self.under_way.is_empty() && self.asked.is_empty() && self.todo.is_empty();
        self.ready && is_idle && self.position == seq
    }

    fn waiting_bytes(&self) -> u64 {
        self.under_way.values().map(|(size, _)| size).sum()
    }
}

impl Facts {
    /// Something happens on a channel.
    pub(crate) fn act(&mut self, channel: &str, text: String) {
        let gap = self.host.rng.pick(&[1, 1, 1, 2, 7]);
        self.log.append(gap, channel, text);
        self.books.tally.one("actions logged");
    }

    pub(crate) fn sit_down(&mut self) -> u64 {
        self.host.ids += 1;
        self.desks.insert(self.host.ids, HostConnection::default());
        self.host.ids
    }

    /// A connection of the host's is gone: what was asked on it is not answered any more.
    pub(crate) fn stand_up(&mut self, connection: u64) {
        let connection = self.desks.remove(&connection).unwrap_or_default();
        self.books.rejected(connection.asked.len());
    }

    pub(crate) fn connection(&mut self, connection: u64) -> &mut HostConnection {
        self.desks.get_mut(&connection).expect("a connection stays as long as its line")
    }

    /// The next thing to say without being asked: an action, if there is room for it, or else a request.
    pub(crate) fn pull(&mut self, at: u64, to_the_end: bool) -> Option<Answer> {
        let connection = self.desks.get_mut(&at).filter(|connection| connection.ready)?;
        if to_the_end || connection.waiting_bytes() <= self.host.window {
            for action in self.log.after(connection.position) {
                connection.position = action.seq;
                if connection.follows.contains(&action.channel) {
                    let text = format!(r#"{{"jsonrpc":"2.0","method":"action","params":{}}}"#, action.envelope(false));
                    return Some(Answer::new(text, Lane::Named(action.channel.clone())));
                }
            }
        }
        let size = connection.todo.pop_front()?;
        self.host.ids += 1;
        let n = self.host.ids;
        connection.asked.insert(n);
        self.books.asked("requests of the host");
        let params = format!(r#"{{"channel":"{ROOT}","size":{size}}}"#);
        let text = format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"resourceRead","params":{params}}}"#);
        Some(Answer::new(text, Lane::Free))
    }

    /// A message from a client: what the host says to it.
    pub(crate) fn host_hears(&mut self, at: u64, text: &[u8]) -> Vec<Answer> {
        let message: Value = serde_json::from_slice(text).expect("what arrives is JSON");
        let (id, params) = (&message["id"], &message["params"]);
        assert!(params.get("capabilities").is_none(), "the host's application sees a capability");
        let answer = |result: String| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        let channel = params["channel"].as_str().unwrap_or_default();
        match message["method"].as_str() {
            Some("initialize") => {
                let result = self.initialize(at, params);
                vec![Answer { is_handshake: true, ..Answer::new(answer(result), Lane::Barrier) }]
            }
            Some("reconnect") => {
                let result = self.reconnect(at, params);
                vec![Answer { is_handshake: true, ..Answer::new(answer(result), Lane::Barrier) }]
            }
            Some("subscribe") => {
                let mut answers: Vec<_> = std::iter::from_fn(|| self.pull(at, true)).collect();
                self.connection(at).follows.insert(channel.into());
                self.books.tally.one("subscribe snapshots");
                let result = format!(r#"{{"snapshot":{}}}"#, self.snapshot(at, channel));
                answers.push(Answer::new(answer(result), Lane::Named(channel.into())));
                answers
            }
            Some("resourceRead") => {
                let size = params["size"].as_u64().unwrap_or(0) as usize;
                vec![Answer::new(answer(format!(r#"{{"data":"{}"}}"#, self.host.rng.text(size))), Lane::Free)]
            }
            Some("dispatchAction") => {
                self.act(channel, format!("echo {}", params["n"]));
                Vec::new()
            }
            Some(_) => vec![Answer::new(answer("{}".into()), Lane::Free)],
            None => {
                let was_asked = id.as_u64().is_some_and(|id| self.connection(at).asked.remove(&id));
                self.books
                    .answered(was_asked, || format!("the host heard an answer to {id}, which it does not wait for"));
                Vec::new()
            }
        }
    }

    /// A message could not be sent. A client whose handshake is not answered knows nothing of what comes next.
    pub(crate) fn host_failed(&mut self, at: u64, ticket: u64, reply: Option<&[u8]>) {
        let connection = self.connection(at);
        if let Some((_, true)) = connection.under_way.remove(&ticket) {
            connection.ready = false;
        }
        let Some(reply) = reply else { return };
        let reply: Value = serde_json::from_slice(reply).expect("a reply is JSON");
        let id = reply["id"].as_u64().unwrap_or(0);
        let was_asked = self.connection(at).asked.remove(&id);
        self.books.refused(was_asked, || format!("the host heard that {id} failed, which it does not wait for"));
    }

    fn initialize(&mut self, at: u64, params: &Value) -> String {
        self.seat(at, params, "initialSubscriptions");
        let snapshots = self.snapshots(at);
        let seq = self.log.seq;
        format!(r#"{{"protocolVersion":"1.0.0","serverSeq":{seq},"snapshots":[{snapshots}]}}"#)
    }

    /// Replays what the client missed, or sends snapshots when that would be too much.
    fn reconnect(&mut self, at: u64, params: &Value) -> String {
        self.seat(at, params, "subscriptions");
        let last = params["lastSeenServerSeq"].as_u64().unwrap_or(0);
        let (max_bytes, max_actions) = self.host.replay;
        let follows = &self.desks[&at].follows;
        let missed = self.log.after(last).filter(|action| follows.contains(&action.channel));
        let envelopes: Vec<_> = missed.map(|action| action.envelope(false)).collect();
        if envelopes.len() <= max_actions && envelopes.iter().map(String::len).sum::<usize>() <= max_bytes {
            self.books.tally.one("replays");
            self.books.tally.add("replayed actions", envelopes.len() as u64);
            return format!(r#"{{"type":"replay","actions":[{}],"missing":[]}}"#, envelopes.join(","));
        }
        self.books.tally.one("snapshots instead of replays");
        format!(r#"{{"type":"snapshot","snapshots":[{}]}}"#, self.snapshots(at))
    }

    fn seat(&mut self, at: u64, params: &Value, key: &str) {
        let seq = self.log.seq;
        let channels = params[key].as_array().into_iter().flatten().filter_map(Value::as_str);
        let connection = self.connection(at);
        connection.follows = channels.map(str::to_owned).collect();
        (connection.position, connection.ready) = (seq, true);
    }

    fn snapshots(&mut self, at: u64) -> String {
        let follows: Vec<_> = self.connection(at).follows.iter().cloned().collect();
        follows.iter().map(|channel| self.snapshot(at, channel)).collect::<Vec<_>>().join(",")
    }

    fn snapshot(&mut self, at: u64, channel: &str) -> String {
        let from = self.connection(at).position;
        let len = self.host.rng.pick(&[0, 0, 100, 2000, self.host.max_pad]);
        let pad = self.host.rng.text(len);
        let state = self.log.state(channel, from);
        let (count, sum) = (state.count, hex(&state.sum));
        format!(
            r#"{{"resource":"{channel}","state":{{"count":{count},"sum":"{sum}","pad":"{pad}"}},"fromSeq":{from}}}"#
        )
    }
}

impl Answer {
    fn new(text: String, lane: Lane) -> Self {
        Self { out: Out { text, lane }, is_handshake: false }
    }
}
