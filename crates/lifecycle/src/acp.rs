//! Updates of an agent that speaks the Agent Client Protocol (ACP), as events of the grammar.
//!
//! ```text
//!  begin ─▶ session/update*, session/request_permission* ─▶ end (the answer to session/prompt)
//!    └────────────────┴──────────────────────────────────────┴─▶ poll_event  ─▶ Writer ─▶ the host
//!                                                              └▶ poll_signal ─▶ what the host has to know beside
//! ```
//!
//! ACP has no ends of messages and blocks, so they follow from what comes next:
//!
//! | The agent | Here |
//! |---|---|
//! | a chunk of another kind, a tool call, the end of the prompt | ends the block before it |
//! | another `messageId`, the first chunk after a tool call, the end of the prompt | ends the message before it |
//! | `tool_call` | a block with the call; its input is whole when an update brings `rawInput`, or when the call goes on without it |
//! | `tool_call_update` `in_progress`, content | the call runs, unless somebody is still asked about it; its output so far |
//! | `tool_call_update` `completed`, `failed` | the result of the call |
//! | `session/request_permission` | [`Event::ToolAsked`]; [`answer`](Translator::answer) gives the agent's own option. Without `rawInput`, what the agent shows of the call is its input |
//! | `plan` | a call named `plan`, whose output is the plan as a list; it ends with the turn |
//! | commands, mode, options, title | a [`SessionSignal`] |
//! | what comes while no prompt is open | dropped and counted: an agent that loads a session tells its history again |
//! | what belongs to the turn before, which was cancelled | dropped and counted: some agents answer the prompt before they stop |
//!
//! A [`Connection`] is one run of such an agent: it opens the session, and has a [`Translator`] for its updates.
//!
//! No runtime, no clock, no IO. Held are the names and inputs of the calls of one turn ([`Limits`]).

mod connection;
mod content;
mod permission;

use std::collections::{HashMap, HashSet, VecDeque};

use agent_client_protocol_schema::v1::{
    AvailableCommand, ContentChunk, Plan, PlanEntryStatus, RequestPermissionOutcome, RequestPermissionRequest,
    SessionConfigOption, SessionUpdate, StopReason, ToolCall, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields,
    ToolKind, Usage as TokenUsage, UsageUpdate,
};
use serde_json::Value;

pub use self::connection::{
    AgentModel, Connection, ConnectionSignal, HostRequest, Offers, Opened, Opening, PromptError, RpcError,
};
use self::permission::Options;
use crate::{Answer, BlockKind, BlockType, Call, Content, Ending, Event, Failure, Id, Outcome, ToolResult, Usage};

/// The name of the call that shows the agent's plan.
const PLAN: &str = "plan";

/// The input of a call of which the agent tells none.
const NO_INPUT: &str = "{}";

/// What a translator may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls of one turn; more are left out. 65,536: days of work.
    pub max_calls: usize,
    /// Calls about which somebody is asked at the same time; more are refused. 256.
    pub max_asks: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_calls: 1 << 16, max_asks: 256 }
    }
}

/// Something that the host has to know, and that is no event of the grammar.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionSignal {
    /// The commands that a prompt may begin with.
    Commands(Vec<AvailableCommand>),
    /// The session's mode is another one now.
    ModeChanged {
        /// The mode.
        mode: String,
    },
    /// The options of the session, all of them.
    Options(Vec<SessionConfigOption>),
    /// The agent has given the session a title, or taken it away.
    Title(Option<String>),
}

/// Translates the updates of one ACP session.
#[derive(Debug)]
pub struct Translator {
    limits: Limits,
    turn: Option<ActivePrompt>,
    asks: HashMap<Id, Options>,
    events: VecDeque<Event>,
    signals: VecDeque<SessionSignal>,
    strays: u64,
    /// The turn before, if it was cancelled.
    cancelled: Option<CancelledTurn>,
    /// The cost of the session before this turn, as the agent reckons it.
    cost_before_micros: u64,
    /// The cost of the session so far, if the agent reckons it.
    cost_micros: Option<u64>,
}

/// A prompt that the agent works on.
#[derive(Debug)]
struct ActivePrompt {
    turn: Id,
    /// How many messages have begun: their names are made from it.
    messages: u64,
    message: Option<ActiveMessage>,
    calls: HashMap<Id, ActiveCall>,
    has_plan: bool,
}

