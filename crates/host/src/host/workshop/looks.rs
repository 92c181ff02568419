//! When sessions are looked at: one look at a session at a time, and a few at all.
//!
//! Whoever wants a look says how much is to be looked at. While one is under way, wishes add up to the next: the greatest
//! of them, once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use super::Workshop;
use super::session::Known;
use crate::error::MethodError;
use crate::lock::lock;
use crate::state::StateError;

/// Looks at once, over all sessions: each runs git and walks directories.
const AT_ONCE: usize = 4;

/// How much is to be looked at. Each has in it what is before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wish {
    /// The changes.
    Changes,
    /// And, if there are new ones, the customizations.
    Work,
    /// And these in any case.
    Everything,
}

/// The looks at all sessions that somebody asked for in this life of the host.
pub(super) struct Looks {
    pub(super) all: Mutex<HashMap<String, Arc<Look>>>,
    running: Semaphore,
}

/// The looks at one session.
#[derive(Default)]
pub(super) struct Look {
    wanted: Mutex<Wanted>,
    /// How many looks have ended.
    done: watch::Sender<u64>,
    has_looked: AtomicBool,
    /// What was found. Held by the look that is under way.
    pub(super) known: tokio::sync::Mutex<Known>,
}

#[derive(Default)]
struct Wanted {
    wish: Option<Wish>,
    /// How many looks have begun.
    begun: u64,
    is_running: bool,
    /// The session is gone.
    is_closed: bool,
}

impl Default for Looks {
    fn default() -> Self {
        Self { all: Mutex::default(), running: Semaphore::new(AT_ONCE) }
    }
}

impl Looks {
    /// Whether a session was looked at in this life of the host.
    pub(super) fn has_looked(&self, session: &str) -> bool {
        lock(&self.all).get(session).is_some_and(|look| look.has_looked.load(Ordering::Relaxed))
    }

    /// The next look at a session, if one is wanted: what it is for, and what says that it has ended.
    fn next(&self, session: &str, look: &Arc<Look>) -> Option<(Wish, Round)> {
        let mut all = lock(&self.all);
        let mut wanted = lock(&look.wanted);
        let wish = wanted.wish.take().filter(|_| !wanted.is_closed);
        wanted.is_running = wish.is_some();
        let Some(wish) = wish else {
            // Of a session that is not there nothing is remembered.
            let is_here = all.get(session).is_some_and(|there| Arc::ptr_eq(there, look));
            if is_here && !look.has_looked.load(Ordering::Relaxed) {
                all.remove(session);
            }
            return None;
        };
        wanted.begun = wanted.begun.saturating_add(1);
        Some((wish, Round { look: Arc::clone(look), number: wanted.begun }))
    }
}

impl Workshop {
    /// A look at a session is wanted. Returns at once.
    pub(super) fn want(self: &Arc<Self>, session: &str, wish: Wish) {
        drop(self.ask(session, wish));
    }

    /// Waits until a session has been looked at in this life of the host. Nothing comes of it where there is none.
    pub(super) async fn looked(self: &Arc<Self>, session: &str) -> Result<(), StateError> {
        if self.looks.has_looked(session) || self.session(session, |_| ()).await?.is_none() {
            return Ok(());
        }
        let (mut done, round) = self.ask(session, Wish::Everything);
        // Without a sender the host is stopping.
        drop(done.wait_for(|done| *done >= round).await);
        Ok(())
    }

    /// Looks at a session no more, and closes what it has.
    pub(super) async fn forget(&self, session: &str) {
        let Some(look) = lock(&self.looks.all).remove(session) else { return };
        let round = {
            let mut wanted = lock(&look.wanted);
            wanted.is_closed = true;
            wanted.begun
        };
        drop(look.done.subscribe().wait_for(|done| *done >= round).await);
        self.close_changesets(&mut *look.known.lock().await);
    }

    /// Asks for a look; tells which one it will be.
    fn ask(self: &Arc<Self>, session: &str, wish: Wish) -> (watch::Receiver<u64>, u64) {
        let mut all = lock(&self.looks.all);
        let look = Arc::clone(all.entry(session.to_owned()).or_default());
        let mut wanted = lock(&look.wanted);
        wanted.wish = wanted.wish.max(Some(wish));
        let round = wanted.begun.saturating_add(1);
        if !std::mem::replace(&mut wanted.is_running, true) {
            self.tasks.spawn(Arc::clone(self).serve(session.to_owned(), Arc::clone(&look)));
        }
        (look.done.subscribe(), round)
    }

    /// Looks until nothing more is wanted.
    async fn serve(self: Arc<Self>, session: String, look: Arc<Look>) {
        while let Some((wish, _round)) = self.looks.next(&session, &look) {
            // Nobody closes it.
            let _turn = self.looks.running.acquire().await;
            let mut known = look.known.lock().await;
            match self.look(&session, wish, &mut known).await {
                Ok(()) => look.has_looked.store(true, Ordering::Relaxed),
                Err(LookError::NoSession) => {
                    debug!("a look at a session that is not there");
                    self.close_changesets(&mut known);
                    look.has_looked.store(false, Ordering::Relaxed);
                }
                Err(LookError::Failed(error)) => warn!(%error, "a session was not looked at"),
            }
        }
    }
}

/// A look under way. When it is dropped, however that comes, those who wait for it are told.
struct Round {
    look: Arc<Look>,
    number: u64,
}

impl Drop for Round {
    fn drop(&mut self) {
        self.look.done.send_replace(self.number);
    }
}

/// Why a look found nothing.
#[derive(Debug)]
pub(super) enum LookError {
    NoSession,
    Failed(MethodError),
}

impl From<MethodError> for LookError {
    fn from(error: MethodError) -> Self {
        Self::Failed(error)
    }
}

impl From<StateError> for LookError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::NotFound => Self::NoSession,
            error => Self::Failed(error.into()),
        }
    }
}
