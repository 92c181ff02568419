//! A log that is followed: what its owner publishes reaches the index and the window of this node, one whole group at a time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use tracing::{debug, warn};

use super::super::{Entry, LogHealth, ReadError};
use super::wire::{Head, Stored};
use super::{Shared, store::StoreError};

/// How long to wait before the stream is followed again.
const AGAIN: Duration = Duration::from_millis(200);

/// A group of which not all messages have arrived.
#[derive(Default)]
struct Arriving {
    heads: Vec<(u64, Head)>,
    entries: Vec<Entry>,
    /// How many messages are missing.
    missing: u64,
}

/// Follows until nobody has the log any more.
pub(super) async fn run(shared: Weak<Shared>) {
    loop {
        let Some(present) = shared.upgrade() else { return };
        let followed = follow(present).await;
        let Some(present) = shared.upgrade() else { return };
        if let Err(error) = followed {
            debug!("following the log again: {error}");
            present.health.send_replace(LogHealth::Failed { reason: error.to_string() });
        }
        drop(present);
        tokio::time::sleep(AGAIN).await;
    }
}

async fn follow(shared: Arc<Shared>) -> Result<(), ReadError> {
    let after = shared.view().index.position;
    let messages = shared.store.follow(after).await?;
    let mut messages = std::pin::pin!(messages);
    shared.health.send_replace(LogHealth::Good);
    let mut arriving = Arriving::default();
    while let Some(stored) = messages.next().await {
        let stored: Stored = stored.map_err(|error: StoreError| ReadError::from(error))?;
        if stored.position <= shared.view().index.position {
            continue;
        }
        let Some(head) = stored.head.clone() else {
            warn!("message {} of the log cannot be understood", stored.position);
            continue;
        };
        arriving.missing = head.group.as_ref().map_or(arriving.missing, |group| group.messages).saturating_sub(1);
        arriving.entries.extend(shared.all_entries(&stored).await?);
        arriving.heads.push((stored.position, head));
        if arriving.missing == 0 {
            let Arriving { heads, entries, .. } = std::mem::take(&mut arriving);
            let mut view = shared.view_mut();
            for (position, head) in &heads {
                view.index.apply(*position, head);
                view.changed(head.decision.as_ref());
            }
            shared.publish_entries(view, entries);
        }
    }
    Ok(())
}
