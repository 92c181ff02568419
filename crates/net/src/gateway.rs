//! The gateway: each connection to one side gets one to the other, and each side negotiates for itself.

mod bridge;
mod debts;
mod dropped;
mod entrance;
mod frame_limits;
mod name;
mod observed_link;
mod serve;
mod side;
mod stats;
mod waiting;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::{debug, warn};

use breakbulk_proto::ahp::Charge;
use breakbulk_proto::plain::Check;
use breakbulk_proto::{BudgetConfig, CloseReason, Kind, LimitsError, Message};

use self::bridge::{Bridge, FAR, NEAR, other};
use self::dropped::Dropped;
use self::frame_limits::{FrameLimits, Verdict};
use self::name::Name;
use self::observed_link::ObservedLink;
use self::side::Side;
use self::stats::Counters;
use self::waiting::Waiting;
use crate::dialect::{Dialect, Setup};
use crate::driver::Driver;
use crate::link::{BoxLink, Exec, Intake, Lease, Link};
use crate::memory::GatewayMemory;

pub use self::entrance::Entrance;
pub use self::serve::{Exit, Served};
pub use self::stats::{Stats, Traffic};

/// What joins the two sides of many connections, and remembers what outlives each.
#[derive(Debug)]
pub struct Gateway {
    setups: [Setup; 2],
    memory: GatewayMemory,
    records: Records,
    drain: Duration,
    max_clients: usize,
}

/// How long what is under way has to finish when a side has closed, or the program stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Clients at once. Each may be a process of its own.
const MAX_CLIENTS: usize = 256;

/// What is remembered across connections.
#[derive(Debug, Default)]
struct Records {
    stats: Counters,
    frame_limits: FrameLimits,
    dropped: Dropped,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

/// One end of a connection through a gateway.
#[non_exhaustive]
pub struct End {
    /// What carries its frames.
    pub link: BoxLink,
    /// Whom it leads to, by a name that stays the same on the next connection.
    pub name: String,
    /// Who the peer has proven to be, if it has.
    pub principal: Option<String>,
    /// Set for a host that goes on to another client when its link is dropped.
    pub reuse: Option<Reuse>,
}

/// A host that goes on to another client when its link is dropped.
#[derive(Debug, Clone)]
pub struct Reuse {
    /// How long it has to answer a client that is gone. What it answers then is for nobody.
    pub patience: Duration,
    /// Busy for as long as the host has not answered all.
    pub lease: Lease,
}

impl End {
    /// A link to a peer of this name.
    pub fn new(link: impl Link + 'static, name: impl Into<String>) -> Self {
        Self { link: Box::new(link), name: name.into(), principal: None, reuse: None }
    }

    /// A link to a child process that goes on to another client when the link is dropped, and has this long to answer a
    /// client that is gone.
    pub fn child(link: Exec, name: impl Into<String>, patience: Duration) -> Self {
        let reuse = Reuse { patience, lease: link.lease() };
        Self { reuse: Some(reuse), ..Self::new(link, name) }
    }

    /// The same, to a peer that has proven who it is. What is remembered of it is not mixed up with anybody else's.
    #[must_use]
    pub fn proven(mut self, principal: impl Into<String>) -> Self {
        self.principal = Some(principal.into());
        self
    }
}

/// How a connection through a gateway ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// On the side of the client.
    pub near: CloseReason,
    /// On the side of the host.
    pub far: CloseReason,
    /// How each side ended and who ended it, in words for a person.
    pub words: Words,
    /// What was given up.
    pub lost: Lost,
}

/// How the two sides of a connection ended, in words: one line each. What a peer said as it closed is in it, escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Words {
    /// On the side of the client.
    pub near: String,
    /// On the side of the host.
    pub far: String,
}

/// What was given up when a connection through a gateway ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Messages that their receiver did not take, or not whole, in the time that it had; and lines that were meant as
    /// messages, and were none, of which nobody could be told.
    pub messages: u64,
    /// Answers for which the client waited when the host ended, or had its time.
    pub answers: u64,
}

/// A message that has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
    /// Where it went.
    pub toward: Toward,
    /// What it is.
    pub kind: Kind,
    /// Its method, if it has one.
    pub method: Option<String>,
    /// Its length in bytes.
    pub size: usize,
    /// In how many frames it came, and in how many it left.
    pub frames: (u32, u32),
    /// From its first frame to its last.
    pub took: Duration,
    /// The message itself.
    pub message: Message,
}

impl Passed {
    /// A message that has passed, without its method.
    #[must_use]
    pub const fn new(toward: Toward, kind: Kind, message: Message, frames: (u32, u32), took: Duration) -> Self {
        Self { toward, kind, method: None, size: message.len(), frames, took, message }
    }
}

/// What hears of each message that has passed.
pub type Watcher = Box<dyn FnMut(Passed) + Send>;

/// A direction through a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// To the client.
    Near,
    /// To the host.
    Far,
}

