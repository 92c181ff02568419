//! Conducts agents: each chat's conversation hears what clients have logged, and what it says is logged.
//!
//! ```text
//!  LOG ─▶ follow ─▶ Roster ─▶ Chat, one task each ─▶ Conversation
//!   ▲                           │   ▲                    │
//!   └──── Pen (insists) ◀───────┘   └──── EventStream ◀──┘
//! ```
//!
//! A task begins with the first thing that somebody does in its chat, and an agent with the first turn. What a task begins
//! itself (the turn of a queued message) comes back to it through the log, like everything that others begin.

mod chat;
mod flush;
mod follow;
mod home;
mod line;
mod mend;
mod mirror;
mod pen;
mod queue;
mod roster;
mod told;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;

pub(super) use self::mirror::summarize;
use self::pen::Stop;
use self::roster::Roster;
use super::StartError;
use super::desk::Desk;
use super::workshop::Workshop;
use crate::agent::{Agent, RealClock};
use crate::lock::lock;
use crate::state::StateError;

/// How long conversations have for an orderly end. Then they are dropped.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The conversations of all chats. They end when it is dropped.
pub(crate) struct Conduct {
    shared: Arc<Shared>,
    follower: Mutex<Option<JoinHandle<()>>>,
}

/// What all conversations share.
struct Shared {
    desk: Arc<Desk>,
    agents: Vec<Arc<dyn Agent>>,
    workshop: Arc<Workshop>,
    clock: RealClock,
    roster: Roster,
    /// The log ended here when this life of the host began.
    born: AtomicU64,
}

impl Conduct {
    pub(crate) fn new(desk: Arc<Desk>, agents: Vec<Arc<dyn Agent>>, workshop: Arc<Workshop>) -> Self {
        let (clock, roster, born) = (RealClock::new(), Roster::default(), AtomicU64::new(0));
        let shared = Arc::new(Shared { desk, agents, workshop, clock, roster, born });
        Self { shared, follower: Mutex::default() }
    }

    /// Ends the turns that a last life of the host left open, and begins to follow the log.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<(), StartError> {
        let shared = &self.shared;
        let last = shared.desk.log().bounds().await.map_err(StateError::from)?.last;
        shared.born.store(last, Relaxed);
        mend::begin(shared, last).await?;
        let follower = tokio::spawn(follow::follow(Arc::clone(shared), last));
        *self.follower() = Some(follower);
        Ok(())
    }

    /// Ends a chat's conversation, with all that it runs: when this answers, nothing more is logged for it.
    pub(crate) async fn close(&self, chat: &str) {
        if let Some(member) = self.shared.roster.close(chat) {
            member.end(Stop::Close, LAST_WORDS).await;
        }
    }

    /// Ends all conversations.
    pub(crate) async fn stop(&self) {
        if let Some(follower) = self.follower().take() {
            follower.abort();
        }
        // All at once, so that they need no longer together than one alone.
        let ends: Vec<_> = self.shared.roster.close_all().into_iter().map(|m| m.end(Stop::Host, LAST_WORDS)).collect();
        for end in ends {
            end.await;
        }
    }

    fn follower(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        lock(&self.follower)
    }
}

impl Drop for Conduct {
    fn drop(&mut self) {
        if let Some(follower) = self.follower().take() {
            follower.abort();
        }
        // A member that is dropped takes its task with it.
        drop(self.shared.roster.close_all());
    }
}
