//! Who follows terminals and watches, and how their channels leave the log when they are no more.
//!
//! Such a channel is of use while it is there, and of none afterwards: what a program wrote may be secret, and a log that keeps
//! it grows without end. So when a terminal is disposed of, or a watch ends, those who follow it hear of that, and then its
//! channel is erased. If the host ends in between, it is erased at the next start.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::warn;

use super::Workshop;
use crate::endpoint::ClientInfo;
use crate::lock::lock;

/// How the URIs of channels begin whose past is not kept.
pub(in crate::host) const PASSING: &[&str] = &["ahp-terminal:", "ahp-resource-watch:"];

/// Whether a channel's past is not kept.
pub(super) fn is_passing(channel: &str) -> bool {
    PASSING.iter().any(|start| channel.starts_with(start))
}

/// How long those who follow a channel that is closed have to hear of it.
const HEAR: Duration = Duration::from_secs(5);

/// Who follows which terminal or watch.
#[derive(Default)]
pub(super) struct Viewers {
    /// Connections, by channel.
    all: Mutex<HashMap<String, HashSet<u64>>>,
    /// Somebody follows something no more.
    left: Notify,
}

impl Viewers {
    /// A client follows this channel from now on.
    pub(super) fn follows(&self, client: &ClientInfo, channel: &str) {
        lock(&self.all).entry(channel.to_owned()).or_default().insert(client.connection);
    }

    /// A client does not follow this channel any more; whether that was the last who did.
    pub(super) fn left(&self, client: &ClientInfo, channel: &str) -> bool {
        let mut all = lock(&self.all);
        let Some(connections) = all.get_mut(channel) else { return false };
        connections.remove(&client.connection);
        let is_empty = connections.is_empty();
        if is_empty {
            all.remove(channel);
            self.left.notify_waiters();
        }
        is_empty
    }

    /// A connection has ended; the channels that nobody follows now.
    pub(super) fn gone(&self, client: &ClientInfo) -> Vec<String> {
        let followed: Vec<String> = lock(&self.all).keys().cloned().collect();
        followed.into_iter().filter(|channel| self.left(client, channel)).collect()
    }

    pub(super) fn any(&self, channel: &str) -> bool {
        lock(&self.all).contains_key(channel)
    }

    /// Waits until nobody follows a channel.
    async fn none(&self, channel: &str) {
        loop {
            let left = self.left.notified();
            if !self.any(channel) {
                return;
            }
            left.await;
        }
    }
}

/// Channels that are closed and on their way out of the log.
#[derive(Default)]
pub(super) struct Leaving {
    names: Mutex<HashSet<String>>,
    /// Held while one goes, so that its name is not taken meanwhile.
    one: tokio::sync::Mutex<()>,
}

impl Workshop {
    /// A channel is closed: it is erased when those who follow it have heard of that.
    pub(super) fn erase_soon(self: &Arc<Self>, channel: &str) {
        lock(&self.leaving.names).insert(channel.to_owned());
        let (this, channel) = (Arc::clone(self), channel.to_owned());
        self.tasks.spawn(async move { this.erase_closed(&channel).await });
    }

    /// Erases a channel that is closed, if it is still there. Its name is free then.
    pub(super) async fn erase_closed(&self, channel: &str) {
        if lock(&self.leaving.names).contains(channel) {
            // Who does not hear of it in this time finds it missing.
            drop(timeout(HEAR, self.viewers.none(channel)).await);
        }
        let _one = self.leaving.one.lock().await;
        if !lock(&self.leaving.names).remove(channel) {
            return;
        }
        if let Err(error) = self.desk.erase(channel).await {
            warn!(%error, "a channel that is closed stays in the log until the next start");
        }
    }
}
