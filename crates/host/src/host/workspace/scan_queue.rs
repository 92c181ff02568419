//! Schedules scans of sessions: one scan of a session at a time, and a few over all sessions.
//!
//! A scan looks for the changes and customizations in the working directories of a session. A request says how much is to
//! be scanned. Requests that come during a scan are merged into one next scan, of the largest scope among them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use super::Workspace;
use super::session_scan::ScanResult;
use crate::error::MethodError;
use crate::lock::lock;
use crate::state::StateError;

/// How many scans run at once, over all sessions: each runs git and walks directories.
const MAX_RUNNING: usize = 4;

/// How much is scanned. Each scope includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScanScope {
    /// The changesets.
    Changes,
    /// The customizations too, if a changeset has changed.
    ChangesAndEffects,
    /// The customizations too, in any case.
    Everything,
}

/// The scans of all sessions.
pub(super) struct ScanQueue {
    pub(super) sessions: Mutex<HashMap<String, Arc<SessionScans>>>,
    running: Semaphore,
}

/// The scans of one session.
#[derive(Default)]
pub(super) struct SessionScans {
    requests: Mutex<ScanRequests>,
    /// The number of the last scan that has ended.
    ended: watch::Sender<u64>,
    is_scanned: AtomicBool,
    /// What the last scan found. Locked by a running scan.
    pub(super) result: tokio::sync::Mutex<ScanResult>,
}

/// What is requested for one session.
#[derive(Default)]
struct ScanRequests {
    /// The scope of the next scan, if one is requested.
    next: Option<ScanScope>,
    /// The number of the last scan that has begun.
    begun: u64,
    worker: ScanWorker,
}

/// Whether a task scans a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ScanWorker {
    #[default]
    Idle,
    Running,
    /// The session was disposed of: no scan begins any more.
    Closed,
}

impl Default for ScanQueue {
    fn default() -> Self {
        Self { sessions: Mutex::default(), running: Semaphore::new(MAX_RUNNING) }
    }
}

impl ScanQueue {
    /// Whether a session has been scanned since the host started.
    pub(super) fn is_scanned(&self, session: &str) -> bool {
        lock(&self.sessions).get(session).is_some_and(|scans| scans.is_scanned.load(Ordering::Relaxed))
    }

    /// Whether no scan runs and none is requested.
    #[cfg(feature = "test-support")]
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.sessions).values().all(|scans| lock(&scans.requests).worker != ScanWorker::Running)
    }

    /// Begins the next scan of a session, if one is requested.
    fn begin_next(&self, session: &str, scans: &Arc<SessionScans>) -> Option<(ScanScope, ScanRun)> {
        let mut sessions = lock(&self.sessions);
        let mut requests = lock(&scans.requests);
        let next = requests.next.take();
        if requests.worker == ScanWorker::Running
            && let Some(scope) = next
        {
            requests.begun = requests.begun.saturating_add(1);
            return Some((scope, ScanRun { scans: Arc::clone(scans), number: requests.begun }));
        }
        if requests.worker == ScanWorker::Running {
            requests.worker = ScanWorker::Idle;
        }
        // A session that does not exist is not remembered.
        let is_current = sessions.get(session).is_some_and(|current| Arc::ptr_eq(current, scans));
        if is_current && !scans.is_scanned.load(Ordering::Relaxed) {
            sessions.remove(session);
        }
        None
    }
}

impl Workspace {
    /// Requests a scan of a session. Returns at once.
    pub(super) fn request_scan(self: &Arc<Self>, session: &str, scope: ScanScope) {
        drop(self.enqueue_scan(session, scope));
    }

    /// Waits until a session has been scanned since the host started. Returns at once if there is no such session.
    pub(super) async fn ensure_scanned(self: &Arc<Self>, session: &str) -> Result<(), StateError> {
        if self.scan_queue.is_scanned(session) || self.session(session, |_| ()).await?.is_none() {
            return Ok(());
        }
        let (mut ended, number) = self.enqueue_scan(session, ScanScope::Everything);
        // An error means that the host stops.
        drop(ended.wait_for(|ended| *ended >= number).await);
        Ok(())
    }

    /// Ends the scans of a session that was disposed of, and closes its changesets.
    pub(super) async fn forget_scans(&self, session: &str) {
        let Some(scans) = lock(&self.scan_queue.sessions).remove(session) else { return };
        let last = {
            let mut requests = lock(&scans.requests);
            requests.worker = ScanWorker::Closed;
            requests.begun
        };
        drop(scans.ended.subscribe().wait_for(|ended| *ended >= last).await);
        self.close_changesets(&mut *scans.result.lock().await);
    }

    /// Requests a scan; returns its number, and what says which scans have ended.
    fn enqueue_scan(self: &Arc<Self>, session: &str, scope: ScanScope) -> (watch::Receiver<u64>, u64) {
        let mut sessions = lock(&self.scan_queue.sessions);
        let scans = Arc::clone(sessions.entry(session.to_owned()).or_default());
        let mut requests = lock(&scans.requests);
        requests.next = requests.next.max(Some(scope));
        let number = requests.begun.saturating_add(1);
        if requests.worker == ScanWorker::Idle {
            requests.worker = ScanWorker::Running;
            self.tasks.spawn(Arc::clone(self).run_scans(session.to_owned(), Arc::clone(&scans)));
        }
        (scans.ended.subscribe(), number)
    }

    /// Scans a session until no scan is requested any more.
    async fn run_scans(self: Arc<Self>, session: String, scans: Arc<SessionScans>) {
        while let Some((scope, _run)) = self.scan_queue.begin_next(&session, &scans) {
            // The semaphore is never closed.
            let _permit = self.scan_queue.running.acquire().await;
            let mut result = scans.result.lock().await;
            match self.scan(&session, scope, &mut result).await {
                Ok(()) => scans.is_scanned.store(true, Ordering::Relaxed),
                Err(ScanError::NoSession) => {
                    debug!("a scan was requested for a session that does not exist");
                    self.close_changesets(&mut result);
                    scans.is_scanned.store(false, Ordering::Relaxed);
                }
                Err(ScanError::Failed(error)) => warn!(%error, "a session was not scanned"),
            }
        }
    }
}

/// A scan that runs. Dropping it, in whatever way the scan ends, wakes those who wait for it.
struct ScanRun {
    scans: Arc<SessionScans>,
    number: u64,
}

impl Drop for ScanRun {
    fn drop(&mut self) {
        self.scans.ended.send_replace(self.number);
    }
}

/// Why a scan found nothing.
#[derive(Debug)]
pub(super) enum ScanError {
    NoSession,
    Failed(MethodError),
}

impl From<MethodError> for ScanError {
    fn from(error: MethodError) -> Self {
        Self::Failed(error)
    }
}

impl From<StateError> for ScanError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::NotFound => Self::NoSession,
            error => Self::Failed(error.into()),
        }
    }
}
