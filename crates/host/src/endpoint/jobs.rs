//! What a connection has under way for its client: answers that are being made, and actions that wait their turn.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use breakbulk_proto::Grant;
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{Id, JoinSet};

use super::handshake::HandshakeResult;
use super::methods::{DispatchError, Reply};
use super::resume::SubscribeSnapshot;
use super::snapshot_source::SnapshotError;
use crate::error::MethodError;
use crate::log::BoxFuture;

/// Something that the client wants.
#[derive(Debug)]
pub(super) struct Job {
    /// The id of its request, if it wants an answer.
    pub(super) id: Option<Bytes>,
    pub(super) kind: JobKind,
    /// Bytes of the request.
    pub(super) bytes: usize,
    /// What pays for them, if they are many.
    pub(super) grant: Option<Arc<Grant>>,
}

#[derive(Debug)]
pub(super) enum JobKind {
    Greet,
    Subscribe(SubscribeRequest),
    Call {
        /// Whether a later action may depend on it.
        writes: bool,
    },
    Dispatch(ActionHeader),
}

/// A channel that is to be followed.
#[derive(Debug, Clone)]
pub(super) struct SubscribeRequest {
    pub(super) channel: Arc<str>,
    pub(super) turns: Option<u64>,
    pub(super) latency: Duration,
}

/// An action as the client wrote it.
#[derive(Debug)]
pub(super) struct PendingAction {
    pub(super) header: ActionHeader,
    pub(super) action: Bytes,
    /// What pays for it, if it is long.
    pub(super) grant: Option<Arc<Grant>>,
}

/// What is known of an action while it is carried out, when nobody may have its text any more.
#[derive(Debug, Clone)]
pub(super) struct ActionHeader {
    pub(super) channel: String,
    pub(super) client_seq: i64,
    /// Whether it answers or cancels something: it waits for nothing but what came before it for its own channel.
    pub(super) is_urgent: bool,
}

/// What became of an action.
pub(super) enum DispatchOutcome {
    /// It is in the log, from where its sender learns of it like everybody else.
    Logged,
    /// It goes back to its sender alone.
    Rejected { error: DispatchError, action: Bytes },
    /// Nothing: a newer link of the client is coming in, and acts in its name.
    Superseded,
    /// What carried it out panicked.
    Broke,
}

/// How a job came out.
pub(super) enum JobOutput {
    HandshakeResult(Result<Box<HandshakeResult>, MethodError>),
    SubscribeSnapshot(Result<SubscribeSnapshot, SnapshotError>),
    /// With the leave to hold what was read, until it is taken up.
    Called(Result<Reply, MethodError>, Option<OwnedSemaphorePermit>),
    Dispatched(DispatchOutcome),
}

/// Jobs under way. Dropping it gives them up.
#[derive(Default)]
pub(super) struct Jobs {
    set: JoinSet<JobOutput>,
    running: HashMap<Id, (u64, Job)>,
    /// Actions that wait for those before them.
    waiting: VecDeque<(u64, Job, PendingAction)>,
    bytes: usize,
    /// Of these, the bytes that nothing pays for.
    unreserved: usize,
    count: u64,
}

impl Jobs {
    /// How many are under way.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// How many actions wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes of all requests under way.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the requests under way that nothing pays for.
    pub(super) const fn unreserved_bytes(&self) -> usize {
        self.unreserved
    }

    /// Begins a job.
    pub(super) fn start(&mut self, job: Job, future: impl Future<Output = JobOutput> + Send + 'static) {
        self.note(&job);
        self.run(self.count, job, future);
    }

    /// An action waits for its turn.
    pub(super) fn wait(&mut self, job: Job, pending: PendingAction) {
        self.note(&job);
        self.waiting.push_back((self.count, job, pending));
    }

    /// Begins the next action whose turn it is, if there is one.
    ///
    /// An action waits for those before it, and for writes that were asked for before it. One that answers or cancels
    /// something waits only for those of its own channel: the host waits for it, or is to stop.
    pub(super) fn next_dispatch(&mut self, begin: impl FnOnce(PendingAction) -> BoxFuture<'static, JobOutput>) -> bool {
        let Some(next) = self.next_place() else { return false };
        let Some((place, job, pending)) = self.waiting.remove(next) else { return false };
        self.run(place, job, begin(pending));
        true
    }

    /// Where the action waits whose turn it is.
    fn next_place(&self) -> Option<usize> {
        let is_first = self.waiting.front().is_some_and(|(place, _, pending)| {
            !self.running.values().any(|(before, job)| match &job.kind {
                JobKind::Dispatch(running) => !running.is_urgent || running.channel == pending.header.channel,
                JobKind::Call { writes } => *writes && before < place,
                JobKind::Greet | JobKind::Subscribe(_) => false,
            })
        });
        if is_first {
            return Some(0);
        }
        let has_before = |at: usize, channel: &str| {
            let running = self.running.values().filter_map(|(_, job)| match &job.kind {
                JobKind::Dispatch(running) => Some(running),
                _ => None,
            });
            let waiting = self.waiting.iter().take(at).map(|(_, _, before)| &before.header);
            running.chain(waiting).any(|before| before.channel == channel)
        };
        let mut ahead = self.waiting.iter().enumerate().filter(|(_, (_, _, pending))| pending.header.is_urgent);
        ahead.find(|(at, (_, _, pending))| !has_before(*at, &pending.header.channel)).map(|(at, _)| at)
    }

    /// The next one that is done; without an outcome if it broke. `None` when none is under way. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<(Job, Option<JobOutput>)> {
        let joined = self.set.join_next_with_id().await?;
        let (id, done) = match joined {
            Ok((id, done)) => (id, Some(done)),
            Err(error) => (error.id(), None),
        };
        let (_, job) = self.running.remove(&id)?;
        self.bytes = self.bytes.saturating_sub(job.bytes);
        if job.grant.is_none() {
            self.unreserved = self.unreserved.saturating_sub(job.bytes);
        }
        Some((job, done))
    }

    fn note(&mut self, job: &Job) {
        self.bytes = self.bytes.saturating_add(job.bytes);
        if job.grant.is_none() {
            self.unreserved = self.unreserved.saturating_add(job.bytes);
        }
        self.count = self.count.saturating_add(1);
    }

    fn run(&mut self, place: u64, job: Job, future: impl Future<Output = JobOutput> + Send + 'static) {
        let task = self.set.spawn(future);
        self.running.insert(task.id(), (place, job));
    }
}

/// Whether a method may give much.
pub(super) fn reads(method: &str) -> bool {
    ["resourceRead", "resourceList", "fetchTurns", "listSessions", "completions"].contains(&method)
}

/// Whether a later action may depend on what a method does.
pub(super) fn writes(method: &str) -> bool {
    let prefixes = ["create", "dispose", "move"];
    let names = [
        "resourceWrite",
        "resourceCopy",
        "resourceDelete",
        "resourceMove",
        "resourceMkdir",
        "authenticate",
        "fetchTurns",
    ];
    prefixes.iter().any(|prefix| method.starts_with(prefix)) || names.contains(&method)
}
