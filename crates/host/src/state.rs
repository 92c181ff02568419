//! What all channels are now: a follower of the log runs the official reducers.
//!
//! A channel comes into memory when somebody asks for it or when something happens on it: its saved snapshot, and the
//! entries after that. Starting costs one channel, the root with the catalogue of sessions. Channels that were not used
//! for the longest time are saved and forgotten when all together take more than [`StateConfig::max_bytes`].
//!
//! The completed turns of a chat are rows of the log, each encoded when its turn ended. Neither following a chat nor
//! answering for a window of it costs memory in proportion to its past.
//!
//! ```
//! # use std::sync::Arc;
//! # use breakbulk_host::log::{Batch, Log, MemoryLog};
//! # use breakbulk_host::state::{State, StateConfig, View, entry};
//! # use ahp_types::state::SnapshotState;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
//! let state = State::open(log.clone(), StateConfig::default()).await?;
//! # let text = r#"{"title":"sh","content":[],"lifecycle":{"status":"running"},"claim":{"kind":"client","clientId":"c"}}"#;
//! # let terminal = SnapshotState::Terminal(serde_json::from_str(text)?);
//! let body = entry::initial("ahp-terminal:/1", &terminal)?;
//! let seqs = log.append(Batch::new().open("ahp-terminal:/1", None).entry("ahp-terminal:/1", body)).await?;
//! let shot = state.snapshot("ahp-terminal:/1", View::default(), seqs[0]).await?;
//! assert_eq!(shot.from_seq, seqs[0]);
//! # Ok(()) }
//! ```
//!
//! # When the log is damaged or trimmed
//!
//! - A damaged entry is passed over. In a chat a notice of the host stands where it was: in the turn that was going on, or
//!   as a turn of its own. A channel whose first entry is damaged, or that is in a broken part of the store, is
//!   answered for as it was before, and takes no more actions: [`read`](State::read) says [`StateError::Damaged`].
//! - A damaged snapshot is passed over; the channel is replayed from its first entry. Where that was trimmed, the
//!   channel is lost: [`StateError::Damaged`].
//! - In place of a turn whose row is damaged is a turn that says so.
//! - Trimmed entries are below a saved snapshot, so nothing is missed. A follower that was overtaken by trimming forgets
//!   what it has in memory, and channels are loaded again.
//! - A snapshot of other reducers than ours is not used, unless the entries that it stands for were trimmed; then it is,
//!   with a warning. The first load after an update holds all turns of a chat in memory until they are saved.

pub(crate) mod by_reference;
mod cache;
mod catalogue;
mod channel;
mod content;
pub mod entry;
mod error;
mod follow;
mod history;
mod kind;
mod load;
mod reduced_snapshot;
mod rows;
mod save;
mod side_chats;
mod snapshot;
mod turns;

use std::sync::Arc;

use ahp_types::commands::{ListSessionsParams, ListSessionsResult};
pub use ahp_types::state::SnapshotState;
use ahp_types::state::{ResponsePart, SessionSummary, TurnState};
pub use by_reference::ReferenceStats;
pub use content::Content;
pub use error::StateError;
pub use history::History;
pub use kind::ChannelKind;
pub use reduced_snapshot::ReducedSnapshot;
pub use snapshot::{ChannelSnapshot, TurnsPage, View};
use tokio::task::JoinHandle;

use self::cache::ChannelCache;
use crate::log::{Log, Seq};
use crate::long_work;

