//! The memory that we may hold: a private floor per connection, a quota per principal, one budget for the process.
//!
//! A budget can be split into shares, for uses that must not starve each other. All shares draw on the same bytes, but some of
//! the process's bytes, and of each principal's quota, are reserved for each share, whatever the other shares hold.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::buffer;
use crate::clock::ReadClock;
use crate::message::len64;

/// A group that has brought less than [`STEP`] in this time, while its connection was read, makes no progress.
const STANDSTILL: Duration = Duration::from_secs(30);
/// The least that counts as progress: about 550 bytes a second, which the slowest links have many times over.
const STEP: u64 = 16 << 10;

/// What a group costs beside its bytes: its table entry, its id and what follows the JSON in it.
pub(crate) const GROUP_COST: u64 = 2048;

/// The memory for the list of a group's first blocks, which are small. Later blocks are large, so their list costs
/// little.
const LIST_COST: u64 = 1024;

/// The cost of a group that may grow to `bytes` bytes, with the list of its blocks.
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
    /// The largest message that one connection can reserve memory for when nobody holds anything.
    #[must_use]
    pub fn largest_message(&self) -> u64 {
        let grant = self.largest_grant();
        grant.saturating_sub(grant >> 12).saturating_sub(LIST_COST + GROUP_COST)
    }

    /// How much must be reserved beyond the floor, so that a message of `bytes` bytes can always arrive, whatever else
    /// is held.
    #[must_use]
    pub const fn reserve_for(&self, bytes: u64) -> u64 {
        self.drawn(group_cost(bytes))
    }

    /// How many messages of `bytes` bytes one connection can reserve memory for when nobody holds anything.
    pub(crate) fn messages(&self, bytes: u64) -> u64 {
        self.largest_grant().checked_div(group_cost(bytes)).unwrap_or(0)
    }

    /// The most that one connection of a known principal can be granted.
    const fn largest_grant(&self) -> u64 {
        let shared = if self.principal_bytes < self.process_bytes { self.principal_bytes } else { self.process_bytes };
        self.floor_bytes.saturating_add(shared)
    }

    /// How many of `held` bytes are beyond the floor.
    const fn drawn(&self, held: u64) -> u64 {
        held.saturating_sub(self.floor_bytes)
    }
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self { process_bytes: 512 << 20, principal_bytes: 320 << 20, floor_bytes: 64 << 10 }
    }
}

/// How many shares a budget can be split into.
const SHARES: usize = 4;

/// Bytes by share.
type PerShare = [u64; SHARES];

/// The process's budget, or a share of it. Cloning shares it.
///
/// It also keeps freed blocks for the next messages: at most a 32nd of the process's bytes, and at most 16 MiB. These are not
/// counted.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    state: Arc<Mutex<BudgetState>>,
    blocks: buffer::BlockPool,
    /// Which share this is, of those in `state`.
    share: usize,
}

impl Budget {
    /// A budget of which nothing is used yet.
    #[must_use]
    pub fn new(config: BudgetConfig) -> Self {
        let [budget, ..] = Self::split(config, PerShare::default());
        budget
    }

    /// Splits a new budget into shares. All shares draw on the same bytes. `reserved` says how many of them each share can
    /// always have: of the process's bytes, and of each principal's quota.
    ///
    /// The sum of `reserved` must not exceed the budget or the quota; otherwise a share may get less than was reserved for it.
    #[must_use]
    pub fn split(config: BudgetConfig, reserved: [u64; SHARES]) -> [Self; SHARES] {
        let blocks = buffer::BlockPool::for_budget(config.process_bytes);
        let state = Arc::new(Mutex::new(BudgetState { config, reserved, ..BudgetState::default() }));
        std::array::from_fn(|share| Self { state: Arc::clone(&state), blocks: blocks.clone(), share })
    }

