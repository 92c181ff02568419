//! The steps into which the events of an agent are translated: what the host has to do.

use std::sync::Arc;

use ahp_types::actions::StateAction;
use breakbulk_lifecycle::{Answer, Id};

use crate::agent::Prompt;

/// Something that the host has to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Append an action to the log. [`part_of`](crate::agent::part_of) says with which others it may be merged.
    Act {
        /// The channel.
        channel: Arc<str>,
        /// The action.
        action: Box<StateAction>,
    },
    /// Begin a turn in the chat that the agent has begun by itself. If a client has just begun another one there,
    /// [`Translator::not_begun`](super::Translator::not_begun) has to hear of it before the next event.
    Begin {
        /// The turn.
        turn: Id,
    },
    /// Make a chat for a sub-agent, and begin a turn in it.
    Open(SubAgentChat),
    /// Send a command to the agent.
    Tell(Command),
    /// Store the token with which the agent can resume after this turn.
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

/// A command for the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Begin a turn.
    Send(Prompt),
    /// Stop a turn.
    Cancel {
        /// The turn.
        turn: Id,
    },
    /// Pass on an answer about a tool call. The agent may know the call by
    /// [another id](crate::agent::EventStream::given).
    Answer {
        /// The call.
        tool: Id,
        /// The answer.
        answer: Answer,
    },
}

/// What follows from a logged action of a client.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reaction {
    /// The command for the agent.
    pub command: Option<Command>,
    /// What else is to be done.
    pub steps: Vec<Step>,
}
