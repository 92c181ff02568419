//! The memory that connections may use, and who may wait for whom.
//!
//! Every byte that a connection holds belongs to one of four shares. Each share is a [`Budget`] or a semaphore of its own:
//!
//! - **frames**: frames that are arriving in the links;
//! - **incoming**: messages that are arriving, and requests until their work is done and their last copy is gone. The grant
//!   of an arriving message stays with its [`Job`](super::jobs::Job);
//! - **work**: large requests that are parsed, checked and logged at the same time. Such a request then has up to four
//!   copies: its text, the parsed value, the entry of the log, and the state;
//! - **outgoing**: answers, snapshots and actions, until the link has written them. Their memory is reserved before they are
//!   made, and the reservation is attached to their bytes ([`Message::with_owner`]), so it ends with the last copy. What many
//!   clients get is reserved once.
//!
//! Each connection has a floor in each share, so small messages never wait. A message that is larger than a whole share waits
//! until it has the share alone.
//!
//! # Nobody waits for ever
//!
//! A frame waits for the frames of others, which arrive or are evicted. A message waits for *incoming*, and holds no part of
//! it. A request waits for *work*, and holds *incoming*; a request that holds *work* waits only for the log and the state,
//! never for a peer and never for another share. An answer waits for *outgoing*, and holds at most its own request, which is
//! small or already released; a holder of *outgoing* waits for its own peer to read. So *outgoing* is the only share that
//! waits for a peer, and this wait is bounded twice: a client that reads nothing is closed early while others wait
//! ([`OutgoingMemory::under_pressure`]), and an answer that has waited for [`MemoryConfig::wait`] becomes an error, or a
//! close that says so (1013).

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use breakbulk_proto::{Account, Budget, BudgetConfig, Grant, Message, Schedule};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::receive::BUSY;
use crate::error::MethodError;
use crate::lock::lock;

/// The `reason` in the `data` of an error for which there was no memory.
const NO_MEMORY: &str = "noMemory";

/// What connections may hold, apart from messages that are arriving: those have the [`Budget`] of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Bytes of frames that are arriving, on all links together. 16 MiB.
    pub frame_bytes: u64,
    /// Bytes of large requests that are worked on at the same time; one may be larger. 32 MiB.
    pub work_bytes: u64,
    /// Bytes of unsent answers, snapshots and actions, over all connections. 96 MiB.
    pub outgoing_bytes: u64,
    /// The same, over all connections of one principal. 96 MiB.
    pub principal_bytes: u64,
    /// What each connection may hold of each share without waiting. 64 KiB.
    pub floor_bytes: u64,
    /// How long an answer may wait for memory before its request fails. 30 s.
    pub wait: Duration,
    /// How long an answer waits before clients that read nothing are closed, and how long they may read nothing then. 3 s.
    pub patience: Duration,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            frame_bytes: 16 << 20,
            work_bytes: 32 << 20,
            outgoing_bytes: 96 << 20,
            principal_bytes: 96 << 20,
            floor_bytes: 64 << 10,
            wait: Duration::from_secs(30),
            patience: Duration::from_secs(3),
        }
    }
}

/// There was no memory for an answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this answer of {bytes} bytes waited {} s for memory, because clients do not read earlier answers; try again later", waited.as_secs())]
pub struct NoMemory {
    /// The bytes that were needed.
    pub bytes: u64,
    /// How long the answer waited.
    pub waited: Duration,
}

impl From<NoMemory> for MethodError {
    fn from(error: NoMemory) -> Self {
        let waited = u64::try_from(error.waited.as_millis()).unwrap_or(u64::MAX);
        let data = json!({"reason": NO_MEMORY, "size": error.bytes, "waitedMs": waited});
        Self::new(BUSY, error.to_string()).with_data(data)
    }
}

impl NoMemory {
    /// Reads such an error back from its `data`.
    pub(super) fn of(data: &Value) -> Option<Self> {
        let waited = data["waitedMs"].as_u64().filter(|_| data["reason"] == NO_MEMORY)?;
        Some(Self { bytes: data["size"].as_u64()?, waited: Duration::from_millis(waited) })
    }
}

/// Limits the bytes of large requests that are worked on at the same time.
#[derive(Debug)]
pub(super) struct WorkLimit {
    free: Arc<Semaphore>,
    all: u32,
    floor: usize,
}

