//! The desk: where everything that the host does becomes entries of the log.

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

use super::dispatch::no_channel;
use super::homes::Homes;
use crate::act::Act;
use crate::agent::part_of;
use crate::endpoint::ClientInfo;
use crate::error::MethodError;
use crate::lock::lock;
use crate::log::{AppendError, Batch, BoxFuture, Log, NewEntry, Seq};
use crate::state::entry::{self, CatalogueNotification};
use crate::state::{State, StateError};

/// How often a batch whose fate is not known is put to the log again, and how long it waits in between. Together longer
/// than a log takes to open its store anew.
const TRIES: u32 = 8;
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// How often somebody else may be faster before all others wait for a moment; and how often at all.
const HASTY: u32 = 3;
const MOST_TRIES: u32 = 10;

/// The log and what is known of it, for all who act in the host's name.
pub(crate) struct Desk {
    log: Arc<dyn Log>,
    state: Arc<State>,
    channels: ChannelLocks,
    homes: Homes,
}

impl Desk {
    pub(crate) fn new(log: Arc<dyn Log>, state: Arc<State>) -> Self {
        Self { log, state, channels: ChannelLocks::default(), homes: Homes::default() }
    }

    pub(crate) const fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    pub(crate) const fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Puts a sheet into the log: all of it or nothing. Where its fate is not known, it is tried again for a while. A full
    /// store is said at once: it stays full for longer than a client waits, and who can wait for it does so itself.
    pub(crate) async fn put(&self, sheet: Sheet) -> Result<Vec<Seq>, AppendError> {
        let _others = self.channels.share(sheet.channels()).await;
        self.append(sheet).await
    }

    async fn append(&self, sheet: Sheet) -> Result<Vec<Seq>, AppendError> {
        let mut wait = FIRST_WAIT;
        for _ in 1..TRIES {
            match self.log.append(sheet.0.clone()).await {
                Err(AppendError::Unknown) => tokio::time::sleep(wait).await,
                done => return done,
            }
            wait = wait.saturating_mul(2);
        }
        self.log.append(sheet.0).await
    }

    /// As [`put`](Self::put), and waits until the state has it too.
    pub(crate) async fn put_seen(&self, sheet: Sheet) -> Result<Vec<Seq>, MethodError> {
        let channels = sheet.channels();
        let seqs = self.put(sheet).await.map_err(not_kept)?;
        self.reached(&channels, seqs.last().copied().unwrap_or(0)).await?;
        Ok(seqs)
    }

    /// Makes a sheet from what is known and puts it into the log, anew each time that somebody else was faster on a channel
    /// that it expects something of. Waits until the state has it. What the log says else is for `refuse` to name.
    ///
    /// A channel may be so busy that somebody else always is faster. After a few tries nobody is, for a moment.
    pub(crate) async fn decide<F, E>(
        &self,
        make: impl Fn() -> F,
        refuse: impl Fn(AppendError) -> E,
    ) -> Result<Vec<Seq>, E>
    where
        F: Future<Output = Result<Sheet, E>>,
        E: From<MethodError>,
    {
        // A client may have seen more than the state has yet. What it does about that must not be refused.
        self.state.catch_up().await.map_err(MethodError::from)?;
        let (channels, seqs) = self.decide_now(make, refuse).await?;
        self.reached(&channels, seqs.last().copied().unwrap_or(0)).await?;
        Ok(seqs)
    }

    /// As [`decide`](Self::decide), where only these channels are looked at: what others have in the log, and is not in the
    /// state yet, is not waited for. Nor is what is put into the log here.
    pub(crate) async fn decide_on<F, E>(
        &self,
        channels: &[&str],
        make: impl Fn() -> F,
        refuse: impl Fn(AppendError) -> E,
    ) -> Result<Vec<Seq>, E>
    where
        F: Future<Output = Result<Sheet, E>>,
        E: From<MethodError>,
    {
        let last = self.log.bounds().await.map_err(|error| MethodError::from(StateError::from(error)))?.last;
        for channel in channels {
            self.state.reached_on(channel, last).await.map_err(MethodError::from)?;
        }
        Ok(self.decide_now(make, refuse).await?.1)
    }

