//! What a connection asks of the state: a channel as it is, whole or in part.

use breakbulk_proto::Message;
use thiserror::Error;

use crate::error::MethodError;
use crate::log::{Answer, Seq};

/// Shows channels as they are.
pub trait Views: Send + Sync + 'static {
    /// A channel's state after everything up to `at_least`, or later.
    fn snapshot<'a>(&'a self, channel: &'a str, view: View, at_least: Seq) -> Answer<'a, Result<Shot, ViewError>>;

    /// How long the text of such a snapshot would be, about; it is not made for this.
    fn size_of<'a>(&'a self, channel: &'a str, view: View) -> Answer<'a, Result<u64, ViewError>>;

    /// The seq up to which the state has followed the log.
    fn reached(&self) -> Seq;
}

/// How much of a channel is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// The most recent completed turns of a chat; `None` for all.
    pub turns: Option<u64>,
}

impl View {
    /// Everything.
    pub const FULL: Self = Self { turns: None };

    /// At most so many turns.
    #[must_use]
    pub const fn window(turns: u64) -> Self {
        Self { turns: Some(turns) }
    }
}

/// A channel's state at one moment.
#[derive(Debug, Clone)]
pub struct Shot {
    /// Everything up to this seq is in it.
    pub from_seq: Seq,
    /// The JSON of an `ahp_types::state::Snapshot`.
    pub body: Message,
}

/// Why a channel cannot be shown.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ViewError {
    /// There is no such channel, or not any more.
    #[error("no such channel")]
    NotFound,
    /// It is there, and cannot be shown.
    #[error(transparent)]
    Failed(#[from] MethodError),
}
