//! Events of a connection, which belong to no session's order: they have no `v` and no `ts`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::event::SessionState;
use super::names::is_false;
use super::{CommandError, Event, VERSION};

/// What a server tells one connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ConnectionEvent {
    /// The connection's client has this id, also when it comes back.
    ClientId {
        /// The id.
        client_id: String,
        /// How long a command may be. A longer one closes the connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_command_bytes: Option<u64>,
    },
    /// A client that came back is attached to a session again. The session's events follow.
    Reattached {
        /// The client.
        client_id: String,
        /// The session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<String>,
        /// Whether a turn runs now: a client that believed so before it left must not go by that.
        running: bool,
        /// What the session is doing now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<SessionState>,
        /// Whether the session is over: no event of it will ever follow.
        #[serde(default, skip_serializing_if = "is_false")]
        ended: bool,
        /// Why a snapshot follows instead of what the client missed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<SnapshotReason>,
    },
    /// A client that came back cannot be attached to a session.
    ReattachFailed {
        /// The client.
        client_id: String,
        /// The session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<String>,
        /// Why, for people.
        reason: String,
    },
    /// The answer to `list`: a page.
    Sessions {
        /// The sessions, the last used first.
        sessions: Vec<SessionInfo>,
        /// With which `cursor` the next page is asked for; none at the end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_cursor: Option<String>,
    },
    /// A command is done, and will not be done again under the same `clientMsgId`.
    Ack {
        /// The command.
        command: String,
        /// The id that the client gave to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_msg_id: Option<String>,
        /// The session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<String>,
        /// What was done.
        outcome: AckOutcome,
        /// Whether it had been done before this command came.
        #[serde(default, skip_serializing_if = "is_false")]
        repeated: bool,
    },
    /// The answer to `ping`.
    Pong {},
}

/// Why a client that came back gets a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotReason {
    /// It named no `lastSeq`.
    Fresh,
    /// Its `lastSeq` is one that this log never had.
    Future,
    /// Some of what it missed is not kept any more.
    Trimmed,
}

/// What a command has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckOutcome {
    /// A turn begins.
    Started,
    /// The prompt waits.
    Queued,
    /// It is done.
    Done,
}

/// A session in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// The session.
    pub session_id: String,
    /// The title, for people.
    pub title: String,
    /// The agent's provider id.
    pub agent: String,
    /// The working directory.
    pub cwd: String,
    /// What it is doing now.
    pub state: SessionState,
    /// When it was last used, in RFC 3339.
    pub modified_at: String,
}

/// A command that was not done. Written as an `error` event without `seq`: it belongs to no session's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The server's time in milliseconds since 1970.
    pub ts: u64,
    /// Why, for people. It names the command.
    pub error: String,
    /// The command, if it could be read.
    pub command: Option<String>,
    /// The field of the command that is wrong.
    pub field: Option<String>,
    /// The id that the client gave to the command.
    pub client_msg_id: Option<String>,
    /// The session that the command is for.
    pub session_id: Option<String>,
}

impl Refusal {
    /// A command that could not be read.
    #[must_use]
    pub fn malformed(error: &CommandError, ts: u64) -> Self {
        Self {
            ts,
            error: error.to_string(),
            command: error.command().map(str::to_owned),
            field: error.field().map(str::to_owned),
            client_msg_id: None,
            session_id: None,
        }
    }
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            v: u8,
            r#type: &'static str,
            ts: u64,
            error: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            command: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            client_msg_id: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            session_id: Option<&'a str>,
        }
        let written = Written {
            v: VERSION,
            r#type: "error",
            ts: self.ts,
            error: &self.error,
            command: self.command.as_deref(),
            field: self.field.as_deref(),
            client_msg_id: self.client_msg_id.as_deref(),
            session_id: self.session_id.as_deref(),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Refusal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Read {
            r#type: String,
            ts: u64,
            error: String,
            command: Option<String>,
            field: Option<String>,
            client_msg_id: Option<String>,
            session_id: Option<String>,
        }
        let Read { r#type, ts, error, command, field, client_msg_id, session_id } = Read::deserialize(deserializer)?;
        if r#type != "error" {
            return Err(D::Error::custom("type is not error"));
        }
        Ok(Self { ts, error, command, field, client_msg_id, session_id })
    }
}

/// Anything that a server sends.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Outgoing {
    /// To one connection.
    Connection(ConnectionEvent),
    /// A command was not done.
    Refusal(Refusal),
    /// In a session, to all who watch it.
    Event(Box<Event>),
}

impl<'de> Deserialize<'de> for Outgoing {
    /// What has no `v` is of the connection; what has no `seq` is a refusal.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let read = if value.get("v").is_none() {
            serde_json::from_value(value).map(Self::Connection)
        } else if value.get("seq").is_none() {
            serde_json::from_value(value).map(Self::Refusal)
        } else {
            serde_json::from_value(value).map(|event| Self::Event(Box::new(event)))
        };
        read.map_err(D::Error::custom)
    }
}
