//! What a seed decides about an `ahp` world: peers, limits, links, faults.

use std::time::Duration;

use breakbulk_proto::{BudgetConfig, Limits, LimitsConfig};

use crate::sim::link::Manner;
use crate::sim::rng::Rng;

/// How a client resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// From the connection's settled cursor; skips what it has applied.
    Settled,
    /// From the highest seq it saw, as the official client does; its machine delivers in start order.
    StartOrder,
    /// From the highest seq it saw, and its machine delivers at once: safe only because the peer, which has not heard
    /// of a settled cursor, finishes in order.
    Legacy,
}

/// Somebody who does one thing wrong. The ledger must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    StartOutOfOrder,
    BulkOvertaken,
    CursorPastExpired,
    SnapshotAppliedTwice,
    RunningClock,
    ForgottenCapability,
    DroppedAction,
    ReleasedEarly,
    WrongCut,
}

/// A world, before it starts.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) modes: Vec<Mode>,
    pub(crate) channels: usize,
    /// How many things the applications do.
    pub(crate) operations: u32,
    /// The longest text of an action or a resource.
    pub(crate) max_text: u64,
    /// Clients offer only a version without segments.
    pub(crate) old_version: bool,
    /// Neither side repeats its limits when it reconnects.
    pub(crate) hides_reconnect: bool,
    /// Limits differ from link to link.
    pub(crate) changes_limits: bool,
    /// Segments are cut again on the way.
    pub(crate) recuts: bool,
    /// Bits flip on the way: then only the rules of closing are checked.
    pub(crate) flips: Option<u64>,
    /// Clients share one budget.
    pub(crate) shares_budget: bool,
    /// Budgets have hardly room for one message.
    pub(crate) tight: bool,
    /// Clients send before the handshake is answered.
    pub(crate) eager: bool,
    /// The host hands everything to its machine at once, instead of as it is sent.
    pub(crate) floods: bool,
    /// Clients come to channels and leave them all the time.
    pub(crate) restless: bool,
    /// Clients take few events at a time, so that some wait in the machine when it goes.
    pub(crate) lazy: bool,
    /// Links are slow, and take little at a time.
    pub(crate) slow: bool,
    pub(crate) faults: Faults,
    pub(crate) sabotage: Option<Sabotage>,
}

