//! The proof is proven: somebody does one thing wrong, and the ledger must notice through the real driver.

use crate::sim::plan::{Mode, Plan, Sabotage};
use crate::sim::saboteur::{Saboteur, all_are_noticed, nothing_is_noticed};

/// Seeds that each saboteur gets; it must be noticed in at least one, and nothing may be noticed without it.
const SEEDS: u64 = 12;

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
fn the_ledger_notices_nothing_where_there_is_no_saboteur() {
    nothing_is_noticed(SABOTEURS.iter().map(|saboteur| saboteur.plan), SEEDS);
}

#[test]
fn the_ledger_notices_every_saboteur() {
    all_are_noticed(&SABOTEURS, SEEDS);
}
