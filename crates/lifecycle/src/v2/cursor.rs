//! Where a client that comes back goes on.

use super::wire::SnapshotReason;

/// What is kept of the log, for the channels of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Everything after this seq is kept; 0 if nothing was ever dropped.
    pub after: u64,
    /// The highest seq of the log.
    pub last: u64,
}

/// A client's `lastSeq`, to be compared with the part of the log that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor(pub Option<u64>);

/// How a client that comes back continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The events of all entries after this seq.
    Replay {
        /// The client's `lastSeq`.
        after: u64,
    },
    /// A snapshot: the client has nothing.
    Fresh,
    /// A snapshot: the client names a seq that this log never had, so it comes from another log.
    Future,
    /// A snapshot: some of what the client missed is not kept any more.
    Trimmed,
}

impl Cursor {
    /// How the client continues.
    #[must_use]
    pub const fn start(self, kept: Kept) -> Start {
        match self.0 {
            None => Start::Fresh,
            Some(after) if after > kept.last => Start::Future,
            Some(after) if after < kept.after => Start::Trimmed,
            Some(after) => Start::Replay { after },
        }
    }
}

impl Start {
    /// Why the client gets a snapshot, if it does: what `reattached` says.
    #[must_use]
    pub const fn reason(self) -> Option<SnapshotReason> {
        match self {
            Self::Replay { .. } => None,
            Self::Fresh => Some(SnapshotReason::Fresh),
            Self::Future => Some(SnapshotReason::Future),
            Self::Trimmed => Some(SnapshotReason::Trimmed),
        }
    }
}
