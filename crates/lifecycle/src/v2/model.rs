//! The client's state, and the reducer that keeps it.
//!
//! An event that was applied changes nothing when it comes again: the model knows the last one by `seq` and `sub`. The
//! server's promises are not trusted either: a message that begins while another is open ends that one, a block that is
//! unknown is created, and what comes late for a finished message is applied to it. A result for a call that nobody knows
//! and the end of a message that nobody knows are ignored.

use std::collections::HashMap;

use serde_json::Value;

use super::wire::{Body, Event, PermissionOption, QueuedPrompt, SessionState, SnapshotBlock, SnapshotTool};
use crate::{BlockType, Id};

/// Follows the events of one session.
#[derive(Debug, Clone)]
pub struct Model {
    session: Id,
    state: MessageState,
    /// The last event that was applied.
    seen: Option<(u64, u32)>,
    /// The last entry of which all events were applied.
    last_seq: Option<u64>,
    /// The seq of the snapshot that the state was built from.
    base: Option<u64>,
    /// The turn that began last.
    turn: Option<Id>,
    /// Messages of sub-agents, and the calls that began them.
    nested: HashMap<Id, Path>,
    /// The last call of each name.
    tools: HashMap<Id, Path>,
}

/// What a client shows of a session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MessageState {
    /// Messages that are whole, in order.
    pub messages: Vec<Message>,
    /// The message that the agent is saying.
    pub current: Option<Message>,
    /// Whether a turn runs.
    pub running: bool,
    /// What the session is doing.
    pub state: SessionState,
    /// Permissions that wait for an answer, in order.
    pub permissions: Vec<Permission>,
    /// Prompts that wait.
    pub queue: Vec<QueuedPrompt>,
    /// The permission mode.
    pub mode: Option<String>,
    /// The working directory.
    pub cwd: Option<String>,
    /// The branch of the working directory.
    pub branch: Option<String>,
    /// Whether the working directory is a worktree.
    pub is_worktree: bool,
    /// Whether there are turns before the first message.
    pub has_earlier: bool,
    /// What has failed since the last prompt.
    pub error: Option<String>,
    /// Whether the session is over.
    pub ended: bool,
}

/// A message, with its blocks in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The message; the turn, for one of a person.
    pub message_id: Id,
    /// Who says it.
    pub author: Author,
    /// The turn that it belongs to, if known.
    pub turn_id: Option<Id>,
    /// Its blocks.
    pub blocks: Vec<Block>,
}

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// A person.
    User,
    /// The agent.
    Agent,
}

/// A block of a message.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The message: another one than the one that holds the block, if a sub-agent says it.
    pub message_id: Id,
    /// The block.
    pub block_id: Id,
    /// What it holds.
    pub block_type: BlockType,
    /// What it holds so far.
    pub content: String,
    /// Whether it is whole.
    pub done: bool,
    /// The call, for a block of that kind.
    pub tool: Option<Box<Tool>>,
    /// What the call's sub-agent says, in order.
    pub blocks: Vec<Self>,
}

/// A call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tool {
    /// The tool.
    pub tool_name: String,
    /// The call.
    pub tool_id: Option<Id>,
    /// The whole input, as JSON text.
    pub input: Option<String>,
    /// What came of it, once it has ended.
    pub outcome: Option<ToolOutcome>,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutcome {
    /// What it produced, or why it failed; cut if `bytes` says so.
    pub result: String,
    /// Whether it failed.
    pub is_error: bool,
    /// How long the whole result is, if it is cut.
    pub bytes: Option<u64>,
    /// Where the whole result is, if it is cut.
    pub url: Option<String>,
}

/// A permission that waits for an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Permission {
    /// The permission.
    pub perm_id: Id,
    /// The call.
    pub tool_id: Id,
    /// The tool.
    pub tool_name: String,
    /// The call's input.
    pub tool_input: Value,
    /// A short title.
    pub title: Option<String>,
    /// What will happen.
    pub description: Option<String>,
    /// When nobody may answer any more, in milliseconds since 1970.
    pub expires_at: u64,
    /// Answers to choose from.
    pub options: Vec<PermissionOption>,
}

/// Where a block is: the message by its place, the current one being the last; then the blocks that hold each other.
#[derive(Debug, Clone)]
struct Path {
    message: usize,
    blocks: Vec<usize>,
}

impl Model {
    /// Nothing is known yet of this session.
    pub fn new(session: impl Into<Id>) -> Self {
        Self {
            session: session.into(),
            state: MessageState::default(),
            seen: None,
            last_seq: None,
            base: None,
            turn: None,
            nested: HashMap::new(),
            tools: HashMap::new(),
        }
    }

