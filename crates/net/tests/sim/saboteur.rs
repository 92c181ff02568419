//! Somebody who does one thing wrong, and whether the ledger notices.

use crate::sim::ledger::Counts;
use crate::sim::plan::{Plan, Sabotage};
use crate::sim::world::{Outcome, run};

/// A saboteur, the world in which it works best, and what the ledger should say.
pub(crate) struct Saboteur {
    pub(crate) name: &'static str,
    pub(crate) sabotage: Sabotage,
    pub(crate) plan: fn(u64) -> Plan,
    pub(crate) noticed: fn(&Counts) -> u64,
}

impl Saboteur {
    /// Whether it was noticed in any of so many seeds. Says in how many, and what the ledger reported first.
    pub(crate) fn is_noticed(&self, seeds: u64) -> bool {
        let mut first = None;
        let mut caught = 0;
        for seed in 0..seeds {
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
        println!("{}: noticed in {caught} of {seeds} seeds; {first}", self.name);
        caught > 0
    }
}

/// Fails unless each of them is noticed.
pub(crate) fn all_are_noticed(saboteurs: &[Saboteur], seeds: u64) {
    let missed: Vec<_> = saboteurs.iter().filter(|saboteur| !saboteur.is_noticed(seeds)).map(|it| it.name).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

/// Fails if anything is noticed in one of these worlds, in which nobody does anything wrong.
pub(crate) fn nothing_is_noticed(plans: impl IntoIterator<Item = fn(u64) -> Plan>, seeds: u64) {
    for (at, plan) in plans.into_iter().enumerate() {
        for seed in 0..seeds {
            let honest = run(plan(seed));
            assert!(honest.counts.is_clean(), "plan {at}, seed {seed}: {:?}", honest.notes);
        }
    }
}
