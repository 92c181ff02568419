//! Watches of files: who follows each, and when it ends.
//!
//! A watch lasts as long as somebody follows its channel. When the last follower has unsubscribed, it ends at once. A client
//! that lost its link, or has just created the watch, has some time to subscribe: [`HostConfig::reconnect_grace`].
//!
//! The channel's state says what is watched. So a watch that has ended because the log did not take what it saw can begin
//! again when somebody follows its channel. It first reports that everything may have changed. The watches of an earlier run
//! of the host are gone.
//!
//! [`HostConfig::reconnect_grace`]: crate::HostConfig::reconnect_grace

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{ResourceWatchChangedAction, StateAction};
use ahp_types::commands::CreateResourceWatchParams;
use ahp_types::state::{ResourceChange, ResourceChangeType, ResourceWatchState, SnapshotState};
use breakbulk_proto::Message;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::connected_clients::{self, ClientKey};
use super::{Workspace, json, run_to_end};
use crate::action_sink::{ActionSink as _, TrimSchedule};
use crate::endpoint::{ClientInfo, RawParams};
use crate::error::MethodError;
use crate::files::Watch;
use crate::host::log_writer::Transaction;
use crate::lock::lock;

/// How many bytes of a watch the log keeps before the oldest are trimmed.
const TRIM_STEP: u64 = 1 << 20;

/// Whether this is the channel of a watch.
pub(super) fn is_watch(channel: &str) -> bool {
    channel.starts_with("ahp-resource-watch:")
}

/// The followers of all watches.
pub(super) struct Watches {
    grace: Duration,
    followers: Mutex<HashMap<String, WatchFollowers>>,
}

/// The followers of one watch.
#[derive(Default)]
struct WatchFollowers {
    connections: HashSet<u64>,
    /// Clients that may subscribe again, and until when.
    away: HashMap<ClientKey, Instant>,
    changed: Arc<Notify>,
}

/// Whether a watch goes on.
#[derive(Debug, PartialEq, Eq)]
enum WatchStatus {
    ChangesetFollowers,
    /// Nobody follows it, but a client may subscribe again until then.
    GraceUntil(Instant),
    Ended,
}

impl Workspace {
    /// `createResourceWatch`.
    pub(super) async fn create_watch(
        self: &Arc<Self>,
        client: &ClientInfo,
        params: &RawParams,
    ) -> Result<Message, MethodError> {
        let (params, this, client) = (params.parse()?, Arc::clone(self), connected_clients::key(client));
        run_to_end(async move {
            let watch = this.files.watch(params).await?;
            let (result, channel) = (json(&watch.result()), watch.channel().to_owned());
            let state = SnapshotState::ResourceWatch(Box::new(watch.state().clone()));
            this.log_writer.append_and_apply(Transaction::new().open(&channel, None, &state)).await?;
            let changed = this.watches.created(&channel, client);
            this.tasks.spawn(log_changes(Arc::clone(&this), channel, watch, changed));
            result
        })
        .await
    }

    /// A client has subscribed to a watch, which may have to begin again.
    pub(super) fn follow_watch(self: &Arc<Self>, client: &ClientInfo, channel: &str) {
        let Some(changed) = self.watches.subscribed(client, channel) else { return };
        let (this, channel) = (Arc::clone(self), channel.to_owned());
        self.tasks.spawn(async move {
            let Self { files, log_writer, watches, .. } = &*this;
            let state = log_writer.read(&channel, |state, _| match state {
                SnapshotState::ResourceWatch(state) => Some((**state).clone()),
                _ => None,
            });
            let Ok(Some(state)) = state.await else { return watches.end(&channel) };
            let everything = everything(&state);
            match files.watch(params(state)).await {
                Ok(watch) => {
                    // Changes before this moment were not seen.
                    if let Err(error) = log_writer.append_actions(vec![(channel.clone(), everything)]).await {
                        warn!(%error, "a watch has not begun again");
                        return watches.end(&channel);
                    }
                    log_changes(Arc::clone(&this), channel, watch, changed).await;
                }
                Err(error) => {
                    warn!(%error, "a watch cannot begin again");
                    watches.end(&channel);
                }
            }
        });
    }
}

