//! A chat as the projector follows it: which messages and blocks of the running turn are open.
//!
//! AHP's chat state knows what each part holds, but not whether a block or a message has ended. So this is all that is kept
//! here, beside the inputs of calls that are not whole yet.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use ahp_types::actions::{
    ChatToolCallCompleteAction, ChatToolCallConfirmedAction, ChatToolCallDeltaAction, ChatToolCallReadyAction,
    ChatToolCallResultConfirmedAction, ChatToolCallStartAction,
};
use ahp_types::common::{JsonObject, StringOrMarkdown};
use ahp_types::state::{ActiveTurn, ResponsePart, ToolCallCancellationReason, ToolCallState};

use super::entry_events::EntryEvents;
use super::{Config, LongContent, text};
use crate::projection::{is_redacted, message_of, ours};
use crate::v2::wire::{Body, TokenUsage};
use crate::{BlockType, Id};

/// A chat: the session's own, or that of a sub-agent.
#[derive(Debug)]
pub(super) struct Chat {
    pub(super) uri: Id,
    /// The call whose sub-agent speaks here.
    pub(super) parent: Option<Id>,
    /// How many calls are around it.
    pub(super) depth: u32,
    pub(super) turn: Option<RunningTurn>,
}

/// The running turn of a chat.
#[derive(Debug)]
pub(super) struct RunningTurn {
    pub(super) id: Id,
    messages: Vec<MessageProgress>,
    parts: Vec<ProjectedBlock>,
    /// The place of each part by its id.
    index: HashMap<String, usize>,
    /// The place of the part that was changed last: most often it is the next one too.
    recent: usize,
    /// The places of the blocks that are open.
    open: Vec<usize>,
    pub(super) usage: Option<TokenUsage>,
}

/// A message.
#[derive(Debug)]
struct MessageProgress {
    id: Id,
    blocks: u32,
    open: u32,
    phase: MessagePhase,
}

/// Where a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessagePhase {
    Open,
    /// It has ended, but a block of it has not.
    Deferred,
    Ended,
}

/// A block.
#[derive(Debug)]
struct ProjectedBlock {
    id: String,
    message: usize,
    block: Id,
    kind: BlockType,
    is_open: bool,
    call: Option<Box<CallProgress>>,
}

/// A block that begins.
struct NewBlock {
    message: Id,
    id: String,
    kind: BlockType,
    call: Option<Box<CallProgress>>,
}

/// A call.
#[derive(Debug)]
struct CallProgress {
    tool: Id,
    name: String,
    status: CallStatus,
    /// What there is of the input, until the block ends.
    input: String,
    /// Which input the client was told.
    told: Option<u64>,
}

/// Where a call is, as AHP's reducer has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStatus {
    Streaming,
    Pending,
    Running,
    /// It has a result that somebody has to confirm.
    Reviewed,
    Over,
}

impl Chat {
    pub(super) const fn new(uri: Id, parent: Option<Id>, depth: u32) -> Self {
        Self { uri, parent, depth, turn: None }
    }

    /// The running turn, if it is this one.
    pub(super) fn turn(&mut self, id: &str) -> Option<&mut RunningTurn> {
        self.turn.as_mut().filter(|turn| *turn.id == *id)
    }

    /// A part begins.
    pub(super) fn part(&mut self, turn: &str, part: ResponsePart, config: &Config, out: &mut EntryEvents<'_>) {
        let parent = self.parent.as_ref();
        let Some(turn) = self.turn.as_mut().filter(|known| *known.id == *turn) else { return };
        match part {
            ResponsePart::Markdown(part) => {
                let message = turn.message_id(message_of(&part.id));
                let new = NewBlock { message, id: part.id, kind: BlockType::Text, call: None };
                let at = turn.begin(new, parent, config, out);
                turn.delta(at, part.content, config, out);
            }
            ResponsePart::Reasoning(part) => {
                let kind = if is_redacted(&part.id) { BlockType::Redacted } else { BlockType::Thinking };
                let message = turn.message_id(message_of(&part.id));
                let new = NewBlock { message, id: part.id, kind, call: None };
                let at = turn.begin(new, parent, config, out);
                turn.delta(at, part.content, config, out);
            }
            ResponsePart::SystemNotification(part) if parent.is_none() => {
                out.push(Body::Notice { text: config.short(part.content.as_text()) });
            }
            // The host makes calls by an action of their own; the others are nothing that an agent says.
            _ => {}
        }
    }

