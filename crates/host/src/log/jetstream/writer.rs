//! The writer: takes jobs from the queue, publishes them one group at a time, makes them visible, answers them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use super::super::admission::{self, AdmissionPermit};
use super::super::maintenance::now_ms;
use super::super::plan::{Plan, Planned, Verdict};
use super::super::queue::{Append, ExclusiveJob, QueueItem, ReplySender, SharedJob};
use super::super::{AppendError, Entry, LogHealth, Seq, WriteError};
use super::group::{self, GroupRoom};
use super::store::PublishError;
use super::wire::{Decision, Group, Head, Outgoing, SavedChannel};
use super::{LongBody, Shared};

/// A group that is not known to be in the stream after this time is [`AppendError::Unknown`] to its callers. The writer goes on
/// finding out. It is longer than the election of a new leader.
const UNKNOWN_AFTER: Duration = Duration::from_secs(15);
/// How long the writer tries once the log is closed.
const CLOSING: Duration = Duration::from_secs(5);
/// The wait before the outcome of a publish is asked for again: at first, and at most.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Why a group is not in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no room.
    Full,
    /// Another writer has taken over.
    Fenced,
    /// JetStream refuses it, or the stream lacks messages that were acknowledged.
    Refused(String),
    /// The log was closed before the outcome was known.
    Unknown,
}

/// Whoever waits for a group.
pub(super) enum Callers {
    Appends(Vec<Caller>),
    Other,
}

/// Whoever waits for a batch.
pub(super) struct Caller {
    reply: oneshot::Sender<Result<Vec<Seq>, AppendError>>,
    /// How many syncs there had been when it entered the queue, if its batch is small.
    small_since: Option<u64>,
    _admitted: AdmissionPermit,
}

