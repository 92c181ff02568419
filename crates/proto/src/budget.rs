//! Bytes we may hold: a private floor per connection, a quota per principal, one budget for the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::buffer;
use crate::clock::ReadClock;
use crate::message::len64;

/// What a group costs beside its bytes: its table entry, its id and what follows the JSON in it.
pub(crate) const GROUP_COST: u64 = 2048;

/// What the list of a group's first blocks takes: they are small, and the later ones are large.
const LIST_COST: u64 = 1024;

/// What a group costs that may come to `bytes` bytes, with the list of its blocks.
pub(crate) const fn group_cost(bytes: u64) -> u64 {
    bytes.saturating_add(bytes >> 12).saturating_add(LIST_COST + GROUP_COST)
}

/// How much may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetConfig {
    /// By all connections together, beyond their floors.
    pub process_bytes: u64,
    /// By all connections of one principal together, beyond their floors.
    pub principal_bytes: u64,
    /// By each connection for itself, whoever it is.
    pub floor_bytes: u64,
}

impl BudgetConfig {
    /// The largest message that one connection can be granted room for when nothing else is held.
    #[must_use]
    pub fn largest_message(&self) -> u64 {
        let grant = self.most(true);
        grant.saturating_sub(grant >> 12).saturating_sub(LIST_COST + GROUP_COST)
    }

    /// How many messages of `bytes` bytes one connection can be granted room for when nothing else is held.
    pub(crate) fn messages(&self, bytes: u64) -> u64 {
        self.most(true).checked_div(group_cost(bytes)).unwrap_or(0)
    }

    /// The most that one connection can be granted, with a principal or without.
    fn most(&self, named: bool) -> u64 {
        self.floor_bytes.saturating_add(if named { self.principal_bytes.min(self.process_bytes) } else { 0 })
    }

    /// What of `held` bytes is beyond the floor.
    const fn drawn(&self, held: u64) -> u64 {
        held.saturating_sub(self.floor_bytes)
    }
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self { process_bytes: 512 << 20, principal_bytes: 320 << 20, floor_bytes: 64 << 10 }
    }
}

/// The process's budget. Cloning shares it.
///
/// Beside what it accounts for, it keeps up to 16 MiB of blocks that messages have let go of, for the next ones.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    pool: Arc<Mutex<Pool>>,
    blocks: buffer::Pool,
}

impl Budget {
    /// A budget of which nothing is used yet.
    #[must_use]
    pub fn new(config: BudgetConfig) -> Self {
        Self { pool: Arc::new(Mutex::new(Pool { config, ..Pool::default() })), blocks: buffer::Pool::default() }
    }

    /// Opens the account of one connection. Without a principal there is only the floor.
    #[must_use]
    pub fn account(&self, principal: Option<&str>) -> Account {
        let mut pool = self.lock();
        let id = pool.fresh_id();
        pool.accounts.insert(id, Holder { principal: principal.map(Arc::from), held: 0 });
        Account(Arc::new(Share { budget: self.clone(), id, clock: ReadClock::default() }))
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> BudgetConfig {
        self.lock().config
    }

    /// Bytes drawn from the process's budget, floors not counted.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().used
    }

    /// Bytes that all connections hold, floors counted.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.lock().accounts.values().fold(0, |sum, holder| sum.saturating_add(holder.held))
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// There is no room for what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no room for {bytes} bytes")]
pub struct Full {
    /// What was asked for.
    pub bytes: u64,
}

/// One connection's share of the budget. Grants may outlive it.
#[derive(Debug)]
pub struct Account(Arc<Share>);

impl Account {
    /// Sets `bytes` aside for a group that should be complete at `schedule`'s end.
    ///
    /// When the process is out of room, the group furthest behind its schedule among those of principals over their
    /// fair share is marked for eviction; its room comes free when its connection lets go of it.
    ///
    /// # Errors
    /// There is no room now.
    pub fn reserve(&self, bytes: u64, schedule: Schedule) -> Result<Grant, Full> {
        self.reserve_beside(bytes, 0, schedule)
    }

