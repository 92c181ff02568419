//! Temporary channels: those of terminals and watches. They are erased from the log when they are closed.
//!
//! Nobody needs such a channel afterwards. What a program wrote may be secret, and a log that kept it would grow without
//! end. So when a terminal is disposed of, or a watch ends, its followers are told, and then its channel is erased.
//!
//! No terminal and no watch outlives the host that made it. So a host erases at its start all temporary channels that it
//! finds in the log, however the host before it ended.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::warn;

use super::Workspace;
use crate::endpoint::ClientInfo;
use crate::error::MethodError;
use crate::lock::lock;
use crate::state::StateError;

/// The prefixes of the URIs of temporary channels.
pub(in crate::host) const TEMPORARY_CHANNELS: &[&str] = &["ahp-terminal:", "ahp-resource-watch:"];

/// Whether a channel is temporary.
pub(super) fn is_temporary(channel: &str) -> bool {
    TEMPORARY_CHANNELS.iter().any(|start| channel.starts_with(start))
}

/// How long the followers of a closed channel have to receive that.
const NOTICE_TIME: Duration = Duration::from_secs(5);

/// Which connections follow which temporary channel.
#[derive(Default)]
pub(super) struct ChannelFollowers {
    /// Connections, by channel.
    connections: Mutex<HashMap<String, HashSet<u64>>>,
    /// Notified when a channel has lost its last follower.
    unfollowed: Notify,
}

impl ChannelFollowers {
    /// A client has subscribed to a channel.
    pub(super) fn add(&self, client: &ClientInfo, channel: &str) {
        lock(&self.connections).entry(channel.to_owned()).or_default().insert(client.connection);
    }

    /// A client has unsubscribed from a channel; returns whether it was the last follower.
    pub(super) fn remove(&self, client: &ClientInfo, channel: &str) -> bool {
        let mut channels = lock(&self.connections);
        let Some(connections) = channels.get_mut(channel) else { return false };
        connections.remove(&client.connection);
        let is_empty = connections.is_empty();
        if is_empty {
            channels.remove(channel);
            self.unfollowed.notify_waiters();
        }
        is_empty
    }

    /// A connection has ended; returns the channels that have lost their last follower.
    pub(super) fn remove_connection(&self, client: &ClientInfo) -> Vec<String> {
        let changeset_followers: Vec<String> = lock(&self.connections).keys().cloned().collect();
        changeset_followers.into_iter().filter(|channel| self.remove(client, channel)).collect()
    }

    /// Whether somebody follows a channel.
    pub(super) fn has(&self, channel: &str) -> bool {
        lock(&self.connections).contains_key(channel)
    }

    /// Waits until nobody follows a channel.
    async fn unfollowed(&self, channel: &str) {
        loop {
            let unfollowed = self.unfollowed.notified();
            if !self.has(channel) {
                return;
            }
            unfollowed.await;
        }
    }
}

/// Channels that are closed and will be erased.
#[derive(Default)]
pub(super) struct PendingErasures {
    names: Mutex<HashSet<String>>,
    /// Locked while a channel is erased, so that no new channel takes its name meanwhile.
    erasing: tokio::sync::Mutex<()>,
}

impl Workspace {
    /// Erases the channels that an earlier run of the host left. Called before the first client can connect.
    pub(super) async fn erase_left_channels(&self) -> Result<(), MethodError> {
        for info in self.log_writer.log().channels(None).await.map_err(StateError::from)? {
            if !is_temporary(&info.channel) {
                continue;
            }
            // Everything else works without this, so the host starts nevertheless.
            if let Err(error) = self.log_writer.erase(&info.channel).await {
                warn!(channel = %info.channel, %error, "a channel of an earlier run stays in the log until the next start");
            }
        }
        Ok(())
    }

    /// Erases a closed channel when its followers have been told. Returns at once.
    pub(super) fn erase_soon(self: &Arc<Self>, channel: &str) {
        lock(&self.pending_erasures.names).insert(channel.to_owned());
        let (this, channel) = (Arc::clone(self), channel.to_owned());
        self.tasks.spawn(async move { this.erase_closed(&channel).await });
    }

    /// Erases a closed channel, if it is still in the log. Its name is free afterwards.
    pub(super) async fn erase_closed(&self, channel: &str) {
        if lock(&self.pending_erasures.names).contains(channel) {
            // A client that does not receive it in time finds the channel missing.
            drop(timeout(NOTICE_TIME, self.channel_followers.unfollowed(channel)).await);
        }
        let _erasing = self.pending_erasures.erasing.lock().await;
        if !lock(&self.pending_erasures.names).remove(channel) {
            return;
        }
        if let Err(error) = self.log_writer.erase(channel).await {
            warn!(%error, "a channel that is closed stays in the log until the next start");
        }
    }
}
