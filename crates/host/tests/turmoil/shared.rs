//! What all programs of a simulation share. It outlives their crashes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use ahp_types::state::SnapshotState;
use breakbulk::link::WebSocket;
use tokio::sync::Notify;
use turmoil::net::TcpStream;

use crate::sim::client_run::ClientRun;
use crate::sim::ledger::Ledger;
use crate::sim::plan::Plan;
use crate::sim::rng::Rng;
use crate::sim::sabotaged_link::SabotagedLink;
use crate::sim::store::Store;
use crate::sim::tally::Tally;
use crate::sim::wire::{Fuse, Wire};

/// A client's link.
pub(crate) type ClientLink = SabotagedLink<WebSocket<Wire>>;

/// What all programs of a world share.
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) store: Store,
    /// Rings when there is something to do.
    pub(crate) changed: Notify,
    facts: Mutex<Facts>,
    /// Bytes that wires have brought so far.
    moved: Arc<AtomicU64>,
}

pub(crate) struct Facts {
    pub(crate) rng: Rng,
    pub(crate) ledger: Ledger,
    pub(crate) tally: Tally,
    pub(crate) runs: Vec<ClientRun>,
    /// By client: what it still has to do or to suffer, and how it is.
    pub(crate) clients: Vec<Client>,
    /// The chats in which the agent still has to speak.
    pub(crate) turns: VecDeque<String>,
    /// Somebody has made all sessions and chats.
    pub(crate) is_founded: bool,
    /// What the host shows in the end.
    pub(crate) shown: Option<BTreeMap<String, SnapshotState>>,
    fuses: Vec<(String, Weak<Fuse>)>,
    numbers: u64,
}

/// A client, beyond its runs.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// The present life.
    pub(crate) life: Option<usize>,
    /// Texts to dispatch: the channel and the length.
    pub(crate) todo: VecDeque<(String, usize)>,
    pub(crate) stall: Option<Duration>,
    /// It is to open a second link.
    pub(crate) moves: bool,
    /// It is connected and follows what it wants to.
    pub(crate) is_ready: bool,
}

impl Shared {
    pub(crate) fn new(plan: Plan, rng: &mut Rng) -> Self {
        let clients = (0..plan.authors + plan.watchers).map(|_| Client::default()).collect();
        let facts = Facts {
            rng: Rng::new(rng.next()),
            ledger: Ledger::default(),
            tally: Tally::default(),
            runs: Vec::new(),
            clients,
            turns: VecDeque::new(),
            is_founded: false,
            shown: None,
            fuses: Vec::new(),
            numbers: 0,
        };
        let store = Store::new(&plan);
        Self { plan, store, changed: Notify::new(), facts: Mutex::new(facts), moved: Arc::default() }
    }

    /// What is known. Nobody keeps it while they wait for something.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap()
    }

    /// Bytes that wires have brought so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Somebody's wire, which may break.
    pub(crate) fn wire(&self, whose: &str, io: TcpStream) -> Wire {
        let wire = Wire::new(io, self.plan.piece, Arc::clone(&self.moved));
        let facts = &mut *self.facts();
        facts.fuses.retain(|(_, fuse)| fuse.strong_count() > 0);
        facts.fuses.push((whose.into(), Arc::downgrade(wire.fuse())));
        wire
    }

    /// A client's link to the host.
    pub(crate) fn link(&self, whose: &str, io: TcpStream) -> ClientLink {
        let seed = self.facts().rng.next();
        let link = WebSocket::client(self.wire(whose, io), &self.plan.link());
        SabotagedLink::new(link, self.plan.sabotage, Rng::new(seed))
    }

    /// A client begins to live, anew if it crashed: the number of its life.
    pub(crate) fn born(&self, at: usize, wanted: Vec<String>, has_terms: bool) -> usize {
        let facts = &mut *self.facts();
        let number = facts.runs.len();
        let id = format!("client-{at}-{number}");
        facts.runs.push(ClientRun { id, wanted, has_terms, ..ClientRun::default() });
        facts.clients[at].life = Some(number);
        number
    }
}

impl Facts {
    /// A number that nobody else has.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A client has crashed.
    pub(crate) fn crashed(&mut self, at: usize) {
        self.clients[at].is_ready = false;
        if let Some(life) = self.clients[at].life.take() {
            self.runs[life].is_over = true;
        }
    }

    /// What breaks the wires of `whose`; of anyone, if there is no name.
    pub(crate) fn fuses(&self, whose: Option<&str>) -> Vec<Arc<Fuse>> {
        let of = |name: &str| whose.is_none_or(|whose| whose == name);
        self.fuses.iter().filter(|(name, _)| of(name)).filter_map(|(_, fuse)| fuse.upgrade()).collect()
    }

    /// A client hears an action that it may have dispatched itself.
    pub(crate) fn heard(&mut self, life: usize, envelope: &[u8]) {
        let told = &mut self.runs[life];
        if let Err(note) = told.follower.action(envelope) {
            self.ledger.altered(format!("{}: {note}", told.id));
        }
    }
}
