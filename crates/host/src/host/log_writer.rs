//! The log writer: everything that the host does becomes entries of the log here.
//!
//! # Appends that depend on the state
//!
//! An action is checked against the state at a seq, and is valid only if nothing else was appended to that channel since.
//! So a [`Transaction`] can name the seq that it expects a channel to end with, and the log refuses it if that is not so
//! (optimistic concurrency). [`LogWriter::transact`] then reads the state again and retries. On a busy channel somebody
//! else may always be faster, so after [`OPTIMISTIC_ATTEMPTS`] the writer locks the contested channels against everybody
//! else for one attempt. All locks are taken in the order of channel names, so no two writers wait for each other.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::errors::json_rpc_error_codes::INTERNAL_ERROR;
use ahp_types::state::{ChatState, SessionState, SnapshotState};
use bytes::Bytes;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tracing::{error, warn};

use super::channel_sessions::ChannelSessions;
use super::dispatch::no_channel;
use crate::action_sink::ActionSink;
use crate::agent::part_of;
use crate::endpoint::ClientInfo;
use crate::error::MethodError;
use crate::lock::lock;
use crate::log::{AppendError, Batch, BoxFuture, Log, NewEntry, Seq};
use crate::state::entry::{self, CatalogueNotification};
use crate::state::{State, StateError};

/// How often a batch is appended whose outcome the log does not know, and how long the first wait in between is. The waits
/// double; together they are longer than a log takes to open its store again.
const APPEND_ATTEMPTS: u32 = 8;
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// How many conflicts a transaction may meet before it locks the contested channels.
const OPTIMISTIC_ATTEMPTS: u32 = 3;

/// How often a transaction is attempted at all.
const TRANSACTION_ATTEMPTS: u32 = 10;

/// Appends to the log in the host's name, and reads the state that follows from it.
pub(crate) struct LogWriter {
    log: Arc<dyn Log>,
    state: Arc<State>,
    channel_locks: ChannelLocks,
    channel_sessions: ChannelSessions,
}

impl LogWriter {
    pub(crate) fn new(log: Arc<dyn Log>, state: Arc<State>) -> Self {
        Self { log, state, channel_locks: ChannelLocks::default(), channel_sessions: ChannelSessions::default() }
    }

    pub(crate) const fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    pub(crate) const fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Appends a transaction: all of it or nothing. While the log does not know whether it was appended, this retries.
    /// A full store is an error at once: it stays full for longer than a client waits, and callers that can wait retry
    /// themselves.
    pub(crate) async fn append(&self, transaction: Transaction) -> Result<Vec<Seq>, AppendError> {
        let _shared = self.channel_locks.share(transaction.channels()).await;
        self.append_locked(transaction).await
    }

    /// As [`append`](Self::append), for a caller that holds the locks of the channels.
    async fn append_locked(&self, transaction: Transaction) -> Result<Vec<Seq>, AppendError> {
        let mut wait = FIRST_WAIT;
        for _ in 1..APPEND_ATTEMPTS {
            match self.log.append(transaction.0.clone()).await {
                Err(AppendError::Unknown) => tokio::time::sleep(wait).await,
                done => return done,
            }
            wait = wait.saturating_mul(2);
        }
        self.log.append(transaction.0).await
    }

    /// As [`append`](Self::append), and waits until the state has applied it.
    pub(crate) async fn append_and_apply(&self, transaction: Transaction) -> Result<Vec<Seq>, MethodError> {
        let channels = transaction.channels();
        let seqs = self.append(transaction).await.map_err(append_error)?;
        self.applied(&channels, seqs.last().copied().unwrap_or(0)).await?;
        Ok(seqs)
    }