    /// What there is to show.
    #[must_use]
    pub const fn state(&self) -> &MessageState {
        &self.state
    }

    /// What to say as `lastSeq` when coming back; none if a snapshot is needed.
    #[must_use]
    pub const fn last_seq(&self) -> Option<u64> {
        self.last_seq
    }

    /// Takes an event. Says whether it is new: of this session, and after all that came before.
    pub fn apply(&mut self, event: &Event) -> bool {
        if event.session_id != self.session {
            return false;
        }
        let is_snapshot = matches!(event.body, Body::SessionStart { snapshot: true, .. });
        if is_snapshot && self.base != Some(event.seq) {
            *self = Self { base: Some(event.seq), ..Self::new(self.session.clone()) };
        } else if self.seen.is_some_and(|seen| (event.seq, event.sub) <= seen) {
            return false;
        }
        self.seen = Some((event.seq, event.sub));
        self.reduce(&event.body);
        if !event.more {
            self.last_seq = Some(event.seq);
        }
        true
    }

    fn reduce(&mut self, body: &Body) {
        match body {
            Body::BlockDelta { message_id, block_id, block_type, delta } => {
                self.edit(message_id, block_id, *block_type, |block| block.content.push_str(delta));
            }
            Body::BlockStart { message_id, block_id, block_type, tool_name, tool_id } => {
                self.edit(message_id, block_id, *block_type, |block| {
                    block.name_tool(tool_name.as_deref(), tool_id.as_ref());
                });
                self.note_tool(message_id, block_id, tool_id.as_ref());
            }
            Body::BlockEnd { message_id, block_id, block_type, tool_name, tool_id, input, .. } => {
                self.edit(message_id, block_id, *block_type, |block| {
                    block.name_tool(tool_name.as_deref(), tool_id.as_ref());
                    block.end(input.as_deref());
                });
                self.note_tool(message_id, block_id, tool_id.as_ref());
            }
            Body::MessageStart { message_id, parent_tool_id } => {
                self.message_start(message_id, parent_tool_id.as_ref());
            }
            Body::MessageEnd { message_id } => self.message_end(message_id),
            Body::MessageSnapshot { message_id, blocks } => self.message_snapshot(message_id, blocks),
            Body::ToolResult { message_id, tool_id, result, is_error, bytes, url, .. } => {
                let outcome =
                    ToolOutcome { result: result.clone(), is_error: *is_error, bytes: *bytes, url: url.clone() };
                self.tool_result(message_id, tool_id, outcome);
            }
            Body::UserMessage { turn_id, text, .. } => self.user_message(turn_id, text),
            body => self.reduce_session(body),
        }
    }

    fn reduce_session(&mut self, body: &Body) {
        let state = &mut self.state;
        match body {
            Body::SessionStart { branch, cwd, worktree, mode, has_earlier, .. } => {
                (state.branch, state.cwd) = (branch.clone(), Some(cwd.clone()));
                (state.is_worktree, state.mode) = (*worktree, mode.clone());
                (state.has_earlier, state.ended) = (*has_earlier, false);
            }
            Body::SessionId {} => state.ended = false,
            Body::PermissionRequest {
                perm_id,
                tool_name,
                tool_input,
                title,
                description,
                tool_id,
                expires_at,
                options,
                ..
            } => {
                let permission = Permission {
                    perm_id: perm_id.clone(),
                    tool_id: tool_id.clone(),
                    tool_name: tool_name.clone(),
                    tool_input: tool_input.clone(),
                    title: title.clone(),
                    description: description.clone(),
                    expires_at: *expires_at,
                    options: options.clone(),
                };
                match state.permissions.iter_mut().find(|known| known.perm_id == *perm_id) {
                    Some(known) => *known = permission,
                    None => state.permissions.push(permission),
                }
            }
            Body::PermissionResolved { perm_id, .. } | Body::PermissionTimeout { perm_id } => {
                state.permissions.retain(|known| known.perm_id != *perm_id);
            }
            Body::ModeChanged { mode } => state.mode = Some(mode.clone()),
            Body::QueueChanged { queue, .. } => state.queue.clone_from(queue),
            Body::SessionState { state: now } => {
                (state.state, state.running) = (*now, *now != SessionState::Idle);
            }
            Body::TurnEnd { .. } => {
                (state.state, state.running) = (SessionState::Idle, false);
                self.finish();
            }
            Body::Error { error, .. } => state.error = Some(error.clone()),
            Body::Truncated { turn_id } => self.truncate(turn_id.as_ref()),
            Body::SessionEnd {} => {
                (state.state, state.running, state.ended) = (SessionState::Idle, false, true);
                state.permissions.clear();
                state.queue.clear();
                self.finish();
            }
            // Those above, and what changes nothing here.
            _ => {}
        }
    }

