//! Agents: what one is to a host.
//!
//! An [`Agent`] is a program that can hold conversations; each chat has a [`Conversation`] of its own. What a conversation
//! is told comes as calls, what it says comes out of an [`EventStream`], which makes it well formed whatever the agent does
//! (see [`breakbulk_lifecycle`]). A `Translator` stands between the two and the chat's channel: it turns logged actions
//! of clients into what the agent is told, and events into actions.
//!
//! ```text
//!  client ─▶ gate ─▶ LOG ─▶ Translator::client ─▶ Command ─▶ Conversation
//!                     ▲                                          │ EventSender (waits when the queue is full)
//!                     └──── Step ◀─ Translator::event ◀─ EventStream (Writer)
//! ```
//!
//! One task per chat should do both, in the order of the log: then the translator's view of each call is that of the log.
//!
//! # What an agent knows
//!
//! **An agent knows exactly the turns that its chat shows**, no fewer and no more. It is given them when a conversation
//! begins ([`Start::history`]), and each later one as it is told of it ([`Conversation::send`]). Whenever the chat shows
//! something else, the conversation is ended, and the next turn begins another one, with the turns that are there by then:
//! after turns were taken back, after one that the agent was never told of, after a crash of the agent or of the host. A
//! fork begins with the turns that were copied into it. To an adapter all of these are one case, a start with a history.
//!
//! **A side chat's agent also knows what the chat is about** ([`Start::side_chat`]): the turns of the other chat up to the one
//! that it was opened from, as they were at that moment, with what there was of the answer if that turn was still going
//! on; and the text that was selected.
//!
//! An agent may have a quicker way back than to be told all of it: it gives a token in each turn
//! ([`Event::Resumable`](breakbulk_lifecycle::Event::Resumable)), and is given it ([`Start::token`]) if that turn is still
//! the last one.

pub(crate) mod actions;
pub(crate) mod clock;
pub mod demo;
mod events;
pub(crate) mod merge;

use std::collections::HashMap;
use std::path::PathBuf;

use ahp_types::commands::SessionConfigValueItem;
use ahp_types::common::JsonObject;
use ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use ahp_types::state::{AgentInfo, Message, SessionConfigSchema, SideChatSelection};
use breakbulk_lifecycle::{Answer as Verdict, Id};

pub(crate) use self::actions::{Command, Reaction, Step, SubAgentChat, Translator};
pub(crate) use self::clock::{Clock, RealClock};
pub use self::events::{EventSender, EventStream, EventsConfig, NoListener, events};
pub use self::merge::merge_actions;
pub(crate) use self::merge::part_of;
use crate::log::BoxFuture;
pub use crate::state::History;

/// A program that can hold conversations.
pub trait Agent: Send + Sync + 'static {
    /// The provider id, by which a client asks for this agent.
    fn name(&self) -> &str;

    /// What clients are told about it in the root state.
    fn info(&self) -> AgentInfo;

    /// Begins a conversation, with what the agent is to know.
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>>;

    /// Whether it could begin a conversation now. Quick, and without effect: a health check calls it.
    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>>;

    /// What can be configured for a session with it, given what was chosen so far. By default nothing.
    fn options(&self, _chosen: &JsonObject) -> SessionConfigSchema {
        SessionConfigSchema { r#type: "object".to_owned(), properties: HashMap::new(), required: None }
    }

    /// Values of an option that has too many to list, for what somebody has typed. By default none.
    fn complete<'a>(&'a self, _option: &'a str, _typed: &'a str) -> BoxFuture<'a, Vec<SessionConfigValueItem>> {
        Box::pin(async { Vec::new() })
    }

    /// Takes a token for one of the protected resources that [`info`](Self::info) names; without one, what it had is
    /// revoked. By default there are none to take one for.
    fn authenticate<'a>(
        &'a self,
        _resource: &'a str,
        _token: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), AgentError>> {
        Box::pin(async { Err(AgentError::Unavailable("it takes no tokens".to_owned())) })
    }
}

/// How a conversation begins.
#[derive(Debug, Clone)]
pub struct Start {
    /// The session's URI.
    pub session: String,
    /// The chat's URI.
    pub chat: String,
    /// Where the agent may work: absolute directories, the first of which is its own.
    pub directories: Vec<PathBuf>,
    /// What was configured for the session.
    pub config: JsonObject,
    /// What the agent knows: the turns of the chat before the one that it is told of next, also those that failed or were
    /// cancelled. They are read page by page, within as much memory as the adapter wants to spend.
    pub history: History,
    /// The token that the agent gave in the last of these turns. It is another way to the same memory: whoever cannot use it
    /// takes the history. Without it, nothing is to be remembered but that.
    pub token: Option<String>,
    /// For a side chat, and only for one: what it is about. It is no part of this conversation.
    pub side_chat: Option<SideChatContext>,
}

/// What a side chat is about. It is the same whenever a conversation begins there: nothing that happens to the other chat
/// after the side chat was made adds to it, changes it or takes anything away.
#[derive(Debug, Clone)]
pub struct SideChatContext {
    /// The turns of the chat that it was opened from, up to the one that it is about. That one may have been
    /// [unfinished](History::is_unfinished).
    pub history: History,
    /// What the user had selected there.
    pub selection: Option<SideChatSelection>,
}

/// A conversation that has begun, and what it says.
pub struct Started {
    /// What it is told.
    pub conversation: Box<dyn Conversation>,
    /// What it says. It ends when the agent does.
    pub events: EventStream,
}

/// A conversation with an agent. Dropping it ends the agent's part at once, with all that it runs.
///
/// Calls answer when the agent has taken them, not when it has done them: that is said by events. None of them waits for
/// events to be taken.
pub trait Conversation: Send + Sync + 'static {
    /// Begins a turn. From now on the agent knows it, however it ends.
    fn send(&self, prompt: Prompt) -> BoxFuture<'_, Result<(), AgentError>>;

    /// Stops a turn. The agent still says how it ended. A turn that is over is nothing to stop.
    fn cancel(&self, turn: Id) -> BoxFuture<'_, Result<(), AgentError>>;

    /// Answers what was asked about a call.
    fn answer(&self, tool: Id, answer: Verdict) -> BoxFuture<'_, Result<(), AgentError>>;

    /// Ends the conversation: stops what runs, and answers when nothing is left.
    fn dispose(&self) -> BoxFuture<'_, ()>;
}

/// What an agent is asked to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The turn that it begins.
    pub turn: Id,
    /// The text, with attachments and the model to use.
    pub message: Message,
}

/// Why an agent did not do as told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// It cannot be started, or not be reached.
    #[error("the agent is not available: {0}")]
    Unavailable(String),
    /// A directory that it should work in is none.
    #[error("the agent cannot work in {}: {reason}", .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It works on a turn.
    #[error("the agent is working on a turn")]
    Busy,
    /// It asks nothing about this call.
    #[error("nothing is asked about this call")]
    NotAsked,
    /// It has ended.
    #[error("the agent has ended")]
    Ended,
}

impl AgentError {
    /// The AHP error code that says the same.
    #[must_use]
    pub const fn code(&self) -> i32 {
        match self {
            Self::Busy => ahp_error_codes::TURN_IN_PROGRESS,
            Self::NotAsked => ahp_error_codes::CONFLICT,
            Self::Directory { .. } => ahp_error_codes::NOT_FOUND,
            Self::Unavailable(_) | Self::Ended => json_rpc_error_codes::INTERNAL_ERROR,
        }
    }
}
