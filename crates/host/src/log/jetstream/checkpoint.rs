//! Checkpoints: the index as JSON, so that opening a log does not read all of it.
//!
//! The newest is named by a message of its own, which is replaced only by whoever has seen the one before: a writer that slept
//! for a day cannot put an old checkpoint in the place of a new one. Decisions before the checkpoint but one are removed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::index::Index;
use super::store::{Store, StoreError};
use super::wire::BlobRef;
use super::writer::Writer;

/// Messages between two checkpoints: they are read when the log is opened.
const EVERY: u64 = 8_192;

/// What the message on the subject of checkpoints says.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Pointer {
    /// The position of the index.
    position: u64,
    blob: BlobRef,
}

impl Pointer {
    /// The one in the stream, with the sequence of its message.
    async fn read(store: &Store) -> Result<Option<(u64, Self)>, StoreError> {
        let Some((sequence, _, payload)) = store.last_data(&store.host.checkpoint()).await? else { return Ok(None) };
        let pointer = serde_json::from_slice(&payload)
            .map_err(|error| StoreError(format!("the checkpoint of the host {} is damaged: {error}", store.host)))?;
        Ok(Some((sequence, pointer)))
    }
}

/// The index of the newest checkpoint; an empty one if there is none.
pub(super) async fn load(store: &Store) -> Result<Index, StoreError> {
    let Some((_, pointer)) = Pointer::read(store).await? else { return Ok(Index::default()) };
    let body = store.get(&pointer.blob).await?.filter(|body| crc32c::crc32c(body) == pointer.blob.sum);
    let index = body.and_then(|body| serde_json::from_slice(&body).ok());
    index.ok_or_else(|| StoreError(format!("the checkpoint of the host {} is damaged", store.host)))
}

impl Writer {
    /// Saves a checkpoint if many messages came after the last one.
    pub(super) async fn checkpoint_if_due(&mut self) {
        if self.shared.view().index.position.saturating_sub(self.checkpoint) >= EVERY {
            self.save_checkpoint().await;
        }
    }

    /// Saves a checkpoint. Without one, the next start only takes longer.
    pub(super) async fn save_checkpoint(&mut self) {
        let (position, epoch, body) = {
            let view = self.shared.view();
            (view.index.position, view.index.epoch, serde_json::to_vec(&view.index))
        };
        let Ok(body) = body else { return };
        // Not again with the next group if it fails.
        self.checkpoint = position;
        let store = &self.shared.store;
        let before = match Pointer::read(store).await {
            // An owner that was fenced may be late.
            Ok(Some((_, newer))) if newer.position >= position => return,
            Ok(before) => before,
            Err(error) => {
                warn!("no checkpoint was saved; the next start takes longer: {}", error.0);
                return;
            }
        };
        let saved = async {
            let blob = store.put(Arc::from(store.host.checkpoint_data(epoch, position)), Bytes::from(body)).await?;
            let pointer = serde_json::to_vec(&Pointer { position, blob }).unwrap_or_default();
            store.replace_checkpoint(before.as_ref().map_or(0, |(sequence, _)| *sequence), Bytes::from(pointer)).await
        };
        if let Err(error) = saved.await {
            warn!(?error, "no checkpoint was saved; the next start takes longer");
            return;
        }
        self.shared.metrics.checkpoints.fetch_add(1, Relaxed);
        let Some((_, before)) = before else { return };
        // Who follows the log may still need the decisions after the checkpoint before.
        let removed = async {
            store.purge_data(&format!("{}.>", before.blob.subject)).await?;
            store.purge_entries(&store.host.control(), before.position).await
        };
        if let Err(error) = removed.await {
            debug!(error = %error.0, "what the checkpoint replaces stays");
        }
    }
}
