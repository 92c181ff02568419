//! Bytes we may hold: a private floor per connection, a quota per principal, one budget for the process.
//!
//! A budget may be split into shares, for bytes that must not keep each other out. All shares draw on the same bytes, but
//! some of these are reserved for each: whatever the others hold, of the process's bytes and of a principal's quota, a share
//! can have as much as is reserved for it.

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

    /// What has to be reserved, beyond the floor, so that a message of `bytes` bytes can arrive whatever else is held.
    #[must_use]
    pub const fn reserve_for(&self, bytes: u64) -> u64 {
        self.drawn(group_cost(bytes))
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

/// How many shares a budget can be split into.
const SHARES: usize = 4;

/// Bytes by share.
type PerShare = [u64; SHARES];

/// The process's budget, or a share of it. Cloning shares it.
///
/// Beside what it accounts for, it keeps up to a 32nd of the process's bytes, 16 MiB at most, in blocks that messages have let
/// go of, for the next ones.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    pool: Arc<Mutex<Pool>>,
    blocks: buffer::Pool,
    /// Which of the pool's shares this is.
    share: usize,
}

impl Budget {
    /// A budget of which nothing is used yet.
    #[must_use]
    pub fn new(config: BudgetConfig) -> Self {
        let [budget, ..] = Self::split(config, PerShare::default());
        budget
    }

    /// Shares of a budget of which nothing is used yet. They draw on the same bytes, and of these so many are reserved for each
    /// share: of the process's bytes, and of each principal's.
    ///
    /// What is reserved must not be more, all together, than there is. Else a share may get less.
    #[must_use]
    pub fn split(config: BudgetConfig, reserved: [u64; SHARES]) -> [Self; SHARES] {
        let blocks = buffer::Pool::beside(config.process_bytes);
        let pool = Arc::new(Mutex::new(Pool { config, reserved, ..Pool::default() }));
        std::array::from_fn(|share| Self { pool: Arc::clone(&pool), blocks: blocks.clone(), share })
    }

