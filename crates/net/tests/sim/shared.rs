//! What all programs of a simulation share: the log, the ledger, and who is connected to whom.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use breakbulk::gateway::Gateway;
use breakbulk_proto::Budget;
use tokio::sync::Notify;
use turmoil::net::TcpStream;

use crate::sim::ledger::{Ledger, Strictness};
use crate::sim::log::Log;
use crate::sim::memory::Client;
use crate::sim::model_host::{Host, HostConnection};
use crate::sim::plan::{Mode, Plan};
use crate::sim::rng::Rng;
use crate::sim::tally::Tally;
use crate::sim::trace::trace;
use crate::sim::wire::{Fuse, Wire};

/// From a client to the host.
pub(crate) const UP: usize = 0;
/// From the host to a client.
pub(crate) const DOWN: usize = 1;

/// A run, as its programs see it.
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) facts: RefCell<Facts>,
    /// Rings when something happened that somebody may have waited for.
    bell: Notify,
    /// How often it rang.
    rings: Cell<u64>,
}

/// What is so at present.
pub(crate) struct Facts {
    pub(crate) log: Log,
    pub(crate) books: Books,
    pub(crate) host: Host,
    pub(crate) clients: Vec<Client>,
    /// The host's side of each of its connections.
    pub(crate) desks: BTreeMap<u64, HostConnection>,
    /// All budgets there ever were.
    pub(crate) budgets: Vec<Budget>,
    /// All gateways there ever were.
    pub(crate) gateways: Vec<Rc<Gateway>>,
    /// Ends that shall stop for a while, by link and by the direction that they send in.
    pub(crate) stalls: BTreeMap<(u64, usize), Stall>,
    /// How many ends have stopped at present.
    pub(crate) stalled: u32,
    /// Links on which a part of a message has arrived.
    pub(crate) inside: BTreeSet<u64>,
    /// A digest of all that happened, in order.
    pub(crate) print: u64,
    /// How many ends each link has.
    ends: BTreeMap<u64, u32>,
    ways: Ways,
    links: u64,
    moved: Arc<AtomicU64>,
    /// What breaks each wire, and whose end of it that is.
    fuses: Vec<(String, Weak<Fuse>)>,
}

/// Says what happens, and when, to whoever looks into one seed.
pub(crate) fn tell(what: impl FnOnce() -> String) {
    trace(|| format!("{:>6} ms  {}", turmoil::sim_elapsed().unwrap_or_default().as_millis(), what()));
}

/// How an end stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stall {
    /// It reads nothing, and writes on.
    Deaf(Duration),
    /// It does nothing at all.
    Still(Duration),
}

/// What is written down about a run.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) ledger: Ledger,
    pub(crate) tally: Tally,
    /// Requests of both sides that have not had their fate.
    pub(crate) asked: u64,
}

impl Books {
    /// Somebody asks something, and wants to know what becomes of it.
    pub(crate) fn asked(&mut self, tally: &'static str) {
        self.asked += 1;
        self.tally.one(tally);
    }

    /// An answer came. Each request has one fate.
    pub(crate) fn answered(&mut self, was_asked: bool, about: impl FnOnce() -> String) {
        self.fate(was_asked, "requests answered", about);
    }

    /// A request failed where it was made.
    pub(crate) fn refused(&mut self, was_asked: bool, about: impl FnOnce() -> String) {
        self.fate(was_asked, "requests that failed where they were made", about);
    }

    /// So many requests will not be answered, because their connection is gone.
    pub(crate) fn rejected(&mut self, count: usize) {
        (0..count).for_each(|_| self.fate(true, "requests rejected with a disconnect", String::new));
    }

    fn fate(&mut self, was_asked: bool, tally: &'static str, about: impl FnOnce() -> String) {
        if !was_asked {
            return self.ledger.duplicated(about());
        }
        self.asked -= 1;
        self.tally.one(tally);
    }
}

/// Which link a connection belongs to, by its client's address. A gateway's own connection leads back to its client's.
#[derive(Debug, Default)]
struct Ways {
    links: BTreeMap<SocketAddr, u64>,
    aliases: BTreeMap<SocketAddr, SocketAddr>,
}

impl Shared {
    pub(crate) fn new(plan: Plan, rng: &mut Rng) -> Self {
        let host = Host::new(&plan, Rng::new(rng.next()));
        let mut facts = Facts {
            log: Log::default(),
            books: Books::default(),
            clients: Vec::new(),
            desks: BTreeMap::new(),
            budgets: Vec::new(),
            gateways: Vec::new(),
            stalls: BTreeMap::new(),
            stalled: 0,
            inside: BTreeSet::new(),
            print: 0,
            ends: BTreeMap::new(),
            ways: Ways::default(),
            links: 0,
            moved: Arc::default(),
            fuses: Vec::new(),
            host,
        };
        for (n, mode) in plan.modes.iter().enumerate() {
            let first = facts.host.channels.iter().filter(|_| rng.chance(60)).cloned().collect();
            let budget = facts.budget(&plan);
            let client = Client::new(format!("client-{n}"), *mode, &plan, budget, first, Rng::new(rng.next()));
            facts.clients.push(client);
        }
        Self { plan, facts: RefCell::new(facts), bell: Notify::new(), rings: Cell::new(0) }
    }

