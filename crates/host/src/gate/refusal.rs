//! Why an action is refused.

use thiserror::Error;

/// Why an action is refused. What it says is for people: `rejectionReason` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such action is known here.
    #[error("unknown action")]
    Unknown,
    /// Clients do not dispatch this one.
    #[error("only the host dispatches this action")]
    OnlyTheHost,
    /// The action is for another kind of channel.
    #[error("this action is for another kind of channel")]
    WrongChannel,
    /// The session is not ready, or its creation failed.
    #[error("the session is not ready")]
    NotReady,
    /// A turn is active.
    #[error("a turn is in progress")]
    TurnInProgress,
    /// No turn with this id is active.
    #[error("no such turn is active")]
    NoActiveTurn,
    /// The last turn cannot be resumed.
    #[error("the turn cannot be resumed")]
    NotResumable,
    /// The time is none: the turn could never end.
    #[error("startedAt is not an RFC 3339 timestamp")]
    Timestamp,
    /// The message claims to be somebody else's.
    #[error("a client sends messages of the user only")]
    NotTheUser,
    /// The chat is to be watched only.
    #[error("the chat is read-only")]
    ReadOnly,
    /// The active turn has no such tool call.
    #[error("unknown tool call")]
    NoToolCall,
    /// The tool call does not wait for this.
    #[error("the tool call is not in a state for this action")]
    ToolCallState,
    /// Another client runs the tool, or the host.
    #[error("the tool call is not run by this client")]
    NotYourToolCall,
    /// The tool call offers other options.
    #[error("unknown confirmation option")]
    NoOption,
    /// The input of the tool call is not to be edited.
    #[error("the tool input cannot be edited")]
    NotEditable,
    /// No such request for input is open.
    #[error("no such input request is open")]
    NoInputRequest,
    /// The request has no such question.
    #[error("unknown question")]
    NoQuestion,
    /// A question that must be answered is not.
    #[error("a required question has no submitted answer")]
    Unanswered,
    /// No such message waits.
    #[error("no such pending message")]
    NoPendingMessage,
    /// The agent works in one directory.
    #[error("the agent does not offer several working directories")]
    OneDirectory,
    /// The directory is not one of the session's.
    #[error("not one of the session's working directories")]
    NoDirectory,
    /// The first directory stays.
    #[error("the primary working directory is protected")]
    PrimaryDirectory,
    /// A client speaks for itself only.
    #[error("a client changes its own entry only")]
    NotYou,
    /// There is no such property, or it is fixed.
    #[error("a property of the configuration cannot be changed")]
    FixedProperty,
    /// Another holds the terminal.
    #[error("the terminal is claimed by another")]
    NotYourTerminal,
    /// The terminal's process is gone.
    #[error("the terminal has exited")]
    Exited,
    /// No terminal has this size.
    #[error("the size is out of range")]
    Size,
    /// An annotation has an entry at least.
    #[error("an annotation needs an entry")]
    EmptyAnnotation,
    /// This host, or this channel, does not offer it.
    #[error("not offered")]
    NotOffered,
    /// There is one of this name already, or the name is none.
    #[error("the resource cannot be used")]
    Resource,
}
