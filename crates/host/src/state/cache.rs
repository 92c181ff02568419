//! The cache of channels in memory.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use ahp_types::state::SnapshotState;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMappedMutexGuard, OwnedMutexGuard, watch};

use super::channel::Channel;
use super::load::{load, replay};
use super::{StateConfig, StateError};
use crate::lock::lock;
use crate::log::{Log, Seq};

/// Exclusive access to a channel in the cache.
pub(super) type ChannelGuard = OwnedMappedMutexGuard<SlotState, Channel>;

/// All channels that are in memory, and the log that they come from.
pub(super) struct ChannelCache {
    pub(super) log: Arc<dyn Log>,
    pub(super) config: StateConfig,
    slots: Mutex<HashMap<Arc<str>, Arc<CacheSlot>>>,
    /// About how many bytes all channels take.
    weight: AtomicUsize,
    /// Notified when they take less than before.
    lighter: Notify,
    position: watch::Sender<Position>,
    clock: AtomicU64,
    /// Notified when a channel is due to be saved, or the channels take too much memory.
    pub(super) work: Notify,
    /// Serializes saves: the outcome of one is known before the next one begins.
    pub(super) saving: AsyncMutex<()>,
}

/// How far the follower is.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// The channels in memory contain everything up to here.
    seq: Seq,
    /// Whether the log is closed.
    is_last: bool,
}

/// The slot of a channel.
#[derive(Debug)]
pub(super) struct CacheSlot {
    pub(super) uri: Arc<str>,
    cell: Arc<AsyncMutex<SlotState>>,
    used: AtomicU64,
    weight: AtomicUsize,
    /// Whether the channel is due to be saved.
    pub(super) due: AtomicBool,
}

#[derive(Debug)]
pub(super) enum SlotState {
    /// Not loaded yet.
    Empty,
    Full(Box<Channel>),
    /// Evicted. The cache has another slot for the channel, or none.
    Gone,
}

impl ChannelCache {
    pub(super) fn new(log: Arc<dyn Log>, config: StateConfig, position: Seq) -> Self {
        Self {
            log,
            config,
            slots: Mutex::default(),
            weight: AtomicUsize::new(0),
            lighter: Notify::new(),
            position: watch::Sender::new(Position { seq: position, is_last: false }),
            clock: AtomicU64::new(0),
            work: Notify::new(),
            saving: AsyncMutex::default(),
        }
    }

    pub(super) fn position(&self) -> Seq {
        self.position.borrow().seq
    }

    pub(super) fn advance_to(&self, position: Seq) {
        self.position.send_modify(|there| there.seq = position);
    }

    /// Ends all waits: the log is closed.
    pub(super) fn stop(&self) {
        self.position.send_modify(|there| there.is_last = true);
    }

    /// Waits until the state contains everything that is in the log now.
    pub(super) async fn catch_up(&self) -> Result<(), StateError> {
        self.reached(self.log.bounds().await?.last).await
    }

    pub(super) async fn reached(&self, seq: Seq) -> Result<(), StateError> {
        let mut position = self.position.subscribe();
        let there = position.wait_for(|there| there.is_last || there.seq >= seq).await;
        there.ok().filter(|there| there.seq >= seq).map(drop).ok_or(StateError::Closed)
    }

