//! The gateway: each connection to one side gets one to the other, and each side negotiates for itself.

mod bridge;
mod downstream;
mod frame_limits;
mod ledger;
mod lifecycle;
mod observed_link;
mod parsed_message;
mod peer_name;
mod pending_requests;
mod serve;
mod side;
mod sides;
mod stats;
mod unsendable;
mod upstream;
mod waiting_client;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use breakbulk_proto::ahp::Charge;
use breakbulk_proto::plain::{Check, Framing};
use breakbulk_proto::{BudgetConfig, CloseReason, Kind, Limits, LimitsConfig, LimitsError, Message};

use self::bridge::Bridge;
use self::frame_limits::FrameLimits;
use self::ledger::Ledger;
use self::observed_link::ObservedLink;
use self::peer_name::PeerName;
use self::side::Side;
use self::sides::Pair;
use self::stats::StatsCounters;
use self::unsendable::UnsendableActions;
use self::waiting_client::WaitingClient;
use crate::dialect::{Dialect, Setup};
use crate::driver::Driver;
use crate::link::{BoxLink, Exec, Intake, Lease, Link};
use crate::memory::GatewayMemory;

pub use self::downstream::Downstream;
pub use self::serve::Served;
pub use self::sides::SideId;
pub use self::stats::{Stats, Traffic};
pub use self::upstream::Upstream;

/// Joins clients with a host, and remembers what outlives each connection.
#[derive(Debug)]
pub struct Gateway {
    setups: Pair<Setup>,
    /// How deep a message that is sent on may be nested.
    max_depth: u32,
    memory: GatewayMemory,
    records: Records,
    drain_timeout: Duration,
    max_clients: usize,
}

/// How long messages under way have to arrive when a side has closed, or the program stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Clients at once. Each may be a process of its own.
const MAX_CLIENTS: usize = 256;

/// How deep a received message may be nested in frames or segments: the most that limits allow. A message that is too
/// deep to be sent on can then be answered, replaced or left out, and the link on which it came stays open. Lines need
/// no such exception, because a refused line closes nothing.
const MAX_RECEIVED_DEPTH: u32 = 1 << 24;

/// What is remembered across connections.
#[derive(Debug, Default)]
struct Records {
    stats: StatsCounters,
    frame_limits: FrameLimits,
    unsendable: UnsendableActions,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

/// One end of a connection through a gateway: a link to a client, or to a host.
#[non_exhaustive]
pub struct Endpoint {
    /// What carries its frames.
    pub link: BoxLink,
    /// The name of its peer, which stays the same on the next connection.
    pub name: String,
    /// Who the peer has proven to be, if it has.
    pub principal: Option<String>,
    /// Set for a host that goes to the next client when its link is dropped.
    pub reuse: Option<Reuse>,
}

/// How a host goes to the next client.
#[derive(Debug, Clone)]
pub struct Reuse {
    /// How long the host has to answer a client that is gone. These answers are dropped.
    pub answer_timeout: Duration,
    /// Busy until the host has answered everything.
    pub lease: Lease,
}

impl Endpoint {
    /// A link to a peer of this name.
    pub fn new(link: impl Link + 'static, name: impl Into<String>) -> Self {
        Self { link: Box::new(link), name: name.into(), principal: None, reuse: None }
    }

    /// A link to a child process that goes to the next client when the link is dropped, and has this long to answer a client
    /// that is gone.
    pub fn child(link: Exec, name: impl Into<String>, answer_timeout: Duration) -> Self {
        let reuse = Reuse { answer_timeout, lease: link.lease() };
        Self { reuse: Some(reuse), ..Self::new(link, name) }
    }

    /// The same, to a peer that has proven who it is. What is remembered of it is kept apart from what is remembered of others.
    #[must_use]
    pub fn proven(mut self, principal: impl Into<String>) -> Self {
        self.principal = Some(principal.into());
        self
    }
}

/// How a connection through a gateway ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The side of the client.
    pub downstream: SideOutcome,
    /// The side of the host.
    pub upstream: SideOutcome,
    /// The side that closed first. The other was closed because of it, if not for the same reason.
    pub closed_first: SideId,
    /// What was given up.
    pub losses: Losses,
}

