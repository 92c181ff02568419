//! A conversation with an ACP agent: one task that owns the process, and passes on what it says and what it is told.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use breakbulk_lifecycle::acp::{
    Connection, ConnectionSignal, Offers, Opened, Opening, PromptError, RpcError, SessionSignal,
};
use breakbulk_lifecycle::{Event, ExitReason, Id, Received};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::{AcpConfig, AcpProgramInfo, prompt, requests};
use crate::agent::process::{Expectation, Process, ProgramEnd, ProgramOutput};
use crate::agent::program::{Choices, Directories};
use crate::agent::task_conversation::{
    CommandKind, TaskCommand, TaskConversation, TaskFlow, Wake, command_queue, next_wake,
};
use crate::agent::{AgentError, EventSender, HostServices, Prompt, Start, Started, events, history};
use crate::lock::lock;

/// Begins a conversation: starts the program and opens a session.
pub(super) async fn start(
    config: Arc<AcpConfig>,
    program_info: Arc<AcpProgramInfo>,
    start: Start,
) -> Result<Started, AgentError> {
    let Directories { working, others } = config.program.directories(&start.directories).await?;
    let offers = Offers { files: start.services.are_offered(), terminals: start.services.are_offered() };
    let opening = Opening {
        cwd: working.clone(),
        additional_directories: others,
        resume: start.token.clone(),
        auth_method: config.auth_method.clone(),
        offers,
    };
    let process = config.program.start(working.clone(), Vec::new(), &[]).await?;
    let (sender, stream) = events(config.program.events);
    let (commands, receiver) = command_queue();
    let mut task = AcpTask {
        choices: Choices::read(&start.config, &config.program),
        applied: Choices::default(),
        connection: Connection::new(opening, config.conversation),
        config,
        program_info,
        directory: working,
        start,
        commands: receiver,
        events: sender,
        ready: VecDeque::new(),
        process,
        phase: SessionPhase::Opening,
        knows_history: false,
        turn: None,
        cancelled: None,
        open_calls: HashSet::new(),
        requests: JoinSet::new(),
    };
    task.open().await?;
    let task = tokio::spawn(task.work());
    let conversation = Box::new(TaskConversation::new(commands, task));
    Ok(Started { conversation, events: stream })
}

