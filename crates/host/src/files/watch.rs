//! Watches on files and directories.
//!
//! Reports of the operating system only say *where to look*. A client gets the difference between what was there and what is
//! there now, found by the same path resolution as everywhere here. So no change is missed because a queue overflowed; a
//! replaced file is `updated` however its program did that; files in a new directory are found even if they existed before
//! the directory was watched; and no name outside of the roots is reported.

mod filter;
mod reports;
mod system_watcher;
mod tracker;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ahp_types::actions::{ResourceWatchChangedAction, StateAction};
use ahp_types::commands::{CreateResourceWatchParams, CreateResourceWatchResult};
use ahp_types::state::{ResourceChange, ResourceChangeType, ResourceWatchState};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use self::filter::Filter;
use self::reports::ReportQueue;
pub(super) use self::system_watcher::SystemWatcher;
use self::tracker::Tracker;
use super::error::FileError;
use super::roots::FinalLink;
use super::uri::{path_of, uri_of};
use super::{FilesInner, run};
use crate::lock::lock;

/// A running watch. Dropping it ends it.
///
/// The host subscribes a client to [`channel`](Self::channel) and puts each action that [`next`](Self::next) returns on it.
/// While nobody calls it, changes accumulate as paths to check; beyond a limit, everything is checked.
#[derive(Debug)]
pub struct Watch {
    channel: String,
    state: ResourceWatchState,
    /// The path as the client wrote it. Changes are reported under it.
    asked: PathBuf,
    shared: Arc<FilesInner>,
    reports: Arc<ReportQueue>,
    ready: Arc<FoundChanges>,
    tracker: Option<Arc<Mutex<Tracker>>>,
    _permit: OwnedSemaphorePermit,
}

/// Changes that were found and not yet returned, relative to the watched path.
#[derive(Debug, Default)]
struct FoundChanges(Mutex<VecDeque<(PathBuf, ResourceChangeType)>>);

impl Watch {
    pub(super) fn begin(
        shared: Arc<FilesInner>,
        permit: OwnedSemaphorePermit,
        params: CreateResourceWatchParams,
    ) -> Result<Self, FileError> {
        let asked = path_of(&params.uri)?;
        let recursive = params.recursive.unwrap_or(false);
        let filter = Filter::new(params.includes.as_ref(), params.excludes.as_ref())?;
        let resolved = shared.roots.find(&asked, FinalLink::Follow)?;
        let reports = Arc::new(ReportQueue::new(resolved.real.clone()));
        let tracker = Tracker::begin(&shared, &resolved, recursive, filter, &reports)?;
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| FileError::System(error.to_string()))?;
        Ok(Self {
            channel: format!("ahp-resource-watch:/{:032x}", u128::from_le_bytes(id)),
            state: ResourceWatchState {
                root: params.uri,
                recursive,
                excludes: params.excludes,
                includes: params.includes,
            },
            asked,
            shared,
            reports,
            ready: Arc::default(),
            tracker: Some(Arc::new(Mutex::new(tracker))),
            _permit: permit,
        })
    }

    /// The channel on which this watch reports, new for each watch.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.channel
    }

    /// What the client that asked for this watch is answered.
    #[must_use]
    pub fn result(&self) -> CreateResourceWatchResult {
        CreateResourceWatchResult { channel: self.channel.clone() }
    }

    /// The channel's state, which never changes.
    #[must_use]
    pub fn state(&self) -> &ResourceWatchState {
        &self.state
    }

    /// The next `resourceWatch/changed` action; it has at least one change. Nothing once the runtime ends.
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Option<StateAction> {
        loop {
            if let Some(action) = self.take() {
                return Some(action);
            }
            if self.reports.is_empty() {
                self.reports.changed().await;
                continue;
            }
            self.quiet().await;
            let (reports, ready) = (Arc::clone(&self.reports), Arc::clone(&self.ready));
            let tracker = Arc::clone(self.tracker.as_ref()?);
            let look = move |shared: &FilesInner| {
                let changes = lock(&tracker).look(&shared.roots, reports.take());
                lock(&ready.0).extend(changes);
                // If the caller was dropped, the next one must not wait for these changes.
                reports.wake();
                Ok(())
            };
            run(&self.shared, look).await.ok()?;
        }
    }

    /// Waits until nothing changes for a while, up to a limit.
    async fn quiet(&self) {
        let config = &self.shared.config;
        let latest = Instant::now() + config.watch_longest;
        while Instant::now() < latest {
            let until = latest.min(Instant::now() + config.watch_quiet);
            if timeout_at(until, self.reports.changed()).await.is_err() {
                return;
            }
        }
    }

    fn take(&self) -> Option<StateAction> {
        let mut ready = lock(&self.ready.0);
        let count = ready.len().min(self.shared.config.max_watch_changes.max(1));
        let items: Vec<ResourceChange> = ready.drain(..count).map(|change| self.report(change)).collect();
        if items.is_empty() {
            return None;
        }
        Some(StateAction::ResourceWatchChanged(ResourceWatchChangedAction { changes: json!({ "items": items }) }))
    }

    fn report(&self, (path, r#type): (PathBuf, ResourceChangeType)) -> ResourceChange {
        let is_itself = path.as_os_str().is_empty();
        let uri = if is_itself { self.state.root.clone() } else { uri_of(&self.asked.join(path)) };
        ResourceChange { uri, r#type }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let tracker = self.tracker.take();
        // Removing the system's watches takes a while.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || drop(tracker));
        }
    }
}
