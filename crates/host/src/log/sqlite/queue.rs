//! What waits for the writer: bounded in bytes, taken a bounded transaction at a time, each source in its turn.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::{AppendError, Batch, Policy, Save, Seq, WriteError};
use super::admission::{self, Admission, Admitted};
use super::fair::{Fair, Fifo, Line, Next};
use crate::lock::lock;

/// A transaction has no more than this many jobs, so that the first of them does not wait for ever.
const MAX_JOBS: usize = 4096;
/// Nor more bytes than this, beside the first job: what comes meanwhile waits for all of it.
const MAX_BYTES: usize = 1 << 20;
/// A job of more bytes than this is written in pieces.
pub(super) const LARGE: usize = 2 << 20;

/// The source of what the state saves.
const SAVES: &str = "saves";

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, WriteError>>;

/// A batch that waits, and who waits for it.
pub(super) struct Append {
    pub(super) batch: Batch,
    pub(super) admitted: Admitted,
    pub(super) reply: oneshot::Sender<Result<Vec<Seq>, AppendError>>,
}

/// Something for the writer to do that can share a transaction with others.
pub(super) enum Job {
    Append(Append),
    Save { save: Save, reply: Reply<()> },
}

impl Job {
    /// Bytes, about.
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Append(append) => admission::cost(&append.batch),
            Self::Save { save, .. } => cost_of(save),
        }
    }
}

fn cost_of(save: &Save) -> usize {
    let rows: usize = save.rows.iter().map(|(_, body)| body.len()).sum();
    rows.saturating_add(save.snapshot.as_ref().map_or(0, |snapshot| snapshot.body.len()))
}

/// Something that shares no transaction.
pub(super) enum Alone {
    Trim { channel: Arc<str>, before: Seq, reply: Reply<u64> },
    Retain { policy: Policy, reply: Reply<u64> },
    Erase { session: Arc<str>, reply: Reply<u64> },
    Compact { reply: Reply<()> },
}

/// What the writer takes at once.
pub(super) enum Work {
    /// Jobs that share a transaction.
    Jobs(Vec<Job>),
    /// One batch that is written in pieces.
    Large(Append),
    Alone(Alone),
    /// Nothing for now.
    Idle,
    /// Nothing, and nothing will come.
    Closed,
}

/// Whether a batch may be taken that is written in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    All,
    /// One is being written.
    NoLarge,
}

pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    admission: Admission,
}

#[derive(Default)]
struct State {
    shared: Fair<Arc<str>, Fair<Arc<str>, Fifo<Job>>>,
    alone: VecDeque<Alone>,
    /// What shares a transaction was taken last: it is the others' turn.
    is_turn_of_alone: bool,
    closed: bool,
    /// The writer waits to be woken.
    sleeps: bool,
}

