//! A tail: reads from memory while it is near the end of the log, else from the store.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::watch;

use super::window::{Window, WindowLookup};
use super::{BoxFuture, Channels, Entry, Metrics, ReadError, Seq, Tail};

/// What a tail reads.
pub(super) trait TailSource: Send + Sync + 'static {
    /// The seq of the last entry that readers see.
    fn last(&self) -> watch::Receiver<Seq>;

    /// Looks at the newest entries.
    fn window<T>(&self, look: impl FnOnce(&Window) -> T) -> T;

    /// Reads older entries after a position, up to `last`: as many as fit `max_bytes`, and the position after them.
    fn page<'a>(
        self: &'a Arc<Self>,
        after: Seq,
        last: Seq,
        channels: &'a Channels,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<(Vec<Entry>, Seq), ReadError>>;

    fn metrics(&self) -> &Metrics;
}

/// A position in a log that has a window.
pub(super) struct WindowTail<S> {
    source: Arc<S>,
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

impl<S: TailSource> WindowTail<S> {
    pub(super) fn new(source: Arc<S>, after: Seq, channels: Channels) -> Self {
        Self { last: source.last(), source, after, channels }
    }

    async fn pull(&mut self, max_bytes: usize, at_end: AtEnd) -> Result<Vec<Entry>, ReadError> {
        loop {
            let last = *self.last.borrow_and_update();
            let (page, position) = match self.look(max_bytes)? {
                WindowLookup::Page(page, position) => (page, position),
                WindowLookup::Behind => self.read(last, max_bytes).await?,
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

    fn look(&self, max_bytes: usize) -> Result<WindowLookup, ReadError> {
        let found = self.source.window(|window| {
            window.check(self.after, &self.channels)?;
            Ok(window.page(self.after, &self.channels, max_bytes))
        });
        if matches!(&found, Ok(WindowLookup::Page(page, _)) if !page.is_empty()) {
            self.source.metrics().pages_shared.fetch_add(1, Relaxed);
        }
        found
    }

    async fn read(&self, last: Seq, max_bytes: usize) -> Result<(Vec<Entry>, Seq), ReadError> {
        let page = self.source.page(self.after, last, &self.channels, max_bytes).await;
        self.source.metrics().pages_read.fetch_add(1, Relaxed);
        // If entries were trimmed meanwhile, the page may lack them.
        self.source.window(|window| window.check(self.after, &self.channels))?;
        page
    }
}

impl<S: TailSource> Tail for WindowTail<S> {
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
