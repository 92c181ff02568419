//! Names that are used once.

use std::collections::{HashMap, HashSet};

use crate::Id;

/// Gives each thing a name of its own: the one that the agent gave it, unless that was used before.
#[derive(Debug, Default)]
pub(super) struct Names {
    used: HashSet<Id>,
    /// How often a name was given.
    times: HashMap<Id, u64>,
}

impl Names {
    /// A name that nothing else has.
    pub(super) fn fresh(&mut self, given: &Id) -> Id {
        if self.used.insert(given.clone()) {
            return given.clone();
        }
        let times = self.times.entry(given.clone()).or_insert(1);
        loop {
            *times = times.saturating_add(1);
            let name = Id::from(format!("{given}~{times}"));
            if self.used.insert(name.clone()) {
                return name;
            }
        }
    }
}
