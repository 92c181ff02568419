//! The follower: takes every entry of the log to its channel.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, warn};

use super::StateError;
use super::slot::Slots;
use crate::log::{Channels, DamagedRecord, Entry, ReadError, Seq};

/// How long to wait before a store that cannot be read is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Follows the log from `after` on until it is closed.
pub(super) async fn follow(slots: Arc<Slots>, after: Seq) {
    let mut tail = slots.log.tail(after, Channels::All);
    loop {
        match tail.next(slots.config.page_bytes).await {
            Ok(page) => {
                for entry in page {
                    take(&slots, entry).await;
                }
                slots.move_to(tail.position());
            }
            // Whichever channel it was on: that one finds out when it is loaded again, and the others lose nothing.
            Err(ReadError::Damaged(DamagedRecord::Entry { seq })) => {
                error!(seq, "an entry is damaged; all channels are loaded again");
                slots.forget_all().await;
                tail.seek(seq);
                slots.move_to(seq);
            }
            Err(ReadError::Trimmed { first }) => {
                warn!(first, "trimmed while it was followed; all channels are loaded again");
                slots.forget_all().await;
                tail.seek(first.saturating_sub(1));
            }
            Err(ReadError::Closed) => return slots.stop(),
            Err(error) => {
                warn!(%error, "the log cannot be followed now");
                pause().await;
            }
        }
    }
}

/// Takes an entry to its channel, which may have it already.
async fn take(slots: &Slots, entry: Entry) {
    let (seq, channel) = (entry.seq, Arc::clone(&entry.channel));
    let mut held = match slots.hold(&channel).await {
        Ok(held) => held,
        // It was erased meanwhile, or whoever asks for it will hear why it cannot be read.
        Err(StateError::NotFound) => return,
        Err(error) => return warn!(%channel, %error, "a channel cannot be loaded"),
    };
    let turns = held.turns.extent();
    if let Err(error) = held.apply(&*slots.log, entry).await {
        warn!(seq, %error, "an entry cannot be taken; its channel is loaded again when it is asked for");
        drop(held);
        return slots.forget(&channel).await;
    }
    let is_due = turns != held.turns.extent() || held.unsaved_bytes() >= slots.config.save_after_bytes;
    slots.weigh_held(&held, is_due);
}

/// A timer would need a part of the runtime that a library should not ask for.
async fn pause() {
    drop(tokio::task::spawn_blocking(|| std::thread::sleep(PAUSE)).await);
}
