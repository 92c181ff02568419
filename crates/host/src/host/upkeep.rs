//! Lets go what the log need not keep any longer.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::desk::Desk;
use crate::log::{Policy, ReadError};
use crate::state::StateError;

/// Trims the log by this policy, again and again.
///
/// Only what a saved snapshot stands for can go. So each channel that has changed is saved first, where there is a limit at
/// all: a channel that nobody uses would else keep its entries for ever. A client that comes back from before what is kept
/// gets snapshots.
pub(super) async fn keep(desk: Arc<Desk>, policy: Policy, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if (policy.max_age.is_some() || policy.max_bytes.is_some())
            && let Err(error) = save_all(&desk).await
        {
            warn!("channels cannot be saved now: {error}");
        }
        match desk.log().retain(policy).await {
            Ok(0) => {}
            Ok(entries) => info!(entries, "entries that need not be kept are gone"),
            Err(error) => warn!("nothing can be let go now: {error}"),
        }
    }
}

async fn save_all(desk: &Desk) -> Result<(), ReadError> {
    for info in desk.log().channels(None).await? {
        if info.snapshot.is_none_or(|saved| saved < info.last) {
            match desk.state().save(&info.channel).await {
                Ok(()) | Err(StateError::NotFound) => {}
                Err(error) => warn!("a channel cannot be saved: {error}"),
            }
        }
    }
    Ok(())
}