    /// Builds a transaction from the state and appends it. If the log reports a conflict, `make` builds it again from the
    /// newer state. Waits until the state has applied it. `refuse` names every other error of the log.
    pub(crate) async fn transact<F, E>(
        &self,
        make: impl Fn() -> F,
        refuse: impl Fn(AppendError) -> E,
    ) -> Result<Vec<Seq>, E>
    where
        F: Future<Output = Result<Transaction, E>>,
        E: From<MethodError>,
    {
        // A client may have seen more than the state has applied. What it does about that must not be refused.
        self.state.catch_up().await.map_err(MethodError::from)?;
        let (channels, seqs) = self.append_made(make, refuse).await?;
        self.applied(&channels, seqs.last().copied().unwrap_or(0)).await?;
        Ok(seqs)
    }

    /// As [`transact`](Self::transact), for a `make` that reads these channels only: the state has to catch up on them
    /// alone, and this does not wait until the state has applied the transaction.
    pub(crate) async fn transact_on<F, E>(
        &self,
        channels: &[&str],
        make: impl Fn() -> F,
        refuse: impl Fn(AppendError) -> E,
    ) -> Result<Vec<Seq>, E>
    where
        F: Future<Output = Result<Transaction, E>>,
        E: From<MethodError>,
    {
        let last = self.log.bounds().await.map_err(|error| MethodError::from(StateError::from(error)))?.last;
        for channel in channels {
            self.state.reached_on(channel, last).await.map_err(MethodError::from)?;
        }
        Ok(self.append_made(make, refuse).await?.1)
    }

    /// Appends what `make` builds; returns its channels and seqs.
    async fn append_made<F, E>(
        &self,
        make: impl Fn() -> F,
        refuse: impl Fn(AppendError) -> E,
    ) -> Result<(BTreeSet<Arc<str>>, Vec<Seq>), E>
    where
        F: Future<Output = Result<Transaction, E>>,
        E: From<MethodError>,
    {
        let mut contested = BTreeSet::new();
        for attempt in 0..TRANSACTION_ATTEMPTS {
            let exclusive = match attempt {
                ..OPTIMISTIC_ATTEMPTS => None,
                _ => Some(self.channel_locks.lock(&contested).await),
            };
            if exclusive.is_some() {
                let last = self.log.bounds().await.map_err(|error| MethodError::from(StateError::from(error)))?.last;
                self.applied(&contested, last).await?;
            }
            let transaction = make().await?;
            let channels = transaction.channels();
            let appended = match exclusive {
                None => self.append(transaction).await,
                Some(_) => self.append_locked(transaction).await,
            };
            match appended {
                Err(AppendError::Conflict { channel, last, .. }) => {
                    self.applied([&channel], last).await?;
                    contested.insert(channel);
                }
                Err(error) => return Err(refuse(error)),
                Ok(seqs) => return Ok((channels, seqs)),
            }
        }
        Err(MethodError::new(INTERNAL_ERROR, "too many others change the same channel: try again").into())
    }

    /// Removes all entries of a closed channel from the log.
    pub(crate) async fn erase(&self, channel: &str) -> Result<u64, MethodError> {
        self.state.catch_up().await?;
        self.state.forget_channel(channel).await;
        let erased = self.log.erase(channel).await.map_err(StateError::from)?;
        // Somebody may have loaded it in between.
        self.state.forget_channel(channel).await;
        Ok(erased)
    }

    /// Waits until the state has applied these channels up to a seq.
    async fn applied(&self, channels: impl IntoIterator<Item = &Arc<str>>, seq: Seq) -> Result<(), MethodError> {
        for channel in channels {
            self.state.reached_on(channel, seq).await?;
        }
        Ok(())
    }

    /// The session that a channel belongs to, or is.
    pub(crate) async fn session_of(&self, channel: &str) -> Result<Option<Arc<str>>, StateError> {
        Ok(self.channel_sessions.find(&*self.log, channel).await?)
    }

