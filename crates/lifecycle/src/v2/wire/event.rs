//! Events of a session.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::VERSION;
use super::command::Decision;
use super::names::{block_type, is_false, is_zero};
use crate::{BlockType, Id};

/// An event of a session, with what every such event says.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The server's time in milliseconds since 1970. It never goes back within a session.
    pub ts: u64,
    /// The seq of the log entry that the event is made from.
    pub seq: u64,
    /// The event's place among those of the same entry.
    pub sub: u32,
    /// Whether more events of the same entry follow. A client's `lastSeq` is the seq of an event without this.
    pub more: bool,
    /// The session.
    pub session_id: Id,
    /// What happened.
    pub body: Body,
}

/// What happened in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Body {
    /// A session begins; with `snapshot`, a client is rebuilt from nothing, and forgets what it had.
    SessionStart {
        /// The agent's provider id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
        /// The branch of the working directory, if it is known.
        branch: Option<String>,
        /// The working directory.
        cwd: String,
        /// Whether the working directory is a worktree.
        worktree: bool,
        /// The title, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        /// The permission mode.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
        /// Whether the events that follow rebuild the client from nothing.
        #[serde(default, skip_serializing_if = "is_false")]
        snapshot: bool,
        /// Whether there are turns before those that follow.
        #[serde(default, skip_serializing_if = "is_false")]
        has_earlier: bool,
    },
    /// The session is ready. Its id is the envelope's.
    SessionId {},
    /// A person has said something, and a turn begins with it.
    UserMessage {
        /// The turn that begins.
        turn_id: Id,
        /// What was said.
        text: String,
        /// The id that the client gave to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_msg_id: Option<String>,
        /// What came with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<Attachment>,
        /// Whether `text` is cut.
        #[serde(default, skip_serializing_if = "is_false")]
        truncated: bool,
        /// How long the whole text is, if it is cut.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
        /// Where the whole text is, if it is cut.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
    },
    /// A message of the agent begins.
    MessageStart {
        /// The message.
        message_id: Id,
        /// The call whose sub-agent speaks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent_tool_id: Option<Id>,
    },
    /// A block of a message begins.
    BlockStart {
        /// The message.
        message_id: Id,
        /// The block; unique within its message.
        block_id: Id,
        /// What it holds.
        #[serde(with = "block_type")]
        block_type: BlockType,
        /// The tool, for a call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_name: Option<String>,
        /// The call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_id: Option<Id>,
    },
    /// More of a block.
    BlockDelta {
        /// The message.
        message_id: Id,
        /// The block.
        block_id: Id,
        /// What it holds.
        #[serde(with = "block_type")]
        block_type: BlockType,
        /// Appended to what the block holds.
        delta: String,
    },
    /// A block is whole. For a call, told again when its input was changed.
    BlockEnd {
        /// The message.
        message_id: Id,
        /// The block.
        block_id: Id,
        /// What it holds.
        #[serde(with = "block_type")]
        block_type: BlockType,
        /// The tool, for a call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_name: Option<String>,
        /// The call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_id: Option<Id>,
        /// The whole input of a call, as JSON text. Without it, the input is what the block's deltas hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<String>,
        /// The same, parsed, if it is an object.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        raw_input: Option<Value>,
    },
    /// A call has ended.
    ToolResult {
        /// The message that made the call.
        message_id: Id,
        /// The call.
        tool_id: Id,
        /// What it produced, or why it failed.
        result: String,
        /// Whether it failed, was denied or was stopped.
        is_error: bool,
        /// Whether `result` is cut.
        #[serde(default, skip_serializing_if = "is_false")]
        truncated: bool,
        /// How long the whole result is, if it is cut.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
        /// Where the whole result is, if it is cut.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
    },
    /// A message is whole. Its calls may go on.
    MessageEnd {
        /// The message.
        message_id: Id,
    },
    /// All of a message so far. It replaces what a client has of it.
    MessageSnapshot {
        /// The message.
        message_id: Id,
        /// Its blocks, in order.
        blocks: Vec<SnapshotBlock>,
    },
    /// The agent wants to be allowed to run a call.
    PermissionRequest {
        /// By which the answer names it.
        perm_id: Id,
        /// The tool.
        tool_name: String,
        /// The call's input: an object where it is one, else its text.
        tool_input: Value,
        /// A short title.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        /// What will happen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// The tool's name, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        display_name: Option<String>,
        /// How risky it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tier: Option<String>,
        /// The call.
        tool_id: Id,
        /// When nobody may answer any more, in milliseconds since 1970.
        expires_at: u64,
        /// Answers to choose from; none means plainly yes or no.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        options: Vec<PermissionOption>,
        /// Whether `toolInput` is cut; it is text then.
        #[serde(default, skip_serializing_if = "is_false")]
        truncated: bool,
    },
    /// Somebody has answered, or the question is moot.
    PermissionResolved {
        /// The permission.
        perm_id: Id,
        /// The answer.
        decision: Decision,
    },
    /// Nobody has answered in time. The call is denied.
    PermissionTimeout {
        /// The permission.
        perm_id: Id,
    },
    /// The permission mode has changed.
    ModeChanged {
        /// The mode.
        mode: String,
    },
    /// The prompts that wait have changed.
    QueueChanged {
        /// The prompts that wait now, in order.
        queue: Vec<QueuedPrompt>,
        /// The prompts that were taken out and will not run.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        returned: Vec<QueuedPrompt>,
    },
    /// What the session is doing now.
    SessionState {
        /// What it is doing.
        state: SessionState,
    },
    /// A turn is over.
    TurnEnd {
        /// The turn.
        turn_id: Id,
        /// How it ended.
        outcome: TurnOutcome,
        /// Why it failed, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// Why it failed, for programs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_type: Option<String>,
        /// What it cost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<TokenUsage>,
    },
    /// Something that the agent's program wants known, which is no part of a message.
    Notice {
        /// The text, for people.
        text: String,
    },
    /// Turns were taken back. Everything after this turn is gone; without one, everything.
    Truncated {
        /// The last turn that is left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn_id: Option<Id>,
    },
    /// Something has failed.
    Error {
        /// What, for people.
        error: String,
        /// What, for programs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_type: Option<String>,
    },
    /// The session is over.
    SessionEnd {},
}