/// What the state may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateConfig {
    /// About what channels in memory may take, in bytes. Past it the least recently used are saved and forgotten; the
    /// root and what is in use stay. 64 MiB.
    pub max_bytes: usize,
    /// A channel is saved when its actions since the last time have this many bytes, so that loading it stays quick; a
    /// chat also after each turn. 4 MiB.
    pub save_after_bytes: usize,
    /// What the follower takes from the log at once, in bytes. 1 MiB.
    pub page_bytes: usize,
    /// How many older turns one `fetchTurns` brings, at most. 50.
    pub turns_per_page: u64,
    /// How many bytes these have, at most, unless one alone has more. 4 MiB.
    pub turns_page_bytes: usize,
    /// How many sessions one page of `listSessions` has, at most. 500.
    pub sessions_per_page: usize,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            max_bytes: 64 << 20,
            save_after_bytes: 4 << 20,
            page_bytes: 1 << 20,
            turns_per_page: 50,
            turns_page_bytes: 4 << 20,
            sessions_per_page: 500,
        }
    }
}

/// The state of all channels. Stops when it is dropped; [`close`](State::close) saves first.
#[derive(Debug)]
pub struct State {
    cache: Arc<ChannelCache>,
    tasks: [JoinHandle<()>; 2],
}

impl State {
    /// Begins to follow a log from where it ends now.
    ///
    /// # Errors
    /// When the root cannot be read.
    pub async fn open(log: Arc<dyn Log>, config: StateConfig) -> Result<Arc<Self>, StateError> {
        let last = log.bounds().await?.last;
        let cache = Arc::new(ChannelCache::new(log, config, last));
        drop(cache.lock(ahp_types::ROOT_RESOURCE_URI).await?);
        let tasks = [tokio::spawn(follow::follow(cache.clone(), last)), tokio::spawn(save::run(cache.clone()))];
        Ok(Arc::new(Self { cache, tasks }))
    }

    /// Waits until everything up to this seq is in the state. A seq that the log does not have yet is waited for.
    ///
    /// # Errors
    /// When the log is closed.
    pub async fn reached(&self, seq: Seq) -> Result<(), StateError> {
        self.cache.reached(seq).await
    }

    /// Waits until a channel has everything up to this seq. What is on other channels is not waited for, however much it is.
    ///
    /// # Errors
    /// When the log is closed, or the channel cannot be read.
    pub async fn reached_on(&self, channel: &str, seq: Seq) -> Result<(), StateError> {
        if self.cache.position() >= seq {
            return Ok(());
        }
        if self.cache.log.bounds().await?.last < seq {
            return self.cache.reached(seq).await;
        }
        // On a task of its own: who asks may lose patience, the channel may not.
        let (cache, channel) = (Arc::clone(&self.cache), channel.to_owned());
        tokio::spawn(async move { cache.catch_up_channel(&channel, seq).await })
            .await
            .map_err(|_| StateError::Closed)?
    }

    /// Waits until everything is in the state that anybody can have seen in the log by now.
    ///
    /// # Errors
    /// When the log is closed, or cannot be read.
    pub async fn catch_up(&self) -> Result<(), StateError> {
        self.cache.catch_up().await
    }

    /// The seq up to which everything is in the state.
    #[must_use]
    pub fn position(&self) -> Seq {
        self.cache.position()
    }

    /// Looks at a channel's state, with the seq of the channel's last entry in it: a batch that depends on what was seen
    /// [expects](crate::log::Batch::expect) it. A chat is seen without its completed turns.
    ///
    /// # Errors
    /// When there is no such channel, or when it takes no actions because a record is damaged.
    pub async fn read<T>(&self, channel: &str, look: impl FnOnce(&SnapshotState, Seq) -> T) -> Result<T, StateError> {
        let guard = self.cache.lock(channel).await?;
        match &guard.damaged {
            Some(record) => Err(StateError::Damaged(record.clone())),
            None => Ok(look(guard.state()?, guard.seq)),
        }
    }

    /// The id of a chat's last turn if that ended with an error that it can be resumed from.
    ///
    /// # Errors
    /// When there is no such chat, or when the turn cannot be read.
    pub async fn resumable(&self, channel: &str) -> Result<Option<String>, StateError> {
        let guard = self.cache.lock_chat(channel).await?;
        let Some(last) = guard.turns.last(&*self.cache.log, channel).await? else { return Ok(None) };
        let turn = last.turn()?;
        let can = matches!(turn.response_parts.last(), Some(ResponsePart::Error(part)) if part.resumable == Some(true));
        Ok((can && turn.state == TurnState::Error).then_some(turn.id))
    }

