//! A log in memory, for tests. It keeps all laws but the first, and is the model that other logs are checked against.

mod state;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;

use self::state::{MemoryChannel, MemoryState, fill};
use super::{
    AppendError, Batch, Bounds, BoxFuture, ChannelInfo, Channels, Entry, Gap, Log, LogHealth, Metrics, ReadError,
    Report, RetentionPolicy, Rows, Save, Seq, Snapshot, Tail, WriteError,
};
use crate::lock::lock;

/// A log that is dropped with its last handle. Nothing is stored, so nothing waits.
#[derive(Debug, Clone)]
pub struct MemoryLog {
    inner: Arc<MemoryInner>,
}

#[derive(Debug)]
struct MemoryInner {
    state: Mutex<MemoryState>,
    last: watch::Sender<Seq>,
    health: watch::Sender<LogHealth>,
    metrics: Metrics,
}

impl MemoryLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Arc::new(MemoryInner {
                state: Mutex::default(),
                last: watch::Sender::new(0),
                health: watch::Sender::new(LogHealth::Good),
                metrics: Metrics::default(),
            }),
        }
    }

    /// Begins a new run at this seq, as a log does when it is opened again.
    pub fn begin_run_at(&self, next: Seq) {
        let mut state = self.inner.state();
        let after = state.last;
        state.gaps.add(Gap { after, next, lost: None });
    }

    /// Makes every append fail with this error from now on, or succeed again with `None`, to test the callers.
    pub fn refuse(&self, error: Option<AppendError>) {
        let health = match &error {
            None => LogHealth::Good,
            Some(AppendError::Full) => LogHealth::Full,
            Some(AppendError::Fenced) => LogHealth::Fenced,
            Some(other) => LogHealth::Failed { reason: other.to_string() },
        };
        self.inner.state().refuse = error;
        self.inner.health.send_replace(health);
    }
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryInner {
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        lock(&self.state)
    }
}

