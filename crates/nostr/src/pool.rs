//! All relays of one key: events go to each of them, and what they deliver is checked once and routed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use breakbulk::{DialError, Dialer, LogLimit};
use nostr::{Event, EventId, Keys, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::warn;

use crate::address::{Encryption, NostrAddress};
use crate::event::{CLOCK_SKEW, Incoming, Reject, Seal};
use crate::publication::{Outcome, Publication};
use crate::relay::RelayTask;

/// How many ids of events are remembered, at least. Relays that share an event deliver it within seconds.
const SEEN: usize = 16_384;

/// Who gets the messages that arrive.
pub(crate) trait Router: Send + Sync {
    /// Takes a message. Its sender has proven to be the sender; whether the sender is welcome is decided here.
    fn route(&self, message: Incoming, pool: &PoolState);
}

/// All relays. When the last link and the acceptor have dropped it, the connections end.
pub(crate) struct Pool {
    pub(crate) shared: Arc<PoolState>,
    _tasks: JoinSet<()>,
}

/// What all relays share.
pub(crate) struct PoolState {
    pub(crate) keys: Keys,
    pub(crate) encryption: Encryption,
    /// Messages that were signed before this are replays.
    since: Timestamp,
    relays: Vec<RelayPort>,
    /// The longest event that all relays take, as far as they say.
    cap: AtomicU64,
    router: Box<dyn Router>,
    seen: Mutex<Seen>,
    pub(crate) log: LogLimit,
    /// How the first attempt of each relay went.
    first: watch::Sender<FirstAttempts>,
}

/// How to reach one relay's task.
struct RelayPort {
    queue: mpsc::UnboundedSender<Arc<Publication>>,
    is_connected: AtomicBool,
}

#[derive(Debug, Default)]
struct FirstAttempts {
    succeeded: usize,
    failed: usize,
    /// Why the last one failed.
    error: Option<DialError>,
}

impl Pool {
    /// Connects to all relays of an address. Frames have at most `cap` bytes on the wire.
    pub(crate) fn start(
        address: &NostrAddress,
        dialer: &Dialer,
        keys: Keys,
        cap: u64,
        router: Box<dyn Router>,
    ) -> Arc<Self> {
        let (relays, queues): (Vec<_>, Vec<_>) = address
            .relays
            .iter()
            .map(|_| {
                let (queue, queued) = mpsc::unbounded_channel();
                (RelayPort { queue, is_connected: AtomicBool::new(false) }, queued)
            })
            .unzip();
        let shared = Arc::new(PoolState {
            keys,
            encryption: address.encryption,
            since: Timestamp::from(Timestamp::now().as_secs().saturating_sub(CLOCK_SKEW)),
            relays,
            cap: AtomicU64::new(cap),
            router,
            seen: Mutex::default(),
            log: LogLimit::default(),
            first: watch::Sender::default(),
        });
        let mut tasks = JoinSet::new();
        for ((index, relay), queue) in address.relays.iter().cloned().enumerate().zip(queues) {
            tasks.spawn(RelayTask::new(index, relay, dialer.clone(), Arc::clone(&shared), queue).run());
        }
        Arc::new(Self { shared, _tasks: tasks })
    }

    /// Resolves when the first relay is connected and delivers what is for us, or when no relay could be reached.
    pub(crate) async fn ready(&self) -> Result<(), DialError> {
        let mut first = self.shared.first.subscribe();
        let count = self.shared.relays.len();
        // The sender lives as long as we do.
        let _ = first.wait_for(|first| first.succeeded > 0 || first.failed >= count).await;
        let mut error = None;
        self.shared.first.send_if_modified(|first| {
            if first.succeeded == 0 {
                error = first.error.take();
            }
            false
        });
        error.map_or(Ok(()), Err)
    }
}

impl PoolState {
    pub(crate) const fn relay_count(&self) -> usize {
        self.relays.len()
    }

    /// The longest event that all relays take, as far as they say.
    pub(crate) fn cap(&self) -> u64 {
        self.cap.load(Ordering::Relaxed)
    }

    /// A relay says that it takes no longer events.
    pub(crate) fn lower_cap(&self, cap: u64) {
        self.cap.fetch_min(cap, Ordering::Relaxed);
    }

    /// Sends an event to all relays.
    pub(crate) fn publish(&self, publication: &Arc<Publication>) {
        for relay in &self.relays {
            if relay.queue.send(Arc::clone(publication)).is_err() {
                publication.settle(Outcome::Refused(breakbulk_proto::Refusal::Other));
            }
        }
    }

    /// Whether any relay is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.relays.iter().any(|relay| relay.is_connected.load(Ordering::Relaxed))
    }

    /// Whether a relay other than this one is connected.
    pub(crate) fn has_other_than(&self, index: usize) -> bool {
        let mut others = self.relays.iter().enumerate().filter(|(at, _)| *at != index);
        others.any(|(_, relay)| relay.is_connected.load(Ordering::Relaxed))
    }

    /// A relay is connected and delivers what is for us.
    pub(crate) fn connected(&self, index: usize) {
        self.set_connected(index, true);
        self.first.send_modify(|first| first.succeeded = first.succeeded.saturating_add(1));
    }

    /// The connection to a relay was lost, or could not be made.
    pub(crate) fn disconnected(&self, index: usize, error: Option<DialError>) {
        self.set_connected(index, false);
        self.first.send_modify(|first| {
            first.failed = first.failed.saturating_add(1);
            first.error = error.or(first.error.take());
        });
    }

    fn set_connected(&self, index: usize, is_connected: bool) {
        if let Some(relay) = self.relays.get(index) {
            relay.is_connected.store(is_connected, Ordering::Relaxed);
        }
    }

    /// Takes an event that a relay delivered. What is no message for us is dropped, counted by the name of the reason.
    pub(crate) fn receive(&self, event: Event) {
        let id = event.id;
        if self.seen().contains(&id) {
            return;
        }
        let message = match Incoming::open(&self.keys, event, self.since) {
            Ok(message) => message,
            Err(Reject::NotForUs) => return,
            Err(reject) => {
                if let Some(permit) = self.log.permit(reject.name()) {
                    warn!(reason = reject.name(), left_out = permit.left_out(), "an event of a relay was dropped");
                }
                return;
            }
        };
        // The outer id is remembered only now: a relay could put the id of one event on another. A wrap is not verified itself, so an
        // outer id counts only if what is inside is new.
        if !self.seen().insert(message.name) {
            return;
        }
        self.seen().insert(id);
        let is_welcome = match self.encryption {
            Encryption::Optional => true,
            Encryption::Required => message.seal != Seal::Plain,
            Encryption::Off => message.seal == Seal::Plain,
        };
        if is_welcome {
            self.router.route(message, self);
        } else if let Some(permit) = self.log.permit("encryption") {
            let left_out = permit.left_out();
            warn!(encryption = ?self.encryption, left_out, "a message was dropped, because it is not sealed as it has to be");
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ids of the last events.
#[derive(Debug, Default)]
struct Seen {
    fresh: HashSet<EventId>,
    old: HashSet<EventId>,
}

impl Seen {
    fn contains(&self, id: &EventId) -> bool {
        self.fresh.contains(id) || self.old.contains(id)
    }

    /// Notes an id. Returns false if it was there.
    fn insert(&mut self, id: EventId) -> bool {
        if self.contains(&id) {
            return false;
        }
        if self.fresh.len() >= SEEN {
            self.old = std::mem::take(&mut self.fresh);
        }
        self.fresh.insert(id)
    }
}
