//! All of a session for a client that has nothing: its history page by page, then what is going on.
//!
//! The log goes on meanwhile. Turns that are completed while earlier ones are sent are sent as completed turns too, and the
//! rest is made at one moment, after the last of them. So a snapshot never holds more than a page and the running turn.

use std::collections::VecDeque;
use std::sync::Arc;

use breakbulk_lifecycle::v2::SnapshotPieces;
use bytes::Bytes;

use super::feed::{Comparison, Feed, encoded};
use super::moment::{Moment, SessionContext, session_state, workers_of};
use super::watcher::PAGE_BYTES;
use crate::endpoint::AnswerMemory;
use crate::endpoint::memory::{NoMemory, Reservation};
use crate::log::Seq;
use crate::state::StateError;

/// How often the rest is tried while the session does not pause. Each attempt takes about a millisecond.
const ATTEMPTS: u32 = 1_000;

/// A turn takes about so many times its JSON in memory: parsed, as events, and encoded.
const TURN_COPIES: usize = 4;

/// A snapshot that is being sent.
pub(super) struct SnapshotStream {
    pieces: Option<SnapshotPieces>,
    /// The next row of completed turns.
    next: u64,
    epoch: u64,
    /// What is made and not sent yet.
    made: VecDeque<Bytes>,
    /// The memory of that.
    reservation: Option<Reservation>,
    phase: SnapshotPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotPhase {
    /// Turns that are over, or the rest, are still to be made.
    Making,
    /// Everything up to this entry is made.
    Made(Seq),
}

/// What comes next.
pub(super) enum SnapshotStep {
    /// Events to send.
    Events(Vec<Bytes>),
    /// All is sent: the client has everything up to this entry.
    Done(Seq),
    /// Turns were removed that may have been sent: a new snapshot has to be begun.
    Again,
}

/// Why a snapshot cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Memory(#[from] NoMemory),
}

impl SnapshotStream {
    /// Begins a snapshot: with its head.
    pub(super) async fn begin(context: &SessionContext, feed: &Feed) -> Result<Self, StreamError> {
        let (session, _) = session_state(&context.state, &context.config.session).await?;
        let chat = context.state.chat_moment(&context.config.chat, |_| ()).await?;
        let mut events = Vec::new();
        let pieces = feed.look(|projector, applied| projector.snapshot_head(&session, applied, 0, &mut events));
        Ok(Self {
            pieces: Some(pieces),
            next: chat.rows.start,
            epoch: chat.epoch,
            made: encoded(&events).into(),
            reservation: None,
            phase: SnapshotPhase::Making,
        })
    }

    /// What comes next.
    pub(super) async fn next(
        &mut self,
        context: &SessionContext,
        feed: &Arc<Feed>,
        memory: &AnswerMemory,
    ) -> Result<SnapshotStep, StreamError> {
        loop {
            if !self.made.is_empty() {
                return Ok(SnapshotStep::Events(self.take()));
            }
            self.reservation = None;
            if let SnapshotPhase::Made(seq) = self.phase {
                return Ok(SnapshotStep::Done(seq));
            }
            let chat = context.state.chat_moment(&context.config.chat, |_| ()).await?;
            if chat.epoch != self.epoch {
                return Ok(SnapshotStep::Again);
            }
            let made = match self.next < chat.rows.end {
                true => self.make_turns(context, feed, memory, chat.rows.end).await?,
                false => self.make_rest(context, feed, memory).await?,
            };
            if !made {
                return Ok(SnapshotStep::Again);
            }
        }
    }

    /// Takes a page of what is made.
    fn take(&mut self) -> Vec<Bytes> {
        let (mut page, mut bytes) = (Vec::new(), 0_usize);
        while let Some(event) = self.made.pop_front_if(|_| bytes < PAGE_BYTES) {
            bytes = bytes.saturating_add(event.len());
            page.push(event);
        }
        page
    }

    /// Makes the events of the next completed turns. Says whether the turns are still there.
    async fn make_turns(
        &mut self,
        context: &SessionContext,
        feed: &Feed,
        memory: &AnswerMemory,
        end: u64,
    ) -> Result<bool, StreamError> {
        let reservation = memory.reserve(PAGE_BYTES.saturating_mul(TURN_COPIES)).await?;
        let state = &context.state;
        let page = state.turns_page(&context.config.chat, self.next..end, self.epoch, PAGE_BYTES).await?;
        let (Some(turns), Some(pieces)) = (page, &mut self.pieces) else { return Ok(false) };
        let (session, _) = session_state(state, &context.config.session).await?;
        let workers = workers_of(context, &session, &turns).await?;
        let mut events = Vec::new();
        let chat = |uri: &str| workers.get(uri);
        feed.look(|projector, _| projector.snapshot_turns(pieces, &turns, &chat, &mut events));
        self.next = self.next.saturating_add(u64::try_from(turns.len()).unwrap_or(u64::MAX));
        self.made.extend(encoded(&events));
        self.reservation = Some(reservation);
        Ok(true)
    }

    /// Makes the rest, if no turn was completed meanwhile. Says whether the turns that were sent are still there.
    async fn make_rest(
        &mut self,
        context: &SessionContext,
        feed: &Arc<Feed>,
        memory: &AnswerMemory,
    ) -> Result<bool, StreamError> {
        let mut moved = feed.subscribe();
        for _ in 0..ATTEMPTS {
            let weight = context.state.chat_weight(&context.config.chat).await?;
            let reservation = memory.reserve(weight.saturating_mul(TURN_COPIES)).await?;
            moved.mark_unchanged();
            let moment = Moment::of(context).await?;
            if moment.epoch != self.epoch {
                return Ok(false);
            }
            if moment.rows.end > self.next {
                // A turn was completed meanwhile: it is told as such.
                return Ok(true);
            }
            let pieces = &mut self.pieces;
            let compared = feed.compare(&moment, |projector, applied| {
                let mut events = Vec::new();
                if let Some(pieces) = pieces.take() {
                    moment.snapshot(applied, 0, |snapshot| projector.snapshot_rest(pieces, snapshot, &mut events));
                }
                (encoded(&events), applied)
            });
            match compared {
                Comparison::Same((events, applied)) => {
                    self.made.extend(events);
                    (self.phase, self.reservation) = (SnapshotPhase::Made(applied), Some(reservation));
                    return Ok(true);
                }
                // The feed, which holds the sender, is held here.
                Comparison::Behind if !feed.is_lost() => drop(moved.changed().await),
                Comparison::Behind => return Ok(false),
                Comparison::Ahead => {}
            }
        }
        Err(StateError::Gone.into())
    }
}
