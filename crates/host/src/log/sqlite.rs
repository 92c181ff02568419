//! The embedded log: one SQLite file, one writer thread, readers on connections of their own.
//!
//! The writer has no timer: what was queued while the last transaction waited for the disk is the next transaction. A single
//! caller waits for one sync, and a thousand callers share one. Readers get the newest entries from memory, without copies,
//! and older ones from the file, a page at a time.

mod acknowledged;
mod batch_ids;
mod blob;
mod buffer_pool;
mod commit;
mod copy;
mod db;
mod files;
mod group_commit;
mod holes;
mod insert;
mod options;
mod pieces;
mod reader;
mod reader_pool;
mod recent;
mod record;
mod removal;
mod reserve;
mod salvage;
mod schema;
mod shared_bodies;
mod usage;
mod verify;
mod writer;

use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

#[cfg(feature = "test-support")]
#[doc(hidden)]
pub use options::InjectedFaults;
pub use options::Options;
use tokio::sync::{oneshot, watch};

use self::db::Failure;
use self::files::LogFiles;
use self::reader::ChannelFilter;
use self::reader_pool::ReaderPool;
use self::recent::RecentEntries;
use self::shared_bodies::SharedBodies;
use super::export::{self, ExportError, ExportSource};
use super::queue::{ExclusiveJob, Queue, cost_of_save};
use super::tail::{TailSource, WindowTail};
use super::window::Window;
use super::{
    AppendError, Batch, Bounds, BoxFuture, ChannelInfo, Channels, DamagedRecord, Entry, Log, LogHealth, Metrics,
    OpenError, ReadError, Report, RetentionPolicy, Rows, Save, Seq, Snapshot, Tail, Usage, WriteError,
};

/// A log in a directory. Handles are cheap, and the last one closes it.
#[derive(Clone)]
pub struct SqliteLog {
    shared: Arc<SqliteInner>,
    // The writer thread holds `shared` too, so only this is dropped with the last handle.
    _guard: Arc<CloseOnDrop>,
}

/// What the writer, the readers and the handles share.
struct SqliteInner {
    queue: Queue,
    recent: RwLock<RecentEntries>,
    last: watch::Sender<Seq>,
    health: watch::Sender<LogHealth>,
    metrics: Metrics,
    readers: ReaderPool,
    long_bodies: SharedBodies,
    files: LogFiles,
    options: Options,
}

struct CloseOnDrop(Arc<SqliteInner>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.queue.close();
    }
}

impl SqliteLog {
    /// Opens the log in a directory for writing, or makes one. A log of an older version is migrated.
    ///
    /// # Errors
    /// Another writer has it, it is of a later version, or the files do not open.
    pub async fn open(dir: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let files = LogFiles::new(dir.as_ref());
        let path = files.database();
        let work = move || {
            let lock = files.lock()?;
            let shared = Arc::new(SqliteInner::new(&files, options));
            writer::start(&shared, files, lock)?;
            Ok(Self::of(shared))
        };
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(OpenError::Store { path, source: error.into() }))
    }

    /// Opens the log in a directory for reading only, also while a host writes to it. It shows the present entries, and
    /// refuses every write.
    ///
    /// # Errors
    /// There is no log, it is of another version, or the files do not open.
    pub async fn open_for_reading(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        let files = LogFiles::new(dir.as_ref());
        let path = files.database();
        let work = move || {
            let path = files.database();
            if !path.exists() {
                return Err(OpenError::Missing(path));
            }
            let shared = Arc::new(SqliteInner::new(&files, Options::default()));
            shared.queue.close();
            shared.health.send_replace(LogHealth::Closed);
            shared.readers.load(&shared, &path)?;
            Ok(Self::of(shared))
        };
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(OpenError::Store { path, source: error.into() }))
    }

    /// Closes the log after what is queued is written. Another writer can open it when this returns.
    pub async fn close(&self) {
        self.shared.queue.close();
        let mut health = self.shared.health.subscribe();
        drop(health.wait_for(|health| *health == LogHealth::Closed).await);
    }

    /// Returns the space that trimming and erasing freed to the disk. Appends wait meanwhile, and as much free space as the log
    /// takes is needed: best done while no host runs.
    ///
    /// # Errors
    /// There is no room, or writing failed.
    pub async fn compact(&self) -> Result<(), WriteError> {
        self.shared.ask(|reply| ExclusiveJob::Compact { reply }).await
    }

    /// As [`verify`](Log::verify), and reports its progress: bytes verified, and bytes in all, about.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn verify_with(&self, mut seen: impl FnMut(u64, u64) + Send + 'static) -> Result<Report, ReadError> {
        let files = self.shared.files.clone();
        let walk = move |reader: &reader::Reader| {
            let total = reader.store_bytes()?;
            verify::walk(reader, &files, |bytes| seen(bytes.min(total), total))
        };
        self.shared.readers.run(walk).await
    }

    /// Writes the log, or some channels of it, as JSON Lines. Entries that are appended meanwhile are left out.
    ///
    /// In place of a damaged record, or of entries that cannot be read, is a line that names them; returns all of these.
    ///
    /// # Errors
    /// Something else cannot be read (everything before that has been written), or the lines cannot be written.
    pub async fn export(
        &self,
        channels: Channels,
        to: &mut (dyn Write + Send),
    ) -> Result<Vec<DamagedRecord>, ExportError> {
        export::export(self, channels, to).await
    }

    /// How much each channel has in the log, by URI.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn usage(&self) -> Result<Vec<Usage>, ReadError> {
        self.shared.readers.run(usage::all).await
    }

    /// The first seq of the present run of the log, used or not.
    #[must_use]
    pub fn first_of_run(&self) -> Seq {
        self.shared.recent().gaps.newest().map_or(1, |gap| gap.next)
    }

    fn of(shared: Arc<SqliteInner>) -> Self {
        Self { _guard: Arc::new(CloseOnDrop(shared.clone())), shared }
    }
}

