//! Why connections end, each reason with a name, and counters by name.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use breakbulk_proto::{CloseReason, Over};
use thiserror::Error;

use super::memory::NoMemory;
use crate::lock::lock;
use crate::log::{ReadError, Seq};

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EndReason {
    /// The client or its link closed, or the client broke a rule of the protocol.
    #[error("{0}")]
    Link(CloseReason),
    /// The same client has connected again: the newest link wins.
    #[error("the same clientId has connected again: only the newest connection stays")]
    Fenced,
    /// The client read nothing for too long while messages waited for it.
    #[error("the client has read nothing for {} s while {bytes} bytes wait for it", after.as_secs())]
    Stalled {
        /// Bytes of messages that it has not taken.
        bytes: usize,
        /// For how long.
        after: Duration,
    },
    /// The client is too far behind the log.
    #[error("the client is {behind} entries behind the log, the limit is {limit}: reconnect for a snapshot")]
    Lagging {
        /// How far behind it is.
        behind: Seq,
        /// How far it may be.
        limit: Seq,
    },
    /// The next entries for the client were trimmed.
    #[error("the log has dropped entries that the client has not read yet: reconnect for a snapshot")]
    Trimmed,
    /// A channel that the client follows began anew, or lost turns that the client may not have: it needs a snapshot.
    #[error("a channel that the client follows was replaced: reconnect for a snapshot")]
    Reset,
    /// A command of message protocol v2 is too long. The limit is the program's setting `max_message`.
    #[error("a command of {} bytes is over max_message, which is {} bytes", .0.size, .0.limit)]
    CommandTooLong(Over),
    /// No handshake came in time.
    #[error("no initialize or reconnect request came within {} s", .0.as_secs())]
    NoHandshake(Duration),
    /// The client sent an invalid message to which no answer is possible: it has no usable id, or is a `dispatchAction` without
    /// a readable origin. Ignoring it would leave the client waiting, or with a state that nobody else has.
    #[error("{0}")]
    Invalid(String),
    /// The client offers no protocol version that the host supports.
    #[error("no protocol version in common")]
    Version,
    /// The log cannot be read.
    #[error("{0}")]
    Log(ReadError),
    /// An internal error; the log lines of the host say more.
    #[error("an internal error of the host: its log has more")]
    Internal,
    /// There was no memory in time for the next message to the client.
    #[error("{0}")]
    NoMemory(NoMemory),
    /// The limit of connections is reached.
    #[error("the host has as many connections as it allows: try again later")]
    Full,
    /// The host stops.
    #[error("the host stops")]
    Stopping,
}

impl EndReason {
    /// A short name for counters and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Link(reason) => reason.name(),
            Self::Fenced => "endpoint-fenced",
            Self::Stalled { .. } => "endpoint-stalled",
            Self::Lagging { .. } => "endpoint-lagging",
            Self::Trimmed => "endpoint-trimmed",
            Self::Reset => "endpoint-reset",
            Self::CommandTooLong(_) => "v2-command-too-long",
            Self::NoHandshake(_) => "endpoint-no-handshake",
            Self::Invalid(_) => "endpoint-invalid-message",
            Self::Version => "endpoint-version",
            Self::Log(_) => "endpoint-log",
            Self::Internal => "endpoint-internal",
            Self::NoMemory(_) => "endpoint-no-memory",
            Self::Full => "endpoint-full",
            Self::Stopping => "endpoint-stopping",
        }
    }

    /// The close code that the client gets.
    #[must_use]
    pub const fn code(&self) -> u16 {
        match self {
            Self::Link(reason) => reason.code(),
            Self::Fenced => 4409,
            Self::Stalled { .. } => 4410,
            Self::Lagging { .. } | Self::Trimmed => 4411,
            Self::CommandTooLong(_) => 1009,
            Self::NoHandshake(_) => 4412,
            Self::Full | Self::NoMemory(_) => 1013,
            Self::Invalid(_) => 4400,
            Self::Version => 4415,
            Self::Log(_) | Self::Internal => 1011,
            Self::Reset | Self::Stopping => CloseReason::Restart.code(),
        }
    }

    /// The same reason for the machine that closes the connection.
    pub(crate) fn as_close(&self) -> CloseReason {
        match self {
            Self::Link(reason) => reason.clone(),
            Self::Reset | Self::Stopping => CloseReason::Restart,
            other => CloseReason::Program(other.code(), other.to_string()),
        }
    }
}

/// How often each named event has happened, over all connections of an endpoint.
#[derive(Debug, Default)]
pub struct Counters(Mutex<BTreeMap<&'static str, u64>>);

impl Counters {
    /// How often this event has happened.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.with(|counts| counts.get(name).copied().unwrap_or(0))
    }

    /// All counters, by name.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        self.with(|counts| counts.iter().map(|(name, count)| (*name, *count)).collect())
    }

    pub(crate) fn add(&self, name: &'static str, times: u64) {
        self.with(|counts| {
            let count = counts.entry(name).or_default();
            *count = count.saturating_add(times);
        });
    }

    fn with<R>(&self, act: impl FnOnce(&mut BTreeMap<&'static str, u64>) -> R) -> R {
        act(&mut lock(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_why_in_words() {
        let close = EndReason::NoHandshake(Duration::from_secs(10)).as_close();
        assert_eq!(
            (close.code(), close.text().as_str()),
            (4412, "no initialize or reconnect request came within 10 s")
        );
        let close = EndReason::Fenced.as_close();
        assert_eq!(
            (close.code(), close.text().as_str()),
            (4409, "the same clientId has connected again: only the newest connection stays")
        );
    }
}