    fn message_start(&mut self, message: &Id, parent: Option<&Id>) {
        if let Some(path) = parent.and_then(|parent| self.tools.get(parent)) {
            self.nested.insert(message.clone(), path.clone());
            return;
        }
        if self.state.current.as_ref().is_none_or(|current| current.message_id != *message) {
            self.begin(message);
        }
    }

    /// Begins a message of the agent. One that is open is ended: somebody forgot to.
    fn begin(&mut self, message: &Id) {
        self.finish();
        let (message_id, turn_id) = (message.clone(), self.turn.clone());
        self.state.current = Some(Message { message_id, author: Author::Agent, turn_id, blocks: Vec::new() });
    }

    fn message_end(&mut self, message: &Id) {
        if self.state.current.as_ref().is_some_and(|current| current.message_id == *message) {
            self.finish();
        } else if let Some(blocks) = self.blocks(message) {
            blocks.iter_mut().filter(|block| block.message_id == *message).for_each(|block| block.end(None));
        }
    }

    /// Ends the current message, if there is one.
    fn finish(&mut self) {
        if let Some(mut message) = self.state.current.take() {
            message.blocks.iter_mut().filter(|block| !block.done).for_each(|block| block.end(None));
            self.state.messages.push(message);
        }
    }

    fn message_snapshot(&mut self, message: &Id, blocks: &[SnapshotBlock]) {
        let is_known = self.state.place(message).is_some();
        if !is_known {
            self.begin(message);
        }
        let Some(place) = self.state.place(message) else { return };
        self.nested.retain(|_, path| path.message != place);
        self.tools.retain(|_, path| path.message != place);
        let blocks: Vec<Block> = blocks.iter().map(|block| Block::of(block, message)).collect();
        let mut path = Path { message: place, blocks: Vec::new() };
        self.note_all(message, &blocks, &mut path);
        if let Some(message) = self.state.message(place) {
            message.blocks = blocks;
        }
    }

    /// Notes where calls and messages of sub-agents are.
    fn note_all(&mut self, message: &Id, blocks: &[Block], path: &mut Path) {
        for (at, block) in blocks.iter().enumerate() {
            if block.message_id != *message {
                self.nested.insert(block.message_id.clone(), path.clone());
            }
            path.blocks.push(at);
            if let Some(tool) = block.tool.as_ref().and_then(|tool| tool.tool_id.clone()) {
                self.tools.insert(tool, path.clone());
            }
            self.note_all(message, &block.blocks, path);
            path.blocks.pop();
        }
    }

    fn note_tool(&mut self, message: &Id, block: &Id, tool: Option<&Id>) {
        let Some(tool) = tool else { return };
        let Some(mut path) = self.nested.get(message).cloned().or_else(|| {
            let message = self.state.place(message)?;
            Some(Path { message, blocks: Vec::new() })
        }) else {
            return;
        };
        let is_it = |known: &Block| known.block_id == *block && known.message_id == *message;
        if let Some(at) = self.blocks(message).and_then(|blocks| blocks.iter().rposition(is_it)) {
            path.blocks.push(at);
            self.tools.insert(tool.clone(), path);
        }
    }

    fn tool_result(&mut self, message: &Id, tool: &Id, outcome: ToolOutcome) {
        let is_it = |block: &&mut Block| block.tool.as_ref().is_some_and(|known| known.tool_id.as_ref() == Some(tool));
        let found = self.blocks(message).and_then(|blocks| blocks.iter_mut().rev().find(is_it));
        if let Some(call) = found.and_then(|block| block.tool.as_mut()) {
            call.outcome = Some(outcome);
            return;
        }
        let Some(path) = self.tools.get(tool).cloned() else { return };
        if let Some(call) = self.state.block(&path).and_then(|block| block.tool.as_mut()) {
            call.outcome = Some(outcome);
        }
    }

    fn user_message(&mut self, turn: &Id, text: &str) {
        self.finish();
        self.turn = Some(turn.clone());
        self.state.error = None;
        let said =
            Block { content: text.to_owned(), done: true, ..Block::new(turn.clone(), Id::from("b0"), BlockType::Text) };
        self.state.messages.push(Message {
            message_id: turn.clone(),
            author: Author::User,
            turn_id: Some(turn.clone()),
            blocks: vec![said],
        });
    }

