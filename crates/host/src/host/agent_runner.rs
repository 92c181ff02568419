//! The agent runner: logged actions of clients reach the agent of their chat, and what the agent says is logged.
//!
//! ```text
//!  LOG ─▶ log_follower ─▶ TaskRegistry ─▶ ChatTask, one for each active chat ─▶ Conversation
//!   ▲                                       │   ▲                                  │
//!   └──────── TaskWriter (retries) ◀────────┘   └────────── EventStream ◀──────────┘
//! ```
//!
//! A chat's task starts with the first client action in its chat, and the agent with the first turn. A turn that the task
//! itself starts (for a queued message) comes back to it through the log, like a turn that a client starts.

mod agent_handle;
mod append_output;
mod chat_task;
mod conversation;
mod entry_class;
mod log_follower;
mod pending_messages;
mod repair;
mod summaries;
mod task_registry;
mod task_writer;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::warn;

pub(super) use self::summaries::summarize;
use self::task_registry::TaskRegistry;
use self::task_writer::StopRequest;
use super::StartError;
use super::log_writer::LogWriter;
use super::workspace::Workspace;
use crate::agent::process::orphans::end_orphans;
use crate::agent::{Agent, RealClock};
use crate::lock::lock;
use crate::state::StateError;

/// How long a chat's task may take to end its conversation in order. Then it is aborted.
const STOP_TIME: Duration = Duration::from_secs(5);

/// Runs the agents of all chats. The tasks end when it is dropped.
pub(crate) struct AgentRunner {
    context: Arc<RunnerContext>,
    follower: Mutex<Option<JoinHandle<()>>>,
}

/// What the tasks of all chats share.
struct RunnerContext {
    log_writer: Arc<LogWriter>,
    agents: Vec<Arc<dyn Agent>>,
    workspace: Arc<Workspace>,
    clock: RealClock,
    tasks: TaskRegistry,
    /// The last seq of the log when this host started: what comes later is of this run.
    started_after: AtomicU64,
}

impl AgentRunner {
    pub(crate) fn new(log_writer: Arc<LogWriter>, agents: Vec<Arc<dyn Agent>>, workspace: Arc<Workspace>) -> Self {
        let context = RunnerContext {
            log_writer,
            agents,
            workspace,
            clock: RealClock::new(),
            tasks: TaskRegistry::default(),
            started_after: AtomicU64::new(0),
        };
        Self { context: Arc::new(context), follower: Mutex::default() }
    }

    /// Ends the programs and turns that an earlier run of the host left behind, and begins to follow the log.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), StartError> {
        let context = &self.context;
        // If it fails, programs without a host end by themselves when they read their input.
        let orphans = tokio::task::spawn_blocking(end_orphans).await.unwrap_or(0);
        if orphans > 0 {
            warn!(orphans, "programs of agents whose host was killed were still running; they are killed");
        }
        let last = context.log_writer.log().bounds().await.map_err(StateError::from)?.last;
        context.started_after.store(last, Relaxed);
        repair::end_interrupted_turns(context, last).await?;
        let follower = tokio::spawn(log_follower::follow(Arc::clone(context), last));
        *self.follower() = Some(follower);
        Ok(())
    }

    /// Ends a chat's task, its conversation and everything that the agent runs. Afterwards nothing more is logged for the
    /// chat.
    pub(crate) async fn close(&self, chat: &str) {
        if let Some(task) = self.context.tasks.close(chat) {
            task.stop(StopRequest::CloseChat, STOP_TIME).await;
        }
    }

    /// Ends the tasks of all chats.
    pub(crate) async fn stop(&self) {
        if let Some(follower) = self.follower().take() {
            follower.abort();
        }
        // All are told to stop before the first is waited for, so together they take no longer than the slowest.
        let tasks = self.context.tasks.close_all();
        let stopped: Vec<_> = tasks.into_iter().map(|task| task.stop(StopRequest::StopHost, STOP_TIME)).collect();
        for task in stopped {
            task.await;
        }
    }

    fn follower(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        lock(&self.follower)
    }
}

impl Drop for AgentRunner {
    fn drop(&mut self) {
        if let Some(follower) = self.follower().take() {
            follower.abort();
        }
        // The tasks hold the context and the context holds them: without this they would keep each other alive.
        drop(self.context.tasks.close_all());
    }
}
