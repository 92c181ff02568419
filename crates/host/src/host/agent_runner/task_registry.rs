//! Which chats have a task, and which chats of sub-agents belong to which task.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use super::RunnerContext;
use super::chat_task::{self, TaskStart};
use super::task_writer::{StopRequest, TaskWriter};
use crate::lock::lock;
use crate::log::Entry;

/// How many entries may wait for a task. A task takes entries at once, unless its agent is slow to start or the log cannot
/// be written, and then a client can still start and cancel turns. A task that is further behind than this is stuck.
const INBOX_ENTRIES: usize = 1_024;

/// How long entries of a closed chat are ignored: longer than it takes until its channel is closed too.
const IGNORE_CLOSED_FOR: Duration = Duration::from_secs(60);

/// The tasks of all chats.
#[derive(Default)]
pub(super) struct TaskRegistry(Mutex<RegistryState>);

#[derive(Default)]
struct RegistryState {
    tasks: HashMap<Arc<str>, TaskHandle>,
    /// Chats of sub-agents, each with the chat whose task gets its entries.
    workers: HashMap<Arc<str>, Arc<str>>,
    /// Chats that were disposed of, and when. Actions that clients dispatched just before start no new task.
    closed: HashMap<Arc<str>, Instant>,
    /// The host stops: no new task begins.
    is_stopped: bool,
}

impl TaskRegistry {
    /// Passes an entry to the task of its chat, and begins the task if there is none. Never waits, so no chat delays
    /// another.
    pub(super) fn deliver(context: &Arc<RunnerContext>, entry: Entry) {
        let mut state = context.tasks.state();
        let chat = Arc::clone(state.workers.get(&entry.channel).unwrap_or(&entry.channel));
        let is_closed = state.closed.get(&chat).is_some_and(|since| since.elapsed() < IGNORE_CLOSED_FOR);
        if state.is_stopped || is_closed {
            return;
        }
        let begin = |chat: &Arc<str>| TaskHandle::begin(context, chat, TaskStart::FirstAction);
        let task = state.tasks.entry(chat).or_insert_with_key(begin);
        let entry = match task.inbox.try_send(entry) {
            Ok(()) => return,
            Err(TrySendError::Full(entry)) => {
                warn!(chat = %task.chat, "an agent does not take its messages; its conversation is ended");
                entry
            }
            Err(TrySendError::Closed(entry)) => entry,
        };
        let chat = Arc::clone(&task.chat);
        *task = TaskHandle::begin(context, &chat, TaskStart::Replacement);
        // The inbox of a new task is empty.
        drop(task.inbox.try_send(entry));
    }

    /// Passes an entry of a session's channel to all tasks that there are. Each knows whether the session is its own; few sessions
    /// change their options, so that is cheaper than to keep a list.
    pub(super) fn announce(&self, entry: &Entry) {
        for task in self.state().tasks.values() {
            // A task that is stuck is replaced when its chat has something to say, and reads the options then.
            drop(task.inbox.try_send(entry.clone()));
        }
    }

    /// A channel was opened, maybe with the name of one that was disposed of, or it was closed and nothing more comes from
    /// it: its entries are no longer ignored.
    pub(super) fn reset_closed(&self, channel: &str) {
        self.state().closed.remove(channel);
    }

    /// The entries of a sub-agent's chat go to the task of this chat from now on.
    pub(super) fn add_worker(&self, worker: &Arc<str>, chat: &Arc<str>) {
        self.state().workers.insert(Arc::clone(worker), Arc::clone(chat));
    }

    /// The chats of a chat's sub-agents.
    pub(super) fn workers_of(&self, chat: &str) -> Vec<Arc<str>> {
        let state = self.state();
        state.workers.iter().filter(|(_, of)| ***of == *chat).map(|(worker, _)| Arc::clone(worker)).collect()
    }

    /// The sub-agents of a chat have ended.
    pub(super) fn forget_workers(&self, chat: &str) {
        self.state().workers.retain(|_, of| **of != *chat);
    }

    /// Removes a chat's task. Later entries of the chat start no new one.
    pub(super) fn close(&self, chat: &str) -> Option<TaskHandle> {
        let mut state = self.state();
        state.closed.retain(|_, since| since.elapsed() < IGNORE_CLOSED_FOR);
        state.closed.insert(chat.into(), Instant::now());
        state.workers.retain(|worker, of| **of != *chat && **worker != *chat);
        state.tasks.remove(chat)
    }

    /// Removes all tasks. No new one begins.
    pub(super) fn close_all(&self) -> Vec<TaskHandle> {
        let mut state = self.state();
        state.is_stopped = true;
        state.tasks.drain().map(|(_, task)| task).collect()
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        lock(&self.0)
    }
}

/// A chat's task. It ends when this is dropped.
pub(super) struct TaskHandle {
    chat: Arc<str>,
    inbox: mpsc::Sender<Entry>,
    stop: watch::Sender<StopRequest>,
    task: JoinHandle<()>,
}

impl TaskHandle {
    fn begin(context: &Arc<RunnerContext>, chat: &Arc<str>, start: TaskStart) -> Self {
        let (inbox, receiver) = mpsc::channel(INBOX_ENTRIES);
        let (stop, stopped) = watch::channel(StopRequest::None);
        let writer = TaskWriter::new(Arc::clone(&context.log_writer), stopped);
        let task = tokio::spawn(chat_task::run(Arc::clone(context), Arc::clone(chat), writer, receiver, start));
        Self { chat: Arc::clone(chat), inbox, stop, task }
    }

    /// Tells the task to stop, and aborts it if it has not ended within this time. The task is told before the first poll.
    pub(super) fn stop(mut self, stop: StopRequest, time: Duration) -> impl Future<Output = ()> {
        self.stop.send_replace(stop);
        let deadline = tokio::time::Instant::now() + time;
        async move {
            if tokio::time::timeout_at(deadline, &mut self.task).await.is_err() {
                warn!(chat = %self.chat, "an agent does not end and is dropped");
                self.task.abort();
                // An aborted task ends at its next await.
                drop((&mut self.task).await);
            }
        }
    }
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}
