//! Opening a log: the index is built from the newest checkpoint and what came after it, and a writer fences the one before.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::Client;
use tracing::info;

use super::super::gaps::{self, Gap};
use super::checkpoint;
use super::index::Index;
use super::store::{PublishError, Store, StoreError};
use super::wire::{Decision, Group};
use super::{JetStreamConfig, JetStreamError, Shared, group, writer};

/// Bytes of one read.
const PAGE: usize = 4 << 20;
/// How often a replica that is behind is asked again, and how long in between.
const TRIES: u32 = 500;
const WAIT: Duration = Duration::from_millis(20);

impl From<StoreError> for JetStreamError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.0)
    }
}

/// Makes the streams of a host if they are not there.
pub(super) async fn prepare(client: Client, config: &JetStreamConfig) -> Result<(), JetStreamError> {
    let store = Store::open(client, config, true).await?.ok_or_else(|| JetStreamError::Missing(config.host.clone()))?;
    store.end().await?;
    Ok(())
}

/// Opens a log and takes it over.
pub(super) async fn for_writing(client: Client, config: JetStreamConfig) -> Result<Arc<Shared>, JetStreamError> {
    let store = Store::open(client, &config, true).await?;
    let store = store.ok_or_else(|| JetStreamError::Missing(config.host.clone()))?;
    let mut index = checkpoint::load(&store).await?;
    let mut unfinished = Vec::new();
    for _ in 0..TRIES {
        catch_up(&store, &mut index, &mut unfinished).await?;
        if config.epoch.is_some_and(|epoch| index.epoch >= epoch) {
            return Err(JetStreamError::LaterOwner { epoch: index.epoch });
        }
        match fence(&store, &mut index, &config).await {
            Ok(()) => {
                let shared = Arc::new(Shared::new(store, config, index));
                shared.finish_removals(unfinished).await?;
                return Ok(shared);
            }
            // The one before has published something meanwhile.
            Err(PublishError::WrongSequence) => {}
            Err(PublishError::Full) => return Err(JetStreamError::Full),
            Err(PublishError::Refused(why)) => return Err(JetStreamError::Store(why)),
            // It may be in the stream. Then the next fence follows it.
            Err(PublishError::Unknown(_)) => tokio::time::sleep(WAIT).await,
        }
    }
    Err(JetStreamError::Store("another writer publishes all the time, and cannot be fenced".into()))
}

/// Opens a log as it is now.
pub(super) async fn for_reading(client: Client, config: JetStreamConfig) -> Result<Arc<Shared>, JetStreamError> {
    let store = Store::open(client, &config, false).await?;
    let store = store.ok_or_else(|| JetStreamError::Missing(config.host.clone()))?;
    let mut index = checkpoint::load(&store).await?;
    catch_up(&store, &mut index, &mut Vec::new()).await?;
    let shared = Shared::new(store, config, index);
    shared.queue.close();
    Ok(Arc::new(shared))
}

/// Adds everything to the index that is in the stream. Notes removals, which may not have been finished.
async fn catch_up(store: &Store, index: &mut Index, removals: &mut Vec<(u64, Decision)>) -> Result<(), StoreError> {
    let (end, _) = store.end().await?;
    let mut tries = 0;
    while index.position < end {
        let page = store.read(index.position + 1, &store.host.all(), PAGE).await?;
        let is_empty = page.messages.is_empty();
        for stored in page.messages {
            let Some(head) = stored.head else {
                return Err(StoreError(format!("message {} of the host {} is damaged", stored.position, store.host)));
            };
            index.apply(stored.position, &head);
            if let Some(decision @ (Decision::Trim { .. } | Decision::Erase { .. })) = head.decision {
                removals.push((stored.position, decision));
            }
        }
        if is_empty {
            // The last message was removed, or the replica does not have it yet.
            if store.at(end).await?.is_none() {
                index.position = end;
            }
            tries += 1;
            if tries > TRIES {
                return Err(StoreError(format!("the replicas of {} stay behind their leader", store.host.stream())));
            }
            tokio::time::sleep(WAIT).await;
        }
    }
    Ok(())
}

async fn fence(store: &Store, index: &mut Index, config: &JetStreamConfig) -> Result<(), PublishError> {
    let used = index.next.saturating_sub(1).max(index.last);
    let next = match config.faults.clock.load(Relaxed) {
        0 => gaps::first_of_run(used, gaps::clock(), writer::random()),
        clock => gaps::first_of_run(used, clock, 0),
    };
    let gap = Gap { after: index.last, next, lost: None };
    let epoch = config.epoch.unwrap_or(index.epoch + 1);
    let group = Group { id: writer::random(), ..Group::default() };
    let messages = group::decision(&config.host, group, Decision::Fence { epoch, gap, node: config.node.clone() });
    store.publish(index.position, &messages, "").await?;
    for (position, message) in (index.position + 1..).zip(&messages) {
        index.apply(position, &message.head);
    }
    info!(host = %config.host, epoch, "this node owns the log");
    Ok(())
}