/// What goes wrong while applications are busy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) cuts: u32,
    pub(crate) stalls: u32,
    pub(crate) pauses: u32,
    /// Groups have less time than slow links need.
    pub(crate) hurried: bool,
    /// How many times the cap of a link shrinks during the run.
    pub(crate) shrinks: u32,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let plan = Self::any(seed, rng);
        if rng.chance(12) { plan.in_which_groups_expire() } else { plan }
    }

    /// A world in which groups expire while others pass them, and clients resume from a settled cursor.
    pub(crate) fn in_which_groups_expire(mut self) -> Self {
        self.modes.fill(Mode::Settled);
        (self.channels, self.operations, self.max_text) = (4, 40, 20_000);
        (self.tight, self.lazy) = (false, false);
        self.faults = Faults { hurried: true, stalls: 6, ..Faults::default() };
        self
    }

    fn any(seed: u64, rng: &mut Rng) -> Self {
        let flips = rng.chance(5).then(|| rng.range(10, 60));
        let old_version = rng.chance(8);
        let hides_reconnect = rng.chance(12);
        let tight = rng.chance(25);
        let clients = if tight { rng.pick(&[2, 3, 4]) } else { rng.pick(&[1, 1, 1, 2]) };
        let mode = rng.pick(&[Mode::Settled, Mode::Settled, Mode::StartOrder, Mode::StartOrder, Mode::Legacy]);
        let modes = (0..clients).map(|_| mode).collect();
        let hurried = rng.chance(25);
        let faults = Faults {
            cuts: rng.pick(&[0, 1, 1, 2, 3, 5]),
            stalls: if hurried || tight { rng.range(1, 6) as u32 } else { rng.pick(&[0, 0, 1, 3]) },
            pauses: rng.pick(&[0, 0, 1, 4]),
            hurried,
            shrinks: rng.pick(&[0, 0, 0, 0, 0, 1]),
        };
        Self {
            seed,
            modes,
            channels: rng.range(1, 5) as usize,
            operations: rng.range(10, 80) as u32,
            max_text: if tight { 20_000 } else { rng.pick(&[300, 3000, 9000, 9000, 20_000]) },
            old_version,
            hides_reconnect,
            changes_limits: !hides_reconnect && rng.chance(50),
            recuts: rng.chance(20),
            flips,
            shares_budget: rng.chance(40),
            tight,
            eager: rng.chance(30),
            floods: rng.chance(30),
            restless: rng.chance(30),
            lazy: rng.chance(25),
            slow: rng.chance(60),
            faults,
            sabotage: None,
        }
    }

    pub(crate) fn budget(&self, rng: &mut Rng) -> BudgetConfig {
        if self.tight {
            let room = rng.range(26 << 10, 40 << 10);
            return BudgetConfig {
                process_bytes: room,
                principal_bytes: room,
                floor_bytes: rng.range(2 << 10, 6 << 10),
            };
        }
        BudgetConfig { process_bytes: 4 << 20, principal_bytes: 1 << 20, floor_bytes: 64 << 10 }
    }

    /// What one side takes on one link.
    pub(crate) fn limits(&self, rng: &mut Rng, budget: &BudgetConfig) -> Limits {
        let room = budget.largest_message().min(64 << 10);
        let timeout = match (self.faults.hurried, self.tight) {
            (true, _) => rng.millis(60, 500),
            (false, true) => rng.millis(400, 2000),
            (false, false) => Duration::from_secs(30),
        };
        let config = LimitsConfig {
            // Below 1,024 a handshake may itself need segments; then nobody in the middle can read it.
            max_frame_bytes: rng.range(if self.is_read_in_the_middle() { 1024 } else { 512 }, 4096),
            max_message_bytes: rng.range(room / 3, room).max(rng.pick(&[0, room])),
            max_depth: LimitsConfig::default().max_depth,
            max_groups: rng.pick(&[1, 2, 3, 8]),
            group_timeout: Some(timeout),
            grace: rng.millis(0, 50),
            max_queued_bytes: rng.range(64 << 10, 512 << 10),
            max_held_bytes: rng.pick(&[4 << 10, 16 << 10, 256 << 10, 256 << 10]),
        };
        Limits::prove(config, budget).expect("the plan's limits hold together")
    }

    /// How one direction of a link behaves.
    pub(crate) fn manner(&self, rng: &mut Rng) -> Manner {
        let (fastest, window) = match (self.faults.hurried, self.slow) {
            (true, _) => (200 << 10, 32 << 10),
            (false, true) => (120 << 10, 5 << 10),
            (false, false) => (1600 << 10, 32 << 10),
        };
        Manner {
            latency: rng.millis(0, 40),
            bytes_per_second: rng.range(fastest / 8, fastest),
            window: rng.range(1 << 10, window) as usize,
        }
    }

    /// The link's cap. Without segments everything has to fit it.
    pub(crate) fn cap(&self, rng: &mut Rng) -> u64 {
        let least = if self.old_version || self.is_read_in_the_middle() { 2048 } else { 600 };
        rng.range(least, 8192)
    }

    /// The length of a text: mostly short, sometimes many segments long.
    pub(crate) fn text_len(&self, rng: &mut Rng) -> usize {
        let high = match rng.below(20) {
            0..9 => 100,
            9..12 => 1000,
            12..16 => 5000,
            _ => self.max_text,
        };
        rng.range(10, high.min(self.max_text)) as usize
    }

    fn is_read_in_the_middle(&self) -> bool {
        self.hides_reconnect || self.modes.contains(&Mode::Legacy)
    }
}
