//! What a connection has under way for its client: answers that are being made, and actions that wait their turn.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{Id, JoinSet};

use super::greeting::Greeted;
use super::methods::{Refusal, Reply};
use super::resume::Shown;
use super::views::ViewError;
use crate::error::MethodError;
use crate::log::Answer;

/// Something that the client wants.
#[derive(Debug)]
pub(super) struct Job {
    /// The id of its request, if it wants an answer.
    pub(super) id: Option<Bytes>,
    pub(super) work: Work,
    /// Bytes of the request.
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) enum Work {
    Greet,
    Subscribe(Wish),
    Call {
        /// Whether a later action may depend on it.
        writes: bool,
    },
    Dispatch(Draft),
}

/// A channel that is to be followed.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) channel: Arc<str>,
    pub(super) turns: Option<u64>,
    pub(super) latency: Duration,
}

/// An action as the client wrote it.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) channel: String,
    pub(super) client_seq: i64,
    pub(super) action: Bytes,
}

/// How a job came out.
pub(super) enum Done {
    Greeted(Result<Box<Greeted>, MethodError>),
    Shown(Result<Shown, ViewError>),
    /// With the leave to hold what was read, until it is taken up.
    Called(Result<Reply, MethodError>, Option<OwnedSemaphorePermit>),
    Dispatched(Result<(), Refusal>),
}

/// Jobs under way. Dropping it gives them up.
#[derive(Default)]
pub(super) struct Jobs {
    set: JoinSet<Done>,
    running: HashMap<Id, (u64, Job)>,
    /// Actions that wait for those before them.
    waiting: VecDeque<(u64, Job, Draft)>,
    bytes: usize,
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

    /// Begins a job.
    pub(super) fn start(&mut self, job: Job, future: impl Future<Output = Done> + Send + 'static) {
        self.bytes = self.bytes.saturating_add(job.bytes);
        self.count = self.count.saturating_add(1);
        self.run(self.count, job, future);
    }

    /// An action waits for its turn.
    pub(super) fn wait(&mut self, job: Job, draft: Draft) {
        self.bytes = self.bytes.saturating_add(job.bytes);
        self.count = self.count.saturating_add(1);
        self.waiting.push_back((self.count, job, draft));
    }

    /// The next action, if it is its turn: none is under way, and no write that was asked for before it.
    pub(super) fn next_dispatch(&mut self, begin: impl FnOnce(Draft) -> Answer<'static, Done>) {
        let Some(&(place, ..)) = self.waiting.front() else { return };
        let blocks = |(before, job): &(u64, Job)| match job.work {
            Work::Dispatch(_) => true,
            Work::Call { writes } => writes && *before < place,
            Work::Greet | Work::Subscribe(_) => false,
        };
        if !self.running.values().any(blocks)
            && let Some((place, job, draft)) = self.waiting.pop_front()
        {
            self.run(place, job, begin(draft));
        }
    }

    /// The next one that is done; without an outcome if it broke. `None` when none is under way. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<(Job, Option<Done>)> {
        let joined = self.set.join_next_with_id().await?;
        let (id, done) = match joined {
            Ok((id, done)) => (id, Some(done)),
            Err(error) => (error.id(), None),
        };
        let (_, job) = self.running.remove(&id)?;
        self.bytes = self.bytes.saturating_sub(job.bytes);
        Some((job, done))
    }

    fn run(&mut self, place: u64, job: Job, future: impl Future<Output = Done> + Send + 'static) {
        let task = self.set.spawn(future);
        self.running.insert(task.id(), (place, job));
    }
}

/// Whether a method gives contents of any length.
pub(super) fn reads(method: &str) -> bool {
    method == "resourceRead"
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