/// How one side of a connection closed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SideOutcome {
    /// Why.
    pub reason: CloseReason,
    /// How, and who closed it: one line for a person. What a peer said as it closed is in it, escaped.
    pub description: String,
}

/// What was given up when a connection through a gateway ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// Messages that their receiver did not take whole in the time that it had; and lines that were meant as messages and
    /// were none, if there was nobody to send an error to.
    pub messages: u64,
    /// Answers for which the client waited when the host ended, or when its time was up.
    pub answers: u64,
}

/// A message that has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
    /// The side that it went to.
    pub to: SideId,
    /// What it is.
    pub kind: Kind,
    /// Its method, if it has one.
    pub method: Option<String>,
    /// Its length in bytes.
    pub size: usize,
    /// In how many frames it passed.
    pub frames: FrameCounts,
    /// From its first frame to its last.
    pub took: Duration,
    /// The message itself.
    pub message: Message,
}

impl Passed {
    /// A message that has passed, without its method.
    #[must_use]
    pub const fn new(to: SideId, kind: Kind, message: Message, frames: FrameCounts, took: Duration) -> Self {
        Self { to, kind, method: None, size: message.len(), frames, took, message }
    }
}

/// In how many frames a message passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// Frames in which it came.
    pub received: u32,
    /// Frames in which it left.
    pub sent: u32,
}

/// Called with each message that has passed.
pub type Watcher = Box<dyn FnMut(Passed) + Send>;

impl Gateway {
    /// A gateway between clients, towards whom it is a server, and a host, towards whom it is a client. All messages that it
    /// holds, arriving or waiting, may take up as much as `budget` says.
    ///
    /// # Errors
    /// The budget has no room for the longest message from each side at the same time.
    pub fn new(mut downstream: Setup, mut upstream: Setup, budget: BudgetConfig) -> Result<Self, LimitsError> {
        let (memory, [downstream_limits, upstream_limits]) = GatewayMemory::prove([&downstream, &upstream], budget)?;
        let max_depth = downstream_limits.max_depth.min(upstream_limits.max_depth);
        downstream.limits = received_limits(&downstream, downstream_limits)?;
        upstream.limits = received_limits(&upstream, upstream_limits)?;
        // The gateway charges a message until it has left.
        (downstream.charge, upstream.charge) = (Charge::UntilDone, Charge::UntilDone);
        // A receiver with segments checks each message that it reassembles. For a plain receiver, the bridge checks it.
        let check = |receiver: Dialect| if receiver == Dialect::Plain { Check::Whole } else { Check::Front };
        (downstream.check, upstream.check) = (check(upstream.dialect), check(downstream.dialect));
        // Each link negotiates its own segments. The client's offer must not reach the host.
        upstream.hides_chunking = true;
        Ok(Self {
            setups: Pair { downstream, upstream },
            max_depth,
            memory,
            records: Records::default(),
            drain_timeout: DRAIN_TIMEOUT,
            max_clients: MAX_CLIENTS,
        })
    }

    /// Whether [`new`](Self::new) would find the budget large enough.
    ///
    /// # Errors
    /// It would not.
    pub fn check_memory(downstream: &Setup, upstream: &Setup, budget: BudgetConfig) -> Result<(), LimitsError> {
        GatewayMemory::prove([downstream, upstream], budget).map(drop)
    }

    /// The same, with this long for what is under way to finish at the end. 5 s.
    #[must_use]
    pub const fn with_drain_timeout(mut self, drain_timeout: Duration) -> Self {
        self.drain_timeout = drain_timeout;
        self
    }

    /// The same, with this many clients at once; one more is told to come again later (1013). 256.
    #[must_use]
    pub const fn with_max_clients(mut self, max_clients: usize) -> Self {
        self.max_clients = max_clients;
        self
    }