    /// Opens the account of one connection. Without a principal there is only the floor.
    #[must_use]
    pub fn account(&self, principal: Option<&str>) -> Account {
        let mut pool = self.lock();
        let id = pool.fresh_id();
        let holder = Holder { principal: principal.map(Arc::from), share: self.share, held: 0, waker: None };
        pool.accounts.insert(id, holder);
        Account(Arc::new(Share { budget: self.clone(), id, clock: ReadClock::default() }))
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
        let pool = self.lock();
        let holders = pool.accounts.values().filter(|holder| holder.share == self.share);
        holders.fold(0, |sum, holder| sum.saturating_add(holder.held))
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to what an account holds; see [`Pool::hold`]. Whose group has to go is woken.
    fn hold(&self, account: u64, bytes: u64, spare: u64, now: Instant) -> Result<(), Full> {
        let mut pool = self.lock();
        let held = pool.hold(account, bytes, spare, now);
        let waker = pool.evicted.take().and_then(|account| pool.accounts.get(&account)?.waker.clone());
        // Whoever is woken may ask for room at once.
        drop(pool);
        waker.into_iter().for_each(Waker::wake);
        held
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
    /// When the process is out of room, a group is marked for eviction; its room comes free when its connection lets go
    /// of it. A group in segments that makes no progress goes first, whoever's it is: one that has brought less than 16 KiB
    /// in the last 30 s during which its connection was read. If there is none, it is the one furthest behind its schedule
    /// among those of principals over their fair share.
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
        self.grant(bytes, spare, schedule, None)
    }

    /// As [`reserve`](Self::reserve), for a group whose progress is [noted](Grant::note_progress): without any, it goes
    /// first.
    pub(crate) fn reserve_group(&self, bytes: u64, schedule: Schedule) -> Result<Grant, Full> {
        let begun = Progress { received: 0, at: self.0.clock.read(schedule.started) };
        self.grant(bytes, 0, schedule, Some(Mutex::new(begun)))
    }

    fn grant(
        &self,
        bytes: u64,
        spare: u64,
        schedule: Schedule,
        progress: Option<Mutex<Progress>>,
    ) -> Result<Grant, Full> {
        self.0.budget.hold(self.0.id, bytes, spare, schedule.started)?;
        let mut pool = self.0.budget.lock();
        let id = pool.fresh_id();
        let (clock, share) = (self.clock(), Arc::clone(&self.0));
        let (started, account) = (clock.read(schedule.started), share.id);
        let (bytes, received, evicted) = (bytes.into(), 0.into(), false.into());
        let track = Arc::new(Track { account, clock, schedule, started, bytes, received, progress, evicted });
        pool.groups.insert(id, Arc::clone(&track));
        Ok(Grant { share, id, track })
    }

    /// Whether so much could be granted if nobody else held anything.
    pub(crate) fn could_grant(&self, bytes: u64) -> bool {
        let pool = self.0.budget.lock();
        let Some(holder) = pool.accounts.get(&self.0.id) else { return false };
        let reserved = pool.reserved_beside(holder.share, &PerShare::default());
        let most = if holder.principal.is_some() { pool.config.most(true).saturating_sub(reserved) } else { 0 };
        bytes <= most.max(pool.config.floor_bytes)
    }

    /// Whom to wake when one of its groups has to go.
    pub(crate) fn wake_with(&self, waker: &Waker) {
        let mut pool = self.0.budget.lock();
        let Some(holder) = pool.accounts.get_mut(&self.0.id) else { return };
        if !holder.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            let before = holder.waker.replace(waker.clone());
            // With the last waker a task may go, and with it its account.
            drop(pool);
            drop(before);
        }
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
        let mut pool = self.budget.lock();
        let gone = pool.accounts.remove(&self.id);
        // With the last waker a task may go, and with it another account.
        drop(pool);
        drop(gone);
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

    /// Says how much of the group has arrived, and when.
    pub(crate) fn note_progress(&self, bytes: u64, now: Instant) {
        self.note_received(bytes);
        let mut progress = self.track.progress();
        if let Some(progress) =
            progress.as_deref_mut().filter(|progress| bytes >= progress.received.saturating_add(STEP))
        {
            *progress = Progress { received: bytes, at: self.track.clock.read(now) };
        }
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
        self.grow_beside(bytes, 0, now)
    }

    /// As [`grow_to`](Self::grow_to), if room for `spare` bytes more is left then: see
    /// [`reserve_beside`](Account::reserve_beside).
    ///
    /// # Errors
    /// There is not so much room now; what was set aside before stays.
    pub fn grow_beside(&mut self, bytes: u64, spare: u64, now: Instant) -> Result<(), Full> {
        let more = bytes.saturating_sub(self.bytes());
        if more > 0 {
            self.share.budget.hold(self.share.id, more, spare, now)?;
            self.track.bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The group has arrived whole, and waits for something else, until `schedule`'s end: from now on it may have to go again,
    /// as one of which nothing has arrived. The time counts whether its connection is read or not.
    pub fn wait(&mut self, schedule: Schedule) {
        let clock = ReadClock::default();
        let track = Arc::new(Track {
            account: self.share.id,
            started: clock.read(schedule.started),
            clock,
            schedule,
            bytes: self.bytes().into(),
            received: 0.into(),
            progress: None,
            evicted: false.into(),
        });
        self.track = Arc::clone(&track);
        self.share.budget.lock().groups.insert(self.id, track);
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
    /// Only where it says something about the peer.
    progress: Option<Mutex<Progress>>,
    evicted: AtomicBool,
}

/// When a group last made progress.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// What had arrived then.
    received: u64,
    /// What the clock showed.
    at: Duration,
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

    fn progress(&self) -> Option<MutexGuard<'_, Progress>> {
        self.progress.as_ref().map(|progress| progress.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For how long it has made no progress, if that is long. Time in which its connection does not read is not counted.
    fn standstill(&self, now: Instant) -> Option<Duration> {
        let last = self.progress()?.at;
        let time = self.clock.read(now).saturating_sub(last);
        (time >= STANDSTILL).then_some(time)
    }
}

#[derive(Debug)]
struct Holder {
    principal: Option<Arc<str>>,
    share: usize,
    held: u64,
    /// Whom to wake when one of its groups has to go.
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Pool {
    config: BudgetConfig,
    reserved: PerShare,
    used: PerShare,
    accounts: HashMap<u64, Holder>,
    /// What each principal uses.
    principals: HashMap<Arc<str>, PerShare>,
    /// Those that have not arrived whole.
    groups: HashMap<u64, Arc<Track>>,
    /// The account of a group that was just marked.
    evicted: Option<u64>,
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
            let owned = self.principals.get(principal).copied().unwrap_or_default();
            let draw = draw.saturating_add(spare);
            let with = |used: &PerShare| {
                sum(used).saturating_add(self.reserved_beside(holder.share, used)).saturating_add(draw)
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
        let held = self.accounts.get(&account).map_or(0, |holder| holder.held);
        self.note(account, held.saturating_sub(bytes));
    }

    /// Notes what an account holds now.
    fn note(&mut self, account: u64, held: u64) {
        let Some(holder) = self.accounts.get_mut(&account) else { return };
        let (before, after) = (self.config.drawn(holder.held), self.config.drawn(held));
        let share = holder.share;
        let change = |used: &mut PerShare| {
            if let Some(drawn) = used.get_mut(share) {
                *drawn = drawn.saturating_sub(before).saturating_add(after);
            }
        };
        holder.held = held;
        change(&mut self.used);
        if let Some(principal) = &holder.principal {
            let mut owned = self.principals.get(principal).copied().unwrap_or_default();
            change(&mut owned);
            if sum(&owned) == 0 {
                self.principals.remove(principal);
            } else {
                self.principals.insert(Arc::clone(principal), owned);
            }
        }
    }

    /// What other shares than this one have not used of what is reserved for them.
    fn reserved_beside(&self, share: usize, used: &PerShare) -> u64 {
        let shares = self.reserved.iter().zip(used).enumerate();
        let others = shares.filter(|(other, _)| *other != share);
        others.fold(0, |sum, (_, (reserved, used))| sum.saturating_add(reserved.saturating_sub(*used)))
    }

    /// Whether a share would get bytes that go in the share of this account: they are in the same share, or beyond what is
    /// reserved.
    fn would_help(&self, share: usize, account: u64) -> bool {
        let Some(other) = self.accounts.get(&account).map(|holder| holder.share) else { return false };
        other == share || self.used.get(other) > self.reserved.get(other)
    }

    /// Marks a group that makes no progress, or if there is none the one furthest behind its schedule among those of
    /// principals over their fair part, unless enough is marked already. Who asks counts among those who share. A
    /// connection does not evict its own groups.
    fn evict(&mut self, asking: u64, missing: u64, now: Instant) {
        let (going, staying): (Vec<_>, Vec<_>) =
            self.groups.values().partition(|group| group.evicted.load(Ordering::Relaxed));
        if going.iter().fold(0_u64, |sum, group| sum.saturating_add(group.bytes())) >= missing {
            return;
        }
        let owner = |account: &u64| self.accounts.get(account)?.principal.as_ref();
        let others = self.principals.keys().filter(|name| owner(&asking) != Some(*name)).count();
        let fair = self.config.process_bytes.checked_div(len64(others).saturating_add(1)).unwrap_or(0);
        let over = |group: &Track| {
            owner(&group.account).is_some_and(|name| self.principals.get(name).is_some_and(|used| sum(used) > fair))
        };
        let share = self.accounts.get(&asking).map_or(0, |holder| holder.share);
        let is_candidate = |group: &&Arc<Track>| group.account != asking && self.would_help(share, group.account);
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