    /// Opens the account of one connection. Without a principal there is only the floor.
    #[must_use]
    pub fn account(&self, principal: Option<&str>) -> Account {
        let mut state = self.lock();
        let id = state.fresh_id();
        let account_state =
            AccountState { principal: principal.map(Arc::from), share: self.share, held: 0, waker: None };
        state.accounts.insert(id, account_state);
        Account(Arc::new(AccountInner { budget: self.clone(), id, clock: ReadClock::default() }))
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> BudgetConfig {
        self.lock().config
    }

    /// Bytes drawn from the process's budget in this share, floors not counted.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().used.get(self.share).copied().unwrap_or(0)
    }

    /// Bytes that all connections hold in this share, floors counted.
    #[must_use]
    pub fn held(&self) -> u64 {
        let state = self.lock();
        let accounts = state.accounts.values().filter(|account_state| account_state.share == self.share);
        accounts.fold(0, |sum, account_state| sum.saturating_add(account_state.held))
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to what an account holds; see [`BudgetState::hold`]. Wakes the connection whose group was marked for eviction.
    fn hold(&self, account: u64, bytes: u64, headroom: u64, now: Instant) -> Result<(), Full> {
        let mut state = self.lock();
        let held = state.hold(account, bytes, headroom, now);
        let waker = state.evicted.take().and_then(|account| state.accounts.get(&account)?.waker.clone());
        // The woken task may call into this budget at once.
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        held
    }
}

/// The budget cannot grant the requested bytes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the memory budget has no {bytes} bytes left")]
pub struct Full {
    /// The requested bytes.
    pub bytes: u64,
}

/// The account of one connection. Grants may outlive it.
#[derive(Debug)]
pub struct Account(Arc<AccountInner>);

impl Account {
    /// Reserves `bytes` for a group that should be complete when `schedule` ends.
    ///
    /// When the process's bytes are used up, a group is marked for eviction, and its bytes become free when its connection
    /// drops it. First come groups in segments that make no progress, whoever owns them: those that received less than 16 KiB
    /// in the last 30 s during which their connection was read. If there is none, the group furthest behind its schedule is
    /// marked, among those of principals that use more than their fair part.
    ///
    /// # Errors
    /// The bytes are not available now.
    pub fn reserve(&self, bytes: u64, schedule: Schedule) -> Result<Grant, Full> {
        self.reserve_with_headroom(bytes, 0, schedule)
    }

    /// As [`reserve`](Self::reserve), but only if `headroom` more bytes remain available afterwards.
    ///
    /// For reservations that may have to wait until they can [grow](Grant::grow_to), and keep what they have meanwhile. If each
    /// leaves headroom for one of them to grow, they cannot all wait for each other.
    ///
    /// # Errors
    /// The bytes, or the headroom, are not available now.
    pub fn reserve_with_headroom(&self, bytes: u64, headroom: u64, schedule: Schedule) -> Result<Grant, Full> {
        self.grant(bytes, headroom, schedule, None)
    }

    /// As [`reserve`](Self::reserve), for a group whose progress is [reported](Grant::note_progress). Without progress it is
    /// evicted first.
    pub(crate) fn reserve_group(&self, bytes: u64, schedule: Schedule) -> Result<Grant, Full> {
        let begun = LastProgress { received: 0, at: self.0.clock.read(schedule.started) };
        self.grant(bytes, 0, schedule, Some(Mutex::new(begun)))
    }

    fn grant(
        &self,
        bytes: u64,
        headroom: u64,
        schedule: Schedule,
        progress: Option<Mutex<LastProgress>>,
    ) -> Result<Grant, Full> {
        self.0.budget.hold(self.0.id, bytes, headroom, schedule.started)?;
        let mut state = self.0.budget.lock();
        let id = state.fresh_id();
        let clock = self.clock();
        let group = Arc::new(TrackedGroup {
            account: self.0.id,
            started: clock.read(schedule.started),
            clock,
            schedule,
            bytes: bytes.into(),
            received: 0.into(),
            progress,
            evicted: false.into(),
        });
        state.groups.insert(id, Arc::clone(&group));
        Ok(Grant { account: Arc::clone(&self.0), id, group })
    }