/// A message that has not ended.
#[derive(Debug)]
struct ActiveMessage {
    message: Id,
    /// The agent's own name for it.
    given: Option<String>,
    blocks: u64,
    /// The text block that has not ended.
    block: Option<(Id, BlockType)>,
}

/// What is known of a call.
#[derive(Debug)]
struct ActiveCall {
    message: Id,
    block: Id,
    title: String,
    input: InputState,
    /// What the agent has shown of the call before it ran, while its input is open.
    shown: Option<String>,
    stage: CallStage,
    content: Vec<Content>,
    content_stage: ContentStage,
    raw_output: Option<Value>,
}

/// When an agent has told the content of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentStage {
    /// Before the call ran: its texts say what it is about to do.
    Preview,
    /// While it ran or at its end: they are its output.
    Output,
}

/// What is known of a turn that was cancelled: some agents go on telling what belongs to it while they work on the next prompt.
#[derive(Debug)]
struct CancelledTurn {
    /// The agent's own name for the message that was open.
    message: Option<String>,
    /// The calls that were open.
    calls: HashSet<Id>,
}

/// Whether the input of a call is whole.
#[derive(Debug, PartialEq, Eq)]
enum InputState {
    /// Some agents announce a call before its input is there, with a part of it.
    Open {
        announced: Option<String>,
    },
    Whole,
}

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallStage {
    Pending,
    /// The agent says that it runs, but somebody is still asked whether it may.
    Waiting,
    Running,
    Ended,
}

impl Translator {
    /// A translator for a session.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            turn: None,
            asks: HashMap::new(),
            events: VecDeque::new(),
            signals: VecDeque::new(),
            strays: 0,
            cancelled: None,
            cost_before_micros: 0,
            cost_micros: None,
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next signal.
    pub fn poll_signal(&mut self) -> Option<SessionSignal> {
        self.signals.pop_front()
    }

    /// How many updates came while no prompt was open, or belonged to a turn that was cancelled. They were dropped.
    #[must_use]
    pub const fn strays(&self) -> u64 {
        self.strays
    }

    /// A prompt is handed to the agent. A prompt that is still open ends as cancelled.
    pub fn begin(&mut self, turn: Id) {
        self.finish(Outcome::Cancelled);
        self.events.push_back(Event::TurnStarted { turn: turn.clone() });
        self.cost_before_micros = self.cost_micros.unwrap_or(0);
        self.turn = Some(ActivePrompt { turn, messages: 0, message: None, calls: HashMap::new(), has_plan: false });
    }

    /// The agent has answered the prompt.
    pub fn end(&mut self, reason: StopReason) {
        self.finish(match reason {
            StopReason::EndTurn => Outcome::Complete,
            StopReason::Cancelled => Outcome::Cancelled,
            StopReason::MaxTokens => failed("maxTokens", "The agent has used all tokens that a turn may have."),
            StopReason::MaxTurnRequests => {
                failed("maxTurnRequests", "The agent has asked its model as often as a turn may.")
            }
            StopReason::Refusal => failed("refused", "The agent refused to go on, and does not remember this prompt."),
            _ => failed("stopped", "The agent stopped for a reason that is not known here."),
        });
    }

    /// The agent has answered the prompt with an error, or has ended.
    pub fn fail(&mut self, failure: Failure) {
        self.finish(Outcome::Failed(failure));
    }