    /// The completed turns of a chat before the turn that it is in; `None` if it is not in this one.
    ///
    /// # Errors
    /// When there is no such chat.
    pub async fn history_before(&self, channel: &str, turn: &str) -> Result<Option<History>, StateError> {
        History::before(&self.cache, channel, turn).await
    }

    /// The completed turns of a chat up to this one. If it is in this one, those before it; `None` if it has no such turn.
    ///
    /// # Errors
    /// When there is no such chat, or when a turn cannot be read.
    pub async fn history_through(&self, channel: &str, turn: &str) -> Result<Option<History>, StateError> {
        History::through(&self.cache, channel, turn).await
    }

    /// What a side chat knows of a chat, which may be no more; see [`entry::side_chat`]. Nothing, if nothing was said of it.
    ///
    /// # Errors
    /// When the chat cannot be read.
    pub async fn history_for_side_chat(&self, channel: &str, side: &str) -> Result<History, StateError> {
        History::beside(&self.cache, channel, side).await
    }

    /// A page of the catalogue of sessions, the most recently modified first.
    ///
    /// # Errors
    /// When the cursor is not one of ours.
    pub async fn sessions(&self, params: &ListSessionsParams) -> Result<ListSessionsResult, StateError> {
        let guard = self.cache.lock(ahp_types::ROOT_RESOURCE_URI).await?;
        guard.catalogue.page(params, self.cache.config.sessions_per_page)
    }

    /// What the catalogue says of a session; `None` if it has none of this name.
    ///
    /// # Errors
    /// When the root cannot be read.
    pub async fn session(&self, session: &str) -> Result<Option<SessionSummary>, StateError> {
        Ok(self.cache.lock(ahp_types::ROOT_RESOURCE_URI).await?.catalogue.get(session).cloned())
    }

    /// What the catalogue says of all sessions of which this is true.
    ///
    /// # Errors
    /// When the root cannot be read.
    pub async fn sessions_with(&self, is: impl Fn(&SessionSummary) -> bool) -> Result<Vec<SessionSummary>, StateError> {
        let guard = self.cache.lock(ahp_types::ROOT_RESOURCE_URI).await?;
        Ok(guard.catalogue.all().into_iter().filter(|summary| is(summary)).cloned().collect())
    }

    /// A channel's state as a client gets it, with everything up to `at_least` in it.
    ///
    /// The text of a completed turn is that of its row: nothing of it is parsed.
    ///
    /// # Errors
    /// When there is no such channel, or when it cannot be read.
    pub async fn snapshot(&self, channel: &str, view: View, at_least: Seq) -> Result<ChannelSnapshot, StateError> {
        self.reached_on(channel, at_least).await?;
        snapshot::snapshot(&self.cache, channel, view).await
    }

    /// A channel's state in at most `max_bytes` bytes, with everything up to `at_least` in it: what is large is by reference, and
    /// of the turns that `view` has, the last so many are there that fit. `None` if there is no such text.
    ///
    /// # Errors
    /// When there is no such channel, or when it cannot be read.
    pub async fn reduced_snapshot(
        &self,
        channel: &str,
        view: View,
        at_least: Seq,
        max_bytes: usize,
    ) -> Result<Option<ReducedSnapshot>, StateError> {
        self.reached_on(channel, at_least).await?;
        reduced_snapshot::reduced_snapshot(&self.cache, channel, view, max_bytes).await
    }

    /// What a reference names that a client was sent in place of something large.
    ///
    /// # Errors
    /// [`StateError::NotFound`] when the URI names nothing of ours, or what was there is not there any more.
    pub async fn content(&self, uri: &str) -> Result<Content, StateError> {
        content::content(&self.cache, by_reference::Reference::read(uri).ok_or(StateError::NotFound)?).await
    }

