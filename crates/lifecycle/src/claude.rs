//! The Claude Code program's `stream-json`, both ways, as events of the grammar.
//!
//! ```text
//!   the program's lines ─▶ receive ─┬─▶ poll_event  ─▶ Writer ─▶ the host
//!                                   └─▶ poll_signal ─▶ what the host has to know beside
//!  send, request, answer ───────────┬─▶ poll_line   ─▶ the program
//!         (and what must be answered at once)
//! ```
//!
//! A [`Conversation`] is one run of the program, from its start to [`end`](Conversation::end). It reads no clock and makes
//! no random names: the caller gives the UUIDs of prompts and one name, from which all other names are made.
//!
//! What the program does, and what becomes of it:
//!
//! | The program | Here |
//! |---|---|
//! | `stream_event` | messages and blocks, as they grow; the input of a call when it is whole |
//! | `assistant`, one block at a time | only what was not streamed |
//! | `user` | results of calls |
//! | `parent_tool_use_id` | a sub-agent within that call |
//! | `control_request` `can_use_tool` | [`Event::ToolAsked`] and [`Signal::Permission`] |
//! | `control_cancel_request` | the same question, withdrawn |
//! | any other `control_request` | refused, so that the program does not wait for ever |
//! | `system` `init`, in each turn | [`Info`], and the token to resume with |
//! | `result` | the end of the turn, its cost and its [`Report`] |
//! | `command_lifecycle` | which prompt the next turn belongs to |
//! | what else it writes | ignored, and [counted](Counts) by name |
//!
//! **A turn** begins with the first line that belongs to it and ends with its `result`, or with the program. The program
//! may begin one by itself (a background task reports): that turn has a name made from the conversation's. Each prompt
//! that was handed over gets exactly one turn: if the program answers it within another turn, takes it back or ends before
//! it begins, its turn begins and ends with nothing but that said. Nothing is inferred from silence.
//!
//! **What is held**: names and a few numbers for each block and call of the turn ([`Limits::max_parts`]), the inputs of calls that are not whole
//! ([`Limits::max_input_bytes`]), and the inputs of calls that somebody is asked about ([`Limits::max_asks`]). How long a
//! line may be is the reader's affair; it [says](Conversation::skip_line) which lines it has left out.

mod control;
mod counts;
mod info;
mod launch;
mod permission;
mod prompt;
mod results;
mod turn;
mod wire;

use std::collections::VecDeque;

use self::control::{Controls, RequestLine};
use self::info::{Changed, Initialized};
use self::permission::{Asked, Asks};
use self::prompt::{PendingPrompt, Place, PromptLine, Prompts};
use self::turn::{Origin, Turn, TurnOutput};
use self::wire::{Line, Maybe, Text};
use crate::{Answer, Event, ExitReason, Failure, Id, Outcome, Received, Usage};

pub use self::control::{Control, ControlError, Reply};
pub use self::counts::Counts;
pub use self::info::{Info, ModelInfo, SlashCommand};
pub use self::launch::{InvalidArgument, Launch};
pub use self::permission::{
    AnswerError, CHOICE_ALWAYS, CHOICE_DENY, CHOICE_MODE, CHOICE_ONCE, CHOICE_STOP, PermissionRequest,
};
pub use self::prompt::{Part, Priority, Prompt};

/// The kind of failure of a turn that the program gave up before it began anything: it has had no effect. So it ends when
/// there is nothing to resume under the token that the program was given.
pub const NOT_STARTED: &str = "notStarted";

/// Calls that outlived their turns, of which we remember the names: a background agent or two, not a history.
const MAX_OUTLIVED: usize = 256;

/// What a conversation may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of input of calls that are not whole yet. 64 MiB: more than a file that somebody would have written.
    pub max_input_bytes: usize,
    /// Calls that may be asked about at the same time; more are refused. 256: sub-agents ask side by side, but not so many.
    pub max_asks: usize,
    /// Messages, blocks and calls of one turn; more are left out. 131,072: days of work, and some 50 MB.
    pub max_parts: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_input_bytes: 64 << 20, max_asks: 256, max_parts: 1 << 17 }
    }
}