impl WorkLimit {
    pub(super) fn new(config: &MemoryConfig) -> Self {
        let all = u32::try_from(config.work_bytes).unwrap_or(u32::MAX >> 3).clamp(1, u32::MAX >> 3);
        let floor = usize::try_from(config.floor_bytes).unwrap_or(usize::MAX);
        Self { free: Arc::new(Semaphore::new(usize::try_from(all).unwrap_or(usize::MAX))), all, floor }
    }

    /// Waits until a request of so many bytes may be worked on, first come, first served. A small one needs no permit.
    pub(super) async fn begin(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes <= self.floor {
            return None;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.all);
        Arc::clone(&self.free).acquire_many_owned(bytes).await.ok()
    }
}

/// The share of outgoing messages. Cloning shares it.
#[derive(Debug, Clone)]
pub(super) struct OutgoingMemory(Arc<OutgoingInner>);

#[derive(Debug)]
struct OutgoingInner {
    budget: Budget,
    wait: Duration,
    patience: Duration,
    queue: Mutex<WaitQueue>,
    /// Changes when memory is released, and when there is a snapshot that others may share.
    changed: watch::Sender<()>,
    /// Whether an answer has waited for longer than [`MemoryConfig::patience`].
    under_pressure: watch::Sender<bool>,
}

/// The waiting answers, in their order. Each principal has a queue of its own, because it may be waiting for its own quota.
#[derive(Debug, Default)]
struct WaitQueue {
    waiting: HashMap<Option<Arc<str>>, BTreeSet<u64>>,
    tickets: u64,
}

impl OutgoingMemory {
    pub(super) fn new(config: &MemoryConfig) -> Self {
        let budget = Budget::new(BudgetConfig {
            process_bytes: config.outgoing_bytes,
            principal_bytes: config.principal_bytes.min(config.outgoing_bytes),
            floor_bytes: config.floor_bytes,
        });
        Self(Arc::new(OutgoingInner {
            budget,
            wait: config.wait,
            patience: config.patience,
            queue: Mutex::default(),
            changed: watch::Sender::new(()),
            under_pressure: watch::Sender::new(false),
        }))
    }

    /// The memory of one connection.
    pub(crate) fn account(&self, principal: Option<Arc<str>>) -> AnswerMemory {
        let account = Arc::new(self.0.budget.account(principal.as_deref()));
        AnswerMemory { outgoing: self.clone(), account, principal }
    }

    /// Whether an answer has waited for longer than [`MemoryConfig::patience`]: then clients that read nothing are closed.
    pub(super) fn under_pressure(&self) -> watch::Receiver<bool> {
        self.0.under_pressure.subscribe()
    }

    /// Bytes that are held now, floors counted.
    pub(super) fn held(&self) -> u64 {
        self.0.budget.held()
    }

    /// Wakes the waiting answers: memory was released, or there is something to share.
    pub(super) fn wake(&self) {
        self.0.changed.send_replace(());
    }
}

/// The memory for answers to one client, until the link has written them. Cloning shares it.
#[derive(Debug, Clone)]
pub struct AnswerMemory {
    outgoing: OutgoingMemory,
    account: Arc<Account>,
    principal: Option<Arc<str>>,
}

impl AnswerMemory {
    /// Waits for memory for so many bytes, first come, first served.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Reservation, NoMemory> {
        let mut turn = self.turn();
        loop {
            if let Some(reservation) = turn.try_reserve(bytes) {
                return Ok(reservation);
            }
            turn.wait(bytes).await?;
        }
    }

    /// A place in the queue.
    pub(super) fn turn(&self) -> WaitTicket {
        let inner = &self.outgoing.0;
        let mut queue = lock(&inner.queue);
        queue.tickets = queue.tickets.saturating_add(1);
        let ticket = queue.tickets;
        queue.waiting.entry(self.principal.clone()).or_default().insert(ticket);
        drop(queue);
        WaitTicket { memory: self.clone(), ticket, begun: Instant::now(), changed: inner.changed.subscribe() }
    }

    /// Reserves so many bytes for something that can do without them: only while three quarters of all memory are free, so that
    /// no answer has to wait for it.
    pub(crate) fn try_reserve_spare(&self, bytes: usize) -> Option<Reservation> {
        let budget = &self.outgoing.0.budget;
        let used = budget.used().saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        if used > budget.config().process_bytes / 4 { None } else { self.try_reserve(bytes) }
    }

    /// Reserves so many bytes if they are free now.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let config = self.outgoing.0.budget.config();
        let most = config.floor_bytes.saturating_add(config.process_bytes.min(config.principal_bytes));
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).min(most);
        let schedule = Schedule { started: Instant::now().into_std(), timeout: Duration::MAX };
        let mut grant = self.account.reserve(bytes, schedule).ok()?;
        // It is complete from the beginning, so the budget never evicts it.
        grant.complete(bytes);
        Some(Reservation { grant: Some(grant), outgoing: self.outgoing.clone() })
    }
}

