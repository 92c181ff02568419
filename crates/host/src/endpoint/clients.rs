//! Who is connected, the way to each, and which of two links of one client wins.

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

use super::greeting::Introduced;
use crate::error::MethodError;
use crate::lock::lock;

/// Orders that wait to be taken up by a connection: it takes them at once.
const DEPTH: usize = 4;

/// Clients whose introduction is remembered: the oldest are forgotten first.
const MAX_KNOWN: usize = 1024;

/// The clients that are connected now. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Clients(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    live: HashMap<Key, Live>,
    generations: u64,
    turnstiles: HashMap<Key, Weak<Turnstile>>,
    /// What clients said of themselves, for when they come back.
    known: VecDeque<(Key, Introduced)>,
}

/// Lets in the actions of one link of a client, and of an older one no more. Read-locked while an action is being logged,
/// write-locked by a new link.
type Turnstile = tokio::sync::RwLock<u64>;

/// A client id counts only among the clients of one principal: nobody can fence a stranger.
type Key = (Option<Arc<str>>, Arc<str>);

#[derive(Debug)]
struct Live {
    generation: u64,
    handle: ClientHandle,
    /// Dropped when a newer link of the same client comes.
    _fence: oneshot::Sender<()>,
}

impl Clients {
    /// The way to a client of a principal, if it is connected.
    #[must_use]
    pub fn get(&self, principal: Option<&Arc<str>>, id: &str) -> Option<ClientHandle> {
        let key = (principal.cloned(), Arc::from(id));
        self.with(|table| table.live.get(&key).map(|live| live.handle.clone()))
    }

    /// How many are connected.
    #[must_use]
    pub fn len(&self) -> usize {
        self.with(|table| table.live.len())
    }

    /// Whether nobody is connected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A client is coming in. When this answers, what it had under way on an older link is done, and nothing more comes
    /// of that: what the log has now is all that the client will ever learn of it.
    pub(super) async fn arrive(&self, principal: Option<Arc<str>>, id: Arc<str>) -> Arrived {
        let key = (principal, id);
        let (generation, turnstile) = self.with(|table| {
            table.generations = table.generations.wrapping_add(1);
            table.turnstiles.retain(|_, turnstile| turnstile.strong_count() > 0);
            let known = table.turnstiles.get(&key).and_then(Weak::upgrade);
            let turnstile = known.unwrap_or_default();
            table.turnstiles.insert(key.clone(), Arc::downgrade(&turnstile));
            (table.generations, turnstile)
        });
        let mut newest = turnstile.write().await;
        *newest = generation.max(*newest);
        drop(newest);
        Arrived { key, generation, turnstile }
    }

    /// A client has come in. Of two links of the same client the older is fenced.
    pub(super) fn register(&self, arrived: Arrived, handle: ClientHandle) -> Registration {
        let (fence, fenced) = oneshot::channel();
        let Arrived { key, generation, .. } = &arrived;
        self.with(|table| {
            if table.live.get(key).is_none_or(|live| live.generation < *generation) {
                table.live.insert(key.clone(), Live { generation: *generation, handle, _fence: fence });
            }
        });
        Registration { clients: self.clone(), arrived, fenced }
    }

    /// Remembers what a client says of itself; or, when it comes back, says what it said before.
    pub(super) fn acquaint(&self, principal: Option<Arc<str>>, introduced: Introduced, is_new: bool) -> Introduced {
        let key = (principal, introduced.id.clone());
        self.with(|table| {
            let place = table.known.iter().position(|(known, _)| *known == key);
            let before = place.and_then(|place| table.known.remove(place));
            let known = before.map(|(_, before)| before).filter(|_| !is_new).unwrap_or(introduced);
            if table.known.len() >= MAX_KNOWN {
                table.known.pop_front();
            }
            table.known.push_back((key, known.clone()));
            known
        })
    }

    fn with<R>(&self, act: impl FnOnce(&mut Table) -> R) -> R {
        act(&mut lock(&self.0))
    }
}

/// A client that is coming in on a new link.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    key: Key,
    generation: u64,
    turnstile: Arc<Turnstile>,
}

impl Arrived {
    /// Does something in the client's name to its end, also if nobody waits for that any more; nothing, and `None`, if a
    /// newer link of the client is coming in. Fails if the work panicked.
    pub(super) async fn pass<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<Option<T>, JoinError> {
        let Self { generation, turnstile, .. } = self.clone();
        let passed = tokio::spawn(async move {
            let newest = turnstile.read().await;
            if *newest == generation { Some(work.await) } else { None }
        });
        passed.await
    }
}

/// A connection's place among the clients. Dropping it leaves, unless a newer link has taken the place.
#[derive(Debug)]
pub(super) struct Registration {
    clients: Clients,
    pub(super) arrived: Arrived,
    fenced: oneshot::Receiver<()>,
}

impl Registration {
    /// The number of this connection: no other has the same.
    pub(super) const fn generation(&self) -> u64 {
        self.arrived.generation
    }

    /// Waits until a newer link has taken the place. Cancel-safe.
    pub(super) async fn fenced(&mut self) {
        // The sender is never used, only dropped.
        let _ = (&mut self.fenced).await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Arrived { key, generation, .. } = &self.arrived;
        self.clients.with(|table| {
            if table.live.get(key).is_some_and(|live| live.generation == *generation) {
                table.live.remove(key);
            }
        });
    }
}

/// The way to a client, for as long as its link lives. Cloning shares it.
#[derive(Debug, Clone)]
pub struct ClientHandle {
    orders: mpsc::Sender<Order>,
    permits: Arc<Semaphore>,
    /// Parts of long messages that pass.
    activity: Activity,
    time: AskTime,
}

/// How long a client may take to answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskTime {
    /// Without any part of a long message that passes, either way.
    pub(super) silent: Duration,
    /// In all.
    pub(super) most: Duration,
}

/// What a connection is told to send.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) method: String,
    pub(super) params: Message,
    /// Who waits for the answer; `None` for a notification.
    pub(super) answer: Option<oneshot::Sender<Result<Bytes, MethodError>>>,
}

impl ClientHandle {
    /// A way with room for so many requests at once.
    pub(super) fn new(max_asks: usize, time: AskTime, activity: Activity) -> (Self, mpsc::Receiver<Order>) {
        let (orders, taken) = mpsc::channel(DEPTH);
        (Self { orders, permits: Arc::new(Semaphore::new(max_asks)), activity, time }, taken)
    }

    /// Asks the client; answers with the JSON of its `result`. Waits its turn when many are under way.
    ///
    /// # Errors
    /// The client answered with an error, not in time, or its link is gone. Whether it did what it was asked is then not
    /// known.
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
            let order = Order { method: method.to_owned(), params, answer: Some(answer) };
            self.orders.send(order).await.map_err(|_| AskError::Disconnected)?;
            answered.await.map_err(|_| AskError::Disconnected)?.map_err(AskError::Refused)
        };
        let AskTime { silent, most } = self.time;
        self.activity.timeout(silent, most, asking).await.unwrap_or(Err(AskError::TimedOut(silent)))
    }

    /// Tells the client something that is not in the log, such as `progress`. Waits while much else is on its way.
    ///
    /// # Errors
    /// The link is gone.
    pub async fn notify(&self, method: &str, params: &impl Serialize) -> Result<(), AskError> {
        let text = serde_json::to_vec(params).map_err(|error| AskError::Params(error.to_string()))?;
        let order = Order { method: method.to_owned(), params: Message::from(text), answer: None };
        self.orders.send(order).await.map_err(|_| AskError::Disconnected)
    }

    /// Whether its link is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.orders.is_closed()
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