    /// Takes an update.
    pub fn update(&mut self, update: SessionUpdate) {
        match update {
            SessionUpdate::AvailableCommandsUpdate(update) => {
                self.signals.push_back(SessionSignal::Commands(update.available_commands));
            }
            SessionUpdate::CurrentModeUpdate(update) => {
                self.signals.push_back(SessionSignal::ModeChanged { mode: update.current_mode_id.0.to_string() });
            }
            SessionUpdate::ConfigOptionUpdate(update) => {
                self.signals.push_back(SessionSignal::Options(update.config_options));
            }
            SessionUpdate::SessionInfoUpdate(update) => {
                if let Some(title) = update.title.as_opt_ref() {
                    self.signals.push_back(SessionSignal::Title(title.cloned()));
                }
            }
            SessionUpdate::UsageUpdate(update) => self.usage(&update),
            update if self.turn.is_none() || self.is_late(&update) => self.strays = self.strays.saturating_add(1),
            SessionUpdate::AgentMessageChunk(chunk) => self.chunk(chunk, BlockType::Text),
            SessionUpdate::AgentThoughtChunk(chunk) => self.chunk(chunk, BlockType::Thinking),
            SessionUpdate::ToolCall(call) => self.tool_call(call),
            SessionUpdate::ToolCallUpdate(update) => self.tool_update(update),
            SessionUpdate::Plan(plan) => self.plan(&plan),
            SessionUpdate::Notice(notice) => {
                let text = match notice.description {
                    Some(description) => format!("{}: {description}", notice.title),
                    None => notice.title,
                };
                self.events.push_back(Event::Notice { text });
            }
            // The prompt comes back, or it is of a kind that says nothing here.
            _ => {}
        }
    }

    /// Whether an update belongs to the turn before, which was cancelled.
    fn is_late(&self, update: &SessionUpdate) -> bool {
        let Some(cancelled) = &self.cancelled else { return false };
        match update {
            SessionUpdate::AgentMessageChunk(chunk) | SessionUpdate::AgentThoughtChunk(chunk) => {
                let given = chunk.message_id.as_ref().map(|id| &*id.0);
                given.is_some() && given == cancelled.message.as_deref()
            }
            SessionUpdate::ToolCallUpdate(update) => {
                let is_known = |turn: &ActivePrompt| turn.calls.contains_key(&*update.tool_call_id.0);
                cancelled.calls.contains(&*update.tool_call_id.0) && !self.turn.as_ref().is_some_and(is_known)
            }
            _ => false,
        }
    }

    /// The agent asks whether a call may go on. Returns whether somebody is asked; if not, it is refused.
    pub fn ask(&mut self, request: RequestPermissionRequest) -> bool {
        if self.turn.is_none() || self.asks.len() >= self.limits.max_asks {
            self.strays = self.strays.saturating_add(1);
            return false;
        }
        let tool = Id::from(request.tool_call.tool_call_id.0.as_ref());
        self.tool_update(request.tool_call);
        let Some(call) = self.turn.as_mut().and_then(|turn| turn.calls.get_mut(&tool)) else { return false };
        if call.stage == CallStage::Ended {
            return false;
        }
        call.end_input_for_ask(&mut self.events);
        let options = Options::new(request.options);
        self.events.push_back(Event::ToolAsked { tool: tool.clone(), ask: options.ask(&call.title) });
        self.asks.insert(tool, options);
        true
    }

    /// The option of the agent that an answer stands for. Without an open question there is none.
    pub fn answer(&mut self, tool: &Id, answer: &Answer) -> Option<RequestPermissionOutcome> {
        let outcome = self.asks.remove(tool)?.outcome(answer);
        self.events.push_back(Event::ToolAnswered { tool: tool.clone(), answer: answer.clone() });
        let call = self.turn.as_mut().and_then(|turn| turn.calls.get_mut(tool));
        if let Some(call) = call.filter(|call| answer.allows() && call.stage == CallStage::Waiting) {
            call.run(tool, &mut self.events);
        }
        Some(outcome)
    }

    /// The tokens of the turn, which the agent tells with its end.
    pub(super) fn tokens(&mut self, usage: &TokenUsage) {
        if self.turn.is_some() {
            self.events.push_back(Event::Usage(Usage {
                input_tokens: Some(usage.input_tokens),
                output_tokens: Some(usage.output_tokens),
                cache_read_tokens: usage.cached_read_tokens,
                model: None,
                cost_micros: self.turn_cost(),
            }));
        }
    }

