//! Saves channels and forgets those that nobody uses.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ahp_types::ROOT_RESOURCE_URI;
use tracing::warn;

use super::slot::{Held, Slots};
use super::{LARGE, StateError};
use crate::log::Save;

/// Saves what is due and makes room, whenever there is something to do.
pub(super) async fn keep(slots: Arc<Slots>) {
    loop {
        slots.work.notified().await;
        for slot in slots.all() {
            if slot.due.swap(false, Relaxed)
                && let Some(held) = slots.hold_if_there(&slot).await
            {
                warn_of(save_held(&slots, held).await);
            }
        }
        make_room(&slots).await;
    }
}

/// Saves a channel.
pub(super) async fn save(slots: &Slots, channel: &str) -> Result<(), StateError> {
    save_held(slots, slots.hold(channel).await?).await
}

/// Saves all channels that are in memory.
pub(super) async fn save_all(slots: &Slots) -> Result<(), StateError> {
    for slot in slots.all() {
        if let Some(held) = slots.hold_if_there(&slot).await {
            save_held(slots, held).await?;
        }
    }
    Ok(())
}

/// Saves and forgets the least recently used channels until the others fit.
async fn make_room(slots: &Slots) {
    for slot in slots.all() {
        if slots.weight() <= slots.config.max_bytes {
            return;
        }
        if *slot.uri == *ROOT_RESOURCE_URI || slots.forget_saved(&slot) {
            continue;
        }
        if let Some(held) = slots.hold_if_there(&slot).await {
            warn_of(save_held(slots, held).await);
            slots.forget_saved(&slot);
        }
    }
}

/// Saves a channel if it has changed. It is free while the log writes.
async fn save_held(slots: &Slots, held: Held) -> Result<(), StateError> {
    let uri = held.uri.clone();
    drop(held);
    let _one = slots.saving.lock().await;
    let held = slots.hold(&uri).await?;
    if held.is_saved() {
        return Ok(());
    }
    let (held, save, stale) = encoded(held).await?;
    let (seq, rows) = (held.seq, save.rows.clone());
    drop(held);
    let done = slots.log.save(save).await;
    let mut held = slots.hold(&uri).await?;
    match done {
        Ok(()) => held.settle(seq, &rows),
        Err(_) => held.turns.unsettle(stale),
    }
    slots.weigh_held(&held, false);
    done.map_err(Into::into)
}

async fn encoded(mut held: Held) -> Result<(Held, Save, Option<u64>), StateError> {
    let work = move || held.save().map(|(save, stale)| (held, save, stale));
    super::heavy(LARGE, work).await?
}

fn warn_of(saved: Result<(), StateError>) {
    match saved {
        Ok(()) | Err(StateError::NotFound | StateError::Closed) => {}
        Err(error) => warn!(%error, "a channel cannot be saved now"),
    }
}
