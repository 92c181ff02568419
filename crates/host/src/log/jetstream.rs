//! A log in NATS JetStream: replicated, for hosts that may run on any of several nodes.
//!
//! ```text
//!  callers ─▶ queue ─▶ Writer ─▶ one group at a time ─▶ stream (entries, decisions) ─▶ followers on other nodes
//!     │                  └─ Index and window, as soon as the group is acknowledged
//!     └─ long bodies, snapshots, rows ─▶ the other stream, before a message names them
//! ```
//!
//! The stream is the truth: an `Index` is what its messages add up to, in memory, and every node makes the same.
//! What queued up while the last group was published is the next one. A group is one message for each run of entries of one
//! channel; several are published as one atomic batch.
//!
//! # What keeps two owners apart
//!
//! Each message names the sequence that the stream must end with, and the stream refuses it otherwise. A new owner first publishes
//! a fence in this way. From then on, whatever an earlier owner publishes is refused, however late it arrives: its expectation
//! is older than the fence. Never are two groups on their way: of two, the second could be accepted after a fence took the
//! place of the first.
//!
//! A publish that is not answered may have happened. The writer then asks the leader what is at the next sequence: its own group,
//! that of another owner, or nothing, and only in the last case publishes the same group again.
//!
//! # Seqs
//!
//! Seqs are consecutive within a run of the log, as in the embedded log, and each run begins at the clock (see `gaps.rs`). They do not
//! follow from the sequences of the stream, so a log can move into a fleet and back with its seqs, and clients resume there.
//! The index knows the places of some entries, at most 16,384, and reads on from there.

mod checkpoint;
mod config;
mod copy;
mod follower;
mod group;
mod index;
mod names;
mod open;
mod places;
mod reader;
mod removal;
mod rows;
mod store;
mod wire;
mod writer;

use std::io::Write;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use async_nats::Client;
use bytes::Bytes;
#[cfg(feature = "test-support")]
#[doc(hidden)]
pub use config::InjectedFaults;
pub use config::JetStreamConfig;
pub use names::{HostName, HostNameError};
use thiserror::Error;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use self::index::Index;
use self::reader::Cursors;
use self::store::Store;
use self::wire::{BlobRef, SavedChannel};
use super::export::{self, ExportError, ExportSource};
use super::queue::{ExclusiveJob, Queue, cost_of_save};
use super::tail::{TailSource, WindowTail};
use super::window::Window;
use super::{
    AppendError, Batch, Bounds, BoxFuture, ChannelInfo, Channels, DamagedRecord, Entry, Log, LogHealth, Metrics,
    ReadError, Report, RetentionPolicy, Rows, Save, Seq, Snapshot, Tail, Usage, WriteError,
};

/// A body longer than this is not part of a message.
const INLINE: usize = 128 << 10;

/// A log in JetStream. Handles are cheap, and the last one closes it.
#[derive(Clone)]
pub struct JetStreamLog {
    shared: Arc<Shared>,
    // The writer holds `shared` too, so only this is dropped with the last handle.
    _guard: Arc<CloseOnDrop>,
}

/// Why a log in JetStream does not open.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JetStreamError {
    /// The host has no log there.
    #[error("there is no log of the host {0} on these NATS servers")]
    Missing(HostName),
    /// JetStream did not answer, or refused.
    #[error("JetStream: {0}")]
    Store(String),
    /// The log has had an owner with this number, which is not lower than that of whoever opens it.
    #[error("a later owner has the log: number {epoch}")]
    LaterOwner {
        /// Its number.
        epoch: u64,
    },
    /// There is no room for the entry by which a writer takes over.
    #[error("JetStream has no room for the log: raise its limits, or erase sessions")]
    Full,
}

/// What the writer, the readers and the handles share.
struct Shared {
    queue: Queue<Vec<Option<LongBody>>, SavedChannel>,
    view: RwLock<View>,
    last: watch::Sender<Seq>,
    health: watch::Sender<LogHealth>,
    /// Whether this node no longer wants to write.
    abandoned: watch::Sender<bool>,
    metrics: Metrics,
    store: Store,
    cursors: Cursors,
    config: JetStreamConfig,
    /// Distinguishes what this writer keeps in the other stream.
    kept: AtomicU64,
}

/// What is known of the log: changed together, so that readers see whole groups.
#[derive(Debug)]
struct View {
    index: Index,
    window: Window,
}

/// A body that is in the other stream already.
#[derive(Debug, Clone)]
struct LongBody {
    blob: BlobRef,
    body: Bytes,
}

