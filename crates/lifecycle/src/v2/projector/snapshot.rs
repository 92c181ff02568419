//! A snapshot: what AHP's state holds, as events for a client that has nothing.

use std::borrow::Cow;

use ahp_types::state::{
    ActiveTurn, ChatState, ResponsePart, SessionLifecycle, SessionState, ToolCallState, ToolResultContent,
    Turn as AhpTurn, TurnState,
};

use super::chat::{self, CallView, RunningTurn, block_id, identity};
use super::entry_events::EntryEvents;
use super::{Life, LongContent, MAX_DEPTH, Projector, TurnResult, confirmation, text, usage};
use crate::Id;
use crate::projection::{Snapshot, worker_chat};
use crate::v2::wire::{Body, SessionState as Doing, SnapshotBlock, SnapshotTool, TurnOutcome};

/// Finds a chat's state by its URI.
pub(super) type Find<'a> = &'a dyn Fn(&str) -> Option<&'a ChatState>;

/// Tells all of a session.
pub(super) fn tell(projector: &Projector, snapshot: &Snapshot<'_>, out: &mut EntryEvents<'_>) {
    head(projector, snapshot.session, projector.has_earlier, out);
    present(projector, snapshot, out);
}

/// Tells that a snapshot begins.
pub(super) fn head(projector: &Projector, session: &SessionState, earlier: bool, out: &mut EntryEvents<'_>) {
    let mut start = projector.session_start(session, true);
    if let Body::SessionStart { has_earlier, .. } = &mut start {
        *has_earlier = earlier;
    }
    out.push(start);
    if session.lifecycle == SessionLifecycle::Ready {
        out.push(Body::SessionId {});
    }
}

/// Tells turns that are over.
pub(super) fn past(projector: &Projector, turns: &[AhpTurn], find: Find<'_>, out: &mut EntryEvents<'_>) {
    for turn in turns {
        finished(projector, turn, find, out);
    }
}

/// Tells the turns that the snapshot holds, and what waits.
pub(super) fn present(projector: &Projector, snapshot: &Snapshot<'_>, out: &mut EntryEvents<'_>) {
    if let Some(chat) = (snapshot.chat)(&projector.config.chat) {
        turns(projector, chat, snapshot.chat, out);
    }
    for pending in &projector.pending {
        let mut requests = snapshot.session.input_needed.iter().flatten().filter_map(confirmation);
        if let Some((_, call)) = requests.find(|(request, _)| *request.id == *pending.id) {
            out.push(projector.permission(pending, call));
        }
    }
    if !projector.waiting().is_empty() {
        projector.queue_changed(Vec::new(), out);
    }
    let is_over = projector.life != Life::Open;
    let state = if is_over { Doing::Idle } else { projector.state() };
    out.push(Body::SessionState { state });
    if is_over {
        out.push(Body::SessionEnd {});
    }
}

/// Tells the turns of the main chat.
pub(super) fn turns(projector: &Projector, chat: &ChatState, find: Find<'_>, out: &mut EntryEvents<'_>) {
    past(projector, &chat.turns, find, out);
    if let Some(ActiveTurn { id, message, response_parts, .. }) = &chat.active_turn {
        out.push(projector.user_message(id, message));
        messages(projector, id, response_parts, projector.main.turn.as_ref(), find, out);
    }
}

fn finished(projector: &Projector, turn: &AhpTurn, find: Find<'_>, out: &mut EntryEvents<'_>) {
    out.push(projector.user_message(&turn.id, &turn.message));
    messages(projector, &turn.id, &turn.response_parts, None, find, out);
    let error = turn.response_parts.iter().rev().find_map(|part| match part {
        ResponsePart::Error(part) => Some(&part.error),
        _ => None,
    });
    let outcome = match turn.state {
        TurnState::Complete => TurnResult::COMPLETE,
        TurnState::Cancelled => TurnResult::CANCELLED,
        TurnState::Error => TurnResult {
            outcome: TurnOutcome::Error,
            error: error.map(|error| projector.config.short(&error.message)),
            error_type: error.map(|error| error.error_type.clone()),
        },
    };
    outcome.tell(Id::from(turn.id.as_str()), turn.usage.as_ref().map(usage), out);
}

/// Tells the messages of a turn of the main chat; `live` is what is known of it while it runs.
fn messages(
    projector: &Projector,
    turn: &str,
    parts: &[ResponsePart],
    live: Option<&RunningTurn>,
    find: Find<'_>,
    out: &mut EntryEvents<'_>,
) {
    let live = live.filter(|live| *live.id == *turn);
    let reader = SnapshotReader { projector, find };
    let chat = &projector.config.chat;
    for (message, blocks) in grouped(reader.blocks(chat, turn, parts, live, 0)) {
        let has_ended = live.is_none_or(|live| live.has_message_ended(&message));
        reader.message(message, blocks, has_ended, out);
    }
    for part in parts {
        if let ResponsePart::SystemNotification(part) = part {
            out.push(Body::Notice { text: projector.config.short(part.content.as_text()) });
        }
    }
}