    /// A call begins.
    pub(super) fn call(&mut self, action: ChatToolCallStartAction, config: &Config, out: &mut EntryEvents<'_>) {
        let parent = self.parent.as_ref();
        let Some(turn) = self.turn.as_mut().filter(|turn| *turn.id == *action.turn_id) else { return };
        let message = turn.message_id(ours(action.meta.as_ref(), "message").and_then(serde_json::Value::as_str));
        let tool = Id::from(action.tool_call_id.as_str());
        let call = CallProgress {
            tool,
            name: action.tool_name,
            status: CallStatus::Streaming,
            input: String::new(),
            told: None,
        };
        let (id, call) = (action.tool_call_id, Some(Box::new(call)));
        turn.begin(NewBlock { message, id, kind: BlockType::ToolInput, call }, parent, config, out);
    }

    /// Ends everything that is open in the running turn, and the turn.
    pub(super) fn end_turn(&mut self, config: &Config, out: &mut EntryEvents<'_>) -> Option<RunningTurn> {
        let mut turn = self.turn.take()?;
        turn.flush(config, out);
        turn.stop_calls(out);
        Some(turn)
    }
}

impl RunningTurn {
    pub(super) fn new(id: Id) -> Self {
        Self {
            id,
            messages: Vec::new(),
            parts: Vec::new(),
            index: HashMap::new(),
            recent: 0,
            open: Vec::new(),
            usage: None,
        }
    }

    /// A turn that is known only from its state. That does not say which blocks and messages have ended. So a text counts
    /// as ended when anything follows it, and a message when another follows it: where that is wrong, the end is told again
    /// or later, and what the client holds in the end is right.
    pub(super) fn of(active: &ActiveTurn) -> Self {
        let mut turn = Self::new(Id::from(active.id.as_str()));
        let last = active.response_parts.iter().rposition(|part| identity(part).is_some());
        for (at, part) in active.response_parts.iter().enumerate() {
            let Some(Identity { id, message, kind }) = identity(part) else { continue };
            let message = turn.message_id(message);
            let call = match part {
                ResponsePart::ToolCall(part) => CallProgress::of(&part.tool_call),
                _ => None,
            };
            let is_open = match &call {
                Some(call) => call.told.is_none() && call.status == CallStatus::Streaming,
                None => Some(at) == last,
            };
            let message = turn.enter(message);
            turn.add(message, id.to_owned(), kind, call.map(Box::new), is_open);
            if ended(meta_of(part)) == Some("message")
                && let Some(known) = turn.messages.get_mut(message)
            {
                known.phase = if known.open == 0 { MessagePhase::Ended } else { MessagePhase::Deferred };
            }
        }
        let count = turn.messages.len();
        turn.messages.iter_mut().take(count.saturating_sub(1)).for_each(|known| known.phase = MessagePhase::Ended);
        turn
    }

    /// More of a text, or the mark that it or its message has ended.
    pub(super) fn said(
        &mut self,
        part: &str,
        is_text: bool,
        content: String,
        meta: Option<&JsonObject>,
        config: &Config,
        out: &mut EntryEvents<'_>,
    ) {
        let Some(at) = self.find(part) else { return };
        let kind = self.parts.get(at).map(|part| part.kind);
        if is_text == (kind == Some(BlockType::Text)) && kind != Some(BlockType::ToolInput) {
            self.delta(at, content, config, out);
        }
        self.mark(at, meta, config, out);
    }

    /// More of a call's input, or the mark that it or its message has ended.
    pub(super) fn input(&mut self, action: &ChatToolCallDeltaAction, config: &Config, out: &mut EntryEvents<'_>) {
        let Some(at) = self.find(&action.tool_call_id) else { return };
        if let (Some(call), Some(content)) = (self.call(at), &action.content)
            && call.status == CallStatus::Streaming
        {
            call.input.push_str(content);
        }
        self.mark(at, action.meta.as_ref(), config, out);
    }

