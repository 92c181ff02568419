//! The memory that connections may use, and who may wait for whom.
//!
//! Every byte that a connection holds belongs to one of four shares, each of which is a [`Budget`] or a semaphore of its
//! own:
//!
//! - **frames**: frames that are arriving in the links;
//! - **incoming**: messages that are arriving, and requests from then on until their work is done and their last copy is
//!   gone. The grant of an arriving message goes on with its [`Job`](super::jobs::Job);
//! - **work**: how many bytes of large requests are parsed, checked and logged at the same time. A request of this size has
//!   up to four copies then: its text, what was parsed, the entry of the log, and what the state makes of it;
//! - **outgoing**: answers, snapshots and actions, until the link has written them. They are paid for before they are made,
//!   and the payment goes with their bytes ([`Message::with_owner`]), so it ends where the last copy does. What many clients
//!   get is paid for once.
//!
//! Each connection has a floor in each share: small messages never wait. What is larger than a whole share takes all of it,
//! alone.
//!
//! # Nobody waits for ever
//!
//! A frame waits for the frames of others, which arrive or are evicted. A message waits for *incoming*, holding no part of it.
//! A request waits for *work*, holding *incoming*; whoever has *work* waits for the log and the state alone, never for a peer
//! and never for another share. An answer waits for *outgoing* holding its request, which is small, or has been let go of; who
//! holds *outgoing* waits for its own peer to read. So the only waiting on a peer is for *outgoing*, and that is bounded
//! twice: a client that takes nothing is closed early while others wait ([`OutgoingMemory::under_pressure`]), and who has waited for
//! [`MemoryConfig::wait`] gets an error or a close that says so (1013).

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

/// The `reason` of an error for which there was no memory.
const NO_MEMORY: &str = "noMemory";

/// What connections may hold beside the messages that are arriving, which have the [`Budget`] of their endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Bytes of frames that are arriving, on all links together. 16 MiB.
    pub frame_bytes: u64,
    /// Bytes of large requests that are worked on at the same time; one may be larger. 32 MiB.
    pub work_bytes: u64,
    /// Bytes of answers, snapshots and actions on their way out, by all connections together. 96 MiB.
    pub outgoing_bytes: u64,
    /// The same, by all connections of one principal together. 96 MiB.
    pub principal_bytes: u64,
    /// What each connection may hold of each of these without asking. 64 KiB.
    pub floor_bytes: u64,
    /// How long an answer may wait for memory before its request fails. 30 s.
    pub wait: Duration,
    /// How long an answer waits before clients are closed that take nothing; and for how long they may take nothing then. 3 s.
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
#[error("no memory for {bytes} bytes to this client in {} s: other answers are not read; ask again later", waited.as_secs())]
pub struct NoMemory {
    /// What was asked for.
    pub bytes: u64,
    /// How long it was waited for.
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
    /// What the `data` of such an error says.
    pub(super) fn of(data: &Value) -> Option<Self> {
        let waited = data["waitedMs"].as_u64().filter(|_| data["reason"] == NO_MEMORY)?;
        Some(Self { bytes: data["size"].as_u64()?, waited: Duration::from_millis(waited) })
    }
}

/// How many requests are worked on, by their bytes.
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

    /// Waits until a request of so many bytes may be worked on, in the order of asking. A small one need not ask.
    pub(super) async fn begin(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes <= self.floor {
            return None;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.all);
        Arc::clone(&self.free).acquire_many_owned(bytes).await.ok()
    }
}

/// The share of what is on its way out. Cloning shares it.
#[derive(Debug, Clone)]
pub(super) struct OutgoingMemory(Arc<OutgoingInner>);

#[derive(Debug)]
struct OutgoingInner {
    budget: Budget,
    wait: Duration,
    patience: Duration,
    queue: Mutex<WaitQueue>,
    /// Changes when something was let go of, and when there is a snapshot that others may share.
    changed: watch::Sender<()>,
    /// Whether somebody has waited for longer than [`MemoryConfig::patience`].
    under_pressure: watch::Sender<bool>,
}

