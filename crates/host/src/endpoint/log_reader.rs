//! What a connection pulls from the log: its channels, and a tail that is lent out while it waits.

use std::collections::HashMap;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::log::{Channels, Entry, ReadError, Seq, Tail};

/// A channel that a client follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Subscription {
    /// Everything up to this seq is known to the client already, from a snapshot.
    pub(super) known: Seq,
    /// How long its deltas may wait for more of their kind.
    pub(super) latency: Duration,
    /// The client may not have all turns of it.
    pub(super) is_windowed: bool,
}

/// The channels that a client follows.
pub(super) type Subscriptions = HashMap<Arc<str>, Subscription>;

/// A tail with its subscriptions.
pub(super) struct LogReader {
    subscriptions: Subscriptions,
    pull: Pull,
    /// Everything up to here was pulled or passed over.
    position: Seq,
    /// What is followed has changed while the tail was away.
    stale: bool,
}

enum Pull {
    Idle(Box<dyn Tail>),
    /// The tail is with a future that waits for entries. Dropping `interrupt` brings it back.
    PendingRead {
        waiting: PendingRead,
        interrupt: Option<oneshot::Sender<()>>,
    },
}

type Pulled = Result<Vec<Entry>, ReadError>;
type PendingRead = Pin<Box<dyn Future<Output = (Box<dyn Tail>, Pulled)> + Send>>;

impl LogReader {
    /// A tail that follows these channels already.
    pub(super) fn new(tail: Box<dyn Tail>, subscriptions: Subscriptions) -> Self {
        Self { subscriptions, position: tail.position(), pull: Pull::Idle(tail), stale: false }
    }

    /// Everything up to here was pulled or passed over.
    pub(super) const fn position(&self) -> Seq {
        self.position
    }

    pub(super) fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// The tail is here, and the position stands still until [`begin`](Self::begin).
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.pull, Pull::Idle(_))
    }

    /// Begins to wait for entries, up to `max_bytes` of them, if there is anything to follow.
    pub(super) fn begin(&mut self, max_bytes: usize) {
        if self.subscriptions.is_empty() {
            return;
        }
        let (interrupt, recalled) = oneshot::channel::<()>();
        self.replace(|pull| match pull {
            Pull::Idle(mut tail) => {
                let waiting: PendingRead = Box::pin(async move {
                    let pulled = tokio::select! {
                        pulled = tail.next(max_bytes) => pulled,
                        _ = recalled => Ok(Vec::new()),
                    };
                    (tail, pulled)
                });
                Pull::PendingRead { waiting, interrupt: Some(interrupt) }
            }
            waiting => waiting,
        });
    }

    /// Brings the tail back, soon: [`pulled`](Self::pulled) then returns what it has, or nothing.
    pub(super) fn interrupt(&mut self) {
        if let Pull::PendingRead { interrupt, .. } = &mut self.pull {
            *interrupt = None;
        }
    }

    /// The next entries; never, while idle. Cancel-safe.
    pub(super) async fn pulled(&mut self) -> Pulled {
        let Pull::PendingRead { waiting, .. } = &mut self.pull else { return pending().await };
        let (tail, pulled) = waiting.await;
        self.position = tail.position();
        self.pull = Pull::Idle(tail);
        if self.stale {
            self.tell();
        }
        pulled
    }

    /// Goes back to before an entry: it and all behind it are pulled again. The tail must be idle.
    pub(super) fn rewind(&mut self, seq: Seq) {
        if let Pull::Idle(tail) = &mut self.pull {
            self.position = seq.saturating_sub(1);
            tail.seek(self.position);
        }
    }

    /// Whether a client still has to hear of an entry.
    pub(super) fn wants(&self, entry: &Entry) -> bool {
        self.subscriptions.get(&entry.channel).is_some_and(|subscription| entry.seq > subscription.known)
    }

    /// The subscription for which a client still has to hear of an entry. It is known from then on.
    pub(super) fn mark_delivered(&mut self, entry: &Entry) -> Option<Subscription> {
        let subscription = self.subscriptions.get_mut(&entry.channel)?;
        (entry.seq > subscription.known).then(|| {
            subscription.known = entry.seq;
            *subscription
        })
    }

    /// Follows a channel from behind what is known of it. The tail must be idle.
    pub(super) fn follow(&mut self, channel: Arc<str>, subscription: Subscription) {
        let is_first = self.subscriptions.is_empty();
        self.subscriptions.insert(channel, subscription);
        self.tell();
        // What nobody followed does not have to be passed over.
        if let Pull::Idle(tail) = &mut self.pull
            && is_first
            && subscription.known > tail.position()
        {
            tail.seek(subscription.known);
            self.position = subscription.known;
        }
    }

    /// Follows a channel no more. What is pulled of it until the tail is back is passed over.
    pub(super) fn leave(&mut self, channel: &str) {
        if self.subscriptions.remove(channel).is_some() {
            self.tell();
        }
    }

    /// Says what is followed, if the tail is here; else when it is back.
    fn tell(&mut self) {
        if let Pull::Idle(tail) = &mut self.pull {
            tail.follow(Channels::only(self.subscriptions.keys().cloned()));
            self.stale = false;
        } else {
            self.stale = true;
            self.interrupt();
        }
    }

    fn replace(&mut self, change: impl FnOnce(Pull) -> Pull) {
        let gone = Pull::PendingRead { waiting: Box::pin(pending()), interrupt: None };
        self.pull = change(std::mem::replace(&mut self.pull, gone));
    }
}