    /// A call's input is whole; it is asked about, or runs.
    pub(super) fn ready(&mut self, action: &ChatToolCallReadyAction, config: &Config, out: &mut EntryEvents<'_>) {
        let Some(at) = self.find(&action.tool_call_id) else { return };
        let Some(call) = self.call(at) else { return };
        if matches!(call.status, CallStatus::Over | CallStatus::Reviewed) {
            return;
        }
        call.status = if action.confirmed.is_some() { CallStatus::Running } else { CallStatus::Pending };
        if let Some(input) = text::input(action.tool_input.as_ref()) {
            input.clone_into(&mut call.input);
            self.restate(at, config, out);
        }
        self.end_block(at, config, out);
    }

    /// A call that is asked about is answered.
    pub(super) fn confirmed(
        &mut self,
        action: &ChatToolCallConfirmedAction,
        config: &Config,
        out: &mut EntryEvents<'_>,
    ) {
        let Some(at) = self.find(&action.tool_call_id) else { return };
        let Some(call) = self.call(at).filter(|call| call.status == CallStatus::Pending) else { return };
        if !action.approved {
            let reason = action.reason.unwrap_or(ToolCallCancellationReason::Denied);
            self.cancel(at, reason, action.reason_message.as_ref(), out);
            return;
        }
        call.status = CallStatus::Running;
        if let Some(input) = &action.edited_tool_input {
            call.input.clone_from(input);
            self.restate(at, config, out);
        }
    }

    /// A call has ended.
    pub(super) fn complete(
        &mut self,
        chat: &str,
        action: &ChatToolCallCompleteAction,
        config: &Config,
        out: &mut EntryEvents<'_>,
    ) {
        let Some(at) = self.find(&action.tool_call_id) else { return };
        let Some(call) = self.call(at).filter(|call| matches!(call.status, CallStatus::Running | CallStatus::Pending))
        else {
            return;
        };
        let is_reviewed = action.requires_result_confirmation == Some(true);
        call.status = if is_reviewed { CallStatus::Reviewed } else { CallStatus::Over };
        self.end_block(at, config, out);
        let result = &action.result;
        let text = text::result(result.content.as_ref(), result.error.as_ref(), &result.past_tense_message);
        let cut = config.cut(text, &LongContent::Result { chat, turn: &self.id, tool: &action.tool_call_id });
        let Some((message_id, tool_id)) = self.names(at) else { return };
        out.push(Body::ToolResult {
            message_id,
            tool_id,
            result: cut.text,
            is_error: !result.success,
            truncated: cut.bytes.is_some(),
            bytes: cut.bytes,
            url: cut.url,
        });
    }

    /// The result of a call is confirmed, or not.
    pub(super) fn reviewed(&mut self, action: &ChatToolCallResultConfirmedAction, out: &mut EntryEvents<'_>) {
        let Some(at) = self.find(&action.tool_call_id) else { return };
        let Some(call) = self.call(at).filter(|call| call.status == CallStatus::Reviewed) else { return };
        call.status = CallStatus::Over;
        if !action.approved {
            self.cancel(at, ToolCallCancellationReason::ResultDenied, None, out);
        }
    }

    /// Whether a block has ended, as far as the client was told. A block that is not known ended long ago.
    pub(super) fn has_ended(&self, part: &str) -> bool {
        self.index.get(part).and_then(|at| self.parts.get(*at)).is_none_or(|part| !part.is_open)
    }

    /// Whether a message has ended, as far as the client was told.
    pub(super) fn has_message_ended(&self, message: &str) -> bool {
        let known = self.messages.iter().rev().find(|known| *known.id == *message);
        known.is_none_or(|known| known.phase == MessagePhase::Ended)
    }

    /// Whether a call waits for an answer.
    pub(super) fn is_pending(&self, tool: &str) -> bool {
        let part = self.index.get(tool).and_then(|at| self.parts.get(*at));
        part.and_then(|part| part.call.as_ref()).is_some_and(|call| call.status == CallStatus::Pending)
    }

    /// The message of a part that names one, or else that of the part before it.
    fn message_id(&self, named: Option<&str>) -> Id {
        match named {
            Some(message) => Id::from(message),
            None => self.messages.last().map_or_else(|| self.id.clone(), |known| known.id.clone()),
        }
    }