    /// An event of the connection itself, in the order of the others.
    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Something for people. Outside of a turn it is dropped.
    pub(super) fn notice(&mut self, text: String) {
        if self.turn.is_some() {
            self.events.push_back(Event::Notice { text });
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        let Some(mut turn) = self.turn.take() else { return };
        self.asks.clear();
        self.cancelled = (outcome == Outcome::Cancelled).then(|| turn.cancelled());
        turn.end_message(&mut self.events);
        if turn.has_plan {
            let tool = turn.plan_call();
            let content = turn.calls.remove(&tool).map(|call| call.content).unwrap_or_default();
            let result = ToolResult { success: true, summary: "Plan".to_owned(), content, error: None };
            self.events.push_back(Event::ToolEnded { tool, ending: Ending::Done(result) });
        }
        self.events.push_back(Event::TurnEnded { turn: turn.turn, outcome });
    }

    fn chunk(&mut self, chunk: ContentChunk, kind: BlockType) {
        let Some(turn) = self.turn.as_mut() else { return };
        let text = content::as_text(chunk.content);
        let given = chunk.message_id.map(|id| id.0.to_string());
        turn.text(given, kind, text, &mut self.events);
    }

    fn tool_call(&mut self, mut call: ToolCall) {
        let id = Id::from(call.tool_call_id.0.as_ref());
        let announced = call.raw_input.take_if(|_| call.status == ToolCallStatus::Pending);
        let fields = ToolCallUpdateFields::new()
            .kind(call.kind)
            .status(call.status)
            .title(call.title)
            .name(call.name)
            .raw_input(call.raw_input)
            .raw_output(call.raw_output);
        let fields = if call.content.is_empty() { fields } else { fields.content(call.content) };
        self.tool_update(ToolCallUpdate::new(call.tool_call_id, fields));
        let call = self.turn.as_mut().and_then(|turn| turn.calls.get_mut(&id));
        if let (Some(ActiveCall { input: InputState::Open { announced: known }, .. }), Some(input)) = (call, announced)
        {
            *known = Some(input.to_string());
        }
    }

    fn tool_update(&mut self, update: ToolCallUpdate) {
        let Some(turn) = self.turn.as_mut() else { return };
        let ToolCallUpdate { tool_call_id, fields, .. } = update;
        let tool = Id::from(tool_call_id.0.as_ref());
        if !turn.calls.contains_key(&tool) {
            if turn.calls.len() >= self.limits.max_calls {
                self.strays = self.strays.saturating_add(1);
                return;
            }
            let kind = fields.kind.map_or("tool", kind_name);
            let name = fields.name.clone().unwrap_or_else(|| kind.to_owned());
            let title = fields.title.clone().filter(|title| !title.is_empty()).unwrap_or_else(|| name.clone());
            turn.begin_call(Call::new(tool.clone(), name, title), &mut self.events);
        }
        let Some(call) = turn.calls.get_mut(&tool) else { return };
        if call.stage == CallStage::Ended {
            return;
        }
        if let Some(title) = fields.title.filter(|title| !title.is_empty()) {
            call.title = title;
        }
        if let Some(input) = fields.raw_input {
            call.end_input(Some(input.to_string()), &mut self.events);
        }
        if let Some(output) = fields.raw_output {
            call.raw_output = Some(output);
        }
        let (status, is_asked) = (fields.status, self.asks.contains_key(&tool));
        let has_content = fields.content.is_some();
        if let Some(content) = fields.content {
            let is_preview = matches!(fields.status, None | Some(ToolCallStatus::Pending));
            call.content_stage = match call.stage {
                CallStage::Pending | CallStage::Waiting if is_preview => ContentStage::Preview,
                _ => ContentStage::Output,
            };
            if call.stage == CallStage::Pending && call.input != InputState::Whole {
                call.shown = content::as_input(&content);
            }
            call.content = content.into_iter().flat_map(content::of_tool).collect();
        }
        match status {
            Some(ToolCallStatus::Completed) => call.end(&tool, true, &mut self.events),
            // It has not run if somebody is still asked.
            Some(ToolCallStatus::Failed) if is_asked => call.fail(&tool, &mut self.events),
            Some(ToolCallStatus::Failed) => call.end(&tool, false, &mut self.events),
            Some(ToolCallStatus::InProgress) if is_asked => call.wait(),
            Some(ToolCallStatus::InProgress) => call.run(&tool, &mut self.events),
            _ => {}
        }
        if has_content && call.stage == CallStage::Running {
            self.events.push_back(Event::ToolOutput { tool, content: call.content.clone() });
        }
    }

    fn plan(&mut self, plan: &Plan) {
        let Some(turn) = self.turn.as_mut() else { return };
        let tool = turn.plan_call();
        if !turn.has_plan {
            turn.has_plan = true;
            turn.begin_call(Call::new(tool.clone(), PLAN, "Plan"), &mut self.events);
        }
        let Some(call) = turn.calls.get_mut(&tool) else { return };
        call.end_input(Some(NO_INPUT.to_owned()), &mut self.events);
        call.run(&tool, &mut self.events);
        call.content = vec![Content::Text(plan_text(plan))];
        self.events.push_back(Event::ToolOutput { tool, content: call.content.clone() });
    }

    fn usage(&mut self, update: &UsageUpdate) {
        let Some(cost) = update.cost.as_ref().filter(|cost| cost.currency == "USD") else { return };
        self.cost_micros = Some(content::micros(cost.amount));
        if self.turn.is_some() {
            self.events.push_back(Event::Usage(Usage { cost_micros: self.turn_cost(), ..Usage::default() }));
        }
    }

    fn turn_cost(&self) -> Option<u64> {
        self.cost_micros.map(|cost| cost.saturating_sub(self.cost_before_micros))
    }
}

impl ActivePrompt {
    /// More text. It begins a message and a block where it does not continue the last ones.
    fn text(&mut self, given: Option<String>, kind: BlockType, text: String, events: &mut VecDeque<Event>) {
        let is_other = |message: &ActiveMessage| given.is_some() && message.given.is_some() && message.given != given;
        let has_called = |message: &ActiveMessage| message.block.is_none() && message.blocks > 0;
        if self.message.as_ref().is_some_and(|message| is_other(message) || has_called(message)) {
            self.end_message(events);
        }
        // Some agents begin each message so, also one that has only calls.
        if text.is_empty() {
            return;
        }
        let message = self.open_message(given, events);
        if message.block.as_ref().is_some_and(|(_, open)| *open != kind) {
            message.end_block(events);
        }
        let name = message.message.clone();
        let block = match &message.block {
            Some((block, _)) => block.clone(),
            None => {
                let block = message.next_block();
                let started = if kind == BlockType::Thinking { BlockKind::Thinking } else { BlockKind::Text };
                events.push_back(Event::BlockStarted { message: name.clone(), block: block.clone(), kind: started });
                message.block = Some((block.clone(), kind));
                block
            }
        };
        events.push_back(Event::BlockDelta { message: name, block, kind, text });
    }