impl Queue {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), admission: Admission::new(max_bytes) }
    }

    /// Puts a batch in when there is room for it; whether it will be looked at.
    pub(super) async fn append(&self, batch: Batch, reply: oneshot::Sender<Result<Vec<Seq>, AppendError>>) -> bool {
        let Some((place, admitted)) = self.admission.admit(&batch).await else { return false };
        let (source, channel, cost) = (batch.source(), batch.channel(), admission::cost(&batch));
        let pushed = self.push(|state| {
            let job = Job::Append(Append { batch, admitted, reply });
            state.shared.line(&source).line(&channel).push(cost, job);
        });
        drop(place);
        pushed
    }

    /// Whether it will be looked at.
    pub(super) fn save(&self, save: Save, reply: Reply<()>) -> bool {
        let cost = cost_of(&save);
        self.push(|state| {
            let line = state.shared.line(&Arc::from(SAVES)).line(&save.channel);
            line.push(cost, Job::Save { save, reply });
        })
    }

    /// Whether it will be looked at.
    pub(super) fn alone(&self, job: Alone) -> bool {
        self.push(|state| state.alone.push_back(job))
    }

    fn push(&self, add: impl FnOnce(&mut State)) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        add(&mut state);
        // The writer looks before it sleeps.
        let wakes = std::mem::take(&mut state.sleeps);
        drop(state);
        if wakes {
            self.wake.notify_one();
        }
        true
    }

    /// Takes nothing more. What is queued will still be done.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.admission.close();
        self.wake.notify_all();
    }

    /// What comes next: waits for it, for so long at most.
    pub(super) fn take(&self, wait: Option<Duration>, take: Take) -> Work {
        let mut state = self.state();
        loop {
            let work = state.next(take);
            if !matches!(work, Work::Idle) || wait == Some(Duration::ZERO) {
                return work;
            }
            state.sleeps = true;
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

    /// Bytes of what waits, about.
    pub(super) fn used(&self) -> u64 {
        self.admission.used()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn next(&mut self, take: Take) -> Work {
        let is_turn_of_alone = std::mem::replace(&mut self.is_turn_of_alone, false);
        if is_turn_of_alone && let Some(job) = self.alone.pop_front() {
            return Work::Alone(job);
        }
        let most = if take == Take::All { usize::MAX } else { LARGE };
        let (mut jobs, mut bytes) = (Vec::new(), 0_usize);
        while jobs.len() < MAX_JOBS
            && let Next::Costs(cost) = self.shared.next_cost(most)
            && (jobs.is_empty() || bytes.saturating_add(cost) <= MAX_BYTES)
            && let Some(job) = self.shared.take()
        {
            match job {
                Job::Append(append) if cost > LARGE => {
                    self.is_turn_of_alone = true;
                    return Work::Large(append);
                }
                job => jobs.push(job),
            }
            bytes = bytes.saturating_add(cost);
        }
        if !jobs.is_empty() {
            self.is_turn_of_alone = true;
            return Work::Jobs(jobs);
        }
        match self.alone.pop_front() {
            Some(job) => Work::Alone(job),
            None if self.closed => Work::Closed,
            None => Work::Idle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue of a log, filled without waiting: each batch as its source, its channel and its bytes.
    async fn filled(batches: &[(&str, &str, usize)]) -> Queue {
        let queue = Queue::new(1 << 30);
        for (source, channel, bytes) in batches {
            let batch = Batch::new().from_source(*source).entry(*channel, vec![b'x'; *bytes]);
            assert!(queue.append(batch, oneshot::channel().0).await);
        }
        queue
    }

    /// The sources in each thing that is taken; a large one has a star.
    fn taken(queue: &Queue) -> Vec<String> {
        let name = |append: &Append| append.batch.source().to_string();
        let mut all = Vec::new();
        loop {
            all.push(match queue.take(Some(Duration::ZERO), Take::All) {
                Work::Jobs(jobs) => {
                    let names = jobs.iter().map(|job| match job {
                        Job::Append(append) => name(append),
                        Job::Save { .. } => "save".to_owned(),
                    });
                    names.collect::<Vec<_>>().join(" ")
                }
                Work::Large(append) => format!("{}*", name(&append)),
                Work::Alone(_) => "alone".to_owned(),
                Work::Idle | Work::Closed => return all,
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
        let first = queue.take(Some(Duration::ZERO), Take::All);
        assert!(matches!(first, Work::Jobs(jobs) if jobs.len() <= 5));
        // Who comes now is in the next one, however much waits.
        assert!(queue.append(Batch::new().from_source("small").entry("x", "y"), oneshot::channel().0).await);
        assert!(taken(&queue)[0].starts_with("small "));
    }

    #[tokio::test]
    async fn what_shares_no_transaction_has_its_turn_between_two_others() {
        let queue = filled(&[("a", "a", 900_000), ("b", "b", 900_000), ("c", "c", 900_000)]).await;
        for _ in 0..2 {
            assert!(queue.alone(Alone::Compact { reply: oneshot::channel().0 }));
        }
        assert_eq!(
            taken(&queue).iter().map(|work| *work == "alone").collect::<Vec<_>>(),
            [false, true, false, true, false]
        );
    }

    #[tokio::test]
    async fn while_one_batch_is_written_in_pieces_only_small_ones_are_taken() {
        let queue = filled(&[("a", "a", 30 << 20), ("b", "b", 300)]).await;
        assert!(matches!(queue.take(Some(Duration::ZERO), Take::NoLarge), Work::Jobs(jobs) if jobs.len() == 1));
        assert!(matches!(queue.take(Some(Duration::ZERO), Take::NoLarge), Work::Idle));
        assert!(matches!(queue.take(Some(Duration::ZERO), Take::All), Work::Large(_)));
        queue.close();
        assert!(matches!(queue.take(None, Take::NoLarge), Work::Closed));
    }
}
