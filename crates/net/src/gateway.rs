//! The gateway: each connection to one side gets one to the other, and each side negotiates for itself.

mod bridge;
mod caps;
mod debts;
mod dropped;
mod entrance;
mod name;
mod serve;
mod side;
mod store;
mod waiting;
mod watch;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::warn;

use breakbulk_proto::{Budget, CloseReason, Kind};

use self::bridge::{Bridge, FAR, NEAR, other};
use self::caps::{Caps, Verdict};
use self::dropped::Dropped;
use self::name::Name;
use self::side::Side;
use self::store::Store;
use self::waiting::Waiting;
use self::watch::Watched;
use crate::dialect::{Dialect, Setup};
use crate::driver::Driver;
use crate::link::{BoxLink, Intake, Link};

pub use self::entrance::Entrance;
pub use self::serve::{Exit, Served};

/// What joins the two sides of many connections, and remembers what outlives each.
#[derive(Debug)]
pub struct Gateway {
    setups: [Setup; 2],
    /// For what arrives from each side. As large, and apart: if what arrives from clients had to wait for what arrives from
    /// hosts, two gateways could wait for each other.
    arriving: [Budget; 2],
    /// For frames of segmented links that are not whole yet. As large, and apart: what waits for the rest of its group must
    /// not keep that rest out.
    frames: [Budget; 2],
    /// For what waits to be sent. As large, too.
    leaving: Budget,
    memory: Memory,
    drain: Duration,
}

/// How long what is under way has to finish when a side has closed, or the program stops.
const DRAIN: Duration = Duration::from_secs(5);

/// What is remembered across connections.
#[derive(Debug, Default)]
struct Memory {
    caps: Caps,
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
    /// Of a host that goes on to another client when its link is dropped: how long it has to answer a client that is gone.
    /// What it answers then is for nobody. If it has not answered all, its link [says so](Link::set_owing).
    pub patience: Option<Duration>,
}

impl End {
    /// A link to a peer of this name.
    pub fn new(link: impl Link + 'static, name: impl Into<String>) -> Self {
        Self { link: Box::new(link), name: name.into(), principal: None, patience: None }
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
    /// What was given up.
    pub lost: Lost,
}

/// What was given up when a connection through a gateway ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Messages that their receiver did not take, or not whole, in the time that it had.
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
    /// A gateway between clients, towards whom it is a server, and a host, towards whom it is a client. What arrives from
    /// clients may take up as much as `budget` says, as much again what arrives from hosts, and what waits to be sent. So may,
    /// where messages come in segments, those segments that are not whole yet.
    #[must_use]
    pub fn new(mut near: Setup, mut far: Setup, budget: Budget) -> Self {
        // Whoever puts segments together checks all of a message; nobody else has to, as with one that a program sends.
        near.front_only = far.dialect != Dialect::Plain;
        far.front_only = near.dialect != Dialect::Plain;
        // What a link takes is negotiated on that link: with a client that is not asked there, nothing is.
        far.hides_chunking = true;
        let [from_far, near_frames, far_frames, leaving] = [budget.config(); 4].map(Budget::new);
        let (arriving, frames) = ([budget, from_far], [near_frames, far_frames]);
        Self { setups: [near, far], arriving, frames, leaving, memory: Memory::default(), drain: DRAIN }
    }

    /// The same, with this long for what is under way to finish at the end. 5 s.
    #[must_use]
    pub const fn with_drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
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
        let (mut link, name) = self.watched(near);
        let account = Some(self.frames[NEAR].account(None));
        link.set_intake(Intake { max_frame_bytes: self.setups[NEAR].max_frame_bytes(), account });
        Waiting { link, name }
    }

    fn watched(&self, End { link, name, principal, .. }: End) -> (Watched<BoxLink>, Name) {
        let name = Name::new(name, principal);
        (Watched::new(link, self.memory.caps.cap(&name)), name)
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
        let patience = far.patience;
        let (far, far_name) = self.watched(far);
        let sides = [self.side(NEAR, near.link, principal)?, self.side(FAR, far, principal)?];
        Ok(Bridge::new(sides, [near.name, far_name], self, patience, watcher).run(stop).await)
    }

    /// Closes the link of a client that gets no host.
    pub async fn turn_away(&self, near: End, reason: CloseReason) {
        self.enter(near).turn_away(reason).await;
    }

    /// Bytes that are held for all connections, as far as they are charged to anybody.
    #[must_use]
    pub fn held(&self) -> u64 {
        let all = self.arriving.iter().chain(&self.frames).chain([&self.leaving]);
        all.fold(0, |sum, budget| sum.saturating_add(budget.held()))
    }

    /// How often each thing happened that a person may want to know of, by name.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.memory.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn side(&self, at: usize, mut link: Watched<BoxLink>, principal: Option<&str>) -> Result<Side, getrandom::Error> {
        let setup = &self.setups[at];
        // Where segments come, the machine charges whole messages; elsewhere a frame is one.
        let is_whole = matches!(setup.dialect, Dialect::Plain | Dialect::Stdio);
        let frames = if is_whole { &self.arriving[at] } else { &self.frames[at] };
        let account = principal.map(|principal| frames.account(Some(principal)));
        link.set_intake(Intake { max_frame_bytes: setup.max_frame_bytes(), account });
        let machine = setup.machine(self.arriving[at].account(principal))?;
        let store = Store::new(self.leaving.account(principal), self.arriving[other(at)].account(principal));
        Ok(Side::new(Driver::new(link, machine), store))
    }
}

impl Memory {
    fn count(&self, name: &'static str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(name).or_default();
        *count = count.saturating_add(1);
    }
}

/// Says once what was learned about a peer's cap. Whether that is why it closed.
fn report(side: &'static str, peer: &Name, verdict: Verdict) -> bool {
    match verdict {
        Verdict::Ordinary => false,
        Verdict::Known => true,
        Verdict::Shrunk { from, to } => {
            warn!(
                side,
                %peer, from, to, "this peer closes at frames of {from} bytes: from now on they are at most {to}"
            );
            true
        }
        Verdict::Hopeless(size) => {
            warn!(side, %peer, size, "this peer takes no frames that would carry such a message: it will be refused");
            true
        }
    }
}