    /// As [`reserve`](Self::reserve), if room for `spare` bytes more is left then.
    ///
    /// For what may wait to [grow](Grant::grow_to), and keeps what it has meanwhile: if each leaves enough for one to
    /// grow, none of them waits for the others.
    ///
    /// # Errors
    /// There is not so much room now.
    pub fn reserve_beside(&self, bytes: u64, spare: u64, schedule: Schedule) -> Result<Grant, Full> {
        let mut pool = self.0.budget.lock();
        pool.hold(self.0.id, bytes, spare, schedule.started)?;
        let id = pool.fresh_id();
        let (clock, share) = (self.clock(), Arc::clone(&self.0));
        let (started, account) = (clock.read(schedule.started), share.id);
        let (bytes, received, evicted) = (bytes.into(), 0.into(), false.into());
        let track = Arc::new(Track { account, clock, schedule, started, bytes, received, evicted });
        pool.groups.insert(id, Arc::clone(&track));
        Ok(Grant { share, id, track })
    }

    /// Whether so much could be granted if nobody else held anything.
    pub(crate) fn could_grant(&self, bytes: u64) -> bool {
        let pool = self.0.budget.lock();
        let named = pool.accounts.get(&self.0.id).is_some_and(|holder| holder.principal.is_some());
        bytes <= pool.config.most(named)
    }

    /// The time by which its groups are judged. Its connection stops it while it does not read.
    pub(crate) fn clock(&self) -> ReadClock {
        self.0.clock.clone()
    }

    /// Where blocks for messages come from.
    pub(crate) fn blocks(&self) -> buffer::Pool {
        self.0.budget.blocks.clone()
    }
}

/// What an account and its grants have in common; it goes with the last of them.
#[derive(Debug)]
struct Share {
    budget: Budget,
    id: u64,
    clock: ReadClock,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.lock().accounts.remove(&self.id);
    }
}

/// When a group began and when it should be complete.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Its first segment's arrival.
    pub started: Instant,
    /// The time it has.
    pub timeout: Duration,
}

/// Room set aside for one group. Dropping it gives the room back.
#[derive(Debug)]
pub struct Grant {
    share: Arc<Share>,
    id: u64,
    track: Arc<Track>,
}

