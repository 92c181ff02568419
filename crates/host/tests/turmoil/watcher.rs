//! A client that only watches, on its own terms: windows of turns, deltas as one, a second link beside the first. Its
//! machine is the real one; the rest of it is a few lines, so that what comes twice is not passed over.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use breakbulk::{AnyMachine, Dialect, Driver, Setup};
use breakbulk_proto::ahp::{Negotiated, Role};
use breakbulk_proto::{Budget, CloseReason, Event, Input, Progress, Subject, Ticket};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use turmoil::net::TcpStream;

use crate::sim::author::DIAL_TIME;
use crate::sim::host::{HOST, PORT};
use crate::sim::received::{Answer, Received, Resumed, SnapshotOf, Welcome};
use crate::sim::shared::{ClientLink, Shared};

type Line = Driver<ClientLink, AnyMachine>;

/// Whose wires break more often than others.
pub(crate) const WATCHER: &str = "watcher";
/// The close code that an older link of the same client gets.
const FENCED: u16 = 4409;

/// Lives until it crashes.
pub(crate) async fn live(shared: Arc<Shared>, at: usize) -> turmoil::Result {
    while !shared.facts().is_founded {
        sleep(Duration::from_millis(20)).await;
    }
    let late = shared.facts().rng.millis(0, 800);
    sleep(late).await;
    let mut watcher = Watcher::born(shared, at);
    loop {
        let pause = watcher.shared.facts().rng.millis(0, 300);
        sleep(pause).await;
        if let Ok(Ok(io)) = timeout(DIAL_TIME, TcpStream::connect((HOST, PORT))).await {
            watcher.talk(io).await;
        }
    }
}

struct Watcher {
    shared: Arc<Shared>,
    at: usize,
    life: usize,
    id: String,
    /// What it asks for of each channel.
    terms: HashMap<String, Value>,
    /// What the host takes, from connection to connection.
    negotiated: Negotiated,
    budget: Budget,
    /// Where to resume; `None` before the first `initialize`.
    cursor: Option<u64>,
}

/// What was asked on a connection, by the id of the request.
enum Asked {
    Initialize,
    Reconnect,
    Subscribe,
}

/// One connection of a watcher.
struct Talk {
    line: Line,
    asked: HashMap<u64, Asked>,
    /// The handshake is done.
    is_greeted: bool,
    /// Messages of which a part has arrived.
    open: BTreeSet<u64>,
    deaf_until: Option<Instant>,
}

impl Talk {
    fn ask(&mut self, asked: Asked, method: &str, params: &Value) {
        let id = self.asked.len() as u64 + 1;
        self.asked.insert(id, asked);
        let text = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        self.line.handle(Input::send(Ticket(id), text));
    }

    fn note_seq(&mut self, ordinal: u64, seq: u64) {
        if let AnyMachine::Ahp(machine) = self.line.machine_mut() {
            machine.note_seq(ordinal, seq);
        }
    }
}

impl Watcher {
    fn born(shared: Arc<Shared>, at: usize) -> Self {
        let terms = {
            let facts = &mut *shared.facts();
            let mut terms = HashMap::new();
            for channel in shared.plan.channels() {
                let mut params = json!({"channel": channel});
                if facts.rng.chance(50) {
                    facts.tally.one("windows");
                    params["view"] = json!({"turns": facts.rng.below(4)});
                }
                if facts.rng.chance(50) {
                    params["delivery"] = json!({"maxLatencyMs": facts.rng.range(1, 500)});
                }
                terms.insert(channel, params);
            }
            terms
        };
        let life = shared.born(at, shared.plan.channels(), true);
        let id = shared.facts().runs[life].id.clone();
        let budget = Budget::new(shared.plan.budget());
        Self { shared, at, life, id, terms, negotiated: Negotiated::default(), budget, cursor: None }
    }

    /// One connection, until it ends or until there is to be another.
    async fn talk(&mut self, io: TcpStream) {
        let mut setup = Setup::new(Dialect::Ahp, Role::Client, self.shared.plan.limits());
        setup.negotiated = self.negotiated.clone();
        let machine = setup.machine(self.budget.account(Some("host"))).unwrap();
        let line = Driver::new(self.shared.link(WATCHER, io), machine);
        let mut talk = Talk { line, asked: HashMap::new(), is_greeted: false, open: BTreeSet::new(), deaf_until: None };
        self.greet(&mut talk);
        loop {
            if self.is_to_move() && talk.is_greeted {
                self.leave_open(talk);
                return;
            }
            self.stall(&mut talk);
            let (deaf, is_deaf) = (talk.deaf_until.unwrap_or_else(Instant::now), talk.deaf_until.is_some());
            tokio::select! {
                event = talk.line.next() => match event {
                    Some(Event::Closed(reason)) => return self.closed(&talk, &reason),
                    Some(event) => self.event(&mut talk, event),
                    None => return self.closed(&talk, &CloseReason::Normal),
                },
                () = self.shared.changed.notified() => {}
                () = sleep_until(deaf), if is_deaf => {
                    talk.deaf_until = None;
                    talk.line.set_reading(true);
                }
            }
        }
    }

