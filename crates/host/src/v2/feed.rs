//! A session's events, made and encoded once for all who watch it.
//!
//! A feed follows the log with one projector. It holds the newest events, up to a limit; a watcher that needs older ones
//! makes them itself ([`Rewind`]). So a feed never waits for a watcher, and a slow one costs no memory.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use breakbulk_lifecycle::projection::{Entry, Projection};
use breakbulk_lifecycle::v2::Projector;
use breakbulk_lifecycle::v2::wire::{Event, SessionState};
use bytes::Bytes;
use tokio::sync::{OnceCell, watch};
use tokio::task::AbortHandle;
use tracing::warn;

use super::moment::{Moment, SessionContext};
use super::permissions::PermissionTimers;
use super::reader::{SessionReader, Wait};
use super::rewind::{Rewind, Rewound, resume, rewind};
use crate::endpoint::AnswerMemory;
use crate::endpoint::memory::Reservation;
use crate::exact;
use crate::lock::lock;
use crate::log::Seq;
use crate::state::StateError;

/// How many bytes a feed reads from the log at once.
const READ_BYTES: usize = 64 << 10;

/// The bytes of events that a feed may always hold, by how much it asks for more when it has more, and how often.
const FLOOR_BYTES: usize = 64 << 10;
const STEP_BYTES: usize = 64 << 10;
const MAX_STEPS: usize = 3;

/// How long the erasing of a session waits for its feed.
const ERASE_WAIT: Duration = Duration::from_secs(1);

/// The feeds of the sessions and chats that somebody watches, by the name that clients use.
#[derive(Default)]
pub(crate) struct Feeds(Mutex<HashMap<String, OpenFeed>>);

/// A feed that may have ended.
struct OpenFeed {
    session: Arc<str>,
    slot: Weak<FeedSlot>,
}

/// The feed of a session, once it is open. It ends with its last user.
#[derive(Default)]
pub(super) struct FeedSlot(OnceCell<Arc<Feed>>);

impl Feeds {
    /// The feed of a session. It is opened if nobody watches the session yet.
    pub(super) async fn get(
        &self,
        context: &SessionContext,
        memory: &AnswerMemory,
        timers: &Arc<PermissionTimers>,
    ) -> Result<(Arc<FeedSlot>, Arc<Feed>), StateError> {
        let slot = {
            let mut feeds = lock(&self.0);
            feeds.retain(|_, open| open.slot.strong_count() > 0);
            let name = context.config.session_id.to_string();
            let known = feeds.get(&name).and_then(|open| open.slot.upgrade());
            let slot = known.filter(|slot| slot.0.get().is_none_or(|feed| !feed.is_lost())).unwrap_or_default();
            feeds.insert(name, OpenFeed { session: Arc::clone(&context.config.session), slot: Arc::downgrade(&slot) });
            slot
        };
        let feed = slot.0.get_or_try_init(|| Feed::open(context.clone(), memory, timers)).await?;
        let feed = Arc::clone(feed);
        Ok((slot, feed))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).values().filter(|open| open.slot.strong_count() > 0).count()
    }

    /// Waits a while until the watchers of a session can be told of everything up to an entry of the session, which is about
    /// to be erased.
    pub(crate) async fn reached(&self, session: &str, seq: Seq) {
        let slots: Vec<_> = {
            let feeds = lock(&self.0);
            let own = feeds.values().filter(|open| *open.session == *session);
            own.filter_map(|open| open.slot.upgrade()).collect()
        };
        let all = async {
            for feed in slots.iter().filter_map(|slot| slot.0.get()) {
                let mut moved = feed.subscribe();
                // The feed, which holds the sender, is held here.
                drop(moved.wait_for(|()| feed.standing().seq >= seq).await);
            }
        };
        drop(tokio::time::timeout(ERASE_WAIT, all).await);
    }
}

/// A session's events.
pub(super) struct Feed {
    inner: Mutex<Inner>,
    /// Changes when there are new events.
    moved: watch::Sender<()>,
    task: Mutex<Option<AbortHandle>>,
    memory: AnswerMemory,
}

