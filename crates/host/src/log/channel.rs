//! Channels: which of them a reader follows, and what the log knows of each.

use std::collections::HashSet;
use std::sync::Arc;

use super::Seq;

/// The channels that a reader follows.
#[derive(Debug, Clone, Default)]
pub enum Channels {
    /// Every one, also those that are opened later.
    #[default]
    All,
    /// These, whether they exist yet or not.
    Only(Arc<HashSet<Arc<str>>>),
    /// Every one but those whose URIs begin with one of these.
    Except(&'static [&'static str]),
}

impl Channels {
    /// These channels and no others.
    pub fn only<T: Into<Arc<str>>>(channels: impl IntoIterator<Item = T>) -> Self {
        Self::Only(Arc::new(channels.into_iter().map(Into::into).collect()))
    }

    /// Whether this channel is among them.
    #[must_use]
    pub fn contains(&self, channel: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(these) => these.contains(channel),
            Self::Except(those) => !those.iter().any(|start| channel.starts_with(start)),
        }
    }
}

/// What the log knows of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelInfo {
    /// Its URI.
    pub channel: Arc<str>,
    /// The session that it belongs to; `None` for one of the host's own.
    pub session: Option<Arc<str>>,
    /// It can be read from here on: everything before may have been trimmed.
    pub first: Seq,
    /// The seq of its last entry; 0 if it never had one.
    pub last: Seq,
    /// The seq of its saved snapshot.
    pub snapshot: Option<Seq>,
}
