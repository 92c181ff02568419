//! A conversation that one task holds: the host's side of it, which sends the task commands and waits for its replies.

use std::collections::VecDeque;
use std::sync::Mutex;

use ahp_types::common::JsonObject;
use breakbulk_lifecycle::{Answer as Verdict, Event, Id};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{AgentError, Conversation, EventSender, Prompt};
use crate::lock::lock;
use crate::log::BoxFuture;

/// Commands that may wait for the task. It takes them whatever else it waits for, so few ever wait.
const MAX_QUEUED: usize = 16;

/// A command for the task, and where it replies.
pub(super) struct TaskCommand {
    pub(super) kind: CommandKind,
    pub(super) reply: oneshot::Sender<Result<(), AgentError>>,
}

/// What the task is to do: one for each call of [`Conversation`].
pub(super) enum CommandKind {
    Send(Prompt),
    Cancel(Id),
    Answer(Id, Verdict),
    Configure(JsonObject),
    Dispose,
}

/// Whether a task goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskFlow {
    Continue,
    End,
}

/// What wakes a task. `P` is what its program has done.
pub(super) enum Wake<P> {
    Command(Box<TaskCommand>),
    Program(P),
    /// An event has gone to the host.
    Sent,
    /// The host is gone.
    Alone,
}

/// Waits for the next command, and until the host takes the first of the events that are `ready`. If none is, waits for the program
/// instead: so while events wait, the program is not read.
pub(super) async fn next_wake<P>(
    commands: &mut mpsc::Receiver<TaskCommand>,
    events: &EventSender,
    ready: &mut VecDeque<Event>,
    program: impl Future<Output = P>,
) -> Wake<P> {
    let commanded = |command: Option<TaskCommand>| command.map_or(Wake::Alone, |it| Wake::Command(Box::new(it)));
    match ready.front() {
        Some(event) => tokio::select! {
            command = commands.recv() => commanded(command),
            reserved = events.reserve(event) => match (reserved, ready.pop_front()) {
                (Ok(permit), Some(event)) => {
                    permit.send(event);
                    Wake::Sent
                }
                _ => Wake::Alone,
            },
        },
        None => tokio::select! {
            command = commands.recv() => commanded(command),
            done = program => Wake::Program(done),
        },
    }
}

/// The queue of a task's commands.
pub(super) fn command_queue() -> (mpsc::Sender<TaskCommand>, mpsc::Receiver<TaskCommand>) {
    mpsc::channel(MAX_QUEUED)
}

/// The host's side of a conversation. Dropping it ends the task, and with it whatever the task runs.
pub(super) struct TaskConversation {
    commands: mpsc::Sender<TaskCommand>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl TaskConversation {
    /// A conversation that this task holds. It takes its commands from the other end of the queue.
    pub(super) fn new(commands: mpsc::Sender<TaskCommand>, task: JoinHandle<()>) -> Self {
        Self { commands, task: Mutex::new(Some(task)) }
    }

    fn tell(&self, kind: CommandKind) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.commands.send(TaskCommand { kind, reply }).await.map_err(|_ended| AgentError::Ended)?;
            answer.await.unwrap_or(Err(AgentError::Ended))
        })
    }

    fn take_task(&self) -> Option<JoinHandle<()>> {
        lock(&self.task).take()
    }
}

impl Conversation for TaskConversation {
    fn send(&self, prompt: Prompt) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(CommandKind::Send(prompt))
    }

    fn cancel(&self, turn: Id) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(CommandKind::Cancel(turn))
    }

    fn answer(&self, tool: Id, answer: Verdict) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(CommandKind::Answer(tool, answer))
    }

    fn configure(&self, config: JsonObject) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(CommandKind::Configure(config))
    }

    fn dispose(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // One that has ended already needs no telling.
            let _ = self.tell(CommandKind::Dispose).await;
            if let Some(task) = self.take_task() {
                let _ = task.await;
            }
        })
    }
}

impl Drop for TaskConversation {
    fn drop(&mut self) {
        if let Some(task) = self.take_task() {
            task.abort();
        }
    }
}
