//! Reads the entries of one session from the log: those of the session, of its main chat, and of the chats of sub-agents.

use std::collections::HashSet;
use std::sync::Arc;

use ahp_types::actions::StateAction;
use ahp_types::state::ChatOrigin;
use breakbulk_lifecycle::projection::{Change, Entry};

use crate::log::{self, Channels, Log, ReadError, Seq, Tail};
use crate::long_work::long_work;
use crate::state::entry::projected;

/// How much is read of a sub-agent's chat that began before the session said so: its first state, and its prompt.
const FIRST_BYTES: usize = 64 << 10;

/// The channels that belong to a session as v2 shows it.
#[derive(Debug, Clone)]
pub(super) struct SessionChannels {
    pub(super) session: Arc<str>,
    /// The main chat.
    pub(super) chat: Arc<str>,
    /// The chats of sub-agents.
    pub(super) workers: HashSet<Arc<str>>,
}

impl SessionChannels {
    /// The channels that the log has now.
    pub(super) async fn find(log: &dyn Log, session: Arc<str>, chat: Arc<str>) -> Result<Self, ReadError> {
        // As the host names them: see `breakbulk_lifecycle::projection::worker_chat`.
        let begin = format!("{chat}.");
        let all = log.channels(Some(&session)).await?.into_iter().map(|info| info.channel);
        let workers = all.filter(|channel| channel.starts_with(&begin)).collect();
        Ok(Self { session, chat, workers })
    }

    fn all(&self) -> Channels {
        Channels::only(self.workers.iter().chain([&self.session, &self.chat]).cloned())
    }
}

/// A position in the log that moves forward through the entries of a session.
pub(super) struct SessionReader {
    log: Arc<dyn Log>,
    tail: Box<dyn Tail>,
    channels: SessionChannels,
}

/// Whether a read waits until there is something to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// It waits.
    ForEntries,
    /// It returns nothing at the end of the log.
    Never,
}

impl SessionReader {
    /// Reads what comes after this seq.
    pub(super) fn new(log: &Arc<dyn Log>, channels: SessionChannels, after: Seq) -> Self {
        Self { log: Arc::clone(log), tail: log.tail(after, channels.all()), channels }
    }

    /// Everything up to here was returned or skipped.
    pub(super) fn position(&self) -> Seq {
        self.tail.position()
    }

    /// The next entries, in order. Those that change no state are left out, so a page may be empty although there is more.
    pub(super) async fn next(&mut self, max_bytes: usize, wait: Wait) -> Result<EntryPage, ReadError> {
        let read = match wait {
            Wait::ForEntries => self.tail.next(max_bytes).await,
            Wait::Never => self.tail.ready(max_bytes).await,
        };
        let page = match read {
            Err(ReadError::Damaged(record)) if let Some(end) = record.end() => {
                self.tail.seek(end);
                return Ok(EntryPage { entries: Vec::new(), is_end: false });
            }
            page => page?,
        };
        let is_end = page.is_empty();
        let mut entries = Vec::with_capacity(page.len());
        for raw in page {
            let Some(entry) = parsed(&raw) else { continue };
            let worker = new_worker(&entry).filter(|worker| !self.channels.workers.contains(worker));
            let Some(worker) = worker else {
                entries.push(entry);
                continue;
            };
            // The chat begins a moment before the session says so. What it did until then tells a client nothing.
            let first = self.log.read(&worker, 1..raw.seq, FIRST_BYTES).await?;
            entries.extend(first.iter().filter_map(parsed));
            entries.push(entry);
            self.channels.workers.insert(worker);
            self.tail.follow(self.channels.all());
            // The rest of the page lacks the entries of this chat.
            self.tail.seek(raw.seq);
            break;
        }
        Ok(EntryPage { entries, is_end })
    }
}

/// What a reader has found.
pub(super) struct EntryPage {
    pub(super) entries: Vec<Entry>,
    /// Whether the reader had caught up with the log.
    pub(super) is_end: bool,
}

fn parsed(entry: &log::Entry) -> Option<Entry> {
    long_work(entry.body.len(), || projected(entry))
}

/// The chat of a sub-agent, if it begins with this entry of the session.
fn new_worker(entry: &Entry) -> Option<Arc<str>> {
    let Change::Action(action) = &entry.change else { return None };
    let StateAction::SessionChatAdded(action) = &**action else { return None };
    let is_worker = matches!(action.summary.origin, Some(ChatOrigin::Tool { .. }));
    is_worker.then(|| Arc::from(action.summary.resource.as_str()))
}
