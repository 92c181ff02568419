//! One writer at a time for each path.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use crate::lock::lock;

/// Paths share these locks by their hashes. With more locks, fewer unrelated paths wait for each other.
const LOCKS: usize = 64;

/// Serializes our own writers. Other programs are not affected.
#[derive(Debug)]
pub(super) struct Locks {
    locks: [Mutex<()>; LOCKS],
    hasher: RandomState,
}

impl Locks {
    pub(super) fn new() -> Self {
        Self { locks: [const { Mutex::new(()) }; LOCKS], hasher: RandomState::new() }
    }

    /// Waits until nobody else writes to this path.
    pub(super) fn one(&self, real: &Path) -> Option<MutexGuard<'_, ()>> {
        self.lock(self.index(real))
    }

    /// Locks two paths, always in the same order, so that two callers cannot deadlock.
    pub(super) fn two(&self, one: &Path, other: &Path) -> [Option<MutexGuard<'_, ()>>; 2] {
        let (one, other) = (self.index(one), self.index(other));
        let first = self.lock(one.min(other));
        [first, if one == other { None } else { self.lock(one.max(other)) }]
    }

    fn index(&self, real: &Path) -> usize {
        usize::try_from(self.hasher.hash_one(real) % 64).unwrap_or(0)
    }

    fn lock(&self, index: usize) -> Option<MutexGuard<'_, ()>> {
        // The lock protects no data that a panic could have left inconsistent.
        self.locks.get(index).map(lock)
    }
}
