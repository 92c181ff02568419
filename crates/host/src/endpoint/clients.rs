//! The connected clients, a handle to each, and which of two links of one client wins.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use breakbulk::Activity;
use breakbulk_proto::Message;
use bytes::Bytes;
use serde::Serialize;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinError;

use super::handshake::{ClientIdentity, HandshakeMethod};
use crate::error::MethodError;
use crate::lock::lock;

/// Messages of the host that wait for a connection. It takes them at once.
const DEPTH: usize = 4;

/// How many client identities are remembered. The oldest are forgotten first.
const MAX_KNOWN: usize = 1024;

/// The clients that are connected now. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Clients(Arc<Mutex<ClientTable>>);

#[derive(Debug, Default)]
struct ClientTable {
    live: HashMap<Key, ConnectedClient>,
    generations: u64,
    generation_locks: HashMap<Key, Weak<GenerationLock>>,
    /// What clients said of themselves at `initialize`, for when they reconnect.
    known: VecDeque<(Key, ClientIdentity)>,
}

/// The generation of a client's newest link. Read-locked while an action of the client is logged; write-locked by a new link,
/// which thereby waits for the actions of the older one.
type GenerationLock = tokio::sync::RwLock<u64>;

/// A client id is unique only among the clients of one principal, so that nobody can fence the client of another principal.
type Key = (Option<Arc<str>>, Arc<str>);

#[derive(Debug)]
struct ConnectedClient {
    generation: u64,
    handle: ClientHandle,
    /// Dropped when a newer link of the same client registers.
    _fence: oneshot::Sender<()>,
}

impl Clients {
    /// The handle of a principal's client, if it is connected.
    #[must_use]
    pub fn get(&self, principal: Option<&Arc<str>>, id: &str) -> Option<ClientHandle> {
        let key = (principal.cloned(), Arc::from(id));
        self.with(|table| table.live.get(&key).map(|live| live.handle.clone()))
    }

    /// How many clients are connected.
    #[must_use]
    pub fn len(&self) -> usize {
        self.with(|table| table.live.len())
    }

    /// Whether nobody is connected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins a newer link of a client. When this resolves, the actions of its older link are logged or will never be: the
    /// log now has everything that the older link did.
    pub(super) async fn acquire_lease(&self, principal: Option<Arc<str>>, id: Arc<str>) -> ClientLease {
        let key = (principal, id);
        let (generation, generation_lock) = self.with(|table| {
            table.generations = table.generations.wrapping_add(1);
            table.generation_locks.retain(|_, generation_lock| generation_lock.strong_count() > 0);
            let known = table.generation_locks.get(&key).and_then(Weak::upgrade);
            let generation_lock = known.unwrap_or_default();
            table.generation_locks.insert(key.clone(), Arc::downgrade(&generation_lock));
            (table.generations, generation_lock)
        });
        let mut newest = generation_lock.write().await;
        *newest = generation.max(*newest);
        drop(newest);
        ClientLease { key, generation, generation_lock }
    }

    /// Registers a client whose handshake is done. An older link of the same client is fenced.
    pub(super) fn register(&self, lease: ClientLease, handle: ClientHandle) -> Registration {
        let (fence, fenced) = oneshot::channel();
        let ClientLease { key, generation, .. } = &lease;
        self.with(|table| {
            if table.live.get(key).is_none_or(|live| live.generation < *generation) {
                table.live.insert(key.clone(), ConnectedClient { generation: *generation, handle, _fence: fence });
            }
        });
        Registration { clients: self.clone(), lease, fenced }
    }

    /// Remembers the identity of a client that initializes; for one that reconnects, returns the remembered identity.
    pub(super) fn remember(
        &self,
        principal: Option<Arc<str>>,
        identity: ClientIdentity,
        method: HandshakeMethod,
    ) -> ClientIdentity {
        let key = (principal, identity.id.clone());
        self.with(|table| {
            let place = table.known.iter().position(|(known, _)| *known == key);
            let before = place.and_then(|place| table.known.remove(place));
            let known =
                before.map(|(_, before)| before).filter(|_| method == HandshakeMethod::Reconnect).unwrap_or(identity);
            if table.known.len() >= MAX_KNOWN {
                table.known.pop_front();
            }
            table.known.push_back((key, known.clone()));
            known
        })
    }

    fn with<R>(&self, act: impl FnOnce(&mut ClientTable) -> R) -> R {
        act(&mut lock(&self.0))
    }
}

/// The right to act for a client, until a newer link of it comes.
#[derive(Debug, Clone)]
pub(super) struct ClientLease {
    key: Key,
    generation: u64,
    generation_lock: Arc<GenerationLock>,
}