    /// Puts what `make` gives into the log; says on which channels, and with which seqs.
    async fn decide_now<F, E>(
        &self,
        make: impl Fn() -> F,
        refuse: impl Fn(AppendError) -> E,
    ) -> Result<(BTreeSet<Arc<str>>, Vec<Seq>), E>
    where
        F: Future<Output = Result<Sheet, E>>,
        E: From<MethodError>,
    {
        let mut contested = BTreeSet::new();
        for attempt in 0..MOST_TRIES {
            // Whoever was faster too often waits, on the channels in question.
            let alone = match attempt {
                ..HASTY => None,
                _ => Some(self.channels.lock(&contested).await),
            };
            if alone.is_some() {
                let last = self.log.bounds().await.map_err(|error| MethodError::from(StateError::from(error)))?.last;
                self.reached(&contested, last).await?;
            }
            let sheet = make().await?;
            let channels = sheet.channels();
            let done = if alone.is_none() { self.put(sheet).await } else { self.append(sheet).await };
            match done {
                Err(AppendError::Conflict { channel, last, .. }) => {
                    self.reached([&channel], last).await?;
                    contested.insert(channel);
                }
                Err(error) => return Err(refuse(error)),
                Ok(seqs) => return Ok((channels, seqs)),
            }
        }
        Err(MethodError::new(INTERNAL_ERROR, "too many others change the same channel: try again").into())
    }

    /// Removes a channel that is closed for good, with all that the log has of it.
    pub(crate) async fn erase(&self, channel: &str) -> Result<u64, MethodError> {
        self.state.catch_up().await?;
        self.state.forget_channel(channel).await;
        let gone = self.log.erase(channel).await.map_err(StateError::from)?;
        self.state.forget_channel(channel).await;
        Ok(gone)
    }

    /// Waits until the state has these channels up to a seq.
    async fn reached(&self, channels: impl IntoIterator<Item = &Arc<str>>, seq: Seq) -> Result<(), MethodError> {
        for channel in channels {
            self.state.reached_on(channel, seq).await?;
        }
        Ok(())
    }

    /// The session that a channel belongs to, or is.
    pub(crate) async fn session_of(&self, channel: &str) -> Result<Option<Arc<str>>, StateError> {
        Ok(self.homes.find(&*self.log, channel).await?)
    }

    /// Whether there is such a channel.
    pub(crate) async fn has(&self, channel: &str) -> Result<bool, StateError> {
        match self.look(channel, |_, _| ()).await {
            Ok(()) | Err(StateError::Damaged(_)) => Ok(true),
            Err(StateError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Looks at a channel's state; see [`State::read`].
    pub(crate) async fn look<T>(
        &self,
        channel: &str,
        look: impl FnOnce(&SnapshotState, Seq) -> T,
    ) -> Result<T, StateError> {
        self.state.read(channel, look).await
    }

    /// Looks at a session; `None` if there is none of this name.
    pub(crate) async fn session<T>(
        &self,
        session: &str,
        look: impl FnOnce(&SessionState, Seq) -> T,
    ) -> Result<Option<T>, StateError> {
        let look = |state: &SnapshotState, seq| match state {
            SnapshotState::Session(session) => Some(look(session, seq)),
            _ => None,
        };
        or_none(self.look(session, look).await)
    }

    /// Looks at a chat, without its completed turns; `None` if there is none of this name.
    pub(crate) async fn chat<T>(
        &self,
        chat: &str,
        look: impl FnOnce(&ChatState, Seq) -> T,
    ) -> Result<Option<T>, StateError> {
        let look = |state: &SnapshotState, seq| match state {
            SnapshotState::Chat(chat) => Some(look(chat, seq)),
            _ => None,
        };
        or_none(self.look(chat, look).await)
    }
}

/// Locks by channel. Read-locked by every append; write-locked when one must win.
#[derive(Default)]
struct ChannelLocks(Mutex<HashMap<Arc<str>, Arc<RwLock<()>>>>);

/// How many channels have a lock before those are forgotten that nobody holds.
const MOST_LOCKS: usize = 256;

impl ChannelLocks {
    /// Waits while somebody has one of these channels alone. All take locks in one order, so nobody waits in a circle.
    async fn share(&self, channels: BTreeSet<Arc<str>>) -> Vec<OwnedRwLockReadGuard<()>> {
        let mut held = Vec::with_capacity(channels.len());
        for channel in &channels {
            held.push(self.of(channel).read_owned().await);
        }
        held
    }

    /// Has these channels alone.
    async fn lock(&self, channels: &BTreeSet<Arc<str>>) -> Vec<OwnedRwLockWriteGuard<()>> {
        let mut held = Vec::with_capacity(channels.len());
        for channel in channels {
            held.push(self.of(channel).write_owned().await);
        }
        held
    }

    fn of(&self, channel: &Arc<str>) -> Arc<RwLock<()>> {
        let mut locks = lock(&self.0);
        if locks.len() > MOST_LOCKS {
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        locks.entry(Arc::clone(channel)).or_default().clone()
    }
}

fn or_none<T>(looked: Result<Option<T>, StateError>) -> Result<Option<T>, StateError> {
    match looked {
        Err(StateError::NotFound) => Ok(None),
        looked => looked,
    }
}

impl Act for Desk {
    fn act<'a>(&'a self, actions: Vec<(String, StateAction)>) -> BoxFuture<'a, Result<Vec<Seq>, AppendError>> {
        let sheet = actions.into_iter().fold(Sheet::new(), |sheet, (channel, action)| sheet.action(channel, &action));
        Box::pin(self.put(sheet))
    }

    fn trim<'a>(&'a self, channel: &'a str, upto: Seq) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let saved = async {
                self.state.reached(upto).await?;
                self.state.save(channel).await
            };
            // Only what the state has made something of goes, so the state itself never misses it.
            let trimmed = match saved.await {
                Ok(()) => self.log.trim(channel, upto.saturating_add(1)).await.map(drop).map_err(StateError::from),
                Err(error) => Err(error),
            };
            if let Err(error) = trimmed {
                warn!(%error, "the past of a channel stays in the log");
            }
        })
    }
}

