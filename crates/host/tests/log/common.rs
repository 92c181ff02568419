//! What the log's tests share.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Bytes, Channels, Entry, Log, LogHealth, ReadError, Seq};

pub(crate) const CHAT: &str = "ahp-chat:/1";
pub(crate) const SESSION: &str = "ahp-session:/1";

/// A log in a directory that goes with it, small in every way: also in its seqs, which begin with 1.
pub(crate) fn small() -> Options {
    let mut options = Options::default();
    options.wal_bytes = 256 << 10;
    options.faults().clock.store(1, Relaxed);
    options
}

pub(crate) async fn open(dir: &tempfile::TempDir) -> SqliteLog {
    SqliteLog::open(dir.path(), small()).await.unwrap()
}

/// A batch that opens the chat.
pub(crate) fn chat() -> Batch {
    Batch::new().open(CHAT, Some(SESSION))
}

/// A body of some length that says who it is.
pub(crate) fn body(n: u64, len: usize) -> String {
    format!(r#"{{"n":{n},"text":"{}"}}"#, "x".repeat(len))
}

/// All that can be followed from a position, page by page.
pub(crate) async fn all(log: &dyn Log, after: Seq, channels: Channels) -> Result<Vec<Entry>, ReadError> {
    let (mut tail, mut entries) = (log.tail(after, channels), Vec::new());
    loop {
        let page = tail.ready(1_000).await?;
        if page.is_empty() {
            return Ok(entries);
        }
        entries.extend(page);
    }
}

/// Seqs and bodies of all that can be followed.
pub(crate) async fn texts(log: &dyn Log) -> Vec<(Seq, Bytes)> {
    let entries = all(log, 0, Channels::All).await.unwrap();
    entries.into_iter().map(|entry| (entry.seq, entry.body)).collect()
}

/// Appends this many entries at once.
pub(crate) async fn fill(log: &SqliteLog, channel: &str, count: u64, len: usize) -> Vec<Seq> {
    let mut batch = Batch::new().open(channel, Some(SESSION));
    for n in 0..count {
        batch = batch.entry(channel, body(n, len));
    }
    log.append(batch).await.unwrap()
}

pub(crate) async fn until(log: &SqliteLog, what: impl FnMut(&LogHealth) -> bool) -> LogHealth {
    let mut health = log.health();
    let seen = tokio::time::timeout(Duration::from_secs(20), health.wait_for(what)).await;
    seen.expect("in time").unwrap().clone()
}

pub(crate) fn arc(text: &str) -> Arc<str> {
    text.into()
}

/// Runs futures together, polled in their order.
pub(crate) async fn join<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.into_iter().map(|future| (Some(future), None)).collect();
    std::future::poll_fn(move |context| {
        let mut pending = false;
        for (future, output) in &mut waiting {
            if let Some(running) = future {
                match std::pin::Pin::new(running).poll(context) {
                    std::task::Poll::Ready(value) => (*future, *output) = (None, Some(value)),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        match pending {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(waiting.iter_mut().filter_map(|(_, output)| output.take()).collect()),
        }
    })
    .await
}
