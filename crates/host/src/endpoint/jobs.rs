//! What a connection does for its client: requests under way, and actions that wait for their turn.

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

/// A request of the client that is under way or waits.
#[derive(Debug)]
pub(super) struct Job {
    /// The id of the request, if it wants an answer.
    pub(super) id: Option<Bytes>,
    pub(super) kind: JobKind,
    /// Bytes of the request.
    pub(super) bytes: usize,
    /// The memory of a long request.
    pub(super) grant: Option<Arc<Grant>>,
}

#[derive(Debug)]
pub(super) enum JobKind {
    Handshake,
    Subscribe(SubscribeRequest),
    Call {
        /// Whether a later action may depend on the call.
        writes: bool,
    },
    Dispatch(ActionHeader),
}

/// The params of a `subscribe`.
#[derive(Debug, Clone)]
pub(super) struct SubscribeRequest {
    pub(super) channel: Arc<str>,
    pub(super) turns: Option<u64>,
    pub(super) latency: Duration,
}

/// An action that waits to be dispatched, as the client wrote it.
#[derive(Debug)]
pub(super) struct PendingAction {
    pub(super) header: ActionHeader,
    pub(super) action: Bytes,
    /// The memory of a long action.
    pub(super) grant: Option<Arc<Grant>>,
}

/// What is kept of an action while it is dispatched, when its text may be gone.
#[derive(Debug, Clone)]
pub(super) struct ActionHeader {
    pub(super) channel: String,
    pub(super) client_seq: i64,
    /// Whether it answers or cancels something: then it waits only for earlier actions of its own channel.
    pub(super) is_urgent: bool,
}

/// What became of a dispatched action.
pub(super) enum DispatchOutcome {
    /// It is in the log, from where its sender gets it like everybody else.
    Logged,
    /// It goes back to its sender alone.
    Rejected { error: DispatchError, action: Bytes },
    /// It was not dispatched: a newer link of the client has come.
    Superseded,
    /// Dispatching it panicked.
    Broke,
}

/// The output of a job.
pub(super) enum JobOutput {
    Handshake(Result<Box<HandshakeResult>, MethodError>),
    Snapshot(Result<SubscribeSnapshot, SnapshotError>),
    /// With the permit for a large result, until the result is sent.
    Call(Result<Reply, MethodError>, Option<OwnedSemaphorePermit>),
    Dispatch(DispatchOutcome),
}

/// The jobs under way. Dropping this aborts them.
#[derive(Default)]
pub(super) struct Jobs {
    set: JoinSet<JobOutput>,
    running: HashMap<Id, (u64, Job)>,
    /// Actions that wait for earlier ones.
    waiting: VecDeque<(u64, Job, PendingAction)>,
    bytes: usize,
    /// Those of them that have no grant.
    unreserved: usize,
    count: u64,
}

impl Jobs {
    /// How many jobs are under way.
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

    /// Bytes of requests under way that have no grant.
    pub(super) const fn unreserved_bytes(&self) -> usize {
        self.unreserved
    }

    /// Starts a job.
    pub(super) fn start(&mut self, job: Job, future: impl Future<Output = JobOutput> + Send + 'static) {
        self.note(&job);
        self.run(self.count, job, future);
    }

    /// Queues an action.
    pub(super) fn wait(&mut self, job: Job, pending: PendingAction) {
        self.note(&job);
        self.waiting.push_back((self.count, job, pending));
    }

    /// Starts the next action whose turn it is, if there is one.
    ///
    /// An action waits for earlier actions, and for earlier calls that write. An urgent one waits only for those of its own
    /// channel: the host waits for its answer, or is to stop something.
    pub(super) fn next_dispatch(&mut self, begin: impl FnOnce(PendingAction) -> BoxFuture<'static, JobOutput>) -> bool {
        let Some(next) = self.next_place() else { return false };
        let Some((place, job, pending)) = self.waiting.remove(next) else { return false };
        self.run(place, job, begin(pending));
        true
    }

    /// The index of the waiting action whose turn it is.
    fn next_place(&self) -> Option<usize> {
        let is_first = self.waiting.front().is_some_and(|(place, _, pending)| {
            !self.running.values().any(|(before, job)| match &job.kind {
                JobKind::Dispatch(running) => !running.is_urgent || running.channel == pending.header.channel,
                JobKind::Call { writes } => *writes && before < place,
                JobKind::Handshake | JobKind::Subscribe(_) => false,
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

    /// The next job that is done, with its output unless it panicked. `None` when none is under way. Cancel-safe.
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

/// Whether the result of a method may be large.
pub(super) fn reads(method: &str) -> bool {
    ["resourceRead", "resourceList", "fetchTurns", "listSessions", "completions"].contains(&method)
}

/// Whether this is the name of a request of the protocol.
pub(super) fn is_request(method: &str) -> bool {
    const OTHERS: [&str; 12] = [
        "initialize",
        "reconnect",
        "ping",
        "subscribe",
        "listSessions",
        "fetchTurns",
        "authenticate",
        "completions",
        "resolveSessionConfig",
        "sessionConfigCompletions",
        "invokeChangesetOperation",
        "createResourceWatch",
    ];
    const SESSIONS: [&str; 6] =
        ["createSession", "disposeSession", "createChat", "disposeChat", "createTerminal", "disposeTerminal"];
    const FILES: [&str; 9] = [
        "resourceRead",
        "resourceWrite",
        "resourceList",
        "resourceCopy",
        "resourceMove",
        "resourceDelete",
        "resourceMkdir",
        "resourceResolve",
        "resourceRequest",
    ];
    OTHERS.contains(&method) || SESSIONS.contains(&method) || FILES.contains(&method)
}

/// Whether a later action may depend on the effect of a method.
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
