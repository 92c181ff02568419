//! What a seed decides about a world: who is in it, what its links take, and what goes wrong.

use std::time::Duration;

use breakbulk::link::{Keepalive, WebSocketConfig};
use breakbulk_proto::{BudgetConfig, Limits, LimitsConfig};

use crate::sim::rng::Rng;

/// How a client is connected, and where it resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To the host; resumes from the connection's settled cursor, and skips what it has applied.
    Settled,
    /// To the host; its machine delivers in start order, and it resumes from the highest seq it saw.
    StartOrder,
    /// Knows nothing of segments, and resumes from the highest seq it saw. Two gateways stand between it and the host.
    Plain,
}

/// Somebody who does one thing wrong. The ledger must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// A link loses one action, with all of its frames.
    DroppedAction,
    /// A link brings one action twice.
    RepeatedAction,
    /// A link brings an action after the next one.
    SwappedActions,
    /// A link changes a letter.
    AlteredAction,
    /// A client resumes from the highest seq that it saw, although groups pass each other on its link.
    HighestCursor,
    /// A client applies what is replayed without looking whether it has.
    AppliedTwice,
    /// The gateway beside a plain client hands on what it should hold back.
    ReleasedEarly,
}

/// A world, before it starts.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) modes: Vec<Mode>,
    pub(crate) channels: usize,
    /// How many things the applications do.
    pub(crate) operations: u32,
    /// The longest pause between two of them, in milliseconds.
    pub(crate) slowest: u64,
    /// The longest text.
    pub(crate) max_text: u64,
    /// The most that a snapshot has beside what it says.
    pub(crate) max_pad: usize,
    /// The longest frame on a link with segments.
    pub(crate) cap: u64,
    /// Bytes that a wire takes at a time; a few of these may be on the way.
    pub(crate) piece: usize,
    /// Bytes of actions that the host hands over before any of them is sent.
    pub(crate) window: u64,
    /// More bytes, or more actions, than this are not replayed.
    pub(crate) replay: (usize, usize),
    /// Budgets have hardly room for one large message.
    pub(crate) tight: bool,
    /// How long a group may take.
    pub(crate) group_timeout: Duration,
    /// After so much silence a peer is given up.
    pub(crate) dead_after: Duration,
    pub(crate) faults: Faults,
    pub(crate) sabotage: Option<Sabotage>,
}

/// What goes wrong while applications are busy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// A way takes nothing for a while, both ways or one way. What was on it is gone, and nobody is told.
    pub(crate) partitions: u32,
    /// A way delivers nothing for a while, and then all.
    pub(crate) holds: u32,
    /// A connection is reset after some more bytes.
    pub(crate) resets: u32,
    /// An end stops reading, or does nothing at all, for a while.
    pub(crate) stalls: u32,
    /// The host does nothing at all for a while.
    pub(crate) pauses: u32,
    /// A program ends without a word, and starts again.
    pub(crate) crashes: u32,
    pub(crate) latencies: u32,
    /// Ways lose something now and then.
    pub(crate) lossy: bool,
}

/// Room for everything that a world sends.
const AMPLE: BudgetConfig =
    BudgetConfig { process_bytes: 256 << 20, principal_bytes: 128 << 20, floor_bytes: 64 << 10 };

/// Room for little more than the largest message.
const TIGHT: BudgetConfig =
    BudgetConfig { process_bytes: 700 << 10, principal_bytes: 500 << 10, floor_bytes: 64 << 10 };

