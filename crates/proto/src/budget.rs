//! Bytes we may hold: a private floor per connection, a quota per principal, one budget for the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::buffer;

/// What a group costs beside its bytes: its table entry, its id and what follows the JSON in it.
pub(crate) const GROUP_COST: u64 = 2048;

/// What a group of `bytes` bytes costs, with its list of blocks.
pub(crate) const fn group_cost(bytes: u64) -> u64 {
    bytes.saturating_add(bytes >> 12).saturating_add(GROUP_COST)
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
        let grant = self.floor_bytes.saturating_add(self.principal_bytes.min(self.process_bytes));
        grant.saturating_sub(grant >> 12).saturating_sub(GROUP_COST)
    }

    /// What of `held` bytes is beyond the floor.
    const fn drawn(&self, held: u64) -> u64 {
        held.saturating_sub(self.floor_bytes)
    }
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self { process_bytes: 512 << 20, principal_bytes: 256 << 20, floor_bytes: 64 << 10 }
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
        Account(Arc::new(Share { budget: self.clone(), id }))
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
        let mut pool = self.0.budget.lock();
        pool.hold(self.0.id, bytes, schedule.started)?;
        let id = pool.fresh_id();
        let track = Arc::new(Track { bytes: bytes.into(), ..Track::default() });
        pool.groups.insert(id, Row { account: self.0.id, schedule, track: Arc::clone(&track) });
        Ok(Grant { share: Arc::clone(&self.0), id, track })
    }

    /// Whether so much could be granted if nobody else held anything.
    pub(crate) fn could_grant(&self, bytes: u64) -> bool {
        let pool = self.0.budget.lock();
        let named = pool.accounts.get(&self.0.id).is_some_and(|holder| holder.principal.is_some());
        let shared = pool.config.principal_bytes.min(pool.config.process_bytes);
        bytes <= pool.config.floor_bytes.saturating_add(if named { shared } else { 0 })
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
        self.track.bytes.load(Ordering::Relaxed)
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
            self.share.budget.lock().hold(self.share.id, more, now)?;
            self.track.bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives back what is set aside beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes().saturating_sub(bytes);
        if less > 0 {
            self.share.budget.lock().release(self.share.id, less);
            self.track.bytes.store(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut pool = self.share.budget.lock();
        pool.groups.remove(&self.id);
        pool.release(self.share.id, self.bytes());
    }
}

/// What a group's connection and the others know of it.
#[derive(Debug, Default)]
struct Track {
    bytes: AtomicU64,
    received: AtomicU64,
    evicted: AtomicBool,
}

#[derive(Debug)]
struct Row {
    account: u64,
    schedule: Schedule,
    track: Arc<Track>,
}

impl Row {
    fn bytes(&self) -> u64 {
        self.track.bytes.load(Ordering::Relaxed)
    }

    /// How many bytes fewer have arrived than an even pace would have brought by now.
    fn behind(&self, now: Instant) -> u64 {
        let age = now.saturating_duration_since(self.schedule.started).as_micros();
        let timeout = self.schedule.timeout.as_micros().max(1);
        let due = u128::from(self.bytes()).saturating_mul(age).checked_div(timeout).unwrap_or(0);
        let due = u64::try_from(due).unwrap_or(u64::MAX).min(self.bytes());
        due.saturating_sub(self.track.received.load(Ordering::Relaxed))
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
    groups: HashMap<u64, Row>,
    last_id: u64,
}

impl Pool {
    const fn fresh_id(&mut self) -> u64 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    /// Adds `bytes` to what an account holds. Under pressure, marks a group for eviction.
    fn hold(&mut self, account: u64, bytes: u64, now: Instant) -> Result<(), Full> {
        let full = Full { bytes };
        let holder = self.accounts.get(&account).ok_or(full)?;
        let held = holder.held.checked_add(bytes).ok_or(full)?;
        let draw = self.config.drawn(held).saturating_sub(self.config.drawn(holder.held));
        if draw > 0 {
            let principal = holder.principal.as_ref().ok_or(full)?;
            let owned = self.principals.get(principal).copied().unwrap_or(0);
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
    /// is marked already. A connection does not evict its own groups.
    fn evict(&self, asking: u64, missing: u64, now: Instant) {
        let marked = |row: &&Row| row.track.evicted.load(Ordering::Relaxed);
        let coming = self.groups.values().filter(marked).fold(0_u64, |sum, row| sum.saturating_add(row.bytes()));
        if coming >= missing {
            return;
        }
        let holders = u64::try_from(self.principals.len()).unwrap_or(u64::MAX).max(1);
        let share = self.config.process_bytes.checked_div(holders).unwrap_or(0);
        let over = |row: &&Row| {
            let holder = self.accounts.get(&row.account);
            let principal = holder.and_then(|holder| holder.principal.as_ref());
            principal.and_then(|name| self.principals.get(name)).is_some_and(|used| *used > share)
        };
        let victim = self
            .groups
            .values()
            .filter(|row| row.account != asking && !marked(row) && over(row))
            .map(|row| (row.behind(now), row))
            .filter(|(behind, _)| *behind > 0)
            .max_by_key(|(behind, _)| *behind);
        if let Some((_, row)) = victim {
            row.track.evicted.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn budget() -> Budget {
        Budget::new(BudgetConfig { process_bytes: 1000, principal_bytes: 600, floor_bytes: 100 })
    }

    fn schedule(started: Instant) -> Schedule {
        Schedule { started, timeout: 10 * SECOND }
    }

    #[test]
    fn the_floor_is_private_and_the_rest_comes_from_the_process() {
        let (budget, now) = (budget(), schedule(Instant::now()));
        let (one, two) = (budget.account(Some("a")), budget.account(Some("b")));
        let first = one.reserve(100, now).unwrap();
        assert_eq!((budget.used(), budget.held(), first.bytes()), (0, 100, 100));
        let second = one.reserve(50, now).unwrap();
        let third = two.reserve(130, now).unwrap();
        assert_eq!((budget.used(), budget.held()), (80, 280));
        drop(first);
        assert_eq!((budget.used(), budget.held()), (30, 180));
        drop((second, third));
        assert_eq!((budget.used(), budget.held()), (0, 0));
    }

    #[test]
    fn a_stranger_has_only_the_floor() {
        let (budget, now) = (budget(), schedule(Instant::now()));
        let account = budget.account(None);
        assert_eq!(account.reserve(101, now).unwrap_err(), Full { bytes: 101 });
        let _held = account.reserve(100, now).unwrap();
        assert!(account.reserve(1, now).is_err());
    }

    #[test]
    fn connections_share_the_blocks_that_messages_have_let_go_of() {
        let budget = budget();
        let (one, two) = (budget.account(None), budget.account(None));
        let message = |account: &Account| {
            let mut buffer = buffer::Buffer::pooled(account.blocks());
            (0..40).for_each(|_| buffer.extend(&[7; 100_000]));
            buffer.into_message()
        };
        let places = |message: &crate::Message| message.parts().iter().map(|part| part.as_ptr()).collect::<Vec<_>>();
        let first = places(&message(&one));
        // What was merely freed is taken by these.
        let _decoys: Vec<_> = (0..8).map(|_| vec![1_u8; 1 << 20]).collect();
        let second = message(&two);
        assert!(places(&second).last().is_some_and(|place| first.contains(place)));
    }

    #[test]
    fn what_could_never_be_granted_is_known() {
        let budget = budget();
        let (named, stranger) = (budget.account(Some("a")), budget.account(None));
        assert!(named.could_grant(700) && !named.could_grant(701));
        assert!(stranger.could_grant(100) && !stranger.could_grant(101));
    }

    #[test]
    fn connections_of_one_principal_share_its_quota() {
        let (budget, now) = (budget(), schedule(Instant::now()));
        let (one, two, other) = (budget.account(Some("a")), budget.account(Some("a")), budget.account(Some("b")));
        let held = one.reserve(500, now).unwrap();
        assert!(two.reserve(301, now).is_err());
        let _rest = two.reserve(300, now).unwrap();
        assert!(other.reserve(501, now).is_err(), "the process has 400 left beside the floor");
        let _other = other.reserve(500, now).unwrap();
        assert_eq!(budget.used(), 1000);
        drop(held);
        assert!(two.reserve(400, now).is_ok());
    }

    #[test]
    fn a_grant_grows_and_shrinks() {
        let (budget, now) = (budget(), Instant::now());
        let account = budget.account(Some("a"));
        let mut grant = account.reserve(150, schedule(now)).unwrap();
        assert_eq!(grant.grow_to(140, now), Ok(()));
        assert_eq!((grant.bytes(), budget.used()), (150, 50));
        assert_eq!(grant.grow_to(400, now), Ok(()));
        assert_eq!((grant.bytes(), budget.used(), budget.held()), (400, 300, 400));
        assert_eq!(grant.grow_to(701, now), Err(Full { bytes: 301 }));
        assert_eq!((grant.bytes(), budget.used()), (400, 300));
        grant.shrink_to(500);
        assert_eq!(grant.bytes(), 400);
        grant.shrink_to(120);
        assert_eq!((grant.bytes(), budget.used(), budget.held()), (120, 20, 120));
        drop(grant);
        assert_eq!((budget.used(), budget.held()), (0, 0));
    }

    #[test]
    fn a_grant_outlives_its_account_and_the_account_then_goes() {
        let (budget, now) = (budget(), schedule(Instant::now()));
        let account = budget.account(Some("a"));
        let grant = account.reserve(300, now).unwrap();
        drop(account);
        assert_eq!(budget.held(), 300);
        drop(grant);
        drop(budget.account(Some("a")));
        assert_eq!((budget.held(), budget.used()), (0, 0));
        let pool = budget.lock();
        assert!(pool.accounts.is_empty() && pool.principals.is_empty() && pool.groups.is_empty());
    }

    #[test]
    fn a_size_beyond_counting_is_refused() {
        let (budget, now) = (budget(), schedule(Instant::now()));
        let account = budget.account(Some("a"));
        let _one = account.reserve(1, now).unwrap();
        assert!(account.reserve(u64::MAX, now).is_err());
        assert_eq!(budget.held(), 1);
    }

    /// Three groups fill the process: `slow` and `fast` of a greedy principal, and one of a modest principal.
    fn pressed(start: Instant) -> (Budget, [Grant; 3]) {
        let budget = budget();
        let [greedy, greedy_too, modest] = ["greedy", "greedy", "modest"].map(|name| budget.account(Some(name)));
        let slow = greedy.reserve(400, schedule(start)).unwrap();
        let fast = greedy_too.reserve(400, schedule(start)).unwrap();
        let other = modest.reserve(500, schedule(start)).unwrap();
        assert_eq!(budget.used(), 1000);
        slow.note_received(10);
        fast.note_received(300);
        (budget, [slow, fast, other])
    }

    #[test]
    fn under_pressure_the_group_furthest_behind_of_those_over_their_share_goes_first() {
        let start = Instant::now();
        let (budget, [slow, fast, other]) = pressed(start);
        let account = budget.account(Some("third"));
        assert!(account.reserve(110, schedule(start + 5 * SECOND)).is_err());
        assert_eq!((slow.evicted(), fast.evicted(), other.evicted()), (true, false, false));
        assert!(account.reserve(110, schedule(start + 5 * SECOND)).is_err());
        assert!(!fast.evicted(), "enough is on its way");
        drop(slow);
        assert!(account.reserve(110, schedule(start + 5 * SECOND)).is_ok());
    }

    #[test]
    fn a_group_on_schedule_is_never_evicted() {
        let start = Instant::now();
        let (budget, [slow, fast, other]) = pressed(start);
        slow.note_received(200);
        other.note_received(500);
        let account = budget.account(Some("third"));
        assert!(account.reserve(200, schedule(start + 5 * SECOND)).is_err());
        assert!(!slow.evicted() && !fast.evicted() && !other.evicted());
        assert!(account.reserve(200, schedule(start + 6 * SECOND)).is_err());
        assert!(slow.evicted() && !fast.evicted());
    }

    #[test]
    fn a_principal_within_its_share_and_the_one_that_asks_are_spared() {
        let start = Instant::now();
        let budget = budget();
        let (one, two) = (budget.account(Some("a")), budget.account(Some("b")));
        let half = one.reserve(600, schedule(start)).unwrap();
        let _rest = two.reserve(500, schedule(start)).unwrap();
        assert!(two.reserve(150, schedule(start + 9 * SECOND)).is_err());
        assert!(!half.evicted(), "500 of 1,000 is the fair share of one in two");
        drop(half);
        let own = one.reserve(700, schedule(start)).unwrap();
        assert!(one.reserve(10, schedule(start + 9 * SECOND)).is_err());
        assert!(!own.evicted(), "a connection does not evict its own");
    }

    #[test]
    fn a_quota_is_not_a_reason_to_evict() {
        let start = Instant::now();
        let budget = budget();
        let (one, two) = (budget.account(Some("a")), budget.account(Some("a")));
        let held = one.reserve(700, schedule(start)).unwrap();
        assert!(two.reserve(200, schedule(start + 9 * SECOND)).is_err());
        assert!(!held.evicted());
    }

    #[test]
    fn what_may_be_advertised_fits_the_grant() {
        for config in [BudgetConfig::default(), BudgetConfig { process_bytes: 9000, ..BudgetConfig::default() }] {
            let largest = config.largest_message();
            let grant = config.floor_bytes + config.principal_bytes.min(config.process_bytes);
            assert!(group_cost(largest) <= grant && group_cost(largest + largest / 1000 + 4096) > grant);
        }
    }
}
