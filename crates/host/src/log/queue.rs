//! The queue of the writer: bounded in bytes, taken one bounded transaction at a time, with sources in turns.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::admission::{self, AdmissionControl, AdmissionPermit, OrderGuard};
use super::round_robin::{CostedQueue, Fifo, NextCost, RoundRobin};
use super::{AppendError, Batch, RetentionPolicy, Save, Seq, WriteError};
use crate::lock::lock;

/// The most jobs of a transaction, so that the first of them does not wait long.
const MAX_JOBS: usize = 4096;
/// The most bytes of a transaction apart from its first job: later jobs wait for all of it.
const MAX_BYTES: usize = 1 << 20;
/// A job of more bytes than this is written in pieces.
pub(super) const MIN_LARGE_JOB: usize = 2 << 20;

/// The source of saves.
const SAVES: &str = "saves";

/// Sends the answer to a caller.
pub(super) type ReplySender<T> = oneshot::Sender<Result<T, WriteError>>;

/// A batch that waits, with its caller, and with what its log has stored of it already.
pub(super) struct Append<S = ()> {
    pub(super) batch: Batch,
    pub(super) stored: S,
    pub(super) admitted: AdmissionPermit,
    pub(super) reply: oneshot::Sender<Result<Vec<Seq>, AppendError>>,
    /// How many syncs there had been when it entered the queue.
    pub(super) syncs_before: u64,
}

/// A job that can share a transaction with others.
pub(super) enum SharedJob<S = (), V = Save> {
    Append(Append<S>),
    Save { save: V, cost: usize, reply: ReplySender<()> },
}

impl<S, V> SharedJob<S, V> {
    /// About how many bytes it has.
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Append(append) => admission::cost(&append.batch),
            Self::Save { cost, .. } => *cost,
        }
    }
}

/// About how many bytes a save has.
pub(super) fn cost_of_save(save: &Save) -> usize {
    let rows: usize = save.rows.iter().map(|(_, body)| body.len()).sum();
    rows.saturating_add(save.snapshot.as_ref().map_or(0, |snapshot| snapshot.body.len()))
}

/// A job that shares no transaction.
pub(super) enum ExclusiveJob {
    Trim { channel: Arc<str>, before: Seq, reply: ReplySender<u64> },
    Retain { policy: RetentionPolicy, reply: ReplySender<u64> },
    Erase { session: Arc<str>, reply: ReplySender<u64> },
    Compact { reply: ReplySender<()> },
}

/// What the writer takes from the queue at once.
pub(super) enum QueueItem<S = (), V = Save> {
    /// Jobs that share a transaction.
    Jobs(Vec<SharedJob<S, V>>),
    /// One batch that is written in pieces.
    Large(Append<S>),
    ExclusiveJob(ExclusiveJob),
    /// Nothing for now.
    Idle,
    /// Nothing, and the queue is closed.
    Closed,
}

/// Which items may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeMode {
    All,
    /// No batch that is written in pieces, because another one is being written.
    NoLarge,
}

/// Which jobs are taken next: shared and exclusive ones alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Turn {
    #[default]
    Shared,
    Exclusive,
}

pub(super) struct Queue<S = (), V = Save> {
    state: Mutex<QueueState<S, V>>,
    /// Wakes a writer that is a thread.
    wake: Condvar,
    /// Wakes a writer that is a task.
    pushed: Notify,
    admission: AdmissionControl,
    /// [`Metrics::syncs`](super::super::Metrics::syncs).
    syncs: Arc<AtomicU64>,
}

/// The jobs of one source, by channel.
type ChannelQueues<S, V> = RoundRobin<Arc<str>, Fifo<SharedJob<S, V>>>;

struct QueueState<S, V> {
    /// By source, then by channel.
    shared: RoundRobin<Arc<str>, ChannelQueues<S, V>>,
    exclusive: VecDeque<ExclusiveJob>,
    turn: Turn,
    closed: bool,
    /// Whether the writer sleeps and has to be woken.
    is_writer_asleep: bool,
}

impl<S, V> Queue<S, V> {
    pub(super) fn new(max_bytes: usize, syncs: Arc<AtomicU64>) -> Self {
        let state = QueueState {
            shared: RoundRobin::default(),
            exclusive: VecDeque::new(),
            turn: Turn::default(),
            closed: false,
            is_writer_asleep: false,
        };
        let admission = AdmissionControl::new(max_bytes);
        Self { state: Mutex::new(state), wake: Condvar::new(), pushed: Notify::new(), admission, syncs }
    }

