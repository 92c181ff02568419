//! A client of the relay: its id, groups and permissions, and the messages that wait for it.
//!
//! A client outlives its WebSocket. Whoever delivers a message appends it here and wakes the task of the WebSocket, if there is one. A
//! message of a reliable client stays until the client acknowledges it; after a recovery, all that stayed are sent again.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use breakbulk_proto::Message;
use bytes::Bytes;
use subtle::ConstantTimeEq;

use super::ack_ids::AckIds;
use super::config::RelayConfig;
use super::permissions::Permissions;
use crate::wire;

/// What a queued message costs beside its payload.
const MESSAGE_COST: u64 = 128;

/// Which subprotocol a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subprotocol {
    /// Messages are numbered and acknowledged, and a lost WebSocket can be replaced.
    Reliable,
    /// Neither.
    Simple,
}

/// A client.
pub(super) struct Client {
    pub(super) id: Arc<str>,
    pub(super) user: Option<Arc<str>>,
    pub(super) subprotocol: Subprotocol,
    /// What proves that a new WebSocket is this client's.
    reconnection_token: String,
    state: Mutex<ClientState>,
}

/// What changes about a client.
pub(super) struct ClientState {
    pub(super) permissions: Permissions,
    pub(super) groups: BTreeSet<Arc<str>>,
    pub(super) ack_ids: AckIds,
    phase: ClientPhase,
    /// Counts the WebSockets that the client has had. The task of an older one finds that it is not the current one.
    generation: u64,
    /// Answers, which are sent before messages, and are lost with the WebSocket.
    control: VecDeque<Bytes>,
    /// Messages, oldest first.
    queue: VecDeque<Queued>,
    /// How many of them were sent on the current WebSocket.
    sent: usize,
    queued_bytes: u64,
    next_sequence: u64,
    waker: Option<Waker>,
}

/// How far the life of a client has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientPhase {
    /// It has a WebSocket.
    Connected,
    /// Its WebSocket has to be cut, as a network would do it.
    Cut,
    /// It has lost its WebSocket, and may come back.
    Lost,
    /// It is over. Its WebSocket, if it has one, has to be closed.
    Closed(Closed),
}

/// Why a client is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    /// For metrics.
    pub(super) reason: &'static str,
    /// The close code of the WebSocket.
    pub(super) code: u16,
    /// For the client.
    pub(super) message: String,
}

/// A message to one client.
struct Queued {
    sequence: u64,
    published: Arc<Published>,
}

/// A message to many clients.
pub(super) struct Published {
    head: Bytes,
    data: Bytes,
}

impl Published {
    /// A message of which `head` stands between the sequence number and the payload.
    pub(super) fn new(head: impl Into<Bytes>, data: Bytes) -> Arc<Self> {
        Arc::new(Self { head: head.into(), data })
    }

    /// The bytes that it counts for in a queue.
    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(self.head.len() + self.data.len()).unwrap_or(u64::MAX).saturating_add(MESSAGE_COST)
    }
}

/// How a WebSocket has to end.
pub(super) enum SocketEnd {
    /// Be dropped without a close.
    Drop,
    /// Say why, and close.
    Close(Closed),
}

