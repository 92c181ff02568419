//! Writes to the log for a chat's task: retries while the log fails, until the task is told to stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use super::super::log_writer::{LogWriter, Transaction};
use crate::log::{AppendError, Seq};
use crate::state::StateError;

/// How long to wait before the next attempt. The log writer has retried for some seconds by then.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Whether a task has been told to stop, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopRequest {
    /// It has not.
    None,
    /// Its chat is disposed of.
    CloseChat,
    /// The host stops.
    StopHost,
}

/// The task has to end: it was told to stop, or the log is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskStopped;

/// Why a transaction was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WriteFailure {
    /// Somebody else has appended to the channel; this is its last seq now.
    Conflict(Seq),
    /// It is larger than the log takes at once.
    TooLarge,
    /// The task has to end.
    Stopped,
}

/// Writes to the log for one task.
#[derive(Clone)]
pub(super) struct TaskWriter {
    log_writer: Arc<LogWriter>,
    retries: Retries,
}

/// How long a writer retries.
#[derive(Clone)]
enum Retries {
    /// Until the task is told to stop.
    UntilStopped(watch::Receiver<StopRequest>),
    /// No longer than the log writer does.
    Never,
}

impl TaskWriter {
    /// A writer that retries until the task is told to stop.
    pub(super) const fn new(log_writer: Arc<LogWriter>, stop: watch::Receiver<StopRequest>) -> Self {
        Self { log_writer, retries: Retries::UntilStopped(stop) }
    }

    /// A writer that retries no longer than the log writer does.
    pub(super) const fn without_retries(log_writer: Arc<LogWriter>) -> Self {
        Self { log_writer, retries: Retries::Never }
    }

    /// Writes a transaction; returns the seqs of its entries.
    ///
    /// This waits while the log is full or fails. Meanwhile nobody takes the agent's events, so the agent waits too.
    pub(super) async fn write(&self, transaction: &Transaction) -> Result<Vec<Seq>, WriteFailure> {
        let mut is_reported = false;
        loop {
            // A clone has the same id, so it is in the log once, whatever became of the attempts before.
            let append = self.log_writer.append(transaction.clone());
            match self.unless_stopped(append).await.map_err(|TaskStopped| WriteFailure::Stopped)? {
                Ok(seqs) => return Ok(seqs),
                Err(AppendError::Conflict { last, .. }) => return Err(WriteFailure::Conflict(last)),
                Err(AppendError::TooLarge { .. }) => return Err(WriteFailure::TooLarge),
                Err(error @ (AppendError::Full | AppendError::Unknown)) => {
                    // This may last for hours: it is logged once, and the host's health shows it all the time.
                    if !std::mem::replace(&mut is_reported, true) {
                        warn!(%error, "an agent waits: the log cannot be written");
                    }
                    let is_stopped = || async { self.unless_stopped(tokio::time::sleep(RETRY_AFTER)).await.is_err() };
                    if matches!(self.retries, Retries::Never) || is_stopped().await {
                        return Err(WriteFailure::Stopped);
                    }
                }
                Err(error) => {
                    warn!(%error, "what an agent said cannot be written to the log");
                    return Err(WriteFailure::Stopped);
                }
            }
        }
    }

    /// Builds a transaction from the state and writes it; builds it again if somebody else has changed the channel in
    /// between. Returns the seq of its last entry, or `None` if `make` built nothing.
    pub(super) async fn transact<F>(&self, make: impl Fn() -> F) -> Result<Option<Seq>, TaskStopped>
    where
        F: Future<Output = Result<Option<Transaction>, TaskStopped>>,
    {
        loop {
            let Some(transaction) = make().await? else { return Ok(None) };
            match self.write(&transaction).await {
                Ok(seqs) => {
                    let seq = seqs.last().copied().unwrap_or(0);
                    self.applied(seq).await?;
                    return Ok(Some(seq));
                }
                Err(WriteFailure::Conflict(last)) => self.applied(last).await?,
                Err(WriteFailure::TooLarge) => {
                    warn!("a change is too large for the log and was left out");
                    return Ok(None);
                }
                Err(WriteFailure::Stopped) => return Err(TaskStopped),
            }
        }
    }

    /// Waits until the state has applied the log up to this seq.
    pub(super) async fn applied(&self, seq: Seq) -> Result<(), TaskStopped> {
        self.unless_stopped(self.log_writer.state().reached(seq)).await?.map_err(|_closed| TaskStopped)
    }

    /// Whether the task has been told to stop.
    pub(super) fn stop_request(&self) -> StopRequest {
        match &self.retries {
            Retries::UntilStopped(stop) => *stop.borrow(),
            Retries::Never => StopRequest::None,
        }
    }

    /// Waits until the task is told to stop.
    pub(super) async fn stopped(&self) {
        match &self.retries {
            // An error means that the registry is gone, and with it everybody who could tell.
            Retries::UntilStopped(stop) => drop(stop.clone().wait_for(|stop| *stop != StopRequest::None).await),
            Retries::Never => std::future::pending().await,
        }
    }

    /// Completes some work, unless the task is told to stop before.
    pub(super) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, TaskStopped> {
        tokio::select! {
            done = work => Ok(done),
            () = self.stopped() => Err(TaskStopped),
        }
    }
}

/// What was read of a channel's state; `None` if the channel cannot be read now.
pub(super) fn if_readable<T>(read: Result<Option<T>, StateError>) -> Result<Option<T>, TaskStopped> {
    match read {
        Ok(value) => Ok(value),
        Err(StateError::Closed) => Err(TaskStopped),
        Err(StateError::NotFound) => Ok(None),
        Err(error) => {
            warn!(%error, "the state of a channel cannot be read");
            Ok(None)
        }
    }
}