impl Grant {
    /// The room set aside.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.track.bytes()
    }

    /// Says how much of the group has arrived.
    pub fn note_received(&self, bytes: u64) {
        self.track.received.store(bytes, Ordering::Relaxed);
    }

    /// Whether the group has to go, because others need the room more.
    #[must_use]
    pub fn evicted(&self) -> bool {
        self.track.evicted.load(Ordering::Relaxed)
    }

    /// Asks for room for `bytes` in all, when the group turns out larger than declared.
    ///
    /// # Errors
    /// There is no room now; what was set aside before stays.
    pub fn grow_to(&mut self, bytes: u64, now: Instant) -> Result<(), Full> {
        let more = bytes.saturating_sub(self.bytes());
        if more > 0 {
            self.share.budget.lock().hold(self.share.id, more, 0, now)?;
            self.track.bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The group has arrived whole: what is set aside beyond `bytes` is given back, and the rest is behind nothing any
    /// more, so it never has to go.
    pub fn complete(&mut self, bytes: u64) {
        let mut pool = self.share.budget.lock();
        pool.groups.remove(&self.id);
        pool.release(self.share.id, self.bytes().saturating_sub(bytes));
        self.track.bytes.fetch_min(bytes, Ordering::Relaxed);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.complete(0);
    }
}

/// What a group's connection and the others know of it.
#[derive(Debug)]
struct Track {
    account: u64,
    clock: ReadClock,
    schedule: Schedule,
    /// What the clock showed when it began.
    started: Duration,
    bytes: AtomicU64,
    received: AtomicU64,
    evicted: AtomicBool,
}

impl Track {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many bytes fewer have arrived than an even pace would have brought by now. Time in which its connection does not
    /// read counts half: that may be nobody's fault, but must not hold up others for ever.
    fn behind(&self, now: Instant) -> u64 {
        let read = self.clock.read(now).saturating_sub(self.started).as_micros();
        let passed = now.saturating_duration_since(self.schedule.started).as_micros();
        let timeout = self.schedule.timeout.as_micros().max(1);
        let age = read.midpoint(passed).min(timeout);
        let due = u128::from(self.bytes()).saturating_mul(age).checked_div(timeout).unwrap_or(0);
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        due.saturating_sub(self.received.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Holder {
    principal: Option<Arc<str>>,
    held: u64,
}

#[derive(Debug, Default)]
struct Pool {
    config: BudgetConfig,
    used: u64,
    accounts: HashMap<u64, Holder>,
    principals: HashMap<Arc<str>, u64>,
    /// Those that have not arrived whole.
    groups: HashMap<u64, Arc<Track>>,
    last_id: u64,
}

impl Pool {
    const fn fresh_id(&mut self) -> u64 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    /// Adds `bytes` to what an account holds, if `spare` is left then. Under pressure, marks a group for eviction.
    fn hold(&mut self, account: u64, bytes: u64, spare: u64, now: Instant) -> Result<(), Full> {
        let full = Full { bytes };
        let holder = self.accounts.get(&account).ok_or(full)?;
        let held = holder.held.checked_add(bytes).ok_or(full)?;
        let draw = self.config.drawn(held).saturating_sub(self.config.drawn(holder.held));
        if draw > 0 {
            let principal = holder.principal.as_ref().ok_or(full)?;
            let owned = self.principals.get(principal).copied().unwrap_or(0);
            let draw = draw.saturating_add(spare);
            if owned.saturating_add(draw) > self.config.principal_bytes {
                return Err(full);
            }
            let missing = self.used.saturating_add(draw).saturating_sub(self.config.process_bytes);
            if missing > 0 {
                self.evict(account, missing, now);
                return Err(full);
            }
        }
        self.note(account, held);
        Ok(())
    }

    fn release(&mut self, account: u64, bytes: u64) {
        let held = self.accounts.get(&account).map_or(0, |holder| holder.held);
        self.note(account, held.saturating_sub(bytes));
    }

    /// Notes what an account holds now.
    fn note(&mut self, account: u64, held: u64) {
        let Some(holder) = self.accounts.get_mut(&account) else { return };
        let (before, after) = (self.config.drawn(holder.held), self.config.drawn(held));
        let change = |drawn: u64| drawn.saturating_sub(before).saturating_add(after);
        holder.held = held;
        self.used = change(self.used);
        if let Some(principal) = &holder.principal {
            match change(self.principals.get(principal).copied().unwrap_or(0)) {
                0 => self.principals.remove(principal),
                owned => self.principals.insert(Arc::clone(principal), owned),
            };
        }
    }

    /// Marks the group furthest behind its schedule, among those of principals over their fair share, unless enough
    /// is marked already. Who asks counts among those who share. A connection does not evict its own groups.
    fn evict(&self, asking: u64, missing: u64, now: Instant) {
        let (going, staying): (Vec<_>, Vec<_>) =
            self.groups.values().partition(|group| group.evicted.load(Ordering::Relaxed));
        if going.iter().fold(0_u64, |sum, group| sum.saturating_add(group.bytes())) >= missing {
            return;
        }
        let owner = |account: &u64| self.accounts.get(account)?.principal.as_ref();
        let others = self.principals.keys().filter(|name| owner(&asking) != Some(*name)).count();
        let share = self.config.process_bytes.checked_div(len64(others).saturating_add(1)).unwrap_or(0);
        let over = |group: &Track| owner(&group.account).is_some_and(|name| self.principals.get(name) > Some(&share));
        let greedy = staying.into_iter().filter(|group| group.account != asking && over(group));
        if let Some(group) = greedy.max_by_key(|group| group.behind(now)).filter(|group| group.behind(now) > 0) {
            group.evicted.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