/// Room for little more than the largest message each way.
const TIGHT_GATEWAY: BudgetConfig =
    BudgetConfig { process_bytes: 1000 << 10, principal_bytes: 800 << 10, floor_bytes: 64 << 10 };

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let clients = rng.range(1, 3);
        let modes: Vec<_> =
            (0..clients).map(|_| rng.pick(&[Mode::Settled, Mode::Settled, Mode::StartOrder, Mode::Plain])).collect();
        let plan = Self {
            seed,
            modes,
            channels: rng.range(1, 5) as usize,
            operations: rng.range(15, 80) as u32,
            slowest: rng.pick(&[30, 100, 200]),
            max_text: rng.pick(&[30_000, 300_000, 300_000, 3_000_000]),
            max_pad: 100_000,
            cap: 4096 << rng.below(5),
            piece: 1024 << rng.below(5),
            window: rng.pick(&[24 << 10, 256 << 10, 4 << 20]),
            replay: (rng.pick(&[100_000, 1_000_000, 3_000_000]), rng.pick(&[3, 20, 1000])),
            tight: false,
            group_timeout: Duration::from_secs(120),
            dead_after: rng.millis(1200, 3000),
            faults: Faults {
                partitions: rng.pick(&[0, 0, 1, 2]),
                holds: rng.pick(&[0, 0, 1, 3]),
                resets: rng.pick(&[0, 1, 2, 4, 6]),
                stalls: rng.pick(&[0, 1, 2, 4]),
                pauses: rng.pick(&[0, 0, 1]),
                crashes: rng.pick(&[0, 0, 1, 2]),
                latencies: rng.pick(&[0, 0, 1, 3]),
                lossy: rng.chance(15),
            },
            sabotage: None,
        };
        match rng.below(10) {
            0 | 1 => plan.in_a_hurry(rng),
            2 | 3 => plan.with_little_room(),
            4 => plan.busy(rng.pick(&[Mode::Settled, Mode::StartOrder]), 6),
            _ => plan,
        }
    }

    /// A world in which two large messages at once are one too many.
    fn with_little_room(mut self) -> Self {
        self.tight = true;
        (self.max_text, self.max_pad, self.replay.0) = (300_000, 20_000, 300_000);
        (self.piece, self.window) = (self.piece.min(4096), 4 << 20);
        self
    }

    /// A world with one client and little trouble of its own.
    pub(crate) fn peaceful(mut self, mode: Mode) -> Self {
        (self.modes, self.tight) = (vec![mode], false);
        (self.operations, self.max_text) = (40, 30_000);
        self.faults = Faults { resets: 2, ..Faults::default() };
        self
    }

    /// A world in which small messages pass large ones on a slow wire that breaks again and again. What was missed is
    /// replayed: a snapshot would cover up what is lost.
    pub(crate) fn busy(mut self, mode: Mode, resets: u32) -> Self {
        (self.modes, self.tight) = (vec![mode], false);
        (self.channels, self.operations, self.slowest, self.max_text) = (4, 80, 100, 300_000);
        (self.cap, self.piece, self.window, self.replay) = (4096, 1024, 4 << 20, (20_000_000, 1000));
        self.group_timeout = Duration::from_secs(120);
        self.faults = Faults { resets, ..Faults::default() };
        self
    }

    /// A world in which groups expire when their way is held. In quiet times everything is in time.
    fn in_a_hurry(mut self, rng: &mut Rng) -> Self {
        self.group_timeout = rng.millis(200, 900);
        (self.max_text, self.max_pad, self.replay.0) = (60_000, 2000, 60_000);
        (self.cap, self.piece) = (self.cap.min(16 << 10), self.piece.max(2048));
        (self.faults.holds, self.faults.pauses, self.faults.lossy) = (5, 3, false);
        self
    }

    /// What a machine on a link with segments takes.
    pub(crate) fn limits(&self) -> Limits {
        let most = if self.tight { 400 << 10 } else { 32 << 20 };
        let config = LimitsConfig {
            max_frame_bytes: self.cap,
            max_message_bytes: most,
            max_held_bytes: most,
            group_timeout: Some(self.group_timeout),
            grace: Duration::from_millis(20),
            ..LimitsConfig::default()
        };
        Limits::prove(config, &self.budget()).expect("the plan's limits hold together")
    }

    /// What a gateway takes on a link without segments.
    pub(crate) fn gateway_limits(&self) -> Limits {
        let config = LimitsConfig {
            max_message_bytes: self.limits().max_message_bytes,
            max_frame_bytes: self.cap,
            ..LimitsConfig::default()
        };
        Limits::prove(config, &self.gateway_budget()).expect("the plan's limits hold together")
    }

    pub(crate) const fn gateway_budget(&self) -> BudgetConfig {
        if self.tight { TIGHT_GATEWAY } else { AMPLE }
    }

    pub(crate) const fn budget(&self) -> BudgetConfig {
        if self.tight { TIGHT } else { AMPLE }
    }

    /// A link with segments.
    pub(crate) fn capped(&self) -> WebSocketConfig {
        WebSocketConfig { max_frame_bytes: self.cap, cap: self.cap, ..self.plain() }
    }

    /// A link without.
    pub(crate) fn plain(&self) -> WebSocketConfig {
        let keepalive = Some(Keepalive::within(self.dead_after));
        WebSocketConfig { max_frame_bytes: 64 << 20, keepalive, ..WebSocketConfig::default() }
    }

    /// The length of a text: mostly short, sometimes hundreds of segments long.
    pub(crate) fn text_len(&self, rng: &mut Rng) -> usize {
        let high = match rng.below(20) {
            0..7 => 100,
            7..9 => 3000,
            9..13 => 20_000,
            13..18 => 200_000,
            _ => self.max_text,
        };
        rng.range(10, high.min(self.max_text)) as usize
    }
}
