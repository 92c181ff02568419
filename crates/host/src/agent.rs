//! The interface between a host and its agents.
//!
//! An [`Agent`] is a program that can hold conversations; each chat has a [`Conversation`] of its own. The host calls the
//! conversation, and reads its events from an [`EventStream`], which makes them well formed whatever the agent does (see
//! [`breakbulk_lifecycle`]). A `Translator` connects both to the chat's channel: it turns logged actions of clients into
//! commands for the agent, and events into actions.
//!
//! ```text
//!  client ─▶ gate ─▶ LOG ─▶ Translator::client ─▶ Command ─▶ Conversation
//!                     ▲                                          │ EventSender (waits when the queue is full)
//!                     └──── Step ◀─ Translator::event ◀─ EventStream (Writer)
//! ```
//!
//! One task per chat should do both, in the order of the log, so that the translator sees each tool call as the log does.
//!
//! # What an agent knows
//!
//! **An agent knows exactly the turns that its chat shows.** It gets them when a conversation begins ([`Start::history`]), and
//! each later one with [`Conversation::send`]. Whenever the chat shows something else, the host ends the conversation, and
//! the next turn begins another one with the turns that exist then: after turns were removed, after a turn that the agent was
//! never told of, after a crash of the agent or of the host. A fork begins with the turns that were copied into it. For an
//! adapter all of these are one case: a start with a history.
//!
//! **The agent of a side chat also knows what the side chat is about** ([`Start::side_chat`]): the turns of the other chat up to
//! the one that it was opened from, as they were at that moment, with the answer so far if that turn was still active; and
//! the text that was selected.
//!
//! An agent that can restore a conversation itself gives a token in each turn
//! ([`Event::Resumable`](breakbulk_lifecycle::Event::Resumable)), and gets it back ([`Start::token`]) if that turn is still the
//! last one.

pub mod acp;
pub(crate) mod actions;
pub mod claude;
pub(crate) mod clock;
pub mod demo;
mod directory;
mod events;
mod history;
pub(crate) mod merge;
pub(crate) mod process;
mod program;
mod services;
mod task_conversation;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ahp_types::commands::SessionConfigValueItem;
use ahp_types::common::JsonObject;
use ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use ahp_types::state::{
    AgentInfo, Message, MessageAttachment, SessionConfigPropertySchema, SessionConfigSchema, SideChatSelection,
};
use breakbulk_lifecycle::{Answer as Verdict, Failure, Id};

pub(crate) use self::actions::{Command, Reaction, Step, SubAgentChat, Translator};
pub(crate) use self::clock::{Clock, RealClock};
pub use self::events::{EventPermit, EventSender, EventStream, EventsConfig, NoListener, events};
pub use self::merge::merge_actions;
pub(crate) use self::merge::part_of;
pub use self::process::ProcessLimits;
pub use self::process::program::find_program;
pub use self::program::ProgramConfig;
pub(crate) use self::services::AgentServices;
pub use self::services::{HostServices, ServiceError, TerminalCommand, TerminalExit, TerminalOutput};
use crate::log::BoxFuture;
pub use crate::state::History;

/// The session's option for what an agent may do without asking.
pub(crate) const MODE: &str = "mode";

/// A program that can hold conversations.
pub trait Agent: Send + Sync + 'static {
    /// The provider id, by which a client asks for this agent.
    fn name(&self) -> &str;

    /// Its description in the root state.
    fn info(&self) -> AgentInfo;

    /// Begins a conversation, with what the agent is to know.
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>>;

    /// Whether it could begin a conversation now. Fast and without side effects: health checks call it.
    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>>;

    /// The options of a session with it, given the choices so far. By default none.
    fn options(&self, _chosen: &JsonObject) -> SessionConfigSchema {
        SessionConfigSchema { r#type: "object".to_owned(), properties: HashMap::new(), required: None }
    }

    /// The working directory of sessions that name none. By default the first root.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// The commands that a prompt may begin with, in a session that works in this directory, as far as they are known. By default
    /// none.
    fn commands(&self, _directory: &Path) -> Vec<AgentCommand> {
        Vec::new()
    }

    /// Completions for the value of an option, for what the user has typed. By default none.
    fn complete<'a>(&'a self, _option: &'a str, _typed: &'a str) -> BoxFuture<'a, Vec<SessionConfigValueItem>> {
        Box::pin(async { Vec::new() })
    }

    /// Sets the token for one of the protected resources that [`info`](Self::info) names, or revokes it without one. By default
    /// there are no protected resources.
    fn authenticate<'a>(
        &'a self,
        _resource: &'a str,
        _token: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), AgentError>> {
        Box::pin(async { Err(AgentError::Unavailable("it takes no tokens".to_owned())) })
    }
}