impl SqliteInner {
    fn new(files: &LogFiles, options: Options) -> Self {
        let (metrics, long_bodies) = (Metrics::default(), SharedBodies::default());
        Self {
            queue: Queue::new(options.max_queued_bytes, metrics.syncs.clone()),
            recent: RwLock::new(RecentEntries::new(options.recent_bytes)),
            last: watch::Sender::new(0),
            health: watch::Sender::new(LogHealth::Good),
            readers: ReaderPool::new(files.database(), options.readers, metrics.damaged.clone(), long_bodies.clone()),
            long_bodies,
            metrics,
            files: files.clone(),
            options,
        }
    }

    fn recent(&self) -> RwLockReadGuard<'_, RecentEntries> {
        self.recent.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent_mut(&self) -> RwLockWriteGuard<'_, RecentEntries> {
        self.recent.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the health to this failure. To be called before any caller gets an error, so that both agree.
    fn announce(&self, failure: &Failure) {
        self.health.send_replace(match failure {
            Failure::Full => LogHealth::Full,
            Failure::Fenced => LogHealth::Fenced,
            Failure::Unreadable(reason) | Failure::Store(reason) => LogHealth::Failed { reason: reason.clone() },
        });
    }

    async fn append(&self, batch: Batch) -> Result<Vec<Seq>, AppendError> {
        let (begun, bytes, limit) = (Instant::now(), batch.bytes(), self.options.max_batch_bytes);
        if bytes > limit {
            return Err(AppendError::TooLarge { bytes, limit });
        }
        let (reply, answer) = oneshot::channel();
        let Some(admitted) = self.queue.admit(&batch).await else { return Err(AppendError::Closed) };
        if !self.queue.append(batch, (), admitted, reply) {
            return Err(AppendError::Closed);
        }
        // If the writer thread ended without an answer, the outcome is unknown.
        let answer = answer.await.unwrap_or(Err(AppendError::Unknown));
        self.metrics.append_us.observe_time(begun.elapsed());
        answer
    }

    async fn save(&self, save: Save) -> Result<(), WriteError> {
        let (reply, answer) = oneshot::channel();
        let (channel, cost) = (save.channel.clone(), cost_of_save(&save));
        if !self.queue.save(&channel, cost, save, reply) {
            return Err(WriteError::Closed);
        }
        answer.await.unwrap_or(Err(WriteError::Unknown))
    }

    /// Does an exclusive job; once more if it met a part of the file that cannot be read, after the log was copied without it.
    async fn ask<T>(
        &self,
        job: impl Fn(oneshot::Sender<Result<T, WriteError>>) -> ExclusiveJob,
    ) -> Result<T, WriteError> {
        let mut health = self.health.subscribe();
        match self.ask_once(&job).await {
            Err(WriteError::Unreadable) => {
                drop(health.wait_for(|health| !matches!(health, LogHealth::Failed { .. })).await);
                self.ask_once(&job).await
            }
            done => done,
        }
    }

    async fn ask_once<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, WriteError>>) -> ExclusiveJob,
    ) -> Result<T, WriteError> {
        let (reply, answer) = oneshot::channel();
        if !self.queue.exclusive(job(reply)) {
            return Err(WriteError::Closed);
        }
        answer.await.unwrap_or(Err(WriteError::Unknown))
    }
}

