//! A peer: what its link and the task of the hub connection share.
//!
//! The link puts frames into the outbox and takes them from the inbox; the task does the opposite. The bell tells the task which peers
//! have something for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use breakbulk_proto::Message;
use bytes::Bytes;

use super::credit::{PeerId, cost};

/// How many bytes of frames wait in the outbox at most, if it is more than one frame: enough that the next frame is made while one is
/// sent.
const MAX_OUTBOX: usize = 256 << 10;

/// What a link and the task share.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    bell: Arc<Bell>,
    state: Mutex<PeerState>,
}

#[derive(Debug)]
pub(super) struct PeerState {
    /// Frames for the peer, oldest first.
    pub(super) outbox: VecDeque<Message>,
    outbox_bytes: usize,
    /// Frames from the peer, oldest first.
    inbox: VecDeque<Bytes>,
    /// The credit of frames that the link took and the task has not noted.
    taken: u64,
    /// How the link ends, as our side wants it.
    pub(super) wish: Wish,
    /// How the link has ended.
    end: Option<PeerEnd>,
    /// Whether the link was told.
    is_end_told: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// How our side wants the link to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    /// Not at all.
    Open,
    /// With this code and text, when everything was sent.
    Close { code: u16, text: String },
    /// Nobody has the link any more.
    Dropped,
}

/// How a link has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PeerEnd {
    /// The peer closed it.
    Closed { code: u16, text: String },
    /// Nothing came from the peer for this long.
    Silent(Duration),
    /// The peer broke a rule, or frames were lost.
    Broken(String),
    /// The connection to the hub is lost, or the peer has lost its own.
    Lost,
}

impl Peer {
    pub(super) fn new(id: PeerId, bell: Arc<Bell>) -> Self {
        let state = PeerState {
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            inbox: VecDeque::new(),
            taken: 0,
            wish: Wish::Open,
            end: None,
            is_end_told: false,
            reader: None,
            writer: None,
        };
        Self { id, bell, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // For the link.

    /// Whether the outbox takes another frame; if not, the task is woken when it does. After the end it is ready too: whoever has
    /// nothing more to send reads how the peer ended.
    pub(super) fn may_send(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        let may = state.end.is_some() || state.outbox_bytes < MAX_OUTBOX;
        if !may {
            state.writer = Some(cx.waker().clone());
        }
        may
    }

    /// Whether the peer has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Whether the outbox is empty, and a close was sent; if not, the task is woken when that is so.
    pub(super) fn is_flushed(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        let is_flushed = state.end.is_some() || state.outbox.is_empty() && !matches!(state.wish, Wish::Close { .. });
        if !is_flushed {
            state.writer = Some(cx.waker().clone());
        }
        is_flushed
    }

    pub(super) fn push_out(&self, frame: Message) {
        let mut state = self.lock();
        state.outbox_bytes += frame.len();
        state.outbox.push_back(frame);
        drop(state);
        self.bell.ring(self.id);
    }

    pub(super) fn wish(&self, wish: Wish) {
        let mut state = self.lock();
        if wish == Wish::Dropped || state.wish == Wish::Open {
            state.wish = wish;
        }
        drop(state);
        self.bell.ring(self.id);
    }

    /// The next frame from the peer, or how the link has ended; if there is neither, the task is woken when there is.
    pub(super) fn take_in(&self, cx: &Context<'_>) -> Option<PeerRead> {
        let mut state = self.lock();
        if let Some(frame) = state.inbox.pop_front() {
            state.taken = state.taken.saturating_add(cost(u64::try_from(frame.len()).unwrap_or(u64::MAX)));
            drop(state);
            self.bell.ring(self.id);
            return Some(PeerRead::Frame(frame));
        }
        if let Some(end) = state.end.clone() {
            let was_told = std::mem::replace(&mut state.is_end_told, true);
            return Some(if was_told { PeerRead::Nothing } else { PeerRead::End(end) });
        }
        state.reader = Some(cx.waker().clone());
        None
    }

    // For the task.

    /// The credit of the frames that were taken since the last call.
    pub(super) fn taken(&self) -> u64 {
        std::mem::take(&mut self.lock().taken)
    }

    pub(super) fn pop_out(&self) -> Option<Message> {
        let mut state = self.lock();
        let frame = state.outbox.pop_front()?;
        state.outbox_bytes = state.outbox_bytes.saturating_sub(frame.len());
        if state.outbox_bytes < MAX_OUTBOX {
            wake(&mut state.writer);
        }
        let is_done = state.outbox.is_empty() && state.wish != Wish::Open;
        drop(state);
        if is_done {
            self.bell.ring(self.id);
        }
        Some(frame)
    }

    /// The length of the next frame for the peer.
    pub(super) fn next_out(&self) -> Option<usize> {
        self.lock().outbox.front().map(Message::len)
    }

    pub(super) fn push_in(&self, frame: Bytes) {
        let mut state = self.lock();
        state.inbox.push_back(frame);
        wake(&mut state.reader);
    }

    /// The link has ended. Frames that have arrived can still be taken.
    pub(super) fn end(&self, end: PeerEnd) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.outbox.clear();
        state.outbox_bytes = 0;
        wake(&mut state.reader);
        wake(&mut state.writer);
    }
}

/// What a link takes.
pub(super) enum PeerRead {
    Frame(Bytes),
    End(PeerEnd),
    /// The end was told before.
    Nothing,
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Tells the task which peers have something for it.
#[derive(Debug, Default)]
pub(super) struct Bell(Mutex<BellState>);

#[derive(Debug, Default)]
struct BellState {
    rung: Vec<PeerId>,
    waker: Option<Waker>,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, BellState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self, peer: PeerId) {
        let mut state = self.lock();
        if !state.rung.contains(&peer) {
            state.rung.push(peer);
        }
        wake(&mut state.waker);
    }

    /// Who has rung since the last call. The task is woken when somebody rings.
    pub(super) fn take(&self, cx: &Context<'_>) -> Vec<PeerId> {
        let mut state = self.lock();
        state.waker = Some(cx.waker().clone());
        std::mem::take(&mut state.rung)
    }
}