    /// Brings a channel up to a seq that the log has, without waiting for the follower, which may be behind because of other
    /// channels.
    ///
    /// Must not be cancelled: a channel with half of an entry applied is wrong.
    pub(super) async fn catch_up_channel(&self, uri: &str, seq: Seq) -> Result<(), StateError> {
        for _ in 0..2 {
            let mut guard = match self.lock(uri).await {
                Ok(guard) => guard,
                // The next read of the channel returns the error.
                Err(StateError::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            };
            if guard.reached >= seq || self.position() >= seq {
                return Ok(());
            }
            let turns = guard.turns.extent();
            if replay(&*self.log, &mut guard).await.is_ok() {
                guard.reached = seq.max(guard.reached);
                let is_due = turns != guard.turns.extent() || guard.unsaved_bytes() >= self.config.save_after_bytes;
                self.update_weight(&guard, is_due);
                return Ok(());
            }
            // It was trimmed meanwhile, or cannot be read: loading it again returns the error.
            drop(guard);
            self.forget(uri).await;
        }
        self.lock(uri).await.map(drop)
    }

    /// Locks a channel, and loads it from the log if it is not in memory.
    pub(super) async fn lock(&self, uri: &str) -> Result<ChannelGuard, StateError> {
        loop {
            let slot = self.slot(uri);
            slot.used.store(self.clock.fetch_add(1, Relaxed), Relaxed);
            let mut cell = slot.cell.clone().lock_owned().await;
            if matches!(*cell, SlotState::Empty) {
                match load(&*self.log, &slot.uri).await {
                    Ok(channel) if channel.seq > 0 || channel.state.is_some() => {
                        *cell = SlotState::Full(Box::new(channel))
                    }
                    other => {
                        self.remove(&slot, &mut cell);
                        return Err(other.err().unwrap_or(StateError::NotFound));
                    }
                }
            }
            if let Ok(guard) = OwnedMutexGuard::try_map(cell, SlotState::full) {
                self.weigh(&slot, &guard);
                return Ok(guard);
            }
        }
    }

    pub(super) async fn lock_chat(&self, uri: &str) -> Result<ChannelGuard, StateError> {
        let guard = self.lock(uri).await?;
        if matches!(guard.state()?, SnapshotState::Chat(_)) { Ok(guard) } else { Err(StateError::NotAChat) }
    }

    /// Locks a channel if it is in memory.
    pub(super) async fn lock_if_loaded(&self, slot: &CacheSlot) -> Option<ChannelGuard> {
        OwnedMutexGuard::try_map(slot.cell.clone().lock_owned().await, SlotState::full).ok()
    }

    /// Updates how much a channel takes, and marks it as due to be saved.
    pub(super) fn update_weight(&self, guard: &ChannelGuard, is_due: bool) {
        let Some(slot) = self.slots().get(&guard.uri).cloned() else { return };
        self.weigh(&slot, guard);
        if is_due && !slot.due.swap(true, Relaxed) {
            self.work.notify_one();
        }
    }

    fn weigh(&self, slot: &CacheSlot, channel: &Channel) {
        let weight = channel.weight();
        let before = slot.weight.swap(weight, Relaxed);
        // Wrapping: the difference may be negative.
        self.weight.fetch_add(weight.wrapping_sub(before), Relaxed);
        if self.weight() > self.config.max_bytes {
            self.work.notify_one();
        } else if weight < before {
            self.lighter.notify_waiters();
        }
    }

    /// Waits until the channels are within their limit.
    pub(super) async fn settled(&self) {
        loop {
            let mut lighter = pin!(self.lighter.notified());
            lighter.as_mut().enable();
            if self.weight() <= self.config.max_bytes {
                return;
            }
            lighter.await;
        }
    }

    pub(super) fn weight(&self) -> usize {
        self.weight.load(Relaxed)
    }

    /// Evicts a channel. What was not saved is read from the log again.
    pub(super) async fn forget(&self, uri: &str) {
        let slot = self.slots().get(uri).cloned();
        if let Some(slot) = slot {
            self.remove(&slot, &mut *slot.cell.lock().await);
        }
    }

    /// Evicts a channel if it is saved and not in use; returns whether it did.
    pub(super) fn evict_if_saved(&self, slot: &CacheSlot) -> bool {
        let Ok(mut cell) = slot.cell.try_lock() else { return false };
        let is_saved = matches!(&*cell, SlotState::Full(channel) if channel.is_saved());
        if is_saved {
            self.remove(slot, &mut cell);
        }
        is_saved
    }

    /// Evicts all channels.
    pub(super) async fn forget_all(&self) {
        for slot in self.all() {
            self.remove(&slot, &mut *slot.cell.lock().await);
        }
    }

    /// All slots, the least recently used first.
    pub(super) fn all(&self) -> Vec<Arc<CacheSlot>> {
        let mut all: Vec<_> = self.slots().values().cloned().collect();
        all.sort_by_key(|slot| slot.used.load(Relaxed));
        all
    }

    fn remove(&self, slot: &CacheSlot, cell: &mut SlotState) {
        *cell = SlotState::Gone;
        self.weight.fetch_sub(slot.weight.swap(0, Relaxed), Relaxed);
        self.lighter.notify_waiters();
        let mut slots = self.slots();
        if slots.get(&slot.uri).is_some_and(|there| Arc::ptr_eq(&there.cell, &slot.cell)) {
            slots.remove(&slot.uri);
        }
    }

    fn slot(&self, uri: &str) -> Arc<CacheSlot> {
        let mut slots = self.slots();
        if let Some(slot) = slots.get(uri) {
            return slot.clone();
        }
        let uri: Arc<str> = uri.into();
        let slot = Arc::new(CacheSlot {
            uri: uri.clone(),
            cell: Arc::new(AsyncMutex::new(SlotState::Empty)),
            used: AtomicU64::new(0),
            weight: AtomicUsize::new(0),
            due: AtomicBool::new(false),
        });
        slots.insert(uri, slot.clone());
        slot
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<CacheSlot>>> {
        lock(&self.slots)
    }
}

impl fmt::Debug for ChannelCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("position", &self.position()).field("weight", &self.weight()).finish()
    }
}

impl SlotState {
    fn full(&mut self) -> Option<&mut Channel> {
        match self {
            Self::Full(channel) => Some(channel),
            Self::Empty | Self::Gone => None,
        }
    }
}