/// A block as a snapshot has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotBlock {
    /// The message, where it is not the one that the snapshot is of: a message of a sub-agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<Id>,
    /// The block.
    pub block_id: Id,
    /// What it holds.
    #[serde(with = "block_type")]
    pub block_type: BlockType,
    /// What it holds so far; empty for a call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Whether it is whole.
    pub done: bool,
    /// The call.
    #[serde(flatten)]
    pub tool: Option<Box<SnapshotTool>>,
    /// The blocks of the call's sub-agent, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Self>,
}

/// A call as a snapshot has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotTool {
    /// The tool.
    pub tool_name: String,
    /// The call.
    pub tool_id: Id,
    /// The whole input, as JSON text, once the block is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The same, parsed, if it is an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_input: Option<Value>,
    /// What the call produced, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Whether it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// Whether `result` is cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// How long the whole result is, if it is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Where the whole result is, if it is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Something that came with a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// What it is, for people.
    pub label: String,
    /// Its MIME type, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
}

/// An answer to choose from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    /// The option.
    pub id: String,
    /// What a person reads.
    pub label: String,
    /// What it means.
    pub decision: Decision,
}

/// A prompt that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedPrompt {
    /// The queue's own name for it.
    pub id: String,
    /// What was said.
    pub prompt: String,
    /// The id that the client gave to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// Whether `prompt` is cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Nothing: a prompt begins a turn.
    #[default]
    Idle,
    /// A turn runs: a prompt is queued.
    Running,
    /// A turn waits for an answer.
    RequiresAction,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The agent has finished.
    Complete,
    /// Somebody has stopped it.
    Cancelled,
    /// It could not go on.
    Error,
}

/// The tokens of a turn, as far as they are known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenUsage {
    /// Tokens read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<i64>,
    /// Tokens written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<i64>,
    /// Tokens read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<i64>,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            v: u8,
            #[serde(flatten)]
            body: &'a Body,
            ts: u64,
            seq: u64,
            #[serde(skip_serializing_if = "is_zero")]
            sub: u32,
            #[serde(skip_serializing_if = "is_false")]
            more: bool,
            session_id: &'a Id,
        }
        let Self { ts, seq, sub, more, session_id, body } = self;
        Written { v: VERSION, body, ts: *ts, seq: *seq, sub: *sub, more: *more, session_id }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Read {
            v: u8,
            #[serde(flatten)]
            body: Body,
            ts: u64,
            seq: u64,
            #[serde(default)]
            sub: u32,
            #[serde(default)]
            more: bool,
            session_id: Id,
        }
        let Read { v, body, ts, seq, sub, more, session_id } = Read::deserialize(deserializer)?;
        if v != VERSION {
            return Err(D::Error::custom("v is not 2"));
        }
        Ok(Self { ts, seq, sub, more, session_id, body })
    }
}