    /// A call begins, in the open message or in a new one.
    fn begin_call(&mut self, call: Call, events: &mut VecDeque<Event>) {
        let message = self.open_message(None, events);
        message.end_block(events);
        let (name, block) = (message.message.clone(), message.next_block());
        let (tool, title) = (call.tool.clone(), call.title.clone());
        let kind = BlockKind::ToolInput(call);
        events.push_back(Event::BlockStarted { message: name.clone(), block: block.clone(), kind });
        let state = ActiveCall {
            message: name,
            block,
            title,
            input: InputState::Open { announced: None },
            shown: None,
            stage: CallStage::Pending,
            content: Vec::new(),
            content_stage: ContentStage::Preview,
            raw_output: None,
        };
        self.calls.insert(tool, state);
    }

    fn open_message(&mut self, given: Option<String>, events: &mut VecDeque<Event>) -> &mut ActiveMessage {
        let (turn, number) = (&self.turn, &mut self.messages);
        let message = self.message.get_or_insert_with(|| {
            *number = number.saturating_add(1);
            let message = Id::from(format!("{turn}-m{number}"));
            events.push_back(Event::MessageStarted { message: message.clone(), agent: None });
            ActiveMessage { message, given: None, blocks: 0, block: None }
        });
        if given.is_some() {
            message.given = given;
        }
        message
    }

    fn end_message(&mut self, events: &mut VecDeque<Event>) {
        let Some(mut message) = self.message.take() else { return };
        message.end_block(events);
        for call in self.calls.values_mut().filter(|call| call.message == message.message) {
            call.end_input(None, events);
        }
        events.push_back(Event::MessageEnded { message: message.message });
    }

    /// What is open of it now.
    fn cancelled(&self) -> CancelledTurn {
        let open = self.calls.iter().filter(|(_, call)| call.stage != CallStage::Ended);
        let calls = open.map(|(tool, _)| tool.clone()).collect();
        CancelledTurn { message: self.message.as_ref().and_then(|message| message.given.clone()), calls }
    }

