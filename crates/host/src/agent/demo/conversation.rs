//! A conversation with the demo: one task that works on one turn at a time.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use breakbulk_lifecycle::{Answer as Verdict, Event, Id, Outcome};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::DemoConfig;
use super::output::{ScriptEnd, ScriptOutput};
use super::recall::Recall;
use super::scripts::perform;
use crate::agent::directory::working_directory;
use crate::agent::{AgentError, Clock, Conversation, EventSender, Prompt, Start, Started, events};
use crate::lock::lock;
use crate::log::BoxFuture;

/// Commands that may wait for the task. It takes them even while it works, so few ever wait.
const WAITING: usize = 16;

/// Answers that may wait for a script: more than it can ask for.
const ANSWERS: usize = 1_024;

/// Begins a conversation.
pub(super) async fn start(config: DemoConfig, clock: Arc<dyn Clock>, start: Start) -> Result<Started, AgentError> {
    let recall = Recall::of(&start.history, start.side_chat.as_ref()).await;
    let recall = recall.map_err(|error| AgentError::Unavailable(error.to_string()))?;
    let directory = working_directory(&start.directories).await?;
    let (sender, stream) = events(config.events);
    let (commands, receiver) = mpsc::channel(WAITING);
    let task = DemoTask { config, directory, recall, clock, events: sender, commands: receiver };
    let task = tokio::spawn(task.work());
    let conversation = Box::new(DemoConversation { commands, task: Mutex::new(Some(task)) });
    Ok(Started { conversation, events: stream })
}

/// The host's side of a conversation. Dropping it ends the task.
struct DemoConversation {
    commands: mpsc::Sender<DemoCommand>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// A command for the task, and where it replies.
struct DemoCommand {
    kind: CommandKind,
    reply: oneshot::Sender<Result<(), AgentError>>,
}

enum CommandKind {
    Send(Prompt),
    Cancel(Id),
    Answer(Id, Verdict),
    Dispose,
}

impl DemoConversation {
    fn tell(&self, kind: CommandKind) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.commands.send(DemoCommand { kind, reply }).await.map_err(|_ended| AgentError::Ended)?;
            answer.await.unwrap_or(Err(AgentError::Ended))
        })
    }

    fn take_task(&self) -> Option<JoinHandle<()>> {
        lock(&self.task).take()
    }
}

impl Conversation for DemoConversation {
    fn send(&self, prompt: Prompt) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(CommandKind::Send(prompt))
    }

    fn cancel(&self, turn: Id) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(CommandKind::Cancel(turn))
    }

    fn answer(&self, tool: Id, answer: Verdict) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(CommandKind::Answer(tool, answer))
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

impl Drop for DemoConversation {
    fn drop(&mut self) {
        if let Some(task) = self.take_task() {
            task.abort();
        }
    }
}

/// The demo's side of a conversation.
struct DemoTask {
    config: DemoConfig,
    directory: PathBuf,
    recall: Recall,
    clock: Arc<dyn Clock>,
    events: EventSender,
    commands: mpsc::Receiver<DemoCommand>,
}

impl DemoTask {
    async fn work(mut self) {
        while let Some(DemoCommand { kind, reply }) = self.commands.recv().await {
            let (answer, prompt) = match kind {
                CommandKind::Send(prompt) => (Ok(()), Some(prompt)),
                CommandKind::Cancel(_) => (Ok(()), None),
                CommandKind::Answer(..) => (Err(AgentError::NotAsked), None),
                CommandKind::Dispose => {
                    let _ = reply.send(Ok(()));
                    return;
                }
            };
            // Whoever asked may have stopped waiting.
            let _ = reply.send(answer);
            if let Some(prompt) = prompt
                && !self.turn(prompt).await
            {
                return;
            }
        }
    }

    /// Works on a turn; returns whether the conversation continues.
    async fn turn(&mut self, prompt: Prompt) -> bool {
        let turn = prompt.turn;
        let (answers, answered) = mpsc::channel(ANSWERS);
        let clock = Arc::clone(&self.clock);
        let output =
            ScriptOutput::new(self.config, self.directory.clone(), &turn, self.events.clone(), clock, answered);
        let before = self.recall.clone();
        self.recall.learn(&prompt.message);
        let mut script = Box::pin(perform(output, turn.clone(), prompt.message, before));
        let mut goes_on = true;
        let outcome = loop {
            let DemoCommand { kind, reply } = tokio::select! {
                done = &mut script => break match done {
                    Ok(()) => Outcome::Complete,
                    Err(ScriptEnd::Failed(failure)) => Outcome::Failed(failure),
                    Err(ScriptEnd::NoListener) => return false,
                },
                command = self.commands.recv() => match command {
                    Some(command) => command,
                    None => return false,
                },
            };
            let (answer, stops) = match kind {
                CommandKind::Send(_) => (Err(AgentError::Busy), false),
                CommandKind::Cancel(of) => (Ok(()), of == turn),
                CommandKind::Answer(tool, answer) => {
                    (answers.try_send((tool, answer)).map_err(|_full| AgentError::NotAsked), false)
                }
                CommandKind::Dispose => {
                    goes_on = false;
                    (Ok(()), true)
                }
            };
            let _ = reply.send(answer);
            if stops {
                break Outcome::Cancelled;
            }
        };
        // What runs ends here; what is open is closed on the way.
        drop(script);
        let ended = Event::TurnEnded { turn, outcome };
        if goes_on {
            return self.finish(ended).await;
        }
        // Whoever disposes need not listen. If there is no room, the end of the stream says that it is over.
        let _ = self.events.try_send(ended);
        false
    }

    /// Sends the last event of a turn; returns whether the conversation continues. Commands are answered while the queue is full.
    async fn finish(&mut self, ended: Event) -> bool {
        let events = self.events.clone();
        let mut sent = std::pin::pin!(events.send(ended));
        loop {
            let DemoCommand { kind, reply } = tokio::select! {
                // First: who has heard that the turn is over may begin the next one.
                biased;
                sent = &mut sent => return sent.is_ok(),
                command = self.commands.recv() => match command {
                    Some(command) => command,
                    None => return false,
                },
            };
            let is_over = matches!(kind, CommandKind::Dispose);
            let _ = reply.send(match kind {
                CommandKind::Send(_) => Err(AgentError::Busy),
                CommandKind::Answer(..) => Err(AgentError::NotAsked),
                CommandKind::Cancel(_) | CommandKind::Dispose => Ok(()),
            });
            if is_over {
                return false;
            }
        }
    }
}
