//! A conversation with the program: one task that owns the process, and passes on what it says and what it is told.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::sync::Arc;

use breakbulk_lifecycle::claude::{self, AnswerError, Control, Launch, NOT_STARTED, Priority, Signal};
use breakbulk_lifecycle::{Answer as Verdict, BlockKind, Event, ExitReason, Failure, Id, Outcome, Received};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::{ClaudeConfig, ClaudeProgramInfo, INHERITED, prompt};
use crate::agent::process::{Expectation, Process, ProgramEnd, ProgramOutput};
use crate::agent::program::{Choices, Directories};
use crate::agent::task_conversation::{
    CommandKind, TaskCommand, TaskConversation, TaskFlow, Wake, command_queue, next_wake,
};
use crate::agent::{AgentError, EventSender, Prompt, Start, Started, events, history};
use crate::log::BatchId;

/// Begins a conversation: starts the program.
pub(super) async fn start(
    config: Arc<ClaudeConfig>,
    program_info: Arc<ClaudeProgramInfo>,
    start: Start,
) -> Result<Started, AgentError> {
    let directories = config.program.directories(&start.directories).await?;
    let launcher = Launcher { config: Arc::clone(&config), directories };
    let choices = Choices::read(&start.config, &config.program);
    let run = launcher.launch(start.token.clone(), choices.clone()).await?;
    let (sender, stream) = events(config.program.events);
    let (commands, receiver) = command_queue();
    let opening = if start.token.is_some() { Opening::Resumed } else { Opening::New };
    let task = ClaudeTask {
        launcher,
        program_info,
        start,
        choices,
        commands: receiver,
        events: sender,
        ready: VecDeque::new(),
        run,
        opening,
    };
    let task = tokio::spawn(task.work());
    let conversation = Box::new(TaskConversation::new(commands, task));
    Ok(Started { conversation, events: stream })
}

/// Starts the program.
struct Launcher {
    config: Arc<ClaudeConfig>,
    directories: Directories,
}

impl Launcher {
    async fn launch(&self, token: Option<String>, choices: Choices) -> Result<Run, AgentError> {
        let launch = Launch { resume: token, model: choices.model.clone(), permission_mode: choices.mode.clone() };
        let ours = launch.arguments().map_err(|error| AgentError::Unavailable(error.to_string()))?;
        let mut arguments: Vec<OsString> = ours.into_iter().map(OsString::from).collect();
        let Directories { working, others } = self.directories.clone();
        for directory in others {
            arguments.extend(["--add-dir".into(), directory.into_os_string()]);
        }
        let process = self.config.program.start(working, arguments, &INHERITED).await?;
        let mut claude = claude::Conversation::new(BatchId::new().to_string(), self.config.conversation);
        claude.request(Control::Initialize);
        Ok(Run {
            process,
            claude,
            applied: choices,
            mode: None,
            mode_wishes: 0,
            phase: RunPhase::Starting,
            cancelled: None,
            inputs: HashMap::new(),
            tools: HashSet::new(),
        })
    }
}

/// One run of the program.
struct Run {
    process: Process,
    claude: claude::Conversation,
    /// The choices that the program knows.
    applied: Choices,
    /// The mode in which it works, as far as it has said so.
    mode: Option<String>,
    /// Wishes for another mode that it has not answered.
    mode_wishes: usize,
    phase: RunPhase,
    /// The turn that the program was told to stop.
    cancelled: Option<Id>,
    /// Calls whose input is not whole, by their blocks.
    inputs: HashMap<(Id, Id), Id>,
    /// Calls that may run: the program does not say when one begins about which it asked nothing.
    tools: HashSet<Id>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunPhase {
    /// It has not written a line.
    Starting,
    /// It has.
    Started,
    /// It has ended.
    Over,
}

/// How far the conversation has begun.
enum Opening {
    /// The program was started without a memory: the first prompt tells it the earlier turns.
    New,
    /// The program was started with a token, and has no prompt yet.
    Resumed,
    /// It has its first prompt, and may say that it knows nothing under that token. Until it has begun, its events are held back.
    Trying { prompt: Box<Prompt>, held: Vec<Event> },
    /// It has begun.
    Begun,
}

/// What became of an event.
enum Passed {
    /// It goes to the host.
    On,
    /// It is held back, or left out.
    Held,
    /// The program has nothing under its token, and has not begun.
    NotStarted,
}

/// The program's side of a conversation.
struct ClaudeTask {
    launcher: Launcher,
    program_info: Arc<ClaudeProgramInfo>,
    start: Start,
    /// What the session wants.
    choices: Choices,
    commands: mpsc::Receiver<TaskCommand>,
    events: EventSender,
    /// Events that go to the host next. While there are any, the program is not read.
    ready: VecDeque<Event>,
    run: Run,
    opening: Opening,
}

impl ClaudeTask {
    async fn work(mut self) {
        loop {
            if self.pass_on().await == TaskFlow::End {
                return;
            }
            let Self { commands, events, ready, run, .. } = &mut self;
            let next = match next_wake(commands, events, ready, run.process.read()).await {
                Wake::Sent => TaskFlow::Continue,
                Wake::Alone => TaskFlow::End,
                Wake::Command(command) => self.command(*command).await,
                Wake::Program(output) => self.output(output).await,
            };
            if next == TaskFlow::End {
                return;
            }
        }
    }