    /// Whether `bytes` could be granted if nobody held anything.
    pub(crate) fn could_grant(&self, bytes: u64) -> bool {
        let state = self.0.budget.lock();
        let Some(account_state) = state.accounts.get(&self.0.id) else { return false };
        let reserved = state.reserved_for_others(account_state.share, &PerShare::default());
        let largest = match account_state.principal {
            Some(_) => state.config.largest_grant().saturating_sub(reserved),
            None => 0,
        };
        bytes <= largest.max(state.config.floor_bytes)
    }

    /// Sets the task to wake when a group of this account is marked for eviction.
    pub(crate) fn wake_with(&self, waker: &Waker) {
        let mut state = self.0.budget.lock();
        let Some(account_state) = state.accounts.get_mut(&self.0.id) else { return };
        if !account_state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            let before = account_state.waker.replace(waker.clone());
            // Dropping the last waker may drop a task, and with it an account of this budget: so not under the lock.
            drop(state);
            drop(before);
        }
    }

    /// The clock that measures the progress of its groups. The connection stops it while it does not read.
    pub(crate) fn clock(&self) -> ReadClock {
        self.0.clock.clone()
    }

    /// Where blocks for messages come from.
    pub(crate) fn blocks(&self) -> buffer::BlockPool {
        self.0.budget.blocks.clone()
    }
}

/// What an account and its grants share. The last of them to be dropped closes the account.
#[derive(Debug)]
struct AccountInner {
    budget: Budget,
    id: u64,
    clock: ReadClock,
}

impl Drop for AccountInner {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        let gone = state.accounts.remove(&self.id);
        // Dropping the last waker may drop a task, and with it another account: so not under the lock.
        drop(state);
        drop(gone);
    }
}

/// When a group began and when it should be complete.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// When its first segment arrived.
    pub started: Instant,
    /// How long it may take.
    pub timeout: Duration,
}

/// Memory reserved for one group. Dropping it gives the memory back.
#[derive(Debug)]
pub struct Grant {
    account: Arc<AccountInner>,
    id: u64,
    group: Arc<TrackedGroup>,
}