struct CloseOnDrop {
    shared: Arc<Shared>,
    follower: Option<AbortHandle>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(follower) = &self.follower {
            follower.abort();
        }
    }
}

impl JetStreamLog {
    /// Makes the streams of a host if they are not there, without writing to them.
    ///
    /// # Errors
    /// JetStream does not answer, or refuses.
    pub async fn prepare(client: Client, config: &JetStreamConfig) -> Result<(), JetStreamError> {
        open::prepare(client, config).await
    }

    /// Opens the log of a host for writing, or makes one. A writer that had it open is fenced.
    ///
    /// # Errors
    /// JetStream does not answer, or has no room.
    pub async fn open(client: Client, config: JetStreamConfig) -> Result<Self, JetStreamError> {
        let shared = open::for_writing(client, config).await?;
        let (writer, abandoned) = (writer::Writer::new(shared.clone()), shared.abandoned.subscribe());
        tokio::spawn(writer.run(abandoned));
        Ok(Self::of(shared, None))
    }

    /// Opens the log of a host for reading, and follows what its owner writes. Every write is refused.
    ///
    /// # Errors
    /// JetStream does not answer, or has no such log.
    pub async fn follow(client: Client, config: JetStreamConfig) -> Result<Self, JetStreamError> {
        let shared = open::for_reading(client, config).await?;
        let follower = tokio::spawn(follower::run(Arc::downgrade(&shared)));
        Ok(Self::of(shared, Some(follower.abort_handle())))
    }

    /// Closes the log after what is queued is written.
    pub async fn close(&self) {
        self.shared.queue.close();
        let mut health = self.shared.health.subscribe();
        drop(health.wait_for(|health| matches!(health, LogHealth::Closed | LogHealth::Fenced)).await);
    }

    /// Gives the log up at once, because another node may own it: nothing more is published, and all who wait are answered. What is on
    /// its way may still be appended, before the next owner fences it.
    pub fn abandon(&self) {
        self.shared.abandoned.send_replace(true);
        self.shared.queue.close();
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

    /// How much each channel has in the log, by URI. Only the heads of messages are read.
    ///
    /// # Errors
    /// JetStream does not answer.
    pub async fn usage(&self) -> Result<Vec<Usage>, ReadError> {
        self.shared.usage().await
    }

    /// The bytes of both streams.
    ///
    /// # Errors
    /// JetStream does not answer.
    pub async fn stored_bytes(&self) -> Result<u64, ReadError> {
        Ok(self.shared.store.end().await.map_err(ReadError::from)?.1)
    }

    /// The first seq of the present run of the log, used or not.
    #[must_use]
    pub fn first_of_run(&self) -> Seq {
        self.shared.view().index.gaps.newest().map_or(1, |gap| gap.next)
    }

    /// The number of the present owner: one more with each.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.view().index.epoch
    }

    /// Removes the log with its streams, for good.
    ///
    /// # Errors
    /// JetStream does not answer.
    pub async fn delete(self) -> Result<(), JetStreamError> {
        self.close().await;
        self.shared.store.delete().await.map_err(|error| JetStreamError::Store(error.0))
    }

    fn of(shared: Arc<Shared>, follower: Option<AbortHandle>) -> Self {
        Self { _guard: Arc::new(CloseOnDrop { shared: shared.clone(), follower }), shared }
    }
}

impl Shared {
    fn new(store: Store, config: JetStreamConfig, index: Index) -> Self {
        let metrics = Metrics::default();
        let mut window = Window::new(config.recent_bytes);
        window.reset(index.last, index.trims());
        Self {
            queue: Queue::new(config.max_queued_bytes, metrics.syncs.clone()),
            last: watch::Sender::new(index.last),
            view: RwLock::new(View { index, window }),
            health: watch::Sender::new(LogHealth::Good),
            abandoned: watch::Sender::new(false),
            metrics,
            store,
            cursors: Cursors::default(),
            config,
            kept: AtomicU64::new(0),
        }
    }

    fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn append(&self, mut batch: Batch) -> Result<Vec<Seq>, AppendError> {
        let (begun, bytes, limit) = (Instant::now(), batch.bytes(), self.config.max_batch_bytes);
        if bytes > limit {
            return Err(AppendError::TooLarge { bytes, limit });
        }
        let messages = group::count(&batch);
        if messages > group::MAX_MESSAGES {
            return Err(AppendError::TooManyMessages { messages, limit: group::MAX_MESSAGES });
        }
        let Some(admitted) = self.queue.admit(&batch).await else { return Err(self.refusal()) };
        let long = self.keep_long_bodies(&mut batch).await?;
        let (reply, answer) = oneshot::channel();
        if !self.queue.append(batch, long, admitted, reply) {
            return Err(self.refusal());
        }
        // If the writer ended without an answer, the outcome is unknown.
        let answer = answer.await.unwrap_or(Err(AppendError::Unknown));
        self.metrics.append_us.observe_time(begun.elapsed());
        answer
    }

    /// Why nothing is appended any more.
    fn refusal(&self) -> AppendError {
        if *self.health.borrow() == LogHealth::Fenced { AppendError::Fenced } else { AppendError::Closed }
    }

    async fn save(&self, save: Save) -> Result<(), WriteError> {
        let (channel, cost) = (save.channel.clone(), cost_of_save(&save));
        let Some(saved) = self.keep_saved(save).await? else { return Ok(()) };
        let (reply, answer) = oneshot::channel();
        if !self.queue.save(&channel, cost, saved, reply) {
            return Err(WriteError::Closed);
        }
        answer.await.unwrap_or(Err(WriteError::Unknown))
    }

    async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, WriteError>>) -> ExclusiveJob,
    ) -> Result<T, WriteError> {
        let (reply, answer) = oneshot::channel();
        if !self.queue.exclusive(job(reply)) {
            return Err(if *self.health.borrow() == LogHealth::Fenced {
                WriteError::Fenced
            } else {
                WriteError::Closed
            });
        }
        answer.await.unwrap_or(Err(WriteError::Unknown))
    }
}

impl Log for JetStreamLog {
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
        Box::pin(self.shared.read(channel, range, max_bytes))
    }

    fn bounds(&self) -> BoxFuture<'_, Result<Bounds, ReadError>> {
        let bounds = Bounds { first: self.shared.view().window.first(), last: *self.shared.last.borrow() };
        Box::pin(std::future::ready(Ok(bounds)))
    }

    fn lag(&self, after: Seq) -> Option<u64> {
        let last = *self.shared.last.borrow();
        self.shared.view().index.gaps.lag(after, last)
    }

    fn channels<'a>(&'a self, session: Option<&'a str>) -> BoxFuture<'a, Result<Vec<ChannelInfo>, ReadError>> {
        Box::pin(std::future::ready(Ok(self.shared.view().index.infos(session))))
    }

    fn save(&self, save: Save) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(self.shared.save(save))
    }

    fn snapshot<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Option<Snapshot>, ReadError>> {
        Box::pin(self.shared.snapshot(channel))
    }

    fn rows<'a>(
        &'a self,
        channel: &'a str,
        range: Range<u64>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Rows, ReadError>> {
        Box::pin(self.shared.rows(channel, range, max_bytes))
    }

    fn row_bytes<'a>(
        &'a self,
        channel: &'a str,
        index: u64,
        range: Range<usize>,
    ) -> BoxFuture<'a, Result<Option<Bytes>, ReadError>> {
        Box::pin(self.shared.row_bytes(channel, index, range))
    }

    fn trim<'a>(&'a self, channel: &'a str, before: Seq) -> BoxFuture<'a, Result<u64, WriteError>> {
        Box::pin(self.shared.ask(move |reply| ExclusiveJob::Trim { channel: channel.into(), before, reply }))
    }

    fn retain(&self, policy: RetentionPolicy) -> BoxFuture<'_, Result<u64, WriteError>> {
        Box::pin(self.shared.ask(move |reply| ExclusiveJob::Retain { policy, reply }))
    }

    fn erase<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64, WriteError>> {
        Box::pin(self.shared.ask(move |reply| ExclusiveJob::Erase { session: name.into(), reply }))
    }

    fn verify(&self) -> BoxFuture<'_, Result<Report, ReadError>> {
        Box::pin(self.shared.verify())
    }

    fn health(&self) -> watch::Receiver<LogHealth> {
        self.shared.health.subscribe()
    }

    fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }
}

impl ExportSource for JetStreamLog {
    const VERSION: i64 = 1;

    fn page<'a>(
        &'a self,
        after: Seq,
        last: Seq,
        channels: &'a Channels,
    ) -> BoxFuture<'a, Result<(Vec<Entry>, Seq), ReadError>> {
        self.shared.page(after, last, channels, export::PAGE)
    }
}
