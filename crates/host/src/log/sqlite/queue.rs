//! What waits for the writer: bounded in bytes, taken all at once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::super::{AppendError, Batch, Policy, Save, Seq, WriteError};
use crate::lock::lock;

/// What an entry costs beside its body, about.
const ENTRY: usize = 256;
/// A transaction has no more than this many jobs, so that the first of them does not wait for ever.
const MAX_JOBS: usize = 4096;
/// Nor more bytes than this, beside the first job.
const MAX_BYTES: usize = 16 << 20;

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, WriteError>>;

/// Something for the writer to do.
pub(super) enum Job {
    Append { batch: Batch, room: OwnedSemaphorePermit, reply: oneshot::Sender<Result<Vec<Seq>, AppendError>> },
    Save { save: Save, reply: Reply<()> },
    Trim { channel: Arc<str>, before: Seq, reply: Reply<u64> },
    Retain { policy: Policy, reply: Reply<u64> },
    Erase { session: Arc<str>, reply: Reply<u64> },
    Compact { reply: Reply<()> },
}

impl Job {
    /// Whether it can share a transaction with others.
    fn is_shared(&self) -> bool {
        matches!(self, Self::Append { .. } | Self::Save { .. })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Append { batch, .. } => batch.bytes(),
            Self::Save { save, .. } => save.rows.iter().map(|(_, body)| body.len()).sum(),
            _ => 0,
        }
    }
}

/// What the writer takes at once: jobs that share a transaction, or one that does not.
pub(super) enum Work {
    Jobs(Vec<Job>),
    /// Nothing for now.
    Idle,
    /// Nothing, and nothing will come.
    Closed,
}

pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    room: Arc<Semaphore>,
    most: u32,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    pub(super) fn new(max_bytes: usize) -> Self {
        let most = u32::try_from(max_bytes).unwrap_or(u32::MAX).max(1);
        let room = Arc::new(Semaphore::new(usize::try_from(most).unwrap_or(max_bytes)));
        Self { state: Mutex::default(), wake: Condvar::new(), room, most }
    }

    /// Waits for room for a batch; a batch that is larger than all room takes all of it. `None` if the log is closed.
    pub(super) async fn room(&self, batch: &Batch) -> Option<OwnedSemaphorePermit> {
        let cost = batch.bytes().saturating_add(batch.entries.len().saturating_mul(ENTRY)).max(ENTRY);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX).min(self.most);
        self.room.clone().acquire_many_owned(cost).await.ok()
    }

    /// Whether the job will be looked at.
    pub(super) fn push(&self, job: Job) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.jobs.push_back(job);
        // The writer looks before it sleeps: only the first job has to wake it.
        let first = state.jobs.len() == 1;
        drop(state);
        if first {
            self.wake.notify_one();
        }
        true
    }

    /// Takes nothing more. What is queued will still be done.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.room.close();
        self.wake.notify_all();
    }

    /// What queued up: waits for it, for so long at most.
    pub(super) fn take(&self, wait: Option<Duration>) -> Work {
        let mut state = self.state();
        if state.jobs.is_empty() && !state.closed {
            state = match wait {
                Some(wait) => {
                    let waited = self.wake.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let idle = |state: &mut State| state.jobs.is_empty() && !state.closed;
                    self.wake.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while let Some(job) = state.jobs.pop_front() {
            bytes += job.bytes();
            let fits = jobs.is_empty() || job.is_shared() && jobs.len() < MAX_JOBS && bytes <= MAX_BYTES;
            if !fits {
                state.jobs.push_front(job);
                break;
            }
            let shared = job.is_shared();
            jobs.push(job);
            if !shared {
                break;
            }
        }
        match jobs.is_empty() {
            false => Work::Jobs(jobs),
            true if state.closed => Work::Closed,
            true => Work::Idle,
        }
    }

    /// Bytes of what waits, about.
    pub(super) fn used(&self) -> u64 {
        u64::from(self.most).saturating_sub(self.room.available_permits() as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
