//! The world's log, which outlives the host: in memory or on a disk, and as slow as the plan says.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{
    AppendError, Batch, Bounds, BoxFuture, ChannelInfo, Channels, Entry, Log, LogHealth, MemoryLog, Metrics, OpenError,
    ReadError, Report, RetentionPolicy, Rows, Save, Seq, Snapshot, Tail, WriteError,
};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::sim::plan::{Plan, Sabotage};
use crate::sim::shared::Shared;

/// A moment of real time.
const MOMENT: Duration = Duration::from_millis(1);

/// What is left when the host crashes.
pub(crate) struct Store {
    directory: TempDir,
    on_disk: bool,
    memory: Mutex<MemoryLog>,
    /// What the log took, for somebody who makes it forget.
    taken: Mutex<Vec<Batch>>,
    sabotage: Option<Sabotage>,
}

impl Store {
    pub(crate) fn new(plan: &Plan) -> Self {
        let (directory, memory) = (tempfile::tempdir().unwrap(), Mutex::new(MemoryLog::new()));
        Self { directory, on_disk: plan.on_disk, memory, taken: Mutex::default(), sabotage: plan.sabotage }
    }

    /// A directory for the host to work in.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Opens the log for a host.
    pub(crate) async fn open(&self, shared: &Arc<Shared>) -> turmoil::Result<Arc<dyn Log>> {
        if self.sabotage == Some(Sabotage::LostAppend) {
            self.forget_last().await;
        }
        let inner = self.bare().await?;
        Ok(Arc::new(Slow { inner, shared: Arc::clone(shared) }))
    }

    /// All entries, in order.
    pub(crate) async fn entries(&self) -> turmoil::Result<Vec<Entry>> {
        let mut tail = self.bare().await?.tail(0, Channels::All);
        let mut entries = Vec::new();
        loop {
            let page = tail.ready(16 << 20).await?;
            if page.is_empty() {
                return Ok(entries);
            }
            entries.extend(page);
        }
    }

    async fn bare(&self) -> turmoil::Result<Arc<dyn Log>> {
        if !self.on_disk {
            return Ok(Arc::new(self.memory.lock().unwrap().clone()));
        }
        loop {
            match SqliteLog::open(self.directory.path().join("log"), Options::default()).await {
                // The thread of the host that crashed is in its last moments.
                Err(OpenError::InUse(_)) => tokio::task::spawn_blocking(|| thread::sleep(MOMENT)).await?,
                opened => return Ok(Arc::new(opened?)),
            }
        }
    }

    /// The log as it was before it took the last batch of a client's.
    async fn forget_last(&self) {
        let mut kept = self.taken.lock().unwrap().clone();
        if let Some(at) = kept.iter().rposition(is_dispatched) {
            kept.truncate(at);
        }
        let log = MemoryLog::new();
        for batch in &kept {
            log.append(batch.clone()).await.unwrap();
        }
        *self.memory.lock().unwrap() = log;
        *self.taken.lock().unwrap() = kept;
    }
}

/// A log that takes its time. What was asked of it is done also if nobody waits for it any more, unless the host crashes.
struct Slow {
    inner: Arc<dyn Log>,
    shared: Arc<Shared>,
}

impl Log for Slow {
    fn append(&self, batch: Batch) -> BoxFuture<'_, Result<Vec<Seq>, AppendError>> {
        let (inner, shared) = (Arc::clone(&self.inner), Arc::clone(&self.shared));
        let appended = tokio::spawn(async move {
            let most = shared.plan.slow_log;
            let [before, after] = [(); 2].map(|()| shared.facts().rng.millis(0, most));
            sleep(before).await;
            let done = stop_the_clock();
            let appended = inner.append(batch.clone()).await;
            drop(done);
            if appended.is_ok() && shared.plan.sabotage == Some(Sabotage::DoubleAppend) && is_dispatched(&batch) {
                let again = batch.entries.iter().cloned().fold(Batch::new(), Batch::push);
                inner.append(again).await?;
            }
            if appended.is_ok() && shared.plan.sabotage == Some(Sabotage::LostAppend) {
                shared.store.taken.lock().unwrap().push(batch);
            }
            sleep(after).await;
            appended
        });
        Box::pin(async move { appended.await.unwrap_or(Err(AppendError::Unknown)) })
    }

    fn tail(&self, after: Seq, channels: Channels) -> Box<dyn Tail> {
        self.inner.tail(after, channels)
    }

    fn read<'a>(
        &'a self,
        channel: &'a str,
        range: Range<Seq>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Vec<Entry>, ReadError>> {
        self.inner.read(channel, range, max_bytes)
    }

    fn bounds(&self) -> BoxFuture<'_, Result<Bounds, ReadError>> {
        self.inner.bounds()
    }

    fn lag(&self, after: Seq) -> Option<u64> {
        self.inner.lag(after)
    }

    fn channels<'a>(&'a self, session: Option<&'a str>) -> BoxFuture<'a, Result<Vec<ChannelInfo>, ReadError>> {
        self.inner.channels(session)
    }

    fn save(&self, save: Save) -> BoxFuture<'_, Result<(), WriteError>> {
        self.inner.save(save)
    }

    fn snapshot<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Option<Snapshot>, ReadError>> {
        self.inner.snapshot(channel)
    }

    fn rows<'a>(
        &'a self,
        channel: &'a str,
        range: Range<u64>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Rows, ReadError>> {
        self.inner.rows(channel, range, max_bytes)
    }

    fn row_bytes<'a>(
        &'a self,
        channel: &'a str,
        index: u64,
        range: Range<usize>,
    ) -> BoxFuture<'a, Result<Option<bytes::Bytes>, ReadError>> {
        self.inner.row_bytes(channel, index, range)
    }

    fn trim<'a>(&'a self, channel: &'a str, before: Seq) -> BoxFuture<'a, Result<u64, WriteError>> {
        self.inner.trim(channel, before)
    }

    fn retain(&self, policy: RetentionPolicy) -> BoxFuture<'_, Result<u64, WriteError>> {
        self.inner.retain(policy)
    }

    fn erase<'a>(&'a self, session: &'a str) -> BoxFuture<'a, Result<u64, WriteError>> {
        self.inner.erase(session)
    }

    fn verify(&self) -> BoxFuture<'_, Result<Report, ReadError>> {
        self.inner.verify()
    }

    fn health(&self) -> watch::Receiver<LogHealth> {
        self.inner.health()
    }

    fn metrics(&self) -> &Metrics {
        self.inner.metrics()
    }
}

/// A real disk takes real time. Simulated time stands still until this is dropped: it does while a thread is busy.
fn stop_the_clock() -> mpsc::Sender<()> {
    let (done, wait) = mpsc::channel();
    tokio::task::spawn_blocking(move || wait.recv().is_err());
    done
}

/// Whether a client dispatched what is in a batch.
fn is_dispatched(batch: &Batch) -> bool {
    const ORIGIN: &[u8] = br#""origin":{"clientId""#;
    batch.entries.iter().any(|entry| entry.body.windows(ORIGIN.len()).any(|part| part == ORIGIN))
}
