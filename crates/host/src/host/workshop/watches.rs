//! Watches: which there are, who follows each, and when one ends.
//!
//! A watch is there for those who follow its channel. When the last has unsubscribed, it ends at once. A client whose link
//! broke, or who has only just asked for the watch, is waited for: [`FilesConfig::watch_grace`].
//!
//! What a watch watches is its channel's state. So one that has ended, with the grace or with a last life of the host,
//! begins anew when somebody follows its channel again, and says first that everything may have changed.
//!
//! [`FilesConfig::watch_grace`]: crate::files::FilesConfig::watch_grace

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

use super::people::{self, Key};
use super::{Workshop, json, to_the_end};
use crate::act::{Act as _, Ledger};
use crate::endpoint::{ClientInfo, RawParams};
use crate::error::MethodError;
use crate::files::Watch;
use crate::host::desk::Sheet;
use crate::lock::lock;

/// How much the log has of a watch before some of it goes.
const STEP: u64 = 1 << 20;

/// Whether this is a watch's channel.
pub(super) fn is_watch(channel: &str) -> bool {
    channel.starts_with("ahp-resource-watch:")
}

/// Who follows which watch.
pub(super) struct Watches {
    grace: Duration,
    all: Mutex<HashMap<String, Followers>>,
}

/// Who follows a watch.
#[derive(Default)]
struct Followers {
    connections: HashSet<u64>,
    /// Clients that may come back, and until when.
    away: HashMap<Key, Instant>,
    changed: Arc<Notify>,
}

/// What becomes of a watch.
#[derive(Debug, PartialEq, Eq)]
enum Outlook {
    Followed,
    /// Somebody may come back until then.
    Until(Instant),
    Over,
}

impl Workshop {
    /// `createResourceWatch`.
    pub(super) async fn create_watch(
        self: &Arc<Self>,
        client: &ClientInfo,
        params: &RawParams,
    ) -> Result<Message, MethodError> {
        let (params, this, client) = (params.parse()?, Arc::clone(self), people::key(client));
        to_the_end(async move {
            let watch = this.files.watch(params).await?;
            let (result, channel) = (json(&watch.result()), watch.channel().to_owned());
            let state = SnapshotState::ResourceWatch(Box::new(watch.state().clone()));
            this.desk.put_seen(Sheet::new().open(&channel, None, &state)).await?;
            let changed = this.watches.begin(&channel, client);
            this.tasks.spawn(report(Arc::clone(&this), channel, watch, changed));
            result
        })
        .await
    }

    /// A client follows a watch, which may have to begin anew.
    pub(super) fn follow_watch(self: &Arc<Self>, client: &ClientInfo, channel: &str) {
        let Some(changed) = self.watches.follows(client, channel) else { return };
        let (this, channel) = (Arc::clone(self), channel.to_owned());
        self.tasks.spawn(async move {
            let Self { files, desk, watches, .. } = &*this;
            let state = desk.look(&channel, |state, _| match state {
                SnapshotState::ResourceWatch(state) => Some((**state).clone()),
                _ => None,
            });
            let Ok(Some(state)) = state.await else { return watches.end(&channel) };
            let everything = everything(&state);
            match files.watch(params(state)).await {
                Ok(watch) => {
                    // What happened before this moment was not seen.
                    if let Err(error) = desk.act(vec![(channel.clone(), everything)]).await {
                        warn!(%error, "a watch has not begun anew");
                        return watches.end(&channel);
                    }
                    report(Arc::clone(&this), channel, watch, changed).await;
                }
                Err(error) => {
                    warn!(%error, "a watch cannot begin anew");
                    watches.end(&channel);
                }
            }
        });
    }
}