impl Grant {
    /// How many bytes are reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.group.bytes()
    }

    /// Reports how much of the group has arrived.
    pub fn note_received(&self, bytes: u64) {
        self.group.received.store(bytes, Ordering::Relaxed);
    }

    /// Reports how much of the group has arrived, and when.
    pub(crate) fn note_progress(&self, bytes: u64, now: Instant) {
        self.note_received(bytes);
        let mut progress = self.group.progress();
        if let Some(progress) =
            progress.as_deref_mut().filter(|progress| bytes >= progress.received.saturating_add(STEP))
        {
            *progress = LastProgress { received: bytes, at: self.group.clock.read(now) };
        }
    }

    /// Whether the group is marked for eviction: its connection must drop it.
    #[must_use]
    pub fn evicted(&self) -> bool {
        self.group.evicted.load(Ordering::Relaxed)
    }

    /// Grows the reservation to `bytes` in all, for a group that turns out larger than declared.
    ///
    /// # Errors
    /// The bytes are not available now. What was reserved before stays reserved.
    pub fn grow_to(&mut self, bytes: u64, now: Instant) -> Result<(), Full> {
        self.grow_with_headroom(bytes, 0, now)
    }

    /// As [`grow_to`](Self::grow_to), but only if `headroom` more bytes remain available afterwards: see
    /// [`reserve_with_headroom`](Account::reserve_with_headroom).
    ///
    /// # Errors
    /// The bytes, or the headroom, are not available now. What was reserved before stays reserved.
    pub fn grow_with_headroom(&mut self, bytes: u64, headroom: u64, now: Instant) -> Result<(), Full> {
        let more = bytes.saturating_sub(self.bytes());
        if more > 0 {
            self.account.budget.hold(self.account.id, more, headroom, now)?;
            self.group.bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The group has arrived whole, and now waits for something else, at the longest until `schedule` ends. From now on it can be
    /// evicted again, and counts as a group of which nothing has arrived. This time also runs while its connection is not read.
    pub fn wait(&mut self, schedule: Schedule) {
        let clock = ReadClock::default();
        let group = Arc::new(TrackedGroup {
            account: self.account.id,
            started: clock.read(schedule.started),
            clock,
            schedule,
            bytes: self.bytes().into(),
            received: 0.into(),
            progress: None,
            evicted: false.into(),
        });
        self.group = Arc::clone(&group);
        self.account.budget.lock().groups.insert(self.id, group);
    }

    /// The group has arrived whole: what is reserved beyond `bytes` is given back, and the rest is never evicted.
    pub fn complete(&mut self, bytes: u64) {
        let mut state = self.account.budget.lock();
        state.groups.remove(&self.id);
        state.release(self.account.id, self.bytes().saturating_sub(bytes));
        self.group.bytes.fetch_min(bytes, Ordering::Relaxed);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.complete(0);
    }
}

/// A group as the budget sees it. Its connection and those that look for memory share it.
#[derive(Debug)]
struct TrackedGroup {
    account: u64,
    clock: ReadClock,
    schedule: Schedule,
    /// The reading of the clock when the group began.
    started: Duration,
    bytes: AtomicU64,
    received: AtomicU64,
    /// `None` where a lack of progress is not the peer's fault.
    progress: Option<Mutex<LastProgress>>,
    evicted: AtomicBool,
}

/// When a group last made progress.
#[derive(Debug, Clone, Copy)]
struct LastProgress {
    /// What had arrived then.
    received: u64,
    /// The reading of the clock then.
    at: Duration,
}

impl TrackedGroup {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many bytes the group is behind one that arrives at an even pace. Time in which its connection is not read
    /// counts half: the peer may not be to blame for it, but must not hold up others for ever.
    fn behind(&self, now: Instant) -> u64 {
        let read = self.clock.read(now).saturating_sub(self.started).as_micros();
        let passed = now.saturating_duration_since(self.schedule.started).as_micros();
        let timeout = self.schedule.timeout.as_micros().max(1);
        let age = read.midpoint(passed).min(timeout);
        let due = u128::from(self.bytes()).saturating_mul(age).checked_div(timeout).unwrap_or(0);
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        due.saturating_sub(self.received.load(Ordering::Relaxed))
    }

    fn progress(&self) -> Option<MutexGuard<'_, LastProgress>> {
        self.progress.as_ref().map(|progress| progress.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For how long the group has made no progress, if that is [`STANDSTILL`] or longer. Time in which its connection is not read
    /// does not count.
    fn standstill(&self, now: Instant) -> Option<Duration> {
        let last = self.progress()?.at;
        let time = self.clock.read(now).saturating_sub(last);
        (time >= STANDSTILL).then_some(time)
    }
}

#[derive(Debug)]
struct AccountState {
    principal: Option<Arc<str>>,
    share: usize,
    held: u64,
    /// The task to wake when one of its groups is marked for eviction.
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct BudgetState {
    config: BudgetConfig,
    reserved: PerShare,
    used: PerShare,
    accounts: HashMap<u64, AccountState>,
    /// What each principal uses.
    principals: HashMap<Arc<str>, PerShare>,
    /// Groups that can be evicted: those that have not arrived whole, and those that wait.
    groups: HashMap<u64, Arc<TrackedGroup>>,
    /// The account whose group was just marked, and which has to be woken.
    evicted: Option<u64>,
    last_id: u64,
}

impl BudgetState {
    const fn fresh_id(&mut self) -> u64 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    /// Adds `bytes` to what an account holds, if `headroom` more remain available. If the process's bytes do not suffice, marks
    /// a group for eviction.
    fn hold(&mut self, account: u64, bytes: u64, headroom: u64, now: Instant) -> Result<(), Full> {
        let full = Full { bytes };
        let account_state = self.accounts.get(&account).ok_or(full)?;
        let held = account_state.held.checked_add(bytes).ok_or(full)?;
        let draw = self.config.drawn(held).saturating_sub(self.config.drawn(account_state.held));
        if draw > 0 {
            let principal = account_state.principal.as_ref().ok_or(full)?;
            let owned = self.principals.get(principal).copied().unwrap_or_default();
            let draw = draw.saturating_add(headroom);
            let with = |used: &PerShare| {
                sum(used).saturating_add(self.reserved_for_others(account_state.share, used)).saturating_add(draw)
            };
            if with(&owned) > self.config.principal_bytes {
                return Err(full);
            }
            let missing = with(&self.used).saturating_sub(self.config.process_bytes);
            if missing > 0 {
                self.evict(account, missing, now);
                return Err(full);
            }
        }
        self.note(account, held);
        Ok(())
    }

    fn release(&mut self, account: u64, bytes: u64) {
        let held = self.accounts.get(&account).map_or(0, |account_state| account_state.held);
        self.note(account, held.saturating_sub(bytes));
    }

    /// Notes what an account holds now.
    fn note(&mut self, account: u64, held: u64) {
        let Some(account_state) = self.accounts.get_mut(&account) else { return };
        let (before, after) = (self.config.drawn(account_state.held), self.config.drawn(held));
        let share = account_state.share;
        let change = |used: &mut PerShare| {
            if let Some(drawn) = used.get_mut(share) {
                *drawn = drawn.saturating_sub(before).saturating_add(after);
            }
        };
        account_state.held = held;
        change(&mut self.used);
        if let Some(principal) = &account_state.principal {
            let mut owned = self.principals.get(principal).copied().unwrap_or_default();
            change(&mut owned);
            if sum(&owned) == 0 {
                self.principals.remove(principal);
            } else {
                self.principals.insert(Arc::clone(principal), owned);
            }
        }
    }

    /// The bytes that are reserved for other shares and not in use there.
    fn reserved_for_others(&self, share: usize, used: &PerShare) -> u64 {
        let shares = self.reserved.iter().zip(used).enumerate();
        let others = shares.filter(|(other, _)| *other != share);
        others.fold(0, |sum, (_, (reserved, used))| sum.saturating_add(reserved.saturating_sub(*used)))
    }

    /// Whether `share` could use bytes that this account gives back: it could if they belong to the same share, or
    /// exceed the reservation of theirs.
    fn would_help(&self, share: usize, account: u64) -> bool {
        let Some(other) = self.accounts.get(&account).map(|account_state| account_state.share) else { return false };
        other == share || self.used.get(other) > self.reserved.get(other)
    }

    /// Marks a group for eviction, unless enough is marked already: one that makes no progress, or if there is none, the one
    /// furthest behind its schedule among those of principals over their fair part. The fair part is an equal division among all
    /// principals that use something, the asking one included. A connection does not evict its own groups.
    fn evict(&mut self, asking: u64, missing: u64, now: Instant) {
        let (going, staying): (Vec<_>, Vec<_>) =
            self.groups.values().partition(|group| group.evicted.load(Ordering::Relaxed));
        if going.iter().fold(0_u64, |sum, group| sum.saturating_add(group.bytes())) >= missing {
            return;
        }
        let owner = |account: &u64| self.accounts.get(account)?.principal.as_ref();
        let others = self.principals.keys().filter(|name| owner(&asking) != Some(*name)).count();
        let fair = self.config.process_bytes.checked_div(len64(others).saturating_add(1)).unwrap_or(0);
        let over = |group: &TrackedGroup| {
            owner(&group.account).is_some_and(|name| self.principals.get(name).is_some_and(|used| sum(used) > fair))
        };
        let share = self.accounts.get(&asking).map_or(0, |account_state| account_state.share);
        let is_candidate =
            |group: &&Arc<TrackedGroup>| group.account != asking && self.would_help(share, group.account);
        let others: Vec<_> = staying.into_iter().filter(is_candidate).collect();
        let still = others.iter().filter_map(|group| Some((group.standstill(now)?, group)));
        let still = still.max_by_key(|(time, _)| *time).map(|(_, group)| group);
        let late = || others.iter().filter(|group| over(group)).max_by_key(|group| group.behind(now));
        if let Some(group) = still.or_else(|| late().filter(|group| group.behind(now) > 0)) {
            group.evicted.store(true, Ordering::Relaxed);
            self.evicted = Some(group.account);
        }
    }
}

fn sum(bytes: &PerShare) -> u64 {
    bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests;