/// Something that the host has to know, and that is no event of the grammar.
#[derive(Debug, Clone, PartialEq)]
pub enum Signal {
    /// The program wants a permission, and waits for [`answer`](Conversation::answer).
    Permission(Box<PermissionRequest>),
    /// The program does not wait for this answer any more.
    Withdrawn {
        /// The call.
        tool: Id,
        /// The program's name for its request.
        request: Id,
    },
    /// The program asked for something that is not offered here. It has been told so.
    Refused {
        /// What it asked for.
        subtype: String,
    },
    /// The program has answered what it was [asked](Conversation::request).
    Replied {
        /// The name that the request was given.
        request: Id,
        /// What was asked.
        control: Control,
        /// The answer.
        reply: Result<Reply, ControlError>,
    },
    /// The permission mode is another one now.
    ModeChanged {
        /// The mode.
        mode: String,
    },
    /// What the program says about a turn that has ended.
    Reported(Box<Report>),
}

/// What the program says about a turn that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The turn.
    pub turn: Id,
    /// Whether it was the program itself that began it.
    pub is_unprompted: bool,
    /// `success`, `error_during_execution`, `error_max_turns`, or what else the program knows.
    pub subtype: String,
    /// Whether it failed.
    pub is_error: bool,
    /// What it cost.
    pub usage: Usage,
    /// Calls that were not allowed.
    pub denials: Vec<Denial>,
}

/// A call that was not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The call.
    pub tool: Id,
    /// The tool's name.
    pub name: String,
}

/// One run of the program.
#[derive(Debug)]
pub struct Conversation {
    name: Id,
    limits: Limits,
    phase: ProgramPhase,
    events: VecDeque<Event>,
    signals: VecDeque<Signal>,
    lines: VecDeque<Vec<u8>>,
    prompts: Prompts,
    /// Prompts that were answered or taken back while another turn was open, which get their own turn after it.
    settled: VecDeque<(Id, Settled)>,
    turn: Option<Turn>,
    controls: Controls,
    asks: Asks,
    info: Info,
    counts: Counts,
    /// Calls whose sub-agents have outlived their turn.
    outlived: VecDeque<Id>,
    /// What the program has cost until the last turn ended, in millionths of a dollar.
    cost_micros: u64,
    /// Names that were made.
    made: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProgramPhase {
    Running,
    Ended,
}

/// What became of a prompt, as the program's queue has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settled {
    /// It was answered, within its own turn or another.
    Answered,
    /// It was taken back or stopped.
    TakenBack,
}

impl Settled {
    const fn outcome(self) -> Outcome {
        match self {
            Self::Answered => Outcome::Complete,
            Self::TakenBack => Outcome::Cancelled,
        }
    }
}

impl Conversation {
    /// The program has just been started. The name is one that no other run has.
    pub fn new(name: impl Into<Id>, limits: Limits) -> Self {
        Self {
            name: name.into(),
            limits,
            phase: ProgramPhase::Running,
            events: VecDeque::new(),
            signals: VecDeque::new(),
            lines: VecDeque::new(),
            prompts: Prompts::default(),
            settled: VecDeque::new(),
            turn: None,
            controls: Controls::default(),
            asks: Asks::default(),
            info: Info::default(),
            counts: Counts::default(),
            outlived: VecDeque::new(),
            cost_micros: 0,
            made: 0,
        }
    }

    /// Hands a prompt over.
    pub fn send(&mut self, prompt: Prompt) {
        self.lines.push_back(permission::line(&PromptLine::new(&prompt)));
        self.prompts.push(prompt);
        if self.phase == ProgramPhase::Ended {
            self.fail_prompts(&Outcome::Failed(Failure::new("agentEnded", "The agent's program has ended.")));
        }
    }

    /// Asks something of the program. The answer is [`Signal::Replied`], under the name that this gives.
    pub fn request(&mut self, control: Control) -> Id {
        let request = self.made_name("r");
        if control == Control::Interrupt {
            match &mut self.turn {
                Some(turn) => turn.is_interrupted = true,
                None => self.prompts.interrupt_next(),
            }
        }
        self.lines.push_back(permission::line(&RequestLine::new(&request, &control)));
        self.controls.insert(request.clone(), control);
        if self.phase == ProgramPhase::Ended {
            self.fail_controls();
        }
        request
    }