    /// Begins a block, and its message if that is new; which ends the one before.
    fn begin(&mut self, new: NewBlock, parent: Option<&Id>, config: &Config, out: &mut EntryEvents<'_>) -> usize {
        let NewBlock { message, id, kind, call } = new;
        if !self.messages.iter().any(|known| known.id == message) {
            self.flush(config, out);
            out.push(Body::MessageStart { message_id: message.clone(), parent_tool_id: parent.cloned() });
        }
        let (tool_name, tool_id) = call.as_ref().map(|call| (call.name.clone(), call.tool.clone())).unzip();
        let place = self.enter(message.clone());
        let at = self.add(place, id, kind, call, true);
        if let Some(part) = self.parts.get(at) {
            let block_id = part.block.clone();
            out.push(Body::BlockStart { message_id: message, block_id, block_type: kind, tool_name, tool_id });
        }
        at
    }

    /// The place of a message, which is made if there is none.
    fn enter(&mut self, id: Id) -> usize {
        self.messages.iter().rposition(|known| known.id == id).unwrap_or_else(|| {
            self.messages.push(MessageProgress { id, blocks: 0, open: 0, phase: MessagePhase::Open });
            self.messages.len().saturating_sub(1)
        })
    }

    fn add(
        &mut self,
        message: usize,
        id: String,
        kind: BlockType,
        call: Option<Box<CallProgress>>,
        is_open: bool,
    ) -> usize {
        let number = self.messages.get_mut(message).map_or(0, |known| {
            known.open = known.open.saturating_add(u32::from(is_open));
            let number = known.blocks;
            known.blocks = number.saturating_add(1);
            number
        });
        let at = self.parts.len();
        // The reducer changes the first part of a name.
        self.index.entry(id.clone()).or_insert(at);
        if is_open {
            self.open.push(at);
        }
        self.parts.push(ProjectedBlock { id, message, block: block_id(number), kind, is_open, call });
        at
    }

    fn delta(&self, at: usize, content: String, config: &Config, out: &mut EntryEvents<'_>) {
        let Some(part) = self.parts.get(at).filter(|_| !content.is_empty()) else { return };
        let Some(message) = self.messages.get(part.message) else { return };
        deltas(&message.id, &part.block, part.kind, content, config, out);
    }

    fn mark(&mut self, at: usize, meta: Option<&JsonObject>, config: &Config, out: &mut EntryEvents<'_>) {
        match ended(meta) {
            Some("block") => {
                // A call whose input is not there yet: it comes when the call is ready.
                let is_held =
                    self.call(at).is_some_and(|call| call.status == CallStatus::Streaming && call.input.is_empty());
                if !is_held {
                    self.end_block(at, config, out);
                }
            }
            Some("message") => {
                if let Some(message) = self.parts.get(at).map(|part| part.message) {
                    self.end_message(message, out);
                }
            }
            _ => {}
        }
    }

    /// Ends a block, and its message if that has waited only for this.
    fn end_block(&mut self, at: usize, config: &Config, out: &mut EntryEvents<'_>) {
        let Some(part) = self.parts.get_mut(at).filter(|part| part.is_open) else { return };
        part.is_open = false;
        self.open.retain(|open| *open != at);
        let message = part.message;
        let Some(known) = self.messages.get_mut(message) else { return };
        known.open = known.open.saturating_sub(1);
        let is_last = known.open == 0 && known.phase == MessagePhase::Deferred;
        tell_end(&known.id, part, config, out);
        if is_last {
            known.phase = MessagePhase::Ended;
            out.push(Body::MessageEnd { message_id: known.id.clone() });
        }
    }

    fn end_message(&mut self, at: usize, out: &mut EntryEvents<'_>) {
        let Some(known) = self.messages.get_mut(at).filter(|known| known.phase == MessagePhase::Open) else { return };
        if known.open > 0 {
            known.phase = MessagePhase::Deferred;
            return;
        }
        known.phase = MessagePhase::Ended;
        out.push(Body::MessageEnd { message_id: known.id.clone() });
    }