    fn greet(&mut self, talk: &mut Talk) {
        let id = &self.id;
        let Some(cursor) = self.cursor else {
            let params = json!({"channel": "ahp-root://", "clientId": id, "protocolVersions": ["1.0.0"]});
            return talk.ask(Asked::Initialize, "initialize", &params);
        };
        let followed: Vec<_> = self.shared.facts().runs[self.life].follower.channels.keys().cloned().collect();
        let params =
            json!({"channel": "ahp-root://", "clientId": id, "lastSeenServerSeq": cursor, "subscriptions": followed});
        talk.ask(Asked::Reconnect, "reconnect", &params);
    }

    /// Follows what is not followed yet.
    fn subscribe(&self, talk: &mut Talk) {
        for (channel, params) in &self.terms {
            let is_followed = self.shared.facts().runs[self.life].follower.channels.contains_key(channel);
            if !is_followed {
                talk.ask(Asked::Subscribe, "subscribe", params);
            }
        }
    }

    fn is_to_move(&self) -> bool {
        std::mem::take(&mut self.shared.facts().clients[self.at].moves)
    }

    /// The older link stays, and hears on, until the host closes it.
    fn leave_open(&self, mut talk: Talk) {
        self.shared.facts().tally.one("moves to a second link");
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_local(async move {
            while let Some(event) = talk.line.next().await {
                if let Event::Closed(reason) = event {
                    shared.facts().tally.add("older links fenced", (reason.code() == FENCED).into());
                    return;
                }
            }
        });
    }

    fn stall(&self, talk: &mut Talk) {
        if let Some(time) = self.shared.facts().clients[self.at].stall.take() {
            talk.deaf_until = Some(Instant::now() + time);
            talk.line.set_reading(false);
        }
    }

    fn event(&mut self, talk: &mut Talk, event: Event) {
        match event {
            Event::Message { message, ordinal, .. } => {
                talk.open.remove(&ordinal);
                self.message(talk, &message.to_bytes(), ordinal);
                if let (AnyMachine::Ahp(machine), true) = (talk.line.machine(), talk.is_greeted) {
                    self.cursor = machine.cursor().or(self.cursor);
                }
            }
            Event::Progress(Progress { subject: Subject::Incoming(ordinal), .. }) => drop(talk.open.insert(ordinal)),
            _ => {}
        }
    }

    fn message(&mut self, talk: &mut Talk, text: &Bytes, ordinal: u64) {
        match Received::read(text) {
            Received::Action(envelope) => self.shared.facts().heard(self.life, envelope),
            Received::Notice => {}
            Received::Answer(id, answer) => {
                let Some(asked) = talk.asked.get(&id) else { panic!("an answer to nothing") };
                match (asked, answer) {
                    (Asked::Initialize, Answer::Result(result)) => {
                        let Welcome { server_seq } = serde_json::from_str(result).unwrap();
                        self.greeted(talk, ordinal, server_seq);
                    }
                    (Asked::Reconnect, Answer::Result(result)) => {
                        let seq = self.resumed(&serde_json::from_str(result).unwrap());
                        self.greeted(talk, ordinal, seq);
                    }
                    (Asked::Subscribe, Answer::Result(result)) => {
                        let SnapshotOf { snapshot } = serde_json::from_str(result).unwrap();
                        self.shared.facts().runs[self.life].follower.snapshot(snapshot.get().as_bytes());
                        self.note_ready();
                    }
                    (_, Answer::Error) => {
                        self.shared.facts().ledger.lost(format!("{}: the host refuses {text:?}", self.id));
                    }
                }
            }
        }
    }

    fn greeted(&self, talk: &mut Talk, ordinal: u64, seq: u64) {
        talk.is_greeted = true;
        talk.note_seq(ordinal, seq);
        self.subscribe(talk);
        self.note_ready();
    }

    /// The host says what was missed. Returns the seq up to which everything is known.
    fn resumed(&self, resumed: &Resumed<'_>) -> u64 {
        let facts = &mut *self.shared.facts();
        let cursor = self.cursor.unwrap_or_default();
        if !resumed.missing.is_empty() {
            facts.ledger.lost(format!("{}: the host no longer offers {:?}", self.id, resumed.missing));
        }
        if let Some(snapshots) = &resumed.snapshots {
            facts.tally.one("snapshots instead of replays");
            let follower = &mut facts.runs[self.life].follower;
            return snapshots
                .iter()
                .map(|snapshot| follower.snapshot(snapshot.get().as_bytes()))
                .min()
                .unwrap_or(cursor);
        }
        facts.tally.one("replays");
        let mut highest = cursor;
        for action in &resumed.actions {
            let (channel, seq) = Received::place(action.get());
            highest = highest.max(seq);
            // It may have passed another that did not arrive, or its channel may have come with a later snapshot.
            let known = facts.runs[self.life].follower.position(&channel);
            if known.is_some_and(|known| known >= seq) {
                facts.tally.one("actions skipped as applied");
            } else {
                facts.heard(self.life, action.get().as_bytes());
            }
        }
        highest
    }

    fn note_ready(&self) {
        let facts = &mut *self.shared.facts();
        let is_ready = facts.runs[self.life].follower.channels.len() == self.terms.len();
        facts.clients[self.at].is_ready = is_ready;
    }

    fn closed(&self, talk: &Talk, reason: &CloseReason) {
        let facts = &mut *self.shared.facts();
        facts.tally.one("drops");
        facts.tally.add("drops inside a group", (!talk.open.is_empty()).into());
        if let CloseReason::Violation(violation) = reason {
            facts.ledger.altered(format!("{} accuses an honest host: {violation}", self.id));
        }
    }
}