    /// Something happened.
    pub(crate) fn ring(&self) {
        self.rings.set(self.rings.get() + 1);
        self.bell.notify_waiters();
    }

    /// Waits until the bell has rung more than `heard` times; then that is how often it has.
    pub(crate) async fn rung(&self, heard: &mut u64) {
        while *heard == self.rings.get() {
            self.bell.notified().await;
        }
        *heard = self.rings.get();
    }
}

impl Facts {
    /// Bytes that are charged to anybody.
    pub(crate) fn held(&self) -> u64 {
        let budgets: u64 = self.budgets.iter().map(Budget::held).sum();
        let gateways: u64 = self.gateways.iter().map(|gateway| gateway.held()).sum();
        budgets + gateways
    }

    /// A budget of which nothing may be left in the end.
    pub(crate) fn budget(&mut self, plan: &Plan) -> Budget {
        let budget = Budget::new(plan.budget());
        self.budgets.push(budget.clone());
        budget
    }

    /// A client has a link: its number.
    pub(crate) fn connected(&mut self, at: usize, address: SocketAddr) -> u64 {
        self.links += 1;
        self.books.tally.one("links");
        let (id, mode) = (self.links, self.clients[at].mode);
        self.ways.links.insert(address, id);
        self.clients[at].link = Some(id);
        let strictness = if mode == Mode::Settled { Strictness::PerLane } else { Strictness::OverAll };
        self.books.ledger.open((id, UP), format!("link {id} up"), Strictness::OverAll);
        self.books.ledger.open((id, DOWN), format!("link {id} down"), strictness);
        self.came(id);
        id
    }

    /// A gateway leads on from `from` by a connection whose own address is `to`.
    pub(crate) fn led_on(&mut self, from: SocketAddr, to: SocketAddr) {
        self.ways.aliases.insert(to, from);
    }

    /// The link that this address is an end of.
    pub(crate) fn link_of(&self, mut address: SocketAddr) -> Option<u64> {
        while let Some(from) = self.ways.aliases.get(&address) {
            address = *from;
        }
        self.ways.links.get(&address).copied()
    }

    /// A link has one end more.
    pub(crate) fn came(&mut self, id: u64) {
        *self.ends.entry(id).or_default() += 1;
    }

    /// A link has one end less. Without ends, what was under way is unknown, and unknown is allowed.
    pub(crate) fn went(&mut self, id: u64, way: usize) {
        self.stalls.remove(&(id, way));
        if way == UP {
            self.inside.remove(&id);
        }
        let ends = self.ends.entry(id).or_default();
        *ends = ends.saturating_sub(1);
        if *ends == 0 {
            self.ends.remove(&id);
            self.books.ledger.forget((id, UP));
            self.books.ledger.forget((id, DOWN));
        }
    }

    /// Links that have an end, and whether all of them have both.
    pub(crate) fn links(&self) -> (usize, bool) {
        (self.ends.len(), self.ends.values().all(|ends| *ends == 2))
    }

    /// The links that have both ends.
    pub(crate) fn whole_links(&self) -> Vec<u64> {
        self.ends.iter().filter(|(_, ends)| **ends == 2).map(|(id, _)| *id).collect()
    }

    /// Somebody's wire, which may break.
    pub(crate) fn wire(&mut self, whose: &str, io: TcpStream, plan: &Plan) -> Wire {
        let wire = Wire::new(io, plan.piece, Arc::clone(&self.moved));
        self.fuses.retain(|(_, fuse)| fuse.strong_count() > 0);
        self.fuses.push((whose.into(), Arc::downgrade(wire.fuse())));
        wire
    }

    /// Bytes that wires have brought so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// What breaks the wires of `whose`; of anyone, if there is no name.
    pub(crate) fn fuses(&self, whose: Option<&str>) -> Vec<Arc<Fuse>> {
        let of = |name: &str| whose.is_none_or(|whose| whose == name);
        self.fuses.iter().filter(|(name, _)| of(name)).filter_map(|(_, fuse)| fuse.upgrade()).collect()
    }

    /// Notes that something happened, for the comparison of two runs.
    pub(crate) fn imprint(&mut self, parts: [u64; 4]) {
        let time = turmoil::sim_elapsed().unwrap_or_default().as_millis() as u64;
        for part in parts.into_iter().chain([time]) {
            self.print = (self.print ^ part).wrapping_mul(0x0100_0000_01B3).rotate_left(23);
        }
    }
}