    fn truncate(&mut self, turn: Option<&Id>) {
        let left = match turn {
            None => 0,
            Some(turn) => match self.state.messages.iter().rposition(|said| said.turn_id.as_ref() == Some(turn)) {
                Some(last) => last.saturating_add(1),
                None if self.state.has_earlier => 0,
                None => return,
            },
        };
        self.state.current = None;
        self.state.messages.truncate(left);
        self.nested.retain(|_, path| path.message < left);
        self.tools.retain(|_, path| path.message < left);
        (self.state.state, self.state.running) = (SessionState::Idle, false);
    }

    /// Changes a block, which is created if it is unknown; and so is its message.
    fn edit(&mut self, message: &Id, block: &Id, kind: BlockType, change: impl FnOnce(&mut Block)) {
        if self.blocks(message).is_none() {
            self.begin(message);
        }
        let Some(blocks) = self.blocks(message) else { return };
        let is_it = |known: &Block| known.block_id == *block && known.message_id == *message;
        let at = blocks.iter().rposition(is_it).unwrap_or_else(|| {
            blocks.push(Block::new(message.clone(), block.clone(), kind));
            blocks.len().saturating_sub(1)
        });
        if let Some(block) = blocks.get_mut(at) {
            change(block);
        }
    }

    /// The blocks of a message; for one of a sub-agent, those of its call.
    fn blocks(&mut self, message: &Id) -> Option<&mut Vec<Block>> {
        let Self { state, nested, .. } = self;
        // The current message first: nearly all events are for it.
        if let Some(path) = nested.get(message).filter(|_| !state.is_current(message)) {
            return state.block(path).map(|block| &mut block.blocks);
        }
        let place = state.place(message)?;
        state.message(place).map(|message| &mut message.blocks)
    }
}

impl MessageState {
    /// The permission to ask the user about first.
    #[must_use]
    pub fn permission(&self) -> Option<&Permission> {
        self.permissions.first()
    }

    fn is_current(&self, message: &Id) -> bool {
        self.current.as_ref().is_some_and(|current| current.message_id == *message)
    }

    /// The place of a message of the agent itself: the last of that name.
    fn place(&self, message: &Id) -> Option<usize> {
        if self.is_current(message) {
            return Some(self.messages.len());
        }
        self.messages.iter().rposition(|said| said.message_id == *message && said.author == Author::Agent)
    }

    fn message(&mut self, place: usize) -> Option<&mut Message> {
        if place == self.messages.len() { self.current.as_mut() } else { self.messages.get_mut(place) }
    }

    fn block(&mut self, path: &Path) -> Option<&mut Block> {
        let (first, rest) = path.blocks.split_first()?;
        let mut block = self.message(path.message)?.blocks.get_mut(*first)?;
        for at in rest {
            block = block.blocks.get_mut(*at)?;
        }
        Some(block)
    }
}

impl Block {
    const fn new(message_id: Id, block_id: Id, block_type: BlockType) -> Self {
        Self { message_id, block_id, block_type, content: String::new(), done: false, tool: None, blocks: Vec::new() }
    }

    fn of(block: &SnapshotBlock, holder: &Id) -> Self {
        Self {
            message_id: block.message_id.as_ref().unwrap_or(holder).clone(),
            block_id: block.block_id.clone(),
            block_type: block.block_type,
            content: block.content.clone(),
            done: block.done,
            tool: block.tool.as_deref().map(|tool| Box::new(Tool::of(tool))),
            blocks: block.blocks.iter().map(|block| Self::of(block, holder)).collect(),
        }
    }

    fn name_tool(&mut self, name: Option<&str>, tool: Option<&Id>) {
        if name.is_none() && tool.is_none() {
            return;
        }
        let known = self.tool.get_or_insert_default();
        if let Some(name) = name {
            name.clone_into(&mut known.tool_name);
        }
        known.tool_id = tool.cloned().or(known.tool_id.take());
    }

    /// The input of a call is what its end says, or else what its deltas have said.
    fn end(&mut self, input: Option<&str>) {
        self.done = true;
        if self.block_type != BlockType::ToolInput {
            return;
        }
        let said = std::mem::take(&mut self.content);
        let input = input.map(str::to_owned).or_else(|| Some(said).filter(|said| !said.is_empty()));
        if input.is_some() {
            self.tool.get_or_insert_default().input = input;
        }
    }
}

impl Tool {
    fn of(tool: &SnapshotTool) -> Self {
        let outcome = tool.result.as_ref().map(|result| ToolOutcome {
            result: result.clone(),
            is_error: tool.is_error.unwrap_or(false),
            bytes: tool.bytes,
            url: tool.url.clone(),
        });
        Self {
            tool_name: tool.tool_name.clone(),
            tool_id: Some(tool.tool_id.clone()),
            input: tool.input.clone(),
            outcome,
        }
    }
}
