//! What a translator asks others to do.

use std::sync::Arc;

use ahp_types::actions::StateAction;
use breakbulk_lifecycle::{Answer, Id};

use crate::agent::Prompt;

/// Something to be done in the host, in the order in which it came.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Put an action into the log. [`part_of`](crate::agent::part_of) says with which others it may be merged.
    Act {
        /// The channel.
        channel: Arc<str>,
        /// The action.
        action: Box<StateAction>,
    },
    /// Make a chat for a sub-agent, and begin a turn in it.
    Open(SubAgentChat),
    /// Tell the agent.
    Tell(Command),
    /// Keep the token with which the agent can be brought back to the end of this turn.
    Remember {
        /// The token.
        token: String,
        /// The last turn that the agent was told of.
        turn: Id,
    },
}

/// A chat in which a sub-agent works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubAgentChat {
    /// The new chat's URI.
    pub chat: Arc<str>,
    /// The chat whose call began it.
    pub parent: Arc<str>,
    /// That call; `kind: "tool"` is the new chat's origin.
    pub tool: Id,
    /// The turn to begin.
    pub turn: Id,
    /// What kind of agent works there.
    pub name: String,
    /// What it was told, which is the message of the turn.
    pub task: String,
}

/// What an agent is to be told.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Begin a turn.
    Send(Prompt),
    /// Stop a turn.
    Cancel {
        /// The turn.
        turn: Id,
    },
    /// Somebody has answered. The agent may know the call under
    /// [another name](crate::agent::EventStream::given).
    Answer {
        /// The call.
        tool: Id,
        /// The answer.
        answer: Answer,
    },
}

/// What follows from an action that somebody else has put into the log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reaction {
    /// What the agent is to be told.
    pub command: Option<Command>,
    /// What else is to be done.
    pub steps: Vec<Step>,
}