/// Who waits, in the order of asking. Each principal has a queue of its own, because its quota may be what it waits for.
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

    /// What one connection may hold.
    pub(super) fn account(&self, principal: Option<Arc<str>>) -> AnswerMemory {
        let account = Arc::new(self.0.budget.account(principal.as_deref()));
        AnswerMemory { outgoing: self.clone(), account, principal }
    }

    /// Whether somebody has waited for longer than [`MemoryConfig::patience`]: then clients go that take nothing.
    pub(super) fn under_pressure(&self) -> watch::Receiver<bool> {
        self.0.under_pressure.subscribe()
    }

    /// Bytes that are held now, floors counted.
    pub(super) fn held(&self) -> u64 {
        self.0.budget.held()
    }

    /// Wakes those who wait: there is something that they may share.
    pub(super) fn wake(&self) {
        self.0.changed.send_replace(());
    }
}

/// The memory that answers to one client may take, until the link has written them. Cloning shares it.
#[derive(Debug, Clone)]
pub struct AnswerMemory {
    outgoing: OutgoingMemory,
    account: Arc<Account>,
    principal: Option<Arc<str>>,
}

impl AnswerMemory {
    /// Waits for memory for so many bytes, in the order of asking.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Reservation, NoMemory> {
        let mut turn = self.turn();
        loop {
            if let Some(reservation) = turn.try_reserve(bytes) {
                return Ok(reservation);
            }
            turn.wait(bytes).await?;
        }
    }

    /// A place in the order of asking.
    pub(super) fn turn(&self) -> WaitTicket {
        let inner = &self.outgoing.0;
        let mut queue = lock(&inner.queue);
        queue.tickets = queue.tickets.saturating_add(1);
        let ticket = queue.tickets;
        queue.waiting.entry(self.principal.clone()).or_default().insert(ticket);
        drop(queue);
        WaitTicket { memory: self.clone(), ticket, begun: Instant::now(), changed: inner.changed.subscribe() }
    }

    /// Memory for so many bytes, if there is some now.
    pub(super) fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let config = self.outgoing.0.budget.config();
        let most = config.floor_bytes.saturating_add(config.process_bytes.min(config.principal_bytes));
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).min(most);
        let schedule = Schedule { started: Instant::now().into_std(), timeout: Duration::MAX };
        let mut grant = self.account.reserve(bytes, schedule).ok()?;
        // It is not on its way in, and never has to go.
        grant.complete(bytes);
        Some(Reservation { grant: Some(grant), outgoing: self.outgoing.clone() })
    }
}

/// A place in the order of asking, until it is dropped.
#[derive(Debug)]
pub(super) struct WaitTicket {
    memory: AnswerMemory,
    ticket: u64,
    begun: Instant,
    changed: watch::Receiver<()>,
}

impl WaitTicket {
    /// Memory for so many bytes, if there is some now and nobody has asked before; or if it is within the floor.
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

    /// As [`try_reserve`](Self::try_reserve), for the rest of something of which so much is paid for. If nobody else holds
    /// anything, it is let pass.
    pub(super) fn try_reserve_beside(&mut self, bytes: usize, own: u64) -> Option<Reservation> {
        let reservation = self.try_reserve(bytes);
        let is_alone = || own > 0 && self.memory.outgoing.0.budget.used() <= own;
        reservation.or_else(|| is_alone().then(|| Reservation { grant: None, outgoing: self.memory.outgoing.clone() }))
    }

    /// Waits until something has changed since the last attempt.
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
            // It is the next one's turn.
            self.memory.outgoing.wake();
        }
    }
}

/// Memory that is set aside for something on its way out. Dropping it gives the memory back.
#[derive(Debug)]
pub(crate) struct Reservation {
    grant: Option<Grant>,
    outgoing: OutgoingMemory,
}

impl Reservation {
    /// Gives back what is set aside beyond so many bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if let Some(grant) = self.grant.as_mut().filter(|grant| grant.bytes() > bytes) {
            grant.complete(bytes);
            self.outgoing.wake();
        }
    }

    /// The message, which is what was paid for: when the last byte of it is let go of, so is the memory.
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