/// The log has not taken what a client asked for.
pub(crate) fn not_kept(error: AppendError) -> MethodError {
    match error {
        AppendError::Full => MethodError::log_full(),
        AppendError::NotOpen(channel) => no_channel(&channel),
        error => MethodError::new(INTERNAL_ERROR, format!("the host could not write its log: {error}")),
    }
}

/// What is put into the log together. A copy is the same: put twice, it is in the log once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sheet(Batch);

impl Sheet {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// An action of the host. Deltas of one part may become one.
    pub(crate) fn action(self, channel: impl Into<Arc<str>>, action: &StateAction) -> Self {
        let channel = channel.into();
        let entry = NewEntry::new(Arc::clone(&channel), body(entry::action(&channel, action, None)));
        self.push(match part_of(action) {
            Some(part) => entry.part(part),
            None => entry,
        })
    }

    /// Says which client it comes from: clients take turns in the log.
    pub(crate) fn by(mut self, client: &ClientInfo) -> Self {
        let principal = client.principal.as_deref().unwrap_or_default();
        self.0 = self.0.from_source(format!("client:{}:{principal}:{}", principal.len(), client.id));
        self
    }

    /// The channels that it says something on.
    fn channels(&self) -> BTreeSet<Arc<str>> {
        self.0.entries.iter().map(|entry| Arc::clone(&entry.channel)).collect()
    }

    /// An action of a client.
    pub(crate) fn dispatched(self, channel: &str, action: &StateAction, origin: &ActionOrigin) -> Self {
        self.push(NewEntry::new(channel, body(entry::action(channel, action, Some(origin)))))
    }

    /// A new channel, of a session or of the host itself, with what it begins with.
    pub(crate) fn open(mut self, channel: &str, session: Option<&str>, state: &SnapshotState) -> Self {
        self.0 = self.0.open(channel, session);
        self.push(NewEntry::new(channel, body(entry::initial(channel, state))))
    }

    /// A channel is no more. Whoever asks for it hears that there is none, until it is opened again.
    pub(crate) fn close(self, channel: &str) -> Self {
        self.push(NewEntry::new(channel, body(entry::closed(channel))))
    }

    /// From now on a side chat knows this chat up to a turn, as it is; without one, nothing.
    pub(crate) fn beside(self, chat: &str, side: &str, turn: Option<&str>) -> Self {
        self.push(NewEntry::new(chat, body(entry::side_chat(chat, side, turn))))
    }

    /// A channel of the host itself that is to be there, with nothing in it yet.
    pub(crate) fn ensure(mut self, channel: &str) -> Self {
        self.0 = self.0.open(channel, None);
        self
    }

    /// A change of the catalogue, which is about a session.
    pub(crate) fn notice(self, session: &str, notice: &CatalogueNotification) -> Self {
        self.push(NewEntry::new(ROOT_RESOURCE_URI, body(entry::catalogue(notice))).about(session))
    }

    /// Only if the channel still ends with this seq.
    pub(crate) fn expect(mut self, channel: &str, seq: Seq) -> Self {
        self.0 = self.0.expect(channel, seq);
        self
    }

    fn push(mut self, entry: NewEntry) -> Self {
        self.0 = self.0.push(entry);
        self
    }
}

/// All types of the protocol have a JSON. If one ever has none, the entry says nothing.
fn body(written: serde_json::Result<Bytes>) -> Bytes {
    written.unwrap_or_else(|cause| {
        error!("an entry has no JSON: {cause}");
        Bytes::from_static(b"{}")
    })
}