impl Gateway {
    /// A gateway between clients, towards whom it is a server, and a host, towards whom it is a client. All messages that it
    /// holds, arriving or waiting, may take up as much as `budget` says.
    ///
    /// # Errors
    /// The budget has no room for the longest message from each side at the same time.
    pub fn new(mut near: Setup, mut far: Setup, budget: BudgetConfig) -> Result<Self, LimitsError> {
        let (memory, [near_limits, far_limits]) = GatewayMemory::prove([&near, &far], budget)?;
        (near.limits, far.limits) = (near_limits, far_limits);
        // The gateway charges a message until it has left.
        (near.charge, far.charge) = (Charge::UntilDone, Charge::UntilDone);
        // Whoever puts segments together checks all of a message; nobody else has to, as with one that a program sends.
        let check = |receiver: Dialect| if receiver == Dialect::Plain { Check::Whole } else { Check::Front };
        (near.check, far.check) = (check(far.dialect), check(near.dialect));
        // What a link takes is negotiated on that link: with a client that is not asked there, nothing is.
        far.hides_chunking = true;
        Ok(Self { setups: [near, far], memory, records: Records::default(), drain: DRAIN, max_clients: MAX_CLIENTS })
    }

    /// Whether [`new`](Self::new) would find the budget large enough.
    ///
    /// # Errors
    /// It would not.
    pub fn check_memory(near: &Setup, far: &Setup, budget: BudgetConfig) -> Result<(), LimitsError> {
        GatewayMemory::prove([near, far], budget).map(drop)
    }

    /// The same, with this long for what is under way to finish at the end. 5 s.
    #[must_use]
    pub const fn with_drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// The same, with this many clients at once; one more is told to come again later (1013). 256.
    #[must_use]
    pub const fn with_max_clients(mut self, max_clients: usize) -> Self {
        self.max_clients = max_clients;
        self
    }

    /// Joins two links until both have ended. What is held for them is charged to `principal`; without one, messages that
    /// take more than each connection may hold go through one at a time. When `stop` is done, both
    /// are closed with 1012, and what is under way has a few seconds to finish. `watcher` hears of each message that
    /// has passed.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub async fn join(
        &self,
        near: End,
        far: End,
        principal: Option<&str>,
        stop: impl Future<Output = ()>,
        watcher: Option<Watcher>,
    ) -> Result<Ended, getrandom::Error> {
        self.meet(self.enter(near), far, principal, stop, watcher).await
    }

    /// A client comes in, and waits for its host. Meanwhile it takes up nothing that others share.
    fn enter(&self, near: End) -> Waiting {
        let (mut link, name) = self.observed(near);
        let setup = &self.setups[NEAR];
        let account = Some(self.memory.frames_of(NEAR, setup.dialect, None));
        link.set_intake(Intake { max_frame_bytes: setup.max_frame_bytes(), account });
        Waiting { link, name }
    }

    fn observed(&self, End { link, name, principal, .. }: End) -> (ObservedLink<BoxLink>, Name) {
        let name = Name::new(name, principal);
        (ObservedLink::new(link, self.records.frame_limits.limit(&name)), name)
    }

    /// Joins a client and its host until both have ended.
    async fn meet(
        &self,
        near: Waiting,
        far: End,
        principal: Option<&str>,
        stop: impl Future<Output = ()>,
        watcher: Option<Watcher>,
    ) -> Result<Ended, getrandom::Error> {
        let reuse = far.reuse.clone();
        let (far, far_name) = self.observed(far);
        let sides = [self.side(NEAR, near.link, principal)?, self.side(FAR, far, principal)?];
        Ok(Bridge::new(sides, [near.name, far_name], self, reuse, watcher).run(stop).await)
    }

    /// Closes the link of a client that gets no host.
    pub async fn turn_away(&self, near: End, reason: CloseReason) {
        self.enter(near).turn_away(reason).await;
    }

    /// Bytes that are held for all connections, as far as they are charged to anybody.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.memory.held()
    }

    /// What has passed, and who has come.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.records.stats.stats()
    }

    /// How often each thing happened that a person may want to know of, by name.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.records.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn side(
        &self,
        at: usize,
        mut link: ObservedLink<BoxLink>,
        principal: Option<&str>,
    ) -> Result<Side, getrandom::Error> {
        let setup = &self.setups[at];
        let account = principal.map(|_| self.memory.frames_of(at, setup.dialect, principal));
        link.set_intake(Intake { max_frame_bytes: setup.max_frame_bytes(), account });
        let machine = setup.machine(self.memory.messages[at].account(principal))?;
        let account = self.memory.messages[other(at)].account(principal);
        Ok(Side::new(Driver::new(link, machine), account, setup.dialect))
    }
}

impl Records {
    fn count(&self, name: &'static str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(name).or_default();
        *count = count.saturating_add(1);
    }
}

/// Says what was learned about a peer's frame limit. Whether that is why it closed.
fn report(side: usize, peer: &Name, verdict: Verdict) -> bool {
    let (side, address) = if side == NEAR { ("near", "listen") } else { ("far", "connect") };
    match verdict {
        Verdict::Ordinary => return false,
        Verdict::Known => {}
        Verdict::Halved { from, to, is_first: true } => {
            warn!(
                side,
                %peer, from, to,
                "this peer closes at frames of {from} bytes: they are now at most {to}; if you know its limit, declare it \
                 with ?cap=BYTES in the address to {address}"
            );
        }
        Verdict::Halved { from, to, is_first: false } => {
            debug!(side, %peer, from, to, "frames to this peer are halved")
        }
        Verdict::Refused(size) => {
            warn!(
                side,
                %peer, size,
                "this peer closes with 1009 at messages of {size} bytes, and shorter frames are no help: they are refused \
                 for ten minutes"
            );
        }
    }
    true
}
