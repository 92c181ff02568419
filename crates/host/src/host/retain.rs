//! Lets go of what is no longer kept, now and then.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::desk::Desk;
use super::upkeep::save_changed;
use crate::log::RetentionPolicy;

/// Looks after the log's length. Stops when it is dropped.
pub(crate) struct Retainer(JoinHandle<()>);

impl Retainer {
    /// Looks every so often for what this policy does not keep.
    ///
    /// Only what a saved snapshot stands for can go. So each channel that has changed is saved first, where there is a limit
    /// at all: one that nobody uses would else keep its entries for ever. A client that comes back from before what is kept
    /// gets snapshots.
    pub(crate) fn begin(desk: Arc<Desk>, policy: RetentionPolicy, every: Duration) -> Self {
        Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                retain(&desk, policy).await;
            }
        }))
    }

    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Retainer {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn retain(desk: &Desk, policy: RetentionPolicy) {
    let used = desk.log().metrics().store_bytes.load(Relaxed);
    if policy.wants_snapshots(used) {
        match save_changed(desk.log(), desk.state()).await {
            Ok(unsaved) => unsaved.iter().for_each(|(_, error)| warn!("a channel was not saved: {error}")),
            Err(error) => warn!("no channel was saved: {error}"),
        }
    }
    match desk.log().retain(policy).await {
        Ok(0) => {}
        Ok(entries) => info!(entries, "entries that are no longer kept were trimmed"),
        Err(error) => warn!("nothing was trimmed: {error}"),
    }
}
