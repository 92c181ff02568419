//! What a connection reads from the log: its subscriptions, and a tail that a pending read owns while it waits.

use std::collections::HashMap;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::log::{Channels, Entry, ReadError, Seq, Tail};

/// A client's subscription to a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Subscription {
    /// The client has everything up to this seq, from a snapshot or from entries that were sent.
    pub(super) known: Seq,
    /// How long its deltas may be delayed, so that later ones are merged into them.
    pub(super) latency: Duration,
    /// Whether the client may have only the last turns of the chat.
    pub(super) is_windowed: bool,
}

/// The subscriptions of a client, by channel.
pub(super) type Subscriptions = HashMap<Arc<str>, Subscription>;

/// Reads the entries of the subscribed channels.
pub(super) struct LogReader {
    subscriptions: Subscriptions,
    pull: Pull,
    /// Everything up to here was read or skipped.
    position: Seq,
    /// Whether the subscriptions changed while a pending read owned the tail.
    stale: bool,
}

enum Pull {
    Idle(Box<dyn Tail>),
    /// A future that waits for entries owns the tail. Dropping `interrupt` ends it early.
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

    /// Everything up to here was read or skipped.
    pub(super) const fn position(&self) -> Seq {
        self.position
    }

    pub(super) fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// Whether no read is pending: the position stays the same until [`begin`](Self::begin).
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.pull, Pull::Idle(_))
    }

    /// Begins to read entries, up to `max_bytes` of them, if there are subscriptions.
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

    /// Ends a pending read soon: [`pulled`](Self::pulled) then returns what was read, or nothing.
    pub(super) fn interrupt(&mut self) {
        if let Pull::PendingRead { interrupt, .. } = &mut self.pull {
            *interrupt = None;
        }
    }

    /// The entries of the pending read; never resolves while idle. Cancel-safe.
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

    /// Goes back to before an entry: it and all later ones are read again. The reader must be idle.
    pub(super) fn rewind(&mut self, seq: Seq) {
        if let Pull::Idle(tail) = &mut self.pull {
            self.position = seq.saturating_sub(1);
            tail.seek(self.position);
        }
    }

    /// Whether the client still has to get an entry.
    pub(super) fn wants(&self, entry: &Entry) -> bool {
        self.subscriptions.get(&entry.channel).is_some_and(|subscription| entry.seq > subscription.known)
    }

    /// Marks an entry as delivered; returns its subscription, or `None` if the client does not need the entry.
    pub(super) fn mark_delivered(&mut self, entry: &Entry) -> Option<Subscription> {
        let subscription = self.subscriptions.get_mut(&entry.channel)?;
        (entry.seq > subscription.known).then(|| {
            subscription.known = entry.seq;
            *subscription
        })
    }

    /// Subscribes to a channel, after the seq that the client has. The reader must be idle.
    pub(super) fn follow(&mut self, channel: Arc<str>, subscription: Subscription) {
        let is_first = self.subscriptions.is_empty();
        self.subscriptions.insert(channel, subscription);
        self.tell();
        // Without subscriptions nothing before this seq is needed.
        if let Pull::Idle(tail) = &mut self.pull
            && is_first
            && subscription.known > tail.position()
        {
            tail.seek(subscription.known);
            self.position = subscription.known;
        }
    }

    /// Unsubscribes from a channel. Its entries in a pending read are skipped.
    pub(super) fn leave(&mut self, channel: &str) {
        if self.subscriptions.remove(channel).is_some() {
            self.tell();
        }
    }

    /// Sets the channels of the tail: now, or when the pending read has ended.
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
