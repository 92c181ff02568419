//! A map that forgets its oldest entries, so that peers cannot make us remember without bound.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// Keeps at least the last `KEEP` entries, and at most twice as many.
#[derive(Debug)]
pub(crate) struct Recent<K, V, const KEEP: usize> {
    fresh: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Hash + Eq, V, const KEEP: usize> Recent<K, V, KEEP> {
    /// Remembers a value; returns what was there before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.remove(&key);
        if self.fresh.len() >= KEEP {
            self.old = std::mem::take(&mut self.fresh);
        }
        self.fresh.insert(key, value);
        before
    }

    /// Forgets a value; returns it.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.fresh.remove(key).or_else(|| self.old.remove(key))
    }

    /// What is remembered.
    pub(crate) fn get(&mut self, key: K) -> Option<&mut V> {
        self.fresh.get_mut(&key).or_else(|| self.old.get_mut(&key))
    }
}

impl<K, V, const KEEP: usize> Default for Recent<K, V, KEEP> {
    fn default() -> Self {
        Self { fresh: HashMap::new(), old: HashMap::new() }
    }
}

/// A key of fixed length for a value of any length.
pub(crate) fn hash_of(what: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::new().hash_one(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entries_are_kept_and_old_ones_forgotten() {
        let mut recent = Recent::<u32, u32, 10>::default();
        (0..100).for_each(|n| assert_eq!(recent.insert(n, n), None));
        assert!((90..100).all(|n| recent.get(n) == Some(&mut { n })));
        assert!((0..80).all(|n| recent.get(n).is_none()));
        assert_eq!((recent.insert(95, 7), recent.get(95)), (Some(95), Some(&mut 7)));
    }
}