    fn plan_call(&self) -> Id {
        Id::from(format!("{}-{PLAN}", self.turn))
    }
}

impl ActiveMessage {
    fn next_block(&mut self) -> Id {
        let block = Id::from(self.blocks.to_string());
        self.blocks = self.blocks.saturating_add(1);
        block
    }

    fn end_block(&mut self, events: &mut VecDeque<Event>) {
        if let Some((block, _)) = self.block.take() {
            events.push_back(Event::BlockEnded { message: self.message.clone(), block, input: None });
        }
    }
}

impl ActiveCall {
    /// The input is whole, or the call goes on without one.
    fn end_input(&mut self, input: Option<String>, events: &mut VecDeque<Event>) {
        if let InputState::Open { announced } = std::mem::replace(&mut self.input, InputState::Whole) {
            self.shown = None;
            let input = Some(input.or(announced).unwrap_or_else(|| NO_INPUT.to_owned()));
            events.push_back(Event::BlockEnded { message: self.message.clone(), block: self.block.clone(), input });
        }
    }

    /// The same, if somebody is asked now. Some agents tell no input, but show what they are about to do: whoever is asked has to
    /// see it.
    fn end_input_for_ask(&mut self, events: &mut VecDeque<Event>) {
        let has_input = matches!(&self.input, InputState::Open { announced: Some(input) } if input != NO_INPUT);
        let shown = self.shown.take().filter(|_| !has_input);
        self.end_input(shown, events);
    }

    fn run(&mut self, tool: &Id, events: &mut VecDeque<Event>) {
        self.end_input(None, events);
        if matches!(self.stage, CallStage::Pending | CallStage::Waiting) {
            self.stage = CallStage::Running;
            events.push_back(Event::ToolStarted { tool: tool.clone() });
        }
    }

    /// It says that it runs, and waits for an answer.
    fn wait(&mut self) {
        if self.stage == CallStage::Pending {
            self.stage = CallStage::Waiting;
        }
    }

    fn end(&mut self, tool: &Id, success: bool, events: &mut VecDeque<Event>) {
        self.run(tool, events);
        self.over(tool, success, events);
    }

    /// It has failed without an answer.
    fn fail(&mut self, tool: &Id, events: &mut VecDeque<Event>) {
        self.end_input(None, events);
        self.over(tool, false, events);
    }

    fn over(&mut self, tool: &Id, success: bool, events: &mut VecDeque<Event>) {
        self.stage = CallStage::Ended;
        let mut content = std::mem::take(&mut self.content);
        if (content.is_empty() || self.content_stage == ContentStage::Preview)
            && let Some(output) = self.raw_output.take()
        {
            content.retain(|piece| !matches!(piece, Content::Text(_)));
            content.push(Content::Text(content::value_text(output)));
        }
        let error = (!success).then(|| content::first_text(&content).unwrap_or("The call failed.").to_owned());
        let result = ToolResult { success, summary: self.title.clone(), content, error };
        events.push_back(Event::ToolEnded { tool: tool.clone(), ending: Ending::Done(result) });
    }
}

fn failed(kind: &str, message: &str) -> Outcome {
    Outcome::Failed(Failure::new(kind, message))
}

/// A plan as a list for people.
fn plan_text(plan: &Plan) -> String {
    let lines = plan.entries.iter().map(|entry| {
        let mark = match entry.status {
            PlanEntryStatus::Completed => "[x]",
            PlanEntryStatus::InProgress => "[~]",
            _ => "[ ]",
        };
        format!("- {mark} {}", entry.content)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The name of a tool of which only the kind is known.
const fn kind_name(kind: ToolKind) -> &'static str {
    match kind {
        ToolKind::Read => "read",
        ToolKind::Edit => "edit",
        ToolKind::Delete => "delete",
        ToolKind::Move => "move",
        ToolKind::Search => "search",
        ToolKind::Execute => "execute",
        ToolKind::Think => "think",
        ToolKind::Fetch => "fetch",
        ToolKind::SwitchMode => "switch_mode",
        _ => "tool",
    }
}
