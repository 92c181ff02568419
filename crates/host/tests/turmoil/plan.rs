//! What a seed decides about a world: who is in it, what its links take, and what goes wrong.

use std::time::Duration;

use breakbulk::link::{Keepalive, WebSocketConfig};
use breakbulk_host::endpoint::EndpointConfig;
use breakbulk_proto::{BudgetConfig, Limits, LimitsConfig};

use crate::sim::rng::Rng;

/// Somebody who does one thing wrong. The ledger must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// A client is not told of one action.
    DroppedAction,
    /// A client is told of one action twice.
    RepeatedAction,
    /// A client is told of an action after the next one.
    SwappedActions,
    /// A client is told of an action with another letter.
    AlteredAction,
    /// The log forgets at a crash what it took last.
    LostAppend,
    /// The log takes an action of a client twice.
    DoubleAppend,
}

/// A world, before it starts.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// The log is on a disk.
    pub(crate) on_disk: bool,
    /// Clients that dispatch and follow, and those that only watch, on their own terms.
    pub(crate) authors: usize,
    pub(crate) watchers: usize,
    pub(crate) sessions: usize,
    /// How many things are done, and the longest pause between two of them, in milliseconds.
    pub(crate) operations: u32,
    pub(crate) slowest: u64,
    /// The longest text.
    pub(crate) max_text: u64,
    /// The longest frame on a link, if there is a limit.
    pub(crate) cap: Option<u64>,
    /// Bytes that a wire takes at a time; a few of these may be on the way.
    pub(crate) piece: usize,
    /// How long the log may take before it has a batch, and before it says so, in milliseconds.
    pub(crate) slow_log: u64,
    /// More actions than this are not replayed.
    pub(crate) max_replay: usize,
    /// Bytes that wait for a client before the log is no longer read for it.
    pub(crate) room: usize,
    /// After so much silence a peer is given up.
    pub(crate) dead_after: Duration,
    pub(crate) faults: Faults,
    pub(crate) sabotage: Option<Sabotage>,
}

/// What goes wrong while there is something to do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// A way takes nothing for a while, both ways or one way.
    pub(crate) partitions: u32,
    /// A way delivers nothing for a while, and then all.
    pub(crate) holds: u32,
    /// A connection is reset after some more bytes.
    pub(crate) resets: u32,
    /// A client reads nothing for a while.
    pub(crate) stalls: u32,
    /// A program ends without a word, and starts again.
    pub(crate) crashes: u32,
    /// A watcher opens a second link beside the first.
    pub(crate) moves: u32,
    pub(crate) latencies: u32,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let plan = Self {
            seed,
            on_disk: rng.chance(15),
            authors: rng.range(1, 3) as usize,
            watchers: rng.range(1, 2) as usize,
            sessions: rng.range(1, 2) as usize,
            operations: rng.range(30, 100) as u32,
            slowest: rng.pick(&[30, 100, 200]),
            max_text: rng.pick(&[30_000, 300_000, 300_000, 3_000_000]),
            cap: rng.pick(&[Some(64 << 10), Some(64 << 10), Some(900_000), None]),
            piece: 4096 << rng.below(5),
            slow_log: rng.pick(&[0, 2, 20, 200]),
            max_replay: rng.pick(&[2, 20, 1000, 1000]),
            room: rng.pick(&[4 << 10, 256 << 10, 1 << 20]),
            dead_after: rng.millis(1200, 3000),
            faults: Faults {
                partitions: rng.pick(&[0, 0, 1, 2]),
                holds: rng.pick(&[0, 0, 1, 3]),
                resets: rng.pick(&[0, 1, 2, 4, 6]),
                stalls: rng.pick(&[0, 0, 1, 2]),
                crashes: rng.pick(&[0, 1, 1, 2, 4]),
                moves: rng.pick(&[0, 0, 1, 3]),
                latencies: rng.pick(&[0, 0, 1, 3]),
            },
            sabotage: None,
        };
        if rng.chance(20) { plan.busy(6) } else { plan }
    }

    /// A world with little trouble, for somebody who makes some.
    pub(crate) fn peaceful(mut self) -> Self {
        (self.on_disk, self.sessions, self.operations) = (false, 1, 40);
        (self.max_text, self.max_replay) = (30_000, 1000);
        self.faults = Faults::default();
        self
    }

    /// A world in which links break again and again while much is under way. What was missed is replayed: a snapshot would
    /// cover up what is lost.
    pub(crate) fn busy(mut self, resets: u32) -> Self {
        (self.operations, self.slowest, self.max_text) = (60, 60, 300_000);
        (self.max_replay, self.slow_log, self.room) = (1000, 200, 1 << 20);
        self.faults = Faults { resets, partitions: 2, moves: 2, ..Faults::default() };
        self
    }

    /// A world in which only the host ends, and begins again.
    pub(crate) fn crashing(mut self) -> Self {
        self = self.peaceful();
        (self.operations, self.slowest, self.faults.crashes) = (80, 200, 6);
        self
    }

    /// What machines take.
    pub(crate) fn limits(&self) -> Limits {
        let default = LimitsConfig::default();
        let config = LimitsConfig {
            max_frame_bytes: self.cap.unwrap_or(default.max_frame_bytes),
            group_timeout: Some(Duration::from_secs(120)),
            ..default
        };
        Limits::prove(config, &self.budget()).expect("the plan's limits hold together")
    }

    pub(crate) const fn budget(&self) -> BudgetConfig {
        BudgetConfig { process_bytes: 512 << 20, principal_bytes: 256 << 20, floor_bytes: 64 << 10 }
    }

    /// What links take.
    pub(crate) fn link(&self) -> WebSocketConfig {
        let keepalive = Some(Keepalive::within(self.dead_after));
        let max_frame_bytes = self.limits().max_frame_bytes;
        WebSocketConfig { max_frame_bytes, cap: self.cap.unwrap_or(u64::MAX), keepalive, ..WebSocketConfig::default() }
    }

    /// What the host takes, on top of its own defaults.
    pub(crate) fn endpoint(&self, defaults: EndpointConfig) -> EndpointConfig {
        EndpointConfig { limits: self.limits(), max_replay: self.max_replay, max_unsent_bytes: self.room, ..defaults }
    }

    /// The length of a text: mostly short, sometimes many segments long.
    pub(crate) fn text_len(&self, rng: &mut Rng) -> usize {
        let high = match rng.below(20) {
            0..8 => 100,
            8..11 => 3000,
            11..15 => 20_000,
            15..19 => 200_000,
            _ => self.max_text,
        };
        rng.range(10, high.min(self.max_text)) as usize
    }

    /// The channels of the world, beside the root: of each session itself, its chat, and its annotations.
    pub(crate) fn channels(&self) -> Vec<String> {
        let of = |n| [format!("ahp-session:/{n}"), format!("ahp-chat:/{n}"), format!("ahp-session:/{n}/annotations")];
        (0..self.sessions).flat_map(of).collect()
    }
}
