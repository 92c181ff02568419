//! Follows the log, and delivers its entries to the tasks of their chats, in order.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, warn};

use super::RunnerContext;
use super::entry_class::{EntryClass, classify};
use super::task_registry::TaskRegistry;
use crate::host::workspace::TEMPORARY_CHANNELS;
use crate::log::{Channels, Entry, ReadError, Seq};

/// How many bytes are read from the log at once.
const PAGE_BYTES: usize = 1 << 20;

/// How long to wait before the log is read again after a failure.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Follows the log after this seq until the log is closed.
pub(super) async fn follow(context: Arc<RunnerContext>, after: Seq) {
    let mut tail = context.log_writer.log().tail(after, Channels::Except(TEMPORARY_CHANNELS));
    loop {
        match tail.next(PAGE_BYTES).await {
            Ok(page) => page.into_iter().for_each(|entry| deliver(&context, entry)),
            Err(ReadError::Closed) => return,
            Err(ReadError::Damaged(record)) if let Some(end) = record.end() => {
                error!(%record, "a record of the log is damaged: an agent may miss a message of a client");
                tail.seek(end);
            }
            Err(ReadError::Trimmed { first }) => {
                warn!(first, "the log dropped entries before agents were told of them");
                tail.seek(first.saturating_sub(1));
            }
            Err(error) => {
                warn!(%error, "the log cannot be followed now");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

fn deliver(context: &Arc<RunnerContext>, entry: Entry) {
    match classify(&entry) {
        EntryClass::TurnStarted | EntryClass::ClientAction => TaskRegistry::deliver(context, entry),
        EntryClass::ConfigChanged | EntryClass::SessionStopped => context.tasks.announce(&entry),
        EntryClass::ChannelEdge => context.tasks.reset_closed(&entry.channel),
        EntryClass::Irrelevant => {}
    }
}
