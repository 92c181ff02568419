//! The state of all channels: a follower of the log that runs the official reducers.
//!
//! A channel is loaded when somebody asks for it or when an entry arrives on it: its saved snapshot, and the entries after
//! that. At the start only one channel is loaded, the root with the catalogue of sessions. When the channels in memory take
//! more than [`StateConfig::max_bytes`], the least recently used ones are saved and evicted.
//!
//! The completed turns of a chat are rows of the log, each encoded when its turn ended. So the memory that a chat takes does
//! not depend on the number of its turns, and neither does that of a snapshot with only its last turns.
//!
//! ```
//! # use std::sync::Arc;
//! # use breakbulk_host::log::{Batch, Log, MemoryLog};
//! # use breakbulk_host::test_support::state::{State, StateConfig, View, entry};
//! # use ahp_types::state::SnapshotState;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
//! let state = State::open(log.clone(), StateConfig::default()).await?;
//! # let text = r#"{"title":"sh","content":[],"lifecycle":{"status":"running"},"claim":{"kind":"client","clientId":"c"}}"#;
//! # let terminal = SnapshotState::Terminal(serde_json::from_str(text)?);
//! let body = entry::initial("ahp-terminal:/1", &terminal)?;
//! let seqs = log.append(Batch::new().open("ahp-terminal:/1", None).entry("ahp-terminal:/1", body)).await?;
//! let snapshot = state.snapshot("ahp-terminal:/1", View::default(), seqs[0]).await?;
//! assert_eq!(snapshot.from_seq, seqs[0]);
//! # Ok(()) }
//! ```
//!
//! # When the log is damaged or trimmed
//!
//! - A damaged entry is skipped. In a chat, a notice of the host takes its place: in the active turn, or as a turn of its
//!   own. A channel whose first entry is damaged, or whose entries cannot be found any more, keeps the state before the damage
//!   and takes no more actions: [`read`](State::read) returns [`StateError::Damaged`].
//! - A damaged snapshot is skipped; the channel is replayed from its first entry. If that was trimmed, the channel is lost:
//!   [`StateError::Damaged`].
//! - A turn whose row is damaged is replaced by a turn that says so.
//! - Only entries before a saved snapshot are trimmed, so nothing is missed. If the follower is behind what was trimmed, it
//!   evicts all channels, and they are loaded again.
//! - A snapshot of another version of the reducers is not used, unless the entries before it were trimmed; then it is used,
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
mod moment;
mod reduced_snapshot;
mod rows;
mod save;
mod side_chats;
mod snapshot;
mod turns;

use std::sync::Arc;

use ahp_types::commands::{ListSessionsParams, ListSessionsResult};
pub use ahp_types::state::SnapshotState;
use ahp_types::state::{ResponsePart, SessionState, SessionSummary, TurnState};
pub use by_reference::ReferenceStats;
pub use content::Content;
pub use error::StateError;
pub use history::History;
pub use kind::ChannelKind;
pub(crate) use moment::{ChatMoment, TurnRow};
pub use reduced_snapshot::ReducedSnapshot;
pub use snapshot::{ChannelSnapshot, TurnsPage, View};
use tokio::task::JoinHandle;

use self::cache::ChannelCache;
use crate::log::{Log, Seq};
use crate::long_work;

