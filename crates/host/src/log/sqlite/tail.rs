//! A tail: reads from memory while it is near the end of the log, else from the file.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::watch;

use super::super::{BoxFuture, Channels, Entry, ReadError, Seq, Tail};
use super::SqliteInner;
use super::reader::ChannelFilter;
use super::recent::RecentLookup;

pub(super) struct SqliteTail {
    shared: Arc<SqliteInner>,
    last: watch::Receiver<Seq>,
    after: Seq,
    channels: Channels,
}

/// What a read does at the end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    /// Waits for an entry.
    Wait,
    /// Returns without entries.
    Return,
}

impl SqliteTail {
    pub(super) fn new(shared: Arc<SqliteInner>, after: Seq, channels: Channels) -> Self {
        Self { last: shared.last.subscribe(), shared, after, channels }
    }

    async fn pull(&mut self, max_bytes: usize, at_end: AtEnd) -> Result<Vec<Entry>, ReadError> {
        loop {
            let last = *self.last.borrow_and_update();
            let (page, position) = match self.look(max_bytes)? {
                RecentLookup::Page(page, position) => (page, position),
                RecentLookup::Behind => self.read(last, max_bytes).await?,
            };
            let moved = position > self.after;
            self.after = position;
            if !page.is_empty() || !moved && at_end == AtEnd::Return {
                return Ok(page);
            }
            if !moved && self.last.changed().await.is_err() {
                return Err(ReadError::Closed);
            }
        }
    }

    fn look(&self, max_bytes: usize) -> Result<RecentLookup, ReadError> {
        let recent = self.shared.recent();
        recent.check(self.after, &self.channels)?;
        let found = recent.page(self.after, &self.channels, max_bytes);
        if matches!(&found, RecentLookup::Page(page, _) if !page.is_empty()) {
            self.shared.metrics.pages_shared.fetch_add(1, Relaxed);
        }
        Ok(found)
    }

    async fn read(&self, last: Seq, max_bytes: usize) -> Result<(Vec<Entry>, Seq), ReadError> {
        let (shared, channels, after) = (self.shared.clone(), self.channels.clone(), self.after);
        let names = self.shared.clone();
        let name = move |id| match names.recent().channel(id) {
            Some(uri) if channels.contains(&uri) => ChannelFilter::Yes(uri),
            Some(_) => ChannelFilter::No,
            None => ChannelFilter::Unknown,
        };
        let page = shared.readers.run(move |reader| reader.page((after, last), max_bytes, name)).await;
        shared.metrics.pages_read.fetch_add(1, Relaxed);
        // If entries were trimmed meanwhile, the page may lack them.
        self.shared.recent().check(self.after, &self.channels)?;
        page
    }
}

impl Tail for SqliteTail {
    fn next(&mut self, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, ReadError>> {
        Box::pin(self.pull(max_bytes, AtEnd::Wait))
    }

    fn ready(&mut self, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, ReadError>> {
        Box::pin(self.pull(max_bytes, AtEnd::Return))
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