/// A batch with the bodies that are in the other stream.
type WaitingAppend = Append<Vec<Option<LongBody>>>;

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    /// The position of the newest checkpoint that this writer has saved.
    pub(super) checkpoint: u64,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let checkpoint = shared.view().index.position;
        Self { shared, checkpoint }
    }

    /// Runs until the log is closed or abandoned, or another writer has taken over.
    pub(super) async fn run(mut self, mut abandoned: watch::Receiver<bool>) {
        let health = tokio::select! {
            // A group that is on its way has callers; without an answer they know that the outcome is unknown.
            Ok(_) = abandoned.wait_for(|abandoned| *abandoned) => LogHealth::Fenced,
            health = self.work() => health,
        };
        self.end(health).await;
    }

    /// Works until there is nothing more to do, and why.
    async fn work(&mut self) -> LogHealth {
        loop {
            let done = match self.shared.queue.next().await {
                QueueItem::Jobs(jobs) => self.shared_jobs(jobs).await,
                QueueItem::Large(append) => self.shared_jobs(vec![SharedJob::Append(append)]).await,
                QueueItem::ExclusiveJob(job) => self.exclusive_job(job).await,
                QueueItem::Idle => Ok(()),
                QueueItem::Closed => break,
            };
            self.shared.metrics.queued_bytes.store(self.shared.queue.used(), Relaxed);
            if done == Err(Failure::Fenced) {
                return LogHealth::Fenced;
            }
            self.checkpoint_if_due().await;
        }
        self.save_checkpoint().await;
        LogHealth::Closed
    }

    /// Answers whoever still waits.
    async fn end(&mut self, health: LogHealth) {
        let (append, write) = match health {
            LogHealth::Fenced => (AppendError::Fenced, WriteError::Fenced),
            _ => (AppendError::Closed, WriteError::Closed),
        };
        self.shared.health.send_replace(health);
        self.shared.queue.close();
        self.refuse_waiting(&append, &write).await;
    }

    async fn refuse_waiting(&self, append: &AppendError, write: &WriteError) {
        loop {
            match self.shared.queue.take(Some(Duration::ZERO), super::super::queue::TakeMode::All) {
                QueueItem::Jobs(jobs) => {
                    for job in jobs {
                        match job {
                            SharedJob::Append(waiting) => self.refuse(waiting, append).await,
                            SharedJob::Save { reply, .. } => drop(reply.send(Err(write.clone()))),
                        }
                    }
                }
                QueueItem::Large(waiting) => self.refuse(waiting, append).await,
                QueueItem::ExclusiveJob(job) => refuse_exclusive(job, write),
                QueueItem::Idle | QueueItem::Closed => return,
            }
        }
    }

    async fn refuse(&self, waiting: WaitingAppend, error: &AppendError) {
        drop(waiting.reply.send(Err(error.clone())));
        self.shared.discard(waiting.stored).await;
    }

    async fn shared_jobs(&mut self, jobs: Vec<SharedJob<Vec<Option<LongBody>>, SavedChannel>>) -> Result<(), Failure> {
        let (mut appends, mut saves) = (Vec::new(), Vec::new());
        for job in jobs {
            match job {
                SharedJob::Append(append) => appends.push(append),
                SharedJob::Save { save, reply, .. } => saves.push((save, reply)),
            }
        }
        // Entries of one channel next to each other are one message. Batches of one channel keep their order.
        appends.sort_by_cached_key(|append| append.batch.channel());
        let mut appends = VecDeque::from(appends);
        let mut result = Ok(());
        while !appends.is_empty() {
            let done = self.append(&mut appends).await;
            if let Err(Failure::Fenced) = done {
                for append in std::mem::take(&mut appends) {
                    self.refuse(append, &AppendError::Fenced).await;
                }
                result = done;
            }
        }
        for (save, reply) in saves {
            let done = match &result {
                Ok(()) => self.save(save).await,
                Err(_) => Err(WriteError::Fenced),
            };
            if done == Err(WriteError::Fenced) {
                result = Err(Failure::Fenced);
            }
            drop(reply.send(done));
        }
        result
    }

    /// Publishes as many of the first batches as one group takes.
    async fn append(&mut self, waiting: &mut VecDeque<WaitingAppend>) -> Result<(), Failure> {
        let merge = self.shared.config.merge.clone();
        let mut plan = Plan::new(merge.is_some());
        let (mut callers, mut kept, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        let mut room = GroupRoom::default();
        while let Some(append) = waiting.pop_front_if(|append| room.add(&append.batch)) {
            let Append { batch, stored, admitted, reply, syncs_before } = append;
            let small_since = (admission::cost(&batch) <= admission::SMALL).then_some(syncs_before);
            let view = self.shared.view();
            let known = view.index.batch(batch.id);
            let blobs = stored.clone();
            match plan.add(batch, known, stored, &view.index) {
                Verdict::Accepted => kept.extend(blobs),
                Verdict::Settled => settled.extend(blobs),
            }
            callers.push(Caller { reply, small_since, _admitted: admitted });
        }
        self.shared.discard(settled).await;
        let (planned, at_ms, messages) = {
            let view = self.shared.view();
            let planned = plan.finish(view.index.next, merge.as_deref());
            let at_ms = view.index.at_ms.max(now_ms());
            let session_of = |uri: &str| view.index.get(uri).and_then(|channel| channel.session.clone());
            let messages = match planned.batches.is_empty() {
                true => Vec::new(),
                false => group::messages(&self.shared.config.host, random(), at_ms, &planned, session_of),
            };
            (planned, at_ms, messages)
        };
        self.shared.metrics.commit_batches.observe(callers.len() as u64);
        let mut callers = Callers::Appends(callers);
        let done = self.publish(&messages, &mut callers).await;
        let Callers::Appends(callers) = callers else { return done };
        match &done {
            Ok(()) => self.visible(&messages, planned, at_ms, callers),
            Err(failure) => {
                callers.into_iter().for_each(|caller| drop(caller.reply.send(Err(failure.into()))));
                self.shared.discard(kept).await;
            }
        }
        done
    }

    /// Makes a published group visible, and answers its callers.
    fn visible(&self, messages: &[Outgoing], planned: Planned<LongBody>, at_ms: u64, callers: Vec<Caller>) {
        let shared = &self.shared;
        let Planned { entries, answers, repeated, merged, .. } = planned;
        let metrics = &shared.metrics;
        metrics.repeated.fetch_add(repeated, Relaxed);
        metrics.merged.fetch_add(merged, Relaxed);
        metrics.entries.fetch_add(entries.len() as u64, Relaxed);
        let entries = entries.into_iter().map(|entry| {
            let body = entry.stored.map_or(entry.body, |long| long.body);
            metrics.bytes.fetch_add(body.len() as u64, Relaxed);
            Entry::new(entry.seq, at_ms, entry.channel, body)
        });
        shared.apply(messages, entries.collect());
        let syncs = metrics.syncs.load(Relaxed);
        for (caller, answer) in callers.into_iter().zip(answers) {
            match &answer {
                Ok(_) => metrics.batches.fetch_add(1, Relaxed),
                Err(AppendError::Conflict { .. }) => metrics.conflicts.fetch_add(1, Relaxed),
                Err(_) => 0,
            };
            if let Some(before) = caller.small_since {
                metrics.small_append_syncs.observe(syncs.saturating_sub(before));
            }
            drop(caller.reply.send(answer));
        }
    }

    /// Publishes a decision, and makes it visible.
    pub(super) async fn decide(&mut self, group: Group, decision: Decision) -> Result<(), Failure> {
        let group = Group { id: random(), ..group };
        let messages = group::decision(&self.shared.config.host, group, decision);
        self.publish(&messages, &mut Callers::Other).await?;
        self.shared.apply(&messages, Vec::new());
        Ok(())
    }

    /// Says again what a group said whose messages go.
    pub(super) async fn repeat(&mut self, group: Group) -> Result<(), Failure> {
        let group = Group { id: random(), messages: 1, ..group };
        let head = Head { group: Some(group), run: None, decision: None };
        let subject = self.shared.config.host.control();
        let messages = [Outgoing { subject, head, payload: bytes::Bytes::new() }];
        self.publish(&messages, &mut Callers::Other).await?;
        self.shared.apply(&messages, Vec::new());
        Ok(())
    }

    /// Publishes a group. When this returns, it is in the stream, or never will be; unless the log was closed meanwhile.
    pub(super) async fn publish(&mut self, messages: &[Outgoing], callers: &mut Callers) -> Result<(), Failure> {
        let Some(group) = messages.first().and_then(|first| first.head.group.as_ref()).map(|group| group.id) else {
            return Ok(());
        };
        let shared = self.shared.clone();
        let expected = shared.view().index.position;
        let (begun, mut attempt, mut wait) = (Instant::now(), 0_u32, FIRST_WAIT);
        let mut may_publish = true;
        loop {
            let why = if may_publish {
                attempt += 1;
                match shared.store.publish(expected, messages, &format!("{group:016x}-{attempt}")).await {
                    Ok(()) => break,
                    Err(PublishError::Full) => return Err(self.fails(Failure::Full)),
                    Err(PublishError::Refused(why)) => return Err(self.fails(Failure::Refused(why))),
                    Err(PublishError::WrongSequence) => "the stream ends elsewhere".to_owned(),
                    Err(PublishError::Unknown(why)) => why,
                }
            } else {
                "JetStream does not answer".to_owned()
            };
            // What is published again is only what the leader does not have.
            may_publish = match self.look(expected, group).await {
                Ok(Found::Ours) => break,
                Ok(Found::Another) => return Err(self.fails(Failure::Fenced)),
                Ok(Found::Lost(seq)) => return Err(self.lost(seq)),
                Ok(Found::Nothing) => true,
                Err(_) => false,
            };
            if begun.elapsed() > UNKNOWN_AFTER {
                self.unknown(&why, callers).await;
            }
            if begun.elapsed() > CLOSING && shared.queue.is_closed() {
                return Err(Failure::Unknown);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        shared.metrics.commit_us.observe_time(begun.elapsed());
        shared.metrics.syncs.fetch_add(1, Relaxed);
        if attempt > 1 || !shared.health.borrow().is_good() {
            shared.metrics.recoveries.fetch_add(1, Relaxed);
            info!("the log is written again");
        }
        shared.health.send_if_modified(|health| !std::mem::replace(health, LogHealth::Good).is_good());
        Ok(())
    }

    /// Finds out what is in the stream after the expected end.
    async fn look(&self, expected: u64, group: u64) -> Result<Found, super::store::StoreError> {
        let store = &self.shared.store;
        if let Some(stored) = store.at(expected + 1).await? {
            let id = stored.head.and_then(|head| head.group).map(|group| group.id);
            return Ok(if id == Some(group) { Found::Ours } else { Found::Another });
        }
        let (end, _) = store.end().await?;
        Ok(match end.cmp(&expected) {
            std::cmp::Ordering::Equal => Found::Nothing,
            // Another owner has removed what it published there.
            std::cmp::Ordering::Greater => Found::Another,
            std::cmp::Ordering::Less => Found::Lost(self.shared.view().index.last),
        })
    }

    /// Answers callers that have waited long enough, and all who come until the outcome is known.
    async fn unknown(&self, why: &str, callers: &mut Callers) {
        let shared = &self.shared;
        if shared.health.borrow().is_good() {
            warn!("the log cannot be written: {why}");
            shared.metrics.failures.fetch_add(1, Relaxed);
        }
        shared.health.send_replace(LogHealth::Failed { reason: why.to_owned() });
        if let Callers::Appends(waiting) = callers {
            waiting.drain(..).for_each(|caller| drop(caller.reply.send(Err(AppendError::Unknown))));
        }
        self.refuse_waiting(&AppendError::Unknown, &WriteError::Unknown).await;
    }

    fn fails(&self, failure: Failure) -> Failure {
        let health = match &failure {
            Failure::Full => LogHealth::Full,
            Failure::Fenced => LogHealth::Fenced,
            Failure::Refused(reason) => LogHealth::Failed { reason: reason.clone() },
            Failure::Unknown => return failure,
        };
        self.shared.metrics.failures.fetch_add(1, Relaxed);
        self.shared.health.send_replace(health);
        failure
    }

    fn lost(&self, seq: Seq) -> Failure {
        self.shared.health.send_replace(LogHealth::Lost { seq });
        Failure::Refused("the stream lacks messages that were acknowledged".into())
    }

    async fn exclusive_job(&mut self, job: ExclusiveJob) -> Result<(), Failure> {
        fn answer<T>(reply: ReplySender<T>, done: Result<T, WriteError>) -> Result<(), Failure> {
            let is_fenced = matches!(done, Err(WriteError::Fenced));
            drop(reply.send(done));
            if is_fenced { Err(Failure::Fenced) } else { Ok(()) }
        }
        match job {
            ExclusiveJob::Trim { channel, before, reply } => answer(reply, self.trim(&channel, before).await),
            ExclusiveJob::Retain { policy, reply } => answer(reply, self.retain(policy).await),
            ExclusiveJob::Erase { session, reply } => answer(reply, self.erase(&session).await),
            // JetStream returns free space by itself.
            ExclusiveJob::Compact { reply } => answer(reply, Ok(())),
        }
    }
}

/// What is in the stream where a group was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The group.
    Ours,
    /// What another owner published.
    Another,
    /// Nothing: the group was not published.
    Nothing,
    /// The stream ends before: it lacks what was acknowledged, up to the entry with this seq.
    Lost(Seq),
}

impl Shared {
    /// Adds published messages to the index, and their entries to the window.
    pub(super) fn apply(&self, messages: &[Outgoing], entries: Vec<Entry>) {
        let mut view = self.view_mut();
        let position = view.index.position;
        for (position, message) in (position + 1..).zip(messages) {
            view.index.apply(position, &message.head);
            view.changed(message.head.decision.as_ref());
        }
        self.publish_entries(view, entries);
    }

    /// Shows new entries to readers.
    pub(super) fn publish_entries(&self, mut view: std::sync::RwLockWriteGuard<'_, super::View>, entries: Vec<Entry>) {
        view.window.push(entries);
        self.metrics.recent_bytes.store(view.window.bytes() as u64, Relaxed);
        let last = view.index.last;
        drop(view);
        self.last.send_if_modified(|known| std::mem::replace(known, last) != last);
    }
}

impl super::View {
    /// Follows a decision in the window.
    pub(super) fn changed(&mut self, decision: Option<&Decision>) {
        match decision {
            Some(Decision::Trim { channel, upto, .. }) => self.window.trim(channel, *upto),
            // Which entries of other channels are gone is not known here: readers find the rest in the stream.
            Some(Decision::Erase { .. }) => self.window.reset(self.index.last, self.index.trims()),
            Some(Decision::Fence { .. } | Decision::Save(_)) | None => {}
        }
    }
}

impl From<&Failure> for AppendError {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Full => Self::Full,
            Failure::Fenced => Self::Fenced,
            Failure::Refused(_) | Failure::Unknown => Self::Unknown,
        }
    }
}

impl From<Failure> for WriteError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Full => Self::Full,
            Failure::Fenced => Self::Fenced,
            Failure::Refused(_) | Failure::Unknown => Self::Unknown,
        }
    }
}

fn refuse_exclusive(job: ExclusiveJob, error: &WriteError) {
    match job {
        ExclusiveJob::Compact { reply } => drop(reply.send(Err(error.clone()))),
        ExclusiveJob::Trim { reply, .. } | ExclusiveJob::Retain { reply, .. } | ExclusiveJob::Erase { reply, .. } => {
            drop(reply.send(Err(error.clone())));
        }
    }
}

/// A number that no other writer has.
pub(super) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without random bytes, the time has to do.
    if getrandom::fill(&mut bytes).is_err() {
        return super::super::gaps::clock();
    }
    u64::from_be_bytes(bytes)
}