impl Client {
    /// A client whose WebSocket has just begun.
    pub(super) fn new(
        id: Arc<str>,
        user: Option<Arc<str>>,
        subprotocol: Subprotocol,
        reconnection_token: String,
        permissions: Permissions,
    ) -> Self {
        let state = ClientState {
            permissions,
            groups: BTreeSet::new(),
            ack_ids: AckIds::default(),
            phase: ClientPhase::Connected,
            generation: 0,
            control: VecDeque::new(),
            queue: VecDeque::new(),
            sent: 0,
            queued_bytes: 0,
            next_sequence: 1,
            waker: None,
        };
        let client = Self { id, user, subprotocol, reconnection_token, state: Mutex::new(state) };
        client.lock().control.push_back(client.greeting());
        client
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the client a new WebSocket, if it proves that it is the client's. Returns the WebSocket's generation.
    pub(super) fn recover(&self, token: &str) -> Option<u64> {
        let is_ours = bool::from(token.as_bytes().ct_eq(self.reconnection_token.as_bytes()));
        let mut state = self.lock();
        if !is_ours || matches!(state.phase, ClientPhase::Closed(_)) {
            return None;
        }
        state.phase = ClientPhase::Connected;
        state.generation += 1;
        state.sent = 0;
        state.control.clear();
        state.control.push_back(self.greeting());
        // The task of the WebSocket before, if it still runs.
        state.wake();
        Some(state.generation)
    }

    /// The WebSocket of this generation is gone. Returns whether the client may come back.
    pub(super) fn lose(&self, generation: u64) -> bool {
        let mut state = self.lock();
        let is_current = state.generation == generation;
        if is_current && matches!(state.phase, ClientPhase::Connected | ClientPhase::Cut) {
            state.phase = ClientPhase::Lost;
            state.control = VecDeque::new();
            state.waker = None;
        }
        is_current && state.phase == ClientPhase::Lost && self.subprotocol == Subprotocol::Reliable
    }

    /// Whether it has had no WebSocket since the one of this generation.
    pub(super) fn is_lost_since(&self, generation: u64) -> bool {
        let state = self.lock();
        state.generation == generation && state.phase == ClientPhase::Lost
    }

    /// Whether it has a WebSocket.
    pub(super) fn is_connected(&self) -> bool {
        self.lock().phase == ClientPhase::Connected
    }

    /// Cuts its WebSocket, if it has one.
    pub(super) fn cut(&self) -> bool {
        let mut state = self.lock();
        let is_connected = state.phase == ClientPhase::Connected;
        if is_connected {
            state.phase = ClientPhase::Cut;
            state.wake();
        }
        is_connected
    }

    /// Ends it. Returns the bytes that waited for it; `None` if it was over before.
    pub(super) fn close(&self, closed: Closed) -> Option<u64> {
        let mut state = self.lock();
        if matches!(state.phase, ClientPhase::Closed(_)) {
            return None;
        }
        state.phase = ClientPhase::Closed(closed);
        state.queue = VecDeque::new();
        state.sent = 0;
        state.wake();
        Some(std::mem::take(&mut state.queued_bytes))
    }

    /// Appends a message. The error says that too many wait already.
    pub(super) fn deliver(&self, published: &Arc<Published>, config: &RelayConfig) -> Result<bool, Overflow> {
        let mut state = self.lock();
        if matches!(state.phase, ClientPhase::Closed(_))
            || (state.phase == ClientPhase::Lost && self.subprotocol == Subprotocol::Simple)
        {
            return Ok(false);
        }
        let bytes = published.bytes();
        let is_full =
            state.queue.len() >= config.queue_messages || state.queued_bytes.saturating_add(bytes) > config.queue_bytes;
        if is_full {
            return Err(Overflow);
        }
        let sequence = state.next_sequence;
        state.next_sequence += 1;
        state.queued_bytes += bytes;
        state.queue.push_back(Queued { sequence, published: Arc::clone(published) });
        state.wake();
        Ok(true)
    }

    /// Forgets the messages up to this one. Returns their bytes.
    pub(super) fn acknowledge(&self, sequence: u64) -> u64 {
        let mut state = self.lock();
        let mut freed = 0_u64;
        while state.queue.front().is_some_and(|first| first.sequence <= sequence) {
            freed += state.take_first();
        }
        freed
    }

    /// Queues an answer.
    pub(super) fn answer(&self, frame: Bytes) {
        let mut state = self.lock();
        state.control.push_back(frame);
        state.wake();
    }

    /// Whether so few answers wait that more may be read from the client.
    pub(super) fn may_read(&self, config: &RelayConfig) -> bool {
        self.lock().control.len() < config.max_control
    }

    /// Whether the WebSocket of this generation has to end. `waker` is woken when that changes, and when there is something to send.
    pub(super) fn end_of(&self, generation: u64, waker: &Waker) -> Option<SocketEnd> {
        let mut state = self.lock();
        if state.generation != generation {
            return Some(SocketEnd::Drop);
        }
        match &state.phase {
            ClientPhase::Connected => {}
            ClientPhase::Cut | ClientPhase::Lost => return Some(SocketEnd::Drop),
            ClientPhase::Closed(closed) => return Some(SocketEnd::Close(closed.clone())),
        }
        if !state.waker.as_ref().is_some_and(|own| own.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        None
    }

    /// What the WebSocket of this generation has to send next, and how many bytes do not wait any more. `None` if
    /// there is nothing.
    pub(super) fn next(&self, generation: u64) -> (Option<Message>, u64) {
        let mut state = self.lock();
        if state.generation != generation || state.phase != ClientPhase::Connected {
            return (None, 0);
        }
        if let Some(frame) = state.control.pop_front() {
            if state.control.is_empty() {
                // A client that is idle keeps no memory for answers.
                state.control = VecDeque::new();
            }
            return (Some(Message::from(frame)), 0);
        }
        let sent = state.sent;
        let Some(Queued { sequence, published }) = state.queue.get(sent) else { return (None, 0) };
        match self.subprotocol {
            Subprotocol::Reliable => {
                let message = wire::message(Some(*sequence), &published.head, &published.data);
                state.sent += 1;
                (Some(message), 0)
            }
            Subprotocol::Simple => {
                let message = wire::message(None, &published.head, &published.data);
                let freed = state.take_first();
                (Some(message), freed)
            }
        }
    }

    /// The first frame of a WebSocket.
    fn greeting(&self) -> Bytes {
        let token = (self.subprotocol == Subprotocol::Reliable).then_some(self.reconnection_token.as_str());
        wire::connected(&self.id, self.user.as_deref(), token)
    }
}

/// Too many messages wait for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overflow;

impl ClientState {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Removes the oldest message. Returns its bytes.
    fn take_first(&mut self) -> u64 {
        let Some(first) = self.queue.pop_front() else { return 0 };
        let bytes = first.published.bytes();
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
        self.sent = self.sent.saturating_sub(1);
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        bytes
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("user", &self.user).finish_non_exhaustive()
    }
}