    /// A call's block has ended, and its input is another one now.
    fn restate(&mut self, at: usize, config: &Config, out: &mut EntryEvents<'_>) {
        let Some(part) = self.parts.get_mut(at).filter(|part| !part.is_open) else { return };
        let Some(message) = self.messages.get(part.message) else { return };
        let is_new = part.call.as_ref().is_some_and(|call| call.told != Some(digest(&call.input)));
        if is_new {
            tell_end(&message.id, part, config, out);
        } else if let Some(call) = &mut part.call {
            call.input = String::new();
        }
    }

    /// Ends all blocks and messages that are open.
    pub(super) fn flush(&mut self, config: &Config, out: &mut EntryEvents<'_>) {
        for at in std::mem::take(&mut self.open) {
            self.end_block(at, config, out);
        }
        // The ones before ended when it began.
        self.end_message(self.messages.len().saturating_sub(1), out);
    }

    fn cancel(
        &mut self,
        at: usize,
        reason: ToolCallCancellationReason,
        message: Option<&StringOrMarkdown>,
        out: &mut EntryEvents<'_>,
    ) {
        if let Some(call) = self.call(at) {
            call.status = CallStatus::Over;
        }
        let Some((message_id, tool_id)) = self.names(at) else { return };
        out.push(Body::ToolResult {
            message_id,
            tool_id,
            result: text::cancelled(reason, message),
            is_error: true,
            truncated: false,
            bytes: None,
            url: None,
        });
    }

    /// The turn is over: calls that have no result get one that says so, as AHP's reducer has it.
    fn stop_calls(&mut self, out: &mut EntryEvents<'_>) {
        for at in 0..self.parts.len() {
            if self.call(at).is_some_and(|call| call.status != CallStatus::Over) {
                self.cancel(at, ToolCallCancellationReason::Skipped, None, out);
            }
        }
    }

    fn find(&mut self, part: &str) -> Option<usize> {
        if self.parts.get(self.recent).is_some_and(|recent| recent.id == part) {
            return Some(self.recent);
        }
        self.recent = *self.index.get(part)?;
        Some(self.recent)
    }

    fn call(&mut self, at: usize) -> Option<&mut CallProgress> {
        self.parts.get_mut(at)?.call.as_deref_mut()
    }

    /// The message and the call of a part.
    fn names(&self, at: usize) -> Option<(Id, Id)> {
        let part = self.parts.get(at)?;
        Some((self.messages.get(part.message)?.id.clone(), part.call.as_ref()?.tool.clone()))
    }
}

impl CallProgress {
    fn of(state: &ToolCallState) -> Option<Self> {
        let view = CallView::of(state)?;
        let status = match state {
            ToolCallState::Streaming(_) => CallStatus::Streaming,
            ToolCallState::PendingConfirmation(_) => CallStatus::Pending,
            ToolCallState::PendingResultConfirmation(_) => CallStatus::Reviewed,
            ToolCallState::Completed(_) | ToolCallState::Cancelled(_) => CallStatus::Over,
            _ => CallStatus::Running,
        };
        let input = view.input.unwrap_or_default();
        let is_whole = status != CallStatus::Streaming || (ended(view.meta).is_some() && !input.is_empty());
        Some(Self {
            tool: Id::from(view.tool),
            name: view.name.to_owned(),
            status,
            input: if is_whole { String::new() } else { input.to_owned() },
            told: is_whole.then(|| digest(input)),
        })
    }
}

/// What all states of a call have.
pub(super) struct CallView<'a> {
    pub(super) tool: &'a str,
    pub(super) name: &'a str,
    pub(super) meta: Option<&'a JsonObject>,
    /// The whole input, or what there is of it.
    pub(super) input: Option<&'a str>,
}

impl<'a> CallView<'a> {
    pub(super) fn of(state: &'a ToolCallState) -> Option<Self> {
        macro_rules! view {
            ($state:expr, $input:expr) => {
                Some(Self {
                    tool: &$state.tool_call_id,
                    name: &$state.tool_name,
                    meta: $state.meta.as_ref(),
                    input: $input,
                })
            };
        }
        match state {
            ToolCallState::Streaming(state) => view!(state, state.partial_input.as_deref()),
            ToolCallState::PendingConfirmation(state) => view!(state, text::input(state.tool_input.as_ref())),
            ToolCallState::Running(state) => view!(state, text::input(state.tool_input.as_ref())),
            ToolCallState::AuthRequired(state) => view!(state, text::input(state.tool_input.as_ref())),
            ToolCallState::PendingResultConfirmation(state) => view!(state, text::input(state.tool_input.as_ref())),
            ToolCallState::Completed(state) => view!(state, text::input(state.tool_input.as_ref())),
            ToolCallState::Cancelled(state) => view!(state, text::input(state.tool_input.as_ref())),
            ToolCallState::Unknown(_) => None,
        }
    }
}