    /// Answers what the program has asked about a call, under the program's own name for the call.
    ///
    /// # Errors
    /// The program does not wait for this answer, or could not read it. In the second case it still waits.
    pub fn answer(&mut self, tool: &Id, answer: Answer) -> Result<(), AnswerError> {
        let line = self.asks.answer(tool, &answer)?;
        self.lines.push_back(line);
        let allows = answer.allows();
        if matches!(&answer, Answer::Denied { choice: Some(choice), .. } if choice == CHOICE_STOP) {
            self.in_turn(|turn, _| turn.is_interrupted = true);
        }
        self.events.push_back(Event::ToolAnswered { tool: tool.clone(), answer });
        if allows {
            self.in_turn(|turn, out| turn.tool_runs(tool, out));
        }
        Ok(())
    }

    /// Takes one line that the program has written, with or without its line break.
    pub fn receive(&mut self, line: &[u8]) -> Received {
        if self.phase == ProgramPhase::Ended {
            return Received::Ignored;
        }
        let line = line.trim_ascii();
        if line.is_empty() {
            return Received::Ignored;
        }
        self.counts.lines = self.counts.lines.saturating_add(1);
        let read = std::str::from_utf8(line).ok();
        let read = read.and_then(|text| Some((text, serde_json::from_str::<Line<'_>>(text).ok()?)));
        let received = read.and_then(|(text, line)| self.take(text, &line));
        received.unwrap_or_else(|| {
            self.counts.malformed = self.counts.malformed.saturating_add(1);
            self.lose_line();
            Received::Malformed { bytes: line.len() }
        })
    }

    /// Says that the reader has left out a line, because it was over its limit.
    pub fn skip_line(&mut self) {
        self.counts.oversized = self.counts.oversized.saturating_add(1);
        self.lose_line();
    }

    /// The program has ended: the open turn ends, each prompt that it never began gets a turn that says so, and what it
    /// was asked is not answered.
    pub fn end(&mut self, reason: ExitReason) {
        if self.phase == ProgramPhase::Ended {
            return;
        }
        self.phase = ProgramPhase::Ended;
        self.lines.clear();
        if self.turn.is_some() {
            self.end_turn(reason.outcome());
        }
        self.lines.clear();
        self.fail_prompts(&reason.outcome());
        self.fail_controls();
    }

    /// The next event, for a [`Writer`](crate::Writer).
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next thing that the host has to know.
    #[must_use]
    pub fn poll_signal(&mut self) -> Option<Signal> {
        self.signals.pop_front()
    }

    /// The next line to write to the program, with its line break.
    #[must_use]
    pub fn poll_line(&mut self) -> Option<Vec<u8>> {
        self.lines.pop_front()
    }

    /// The open turn.
    #[must_use]
    pub fn turn(&self) -> Option<&Id> {
        self.turn.as_ref().map(|turn| &turn.id)
    }

    /// The turns of prompts that were handed over and have not begun, in the order of the prompts.
    pub fn waiting(&self) -> impl Iterator<Item = &Id> {
        self.prompts.turns()
    }

    /// What was asked of the program and is not answered yet.
    pub fn requests(&self) -> impl Iterator<Item = (&Id, &Control)> {
        self.controls.iter()
    }

    /// The calls about which the program waits for an answer.
    pub fn asked(&self) -> impl Iterator<Item = &Id> {
        self.asks.tools()
    }

    /// What the program has told about itself.
    #[must_use]
    pub const fn info(&self) -> &Info {
        &self.info
    }

    /// What was skipped.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Takes a line. None if it lacks what its type needs.
    fn take(&mut self, text: &str, line: &Line<'_>) -> Option<Received> {
        match line.kind.get()? {
            "stream_event" => self.stream_event(line),
            "assistant" => self.assistant(text, line),
            "user" => self.user(text, line),
            "control_request" => self.control_request(line),
            "control_response" => self.control_response(line),
            "control_cancel_request" => self.control_cancelled(line),
            "system" => self.system(text, line),
            "result" => self.result(text, line),
            "command_lifecycle" => self.lifecycle(text),
            "tool_progress" => self.tool_progress(text),
            other => Some(self.ignored(other)),
        }
    }

    fn stream_event(&mut self, line: &Line<'_>) -> Option<Received> {
        let event: wire::StreamEvent<'_> = wire::parse(line.event?)?;
        if self.is_late(line) {
            return Some(Received::Ignored);
        }
        match event.kind.get()? {
            "message_start" | "content_block_start" | "content_block_delta" => self.begin_turn(&[]),
            _ => {}
        }
        self.in_turn(|turn, out| turn.streamed(line, event, out));
        Some(Received::Taken)
    }

    fn assistant(&mut self, text: &str, line: &Line<'_>) -> Option<Received> {
        let message: wire::ApiMessage<'_> = wire::parse(line.message?)?;
        let about: wire::AssistantLine<'_> = serde_json::from_str(text).ok()?;
        if self.is_late(line) {
            return Some(Received::Ignored);
        }
        self.begin_turn(&[]);
        self.in_turn(|turn, out| {
            turn.error = about.error.to_owned().or_else(|| turn.error.take());
            turn.assistant_message(line, &message, out);
        });
        self.forget_ended_asks();
        Some(Received::Taken)
    }

    fn user(&mut self, text: &str, line: &Line<'_>) -> Option<Received> {
        let message: wire::ApiMessage<'_> = wire::parse(line.message?)?;
        let about: wire::UserLine<'_> = serde_json::from_str(text).ok()?;
        if about.is_replay.0 == Some(true) || self.is_late(line) {
            return Some(Received::Ignored);
        }
        self.in_turn(|turn, out| turn.results(line, &message, &about, out));
        self.forget_ended_asks();
        Some(Received::Taken)
    }

    fn control_request(&mut self, line: &Line<'_>) -> Option<Received> {
        let request = line.request_id.get()?;
        let wire = line.request.and_then(wire::parse::<wire::ControlRequest<'_>>);
        let subtype = wire.as_ref().map_or("", |wire| wire.subtype.as_str());
        match &wire {
            Some(wire) if subtype == "can_use_tool" => match Asked::read(request.into(), wire) {
                Some(_) if self.asks.has_request(request) => return Some(Received::Ignored),
                Some(_) if self.asks.len() >= self.limits.max_asks => {
                    self.refuse(request, subtype, "too many permissions are asked for at the same time");
                }
                Some(asked) => self.permission_wanted(asked, wire)?,
                None => self.refuse(request, subtype, "the request has no input"),
            },
            _ => self.refuse(request, subtype, "this host does not offer that"),
        }
        Some(Received::Taken)
    }

    fn permission_wanted(&mut self, asked: Asked, wire: &wire::ControlRequest<'_>) -> Option<()> {
        self.begin_turn(&[]);
        let name = wire.tool_name.get().unwrap_or("tool");
        // Old versions do not say which call they ask about.
        let tool = wire.tool_use_id.get().map_or_else(|| Id::from(format!("{}-call", asked.request)), Id::from);
        let turn = self.turn.as_ref()?;
        if turn.is_over(&tool) {
            self.lines.push_back(asked.deny("The call is over."));
            return Some(());
        }
        let permission = asked.permission(tool.clone(), wire);
        let input = wire.input?;
        self.in_turn(|turn, out| turn.tool_asked(&tool, name, input, out));
        if !self.turn.as_ref()?.knows(&tool) {
            self.lines.push_back(asked.deny("The turn has too many calls."));
            return Some(());
        }
        self.events.push_back(Event::ToolAsked { tool: tool.clone(), ask: permission.ask.clone() });
        if let Some(replaced) = self.asks.insert(tool.clone(), asked) {
            self.lines.push_back(replaced.deny("A newer request about the same call has replaced this one."));
            self.signals.push_back(Signal::Withdrawn { tool, request: replaced.request });
        }
        self.signals.push_back(Signal::Permission(Box::new(permission)));
        Some(())
    }

    fn refuse(&mut self, request: &str, subtype: &str, why: &str) {
        self.counts.ignore_within("control_request", subtype);
        self.lines.push_back(permission::refusal(request, why));
        let subtype = if counts::is_plain(subtype) { subtype } else { "other" };
        self.signals.push_back(Signal::Refused { subtype: subtype.to_owned() });
    }

    fn control_cancelled(&mut self, line: &Line<'_>) -> Option<Received> {
        let Some((tool, asked)) = self.asks.withdraw(line.request_id.get()?) else {
            return Some(self.ignored("control_cancel_request"));
        };
        self.events.push_back(Event::ToolAnswered { tool: tool.clone(), answer: Answer::Withdrawn });
        self.signals.push_back(Signal::Withdrawn { tool, request: asked.request });
        Some(Received::Taken)
    }

    fn control_response(&mut self, line: &Line<'_>) -> Option<Received> {
        let response: wire::ControlResponse<'_> = wire::parse(line.response?)?;
        let Some((request, control)) = self.controls.remove(response.request_id.get()?) else {
            return Some(self.ignored("control_response"));
        };
        let reply = control::reply(&control, &response);
        match (&control, &reply) {
            (Control::Initialize, Ok(_)) => {
                let before = self.info.permission_mode.clone();
                if let Some(answer) = response.response.and_then(wire::parse::<Initialized<'_>>) {
                    self.info.initialized(answer);
                }
                self.note_mode(before);
            }
            (Control::SetPermissionMode(mode), Ok(_)) => {
                let changed = response.response.and_then(wire::parse::<Changed<'_>>).unwrap_or_default();
                self.mode(changed.mode.get().unwrap_or(mode));
            }
            (Control::SetModel(model), Ok(_)) => {
                let changed = response.response.and_then(wire::parse::<Changed<'_>>).unwrap_or_default();
                self.info.model = changed.model.to_owned().or_else(|| model.clone()).or(self.info.model.take());
            }
            (Control::CancelPrompt { uuid }, Ok(Reply::PromptCancelled(true))) => self.settle(uuid, Settled::TakenBack),
            _ => {}
        }
        self.signals.push_back(Signal::Replied { request, control, reply });
        Some(Received::Taken)
    }

    fn system(&mut self, text: &str, line: &Line<'_>) -> Option<Received> {
        let subtype = line.subtype.get()?;
        let system = || serde_json::from_str::<wire::SystemLine<'_>>(text).ok();
        match subtype {
            "init" => {
                let system = system()?;
                self.mode(system.permission_mode.as_str());
                self.info.refresh(system);
                self.begin_prompted();
                self.give_token();
            }
            "status" => {
                self.mode(system()?.permission_mode.as_str());
                return Some(self.ignored("system/status"));
            }
            "task_started" => {
                let system = system()?;
                let is_asked = self.is_asked(system.tool_use_id.as_str());
                self.in_turn(|turn, out| {
                    turn.task_started(&system, out);
                    if !is_asked {
                        turn.tool_runs(system.tool_use_id.as_str(), out);
                    }
                });
            }
            "task_notification" => {
                let system = system()?;
                self.in_turn(|turn, out| turn.task_ended(&system, out));
            }
            "api_retry" => self.notice(retry(&system()?)),
            "compact_boundary" => {
                self.notice("The agent has summarized the conversation so far to save space.".to_owned());
            }
            other => {
                self.counts.ignore_within("system", other);
                return Some(Received::Ignored);
            }
        }
        Some(Received::Taken)
    }

    fn result(&mut self, text: &str, line: &Line<'_>) -> Option<Received> {
        let result: wire::ResultLine<'_> = serde_json::from_str(text).ok()?;
        if self.turn.is_none() {
            let named = result.user_message_uuids.0.as_deref().unwrap_or_default();
            let Some(pending) = self.prompts.take(named) else { return Some(self.ignored("result")) };
            self.start_prompted(pending);
        }
        // The program describes itself when it begins. If it has not, the conversation that it should resume does not
        // exist, for example.
        let has_begun = self.info.session.is_some() || result.num_turns.0 != Some(0);
        if let Some(session) = result.session_id.to_owned().filter(|_| has_begun) {
            self.info.session = Some(session);
        }
        self.give_token();
        let cost_micros = self.cost_of(&result);
        let subtype = line.subtype.as_str();
        let is_error = result.is_error.0.unwrap_or(subtype != "success");
        let said = result.result.0.as_ref().map_or("", |Text(text)| text);
        let denials = result.permission_denials.0.unwrap_or_default();
        let turn = self.turn.as_ref()?;
        let usage = turn.usage(result.usage, cost_micros);
        let outcome = if !is_error && matches!(subtype, "success" | "") {
            Outcome::Complete
        } else if subtype == "error_during_execution"
            && (turn.is_interrupted || result.terminal_reason.as_str().starts_with("aborted"))
        {
            Outcome::Cancelled
        } else {
            let told = turn.error.as_deref().filter(|error| *error != "unknown").or(result.api_error_type.get());
            let kind = told.or((!has_begun).then_some(NOT_STARTED)).unwrap_or(subtype);
            Outcome::Failed(failure(kind, said, result.errors))
        };
        let report = Report {
            turn: turn.id.clone(),
            is_unprompted: turn.origin == Origin::Program,
            subtype: subtype.to_owned(),
            is_error,
            usage: usage.clone(),
            denials: denials.iter().map(Denial::new).collect(),
        };
        self.in_turn(|turn, out| {
            // The output of commands that the program handles itself is only in the result.
            if outcome == Outcome::Complete && !turn.has_spoken() && !said.is_empty() {
                turn.say(said, out);
            }
            turn.denied(&denials, out);
        });
        self.events.push_back(Event::Usage(usage));
        self.end_turn(outcome);
        self.signals.push_back(Signal::Reported(Box::new(report)));
        Some(Received::Taken)
    }

    /// The cost of a turn. The program's total grows over turns, and in newer versions over resumed conversations;
    /// those versions also report the cost of the turn alone.
    fn cost_of(&mut self, result: &wire::ResultLine<'_>) -> Option<u64> {
        let total = micros(result.total_cost_usd.0?);
        let before = std::mem::replace(&mut self.cost_micros, total);
        let Maybe(models) = &result.models;
        let new = models.as_ref().map(|models| models.values().filter_map(|model| model.cost_usd.0).sum());
        Some(new.map_or(total.saturating_sub(before), micros))
    }

    fn lifecycle(&mut self, text: &str) -> Option<Received> {
        let line: wire::LifecycleLine<'_> = serde_json::from_str(text).ok()?;
        let uuid = line.command_uuid.get()?;
        match line.state.as_str() {
            "queued" => self.prompts.place(uuid, Place::Queued),
            "started" => self.prompts.place(uuid, Place::Taken),
            "completed" => self.settle(uuid, Settled::Answered),
            "cancelled" | "discarded" => self.settle(uuid, Settled::TakenBack),
            other => {
                self.counts.ignore_within("command_lifecycle", other);
                return Some(Received::Ignored);
            }
        }
        Some(Received::Taken)
    }

    fn tool_progress(&mut self, text: &str) -> Option<Received> {
        let line: wire::ProgressLine<'_> = serde_json::from_str(text).ok()?;
        let tool = line.tool_use_id.get()?;
        // A call with an open permission request runs from the answer on, whatever the program reports meanwhile.
        if !self.is_asked(tool) {
            self.in_turn(|turn, out| turn.tool_runs(tool, out));
        }
        Some(Received::Taken)
    }

    fn is_asked(&self, tool: &str) -> bool {
        self.asks.tools().any(|asked| **asked == *tool)
    }

    fn ignored(&mut self, name: &str) -> Received {
        self.counts.ignore(name);
        Received::Ignored
    }

    /// Whether a line comes from a sub-agent that has outlived its turn, or whose call is unknown while no turn is
    /// open.
    fn is_late(&mut self, line: &Line<'_>) -> bool {
        let Some(agent) = line.parent_tool_use_id.get() else { return false };
        let turn = self.turn.as_ref();
        let is_known = turn.is_some_and(|turn| turn.knows(agent) && !turn.is_over(agent));
        let is_late = !is_known && (turn.is_none_or(|turn| turn.is_over(agent)) || self.has_outlived(agent));
        if is_late {
            self.counts.late = self.counts.late.saturating_add(1);
        }
        is_late
    }

    fn has_outlived(&self, agent: &str) -> bool {
        self.outlived.iter().any(|outlived| **outlived == *agent)
    }

    /// Begins a turn if none is open: that of a prompt, or one of the program's own.
    fn begin_turn(&mut self, named: &[Text<'_>]) {
        if self.turn.is_some() {
            return;
        }
        match self.prompts.take(named) {
            Some(pending) => self.start_prompted(pending),
            None => {
                let turn = self.made_name("t");
                self.start_turn(turn, Origin::Program, false);
            }
        }
        self.give_token();
    }

    /// The program reports that a turn begins. Some versions report this when they start, too, so it counts only if a
    /// prompt waits. An open turn without a prompt, which a question of a background sub-agent has begun, ends here.
    fn begin_prompted(&mut self) {
        if self.turn.as_ref().is_some_and(|turn| turn.origin != Origin::Program) {
            return;
        }
        if let Some(pending) = self.prompts.take(&[]) {
            if self.turn.is_some() {
                self.end_turn(Outcome::Complete);
            }
            self.start_prompted(pending);
        }
    }

    fn start_prompted(&mut self, pending: PendingPrompt) {
        let PendingPrompt { turn, uuid, is_interrupted, .. } = pending;
        self.start_turn(turn, Origin::Prompt { uuid }, is_interrupted);
    }

    fn start_turn(&mut self, turn: Id, origin: Origin, is_interrupted: bool) {
        self.events.push_back(Event::TurnStarted { turn: turn.clone() });
        self.turn = Some(Turn::new(turn, origin, is_interrupted));
    }

    /// Gives the token to resume with, once in each turn and again if it changes.
    fn give_token(&mut self) {
        let (Some(turn), Some(token)) = (&mut self.turn, &self.info.session) else { return };
        if turn.token.as_ref() != Some(token) {
            turn.token = Some(token.clone());
            self.events.push_back(Event::Resumable { token: token.clone() });
        }
    }

    fn end_turn(&mut self, outcome: Outcome) {
        let left = self.in_turn(Turn::close).unwrap_or_default();
        for tool in left {
            if self.outlived.len() >= MAX_OUTLIVED {
                self.outlived.pop_front();
            }
            self.outlived.push_back(tool);
        }
        // The program may still wait, for a sub-agent in the background. It must not wait for ever.
        for (tool, asked) in self.asks.take() {
            self.lines.push_back(asked.deny("The turn has ended, and nobody can answer any more."));
            self.signals.push_back(Signal::Withdrawn { tool, request: asked.request });
        }
        if let Some(turn) = self.turn.take() {
            self.events.push_back(Event::TurnEnded { turn: turn.id, outcome });
        }
        while let Some((turn, settled)) = self.settled.pop_front() {
            self.settled_turn(turn, settled);
        }
    }

    /// Calls that are over are not asked about.
    fn forget_ended_asks(&mut self) {
        let Some(turn) = &self.turn else { return };
        let over: Vec<Id> = self.asks.tools().filter(|tool| turn.is_over(tool)).cloned().collect();
        for tool in over {
            if let Some(asked) = self.asks.remove(&tool) {
                self.signals.push_back(Signal::Withdrawn { tool, request: asked.request });
            }
        }
    }

    fn lose_line(&mut self) {
        self.in_turn(|turn, _| turn.has_lost_lines = true);
    }

    /// The program is done with a prompt. A prompt that caused no work gets a turn all the same, so that its sender
    /// does not wait for ever. If its turn is open, the result is still to come, or was in a lost line.
    fn settle(&mut self, uuid: &str, settled: Settled) {
        let is_its = |turn: &Turn| matches!(&turn.origin, Origin::Prompt { uuid: of } if of == uuid);
        if self.turn.as_ref().is_some_and(|turn| turn.has_lost_lines && is_its(turn)) {
            return self.end_turn(settled.outcome());
        }
        let Some(pending) = self.prompts.remove(uuid) else { return };
        if self.turn.is_some() {
            self.settled.push_back((pending.turn, settled));
        } else {
            self.settled_turn(pending.turn, settled);
        }
    }

    fn settled_turn(&mut self, turn: Id, settled: Settled) {
        self.events.push_back(Event::TurnStarted { turn: turn.clone() });
        if let Some(token) = self.info.session.clone() {
            self.events.push_back(Event::Resumable { token });
        }
        if settled == Settled::Answered {
            let text = "The agent has answered this prompt within the turn before it.".to_owned();
            self.events.push_back(Event::Notice { text });
        }
        self.events.push_back(Event::TurnEnded { turn, outcome: settled.outcome() });
    }

    /// The program has ended, and with it the prompts that it never began.
    fn fail_prompts(&mut self, outcome: &Outcome) {
        self.lines.clear();
        for pending in self.prompts.drain() {
            self.events.push_back(Event::TurnStarted { turn: pending.turn.clone() });
            self.events.push_back(Event::TurnEnded { turn: pending.turn, outcome: outcome.clone() });
        }
    }

    fn fail_controls(&mut self) {
        self.lines.clear();
        for (request, control) in self.controls.take() {
            self.signals.push_back(Signal::Replied { request, control, reply: Err(ControlError::Ended) });
        }
    }

    fn notice(&mut self, text: String) {
        if self.turn.is_some() {
            self.events.push_back(Event::Notice { text });
        }
    }

    /// The program works in this permission mode.
    fn mode(&mut self, mode: &str) {
        if mode.is_empty() {
            return;
        }
        let before = self.info.permission_mode.replace(mode.to_owned());
        self.note_mode(before);
    }

    fn note_mode(&mut self, before: Option<String>) {
        match &self.info.permission_mode {
            Some(mode) if before.as_ref() != Some(mode) => {
                self.signals.push_back(Signal::ModeChanged { mode: mode.clone() });
            }
            _ => {}
        }
    }

    fn in_turn<T>(&mut self, act: impl FnOnce(&mut Turn, &mut TurnOutput<'_>) -> T) -> Option<T> {
        let turn = self.turn.as_mut()?;
        let mut out = TurnOutput {
            events: &mut self.events,
            counts: &mut self.counts,
            max_input_bytes: self.limits.max_input_bytes,
            max_parts: self.limits.max_parts,
        };
        Some(act(turn, &mut out))
    }

    fn made_name(&mut self, kind: &str) -> Id {
        self.made = self.made.saturating_add(1);
        Id::from(format!("{}-{kind}{}", self.name, self.made))
    }
}

impl Denial {
    fn new(wire: &wire::PermissionDenial<'_>) -> Self {
        Self { tool: wire.tool_use_id.as_str().into(), name: wire.tool_name.as_str().to_owned() }
    }
}

/// Why a turn failed, in the program's words.
fn failure(kind: &str, said: &str, Maybe(errors): Maybe<Vec<Text<'_>>>) -> Failure {
    let kind = Some(kind).filter(|kind| counts::is_plain(kind) && *kind != "success").unwrap_or("agentError");
    let errors = errors.unwrap_or_default().iter().map(|Text(text)| &**text).collect::<Vec<_>>().join("\n");
    let message = [said, errors.as_str()].into_iter().find(|text| !text.is_empty());
    Failure::new(kind, message.map_or_else(|| format!("The agent's program gave up: {kind}."), str::to_owned))
}

fn retry(line: &wire::SystemLine<'_>) -> String {
    let status = line.error_status.0.map_or_else(String::new, |status| format!(" (HTTP {status})"));
    let attempt = match (line.attempt.0, line.max_retries.0) {
        (Some(attempt), Some(of)) => format!(" Attempt {attempt} of {of} follows."),
        (Some(attempt), None) => format!(" Attempt {attempt} follows."),
        _ => String::new(),
    };
    format!("The model could not be reached{status}.{attempt}")
}

/// Dollars in millionths. What is no amount of money is none.
fn micros(dollars: f64) -> u64 {
    #[expect(clippy::as_conversions, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let micros = (dollars * 1e6).round() as u64;
    micros
}