    /// Whether there is such a channel.
    pub(crate) async fn has(&self, channel: &str) -> Result<bool, StateError> {
        match self.read(channel, |_, _| ()).await {
            Ok(()) | Err(StateError::Damaged(_)) => Ok(true),
            Err(StateError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads a channel's state; see [`State::read`].
    pub(crate) async fn read<T>(
        &self,
        channel: &str,
        read: impl FnOnce(&SnapshotState, Seq) -> T,
    ) -> Result<T, StateError> {
        self.state.read(channel, read).await
    }

    /// Reads a session's state; `None` if there is no session of this name.
    pub(crate) async fn session<T>(
        &self,
        session: &str,
        read: impl FnOnce(&SessionState, Seq) -> T,
    ) -> Result<Option<T>, StateError> {
        let read = |state: &SnapshotState, seq| match state {
            SnapshotState::Session(session) => Some(read(session, seq)),
            _ => None,
        };
        or_none(self.read(session, read).await)
    }

    /// Reads a chat's state, without its completed turns; `None` if there is no chat of this name.
    pub(crate) async fn chat<T>(
        &self,
        chat: &str,
        read: impl FnOnce(&ChatState, Seq) -> T,
    ) -> Result<Option<T>, StateError> {
        let read = |state: &SnapshotState, seq| match state {
            SnapshotState::Chat(chat) => Some(read(chat, seq)),
            _ => None,
        };
        or_none(self.read(chat, read).await)
    }
}

/// Locks by channel. Read-locked by every append; write-locked when one must win.
#[derive(Default)]
struct ChannelLocks(Mutex<HashMap<Arc<str>, Arc<RwLock<()>>>>);

/// With more locks than this, those that nobody holds are removed.
const MAX_IDLE_LOCKS: usize = 256;

impl ChannelLocks {
    /// Read-locks these channels, in the order of their names.
    async fn share(&self, channels: BTreeSet<Arc<str>>) -> Vec<OwnedRwLockReadGuard<()>> {
        let mut guards = Vec::with_capacity(channels.len());
        for channel in &channels {
            guards.push(self.of(channel).read_owned().await);
        }
        guards
    }

    /// Write-locks these channels, in the order of their names.
    async fn lock(&self, channels: &BTreeSet<Arc<str>>) -> Vec<OwnedRwLockWriteGuard<()>> {
        let mut guards = Vec::with_capacity(channels.len());
        for channel in channels {
            guards.push(self.of(channel).write_owned().await);
        }
        guards
    }

    fn of(&self, channel: &Arc<str>) -> Arc<RwLock<()>> {
        let mut locks = lock(&self.0);
        if locks.len() > MAX_IDLE_LOCKS {
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        locks.entry(Arc::clone(channel)).or_default().clone()
    }
}

fn or_none<T>(read: Result<Option<T>, StateError>) -> Result<Option<T>, StateError> {
    match read {
        Err(StateError::NotFound) => Ok(None),
        read => read,
    }
}

impl ActionSink for LogWriter {
    fn append_actions<'a>(
        &'a self,
        actions: Vec<(String, StateAction)>,
    ) -> BoxFuture<'a, Result<Vec<Seq>, AppendError>> {
        let add = |transaction: Transaction, (channel, action)| transaction.action::<String>(channel, &action);
        Box::pin(self.append(actions.into_iter().fold(Transaction::new(), add)))
    }

    fn trim<'a>(&'a self, channel: &'a str, upto: Seq) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let saved = async {
                self.state.reached(upto).await?;
                self.state.save(channel).await
            };
            // Entries are trimmed only after a snapshot that contains them is saved, so the state never misses one.
            let trimmed = match saved.await {
                Ok(()) => self.log.trim(channel, upto.saturating_add(1)).await.map(drop).map_err(StateError::from),
                Err(error) => Err(error),
            };
            if let Err(error) = trimmed {
                warn!(%error, "old entries of a channel could not be trimmed and stay in the log");
            }
        })
    }
}

/// The answer to a client whose request the log did not take.
pub(crate) fn append_error(error: AppendError) -> MethodError {
    match error {
        AppendError::Full => MethodError::log_full(),
        AppendError::NotOpen(channel) => no_channel(&channel),
        error => MethodError::new(INTERNAL_ERROR, format!("the host could not write its log: {error}")),
    }
}

/// Entries that are appended together or not at all. A clone has the same id: appended twice, it is in the log once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transaction(Batch);