/// The limits of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateConfig {
    /// About how many bytes the channels in memory may take. Beyond that the least recently used ones are saved and evicted,
    /// except for the root and those in use. 64 MiB.
    pub max_bytes: usize,
    /// A channel is saved when its unsaved actions have this many bytes, so that loading it stays fast; a chat also after each
    /// turn. 4 MiB.
    pub save_after_bytes: usize,
    /// How many bytes the follower reads from the log at once. 1 MiB.
    pub page_bytes: usize,
    /// The most older turns that one `fetchTurns` returns. 50.
    pub turns_per_page: u64,
    /// The most bytes of these turns, unless one turn alone has more. 4 MiB.
    pub turns_page_bytes: usize,
    /// The most sessions on one page of `listSessions`. 500.
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
    /// Begins to follow a log from its present end.
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

    /// Waits until the state contains everything up to this seq, also if the log does not have it yet.
    ///
    /// # Errors
    /// When the log is closed.
    pub async fn reached(&self, seq: Seq) -> Result<(), StateError> {
        self.cache.reached(seq).await
    }

    /// Waits until the state of one channel contains everything up to this seq. Entries of other channels are not waited for.
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
        // On a task of its own, because it must not be cancelled when the caller is.
        let (cache, channel) = (Arc::clone(&self.cache), channel.to_owned());
        tokio::spawn(async move { cache.catch_up_channel(&channel, seq).await })
            .await
            .map_err(|_| StateError::Closed)?
    }

    /// Waits until the state contains everything that is in the log now.
    ///
    /// # Errors
    /// When the log is closed, or cannot be read.
    pub async fn catch_up(&self) -> Result<(), StateError> {
        self.cache.catch_up().await
    }

    /// The seq up to which the state contains everything.
    #[must_use]
    pub fn position(&self) -> Seq {
        self.cache.position()
    }

    /// Passes a channel's state and the seq of its last entry to `look`. A batch that depends on what was seen
    /// [expects](crate::log::Batch::expect) that seq. A chat is passed without its completed turns.
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

    /// The id of a chat's last turn, if it ended with an error that allows it to be resumed.
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

    /// The completed turns of a chat before its active turn; `None` if `turn` is not the active one.
    ///
    /// # Errors
    /// When there is no such chat.
    pub async fn history_before(&self, channel: &str, turn: &str) -> Result<Option<History>, StateError> {
        History::before(&self.cache, channel, turn).await
    }

    /// The completed turns of a chat up to this one, or those before it if it is the active turn; `None` if there is no such
    /// turn.
    ///
    /// # Errors
    /// When there is no such chat, or when a turn cannot be read.
    pub async fn history_through(&self, channel: &str, turn: &str) -> Result<Option<History>, StateError> {
        History::through(&self.cache, channel, turn).await
    }

    /// The turns that a side chat knows of a chat, even if the chat is closed; see [`entry::side_chat`]. Empty, if it knows none.
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

    /// The catalogue's entry of a session; `None` if there is no such session.
    ///
    /// # Errors
    /// When the root cannot be read.
    pub async fn session(&self, session: &str) -> Result<Option<SessionSummary>, StateError> {
        Ok(self.cache.lock(ahp_types::ROOT_RESOURCE_URI).await?.catalogue.get(session).cloned())
    }

    /// The catalogue's entries of all sessions for which `is` returns true.
    ///
    /// # Errors
    /// When the root cannot be read.
    pub async fn sessions_with(&self, is: impl Fn(&SessionSummary) -> bool) -> Result<Vec<SessionSummary>, StateError> {
        let guard = self.cache.lock(ahp_types::ROOT_RESOURCE_URI).await?;
        Ok(guard.catalogue.all().into_iter().filter(|summary| is(summary)).cloned().collect())
    }

    /// A channel's state as a client gets it, which contains everything up to `at_least`. The texts of completed turns are those
    /// of their rows, without being parsed.
    ///
    /// # Errors
    /// When there is no such channel, or when it cannot be read.
    pub async fn snapshot(&self, channel: &str, view: View, at_least: Seq) -> Result<ChannelSnapshot, StateError> {
        self.reached_on(channel, at_least).await?;
        snapshot::snapshot(&self.cache, channel, view).await
    }

    /// A channel's state in at most `max_bytes`, which contains everything up to `at_least`: large content is by reference, and
    /// it has as many of the last turns of `view` as fit. `None` if it cannot be reduced to that length.
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

    /// The content that a client was sent a reference to.
    ///
    /// # Errors
    /// [`StateError::NotFound`] when the URI is not a reference of this host, or its content no longer exists.
    pub async fn content(&self, uri: &str) -> Result<Content, StateError> {
        content::content(&self.cache, by_reference::Reference::read(uri).ok_or(StateError::NotFound)?).await
    }

    /// How many bytes a snapshot would have now. The snapshot is not made for this.
    ///
    /// # Errors
    /// When there is no such channel, or when it cannot be read.
    pub async fn size_of(&self, channel: &str, view: View) -> Result<u64, StateError> {
        snapshot::size_of(&self.cache, channel, view).await
    }

    /// The turns before a cursor, as the action that adds them to the state of the client that asked, with no more than so many
    /// bytes, unless one turn alone has more. The result of `fetchTurns` itself is empty.
    ///
    /// `None` without a cursor, or when no turns are before it: the state has all turns, and only the client's cursor says which
    /// of them it lacks.
    ///
    /// # Errors
    /// When there is no such chat, when the cursor is not one of its, or when a turn cannot be read.
    pub async fn fetch_turns(
        &self,
        channel: &str,
        cursor: Option<&str>,
        max_bytes: usize,
    ) -> Result<Option<TurnsPage>, StateError> {
        snapshot::fetch(&self.cache, channel, cursor, max_bytes).await
    }

    /// The most bytes of the turns on one page, unless one turn alone has more.
    pub(crate) fn turns_page_bytes(&self) -> usize {
        self.cache.config.turns_page_bytes
    }

    /// Saves the present state of a channel, so that the log may be trimmed up to there.
    ///
    /// # Errors
    /// When there is no such channel, or when the log does not take it.
    pub async fn save(&self, channel: &str) -> Result<(), StateError> {
        save::save(&self.cache, channel).await
    }

    /// Evicts the channels of a session without saving them, and saves the root. To be called after the session was removed
    /// from the catalogue and before [`erase`](Log::erase), so that the saved root does not mention it.
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

    /// Evicts a channel without saving it. To be called before the channel is [erased](Log::erase), and after.
    pub async fn forget_channel(&self, channel: &str) {
        self.cache.forget(channel).await;
    }

    /// Saves all unsaved channels, and stops.
    ///
    /// # Errors
    /// When the log does not take it. Then the next start takes longer, and nothing is lost.
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

/// What is short and always there in a session: all that the checks of the gate read.
pub(crate) fn session_basics(session: &SessionState) -> SessionState {
    SessionState {
        provider: session.provider.clone(),
        title: String::new(),
        status: session.status,
        activity: None,
        origin: None,
        project: None,
        working_directories: session.working_directories.clone(),
        annotations: None,
        lifecycle: session.lifecycle.clone(),
        creation_error: None,
        server_tools: None,
        active_clients: Vec::new(),
        chats: Vec::new(),
        default_chat: None,
        config: None,
        customizations: None,
        changesets: None,
        input_needed: None,
        meta: None,
    }
}
