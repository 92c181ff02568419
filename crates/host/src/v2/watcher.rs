//! One connection's view of a session: it has a position in the log, and is given what comes after it.
//!
//! A client that has just come, one that comes back and one that has fallen behind are the same case. What the feed holds is
//! taken from there; what is older is made by a projector of the watcher's own, from the last boundary before the position;
//! what the log no longer has is replaced by a snapshot.

use std::sync::Arc;

use breakbulk_lifecycle::projection::Projection;
use breakbulk_lifecycle::v2::wire::SnapshotReason;
use breakbulk_lifecycle::v2::{Cursor, Kept, Start};
use bytes::Bytes;
use tokio::sync::watch;

use super::V2Inner;
use super::feed::{Feed, FeedRead, FeedSlot, Standing, encoded};
use super::moment::SessionContext;
use super::reader::Wait;
use super::rewind::{Rewind, Rewound, rewind};
use super::snapshot::{SnapshotStep, SnapshotStream, StreamError};
use crate::endpoint::AnswerMemory;
use crate::log::Seq;
use crate::state::StateError;

/// About how many bytes of events a watcher takes at once: what each connection may hold without a reservation.
pub(super) const PAGE_BYTES: usize = 32 << 10;

/// A view of a session.
pub(super) struct Watcher {
    shared: Arc<V2Inner>,
    context: SessionContext,
    memory: AnswerMemory,
    slot: Arc<FeedSlot>,
    feed: Arc<Feed>,
    moved: watch::Receiver<()>,
    phase: WatchPhase,
}

enum WatchPhase {
    Snapshot(Box<SnapshotStream>),
    /// The projector has not reached the feed. Events up to `after` are not sent.
    Replay {
        rewound: Box<Rewound>,
        after: Seq,
    },
    Live {
        position: Seq,
    },
}

/// How a watcher begins.
pub(super) struct Joined {
    pub(super) watcher: Watcher,
    pub(super) standing: Standing,
    /// Why the client gets a snapshot, if it does.
    pub(super) reason: Option<SnapshotReason>,
}

impl Watcher {
    /// Begins to watch a session for a client that has everything up to `last_seq`, or nothing.
    pub(super) async fn join(
        shared: &Arc<V2Inner>,
        memory: AnswerMemory,
        session: &str,
        last_seq: Option<Seq>,
    ) -> Result<Joined, StreamError> {
        let context = shared.context_of(session).await?;
        let (slot, feed) = shared.feeds.get(&context, &shared.memory, &shared.timers).await?;
        // A client cannot have seen more than is durable, but more than the feed has taken.
        let last = context.log.bounds().await.map_err(StateError::from)?.last;
        let after = last_seq.map(|seq| if context.log.lag(seq).is_none() { Seq::MAX } else { seq });
        let start = Cursor(after).start(Kept { after: 0, last });
        let standing = feed.standing();
        let moved = feed.subscribe();
        let shared = Arc::clone(shared);
        let phase = WatchPhase::Live { position: 0 };
        let mut watcher = Self { shared, context, memory, slot, feed, moved, phase };
        let reason = match start {
            Start::Replay { after } => watcher.go_on_after(after).await?,
            start => {
                watcher.begin_snapshot().await?;
                start.reason()
            }
        };
        Ok(Joined { watcher, standing, reason })
    }

    /// Waits until there is something to take. Cancel-safe.
    pub(super) async fn ready(&mut self) {
        let WatchPhase::Live { position } = self.phase else { return };
        loop {
            self.moved.mark_unchanged();
            if !matches!(self.feed.take(position, 0), FeedRead::Nothing) {
                return;
            }
            // The feed, which holds the sender, is held here.
            drop(self.moved.changed().await);
        }
    }

    /// Takes the next events, perhaps none.
    pub(super) async fn take(&mut self) -> Result<Vec<Bytes>, StreamError> {
        match &mut self.phase {
            WatchPhase::Snapshot(stream) => match stream.next(&self.context, &self.feed, &self.memory).await? {
                SnapshotStep::Events(events) => Ok(events),
                SnapshotStep::Done(position) => {
                    self.phase = WatchPhase::Live { position };
                    Ok(Vec::new())
                }
                SnapshotStep::Again => {
                    self.renew().await?;
                    self.begin_snapshot().await?;
                    Ok(Vec::new())
                }
            },
            WatchPhase::Replay { rewound, after } => {
                let Rewound { projector, reader, .. } = &mut **rewound;
                let page = reader.next(PAGE_BYTES, Wait::Never).await.map_err(StateError::from)?;
                let mut events = Vec::new();
                for entry in page.entries {
                    let (seq, begin) = (entry.seq, events.len());
                    projector.apply(entry, &mut events);
                    if seq <= *after {
                        events.truncate(begin);
                    }
                }
                let position = reader.position();
                if position >= *after && self.feed.holds_after(position) {
                    self.phase = WatchPhase::Live { position };
                } else if page.is_end {
                    self.renew().await?;
                }
                Ok(encoded(&events))
            }
            WatchPhase::Live { position } => match self.feed.take(*position, PAGE_BYTES) {
                FeedRead::Events(events, reached) => {
                    *position = reached;
                    Ok(events)
                }
                FeedRead::Nothing => Ok(Vec::new()),
                FeedRead::Behind => {
                    let after = *position;
                    self.renew().await?;
                    self.go_on_after(after).await?;
                    Ok(Vec::new())
                }
            },
        }
    }

    /// Goes on after this entry: says why with a snapshot, if the log does not allow anything else.
    async fn go_on_after(&mut self, after: Seq) -> Result<Option<SnapshotReason>, StreamError> {
        if self.feed.holds_after(after) {
            self.phase = WatchPhase::Live { position: after };
            return Ok(None);
        }
        match rewind(&self.context, after).await? {
            Rewind::Done(rewound) => {
                self.phase = WatchPhase::Replay { rewound, after };
                Ok(None)
            }
            Rewind::Trimmed | Rewind::Uncertain => {
                self.begin_snapshot().await?;
                Ok(Some(SnapshotReason::Trimmed))
            }
        }
    }

    async fn begin_snapshot(&mut self) -> Result<(), StreamError> {
        self.phase = WatchPhase::Snapshot(Box::new(SnapshotStream::begin(&self.context, &self.feed).await?));
        Ok(())
    }

    /// Takes another feed, if this one is lost.
    async fn renew(&mut self) -> Result<(), StreamError> {
        if self.feed.is_lost() {
            let shared = &self.shared;
            (self.slot, self.feed) = shared.feeds.get(&self.context, &shared.memory, &shared.timers).await?;
            self.moved = self.feed.subscribe();
        }
        Ok(())
    }
}