/// A place in the queue for outgoing memory, until it is dropped.
#[derive(Debug)]
pub(super) struct WaitTicket {
    memory: AnswerMemory,
    ticket: u64,
    begun: Instant,
    changed: watch::Receiver<()>,
}

impl WaitTicket {
    /// Reserves so many bytes if they are free now and nobody is earlier in the queue, or if they are within the floor.
    pub(super) fn try_reserve(&mut self, bytes: usize) -> Option<Reservation> {
        self.changed.mark_unchanged();
        let queue = lock(&self.memory.outgoing.0.queue);
        let first = queue.waiting.get(&self.memory.principal).and_then(BTreeSet::first);
        let is_first = first == Some(&self.ticket);
        drop(queue);
        let floor = self.memory.outgoing.0.budget.config().floor_bytes;
        let is_small = u64::try_from(bytes).is_ok_and(|bytes| bytes <= floor);
        if is_first || is_small { self.memory.try_reserve(bytes) } else { None }
    }

    /// As [`try_reserve`](Self::try_reserve), for the rest of an answer that has reserved `own` bytes before. If nobody else
    /// holds anything, the rest passes without a reservation.
    pub(super) fn try_reserve_beside(&mut self, bytes: usize, own: u64) -> Option<Reservation> {
        let reservation = self.try_reserve(bytes);
        let is_alone = || own > 0 && self.memory.outgoing.0.budget.used() <= own;
        reservation.or_else(|| is_alone().then(|| Reservation { grant: None, outgoing: self.memory.outgoing.clone() }))
    }

    /// Waits until memory was released since the last attempt.
    pub(super) async fn wait(&mut self, bytes: usize) -> Result<(), NoMemory> {
        let inner = Arc::clone(&self.memory.outgoing.0);
        let (end, patience) = (self.begun + inner.wait, self.begun + inner.patience);
        let until = if Instant::now() < patience { patience.min(end) } else { end };
        // We hold the sender, so a change is the only answer.
        if timeout_at(until, self.changed.changed()).await.is_ok() {
            return Ok(());
        }
        if until == end {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            return Err(NoMemory { bytes, waited: self.begun.elapsed() });
        }
        inner.under_pressure.send_replace(true);
        Ok(())
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        let inner = &self.memory.outgoing.0;
        let mut queue = lock(&inner.queue);
        if let Some(waiting) = queue.waiting.get_mut(&self.memory.principal) {
            waiting.remove(&self.ticket);
            if waiting.is_empty() {
                queue.waiting.remove(&self.memory.principal);
            }
        }
        let is_last = queue.waiting.is_empty();
        drop(queue);
        if is_last {
            inner.under_pressure.send_if_modified(std::mem::take);
        } else {
            // The next one in the queue may try.
            self.memory.outgoing.wake();
        }
    }
}

/// Memory that is reserved for an outgoing message. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct Reservation {
    grant: Option<Grant>,
    outgoing: OutgoingMemory,
}

impl Reservation {
    /// Releases what is reserved beyond so many bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if let Some(grant) = self.grant.as_mut().filter(|grant| grant.bytes() > bytes) {
            grant.complete(bytes);
            self.outgoing.wake();
        }
    }

    /// Attaches the reservation to its message: it ends when the last byte of the message is dropped.
    pub(crate) fn attach(mut self, message: &Message) -> Message {
        self.shrink(message.len());
        message.with_owner(&Arc::new(self))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        drop(self.grant.take());
        self.outgoing.wake();
    }
}
