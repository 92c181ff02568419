//! What travels between a v2 client and its server: one JSON object a message.

mod command;
mod connection;
mod event;
mod names;

pub use command::{Command, CommandError, CommandLimits, Decision, Image, PromptCommand, Resume};
pub use connection::{AckOutcome, ConnectionEvent, Outgoing, Refusal, SessionInfo, SnapshotReason};
pub use event::{
    Attachment, Body, Event, PermissionOption, QueuedPrompt, SessionState, SnapshotBlock, SnapshotTool, TokenUsage,
    TurnOutcome,
};

/// The version of the protocol.
pub const VERSION: u8 = 2;