struct Inner {
    projector: Projector,
    /// The events that are held, by entry.
    events: VecDeque<EntryEvents>,
    bytes: usize,
    /// The memory for what is held beyond the floor.
    reservations: Vec<Reservation>,
    /// Events of entries after this one are held.
    after: Seq,
    /// The last entry that the projector has taken.
    applied: Seq,
    /// The same of each channel.
    applied_on: HashMap<Arc<str>, Seq>,
    /// The projector began with the entry after this one.
    begun_after: Seq,
    is_lost: bool,
}

/// The events of one entry, each as it is sent.
struct EntryEvents {
    seq: Seq,
    events: Vec<Bytes>,
    bytes: usize,
}

/// What a watcher is given.
pub(super) enum FeedRead {
    /// Events, and the position after them.
    Events(Vec<Bytes>, Seq),
    /// There is nothing new.
    Nothing,
    /// The feed does not hold what the watcher needs.
    Behind,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) state: SessionState,
    pub(super) is_over: bool,
    /// The last entry that this is known from.
    pub(super) seq: Seq,
}

/// How the projector of a feed compares with states that were read.
pub(super) enum Comparison<T> {
    /// It has taken exactly their entries.
    Same(T),
    /// It will soon.
    Behind,
    /// It has taken more: they have to be read again.
    Ahead,
}

impl Feed {
    async fn open(
        context: SessionContext,
        memory: &AnswerMemory,
        timers: &Arc<PermissionTimers>,
    ) -> Result<Arc<Self>, StateError> {
        let upto = context.log.bounds().await?.last;
        context.state.reached_on(&context.config.session, upto).await?;
        context.state.reached_on(&context.config.chat, upto).await?;
        let (Rewound { projector, mut reader, complete_after }, moment) = match rewind(&context, upto).await? {
            Rewind::Done(rewound) => (*rewound, None),
            Rewind::Trimmed | Rewind::Uncertain => {
                let (rewound, moment) = resume(&context).await?;
                (rewound, Some(moment))
            }
        };
        let begun_after = reader.position();
        let inner = Inner {
            projector,
            events: VecDeque::new(),
            bytes: 0,
            reservations: Vec::new(),
            after: complete_after,
            applied: begun_after,
            applied_on: moment.map(|moment| moment.seqs.into_iter().collect()).unwrap_or_default(),
            begun_after,
            is_lost: false,
        };
        let feed = Arc::new(Self {
            inner: Mutex::new(inner),
            moved: watch::Sender::new(()),
            task: Mutex::default(),
            memory: memory.clone(),
        });
        loop {
            let page = reader.next(READ_BYTES, Wait::Never).await?;
            feed.take_entries(page.entries);
            if page.is_end {
                break;
            }
        }
        feed.expect_permissions(&context, timers);
        let task = tokio::spawn(follow(Arc::downgrade(&feed), context, Arc::clone(timers), reader));
        *lock(&feed.task) = Some(task.abort_handle());
        Ok(feed)
    }

    /// Applies entries, and holds what they tell.
    fn take_entries(&self, entries: Vec<Entry>) {
        let mut inner = self.inner();
        let mut told = Vec::new();
        for entry in entries {
            let (seq, channel) = (entry.seq, Arc::clone(&entry.channel));
            inner.projector.apply(entry, &mut told);
            inner.applied = inner.applied.max(seq);
            inner.applied_on.insert(channel, seq);
            let events = encoded(&told);
            told.clear();
            if !events.is_empty() {
                inner.hold(seq, events, &self.memory);
            }
        }
        drop(inner);
        self.moved.send_replace(());
    }

    /// Sees to it that permissions are denied when their time is over: a client was told when that is.
    fn expect_permissions(&self, context: &SessionContext, timers: &Arc<PermissionTimers>) {
        for permission in self.inner().projector.permissions() {
            timers.expect(&context.config.session, &permission);
        }
    }