/// Blocks by their message, in the order in which messages began.
fn grouped(blocks: Vec<(Id, SnapshotBlock)>) -> Vec<(Id, Vec<SnapshotBlock>)> {
    let mut messages: Vec<(Id, Vec<SnapshotBlock>)> = Vec::new();
    for (message, block) in blocks {
        match messages.iter_mut().rev().find(|(known, _)| *known == message) {
            Some((_, blocks)) => blocks.push(block),
            None => messages.push((message, vec![block])),
        }
    }
    messages
}

/// Reads states of chats.
struct SnapshotReader<'p, 'a> {
    projector: &'p Projector,
    find: Find<'a>,
}

impl SnapshotReader<'_, '_> {
    /// The parts of a turn as blocks, each with its message.
    fn blocks(
        &self,
        chat: &str,
        turn: &str,
        parts: &[ResponsePart],
        live: Option<&RunningTurn>,
        depth: u32,
    ) -> Vec<(Id, SnapshotBlock)> {
        let mut blocks: Vec<(Id, SnapshotBlock)> = Vec::new();
        let mut counts: Vec<(Id, u32)> = Vec::new();
        for part in parts {
            let Some(identity) = identity(part) else { continue };
            let message = match identity.message {
                Some(message) => Id::from(message),
                None => counts.last().map_or_else(|| Id::from(turn), |(message, _)| message.clone()),
            };
            let number = match counts.iter_mut().rev().find(|(known, _)| *known == message) {
                Some((_, count)) => {
                    *count = count.saturating_add(1);
                    *count
                }
                None => {
                    counts.push((message.clone(), 0));
                    0
                }
            };
            let done = live.is_none_or(|live| live.has_ended(identity.id));
            let mut block = SnapshotBlock {
                message_id: (depth > 0).then(|| message.clone()),
                block_id: block_id(number),
                block_type: identity.kind,
                content: String::new(),
                done,
                tool: None,
                blocks: Vec::new(),
            };
            match part {
                ResponsePart::Markdown(part) => block.content.clone_from(&part.content),
                ResponsePart::Reasoning(part) => block.content.clone_from(&part.content),
                ResponsePart::ToolCall(part) => {
                    block.tool = self.tool(chat, turn, &part.tool_call, done).map(Box::new);
                    block.blocks = self.nested(chat, turn, &part.tool_call, depth);
                }
                _ => {}
            }
            blocks.push((message, block));
        }
        blocks
    }

    fn tool(&self, chat: &str, turn: &str, state: &ToolCallState, done: bool) -> Option<SnapshotTool> {
        let view = CallView::of(state)?;
        let input = view.input.filter(|input| done && !input.is_empty());
        let result = result_of(state);
        let mut tool = SnapshotTool {
            tool_name: view.name.to_owned(),
            tool_id: Id::from(view.tool),
            input: input.map(str::to_owned),
            raw_input: input.and_then(text::object),
            result: None,
            is_error: None,
            truncated: false,
            bytes: None,
            url: None,
        };
        if let Some((text, is_error)) = result {
            let cut = self.projector.config.cut(text, &LongContent::Result { chat, turn, tool: view.tool });
            (tool.result, tool.is_error) = (Some(cut.text), Some(is_error));
            (tool.truncated, tool.bytes, tool.url) = (cut.bytes.is_some(), cut.bytes, cut.url);
        }
        Some(tool)
    }

    /// What the call's sub-agent has said.
    fn nested(&self, chat: &str, turn: &str, state: &ToolCallState, depth: u32) -> Vec<SnapshotBlock> {
        let Some(view) = CallView::of(state).filter(|_| depth < MAX_DEPTH) else { return Vec::new() };
        let named = content(state).and_then(|content| {
            content.iter().find_map(|content| match content {
                ToolResultContent::Subagent(content) => Some(content.resource.as_str()),
                _ => None,
            })
        });
        let derived = || worker_chat(chat, turn, view.tool);
        let uri = named.map_or_else(derived, str::to_owned);
        let Some(child) = (self.find)(&uri) else { return Vec::new() };
        let live = self.projector.chat(&uri).and_then(|chat| chat.turn.as_ref());
        let depth = depth.saturating_add(1);
        let over = child.turns.iter().map(|turn| (turn.id.as_str(), &turn.response_parts));
        let active = child.active_turn.iter().map(|turn| (turn.id.as_str(), &turn.response_parts));
        let mut blocks = Vec::new();
        for (turn, parts) in over.chain(active) {
            let live = live.filter(|live| *live.id == *turn);
            blocks.extend(self.blocks(&uri, turn, parts, live, depth).into_iter().map(|(_, block)| block));
        }
        blocks
    }