impl ClientLease {
    /// Runs `work` for the client, to its end even if the caller stops waiting. Returns `None`, without running it, if a newer
    /// link of the client has come. Fails if the work panicked.
    pub(super) async fn run_if_current<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<Option<T>, JoinError> {
        let Self { generation, generation_lock, .. } = self.clone();
        let passed = tokio::spawn(async move {
            let newest = generation_lock.read().await;
            if *newest == generation { Some(work.await) } else { None }
        });
        passed.await
    }
}

/// A connection's registration. Dropping it unregisters the client, unless a newer link has replaced it.
#[derive(Debug)]
pub(super) struct Registration {
    clients: Clients,
    pub(super) lease: ClientLease,
    fenced: oneshot::Receiver<()>,
}

impl Registration {
    /// The number of this connection. No other connection has the same.
    pub(super) const fn generation(&self) -> u64 {
        self.lease.generation
    }

    /// Resolves when a newer link has replaced this one. Cancel-safe.
    pub(super) async fn fenced(&mut self) {
        // The sender is never used, only dropped.
        let _ = (&mut self.fenced).await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let ClientLease { key, generation, .. } = &self.lease;
        self.clients.with(|table| {
            if table.live.get(key).is_some_and(|live| live.generation == *generation) {
                table.live.remove(key);
            }
        });
    }
}

/// Sends requests and notifications to a client, for as long as its link lives. Cloning shares it.
#[derive(Debug, Clone)]
pub struct ClientHandle {
    /// Boxed, because the channel has memory for 32 of them from its beginning.
    host_messages: mpsc::Sender<Box<HostMessage>>,
    permits: Arc<Semaphore>,
    /// Noted whenever a part of a long message passes.
    activity: Activity,
    time: AnswerTimeouts,
}

/// How long a client may take to answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerTimeouts {
    /// While no part of a long message passes in either direction.
    pub(super) silent: Duration,
    /// In all.
    pub(super) most: Duration,
}

/// A request or notification of the host, for a connection to send.
#[derive(Debug)]
pub(super) struct HostMessage {
    pub(super) method: String,
    pub(super) params: Message,
    /// Receives the answer; `None` for a notification.
    pub(super) answer: Option<oneshot::Sender<Result<Bytes, MethodError>>>,
}

impl ClientHandle {
    /// A handle that allows so many requests at once, and the receiver for its connection.
    pub(super) fn new(
        max_asks: usize,
        time: AnswerTimeouts,
        activity: Activity,
    ) -> (Self, mpsc::Receiver<Box<HostMessage>>) {
        let (host_messages, taken) = mpsc::channel(DEPTH);
        (Self { host_messages, permits: Arc::new(Semaphore::new(max_asks)), activity, time }, taken)
    }

    /// Sends a request to the client; returns the JSON of its `result`. Waits while too many requests are under way.
    ///
    /// # Errors
    /// The client answered with an error or not in time, or its link is gone. It is then unknown whether the client did what
    /// it was asked.
    pub async fn ask(&self, method: &str, params: &impl Serialize) -> Result<Bytes, AskError> {
        let text = serde_json::to_vec(params).map_err(|error| AskError::Params(error.to_string()))?;
        self.ask_raw(method, Message::from(text)).await
    }

    /// As [`ask`](Self::ask), with params that are JSON already.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_raw(&self, method: &str, params: Message) -> Result<Bytes, AskError> {
        let asking = async {
            let _permit = self.permits.acquire().await.map_err(|_| AskError::Disconnected)?;
            let (answer, answered) = oneshot::channel();
            let message = HostMessage { method: method.to_owned(), params, answer: Some(answer) };
            self.host_messages.send(Box::new(message)).await.map_err(|_| AskError::Disconnected)?;
            answered.await.map_err(|_| AskError::Disconnected)?.map_err(AskError::Refused)
        };
        let AnswerTimeouts { silent, most } = self.time;
        self.activity.timeout(silent, most, asking).await.unwrap_or(Err(AskError::TimedOut(silent)))
    }

    /// Sends a notification that is not in the log, such as `progress`. Waits while much else is being sent.
    ///
    /// # Errors
    /// The link is gone.
    pub async fn notify(&self, method: &str, params: &impl Serialize) -> Result<(), AskError> {
        let text = serde_json::to_vec(params).map_err(|error| AskError::Params(error.to_string()))?;
        let message = HostMessage { method: method.to_owned(), params: Message::from(text), answer: None };
        self.host_messages.send(Box::new(message)).await.map_err(|_| AskError::Disconnected)
    }

    /// Whether its link is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.host_messages.is_closed()
    }
}

/// Why a client did not answer.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum AskError {
    /// Its link is gone.
    #[error("the client is not connected any more")]
    Disconnected,
    /// It answered with an error, or could not be asked.
    #[error(transparent)]
    Refused(#[from] MethodError),
    /// It did not answer in time.
    #[error("the client did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The params have no JSON.
    #[error("the params cannot be written as JSON: {0}")]
    Params(String),
}