    /// Passes on what the translator has for the program and for the host.
    async fn pass_on(&mut self) -> TaskFlow {
        while let Some(event) = self.run.claude.poll_event() {
            self.note(&event);
            match self.pass(&event) {
                Passed::On => self.ready.push_back(event),
                Passed::Held => {}
                Passed::NotStarted => self.begin_anew().await,
            }
        }
        // After the events: one of them may have started the program once more, and there is something to write to that one.
        while let Some(line) = self.run.claude.poll_line() {
            if self.run.process.write(line).is_err() {
                self.run.process.kill(ProgramEnd::Deaf);
            }
        }
        while let Some(signal) = self.run.claude.poll_signal() {
            self.signal(signal);
        }
        self.run.process.expect(self.expectation());
        let is_over = self.run.phase == RunPhase::Over && self.ready.is_empty();
        if is_over { TaskFlow::End } else { TaskFlow::Continue }
    }

    /// Keeps what decides how long the program may be silent.
    fn note(&mut self, event: &Event) {
        match event {
            Event::BlockStarted { message, block, kind: BlockKind::ToolInput(call) } => {
                self.run.inputs.insert((message.clone(), block.clone()), call.tool.clone());
            }
            Event::BlockEnded { message, block, .. } => {
                let whole = self.run.inputs.remove(&(message.clone(), block.clone()));
                self.run.tools.extend(whole);
            }
            Event::ToolStarted { tool } => drop(self.run.tools.insert(tool.clone())),
            // A call that was denied does not run: the program has to go on.
            Event::ToolAnswered { tool, answer } if !answer.allows() => drop(self.run.tools.remove(tool)),
            Event::ToolEnded { tool, .. } => drop(self.run.tools.remove(tool)),
            Event::TurnEnded { turn, .. } => {
                self.run.inputs.clear();
                self.run.tools.clear();
                self.run.cancelled.take_if(|cancelled| cancelled == turn);
            }
            _ => {}
        }
    }

    fn pass(&mut self, event: &Event) -> Passed {
        let Opening::Trying { held, .. } = &mut self.opening else { return Passed::On };
        match event {
            Event::TurnStarted { .. } | Event::Usage(_) => {
                held.push(event.clone());
                Passed::Held
            }
            Event::TurnEnded { outcome: Outcome::Failed(failure), .. } if failure.kind == NOT_STARTED => {
                Passed::NotStarted
            }
            _ => {
                self.ready.extend(held.drain(..));
                self.opening = Opening::Begun;
                Passed::On
            }
        }
    }

