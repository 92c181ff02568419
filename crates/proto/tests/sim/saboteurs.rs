//! The proof is proven: somebody does one thing wrong, and the ledger must notice.

use crate::sim::accounting::{Books, off_the_books};
use crate::sim::ledger::Counts;
use crate::sim::plan::{Faults, Mode, Plan, Sabotage};
use crate::sim::world::{Outcome, run};

/// Seeds that each saboteur gets; it must be noticed in at least one, and nothing may be noticed without it.
const SEEDS: u64 = 300;

/// A saboteur, the world in which it works best, and what the ledger should say.
struct Saboteur {
    name: &'static str,
    sabotage: Sabotage,
    world: fn(&mut Plan),
    noticed: fn(&Counts) -> u64,
}

const SABOTEURS: [Saboteur; 9] = [
    Saboteur {
        name: "1 a start out of order",
        sabotage: Sabotage::StartOutOfOrder,
        world: |plan| plan.channels = 4,
        noticed: |counts| counts.reordered,
    },
    Saboteur {
        name: "2 a serial bulk message overtaken before it starts",
        sabotage: Sabotage::BulkOvertaken,
        world: |plan| {
            (plan.channels, plan.operations, plan.max_text) = (4, 40, 9000);
            plan.slow = true;
            plan.faults.cuts = 5;
        },
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "3 a cursor that advances past an expired group",
        sabotage: Sabotage::CursorPastExpired,
        world: |plan| *plan = plan.clone().in_which_groups_expire(),
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "4 a snapshot's actions applied twice",
        sabotage: Sabotage::SnapshotAppliedTwice,
        world: |plan| {
            plan.modes.fill(Mode::Settled);
            (plan.channels, plan.operations, plan.max_text) = (3, 150, 9000);
            (plan.slow, plan.restless, plan.lazy, plan.tight) = (true, true, false, false);
            plan.faults = Faults { cuts: 12, ..Faults::default() };
        },
        noticed: |counts| counts.duplicated,
    },
    Saboteur {
        name: "5 a clock that runs while reading is paused",
        sabotage: Sabotage::RunningClock,
        world: |plan| {
            (plan.operations, plan.max_text) = (40, 20_000);
            plan.faults = Faults { hurried: true, pauses: 8, ..Faults::default() };
        },
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "6 a capability forgotten at reconnect",
        sabotage: Sabotage::ForgottenCapability,
        world: |plan| {
            (plan.hides_reconnect, plan.changes_limits) = (true, false);
            (plan.operations, plan.max_text) = (40, 9000);
            plan.faults.cuts = 5;
        },
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "7 a dropped action",
        sabotage: Sabotage::DroppedAction,
        world: |_| {},
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "9 a held-back message released early",
        sabotage: Sabotage::ReleasedEarly,
        world: |plan| {
            plan.modes.fill(Mode::StartOrder);
            (plan.channels, plan.operations, plan.max_text) = (4, 40, 20_000);
            plan.slow = true;
            plan.faults.cuts = 8;
        },
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "10 a segment cut at a wrong byte",
        sabotage: Sabotage::WrongCut,
        world: |plan| (plan.recuts, plan.max_text) = (true, 9000),
        noticed: |counts| counts.altered,
    },
];

#[test]
fn the_ledger_notices_every_saboteur() {
    let missed: Vec<_> = SABOTEURS.iter().filter(|saboteur| saboteur.work() == 0).map(|it| it.name).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

#[test]
fn the_allocator_notices_a_budget_counted_by_length() {
    let hidden: Vec<_> = (0..SEEDS).map(|seed| off_the_books(seed, Books::ByLength)).collect();
    let noticed = hidden.iter().filter(|bytes| **bytes > 0).count();
    let most = hidden.iter().max().copied().unwrap_or(0);
    println!(
        "8 a budget counted by length: noticed in {noticed} of {SEEDS} seeds; up to {most} bytes are held and not charged"
    );
    assert!(noticed > 0, "not noticed: a budget counted by length");
}

impl Saboteur {
    /// In how many seeds this saboteur was noticed. Says what the ledger reported first.
    fn work(&self) -> u64 {
        let mut first = None;
        let mut caught = 0;
        for seed in 0..SEEDS {
            let honest = run(self.plan(seed, None));
            assert!(honest.counts.is_clean(), "{}: seed {seed} without it: {:?}", self.name, honest.notes);
            let outcome = run(self.plan(seed, Some(self.sabotage)));
            if (self.noticed)(&outcome.counts) > 0 {
                caught += 1;
                first.get_or_insert((seed, outcome));
            }
        }
        let report = |(seed, outcome): &(u64, Outcome)| {
            format!("seed {seed}: {}\n    {}", outcome.counts, outcome.notes.first().cloned().unwrap_or_default())
        };
        println!(
            "{}: noticed in {caught} of {SEEDS} seeds; {}",
            self.name,
            first.as_ref().map_or_else(String::new, report)
        );
        caught
    }

    fn plan(&self, seed: u64, sabotage: Option<Sabotage>) -> Plan {
        let mut plan = Plan::new(seed);
        (plan.flips, plan.old_version) = (None, false);
        (self.world)(&mut plan);
        Plan { sabotage, ..plan }
    }
}
