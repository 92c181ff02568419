//! Why an action is refused.

use ahp_types::errors::json_rpc_error_codes::INVALID_REQUEST;
use thiserror::Error;

use super::chat::{MAX_QUEUED_BYTES, MAX_QUEUED_MESSAGES};
use crate::error::MethodError;
use crate::state::ChannelKind;

/// Why an action is refused. Its text becomes the `rejectionReason`, which is for people.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Rejection {
    /// No such action is known here.
    #[error("this host does not know the action")]
    Unknown,
    /// Clients do not dispatch this one.
    #[error("only the host dispatches {action}")]
    OnlyTheHost {
        /// The action's type.
        action: &'static str,
    },
    /// The action is for another kind of channel.
    #[error("{action} is not for this kind of channel: {wanted:?} is needed, and this is {found:?}")]
    WrongChannel {
        /// The action's type.
        action: &'static str,
        /// The kind of channels that it is for.
        wanted: ChannelKind,
        /// The kind of this channel.
        found: ChannelKind,
    },
    /// The session is not ready, or its creation failed.
    #[error("the session is not ready")]
    NotReady,
    /// A turn is active.
    #[error("a turn is in progress")]
    TurnInProgress,
    /// No turn with this id is active.
    #[error("turnId does not name the turn that is in progress")]
    NoActiveTurn,
    /// The last turn cannot be resumed.
    #[error("turnId does not name a turn that can be resumed: only the last one can, after an error that allows it")]
    NotResumable,
    /// The time is none, or the last that can be written: the turn could never end.
    #[error("startedAt must be an RFC 3339 time such as 2026-01-31T12:00:00Z, in a year before 9998")]
    Timestamp,
    /// The message claims to be somebody else's.
    #[error("message.origin.kind must be \"user\": clients send no other messages")]
    NotTheUser,
    /// The chat is to be watched only.
    #[error("the chat is read-only")]
    ReadOnly,
    /// The active turn has no such tool call.
    #[error("the turn in progress has no tool call with this toolCallId")]
    NoToolCall,
    /// The tool call does not wait for this.
    #[error("the tool call is not in a state for this action")]
    ToolCallState,
    /// Another client runs the tool, or the host.
    #[error("the tool call is not run by this client")]
    NotYourToolCall,
    /// The tool call offers other options.
    #[error("selectedOptionId names none of the options that the tool call offers")]
    NoOption,
    /// The input of the tool call is not to be edited.
    #[error("the tool input cannot be edited")]
    NotEditable,
    /// No such request for input is open.
    #[error("no input request with this requestId is open")]
    NoInputRequest,
    /// The request has no such question.
    #[error("the input request has no question with this questionId")]
    NoQuestion,
    /// A question that must be answered is not.
    #[error("a required question has no submitted answer")]
    Unanswered,
    /// No such message waits.
    #[error("no pending message has this id")]
    NoPendingMessage,
    /// The limit of waiting messages is reached.
    #[error(
        "{MAX_QUEUED_MESSAGES} messages wait in this chat already, which is the limit: remove one, or wait for a turn to end"
    )]
    QueueFull,
    /// The messages that wait would be too long together.
    #[error(
        "the messages that wait in this chat have {bytes} bytes and this one has {new}, the limit is {MAX_QUEUED_BYTES}: \
         remove one, or wait for a turn to end"
    )]
    QueueTooLong {
        /// The bytes of those that wait.
        bytes: usize,
        /// The bytes of the new one.
        new: usize,
    },
    /// The agent works in one directory.
    #[error("the agent does not offer several working directories")]
    OneDirectory,
    /// The directory is not one of the session's.
    #[error("the directory is not one of the session's working directories")]
    NoDirectory,
    /// The first directory stays.
    #[error("the agent does not allow its first working directory to change")]
    PrimaryDirectory,
    /// A chat or session works somewhere.
    #[error("the last working directory cannot be removed: add another one first")]
    LastDirectory,
    /// A chat of the session works only there.
    #[error("the directory is the only one of a chat of this session: give that chat another one first")]
    OnlyDirectoryOfChat,
    /// A client speaks for itself only.
    #[error("clientId must be that of this client: each changes its own entry only")]
    NotYou,
    /// There is no such property, or it is fixed.
    #[error("the config's property {name:?} does not exist or cannot be changed")]
    FixedProperty {
        /// The property.
        name: String,
    },
    /// There is nothing that can be set.
    #[error("there is no config here that can be changed")]
    NoConfig,
    /// Another holds the terminal.
    #[error("another client or session holds the terminal")]
    NotYourTerminal,
    /// The terminal's process is gone.
    #[error("the program of this terminal has ended")]
    Exited,
    /// No terminal has this size.
    #[error("cols and rows must be from 1 to 65,535")]
    Size,
    /// An annotation has an entry at least.
    #[error("an annotation must keep at least one entry")]
    EmptyAnnotation,
    /// This host, or this channel, does not offer it.
    #[error("this host does not offer this action here")]
    NotOffered,
    /// There is one of this name already, or the name is none.
    #[error("resource must begin with ahp-automation: and name no automation that exists")]
    Resource,
}

impl From<Rejection> for MethodError {
    fn from(refusal: Rejection) -> Self {
        Self::new(INVALID_REQUEST, refusal.to_string())
    }
}
