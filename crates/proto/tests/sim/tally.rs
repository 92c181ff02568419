//! How often each kind of event happened: a simulation in which nothing happens proves nothing.

use std::collections::BTreeMap;

/// Counts by name.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn one(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    pub(crate) fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, count)| self.add(name, *count));
    }

    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The names among `names` that never occurred.
    pub(crate) fn missing<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        names.iter().copied().filter(|name| self.get(name) == 0).collect()
    }

    /// All counts, a few in a line.
    pub(crate) fn lines(&self) -> String {
        let all: Vec<_> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        all.chunks(6).map(|row| format!("  {}", row.join(", "))).collect::<Vec<_>>().join("\n")
    }
}
