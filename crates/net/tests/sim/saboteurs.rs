//! The proof is proven: somebody does one thing wrong, and the ledger must notice through the real driver.

use crate::sim::ledger::Counts;
use crate::sim::plan::{Mode, Plan, Sabotage};
use crate::sim::world::{Outcome, run};

/// Seeds that each saboteur gets; it must be noticed in at least one, and nothing may be noticed without it.
const SEEDS: u64 = 12;

/// A saboteur, the world in which it works best, and what the ledger should say.
struct Saboteur {
    name: &'static str,
    sabotage: Sabotage,
    plan: fn(u64) -> Plan,
    noticed: fn(&Counts) -> u64,
}

const SABOTEURS: [Saboteur; 7] = [
    Saboteur {
        name: "1 an action dropped by a link",
        sabotage: Sabotage::DroppedAction,
        plan: |seed| Plan::new(seed).peaceful(Mode::Settled),
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "2 an action brought twice",
        sabotage: Sabotage::RepeatedAction,
        plan: |seed| Plan::new(seed).peaceful(Mode::StartOrder),
        noticed: |counts| counts.duplicated,
    },
    Saboteur {
        name: "3 an action that comes after the next",
        sabotage: Sabotage::SwappedActions,
        plan: |seed| Plan::new(seed).peaceful(Mode::StartOrder),
        noticed: |counts| counts.reordered,
    },
    Saboteur {
        name: "4 an action with another letter",
        sabotage: Sabotage::AlteredAction,
        plan: |seed| Plan::new(seed).peaceful(Mode::Settled),
        noticed: |counts| counts.altered,
    },
    Saboteur {
        name: "5 a cursor that is the highest seq seen while groups pass each other",
        sabotage: Sabotage::HighestCursor,
        plan: |seed| Plan::new(seed).busy(Mode::Settled, 12),
        noticed: |counts| counts.lost,
    },
    Saboteur {
        name: "6 a replay applied without a look at what has been",
        sabotage: Sabotage::AppliedTwice,
        plan: |seed| Plan::new(seed).busy(Mode::Settled, 12),
        noticed: |counts| counts.duplicated,
    },
    Saboteur {
        name: "7 a held-back message that the gateway releases early",
        sabotage: Sabotage::ReleasedEarly,
        // Nobody tells when a gateway is inside a group, so its links break more often.
        plan: |seed| Plan::new(seed).busy(Mode::Plain, 20),
        noticed: |counts| counts.lost + counts.reordered,
    },
];

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
            let honest = run((self.plan)(seed));
            assert!(honest.counts.is_clean(), "{}: seed {seed} without it: {:?}", self.name, honest.notes);
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