impl Transaction {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds an action of the host. The log may merge deltas of one part.
    pub(crate) fn action<C: Into<Arc<str>>>(self, channel: C, action: &StateAction) -> Self {
        let channel = channel.into();
        let entry = NewEntry::new(Arc::clone(&channel), body(entry::action(&channel, action, None)));
        self.push(match part_of(action) {
            Some(part) => entry.part(part),
            None => entry,
        })
    }

    /// Names the client that it comes from: the log serves clients in turns.
    pub(crate) fn by(mut self, client: &ClientInfo) -> Self {
        let principal = client.principal.as_deref().unwrap_or_default();
        self.0 = self.0.from_source(format!("client:{}:{principal}:{}", principal.len(), client.id));
        self
    }

    /// As [`by`](Self::by), for a client of another protocol.
    pub(crate) fn by_client(mut self, principal: Option<&str>, client: &str) -> Self {
        let principal = principal.unwrap_or_default();
        self.0 = self.0.from_source(format!("client:{}:{principal}:{client}", principal.len()));
        self
    }

    /// Adds a record of the host to a channel of a session that clients cannot subscribe to. Opens the channel if need be.
    pub(crate) fn record(mut self, channel: &str, session: &str, body: Bytes) -> Self {
        self.0 = self.0.open(channel, Some(session));
        self.push(NewEntry::new(channel, body))
    }

    /// The channels that it has entries for.
    fn channels(&self) -> BTreeSet<Arc<str>> {
        self.0.entries.iter().map(|entry| Arc::clone(&entry.channel)).collect()
    }

    /// The last seq on a channel, of those that the log gave the entries.
    pub(crate) fn last_on(&self, channel: &str, seqs: &[Seq]) -> Option<Seq> {
        let mut entries = self.0.entries.iter().zip(seqs).rev();
        entries.find(|(entry, _)| *entry.channel == *channel).map(|(_, seq)| *seq)
    }

    /// Adds an action of a client.
    pub(crate) fn dispatched(self, channel: &str, action: &StateAction, origin: &ActionOrigin) -> Self {
        self.push(NewEntry::new(channel, body(entry::action(channel, action, Some(origin)))))
    }

    /// Opens a channel with its first state. It belongs to a session, or to the host itself.
    pub(crate) fn open(mut self, channel: &str, session: Option<&str>, state: &SnapshotState) -> Self {
        self.0 = self.0.open(channel, session);
        self.push(NewEntry::new(channel, body(entry::initial(channel, state))))
    }

    /// Closes a channel: it is not found until it is opened again.
    pub(crate) fn close(self, channel: &str) -> Self {
        self.push(NewEntry::new(channel, body(entry::closed(channel))))
    }

    /// Records that a side chat knows this chat up to a turn, as it is now; with `None`, that it knows it no longer.
    pub(crate) fn side_chat(self, chat: &str, side: &str, turn: Option<&str>) -> Self {
        self.push(NewEntry::new(chat, body(entry::side_chat(chat, side, turn))))
    }

    /// Opens a channel of the host itself if it is not open yet, without an entry.
    pub(crate) fn ensure_open(mut self, channel: &str) -> Self {
        self.0 = self.0.open(channel, None);
        self
    }

    /// Adds a change of the catalogue, which is about a session.
    pub(crate) fn notice(self, session: &str, notice: &CatalogueNotification) -> Self {
        self.push(NewEntry::new(ROOT_RESOURCE_URI, body(entry::catalogue(notice))).about(session))
    }

    /// Makes the append fail if the channel does not end with this seq any more.
    pub(crate) fn expect(mut self, channel: &str, seq: Seq) -> Self {
        self.0 = self.0.expect(channel, seq);
        self
    }

    fn push(mut self, entry: NewEntry) -> Self {
        self.0 = self.0.push(entry);
        self
    }
}

/// Every type of the protocol can be written as JSON. If one ever cannot, the entry is an empty object.
fn body(written: serde_json::Result<Bytes>) -> Bytes {
    written.unwrap_or_else(|cause| {
        error!("an entry cannot be written as JSON: {cause}");
        Bytes::from_static(b"{}")
    })
}