impl Watches {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, all: Mutex::default() }
    }

    /// A client has left a watch for good.
    pub(super) fn left(&self, client: &ClientInfo, channel: &str) {
        if let Some(followers) = lock(&self.all).get_mut(channel) {
            followers.connections.remove(&client.connection);
            followers.changed.notify_one();
        }
    }

    /// A client has lost its link.
    pub(super) fn gone(&self, client: &ClientInfo) {
        for followers in lock(&self.all).values_mut() {
            if followers.connections.remove(&client.connection) {
                followers.away.insert(people::key(client), Instant::now() + self.grace);
                followers.changed.notify_one();
            }
        }
    }

    /// A client has asked for a watch, and will follow it soon.
    fn begin(&self, channel: &str, client: Key) -> Arc<Notify> {
        let away = HashMap::from([(client, Instant::now() + self.grace)]);
        let followers = Followers { away, ..Followers::default() };
        let changed = Arc::clone(&followers.changed);
        lock(&self.all).insert(channel.to_owned(), followers);
        changed
    }

    /// A client follows a watch from now on. If it has ended, it is there again, and must be begun anew.
    fn follows(&self, client: &ClientInfo, channel: &str) -> Option<Arc<Notify>> {
        let mut all = lock(&self.all);
        let is_new = !all.contains_key(channel);
        let followers = all.entry(channel.to_owned()).or_default();
        followers.connections.insert(client.connection);
        followers.away.remove(&people::key(client));
        followers.changed.notify_one();
        is_new.then(|| Arc::clone(&followers.changed))
    }

    /// What becomes of a watch now. One that is over is not there any more.
    fn outlook(&self, channel: &str, now: Instant) -> Outlook {
        let mut all = lock(&self.all);
        let Some(followers) = all.get_mut(channel) else { return Outlook::Over };
        if !followers.connections.is_empty() {
            return Outlook::Followed;
        }
        followers.away.retain(|_, until| *until > now);
        if let Some(until) = followers.away.values().max() {
            return Outlook::Until(*until);
        }
        all.remove(channel);
        Outlook::Over
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        lock(&self.all).len()
    }

    fn end(&self, channel: &str) {
        lock(&self.all).remove(channel);
    }
}

/// Logs what a watch sees, for as long as somebody follows it.
async fn report(shop: Arc<Workshop>, channel: String, mut watch: Watch, changed: Arc<Notify>) {
    let Workshop { desk, watches, .. } = &*shop;
    let mut ledger = Ledger::default();
    loop {
        let until = match watches.outlook(&channel, Instant::now()) {
            Outlook::Followed => None,
            Outlook::Until(until) => Some(until),
            Outlook::Over => return close(&shop, &channel).await,
        };
        tokio::select! {
            action = watch.next() => {
                let Some(action) = action else { return watches.end(&channel) };
                shop.touched(changed_uris(&action)).await;
                let bytes = serde_json::to_vec(&action).map_or(0, |text| text.len());
                match desk.act(vec![(channel.clone(), action)]).await {
                    Ok(seqs) => {
                        let upto = seqs.last().and_then(|seq| ledger.add(*seq, bytes, STEP));
                        if let Some(upto) = upto {
                            desk.trim(&channel, upto).await;
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

/// What a watch says that has changed.
fn changed_uris(action: &StateAction) -> Vec<String> {
    let StateAction::ResourceWatchChanged(changed) = action else { return Vec::new() };
    let items = changed.changes.get("items").and_then(Value::as_array);
    items.into_iter().flatten().filter_map(|item| item.get("uri")?.as_str().map(str::to_owned)).collect()
}

/// Nobody follows the channel any more, and nobody ever will.
async fn close(shop: &Arc<Workshop>, channel: &str) {
    match shop.desk.put(Sheet::new().close(channel)).await {
        Ok(_) => shop.erase_soon(channel),
        Err(error) => warn!(%error, "the channel of a watch that has ended stays"),
    }
}

/// Says that all that is watched may have changed.
fn everything(state: &ResourceWatchState) -> StateAction {
    let change = ResourceChange { uri: state.root.clone(), r#type: ResourceChangeType::Updated };
    StateAction::ResourceWatchChanged(ResourceWatchChangedAction { changes: json!({ "items": [change] }) })
}

fn params(state: ResourceWatchState) -> CreateResourceWatchParams {
    let ResourceWatchState { root, recursive, excludes, includes } = state;
    let (channel, recursive) = (ROOT_RESOURCE_URI.to_owned(), Some(recursive));
    CreateResourceWatchParams { channel, meta: None, uri: root, recursive, excludes, includes }
}
