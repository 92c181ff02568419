//! The proof is proven: somebody does one thing wrong, and the ledger must notice.

use crate::sim::ledger::Counts;
use crate::sim::plan::{Plan, Sabotage};
use crate::sim::world::{Outcome, run};

/// Seeds that each saboteur gets; it must be noticed in at least one.
const SEEDS: u64 = 8;

/// A saboteur, the world in which it works best, and what the ledger should say.
struct Saboteur {
    name: &'static str,
    sabotage: Sabotage,
    plan: fn(u64) -> Plan,
    noticed: fn(&Counts) -> u64,
}

const SABOTEURS: [Saboteur; 6] = [
    Saboteur {
        name: "1 an action that a client is not told of",
        sabotage: Sabotage::DroppedAction,
        plan: |seed| Plan::new(seed).peaceful(),
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "2 an action that a client is told of twice",
        sabotage: Sabotage::RepeatedAction,
        plan: |seed| Plan::new(seed).peaceful(),
        noticed: |counts| counts.duplicated,
    },
    Saboteur {
        name: "3 an action that comes after the next",
        sabotage: Sabotage::SwappedActions,
        plan: |seed| Plan::new(seed).peaceful(),
        // A client of this house passes over what comes late.
        noticed: |counts| counts.reordered + counts.lost,
    },
    Saboteur {
        name: "4 an action with another letter",
        sabotage: Sabotage::AlteredAction,
        plan: |seed| Plan::new(seed).peaceful(),
        noticed: |counts| counts.altered,
    },
    Saboteur {
        name: "5 a log that forgets at a crash what it took last",
        sabotage: Sabotage::LostAppend,
        plan: |seed| Plan::new(seed).crashing(),
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "6 a log that takes an action twice",
        sabotage: Sabotage::DoubleAppend,
        plan: |seed| Plan::new(seed).peaceful(),
        noticed: |counts| counts.duplicated,
    },
];

#[test]
fn the_ledger_notices_nothing_where_there_is_no_saboteur() {
    for seed in 0..SEEDS {
        for plan in [Plan::new(seed).peaceful(), Plan::new(seed).crashing()] {
            let honest = run(plan);
            assert!(honest.counts.is_clean(), "seed {seed}: {:?}", honest.notes);
        }
    }
}

#[test]
fn the_ledger_notices_every_saboteur() {
    let missed: Vec<_> = SABOTEURS.iter().filter(|saboteur| saboteur.work() == 0).map(|it| it.name).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

impl Saboteur {
    /// In how many seeds this saboteur was noticed. Says what the ledger reported first.
    fn work(&self) -> u64 {
        let mut first = None;
        let mut caught = 0;
        for seed in 0..SEEDS {
            let outcome = run(Plan { sabotage: Some(self.sabotage), ..(self.plan)(seed) });
            if (self.noticed)(&outcome.counts) > 0 {
                caught += 1;
                first.get_or_insert((seed, outcome));
            }
        }
        let report = |(seed, outcome): &(u64, Outcome)| {
            format!("seed {seed}: {}\n    {}", outcome.counts, outcome.notes.first().cloned().unwrap_or_default())
        };
        let first = first.as_ref().map_or_else(String::new, report);
        println!("{}: noticed in {caught} of {SEEDS} seeds; {first}", self.name);
        caught
    }
}
