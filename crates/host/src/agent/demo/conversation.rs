//! A conversation with the demo: one task that works on one turn at a time.

use std::path::PathBuf;
use std::sync::Arc;

use breakbulk_lifecycle::{Event, Outcome};
use tokio::sync::mpsc;

use super::DemoConfig;
use super::output::{ScriptEnd, ScriptOutput};
use super::recall::Recall;
use super::scripts::perform;
use crate::agent::directory::working_directory;
use crate::agent::task_conversation::{CommandKind, TaskCommand, TaskConversation, command_queue};
use crate::agent::{AgentError, Clock, EventSender, Prompt, Start, Started, events};

/// Answers that may wait for a script: more than it can ask for.
const ANSWERS: usize = 1_024;

/// Begins a conversation.
pub(super) async fn start(config: DemoConfig, clock: Arc<dyn Clock>, start: Start) -> Result<Started, AgentError> {
    let recall = Recall::of(&start.history, start.side_chat.as_ref()).await;
    let recall = recall.map_err(|error| AgentError::Unavailable(error.to_string()))?;
    let directory = working_directory(&start.directories).await?;
    let (sender, stream) = events(config.events);
    let (commands, receiver) = command_queue();
    let task = DemoTask { config, directory, recall, clock, events: sender, commands: receiver };
    let task = tokio::spawn(task.work());
    let conversation = Box::new(TaskConversation::new(commands, task));
    Ok(Started { conversation, events: stream })
}

/// The demo's side of a conversation.
struct DemoTask {
    config: DemoConfig,
    directory: PathBuf,
    recall: Recall,
    clock: Arc<dyn Clock>,
    events: EventSender,
    commands: mpsc::Receiver<TaskCommand>,
}

impl DemoTask {
    async fn work(mut self) {
        while let Some(TaskCommand { kind, reply }) = self.commands.recv().await {
            let (answer, prompt) = match kind {
                CommandKind::Send(prompt) => (Ok(()), Some(prompt)),
                CommandKind::Cancel(_) | CommandKind::Configure(_) => (Ok(()), None),
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
            let TaskCommand { kind, reply } = tokio::select! {
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
                CommandKind::Configure(_) => (Ok(()), false),
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
            let TaskCommand { kind, reply } = tokio::select! {
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
                CommandKind::Cancel(_) | CommandKind::Configure(_) | CommandKind::Dispose => Ok(()),
            });
            if is_over {
                return false;
            }
        }
    }
}
