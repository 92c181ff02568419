//! The pen of a task: what it writes comes into the log, however long that takes, or until the task is to end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use super::super::desk::{Desk, Sheet};
use crate::log::{AppendError, Seq};
use crate::state::StateError;

/// How long to wait before a log that takes nothing is asked again. The desk has tried for some seconds by then.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether a task is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It is not.
    No,
    /// Its chat is disposed of.
    Close,
    /// The host ends.
    Host,
}

/// The task is to end, or the log takes nothing more for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Over;

/// Why something was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unwritten {
    /// Somebody else was faster; the channel ends here now.
    Conflict(Seq),
    /// It is more than the log takes at once.
    TooLarge,
    /// Nothing more can be written.
    Over,
}

/// What writes for a task.
#[derive(Clone)]
pub(super) struct Pen {
    desk: Arc<Desk>,
    /// None for one that does not insist.
    stop: Option<watch::Receiver<Stop>>,
}

impl Pen {
    /// Insists until the task is to end.
    pub(super) const fn new(desk: Arc<Desk>, stop: watch::Receiver<Stop>) -> Self {
        Self { desk, stop: Some(stop) }
    }

    /// Tries as long as the desk does.
    pub(super) const fn hasty(desk: Arc<Desk>) -> Self {
        Self { desk, stop: None }
    }

    /// Writes all of a sheet; the seq of its last entry.
    ///
    /// While the log is full or fails, this waits: so the agent waits too, whose events nobody takes meanwhile.
    pub(super) async fn write(&self, sheet: Sheet) -> Result<Seq, Unwritten> {
        let mut is_logged = false;
        loop {
            // A copy has the same id. Whatever happened to the first, it is in the log once.
            let put = self.unless_over(self.desk.put(sheet.clone())).await.map_err(|Over| Unwritten::Over)?;
            match put {
                Ok(seqs) => return Ok(seqs.last().copied().unwrap_or(0)),
                Err(AppendError::Conflict { last, .. }) => return Err(Unwritten::Conflict(last)),
                Err(AppendError::TooLarge { .. }) => return Err(Unwritten::TooLarge),
                Err(error @ (AppendError::Full | AppendError::Unknown)) => {
                    // Once is enough for what may go on for hours; the health of the host says it all the while.
                    if !std::mem::replace(&mut is_logged, true) {
                        warn!(%error, "an agent waits: the log cannot be written");
                    }
                    if self.stop.is_none() || self.unless_over(tokio::time::sleep(PAUSE)).await.is_err() {
                        return Err(Unwritten::Over);
                    }
                }
                Err(error) => {
                    warn!(%error, "what an agent said cannot be written to the log");
                    return Err(Unwritten::Over);
                }
            }
        }
    }

    /// Writes what is made from the state, anew each time that somebody else was faster. Nothing if nothing is made. The
    /// seq of its last entry.
    pub(super) async fn decide<F>(&self, make: impl Fn() -> F) -> Result<Option<Seq>, Over>
    where
        F: Future<Output = Result<Option<Sheet>, Over>>,
    {
        loop {
            let Some(sheet) = make().await? else { return Ok(None) };
            match self.write(sheet).await {
                Ok(seq) => {
                    self.reached(seq).await?;
                    return Ok(Some(seq));
                }
                Err(Unwritten::Conflict(last)) => self.reached(last).await?,
                Err(Unwritten::TooLarge) => {
                    warn!("a change is too large for the log and was left out");
                    return Ok(None);
                }
                Err(Unwritten::Over) => return Err(Over),
            }
        }
    }

    /// Waits until the state has this.
    pub(super) async fn reached(&self, seq: Seq) -> Result<(), Over> {
        self.unless_over(self.desk.state().reached(seq)).await?.map_err(|_closed| Over)
    }

    /// Whether the task is to end.
    pub(super) fn stop(&self) -> Stop {
        self.stop.as_ref().map_or(Stop::No, |stop| *stop.borrow())
    }

    /// Waits until the task is to end.
    pub(super) async fn over(&self) -> Stop {
        let Some(stop) = &self.stop else { return std::future::pending().await };
        // Whoever could have told us is gone.
        stop.clone().wait_for(|stop| *stop != Stop::No).await.map_or(Stop::Close, |stop| *stop)
    }

    /// Does something, unless the task is to end.
    pub(super) async fn unless_over<T>(&self, work: impl Future<Output = T>) -> Result<T, Over> {
        tokio::select! {
            done = work => Ok(done),
            _ = self.over() => Err(Over),
        }
    }
}

/// What a look at a channel brings: nothing where that cannot be looked at now.
pub(super) fn seen<T>(looked: Result<Option<T>, StateError>) -> Result<Option<T>, Over> {
    match looked {
        Ok(seen) => Ok(seen),
        Err(StateError::Closed) => Err(Over),
        Err(StateError::NotFound) => Ok(None),
        Err(error) => {
            warn!(%error, "the state of a channel cannot be read");
            Ok(None)
        }
    }
}
