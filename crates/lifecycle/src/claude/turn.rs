//! One turn: its speakers, their messages, and their calls.
//!
//! The program writes each block twice: first in pieces, as the model streams it, and then whole, in an `assistant` line. Its
//! text becomes events once. What was streamed is not repeated. What was not streamed is taken from the `assistant` line: the
//! program was started without streaming, a sub-agent speaks, or a line was lost. To compare the two, each block keeps the
//! length and a hash of the text that became events.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::counts::Counts;
use super::results;
use super::wire::{self, Blocks, Line, Maybe, StreamEvent, Structured, Text, Tokens, Word};
use crate::{BlockKind, BlockType, Call, Ending, Event, Failure, Id, Outcome, ToolResult, Usage};

/// Blocks that a message may have. Real ones have a few; looking one up goes through all.
const MAX_BLOCKS: usize = 1_024;

/// The state of one turn. Grows with the number of its messages, blocks and calls, not with what they say, but for the
/// inputs of calls that are not whole yet.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) id: Id,
    pub(super) origin: Origin,
    /// Whether somebody has asked the program to stop it.
    pub(super) is_interrupted: bool,
    /// Whether a line was lost since it began: its result may have been in that.
    pub(super) has_lost_lines: bool,
    /// The token that was given in this turn.
    pub(super) token: Option<String>,
    /// The kind of the last API error that was told as a message.
    pub(super) error: Option<String>,
    /// Whether the agent itself has said any text.
    has_spoken: bool,
    messages: Vec<TurnMessage>,
    by_id: HashMap<Id, usize>,
    /// The message that each speaker says now: the agent itself, and sub-agents by their calls.
    main: Option<usize>,
    sub_agents: HashMap<Id, usize>,
    calls: HashMap<Id, TurnCall>,
    /// Calls by the tasks that they began.
    tasks: HashMap<String, Id>,
    /// UUIDs of the whole messages that came.
    assistant_uuids: HashSet<Box<str>>,
    /// Of the messages that are over.
    tokens: Total,
    model: Option<String>,
    /// Bytes of inputs that are not whole.
    input_bytes: usize,
    /// Messages, blocks, calls and other names that are remembered.
    parts: usize,
}

/// Who has begun a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A prompt of ours.
    Prompt {
        /// The program's name for it.
        uuid: String,
    },
    /// The program itself.
    Program,
}

#[derive(Debug)]
struct TurnMessage {
    id: Id,
    blocks: Vec<TurnBlock>,
    /// Streamed blocks that no `assistant` line has repeated yet.
    unconfirmed: usize,
    tokens: Tokens,
}

#[derive(Debug)]
struct TurnBlock {
    id: Id,
    /// Its place in the model's stream; none if it was not streamed.
    index: Option<u64>,
    kind: BlockType,
    stage: BlockStage,
    /// Whether an `assistant` line has repeated it whole.
    is_confirmed: bool,
    emitted: TextDigest,
    input: Option<Input>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockStage {
    Open,
    Ended,
}

/// The input of a call, until its block ends.
#[derive(Debug)]
struct Input {
    call: Id,
    /// What was streamed of it; none if that was over the limit.
    streamed: Option<String>,
    /// What an `assistant` line said that it is.
    whole: Option<String>,
}

/// Length and hash of the text of a block that became events: enough to recognize the text when it is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TextDigest {
    len: usize,
    hash: u64,
}

impl TextDigest {
    const EMPTY: Self = Self { len: 0, hash: 0xcbf2_9ce4_8422_2325 };

    /// FNV-1a: cheap for the few bytes of a delta, and the same however the text was cut.
    fn add(&mut self, text: &str) {
        self.len = self.len.saturating_add(text.len());
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn of(text: &str) -> Self {
        let mut digest = Self::EMPTY;
        digest.add(text);
        digest
    }
}

#[derive(Debug)]
struct TurnCall {
    title: String,
    /// The block of its input: message and block.
    input: Option<(usize, usize)>,
    sub_agent: SubAgentState,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    Open,
    Running,
    /// The program has told its result, but its sub-agent goes on in the background.
    Background(Ending),
    Ended,
}

/// The sub-agent of a call.
#[derive(Debug, Default)]
enum SubAgentState {
    #[default]
    None,
    /// The call's input says that there will be one.
    Expected {
        name: String,
        task: String,
    },
    Working,
}

/// Tokens of a turn.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    input: u64,
    output: u64,
    cache_read: u64,
}

impl Total {
    fn of(tokens: Tokens) -> Self {
        let Maybe(input) = tokens.input_tokens;
        let Maybe(created) = tokens.cache_creation_input_tokens;
        Self {
            input: input.unwrap_or(0).saturating_add(created.unwrap_or(0)),
            output: tokens.output_tokens.0.unwrap_or(0),
            cache_read: tokens.cache_read_input_tokens.0.unwrap_or(0),
        }
    }

    fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
    }
}

/// Where events go, and what else a turn needs of its conversation.
pub(super) struct TurnOutput<'a> {
    pub(super) events: &'a mut VecDeque<Event>,
    pub(super) counts: &'a mut Counts,
    /// Bytes of input that a turn may hold.
    pub(super) max_input_bytes: usize,
    /// Messages, blocks and calls that a turn may have.
    pub(super) max_parts: usize,
}

impl TurnOutput<'_> {
    fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }
}

impl Turn {
    pub(super) fn new(id: Id, origin: Origin, is_interrupted: bool) -> Self {
        Self {
            id,
            origin,
            is_interrupted,
            has_lost_lines: false,
            token: None,
            error: None,
            has_spoken: false,
            messages: Vec::new(),
            by_id: HashMap::new(),
            main: None,
            sub_agents: HashMap::new(),
            calls: HashMap::new(),
            tasks: HashMap::new(),
            assistant_uuids: HashSet::new(),
            tokens: Total::default(),
            model: None,
            input_bytes: 0,
            parts: 0,
        }
    }

    pub(super) const fn has_spoken(&self) -> bool {
        self.has_spoken
    }

    pub(super) fn knows(&self, tool: &str) -> bool {
        self.calls.contains_key(tool)
    }

    /// Takes an event of the model's stream.
    pub(super) fn streamed(&mut self, line: &Line<'_>, event: StreamEvent<'_>, out: &mut TurnOutput<'_>) {
        let agent = line.parent_tool_use_id.get();
        match event.kind.as_str() {
            "content_block_delta" => {
                if let Some(delta) = event.delta
                    && let Some(message) = self.streaming(line, agent, out)
                {
                    self.delta(message, event.index, delta, agent, out);
                }
            }
            "content_block_start" => {
                if let Some(block) = event.content_block.and_then(wire::parse::<wire::ContentBlock<'_>>)
                    && let Some(message) = self.streaming(line, agent, out)
                {
                    self.block_started(message, event.index, &block, agent, out);
                }
            }
            "content_block_stop" => {
                if let Some(message) = self.current(line, agent) {
                    self.block_stopped(message, event.index, out);
                }
            }
            "message_start" => {
                let message = event.message.and_then(wire::parse::<wire::ApiMessage<'_>>);
                let Some(message) = message else { return out.counts.ignore("stream_event/message_start") };
                let name = message.id.get().or(line.api_message_id.get());
                let Some(at) = self.message(name, agent, out) else { return };
                self.count(at, message.usage);
                if agent.is_none() {
                    self.model = message.model.to_owned().or_else(|| self.model.take());
                }
            }
            "message_delta" => {
                if let Some(message) = self.current(line, agent) {
                    self.count(message, event.usage);
                }
            }
            "message_stop" => self.message_stopped(line, agent, out),
            other => out.counts.ignore_within("stream_event", other),
        }
    }

    /// Takes an `assistant` line: a message, or as a rule one block of it, that is whole.
    pub(super) fn assistant_message(
        &mut self,
        line: &Line<'_>,
        message: &wire::ApiMessage<'_>,
        out: &mut TurnOutput<'_>,
    ) {
        let agent = line.parent_tool_use_id.get();
        if let Some(uuid) = line.uuid.get() {
            if self.assistant_uuids.contains(uuid) || !self.take_part(out) {
                return;
            }
            self.assistant_uuids.insert(uuid.into());
        }
        let Some(at) = self.message(message.id.get().or(line.uuid.get()), agent, out) else { return };
        match message.content.and_then(Blocks::read) {
            Some(Blocks::Text(Text(text))) => self.assistant_text(at, BlockType::Text, &text, agent, out),
            Some(Blocks::List(blocks)) => {
                for raw in blocks {
                    match wire::parse::<wire::ContentBlock<'_>>(raw) {
                        Some(block) => self.assistant_block(at, &block, agent, out),
                        None => out.counts.ignore("block/malformed"),
                    }
                }
            }
            None => {}
        }
    }

    /// Takes a message to the agent: results of its calls.
    pub(super) fn results(
        &mut self,
        line: &Line<'_>,
        message: &wire::ApiMessage<'_>,
        user: &wire::UserLine<'_>,
        out: &mut TurnOutput<'_>,
    ) {
        let content = message.content.and_then(Blocks::read);
        if let Some(agent) = line.parent_tool_use_id.get() {
            // The first message to a sub-agent is its task.
            let task = match &content {
                Some(Blocks::Text(Text(text))) => text.to_string(),
                _ => String::new(),
            };
            self.sub_agent_started(agent, &task, out);
        }
        let Some(Blocks::List(blocks)) = content else { return };
        // A `user` line has one structured result beside its blocks. It belongs to a block only if there is just one.
        let structured = if blocks.len() == 1 { user.tool_use_result.0.as_ref() } else { None };
        for block in blocks.into_iter().filter_map(wire::parse::<wire::ContentBlock<'_>>) {
            if !is_result(&block.kind) {
                out.counts.ignore_within("user", block.kind.as_str());
                continue;
            }
            let Maybe(metas) = &user.tool_result_meta;
            let is_it = |meta: &&wire::ResultMeta<'_>| meta.id == block.tool_use_id;
            let meta = metas.iter().flatten().find(is_it);
            let never_ran = meta.is_some_and(|meta| meta.non_execution_kind.get().is_some());
            self.result(&block, structured, never_ran, out);
        }
    }

    /// A call runs.
    pub(super) fn tool_runs(&mut self, tool: &str, out: &mut TurnOutput<'_>) {
        let Some((tool, _)) = self.calls.get_key_value(tool) else { return };
        let tool = tool.clone();
        self.finish_input(&tool, None, out);
        if let Some(state) = self.calls.get_mut(&tool)
            && matches!(state.progress, Progress::Open)
        {
            state.progress = Progress::Running;
            out.push(Event::ToolStarted { tool });
        }
    }

    /// Brings a call to a phase in which a permission for it can be requested. A call that no line has announced yet
    /// begins now.
    pub(super) fn tool_asked(&mut self, tool: &Id, name: &str, input: &RawValue, out: &mut TurnOutput<'_>) {
        if self.calls.contains_key(tool) {
            return self.finish_input(tool, Some(input.get()), out);
        }
        if let Some(message) = self.message(None, None, out) {
            self.whole_call(message, tool.clone(), name, Some(input), out);
        }
    }

    /// Whether a call is over, so that nothing can be asked about it.
    pub(super) fn is_over(&self, tool: &str) -> bool {
        self.calls.get(tool).is_some_and(|state| matches!(state.progress, Progress::Ended))
    }

    /// A task has begun. If it is a sub-agent, then that works now.
    pub(super) fn task_started(&mut self, line: &wire::SystemLine<'_>, out: &mut TurnOutput<'_>) {
        let Some(tool) = line.tool_use_id.get() else { return };
        if let Some(task) = line.task_id.get() {
            self.note_task(task, tool, out);
        }
        if line.subagent_type.get().is_some() {
            self.sub_agent_started(tool, "", out);
        }
    }

    /// A background task is over. If its call has been waiting for that, the call is over too.
    pub(super) fn task_ended(&mut self, line: &wire::SystemLine<'_>, out: &mut TurnOutput<'_>) {
        let of_task = || self.tasks.get(line.task_id.as_str()).map(|tool| &**tool);
        let Some(tool) = line.tool_use_id.get().or_else(of_task) else { return };
        let Some((tool, state)) = self.calls.get_key_value(tool) else { return };
        let Progress::Background(launched) = &state.progress else { return };
        let tool = tool.clone();
        let summary = line.summary.0.as_ref().map(|Text(text)| text.to_string()).filter(|text| !text.is_empty());
        let ending = match (line.status.as_str(), summary) {
            ("stopped", reason) => Ending::Cancelled { reason },
            ("failed", reason) => {
                let error = reason.unwrap_or_else(|| "The background task failed.".to_owned());
                Ending::Done(ToolResult::failed(format!("{} failed", state.title), error))
            }
            (_, Some(text)) => Ending::Done(ToolResult::text(format!("Ran {}", state.title), text)),
            (_, None) => launched.clone(),
        };
        self.tool_ended(&tool, ending, out);
    }

    /// The program has told that these calls were denied: those that it left open never ran.
    pub(super) fn denied(&mut self, denials: &[wire::PermissionDenial<'_>], out: &mut TurnOutput<'_>) {
        for denial in denials {
            let Some((tool, state)) = self.calls.get_key_value(denial.tool_use_id.as_str()) else { continue };
            if matches!(state.progress, Progress::Open) {
                let tool = tool.clone();
                self.tool_ended(&tool, Ending::Cancelled { reason: Some("Permission was denied.".to_owned()) }, out);
            }
        }
    }

    /// The turn ends. Open blocks end with what is known of them. Calls that continue in the background end in this
    /// turn's events; returns their names.
    pub(super) fn close(&mut self, out: &mut TurnOutput<'_>) -> Vec<Id> {
        let mut open: Vec<usize> = self.main.into_iter().chain(self.sub_agents.values().copied()).collect();
        open.sort_unstable();
        open.into_iter().for_each(|message| self.end_blocks(message, out));
        let left = self.calls.iter().filter(|(_, state)| matches!(state.progress, Progress::Background(_)));
        let mut left: Vec<Id> = left.map(|(tool, _)| tool.clone()).collect();
        left.sort_unstable();
        for tool in &left {
            let Some(state) = self.calls.get_mut(tool) else { continue };
            let summary = format!("Left {} running in the background", state.title);
            let Progress::Background(ending) = std::mem::replace(&mut state.progress, Progress::Running) else {
                continue;
            };
            let ending = match ending {
                Ending::Done(result) => Ending::Done(ToolResult { summary, ..result }),
                ending @ Ending::Cancelled { .. } => ending,
            };
            self.tool_ended(tool, ending, out);
        }
        left
    }

    /// Adds a message with a text that was not streamed.
    pub(super) fn say(&mut self, text: &str, out: &mut TurnOutput<'_>) {
        if let Some(message) = self.message(None, None, out) {
            self.whole_words(message, BlockType::Text, text, out);
        }
    }

    /// The usage of the turn so far: the sum over its messages, or the program's own figure where that is higher.
    pub(super) fn usage(&self, told: Maybe<Tokens>, cost_micros: Option<u64>) -> Usage {
        let Maybe(told) = told;
        let told = Total::of(told.unwrap_or_default());
        let mut total = self.tokens;
        if let Some(message) = self.main.and_then(|at| self.messages.get(at)) {
            total.add(Total::of(message.tokens));
        }
        Usage {
            input_tokens: Some(total.input.max(told.input)),
            output_tokens: Some(total.output.max(told.output)),
            cache_read_tokens: Some(total.cache_read.max(told.cache_read)),
            model: self.model.clone(),
            cost_micros,
        }
    }

    /// The message that a streamed line belongs to. It begins if it is unknown.
    fn streaming(&mut self, line: &Line<'_>, agent: Option<&str>, out: &mut TurnOutput<'_>) -> Option<usize> {
        self.current(line, agent).or_else(|| self.message(line.api_message_id.get(), agent, out))
    }

    /// The message that a streamed line belongs to: the one that it names, else the one that its speaker says now.
    fn current(&self, line: &Line<'_>, agent: Option<&str>) -> Option<usize> {
        let now = match agent {
            None => self.main,
            Some(agent) => self.sub_agents.get(agent).copied(),
        };
        let Some(name) = line.api_message_id.get() else { return now };
        let is_it = |at: &usize| self.messages.get(*at).is_some_and(|message| *message.id == *name);
        now.filter(is_it).or_else(|| self.by_id.get(name).copied())
    }

    /// The message with this name, which is now its speaker's current one. Without a name it is always a new message.
    /// `None` if the turn may have no more messages.
    fn message(&mut self, name: Option<&str>, agent: Option<&str>, out: &mut TurnOutput<'_>) -> Option<usize> {
        let known = name.and_then(|name| self.by_id.get(name).copied());
        if known.is_none() && !self.take_part(out) {
            return None;
        }
        if let Some(agent) = agent {
            self.sub_agent_started(agent, "", out);
        }
        let at = known.unwrap_or(self.messages.len());
        let before = match agent {
            None => self.main.replace(at),
            Some(agent) => self.sub_agents.insert(agent.into(), at),
        };
        if let Some(before) = before.filter(|before| *before != at) {
            self.end_blocks(before, out);
            if agent.is_none() {
                self.settle(before);
            }
        }
        if known.is_none() {
            let id = name.map_or_else(|| Id::from(format!("{}-m{at}", self.id)), Id::from);
            self.by_id.insert(id.clone(), at);
            self.messages.push(TurnMessage {
                id: id.clone(),
                blocks: Vec::new(),
                unconfirmed: 0,
                tokens: Tokens::default(),
            });
            out.push(Event::MessageStarted { message: id, agent: agent.map(Id::from) });
        }
        Some(at)
    }

    /// Takes room for one more message, block or name. Says whether there was any.
    const fn take_part(&mut self, out: &mut TurnOutput<'_>) -> bool {
        if self.parts >= out.max_parts {
            out.counts.parts_cut = out.counts.parts_cut.saturating_add(1);
            return false;
        }
        self.parts = self.parts.saturating_add(1);
        true
    }

    fn block_started(
        &mut self,
        message: usize,
        index: u64,
        block: &wire::ContentBlock<'_>,
        agent: Option<&str>,
        out: &mut TurnOutput<'_>,
    ) {
        let (kind, text) = match block.kind.as_str() {
            "text" => (BlockKind::Text, block.text.as_ref()),
            "thinking" => (BlockKind::Thinking, block.thinking.as_ref()),
            "redacted_thinking" => (BlockKind::Redacted, None),
            _ if is_call(&block.kind) => {
                let Some(tool) = block.id.get() else { return out.counts.ignore("block/unnamed") };
                // An `assistant` line had it before: nothing of it is new.
                if self.calls.contains_key(tool) {
                    return;
                }
                (BlockKind::ToolInput(call(tool, &block.name)), None)
            }
            _ if is_result(&block.kind) => return self.result(block, None, false, out),
            other => return out.counts.ignore_within("block", other),
        };
        let kind_of = kind.kind();
        let Some(_) = self.open_block(message, Some(index), kind, out) else { return };
        if let Some(Text(text)) = text.filter(|Text(text)| !text.is_empty()) {
            self.words(message, index, kind_of, text.clone().into_owned(), agent, out);
        }
    }

    fn delta(
        &mut self,
        message: usize,
        index: u64,
        delta: wire::Delta<'_>,
        agent: Option<&str>,
        out: &mut TurnOutput<'_>,
    ) {
        match delta.kind.as_str() {
            "text_delta" => {
                if let Some(Text(text)) = delta.text {
                    self.words(message, index, BlockType::Text, text.into_owned(), agent, out);
                }
            }
            "thinking_delta" => {
                if let Some(Text(text)) = delta.thinking {
                    self.words(message, index, BlockType::Thinking, text.into_owned(), agent, out);
                }
            }
            "input_json_delta" => {
                if let Some(Text(text)) = delta.partial_json {
                    self.hold(message, index, &text, out);
                }
            }
            other => out.counts.ignore_within("delta", other),
        }
    }

    /// More words of a block. It begins if it is not open.
    fn words(
        &mut self,
        message: usize,
        index: u64,
        kind: BlockType,
        text: String,
        agent: Option<&str>,
        out: &mut TurnOutput<'_>,
    ) {
        let at = match self.open_at(message, index, kind) {
            Some(at) => at,
            None => {
                let begun = if kind == BlockType::Thinking { BlockKind::Thinking } else { BlockKind::Text };
                let Some(at) = self.open_block(message, Some(index), begun, out) else { return };
                at
            }
        };
        let Some(message) = self.messages.get_mut(message) else { return };
        let Some(block) = message.blocks.get_mut(at) else { return };
        block.emitted.add(&text);
        self.has_spoken |= agent.is_none() && kind == BlockType::Text;
        out.push(Event::BlockDelta { message: message.id.clone(), block: block.id.clone(), kind, text });
    }

    /// Holds more of a call's input, until it is whole.
    fn hold(&mut self, message: usize, index: u64, text: &str, out: &mut TurnOutput<'_>) {
        let at = self.open_at(message, index, BlockType::ToolInput);
        let input = at.and_then(|at| self.messages.get_mut(message)?.blocks.get_mut(at)?.input.as_mut());
        let Some(input) = input else { return out.counts.ignore("delta/input_json_delta") };
        let Some(streamed) = &mut input.streamed else { return };
        if self.input_bytes.saturating_add(text.len()) > out.max_input_bytes {
            self.input_bytes = self.input_bytes.saturating_sub(streamed.len());
            input.streamed = None;
            out.counts.inputs_cut = out.counts.inputs_cut.saturating_add(1);
            return;
        }
        self.input_bytes = self.input_bytes.saturating_add(text.len());
        streamed.push_str(text);
    }

    fn block_stopped(&mut self, message: usize, index: u64, out: &mut TurnOutput<'_>) {
        let blocks = self.messages.get(message).map_or(&[][..], |message| &message.blocks);
        let is_it = |block: &TurnBlock| block.index == Some(index) && block.stage == BlockStage::Open;
        if let Some(at) = blocks.iter().rposition(is_it) {
            self.end_block(message, at, None, out);
        }
    }

    fn message_stopped(&mut self, line: &Line<'_>, agent: Option<&str>, out: &mut TurnOutput<'_>) {
        let Some(at) = self.current(line, agent) else { return };
        self.end_blocks(at, out);
        let Some(message) = self.messages.get(at) else { return };
        out.push(Event::MessageEnded { message: message.id.clone() });
        if agent.is_none() {
            let usage = self.usage(Maybe(None), None);
            out.push(Event::Usage(usage));
        }
    }

    fn assistant_block(
        &mut self,
        message: usize,
        block: &wire::ContentBlock<'_>,
        agent: Option<&str>,
        out: &mut TurnOutput<'_>,
    ) {
        match block.kind.as_str() {
            "text" => {
                let text = block.text.as_ref().map_or("", |Text(text)| text);
                self.assistant_text(message, BlockType::Text, text, agent, out);
            }
            "thinking" => {
                let text = block.thinking.as_ref().map_or("", |Text(text)| text);
                self.assistant_text(message, BlockType::Thinking, text, agent, out);
            }
            "redacted_thinking" => {
                if self.confirm_streamed(message, BlockType::Redacted).is_none() {
                    self.whole_words(message, BlockType::Redacted, "", out);
                }
            }
            _ if is_call(&block.kind) => {
                let Some(tool) = block.id.get() else { return out.counts.ignore("block/unnamed") };
                self.assistant_call(message, tool, block, out);
            }
            _ if is_result(&block.kind) => self.result(block, None, false, out),
            other => out.counts.ignore_within("block", other),
        }
    }

    /// A text or thinking block arrives whole. The part that was streamed is not repeated.
    fn assistant_text(
        &mut self,
        message: usize,
        kind: BlockType,
        text: &str,
        agent: Option<&str>,
        out: &mut TurnOutput<'_>,
    ) {
        let Some(at) = self.confirm_streamed(message, kind) else {
            self.has_spoken |= agent.is_none() && kind == BlockType::Text && !text.is_empty();
            return self.whole_words(message, kind, text, out);
        };
        let Some(message) = self.messages.get_mut(message) else { return };
        let Some(block) = message.blocks.get_mut(at) else { return };
        let Some((head, rest)) = text.split_at_checked(block.emitted.len) else {
            out.counts.differing = out.counts.differing.saturating_add(1);
            return;
        };
        if TextDigest::of(head) != block.emitted || (block.stage == BlockStage::Ended && !rest.is_empty()) {
            out.counts.differing = out.counts.differing.saturating_add(1);
        } else if !rest.is_empty() {
            block.emitted.add(rest);
            let (message, block) = (message.id.clone(), block.id.clone());
            out.push(Event::BlockDelta { message, block, kind, text: rest.to_owned() });
        }
    }

    fn assistant_call(&mut self, message: usize, tool: &str, block: &wire::ContentBlock<'_>, out: &mut TurnOutput<'_>) {
        let Some(state) = self.calls.get(tool) else {
            return self.whole_call(message, tool.into(), block.name.as_str(), block.input, out);
        };
        let held = state.input.and_then(|(message, at)| self.messages.get_mut(message)?.blocks.get_mut(at));
        if let Some(TurnBlock { stage: BlockStage::Open, input: Some(input), .. }) = held {
            input.whole = block.input.map(|raw| raw.get().to_owned());
        }
    }

    /// Marks the first streamed block of a kind that no `assistant` line has repeated as repeated now; returns its place.
    fn confirm_streamed(&mut self, message: usize, kind: BlockType) -> Option<usize> {
        let TurnMessage { blocks, unconfirmed, .. } =
            self.messages.get_mut(message).filter(|message| message.unconfirmed > 0)?;
        let at = blocks.iter().position(|block| block.kind == kind && block.index.is_some() && !block.is_confirmed)?;
        blocks.get_mut(at)?.is_confirmed = true;
        *unconfirmed = unconfirmed.saturating_sub(1);
        Some(at)
    }

    fn whole_words(&mut self, message: usize, kind: BlockType, text: &str, out: &mut TurnOutput<'_>) {
        let begun = match kind {
            BlockType::Thinking => BlockKind::Thinking,
            BlockType::Redacted => BlockKind::Redacted,
            BlockType::Text | BlockType::ToolInput => BlockKind::Text,
        };
        let Some(at) = self.open_block(message, None, begun, out) else { return };
        let Some(state) = self.messages.get(message) else { return };
        if let Some(block) = state.blocks.get(at)
            && !text.is_empty()
        {
            let (message, block) = (state.id.clone(), block.id.clone());
            out.push(Event::BlockDelta { message, block, kind, text: text.to_owned() });
        }
        self.end_block(message, at, None, out);
    }

    fn whole_call(&mut self, message: usize, tool: Id, name: &str, input: Option<&RawValue>, out: &mut TurnOutput<'_>) {
        let name = if name.is_empty() { "tool" } else { name };
        let call = Call::new(tool, name, name);
        if let Some(at) = self.open_block(message, None, BlockKind::ToolInput(call), out) {
            self.end_block(message, at, input.map(RawValue::get), out);
        }
    }

    /// Begins a block. It is named by its place in the message, so that it has the same name whether it was streamed or
    /// arrived whole. In a message with both kinds, the whole ones have names of their own. `None` if the message may
    /// have no more blocks.
    fn open_block(
        &mut self,
        message: usize,
        index: Option<u64>,
        kind: BlockKind,
        out: &mut TurnOutput<'_>,
    ) -> Option<usize> {
        let at = self.messages.get(message)?.blocks.len();
        if at >= MAX_BLOCKS {
            out.counts.parts_cut = out.counts.parts_cut.saturating_add(1);
            return None;
        }
        if !self.take_part(out) {
            return None;
        }
        let state = self.messages.get_mut(message)?;
        let id = match index {
            Some(index) => Id::from(index.to_string()),
            None if state.blocks.iter().any(|block| block.index.is_some()) => Id::from(format!("w{at}")),
            None => Id::from(at.to_string()),
        };
        let input = match &kind {
            BlockKind::ToolInput(call) => {
                let state = TurnCall {
                    title: call.title.clone(),
                    input: Some((message, at)),
                    sub_agent: SubAgentState::None,
                    progress: Progress::Open,
                };
                self.calls.insert(call.tool.clone(), state);
                Some(Input { call: call.tool.clone(), streamed: Some(String::new()), whole: None })
            }
            _ => None,
        };
        let block = TurnBlock {
            id: id.clone(),
            index,
            kind: kind.kind(),
            stage: BlockStage::Open,
            is_confirmed: false,
            emitted: TextDigest::EMPTY,
            input,
        };
        state.blocks.push(block);
        if index.is_some() && !matches!(kind, BlockKind::ToolInput(_)) {
            state.unconfirmed = state.unconfirmed.saturating_add(1);
        }
        out.push(Event::BlockStarted { message: state.id.clone(), block: id, kind });
        Some(at)
    }

    /// Ends the open blocks of a message, with the inputs of calls as far as they are whole.
    fn end_blocks(&mut self, message: usize, out: &mut TurnOutput<'_>) {
        let blocks = self.messages.get(message).map_or(0, |message| message.blocks.len());
        for at in 0..blocks {
            self.end_block(message, at, None, out);
        }
    }

    /// Ends a block that is open. `input` is the whole input of a call, if it is known by now.
    fn end_block(&mut self, message: usize, at: usize, input: Option<&str>, out: &mut TurnOutput<'_>) {
        let Some(state) = self.messages.get_mut(message) else { return };
        let Some(block) = state.blocks.get_mut(at).filter(|block| block.stage == BlockStage::Open) else { return };
        block.stage = BlockStage::Ended;
        let held = block.input.take();
        let (message, block) = (state.id.clone(), block.id.clone());
        let Some(held) = held else { return out.push(Event::BlockEnded { message, block, input: None }) };
        self.input_bytes = self.input_bytes.saturating_sub(held.streamed.as_ref().map_or(0, String::len));
        let input = input.map(str::to_owned).or(held.whole).or_else(|| whole_input(held.streamed?));
        if let Some(state) = self.calls.get_mut(&held.call) {
            state.input = None;
            state.sub_agent = SubAgentState::expected(&state.title, input.as_deref());
        }
        out.push(Event::BlockEnded { message, block, input });
    }

    /// The input of a call is whole, whatever the stream says about it later.
    fn finish_input(&mut self, tool: &Id, input: Option<&str>, out: &mut TurnOutput<'_>) {
        if let Some((message, at)) = self.calls.get(tool).and_then(|state| state.input) {
            self.end_block(message, at, input, out);
        }
    }

    /// A sub-agent is heard: it works.
    fn sub_agent_started(&mut self, tool: &str, task: &str, out: &mut TurnOutput<'_>) {
        let Some((tool, state)) = self.calls.get_key_value(tool) else { return };
        if matches!(state.sub_agent, SubAgentState::Working) || matches!(state.progress, Progress::Ended) {
            return;
        }
        let tool = tool.clone();
        self.finish_input(&tool, None, out);
        let Some(state) = self.calls.get_mut(&tool) else { return };
        let (name, task) = match std::mem::replace(&mut state.sub_agent, SubAgentState::Working) {
            SubAgentState::Expected { name, task } => (name, task),
            SubAgentState::None | SubAgentState::Working => (String::new(), task.to_owned()),
        };
        if matches!(state.progress, Progress::Open) {
            state.progress = Progress::Running;
            out.push(Event::ToolStarted { tool: tool.clone() });
        }
        out.push(Event::AgentStarted { tool, name, task });
    }

    /// Takes the result of a call.
    fn result(
        &mut self,
        block: &wire::ContentBlock<'_>,
        structured: Option<&Structured<'_>>,
        never_ran: bool,
        out: &mut TurnOutput<'_>,
    ) {
        let Some((tool, state)) = self.calls.get_key_value(block.tool_use_id.as_str()) else {
            return out.counts.ignore("user/tool_result");
        };
        let tool = tool.clone();
        let ending = results::ending(&state.title, block, structured, never_ran);
        match structured {
            Some(structured) if structured.status.as_str() == "async_launched" => {
                self.left_to_background(&tool, structured, ending, out);
            }
            _ => self.tool_ended(&tool, ending, out),
        }
    }

    /// A call has started a sub-agent in the background: the call ends when the sub-agent does, or with the turn.
    fn left_to_background(&mut self, tool: &Id, structured: &Structured<'_>, ending: Ending, out: &mut TurnOutput<'_>) {
        if self.is_over(tool) {
            return;
        }
        self.sub_agent_started(tool, "", out);
        if let Some(task) = structured.agent_id.get() {
            self.note_task(task, tool, out);
        }
        if let Ending::Done(result) = &ending {
            out.push(Event::ToolOutput { tool: tool.clone(), content: result.content.clone() });
        }
        if let Some(state) = self.calls.get_mut(tool) {
            state.progress = Progress::Background(ending);
        }
    }

    fn note_task(&mut self, task: &str, tool: &str, out: &mut TurnOutput<'_>) {
        if self.calls.contains_key(tool)
            && self.take_part(out)
            && let Some((tool, _)) = self.calls.get_key_value(tool)
        {
            self.tasks.insert(task.to_owned(), tool.clone());
        }
    }

    fn tool_ended(&mut self, tool: &Id, ending: Ending, out: &mut TurnOutput<'_>) {
        self.finish_input(tool, None, out);
        let Some(state) = self.calls.get_mut(tool) else { return };
        if matches!(state.progress, Progress::Ended) {
            return;
        }
        state.progress = Progress::Ended;
        let is_sub_agent = matches!(state.sub_agent, SubAgentState::Working);
        if let Some(message) = self.sub_agents.remove(tool) {
            self.end_blocks(message, out);
        }
        if is_sub_agent {
            let outcome = match &ending {
                Ending::Done(ToolResult { success: false, error, .. }) => {
                    Outcome::Failed(Failure::new("agentFailed", error.clone().unwrap_or_default()))
                }
                Ending::Done(_) => Outcome::Complete,
                Ending::Cancelled { .. } => Outcome::Cancelled,
            };
            out.push(Event::AgentEnded { tool: tool.clone(), outcome });
        }
        out.push(Event::ToolEnded { tool: tool.clone(), ending });
    }

    /// The open block at a place.
    fn open_at(&self, message: usize, index: u64, kind: BlockType) -> Option<usize> {
        let blocks = &self.messages.get(message)?.blocks;
        blocks
            .iter()
            .rposition(|block| block.index == Some(index) && block.kind == kind && block.stage == BlockStage::Open)
    }

    /// Takes what the model says a message has cost. Later numbers stand for earlier ones.
    fn count(&mut self, message: usize, tokens: Maybe<Tokens>) {
        let (Some(message), Maybe(Some(news))) = (self.messages.get_mut(message), tokens) else { return };
        let tokens = &mut message.tokens;
        for (field, news) in [
            (&mut tokens.input_tokens, news.input_tokens),
            (&mut tokens.output_tokens, news.output_tokens),
            (&mut tokens.cache_creation_input_tokens, news.cache_creation_input_tokens),
            (&mut tokens.cache_read_input_tokens, news.cache_read_input_tokens),
        ] {
            field.0 = news.0.or(field.0);
        }
    }

    /// Adds the tokens of a message to those of the turn.
    fn settle(&mut self, message: usize) {
        if let Some(message) = self.messages.get_mut(message) {
            self.tokens.add(Total::of(std::mem::take(&mut message.tokens)));
        }
    }
}

impl SubAgentState {
    /// Reads the sub-agent's name and task from the input of a call, if the tool starts sub-agents.
    fn expected(title: &str, input: Option<&str>) -> Self {
        #[derive(Deserialize)]
        struct Task<'a> {
            #[serde(default, borrow)]
            subagent_type: Word<'a>,
            #[serde(default, borrow)]
            prompt: Maybe<Text<'a>>,
            #[serde(default, borrow)]
            description: Maybe<Text<'a>>,
        }
        if !matches!(title, "Task" | "Agent") {
            return Self::None;
        }
        let Some(task) = input.and_then(|input| serde_json::from_str::<Task<'_>>(input).ok()) else {
            return Self::None;
        };
        let told = task.prompt.0.or(task.description.0).map_or_else(String::new, |Text(text)| text.into_owned());
        Self::Expected { name: task.subagent_type.to_owned().unwrap_or_default(), task: told }
    }
}

fn call(tool: &str, name: &Word<'_>) -> Call {
    let name = name.get().unwrap_or("tool");
    Call::new(tool, name, name)
}

/// Whether a block is a call: the program's own tools, and those that run where the model does.
fn is_call(kind: &Word<'_>) -> bool {
    kind.as_str().ends_with("tool_use")
}

fn is_result(kind: &Word<'_>) -> bool {
    kind.as_str().ends_with("tool_result")
}

/// The streamed input, if it is complete JSON. A tool without parameters streams nothing.
fn whole_input(streamed: String) -> Option<String> {
    if streamed.trim().is_empty() {
        return Some("{}".to_owned());
    }
    serde_json::from_str::<&RawValue>(&streamed).is_ok().then_some(streamed)
}