    /// How many bytes the text of a snapshot has now, without building it.
    ///
    /// # Errors
    /// When there is no such channel, or when it cannot be read.
    pub async fn size_of(&self, channel: &str, view: View) -> Result<u64, StateError> {
        snapshot::size_of(&self.cache, channel, view).await
    }

    /// The turns before a cursor, as the action that loads them into the state of the client that asked. The result of
    /// `fetchTurns` itself is empty.
    ///
    /// `None` without a cursor, or when nothing is before it: the state itself has all turns, and which of them a client
    /// has is known where its window is.
    ///
    /// # Errors
    /// When there is no such chat, when the cursor is not one of its, or when a turn cannot be read.
    pub async fn fetch_turns(&self, channel: &str, cursor: Option<&str>) -> Result<Option<TurnsPage>, StateError> {
        self.fetch_turns_within(channel, cursor, usize::MAX).await
    }

    /// As [`fetch_turns`](Self::fetch_turns), for somebody who takes no more than so many bytes, unless one turn alone has
    /// more.
    ///
    /// # Errors
    /// As [`fetch_turns`](Self::fetch_turns).
    pub async fn fetch_turns_within(
        &self,
        channel: &str,
        cursor: Option<&str>,
        max_bytes: usize,
    ) -> Result<Option<TurnsPage>, StateError> {
        snapshot::fetch(&self.cache, channel, cursor, max_bytes).await
    }

    /// How many bytes the turns of one page have, at most, unless one alone has more.
    pub(crate) fn turns_page_bytes(&self) -> usize {
        self.cache.config.turns_page_bytes
    }

    /// One turn, as the action that loads it; `None` if the chat has none with this id.
    ///
    /// A truncation names the turn that stays. A client whose window begins behind that turn needs it first, or its
    /// reducer finds nothing to do. A page whose `seq` is later than the truncation may have a later version of the turn:
    /// such a client needs a new snapshot.
    ///
    /// # Errors
    /// When there is no such chat, or when a turn cannot be read.
    pub async fn fetch_turn(&self, channel: &str, turn: &str) -> Result<Option<TurnsPage>, StateError> {
        snapshot::fetch_one(&self.cache, channel, turn).await
    }

    /// Saves what a channel is now, so that the log may be trimmed up to there.
    ///
    /// # Errors
    /// When there is no such channel, or when the log does not take it.
    pub async fn save(&self, channel: &str) -> Result<(), StateError> {
        save::save(&self.cache, channel).await
    }

    /// Forgets the channels of a session without saving them, and saves a root that no longer mentions it. Comes before
    /// [`erase`](Log::erase), after the session was removed from the catalogue.
    ///
    /// # Errors
    /// When the log cannot be read, or does not take the root.
    pub async fn forget(&self, session: &str) -> Result<(), StateError> {
        save::save(&self.cache, ahp_types::ROOT_RESOURCE_URI).await?;
        for info in self.cache.log.channels(Some(session)).await? {
            self.cache.forget(&info.channel).await;
        }
        Ok(())
    }

    /// Forgets a channel without saving it. Comes before the channel is [erased](Log::erase), and after.
    pub async fn forget_channel(&self, channel: &str) {
        self.cache.forget(channel).await;
    }

    /// Saves everything that is not, and stops.
    ///
    /// # Errors
    /// When the log does not take it: what is lost is time at the next start.
    pub async fn close(&self) -> Result<(), StateError> {
        self.tasks.iter().for_each(JoinHandle::abort);
        save::save_all(&self.cache).await
    }

    /// Waits until channels in memory take no more than [`StateConfig::max_bytes`].
    pub(crate) async fn settled(&self) {
        self.cache.settled().await;
    }

    /// About how many bytes all channels in memory take.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.cache.weight()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Runs work on so many bytes, on a blocking thread if they are many.
async fn run_blocking<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StateError> {
    long_work::run_blocking(bytes, work).await.map_err(|_| StateError::Closed)
}