    /// Joins two links until both have closed. What is held for them is charged to `principal`; without one, messages that take
    /// more than each connection may hold go through one at a time. When `stop` is done, both are closed with 1012, and what is
    /// under way has a few seconds to finish. `watcher` is called with each message that has passed.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub async fn join(
        &self,
        downstream: Endpoint,
        upstream: Endpoint,
        principal: Option<&str>,
        stop: impl Future<Output = ()>,
        watcher: Option<Watcher>,
    ) -> Result<Outcome, getrandom::Error> {
        self.bridge(self.admit(downstream), upstream, principal, stop, watcher).await
    }

    /// Closes the link of a client that gets no host.
    pub async fn refuse(&self, downstream: Endpoint, reason: CloseReason) {
        self.admit(downstream).refuse(reason).await;
    }

    /// Bytes that are held for all connections, as far as they are charged to anybody.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.memory.held()
    }

    /// What has passed, and how many clients there are and were.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.records.stats.stats()
    }

    /// How often each thing happened that a person may want to know of, by name.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.records.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets a client wait for its host. Meanwhile it takes up no memory that others share.
    fn admit(&self, downstream: Endpoint) -> WaitingClient {
        let (mut link, name) = self.observe(downstream);
        let setup = &self.setups.downstream;
        let account = Some(self.memory.frames_of(SideId::Downstream.index(), setup.dialect, None));
        link.set_intake(Intake { max_frame_bytes: setup.max_frame_bytes(), account });
        WaitingClient { link, name }
    }

    /// Joins a client and its host until both have closed.
    async fn bridge(
        &self,
        downstream: WaitingClient,
        upstream: Endpoint,
        principal: Option<&str>,
        stop: impl Future<Output = ()>,
        watcher: Option<Watcher>,
    ) -> Result<Outcome, getrandom::Error> {
        let reuse = upstream.reuse.clone();
        let (upstream, upstream_name) = self.observe(upstream);
        let sides = Pair {
            downstream: self.side(SideId::Downstream, downstream.link, principal)?,
            upstream: self.side(SideId::Upstream, upstream, principal)?,
        };
        let ledgers =
            Pair { downstream: SideId::Downstream, upstream: SideId::Upstream }.map(|to| self.ledger(to, principal));
        let names = Pair { downstream: downstream.name, upstream: upstream_name };
        Ok(Bridge::new(sides, ledgers, names, self, reuse, watcher).run(stop).await)
    }

    fn observe(&self, Endpoint { link, name, principal, .. }: Endpoint) -> (ObservedLink<BoxLink>, PeerName) {
        let name = PeerName::new(name, principal);
        (ObservedLink::new(link, self.records.frame_limits.limit(&name)), name)
    }

    fn side(
        &self,
        at: SideId,
        mut link: ObservedLink<BoxLink>,
        principal: Option<&str>,
    ) -> Result<Side, getrandom::Error> {
        let setup = &self.setups[at];
        let account = principal.map(|_| self.memory.frames_of(at.index(), setup.dialect, principal));
        link.set_intake(Intake { max_frame_bytes: setup.max_frame_bytes(), account });
        let machine = setup.machine(self.memory.messages[at.index()].account(principal))?;
        Ok(Side::new(Driver::new(link, machine), setup.dialect))
    }

    /// The ledger of the messages that go to a side.
    fn ledger(&self, to: SideId, principal: Option<&str>) -> Ledger {
        Ledger::new(self.memory.messages[to.other().index()].account(principal))
    }
}

/// The limits of the machine of a side, whose setup is this one.
fn received_limits(setup: &Setup, limits: Limits) -> Result<Limits, LimitsError> {
    let takes_lines = setup.dialect == Dialect::Stdio || setup.framing == Framing::Lines;
    if takes_lines {
        return Ok(limits);
    }
    // The gateway's own budget has been proven to be enough.
    let enough = BudgetConfig { process_bytes: u64::MAX, principal_bytes: u64::MAX, ..BudgetConfig::default() };
    Limits::prove(LimitsConfig { max_depth: MAX_RECEIVED_DEPTH, ..*limits }, &enough)
}

impl Records {
    fn count(&self, name: &'static str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(name).or_default();
        *count = count.saturating_add(1);
    }
}