    /// Tells a message: in one event if it fits, else as an empty one and all that fills it.
    fn message(&self, message: Id, blocks: Vec<SnapshotBlock>, has_ended: bool, out: &mut EntryEvents<'_>) {
        if weight(&blocks) <= self.projector.config.max_text() {
            out.push(Body::MessageSnapshot { message_id: message.clone(), blocks });
        } else {
            out.push(Body::MessageSnapshot { message_id: message.clone(), blocks: Vec::new() });
            for block in blocks {
                self.block(&message, block, out);
            }
        }
        if has_ended {
            out.push(Body::MessageEnd { message_id: message });
        }
    }

    fn block(&self, message: &Id, block: SnapshotBlock, out: &mut EntryEvents<'_>) {
        let config = &self.projector.config;
        let SnapshotBlock { block_id, block_type, content, done, tool, blocks, .. } = block;
        let (tool_name, tool_id) = tool.as_ref().map(|tool| (tool.tool_name.clone(), tool.tool_id.clone())).unzip();
        out.push(Body::BlockStart {
            message_id: message.clone(),
            block_id: block_id.clone(),
            block_type,
            tool_name,
            tool_id,
        });
        if !content.is_empty() {
            chat::deltas(message, &block_id, block_type, content, config, out);
        }
        let Some(tool) = tool else {
            if done {
                out.push(Body::BlockEnd {
                    message_id: message.clone(),
                    block_id,
                    block_type,
                    tool_name: None,
                    tool_id: None,
                    input: None,
                    raw_input: None,
                });
            }
            return;
        };
        if done {
            chat::call_end(message, &block_id, &tool.tool_id, &tool.tool_name, tool.input, config, out);
        }
        self.sub_agent(&tool.tool_id, blocks, out);
        if let Some(result) = tool.result {
            out.push(Body::ToolResult {
                message_id: message.clone(),
                tool_id: tool.tool_id,
                result,
                is_error: tool.is_error.unwrap_or(false),
                truncated: tool.truncated,
                bytes: tool.bytes,
                url: tool.url,
            });
        }
    }

    fn sub_agent(&self, tool: &Id, blocks: Vec<SnapshotBlock>, out: &mut EntryEvents<'_>) {
        let named = blocks.into_iter().filter_map(|mut block| Some((block.message_id.take()?, block))).collect();
        for (message, blocks) in grouped(named) {
            out.push(Body::MessageStart { message_id: message.clone(), parent_tool_id: Some(tool.clone()) });
            for block in blocks {
                self.block(&message, block, out);
            }
            let mut turns = self.projector.workers.values().filter_map(|chat| chat.turn.as_ref());
            if turns.all(|turn| turn.has_message_ended(&message)) {
                out.push(Body::MessageEnd { message_id: message });
            }
        }
    }
}

/// What came of a call as one text, and whether it failed; `None` while it runs.
fn result_of(state: &ToolCallState) -> Option<(String, bool)> {
    result_pieces(state).map(|(pieces, is_error)| (pieces.concat(), is_error))
}

/// The same in pieces that follow each other.
pub(super) fn result_pieces(state: &ToolCallState) -> Option<(Vec<Cow<'_, str>>, bool)> {
    match state {
        ToolCallState::Completed(state) => {
            let pieces = text::result_pieces(state.content.as_ref(), state.error.as_ref(), &state.past_tense_message);
            Some((pieces, !state.success))
        }
        ToolCallState::PendingResultConfirmation(state) => {
            let pieces = text::result_pieces(state.content.as_ref(), state.error.as_ref(), &state.past_tense_message);
            Some((pieces, !state.success))
        }
        ToolCallState::Cancelled(state) => {
            Some((vec![Cow::Owned(text::cancelled(state.reason, state.reason_message.as_ref()))], true))
        }
        _ => None,
    }
}

const fn content(state: &ToolCallState) -> Option<&Vec<ToolResultContent>> {
    match state {
        ToolCallState::Running(state) => state.content.as_ref(),
        ToolCallState::AuthRequired(state) => state.content.as_ref(),
        ToolCallState::PendingResultConfirmation(state) => state.content.as_ref(),
        ToolCallState::Completed(state) => state.content.as_ref(),
        _ => None,
    }
}

/// About how long blocks are in JSON, rather too much than too little.
fn weight(blocks: &[SnapshotBlock]) -> usize {
    const FRAME: usize = 256; // The names of a block's fields, its ids, its kind.
    blocks.iter().fold(0, |sum, block| {
        let tool = block.tool.as_ref().map_or(0, |tool| {
            let input = tool.input.as_deref().map_or(0, text::encoded_len);
            let result = tool.result.as_deref().map_or(0, text::encoded_len);
            let names = tool.tool_name.len().saturating_add(tool.url.as_ref().map_or(0, String::len));
            input.saturating_mul(2).saturating_add(result).saturating_add(names)
        });
        let own = text::encoded_len(&block.content).saturating_add(tool).saturating_add(FRAME);
        sum.saturating_add(own).saturating_add(weight(&block.blocks))
    })
}