/// An answer that is there already.
fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Log for MemoryLog {
    fn append(&self, batch: Batch) -> BoxFuture<'_, Result<Vec<Seq>, AppendError>> {
        let mut state = self.inner.state();
        let seqs = state.append(batch);
        self.inner.last.send_replace(state.last);
        ready(seqs)
    }

    fn tail(&self, after: Seq, channels: Channels) -> Box<dyn Tail> {
        Box::new(MemoryTail { inner: self.inner.clone(), after, channels, last: self.inner.last.subscribe() })
    }

    fn read<'a>(
        &'a self,
        channel: &'a str,
        range: Range<Seq>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Vec<Entry>, ReadError>> {
        let after = range.start.saturating_sub(1);
        let page = self.inner.state().page(after, &Channels::only([channel]), max_bytes);
        ready(page.map(|(mut page, _)| {
            page.retain(|entry| entry.seq < range.end);
            page
        }))
    }

    fn bounds(&self) -> BoxFuture<'_, Result<Bounds, ReadError>> {
        let state = self.inner.state();
        let trimmed = state.channels.values().map(|channel| channel.trimmed).max().unwrap_or(0);
        ready(Ok(Bounds { first: trimmed + 1, last: state.last }))
    }

    fn lag(&self, after: Seq) -> Option<u64> {
        let state = self.inner.state();
        state.gaps.lag(after, state.last)
    }

    fn channels<'a>(&'a self, session: Option<&'a str>) -> BoxFuture<'a, Result<Vec<ChannelInfo>, ReadError>> {
        let state = self.inner.state();
        let of = |channel: &MemoryChannel| session.is_none() || channel.session.as_deref() == session;
        let infos = state.channels.iter().filter(|(_, channel)| of(channel)).map(|(uri, channel)| ChannelInfo {
            channel: uri.clone(),
            session: channel.session.clone(),
            first: channel.trimmed + 1,
            last: channel.last,
            snapshot: channel.snapshot.as_ref().map(|snapshot| snapshot.seq),
        });
        ready(Ok(infos.collect()))
    }

    fn save(&self, save: Save) -> BoxFuture<'_, Result<(), WriteError>> {
        ready(self.inner.state().save(save))
    }

    fn snapshot<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Option<Snapshot>, ReadError>> {
        ready(Ok(self.inner.state().channels.get(channel).and_then(|channel| channel.snapshot.clone())))
    }

    fn rows<'a>(
        &'a self,
        channel: &'a str,
        range: Range<u64>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Rows, ReadError>> {
        let state = self.inner.state();
        let Some(channel) = state.channels.get(channel) else { return ready(Ok(Rows::default())) };
        let rows = channel.rows.iter().filter(|(index, _)| range.contains(index));
        let rows = fill(rows.map(|(index, body)| (*index, body.clone())), max_bytes);
        ready(Ok(Rows { rows, total: channel.rows.last_key_value().map_or(0, |(index, _)| index + 1) }))
    }

    fn row_bytes<'a>(
        &'a self,
        channel: &'a str,
        index: u64,
        range: Range<usize>,
    ) -> BoxFuture<'a, Result<Option<bytes::Bytes>, ReadError>> {
        let state = self.inner.state();
        let row = state.channels.get(channel).and_then(|channel| channel.rows.get(&index));
        ready(Ok(row.map(|row| row.slice(range.start.min(row.len())..range.end.min(row.len())))))
    }

    fn trim<'a>(&'a self, channel: &'a str, before: Seq) -> BoxFuture<'a, Result<u64, WriteError>> {
        ready(self.inner.state().trim(channel, before))
    }

    fn retain(&self, policy: RetentionPolicy) -> BoxFuture<'_, Result<u64, WriteError>> {
        ready(self.inner.state().retain(policy))
    }

    fn erase<'a>(&'a self, session: &'a str) -> BoxFuture<'a, Result<u64, WriteError>> {
        ready(Ok(self.inner.state().erase(session)))
    }

    fn verify(&self) -> BoxFuture<'_, Result<Report, ReadError>> {
        let state = self.inner.state();
        let rows = state.channels.values().flat_map(|channel| channel.rows.values());
        let snapshots =
            state.channels.values().filter_map(|channel| channel.snapshot.as_ref()).map(|saved| &saved.body);
        let entries = state.entries.values().map(|(entry, _)| &entry.body);
        let bytes = rows.clone().chain(snapshots.clone()).chain(entries).map(|body| body.len() as u64).sum();
        let (rows, snapshots) = (rows.count() as u64, snapshots.count() as u64);
        ready(Ok(Report { entries: state.entries.len() as u64, rows, snapshots, bytes, ..Report::default() }))
    }

    fn health(&self) -> watch::Receiver<LogHealth> {
        self.inner.health.subscribe()
    }

    fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }
}

struct MemoryTail {
    inner: Arc<MemoryInner>,
    after: Seq,
    channels: Channels,
    last: watch::Receiver<Seq>,
}

impl MemoryTail {
    fn pull(&mut self, max_bytes: usize) -> Result<Vec<Entry>, ReadError> {
        let (page, position) = self.inner.state().page(self.after, &self.channels, max_bytes)?;
        self.after = position;
        Ok(page)
    }
}

impl Tail for MemoryTail {
    fn next(&mut self, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, ReadError>> {
        Box::pin(async move {
            loop {
                self.last.mark_unchanged();
                let page = self.pull(max_bytes)?;
                if !page.is_empty() {
                    return Ok(page);
                }
                // The sender is in `inner`, which we hold.
                drop(self.last.changed().await);
            }
        })
    }

    fn ready(&mut self, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, ReadError>> {
        ready(self.pull(max_bytes))
    }

    fn position(&self) -> Seq {
        self.after
    }

    fn seek(&mut self, after: Seq) {
        self.after = after;
    }

    fn follow(&mut self, channels: Channels) {
        self.channels = channels;
    }
}