/// The program's side of a conversation.
struct AcpTask {
    config: Arc<AcpConfig>,
    program_info: Arc<AcpProgramInfo>,
    /// The working directory.
    directory: PathBuf,
    start: Start,
    /// What the session wants.
    choices: Choices,
    /// What the program was asked for last, or has chosen itself since.
    applied: Choices,
    commands: mpsc::Receiver<TaskCommand>,
    events: EventSender,
    /// Events that go to the host next. While there are any, the program is not read.
    ready: VecDeque<Event>,
    process: Process,
    connection: Connection,
    phase: SessionPhase,
    /// Whether the agent knows the earlier turns.
    knows_history: bool,
    /// The prompt that the agent works on.
    turn: Option<Id>,
    /// The turn that the agent was told to stop.
    cancelled: Option<Id>,
    /// Calls that run, and calls about which somebody is asked: meanwhile the program may be silent.
    open_calls: HashSet<Id>,
    /// What the host does for the agent.
    requests: JoinSet<(u64, Result<Value, RpcError>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionPhase {
    /// No session is open yet.
    Opening,
    Open,
    /// The program has ended.
    Over,
}

/// What the program has done, or the host for it.
enum ProgramEvent {
    Output(ProgramOutput),
    /// The host has done what the agent asked for.
    Performed(u64, Result<Value, RpcError>),
}

impl AcpTask {
    /// Opens a session.
    async fn open(&mut self) -> Result<(), AgentError> {
        loop {
            self.write_lines();
            while let Some(signal) = self.connection.poll_signal() {
                match signal {
                    ConnectionSignal::Opened(opened) => {
                        self.opened(*opened);
                        return Ok(());
                    }
                    ConnectionSignal::NotOpened(failure) => return Err(AgentError::Unavailable(failure.message)),
                    other => self.signal(other),
                }
            }
            match self.process.read().await {
                ProgramOutput::Ended(end) => {
                    return Err(AgentError::NotStarted(end.failure(&self.process.stderr().await)));
                }
                output => self.read(output).await,
            }
        }
    }

    fn opened(&mut self, opened: Opened) {
        let Opened { remembers, modes, options, models, agent, .. } = opened;
        debug!(chat = %self.start.chat, agent = ?agent.map(|agent| agent.name), remembers, "an ACP session is open");
        self.phase = SessionPhase::Open;
        self.knows_history = remembers;
        let mut known = lock(&self.program_info.options);
        (known.modes, known.options, known.models) = (modes, options, models);
        drop(known);
        self.apply(None);
    }

    async fn work(mut self) {
        loop {
            if self.pass_on() == TaskFlow::End {
                return;
            }
            let Self { commands, events, ready, process, requests, .. } = &mut self;
            let program = async {
                tokio::select! {
                    output = process.read() => ProgramEvent::Output(output),
                    Some(Ok((request, response))) = requests.join_next() => ProgramEvent::Performed(request, response),
                }
            };
            match next_wake(commands, events, ready, program).await {
                Wake::Sent => {}
                Wake::Alone => return,
                Wake::Command(command) => {
                    if self.command(*command).await == TaskFlow::End {
                        return;
                    }
                }
                Wake::Program(ProgramEvent::Output(output)) => self.read(output).await,
                Wake::Program(ProgramEvent::Performed(request, response)) => {
                    self.connection.respond(request, response);
                }
            }
        }
    }

    fn write_lines(&mut self) {
        while let Some(line) = self.connection.poll_line() {
            if self.process.write(line).is_err() {
                self.process.kill(ProgramEnd::Deaf);
            }
        }
    }

    /// Passes on what the connection has for the program and for the host.
    fn pass_on(&mut self) -> TaskFlow {
        self.write_lines();
        while let Some(signal) = self.connection.poll_signal() {
            self.signal(signal);
        }
        while let Some(event) = self.connection.poll_event() {
            self.note(&event);
            self.ready.push_back(event);
        }
        self.process.expect(self.expectation());
        let is_over = self.phase == SessionPhase::Over && self.ready.is_empty();
        if is_over { TaskFlow::End } else { TaskFlow::Continue }
    }

    /// Keeps what decides how long the program may be silent.
    fn note(&mut self, event: &Event) {
        match event {
            Event::ToolStarted { tool } | Event::ToolAsked { tool, .. } => {
                self.open_calls.insert(tool.clone());
            }
            Event::ToolEnded { tool, .. } | Event::ToolAnswered { tool, .. } => {
                self.open_calls.remove(tool);
            }
            Event::TurnEnded { turn, .. } => {
                self.open_calls.clear();
                self.turn.take_if(|open| open == turn);
                self.cancelled.take_if(|cancelled| cancelled == turn);
            }
            _ => {}
        }
    }

    fn expectation(&self) -> Expectation {
        if self.phase == SessionPhase::Opening {
            Expectation::Start
        } else if self.turn.is_none() {
            Expectation::Idle
        } else if self.cancelled.is_some() {
            Expectation::Cancelled
        } else if !self.open_calls.is_empty() || !self.requests.is_empty() {
            Expectation::Nothing
        } else {
            Expectation::Output
        }
    }

    fn signal(&mut self, signal: ConnectionSignal) {
        match signal {
            ConnectionSignal::Request { request, wanted } => {
                let services: HostServices = self.start.services.clone();
                self.requests.spawn(async move { (request, requests::perform(services, *wanted).await) });
            }
            ConnectionSignal::Session(SessionSignal::Commands(commands)) => {
                self.program_info.commands.set(&self.directory, commands.into_iter().map(super::command).collect());
            }
            ConnectionSignal::Session(SessionSignal::Options(options)) => {
                lock(&self.program_info.options).options = options
            }
            ConnectionSignal::Session(SessionSignal::ModeChanged { mode }) => {
                // The session follows, so the next prompt does not set it back.
                (self.applied.mode, self.choices.mode) = (Some(mode.clone()), Some(mode.clone()));
                self.ready.push_back(Event::ModeChanged { mode });
            }
            // The host names sessions itself. The others come only while a session is opened.
            ConnectionSignal::Session(SessionSignal::Title(_))
            | ConnectionSignal::Opened(_)
            | ConnectionSignal::NotOpened(_) => {}
        }
    }

    async fn read(&mut self, output: ProgramOutput) {
        let chat = &self.start.chat;
        match output {
            ProgramOutput::Line(line) => match self.connection.receive(&line) {
                Received::Taken => self.process.understood(),
                Received::Ignored => {}
                Received::Malformed { bytes } => {
                    warn!(%chat, bytes, "a line of an agent's program cannot be read and is skipped");
                }
            },
            ProgramOutput::Skipped { bytes } => {
                let limit = self.config.program.process.max_line_bytes;
                warn!(%chat, bytes, limit, "a line of an agent's program is too long and is skipped");
            }
            ProgramOutput::Ended(end) => self.ended(&end).await,
        }
    }

    /// The program has ended.
    async fn ended(&mut self, end: &ProgramEnd) {
        if self.phase == SessionPhase::Over {
            return;
        }
        match end {
            ProgramEnd::Exited(0) | ProgramEnd::Idle(_) => {
                debug!(chat = %self.start.chat, end = end.kind(), "an agent's program has ended");
            }
            _ => warn!(chat = %self.start.chat, end = end.kind(), "an agent's program has ended"),
        }
        self.phase = SessionPhase::Over;
        self.connection.end(end.reason(&self.process.stderr().await));
    }

    async fn command(&mut self, TaskCommand { kind, reply }: TaskCommand) -> TaskFlow {
        let answer = match kind {
            CommandKind::Dispose => {
                self.dispose().await;
                let _ = reply.send(Ok(()));
                return TaskFlow::End;
            }
            _ if self.phase == SessionPhase::Over => Err(AgentError::Ended),
            // It was idle for too long, or has just died: the prompt begins another conversation.
            CommandKind::Send(_) if self.process.is_ending() => Err(AgentError::Ended),
            CommandKind::Send(prompt) => self.send(prompt).await,
            CommandKind::Cancel(turn) => {
                self.cancel(turn);
                Ok(())
            }
            CommandKind::Answer(tool, answer) => {
                self.connection.answer(&tool, &answer).then_some(()).ok_or(AgentError::NotAsked)
            }
            CommandKind::Configure(options) => {
                self.choices = Choices::read(&options, &self.config.program);
                self.apply(None);
                Ok(())
            }
        };
        // Whoever asked may have stopped waiting.
        let _ = reply.send(answer);
        TaskFlow::Continue
    }

    async fn send(&mut self, prompt: Prompt) -> Result<(), AgentError> {
        if self.turn.is_some() {
            return Err(AgentError::Busy);
        }
        let Prompt { turn, message } = prompt;
        self.apply(message.model.as_ref().map(|model| model.id.clone()));
        let mut preamble = None;
        if !std::mem::replace(&mut self.knows_history, true) {
            let history = history::preamble(&self.start, self.config.program.max_history_bytes).await;
            preamble = history.map_err(|error| AgentError::Unavailable(error.to_string()))?;
        }
        let blocks = prompt::blocks(message, preamble);
        self.connection.send(turn.clone(), blocks).map_err(|error| match error {
            PromptError::Busy => AgentError::Busy,
            PromptError::NotOpen => AgentError::Ended,
        })?;
        self.turn = Some(turn);
        Ok(())
    }

    /// Tells the agent which mode and model the session wants, where that has changed.
    fn apply(&mut self, model_of_message: Option<String>) {
        let model = model_of_message.or_else(|| self.choices.model.clone());
        if let Some(mode) = self.choices.mode.clone().filter(|mode| self.applied.mode.as_ref() != Some(mode)) {
            if !self.connection.set_mode(&mode) {
                warn!(chat = %self.start.chat, mode, "the agent has no such mode");
            }
            self.applied.mode = Some(mode);
        }
        if let Some(model) = model.filter(|model| self.applied.model.as_ref() != Some(model)) {
            if !self.connection.set_model(&model) {
                warn!(chat = %self.start.chat, model, "the agent does not let its host choose a model");
            }
            self.applied.model = Some(model);
        }
    }

    fn cancel(&mut self, turn: Id) {
        if self.turn.as_ref() == Some(&turn) && self.cancelled.as_ref() != Some(&turn) {
            self.cancelled = Some(turn);
            self.connection.cancel();
        }
    }

    /// Ends the program, and says what that means for its turn.
    async fn dispose(&mut self) {
        self.connection.end(ExitReason::Stopped);
        self.phase = SessionPhase::Over;
        while let Some(event) = self.connection.poll_event() {
            self.ready.push_back(event);
        }
        // Whoever disposes need not listen. If there is no space, the end of the stream says that it is over.
        while let Some(event) = self.ready.pop_front() {
            if !self.events.try_send(event) {
                break;
            }
        }
        self.process.stop().await;
    }
}