    /// Waits until a batch may enter the queue; `None` if the queue is closed. Later batches of its source and channel wait until
    /// the guard is dropped.
    pub(super) async fn admit(&self, batch: &Batch) -> Option<(OrderGuard, AdmissionPermit)> {
        self.admission.acquire(batch).await
    }

    /// Adds a batch that was admitted; returns false if the queue is closed.
    pub(super) fn append(
        &self,
        batch: Batch,
        stored: S,
        (order, admitted): (OrderGuard, AdmissionPermit),
        reply: oneshot::Sender<Result<Vec<Seq>, AppendError>>,
    ) -> bool {
        let (source, channel, cost) = (batch.source(), batch.channel(), admission::cost(&batch));
        let pushed = self.push(|state| {
            // While the queue is locked, the writer takes nothing from it.
            let syncs_before = self.syncs.load(Relaxed);
            let job = SharedJob::Append(Append { batch, stored, admitted, reply, syncs_before });
            state.shared.queue(&source).queue(&channel).push(cost, job);
        });
        drop(order);
        pushed
    }

    /// Adds a job; returns false if the queue is closed.
    pub(super) fn save(&self, channel: &Arc<str>, cost: usize, save: V, reply: ReplySender<()>) -> bool {
        self.push(|state| {
            let queue = state.shared.queue(&Arc::from(SAVES)).queue(channel);
            queue.push(cost, SharedJob::Save { save, cost, reply });
        })
    }

    /// Adds a job; returns false if the queue is closed.
    pub(super) fn exclusive(&self, job: ExclusiveJob) -> bool {
        self.push(|state| state.exclusive.push_back(job))
    }