    /// Starts the program once more, without the token that it does not know, and gives it the prompt that it has not taken.
    async fn begin_anew(&mut self) {
        let Opening::Trying { prompt, .. } = std::mem::replace(&mut self.opening, Opening::New) else { return };
        warn!(chat = %self.start.chat, "the agent's program does not know the conversation any more: it is told the history");
        let turn = prompt.turn.clone();
        let sent = match self.launcher.launch(None, self.choices.clone()).await {
            Ok(run) => {
                self.run = run;
                self.send(*prompt).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            let failure = Failure::new("agentUnavailable", error.to_string());
            self.run.phase = RunPhase::Over;
            self.ready.push_back(Event::TurnStarted { turn: turn.clone() });
            self.ready.push_back(Event::TurnEnded { turn, outcome: Outcome::Failed(failure) });
        }
    }

    fn expectation(&self) -> Expectation {
        let Run { claude, phase, cancelled, tools, .. } = &self.run;
        let works = claude.turn().is_some() || claude.waiting().next().is_some();
        if *phase == RunPhase::Starting {
            Expectation::Start
        } else if !works {
            Expectation::Idle
        } else if cancelled.is_some() {
            Expectation::Cancelled
        } else if claude.asked().next().is_some() || !tools.is_empty() {
            Expectation::Nothing
        } else {
            Expectation::Output
        }
    }

    fn signal(&mut self, signal: Signal) {
        if matches!(signal, Signal::Replied { control: Control::SetPermissionMode(_), .. }) {
            self.run.mode_wishes = self.run.mode_wishes.saturating_sub(1);
        }
        match signal {
            Signal::Replied { control: Control::Initialize, reply: Ok(_), .. } => {
                self.program_info.take(&self.launcher.directories.working, self.run.claude.info());
            }
            Signal::ModeChanged { mode } => self.mode_changed(mode),
            Signal::Replied { control, reply: Err(error), .. } => {
                debug!(chat = %self.start.chat, ?control, %error, "the agent's program has not done what it was asked");
            }
            Signal::Refused { subtype } => {
                debug!(chat = %self.start.chat, subtype, "the agent's program asked for something that is not offered");
            }
            // The same is told by events.
            Signal::Permission(_) | Signal::Withdrawn { .. } | Signal::Replied { .. } | Signal::Reported(_) => {}
        }
    }

    /// The program works in another mode: because it was asked to, or by itself, or because of an answer. In the last two cases the
    /// session follows.
    fn mode_changed(&mut self, mode: String) {
        let is_first = self.run.mode.replace(mode.clone()).is_none();
        let is_wanted = self.choices.mode.as_ref() == Some(&mode);
        // What it begins with is no news, unless the session has chosen another mode.
        if is_wanted || self.run.mode_wishes > 0 || (is_first && self.choices.mode.is_none()) {
            return;
        }
        (self.run.applied.mode, self.choices.mode) = (Some(mode.clone()), Some(mode.clone()));
        self.ready.push_back(Event::ModeChanged { mode });
    }

    async fn output(&mut self, output: ProgramOutput) -> TaskFlow {
        match output {
            ProgramOutput::Line(line) => {
                // An empty line, and what a program prints before it begins, do not say that it works.
                match self.run.claude.receive(&line) {
                    Received::Taken => {
                        self.run.phase = RunPhase::Started;
                        self.run.process.understood();
                    }
                    Received::Ignored => {}
                    Received::Malformed { bytes } => {
                        warn!(chat = %self.start.chat, bytes, "a line of an agent's program cannot be read and is skipped");
                    }
                }
            }
            ProgramOutput::Skipped { bytes } => {
                let limit = self.launcher.config.program.process.max_line_bytes;
                warn!(chat = %self.start.chat, bytes, limit, "a line of an agent's program is too long and is skipped");
                self.run.claude.skip_line();
            }
            ProgramOutput::Ended(end) => self.ended(end).await,
        }
        TaskFlow::Continue
    }

    /// The program has ended.
    async fn ended(&mut self, end: ProgramEnd) {
        if self.run.phase == RunPhase::Over {
            return;
        }
        // Some versions say only to people that there is nothing to resume, and exit before they have begun.
        let has_begun = self.run.claude.info().session.is_some();
        if matches!(self.opening, Opening::Trying { .. })
            && !has_begun
            && matches!(end, ProgramEnd::Exited(code) if code != 0)
        {
            self.begin_anew().await;
            return;
        }
        let reason = end.reason(&self.run.process.stderr().await);
        match &end {
            ProgramEnd::Exited(0) | ProgramEnd::Idle(_) => {
                debug!(chat = %self.start.chat, end = end.kind(), "an agent's program has ended")
            }
            _ => warn!(chat = %self.start.chat, end = end.kind(), "an agent's program has ended"),
        }
        self.run.phase = RunPhase::Over;
        self.run.claude.end(reason);
    }

    async fn command(&mut self, TaskCommand { kind, reply }: TaskCommand) -> TaskFlow {
        let answer = match kind {
            CommandKind::Dispose => {
                self.dispose().await;
                let _ = reply.send(Ok(()));
                return TaskFlow::End;
            }
            _ if self.run.phase == RunPhase::Over => Err(AgentError::Ended),
            // It was idle for too long, or has just died: the prompt begins another conversation.
            CommandKind::Send(_) if self.run.process.is_ending() => Err(AgentError::Ended),
            CommandKind::Send(_) if self.is_busy() => Err(AgentError::Busy),
            CommandKind::Send(prompt) => self.send(prompt).await,
            CommandKind::Cancel(turn) => {
                self.cancel(turn);
                Ok(())
            }
            CommandKind::Answer(tool, answer) => self.answer(&tool, answer),
            CommandKind::Configure(options) => {
                self.choices = Choices::read(&options, &self.launcher.config.program);
                self.apply_mode();
                Ok(())
            }
        };
        // Whoever asked may have stopped waiting.
        let _ = reply.send(answer);
        TaskFlow::Continue
    }

    fn is_busy(&self) -> bool {
        self.run.claude.turn().is_some() || self.run.claude.waiting().next().is_some()
    }

    /// Hands a prompt over.
    async fn send(&mut self, prompt: Prompt) -> Result<(), AgentError> {
        self.apply_mode();
        self.apply_model(prompt.message.model.as_ref().map(|model| model.id.clone()));
        let mut preamble = None;
        match self.opening {
            Opening::New => {
                let history = history::preamble(&self.start, self.launcher.config.program.max_history_bytes).await;
                preamble = history.map_err(|error| AgentError::Unavailable(error.to_string()))?;
                self.opening = Opening::Begun;
            }
            Opening::Resumed => {
                self.opening = Opening::Trying { prompt: Box::new(prompt.clone()), held: Vec::new() };
            }
            Opening::Trying { .. } | Opening::Begun => {}
        }
        let Prompt { turn, message } = prompt;
        let content = prompt::parts(message, preamble);
        // The host sends a prompt when the agent is free. If the program has just begun something by itself, the prompt gets a turn
        // of its own after that.
        self.run.claude.send(claude::Prompt { turn, uuid: uuid(), priority: Some(Priority::Later), content });
        Ok(())
    }

    fn apply_mode(&mut self) {
        // Compared with what it was asked for last, or has changed to by itself: that is what the session shows then.
        if self.run.applied.mode != self.choices.mode
            && let Some(wanted) = self.choices.mode.clone()
        {
            self.run.applied.mode = Some(wanted.clone());
            self.run.mode_wishes = self.run.mode_wishes.saturating_add(1);
            self.run.claude.request(Control::SetPermissionMode(wanted));
        }
    }

    fn apply_model(&mut self, of_message: Option<String>) {
        let wanted = of_message.or_else(|| self.choices.model.clone());
        if self.run.applied.model != wanted {
            self.run.applied.model.clone_from(&wanted);
            self.run.claude.request(Control::SetModel(wanted));
        }
    }

    fn cancel(&mut self, turn: Id) {
        let claude = &mut self.run.claude;
        let is_its = claude.turn() == Some(&turn) || claude.waiting().any(|waiting| *waiting == turn);
        if is_its && self.run.cancelled.as_ref() != Some(&turn) {
            self.run.cancelled = Some(turn);
            claude.request(Control::Interrupt);
        }
    }

    fn answer(&mut self, tool: &Id, answer: Verdict) -> Result<(), AgentError> {
        match self.run.claude.answer(tool, answer) {
            Ok(()) => Ok(()),
            Err(AnswerError::NotAsked) => Err(AgentError::NotAsked),
            // The program must not wait for ever, nor run what nobody has seen.
            Err(AnswerError::NotAnObject) => {
                let reason = Some("The edited input is not a JSON object.".to_owned());
                let denied = self.run.claude.answer(tool, Verdict::Denied { reason, choice: None });
                denied.map_err(|_| AgentError::NotAsked)
            }
        }
    }

    /// Ends the program, and says what that means for its turn.
    async fn dispose(&mut self) {
        self.run.claude.end(ExitReason::Stopped);
        self.run.phase = RunPhase::Over;
        while let Some(event) = self.run.claude.poll_event() {
            self.ready.push_back(event);
        }
        // Whoever disposes need not listen. If there is no space, the end of the stream says that it is over.
        while let Some(event) = self.ready.pop_front() {
            if !self.events.try_send(event) {
                break;
            }
        }
        self.run.process.stop().await;
    }
}

/// A random UUID: the program drops a prompt whose UUID it knows, without a word.
fn uuid() -> String {
    // Version 4, variant 1.
    let bits = (u128::from_be_bytes(BatchId::new().to_bytes()) & !(0xf000 << 64) & !(0xc000 << 48))
        | (0x4000 << 64)
        | (0x8000 << 48);
    let hex = format!("{bits:032x}");
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_version_and_never_comes_again() {
        let (one, other) = (uuid(), uuid());
        assert_ne!(one, other);
        let parts: Vec<&str> = one.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]), "{one}");
    }
}
