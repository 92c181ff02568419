//! Retention: trims entries that the policy does not keep any longer, from time to time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::log_writer::LogWriter;
use super::maintenance::save_changed;
use crate::log::RetentionPolicy;

/// The task that trims the log. It ends when this is dropped.
pub(crate) struct RetentionTask(JoinHandle<()>);

impl RetentionTask {
    /// Starts a task that applies this policy every so often.
    ///
    /// Only entries before a saved snapshot can be trimmed. So if the policy has a limit, each channel that has changed is
    /// saved first: a channel that nobody uses would otherwise keep its entries for ever. A client whose position was
    /// trimmed gets snapshots.
    pub(crate) fn start(log_writer: Arc<LogWriter>, policy: RetentionPolicy, every: Duration) -> Self {
        Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                retain(&log_writer, policy).await;
            }
        }))
    }

    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for RetentionTask {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn retain(log_writer: &LogWriter, policy: RetentionPolicy) {
    let used = log_writer.log().metrics().store_bytes.load(Relaxed);
    if policy.wants_snapshots(used) {
        match save_changed(log_writer.log(), log_writer.state()).await {
            Ok(unsaved) => unsaved.iter().for_each(|unsaved| warn!("a channel was not saved: {}", unsaved.error)),
            Err(error) => warn!("no channel was saved: {error}"),
        }
    }
    match log_writer.log().retain(policy).await {
        Ok(0) => {}
        Ok(entries) => info!(entries, "entries that are no longer kept were trimmed"),
        Err(error) => warn!("nothing was trimmed: {error}"),
    }
}