impl Watches {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, followers: Mutex::default() }
    }

    /// A client has unsubscribed from a watch.
    pub(super) fn unsubscribed(&self, client: &ClientInfo, channel: &str) {
        if let Some(followers) = lock(&self.followers).get_mut(channel) {
            followers.connections.remove(&client.connection);
            followers.changed.notify_one();
        }
    }

    /// A client has lost its link.
    pub(super) fn disconnected(&self, client: &ClientInfo) {
        for followers in lock(&self.followers).values_mut() {
            if followers.connections.remove(&client.connection) {
                followers.away.insert(connected_clients::key(client), Instant::now() + self.grace);
                followers.changed.notify_one();
            }
        }
    }

    /// A client has created a watch, and will subscribe to it soon.
    fn created(&self, channel: &str, client: ClientKey) -> Arc<Notify> {
        let away = HashMap::from([(client, Instant::now() + self.grace)]);
        let followers = WatchFollowers { away, ..WatchFollowers::default() };
        let changed = Arc::clone(&followers.changed);
        lock(&self.followers).insert(channel.to_owned(), followers);
        changed
    }

    /// A client has subscribed to a watch. Returns its notifier if the watch has ended and has to begin again.
    fn subscribed(&self, client: &ClientInfo, channel: &str) -> Option<Arc<Notify>> {
        let mut watches = lock(&self.followers);
        let is_new = !watches.contains_key(channel);
        let followers = watches.entry(channel.to_owned()).or_default();
        followers.connections.insert(client.connection);
        followers.away.remove(&connected_clients::key(client));
        followers.changed.notify_one();
        is_new.then(|| Arc::clone(&followers.changed))
    }

    /// Whether a watch goes on. An ended watch is removed.
    fn status(&self, channel: &str, now: Instant) -> WatchStatus {
        let mut watches = lock(&self.followers);
        let Some(followers) = watches.get_mut(channel) else { return WatchStatus::Ended };
        if !followers.connections.is_empty() {
            return WatchStatus::ChangesetFollowers;
        }
        followers.away.retain(|_, until| *until > now);
        if let Some(until) = followers.away.values().max() {
            return WatchStatus::GraceUntil(*until);
        }
        watches.remove(channel);
        WatchStatus::Ended
    }

    /// How many watches there are.
    pub(super) fn count(&self) -> usize {
        lock(&self.followers).len()
    }

    fn end(&self, channel: &str) {
        lock(&self.followers).remove(channel);
    }
}

/// Logs the changes that a watch sees, until it ends.
async fn log_changes(workspace: Arc<Workspace>, channel: String, mut watch: Watch, changed: Arc<Notify>) {
    let Workspace { log_writer, watches, .. } = &*workspace;
    let mut trim_schedule = TrimSchedule::default();
    loop {
        let until = match watches.status(&channel, Instant::now()) {
            WatchStatus::ChangesetFollowers => None,
            WatchStatus::GraceUntil(until) => Some(until),
            WatchStatus::Ended => return close(&workspace, &channel).await,
        };
        tokio::select! {
            action = watch.next() => {
                let Some(action) = action else { return watches.end(&channel) };
                workspace.files_changed(changed_uris(&action)).await;
                let bytes = serde_json::to_vec(&action).map_or(0, |text| text.len());
                match log_writer.append_actions(vec![(channel.clone(), action)]).await {
                    Ok(seqs) => {
                        let upto = seqs.last().and_then(|seq| trim_schedule.add(*seq, bytes, TRIM_STEP));
                        if let Some(upto) = upto {
                            log_writer.trim(&channel, upto).await;
                        }
                    }
                    Err(error) => {
                        warn!(%error, "a watch ends: the log does not take what it sees");
                        return watches.end(&channel);
                    }
                }
            }
            () = changed.notified() => {}
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
        }
    }
}

/// The URIs of the changed files.
fn changed_uris(action: &StateAction) -> Vec<String> {
    let StateAction::ResourceWatchChanged(changed) = action else { return Vec::new() };
    let items = changed.changes.get("items").and_then(Value::as_array);
    items.into_iter().flatten().filter_map(|item| item.get("uri")?.as_str().map(str::to_owned)).collect()
}

/// Closes the channel of an ended watch.
async fn close(workspace: &Arc<Workspace>, channel: &str) {
    match workspace.log_writer.append(Transaction::new().close(channel)).await {
        Ok(_) => workspace.erase_soon(channel),
        Err(error) => warn!(%error, "the channel of a watch that has ended stays"),
    }
}

/// Reports that everything that is watched may have changed.
fn everything(state: &ResourceWatchState) -> StateAction {
    let change = ResourceChange { uri: state.root.clone(), r#type: ResourceChangeType::Updated };
    StateAction::ResourceWatchChanged(ResourceWatchChangedAction { changes: json!({ "items": [change] }) })
}

fn params(state: ResourceWatchState) -> CreateResourceWatchParams {
    let ResourceWatchState { root, recursive, excludes, includes } = state;
    let (channel, recursive) = (ROOT_RESOURCE_URI.to_owned(), Some(recursive));
    CreateResourceWatchParams { channel, meta: None, uri: root, recursive, excludes, includes }
}
