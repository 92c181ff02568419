//! The proof is proven: somebody does one thing wrong, and the ledger must notice.

use crate::sim::plan::{Plan, Sabotage};
use crate::sim::saboteur::{Saboteur, all_are_noticed, nothing_is_noticed};

/// Seeds that each saboteur gets; it must be noticed in at least one.
const SEEDS: u64 = 8;

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
    nothing_is_noticed([|seed| Plan::new(seed).peaceful(), |seed| Plan::new(seed).crashing()], SEEDS);
}

#[test]
fn the_ledger_notices_every_saboteur() {
    all_are_noticed(&SABOTEURS, SEEDS);
}
