//! Saves channels, and evicts those that are not used when memory is short.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ahp_types::ROOT_RESOURCE_URI;
use tracing::warn;

use super::StateError;
use super::cache::{ChannelCache, ChannelGuard};
use super::load::load;
use crate::log::Save;
use crate::long_work::BLOCKING_BYTES;

/// Saves the channels that are due and evicts others, whenever there is something to do.
pub(super) async fn run(cache: Arc<ChannelCache>) {
    loop {
        cache.work.notified().await;
        for slot in cache.all() {
            if slot.due.swap(false, Relaxed)
                && let Some(guard) = cache.lock_if_loaded(&slot).await
            {
                log_failure(save_guarded(&cache, guard).await);
            }
        }
        evict(&cache).await;
    }
}

/// Saves a channel.
pub(super) async fn save(cache: &ChannelCache, channel: &str) -> Result<(), StateError> {
    let guard = match cache.lock(channel).await {
        // A channel has no state either if its first entry is damaged.
        Err(StateError::NotFound) => {
            let damaged = load(&*cache.log, &channel.into()).await?.damaged;
            return Err(damaged.map_or(StateError::NotFound, StateError::Damaged));
        }
        guard => guard?,
    };
    if let Some(record) = &guard.damaged {
        return Err(StateError::Damaged(record.clone()));
    }
    save_guarded(cache, guard).await
}

/// Saves all channels that are in memory.
pub(super) async fn save_all(cache: &ChannelCache) -> Result<(), StateError> {
    for slot in cache.all() {
        if let Some(guard) = cache.lock_if_loaded(&slot).await {
            save_guarded(cache, guard).await?;
        }
    }
    Ok(())
}

/// Saves and evicts the least recently used channels until the others fit the limit.
async fn evict(cache: &ChannelCache) {
    for slot in cache.all() {
        if cache.weight() <= cache.config.max_bytes {
            return;
        }
        if *slot.uri == *ROOT_RESOURCE_URI || cache.evict_if_saved(&slot) {
            continue;
        }
        if let Some(guard) = cache.lock_if_loaded(&slot).await {
            log_failure(save_guarded(cache, guard).await);
            cache.evict_if_saved(&slot);
        }
    }
}

/// Saves a channel if it has changed. The channel is unlocked while the log writes.
async fn save_guarded(cache: &ChannelCache, guard: ChannelGuard) -> Result<(), StateError> {
    let uri = guard.uri.clone();
    drop(guard);
    let _one = cache.saving.lock().await;
    let guard = cache.lock(&uri).await?;
    if guard.is_saved() {
        return Ok(());
    }
    let (guard, save, stale) = encoded(guard).await?;
    let (seq, rows) = (guard.seq, save.rows.clone());
    drop(guard);
    let done = cache.log.save(save).await;
    let mut guard = cache.lock(&uri).await?;
    match done {
        Ok(()) => guard.settle(seq, &rows),
        Err(_) => guard.turns.unsettle(stale),
    }
    cache.update_weight(&guard, false);
    done.map_err(Into::into)
}

async fn encoded(mut guard: ChannelGuard) -> Result<(ChannelGuard, Save, Option<u64>), StateError> {
    let work = move || guard.save().map(|(save, stale)| (guard, save, stale));
    super::run_blocking(BLOCKING_BYTES, work).await?
}

fn log_failure(saved: Result<(), StateError>) {
    match saved {
        Ok(()) | Err(StateError::NotFound | StateError::Closed) => {}
        Err(error) => warn!(%error, "a channel cannot be saved now"),
    }
}
