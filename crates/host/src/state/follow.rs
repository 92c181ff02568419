//! The follower: applies every entry of the log to its channel.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, warn};

use super::StateError;
use super::cache::ChannelCache;
use crate::log::{Channels, Entry, ReadError, Seq};

/// How long to wait before a log that cannot be read is read again.
const PAUSE: Duration = Duration::from_millis(200);

/// Follows the log from `after` on until it is closed.
pub(super) async fn follow(cache: Arc<ChannelCache>, after: Seq) {
    let mut tail = cache.log.tail(after, Channels::All);
    loop {
        match tail.next(cache.config.page_bytes).await {
            Ok(page) => {
                for entry in page {
                    take(&cache, entry).await;
                }
                cache.advance_to(tail.position());
            }
            // It is not known which channels have it. They notice when they are loaded again; the others lose nothing.
            Err(ReadError::Damaged(record)) if let Some(end) = record.end() => {
                error!(%record, "the log is damaged; all channels are loaded again");
                cache.forget_all().await;
                tail.seek(end);
                cache.advance_to(end);
            }
            Err(ReadError::Trimmed { first }) => {
                warn!(first, "trimmed while it was followed; all channels are loaded again");
                cache.forget_all().await;
                tail.seek(first.saturating_sub(1));
            }
            Err(ReadError::Closed) => return cache.stop(),
            Err(error) => {
                warn!(%error, "the log cannot be followed now");
                pause().await;
            }
        }
    }
}

/// Applies an entry to its channel, which may contain it already.
async fn take(cache: &ChannelCache, entry: Entry) {
    let (seq, channel) = (entry.seq, Arc::clone(&entry.channel));
    let mut guard = match cache.lock(&channel).await {
        Ok(guard) => guard,
        // It was erased meanwhile. Other errors are returned to whoever reads the channel.
        Err(StateError::NotFound) => return,
        Err(error) => return warn!(%channel, %error, "a channel cannot be loaded"),
    };
    let turns = guard.turns.extent();
    if let Err(error) = guard.apply(&*cache.log, entry).await {
        warn!(seq, %error, "an entry cannot be applied; its channel is loaded again when it is next used");
        drop(guard);
        return cache.forget(&channel).await;
    }
    let is_due = turns != guard.turns.extent() || guard.unsaved_bytes() >= cache.config.save_after_bytes;
    cache.update_weight(&guard, is_due);
}

/// Sleeps on a blocking thread, because the runtime of the caller may have no timer.
async fn pause() {
    drop(tokio::task::spawn_blocking(|| std::thread::sleep(PAUSE)).await);
}