impl Log for SqliteLog {
    fn append(&self, batch: Batch) -> BoxFuture<'_, Result<Vec<Seq>, AppendError>> {
        Box::pin(self.shared.append(batch))
    }

    fn tail(&self, after: Seq, channels: Channels) -> Box<dyn Tail> {
        Box::new(WindowTail::new(self.shared.clone(), after, channels))
    }

    fn read<'a>(
        &'a self,
        channel: &'a str,
        range: Range<Seq>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Vec<Entry>, ReadError>> {
        let channel: Arc<str> = channel.into();
        Box::pin(self.shared.readers.run(move |reader| reader.read(&channel, range, max_bytes)))
    }

    fn bounds(&self) -> BoxFuture<'_, Result<Bounds, ReadError>> {
        let bounds = Bounds { first: self.shared.recent().window.first(), last: *self.shared.last.borrow() };
        Box::pin(std::future::ready(Ok(bounds)))
    }

    fn lag(&self, after: Seq) -> Option<u64> {
        let last = *self.shared.last.borrow();
        self.shared.recent().gaps.lag(after, last)
    }

    fn channels<'a>(&'a self, session: Option<&'a str>) -> BoxFuture<'a, Result<Vec<ChannelInfo>, ReadError>> {
        let session = session.map(String::from);
        Box::pin(self.shared.readers.run(move |reader| reader.channels(session.as_deref())))
    }

    fn save(&self, save: Save) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(self.shared.save(save))
    }

    fn snapshot<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Option<Snapshot>, ReadError>> {
        let channel: Arc<str> = channel.into();
        Box::pin(self.shared.readers.run(move |reader| reader.snapshot(&channel)))
    }

    fn rows<'a>(
        &'a self,
        channel: &'a str,
        range: Range<u64>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Rows, ReadError>> {
        let channel: Arc<str> = channel.into();
        Box::pin(self.shared.readers.run(move |reader| reader.rows(&channel, range, max_bytes)))
    }

    fn row_bytes<'a>(
        &'a self,
        channel: &'a str,
        index: u64,
        range: Range<usize>,
    ) -> BoxFuture<'a, Result<Option<bytes::Bytes>, ReadError>> {
        let channel: Arc<str> = channel.into();
        Box::pin(self.shared.readers.run(move |reader| reader.row_bytes(&channel, index, range)))
    }

    fn trim<'a>(&'a self, channel: &'a str, before: Seq) -> BoxFuture<'a, Result<u64, WriteError>> {
        Box::pin(self.shared.ask(move |reply| ExclusiveJob::Trim { channel: channel.into(), before, reply }))
    }

    fn retain(&self, policy: RetentionPolicy) -> BoxFuture<'_, Result<u64, WriteError>> {
        Box::pin(self.shared.ask(move |reply| ExclusiveJob::Retain { policy, reply }))
    }

    fn erase<'a>(&'a self, session: &'a str) -> BoxFuture<'a, Result<u64, WriteError>> {
        Box::pin(self.shared.ask(move |reply| ExclusiveJob::Erase { session: session.into(), reply }))
    }

    fn verify(&self) -> BoxFuture<'_, Result<Report, ReadError>> {
        Box::pin(self.verify_with(|_, _| {}))
    }

    fn health(&self) -> watch::Receiver<LogHealth> {
        self.shared.health.subscribe()
    }

    fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }
}

impl TailSource for SqliteInner {
    fn last(&self) -> watch::Receiver<Seq> {
        self.last.subscribe()
    }

    fn window<T>(&self, look: impl FnOnce(&Window) -> T) -> T {
        look(&self.recent().window)
    }

    fn page<'a>(
        self: &'a Arc<Self>,
        after: Seq,
        last: Seq,
        channels: &'a Channels,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<(Vec<Entry>, Seq), ReadError>> {
        let (names, channels) = (self.clone(), channels.clone());
        let name = move |id| match names.recent().channel(id) {
            Some(uri) if channels.contains(&uri) => ChannelFilter::Yes(uri),
            Some(_) => ChannelFilter::No,
            None => ChannelFilter::Unknown,
        };
        Box::pin(self.readers.run(move |reader| reader.page((after, last), max_bytes, name)))
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl ExportSource for SqliteLog {
    const VERSION: i64 = schema::VERSION;

    fn page<'a>(
        &'a self,
        after: Seq,
        last: Seq,
        channels: &'a Channels,
    ) -> BoxFuture<'a, Result<(Vec<Entry>, Seq), ReadError>> {
        self.shared.page(after, last, channels, export::PAGE)
    }
}

/// The error of a file that does not open.
fn opening(path: &Path, error: rusqlite::Error) -> OpenError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => OpenError::NotALog(path.to_path_buf()),
        _ if db::is_full(&error) => OpenError::Full(path.to_path_buf()),
        Some(rusqlite::ErrorCode::DatabaseCorrupt) => OpenError::Damaged { path: path.to_path_buf() },
        _ => OpenError::Store { path: path.to_path_buf(), source: error.into() },
    }
}