/// A command that a prompt may begin with, after a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentCommand {
    /// Its name, without the slash.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// What may follow it.
    pub argument_hint: Option<String>,
}

/// What marks an attachment that came with the completion of a command: `{"breakbulk":{"command":…}}` in its `_meta`. The text of the
/// message has the command already, so the agent is told nothing more.
pub(crate) fn command_mark(command: &AgentCommand) -> JsonObject {
    let mut ours = JsonObject::from_iter([("command".to_owned(), command.name.clone().into())]);
    let more = [("description", &command.description), ("argumentHint", &command.argument_hint)];
    ours.extend(more.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text.clone()?.into()))));
    JsonObject::from_iter([("breakbulk".to_owned(), ours.into())])
}

/// Whether an attachment only came with the completion of a command.
pub(crate) fn is_command_mark(attachment: &MessageAttachment) -> bool {
    let MessageAttachment::Simple(simple) = attachment else { return false };
    simple.meta.as_ref().and_then(|meta| meta.get("breakbulk")?.get("command")).is_some()
}

/// How a conversation begins.
#[derive(Debug, Clone)]
pub struct Start {
    /// The session's URI.
    pub session: String,
    /// The chat's URI.
    pub chat: String,
    /// The absolute directories in which the agent may work. The first is its working directory.
    pub directories: Vec<PathBuf>,
    /// The options of the session.
    pub config: JsonObject,
    /// What the agent knows: the turns of the chat before the next one, including those that failed or were cancelled. They are
    /// read page by page, so that the adapter decides how much memory they take.
    pub history: History,
    /// The token that the agent gave in the last of these turns. It stands for the same history: an agent that cannot use it
    /// takes the history. Without a token, the agent must remember nothing else.
    pub token: Option<String>,
    /// What the host does for the agent, if the agent wants its host to read files and to run commands.
    pub services: HostServices,
    /// For a side chat only: what it is about. It is no part of this conversation.
    pub side_chat: Option<SideChatContext>,
}

/// What a side chat is about. It never changes: later changes of the other chat do not affect it.
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

/// A conversation with an agent. Dropping it stops the agent's work at once, with everything that it runs.
///
/// Calls resolve when the agent has accepted them; events report when they are done. No call waits until events are read.
pub trait Conversation: Send + Sync + 'static {
    /// Begins a turn. From now on the agent knows this turn, however it ends.
    fn send(&self, prompt: Prompt) -> BoxFuture<'_, Result<(), AgentError>>;

    /// Stops a turn. The agent still reports how it ended. Has no effect on a turn that has ended.
    fn cancel(&self, turn: Id) -> BoxFuture<'_, Result<(), AgentError>>;

    /// Answers a question about a tool call.
    fn answer(&self, tool: Id, answer: Verdict) -> BoxFuture<'_, Result<(), AgentError>>;

    /// Applies the options of the session, which have changed. An agent that can apply them only at the next turn does so then. By
    /// default they have an effect only on the next conversation.
    fn configure(&self, _config: JsonObject) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async { Ok(()) })
    }

    /// Ends the conversation: stops everything that runs, and resolves when nothing is left.
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

/// Why an agent did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// It cannot be started, or not be reached.
    #[error("the agent is not available: {0}")]
    Unavailable(String),
    /// Its program could not be started, for a reason that has a name.
    #[error("{}", .0.message)]
    NotStarted(Failure),
    /// A working directory cannot be used.
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
    /// It requests no permission for this call.
    #[error("no permission for this call is requested now")]
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
            Self::Unavailable(_) | Self::NotStarted(_) | Self::Ended => json_rpc_error_codes::INTERNAL_ERROR,
        }
    }

    /// How the turn fails that the agent has not taken.
    pub(crate) fn failure(&self) -> Failure {
        let kind = match self {
            Self::NotStarted(failure) => return failure.clone(),
            Self::Directory { .. } => "workingDirectory",
            _ => "agentUnavailable",
        };
        Failure::new(kind, self.to_string())
    }
}

/// An option that is a text, and may be changed later.
fn option(title: &str, description: &str) -> SessionConfigPropertySchema {
    SessionConfigPropertySchema {
        r#type: "string".to_owned(),
        title: title.to_owned(),
        description: Some(description.to_owned()),
        default: None,
        r#enum: None,
        enum_labels: None,
        enum_descriptions: None,
        read_only: None,
        items: None,
        min_items: None,
        max_items: None,
        properties: None,
        required: None,
        additional_properties: None,
        enum_dynamic: None,
        session_mutable: Some(true),
    }
}
