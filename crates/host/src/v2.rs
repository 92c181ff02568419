//! Serves clients of message protocol v2: one WebSocket each, with JSON texts as `breakbulk_lifecycle::v2::wire` has them.
//!
//! ```text
//!  link ─▶ V2Connection ─▶ commands ─▶ gate ─▶ LogWriter ─▶ LOG ─▶ Feed (one for each watched session: a projector)
//!   ▲          ▲                                           │       │
//!   └──────────┴── Watcher (one for each watch) ◀──────────┴───────┘
//! ```
//!
//! v2 is a projection of the log. Commands become the same logged actions that AHP clients dispatch, so clients of both
//! protocols see the same session. A watcher **pulls**: it has a position in the log, and is given what comes after it, from
//! the feed if that holds it, else by a projector of its own. So a client that is slow and one that comes back are the same
//! case, and neither costs memory.

mod clients;
mod commands;
mod config;
mod connection;
mod done_commands;
mod feed;
mod moment;
mod permissions;
mod reader;
mod rewind;
mod snapshot;
mod watcher;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use breakbulk::{Link, LogLimit};
use breakbulk_lifecycle::v2::{Config, LongContent};
use breakbulk_proto::Budget;
use tokio::sync::watch;

use self::clients::V2Clients;
use self::commands::MODE_OPTION;
pub use self::config::V2Config;
use self::connection::V2Connection;
use self::done_commands::DoneCommands;
pub(crate) use self::feed::Feeds;
use self::moment::{SessionContext, session_state};
use self::permissions::PermissionTimers;
use crate::changes::CheckedOut;
use crate::endpoint::{AnswerMemory, Counters, EndReason, Endpoint, Traffic};
use crate::host::Services;
use crate::percent;
use crate::state::StateError;

/// Whose quota the memory of feeds counts against. Without a principal they would have no more than one connection's floor.
const FEEDS: &str = "v2 feeds";

/// Serves clients of message protocol v2. Cloning shares it.
#[derive(Clone)]
pub struct V2(Arc<V2Inner>);

/// What all connections share.
struct V2Inner {
    services: Arc<Services>,
    config: V2Config,
    endpoint: Endpoint,
    /// For commands that are arriving.
    budget: Budget,
    /// For the events that feeds hold.
    memory: AnswerMemory,
    feeds: Arc<Feeds>,
    timers: Arc<PermissionTimers>,
    done: DoneCommands,
    clients: Arc<V2Clients>,
    counts: Counters,
    traffic: Arc<Traffic>,
    watches: AtomicU64,
    log_limit: LogLimit,
    stop: watch::Sender<bool>,
}

impl V2 {
    pub(crate) fn new(services: Arc<Services>, endpoint: Endpoint, config: V2Config) -> Self {
        let (log_writer, feeds) = (services.log_writer(), Arc::clone(services.feeds()));
        Self(Arc::new(V2Inner {
            timers: Arc::new(PermissionTimers::new(Arc::clone(log_writer))),
            done: DoneCommands::new(Arc::clone(log_writer.log())),
            budget: endpoint.budget().clone(),
            memory: endpoint.answer_memory(Some(FEEDS.into())),
            traffic: Arc::clone(endpoint.shared_traffic()),
            services,
            config,
            endpoint,
            feeds,
            clients: Arc::default(),
            counts: Counters::default(),
            watches: AtomicU64::new(0),
            log_limit: LogLimit::default(),
            stop: watch::Sender::new(false),
        }))
    }

    /// Serves a client until its connection ends; returns why it ended. The principal is the one that the listener
    /// authenticated. Dropping the future cuts the link.
    pub async fn serve(&self, link: impl Link + 'static, principal: Option<Arc<str>>) -> EndReason {
        Box::new(V2Connection::new(Arc::clone(&self.0), Box::new(link), principal)).run().await
    }

    /// Closes a link because there are too many connections; returns why it ended.
    pub async fn turn_away(&self, link: impl Link + 'static) -> EndReason {
        Box::new(V2Connection::new(Arc::clone(&self.0), Box::new(link), None)).close(EndReason::Full).await
    }

    /// How often each named event has happened: how connections ended, what was refused.
    #[must_use]
    pub fn counts(&self) -> &Counters {
        &self.0.counts
    }

    /// How many clients are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.0.clients.len()
    }

    /// How many sessions are watched, each counted once for each connection that watches it.
    #[must_use]
    pub fn watches(&self) -> u64 {
        self.0.watches.load(Relaxed)
    }

    /// How many sessions are watched.
    #[must_use]
    pub fn feeds(&self) -> usize {
        self.0.feeds.len()
    }

    /// Closes all connections, and each later one at once: clients may try again later.
    pub fn stop(&self) {
        self.0.stop.send_replace(true);
    }
}

/// Scheme of the chats that clients can name in place of a session.
const CHAT_SCHEME: &str = "ahp-chat:";

/// What a client means by a `sessionId`.
#[derive(Debug)]
struct Place {
    session: Arc<str>,
    chat: String,
}

impl V2Inner {
    /// The session and the chat that a client names: a session stands for its default chat, and a chat for itself.
    async fn place_of(&self, name: &str) -> Result<Place, StateError> {
        let log_writer = self.services.log_writer();
        if name.starts_with(CHAT_SCHEME) {
            let session = log_writer.session_of(name).await?.ok_or(StateError::NotFound)?;
            // It may be disposed of: the log has it until the session is erased.
            let (state, _) = session_state(log_writer.state(), &session).await?;
            let is_there = state.chats.iter().any(|chat| chat.resource == name);
            return if is_there { Ok(Place { session, chat: name.to_owned() }) } else { Err(StateError::NotFound) };
        }
        let (state, _) = session_state(log_writer.state(), name).await?;
        let chat = state.default_chat.ok_or(StateError::NotFound)?;
        Ok(Place { session: name.into(), chat })
    }

    /// What is needed to project a session or a chat.
    async fn context_of(&self, name: &str) -> Result<SessionContext, StateError> {
        let log_writer = self.services.log_writer();
        let Place { session, chat } = self.place_of(name).await?;
        let (state, _) = session_state(log_writer.state(), &session).await?;
        let mut config = Config::new(name, session, chat);
        if let Some(directory) = state.working_directories.iter().flatten().next() {
            let CheckedOut { branch, is_linked } = self.services.checked_out(directory).await;
            (config.branch, config.worktree) = (branch, is_linked);
        }
        config.mode_option = MODE_OPTION.to_owned();
        config.max_event_bytes = self.config.max_event_bytes;
        config.max_result_bytes = self.config.max_result_bytes;
        config.permission_timeout_ms = u64::try_from(self.config.permission_timeout.as_millis()).unwrap_or(u64::MAX);
        config.url = Arc::new(url_of);
        Ok(SessionContext { log: Arc::clone(log_writer.log()), state: Arc::clone(log_writer.state()), config })
    }
}

/// Where the whole of something is that is cut.
fn url_of(source: &LongContent<'_>) -> String {
    match source {
        LongContent::Result { chat, turn, tool } => {
            format!("/content/result/{}/{}/{}", percent::name(chat), percent::name(turn), percent::name(tool))
        }
        LongContent::Prompt { chat, turn } => {
            format!("/content/prompt/{}/{}", percent::name(chat), percent::name(turn))
        }
    }
}

impl fmt::Debug for V2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("V2").field("clients", &self.clients()).finish_non_exhaustive()
    }
}
