//! Projections: what a client of another protocol is told, made from the log.
//!
//! The log holds AHP actions. A client that speaks another protocol is told what they mean in that protocol, and nothing
//! else: a [`Projection`] is a pure function from logged entries, and from a snapshot of the state that they lead to, to
//! that client's events. It has no clock and no IO, so any number of hosts make the same events of the same log.
//!
//! AHP's state has no place for some things that other protocols need. This module says where the host puts them:
//!
//! | What | Where |
//! |---|---|
//! | the message of a text or reasoning part, and whether it is redacted | the part's id: [`part_id`] |
//! | the message of a call | `_meta.breakbulk.message` of its first action |
//! | the end of a block or of a message | an action that changes nothing, with `_meta.breakbulk.ended` |
//! | the id that a client gave to its prompt | `_meta.breakbulk.clientMsgId` of the [`Message`] |
//! | a permission that nobody answered in time | `_meta.breakbulk.timeout` of `chat/toolCallConfirmed`, beside `message` |
//! | a session whose agent was stopped | `_meta.breakbulk.ended` of the session, until it goes on |
//! | the chat of a sub-agent | a content of the call; else the chat's name: [`worker_chat`] |

use std::sync::Arc;

use ahp_types::actions::StateAction;
use ahp_types::common::JsonObject;
use ahp_types::state::{ChatState, Message, SessionState, SnapshotState};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::BlockType;

/// What a client of another protocol is told.
pub trait Projection {
    /// What that client is told.
    type Event;

    /// Takes the next entry of the log, and appends what the client is told about it to `out`: often nothing.
    ///
    /// Entries come in the order of their seqs. Entries of channels that do not belong to the session may be passed too;
    /// they are ignored.
    fn apply(&mut self, entry: Entry, out: &mut Vec<Self::Event>);

    /// Appends everything that a client needs which has seen nothing yet. The snapshot must be of the last entry that
    /// this projection took, or the one that it was made from.
    fn snapshot(&self, snapshot: &Snapshot<'_>, out: &mut Vec<Self::Event>);
}

/// One entry of the log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its place in the order.
    pub seq: u64,
    /// When it was logged, in milliseconds since 1970.
    pub at_ms: u64,
    /// The channel's URI.
    pub channel: Arc<str>,
    /// What it says.
    pub change: Change,
}

/// What an entry says.
#[derive(Debug, Clone)]
pub enum Change {
    /// The channel begins with this state.
    Initial(SnapshotState),
    /// The channel is no more.
    Closed,
    /// Something happened.
    Action(Box<StateAction>),
}

/// The state of a session and its chats after an entry of the log.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    /// The last entry that is part of it.
    pub seq: u64,
    /// When that entry was logged, in milliseconds since 1970.
    pub at_ms: u64,
    /// The session.
    pub session: &'a SessionState,
    /// Finds the state of a chat of the session by its URI. A chat of a sub-agent that is not found is not shown.
    pub chat: &'a dyn Fn(&str) -> Option<&'a ChatState>,
    /// When a permission was asked for, by the id of the session's input request, in milliseconds since 1970. Needed
    /// only by a projection that has not seen the entry itself; where it is unknown, the time of the snapshot is taken.
    pub asked_at: &'a dyn Fn(&str) -> Option<u64>,
}

/// What marks the id of a part whose text nobody may read.
const REDACTED: &str = ":redacted";

/// The id of the `number`th part of a turn, of a message: AHP's state keeps of a text or reasoning part only its id, so the
/// id says to which message it belongs and whether it is redacted.
#[must_use]
pub fn part_id(message: &str, number: u64, kind: BlockType) -> String {
    let mark = if kind == BlockType::Redacted { REDACTED } else { "" };
    format!("{message}/{number}{mark}")
}

/// The message of a part with this id.
pub(crate) fn message_of(part_id: &str) -> Option<&str> {
    part_id.rsplit_once('/').map(|(message, _)| message)
}

/// Whether the text of a part with this id is redacted.
pub(crate) fn is_redacted(part_id: &str) -> bool {
    part_id.ends_with(REDACTED)
}

/// What is escaped in a name that is put together with dots.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// The URI of the chat in which the sub-agent of a call works.
#[must_use]
pub fn worker_chat(chat: &str, turn: &str, tool: &str) -> String {
    format!("{chat}.{}.{}", utf8_percent_encode(turn, NAME), utf8_percent_encode(tool, NAME))
}

/// What this host says beside the protocol, under its own name.
pub(crate) fn ours<'a>(meta: Option<&'a JsonObject>, name: &str) -> Option<&'a Value> {
    meta?.get("breakbulk")?.get(name)
}

/// The id that a client gave to its prompt.
pub(crate) fn client_msg_id(message: &Message) -> Option<&str> {
    ours(message.meta.as_ref(), "clientMsgId")?.as_str()
}