    fn push(&self, add: impl FnOnce(&mut QueueState<S, V>)) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        add(&mut state);
        // The writer checks the queue before it sleeps.
        let wakes = std::mem::take(&mut state.is_writer_asleep);
        drop(state);
        if wakes {
            self.wake.notify_one();
        }
        self.pushed.notify_one();
        true
    }

    /// Closes the queue. What is queued is still done.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.admission.close();
        self.wake.notify_all();
        self.pushed.notify_one();
    }

    /// The next item, for a writer that is a task. Waits for it.
    pub(super) async fn next(&self) -> QueueItem<S, V> {
        loop {
            match self.take(Some(Duration::ZERO), TakeMode::All) {
                QueueItem::Idle => self.pushed.notified().await,
                item => return item,
            }
        }
    }

    /// Whether nothing is added any more.
    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// The next item. Waits for it, at most for so long.
    pub(super) fn take(&self, wait: Option<Duration>, take: TakeMode) -> QueueItem<S, V> {
        let mut state = self.state();
        loop {
            let work = state.next(take);
            if !matches!(work, QueueItem::Idle) || wait == Some(Duration::ZERO) {
                return work;
            }
            state.is_writer_asleep = true;
            match wait {
                Some(wait) => {
                    let waited = self.wake.wait_timeout(state, wait);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    return state.next(take);
                }
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// About how many bytes wait.
    pub(super) fn used(&self) -> u64 {
        self.admission.used()
    }

    fn state(&self) -> MutexGuard<'_, QueueState<S, V>> {
        lock(&self.state)
    }
}

impl<S, V> QueueState<S, V> {
    fn next(&mut self, take: TakeMode) -> QueueItem<S, V> {
        let turn = std::mem::take(&mut self.turn);
        if turn == Turn::Exclusive
            && let Some(job) = self.exclusive.pop_front()
        {
            return QueueItem::ExclusiveJob(job);
        }
        let most = if take == TakeMode::All { usize::MAX } else { MIN_LARGE_JOB };
        let (mut jobs, mut bytes) = (Vec::new(), 0_usize);
        while jobs.len() < MAX_JOBS
            && let NextCost::Costs(cost) = self.shared.next_cost(most)
            && (jobs.is_empty() || bytes.saturating_add(cost) <= MAX_BYTES)
            && let Some(job) = self.shared.take()
        {
            match job {
                SharedJob::Append(append) if cost > MIN_LARGE_JOB => {
                    self.turn = Turn::Exclusive;
                    return QueueItem::Large(append);
                }
                job => jobs.push(job),
            }
            bytes = bytes.saturating_add(cost);
        }
        if !jobs.is_empty() {
            self.turn = Turn::Exclusive;
            return QueueItem::Jobs(jobs);
        }
        match self.exclusive.pop_front() {
            Some(job) => QueueItem::ExclusiveJob(job),
            None if self.closed => QueueItem::Closed,
            None => QueueItem::Idle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn push(queue: &Queue, batch: Batch) -> bool {
        let admitted = queue.admit(&batch).await.expect("open");
        queue.append(batch, (), admitted, oneshot::channel().0)
    }

    /// The queue of a log, filled without waiting: each batch as its source, its channel and its bytes.
    async fn filled(batches: &[(&str, &str, usize)]) -> Queue {
        let queue = Queue::new(1 << 30, Arc::default());
        for (source, channel, bytes) in batches {
            let batch = Batch::new().from_source(*source).entry(*channel, vec![b'x'; *bytes]);
            assert!(push(&queue, batch).await);
        }
        queue
    }

    /// The sources in each thing that is taken; a large one has a star.
    fn taken(queue: &Queue) -> Vec<String> {
        let name = |append: &Append| append.batch.source().to_string();
        let mut all = Vec::new();
        loop {
            all.push(match queue.take(Some(Duration::ZERO), TakeMode::All) {
                QueueItem::Jobs(jobs) => {
                    let names = jobs.iter().map(|job| match job {
                        SharedJob::Append(append) => name(append),
                        SharedJob::Save { .. } => "save".to_owned(),
                    });
                    names.collect::<Vec<_>>().join(" ")
                }
                QueueItem::Large(append) => format!("{}*", name(&append)),
                QueueItem::ExclusiveJob(_) => "alone".to_owned(),
                QueueItem::Idle | QueueItem::Closed => return all,
            });
        }
    }

    #[tokio::test]
    async fn small_batches_share_the_next_transaction_and_large_ones_wait_behind_them() {
        let queue =
            filled(&[("bulk", "a", 30 << 20), ("bulk", "a", 30 << 20), ("one", "b", 300), ("two", "c", 300)]).await;
        assert_eq!(taken(&queue), ["one two", "bulk*", "bulk*"]);
    }

    #[tokio::test]
    async fn a_transaction_has_no_more_than_its_share_of_many_that_have_much() {
        let batches: Vec<_> =
            (0..64).map(|n| (["a", "b", "c", "d", "e", "f", "g", "h"][n % 8], "t", 200_000)).collect();
        let queue = filled(&batches).await;
        let first = queue.take(Some(Duration::ZERO), TakeMode::All);
        assert!(matches!(first, QueueItem::Jobs(jobs) if jobs.len() <= 5));
        // Who comes now is in the next one, however much waits.
        assert!(push(&queue, Batch::new().from_source("small").entry("x", "y")).await);
        assert!(taken(&queue)[0].starts_with("small "));
    }

    #[tokio::test]
    async fn what_shares_no_transaction_has_its_turn_between_two_others() {
        let queue = filled(&[("a", "a", 900_000), ("b", "b", 900_000), ("c", "c", 900_000)]).await;
        for _ in 0..2 {
            assert!(queue.exclusive(ExclusiveJob::Compact { reply: oneshot::channel().0 }));
        }
        assert_eq!(
            taken(&queue).iter().map(|work| *work == "alone").collect::<Vec<_>>(),
            [false, true, false, true, false]
        );
    }

    #[tokio::test]
    async fn while_one_batch_is_written_in_pieces_only_small_ones_are_taken() {
        let queue = filled(&[("a", "a", 30 << 20), ("b", "b", 300)]).await;
        assert!(
            matches!(queue.take(Some(Duration::ZERO), TakeMode::NoLarge), QueueItem::Jobs(jobs) if jobs.len() == 1)
        );
        assert!(matches!(queue.take(Some(Duration::ZERO), TakeMode::NoLarge), QueueItem::Idle));
        assert!(matches!(queue.take(Some(Duration::ZERO), TakeMode::All), QueueItem::Large(_)));
        queue.close();
        assert!(matches!(queue.take(None, TakeMode::NoLarge), QueueItem::Closed));
    }
}
