//! The words of the grammar.

use crate::{Answer, Ask, Call, Content, Ending, Id};

/// One thing that an agent does.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The agent begins to work on a prompt.
    TurnStarted {
        /// The turn.
        turn: Id,
    },
    /// A message of the agent begins.
    MessageStarted {
        /// The message.
        message: Id,
        /// The call whose sub-agent speaks; none for the agent itself.
        agent: Option<Id>,
    },
    /// A piece of a message begins.
    BlockStarted {
        /// The message that it belongs to.
        message: Id,
        /// The block.
        block: Id,
        /// What it holds.
        kind: BlockKind,
    },
    /// More of a block. Says what it is, so that it can be understood alone.
    BlockDelta {
        /// The message that it belongs to.
        message: Id,
        /// The block.
        block: Id,
        /// What the block holds.
        kind: BlockType,
        /// Appended to what the block holds.
        text: String,
    },
    /// A block is whole.
    BlockEnded {
        /// The message that it belongs to.
        message: Id,
        /// The block.
        block: Id,
        /// The whole input of a call, which stands for all its deltas; none for other blocks.
        input: Option<String>,
    },
    /// A message is whole. Its calls may go on.
    MessageEnded {
        /// The message.
        message: Id,
    },
    /// The agent wants to be allowed to run a call, or to go on with it.
    ToolAsked {
        /// The call.
        tool: Id,
        /// What somebody is asked. Asking again replaces what was asked before.
        ask: Ask,
    },
    /// The last ask of a call is answered.
    ToolAnswered {
        /// The call.
        tool: Id,
        /// The answer.
        answer: Answer,
    },
    /// A call runs.
    ToolStarted {
        /// The call.
        tool: Id,
    },
    /// What a running call has produced so far.
    ToolOutput {
        /// The call.
        tool: Id,
        /// Replaces what came before.
        content: Vec<Content>,
    },
    /// A call is over.
    ToolEnded {
        /// The call.
        tool: Id,
        /// How it ended.
        ending: Ending,
    },
    /// A running call has set another agent to work.
    AgentStarted {
        /// The call. It names the sub-agent from now on.
        tool: Id,
        /// What kind of agent it is.
        name: String,
        /// What it was told to do.
        task: String,
    },
    /// A sub-agent has ended, and everything that it began.
    AgentEnded {
        /// The call that began it.
        tool: Id,
        /// How it ended.
        outcome: Outcome,
    },
    /// What the turn has cost so far.
    Usage(Usage),
    /// Something that the agent's program wants known, in the agent's stream but not in its words.
    Notice {
        /// The text, for a person.
        text: String,
    },
    /// The agent can be brought back to the end of this turn with this token, also after its process has ended. Outside of a
    /// turn, to the end of the last one.
    Resumable {
        /// Opaque to all but the agent.
        token: String,
    },
    /// The agent works in another mode now, and nobody here has asked for that. May come outside of a turn.
    ModeChanged {
        /// The agent's own name for the mode.
        mode: String,
    },
    /// The agent is done with a prompt.
    TurnEnded {
        /// The turn.
        turn: Id,
        /// How it ended.
        outcome: Outcome,
    },
}

impl Event {
    /// More text of a block.
    pub fn text(message: impl Into<Id>, block: impl Into<Id>, text: impl Into<String>) -> Self {
        Self::BlockDelta { message: message.into(), block: block.into(), kind: BlockType::Text, text: text.into() }
    }

    /// More thinking of a block.
    pub fn thinking(message: impl Into<Id>, block: impl Into<Id>, text: impl Into<String>) -> Self {
        Self::BlockDelta { message: message.into(), block: block.into(), kind: BlockType::Thinking, text: text.into() }
    }

    /// About how many bytes it holds: what a queue counts.
    #[must_use]
    pub fn weight(&self) -> usize {
        let held = match self {
            Self::BlockDelta { text, .. } | Self::Notice { text } => text.len(),
            Self::BlockEnded { input, .. } => input.as_ref().map_or(0, String::len),
            Self::BlockStarted { kind: BlockKind::ToolInput(call), .. } => call.weight(),
            Self::ToolAsked { ask, .. } => ask.weight(),
            Self::ToolAnswered { answer, .. } => answer.weight(),
            Self::ToolOutput { content, .. } => content.iter().map(Content::weight).sum(),
            Self::ToolEnded { ending, .. } => ending.weight(),
            Self::AgentStarted { name, task, .. } => name.len().saturating_add(task.len()),
            Self::Resumable { token: text } | Self::ModeChanged { mode: text } => text.len(),
            Self::TurnEnded { outcome: Outcome::Failed(failure), .. } => failure.message.len(),
            _ => 0,
        };
        size_of::<Self>().saturating_add(held)
    }
}

/// What a block holds, as it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockKind {
    /// Text for a person.
    Text,
    /// The agent's thinking, readable.
    Thinking,
    /// The agent's thinking, unreadable.
    Redacted,
    /// The input of a call, as JSON text.
    ToolInput(Call),
}

impl BlockKind {
    /// The same, without the call.
    #[must_use]
    pub const fn kind(&self) -> BlockType {
        match self {
            Self::Text => BlockType::Text,
            Self::Thinking => BlockType::Thinking,
            Self::Redacted => BlockType::Redacted,
            Self::ToolInput(_) => BlockType::ToolInput,
        }
    }
}

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// Text for a person.
    Text,
    /// The agent's thinking, readable.
    Thinking,
    /// The agent's thinking, unreadable.
    Redacted,
    /// The input of a call, as JSON text.
    ToolInput,
}

/// Tokens and cost of a turn, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: Option<u64>,
    /// Tokens written.
    pub output_tokens: Option<u64>,
    /// Tokens read from a cache.
    pub cache_read_tokens: Option<u64>,
    /// The model.
    pub model: Option<String>,
    /// What it cost in millionths of a US dollar, as the agent's program reckons.
    pub cost_micros: Option<u64>,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The agent has finished.
    Complete,
    /// Somebody has stopped it.
    Cancelled,
    /// It could not go on.
    Failed(Failure),
}

/// Why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// A short name for programs.
    pub kind: String,
    /// A text for people.
    pub message: String,
}

impl Failure {
    /// A failure.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into() }
    }
}