/// What a part that becomes a block is.
pub(super) struct Identity<'a> {
    pub(super) id: &'a str,
    /// The message that it names.
    pub(super) message: Option<&'a str>,
    pub(super) kind: BlockType,
}

/// What a part is; none for one that becomes no block.
pub(super) fn identity(part: &ResponsePart) -> Option<Identity<'_>> {
    match part {
        ResponsePart::Markdown(part) => {
            Some(Identity { id: &part.id, message: message_of(&part.id), kind: BlockType::Text })
        }
        ResponsePart::Reasoning(part) => {
            let kind = if is_redacted(&part.id) { BlockType::Redacted } else { BlockType::Thinking };
            Some(Identity { id: &part.id, message: message_of(&part.id), kind })
        }
        ResponsePart::ToolCall(part) => {
            let view = CallView::of(&part.tool_call)?;
            let message = ours(view.meta, "message").and_then(serde_json::Value::as_str);
            Some(Identity { id: view.tool, message, kind: BlockType::ToolInput })
        }
        _ => None,
    }
}

fn meta_of(part: &ResponsePart) -> Option<&JsonObject> {
    match part {
        ResponsePart::ToolCall(part) => CallView::of(&part.tool_call)?.meta,
        _ => None,
    }
}

/// What an action marks as ended.
fn ended(meta: Option<&JsonObject>) -> Option<&str> {
    ours(meta, "ended")?.as_str()
}

/// The name of the `number`th block of a message.
pub(super) fn block_id(number: u32) -> Id {
    Id::from(format!("b{number}"))
}

/// Tells more of a block, in as many pieces as it needs.
pub(super) fn deltas(
    message: &Id,
    block: &Id,
    kind: BlockType,
    content: String,
    config: &Config,
    out: &mut EntryEvents<'_>,
) {
    let event =
        |delta| Body::BlockDelta { message_id: message.clone(), block_id: block.clone(), block_type: kind, delta };
    if config.fits(&content) {
        out.push(event(content));
        return;
    }
    for piece in text::pieces(&content, config.max_text()) {
        out.push(event(piece.to_owned()));
    }
}

/// Tells that the block of a call is whole, with the input. One that is too long for an event comes in pieces before it.
pub(super) fn call_end(
    message: &Id,
    block: &Id,
    tool: &Id,
    name: &str,
    input: Option<String>,
    config: &Config,
    out: &mut EntryEvents<'_>,
) {
    let (input, long) = match input {
        // Twice, as text and as an object.
        Some(input) if !config.fits(&input) || text::encoded_len(&input) > config.max_text() / 2 => (None, Some(input)),
        input => (input, None),
    };
    if let Some(long) = long {
        deltas(message, block, BlockType::ToolInput, long, config, out);
    }
    out.push(Body::BlockEnd {
        message_id: message.clone(),
        block_id: block.clone(),
        block_type: BlockType::ToolInput,
        tool_name: Some(name.to_owned()),
        tool_id: Some(tool.clone()),
        raw_input: input.as_deref().and_then(text::object),
        input,
    });
}

fn tell_end(message: &Id, part: &mut ProjectedBlock, config: &Config, out: &mut EntryEvents<'_>) {
    match &mut part.call {
        Some(call) => {
            let input = std::mem::take(&mut call.input);
            call.told = Some(digest(&input));
            let input = Some(input).filter(|input| !input.is_empty());
            call_end(message, &part.block, &call.tool, &call.name, input, config, out);
        }
        None => out.push(Body::BlockEnd {
            message_id: message.clone(),
            block_id: part.block.clone(),
            block_type: part.kind,
            tool_name: None,
            tool_id: None,
            input: None,
            raw_input: None,
        }),
    }
}

/// Tells one input from another, without keeping it.
fn digest(input: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    hasher.finish()
}