    /// Events after this position, about so many bytes of them.
    pub(super) fn take(&self, position: Seq, max_bytes: usize) -> FeedRead {
        let inner = self.inner();
        if inner.is_lost || position < inner.after {
            return FeedRead::Behind;
        }
        let begin = inner.events.partition_point(|held| held.seq <= position);
        let (mut events, mut bytes, mut reached) = (Vec::new(), 0_usize, position);
        for held in inner.events.range(begin..) {
            events.extend(held.events.iter().cloned());
            (bytes, reached) = (bytes.saturating_add(held.bytes), held.seq);
            if bytes >= max_bytes {
                return FeedRead::Events(events, reached);
            }
        }
        if events.is_empty() { FeedRead::Nothing } else { FeedRead::Events(events, reached.max(inner.applied)) }
    }

    /// Whether a watcher at this position finds what it needs.
    pub(super) fn holds_after(&self, position: Seq) -> bool {
        let inner = self.inner();
        !inner.is_lost && position >= inner.after
    }

    /// Resolves when there may be something new since the receiver last looked.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.moved.subscribe()
    }

    /// What the session is doing, as far as the feed has come.
    pub(super) fn standing(&self) -> Standing {
        let inner = self.inner();
        Standing { state: inner.projector.state(), is_over: inner.projector.is_over(), seq: inner.applied }
    }

    /// Passes the projector and the last entry that it has taken.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Projector, Seq) -> T) -> T {
        let inner = self.inner();
        look(&inner.projector, inner.applied)
    }

    /// Passes the projector, if it has taken exactly the entries that these states contain.
    pub(super) fn compare<T>(&self, moment: &Moment, look: impl FnOnce(&Projector, Seq) -> T) -> Comparison<T> {
        let inner = self.inner();
        for (channel, seq) in &moment.seqs {
            // Entries from before the projector began are part of what it began with.
            let applied = inner.applied_on.get(channel).copied().unwrap_or(inner.begun_after);
            if applied < *seq {
                return Comparison::Behind;
            }
            if inner.applied_on.contains_key(channel) && applied > *seq {
                return Comparison::Ahead;
            }
        }
        Comparison::Same(look(&inner.projector, inner.applied))
    }

    /// Whether the feed cannot go on: another one takes its place.
    pub(super) fn is_lost(&self) -> bool {
        self.inner().is_lost
    }

    fn lose(&self) {
        self.inner().is_lost = true;
        self.moved.send_replace(());
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

impl Inner {
    /// Holds events, and drops the oldest that there is no memory for.
    fn hold(&mut self, seq: Seq, events: Vec<Bytes>, memory: &AnswerMemory) {
        let bytes = events.iter().map(Bytes::len).sum();
        self.events.push_back(EntryEvents { seq, events, bytes });
        self.bytes = self.bytes.saturating_add(bytes);
        while self.bytes > self.max_bytes() && self.reservations.len() < MAX_STEPS {
            let Some(reservation) = memory.try_reserve_spare(STEP_BYTES) else { break };
            self.reservations.push(reservation);
        }
        while self.bytes > self.max_bytes() && self.events.len() > 1 {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.bytes);
            self.after = oldest.seq;
        }
    }

    fn max_bytes(&self) -> usize {
        FLOOR_BYTES.saturating_add(self.reservations.len().saturating_mul(STEP_BYTES))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

impl fmt::Debug for Feeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feeds").field("open", &self.len()).finish_non_exhaustive()
    }
}

/// Follows the log until nobody watches the session any more, or the log cannot be read.
async fn follow(feed: Weak<Feed>, context: SessionContext, timers: Arc<PermissionTimers>, mut reader: SessionReader) {
    loop {
        let read = reader.next(READ_BYTES, Wait::ForEntries).await;
        let Some(feed) = feed.upgrade() else { return };
        match read {
            Ok(page) => {
                feed.take_entries(page.entries);
                feed.expect_permissions(&context, &timers);
            }
            Err(error) => {
                warn!(session = %context.config.session, %error, "a session cannot be followed; its watchers begin anew");
                return feed.lose();
            }
        }
    }
}

/// Events as they are sent.
pub(super) fn encoded(events: &[Event]) -> Vec<Bytes> {
    events.iter().filter_map(|event| exact::to_vec(event).ok()).map(Bytes::from).collect()
}
