//! One direction of a link: delay, rate, a bounded buffer, stalls and cuts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// What travels.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Frame(Bytes),
    /// The sender closed, with this code.
    Close(u16),
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Self::Frame(bytes) => bytes.len(),
            Self::Close(_) => 0,
        }
    }
}

/// How a pipe behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) latency: Duration,
    pub(crate) bytes_per_second: u64,
    /// Bytes on the way or unread, beyond which the writer has to wait.
    pub(crate) window: usize,
}

impl Manner {
    /// A link at its best.
    pub(crate) const CALM: Self =
        Self { latency: Duration::from_millis(1), bytes_per_second: 50 << 20, window: 1 << 20 };
}

/// One direction of a link, in order and without loss until it is cut.
#[derive(Debug)]
pub(crate) struct Pipe {
    manner: Manner,
    items: VecDeque<(Instant, Item)>,
    held: usize,
    busy_until: Instant,
    stalled_until: Instant,
    cut: bool,
}

impl Pipe {
    pub(crate) fn new(manner: Manner, now: Instant) -> Self {
        Self { manner, items: VecDeque::new(), held: 0, busy_until: now, stalled_until: now, cut: false }
    }

    /// Whether the writer may write now.
    pub(crate) fn can_take(&self) -> bool {
        self.cut || self.held < self.manner.window
    }

    pub(crate) fn push(&mut self, item: Item, now: Instant) {
        if self.cut {
            return;
        }
        let micros = item.len() as u64 * 1_000_000 / self.manner.bytes_per_second;
        self.busy_until = self.busy_until.max(now) + Duration::from_micros(micros);
        self.held += item.len();
        self.items.push_back((self.busy_until + self.manner.latency, item));
    }

    /// The next item that has arrived.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Item> {
        if self.next_arrival().is_none_or(|at| at > now) {
            return None;
        }
        let (_, item) = self.items.pop_front()?;
        self.held -= item.len();
        Some(item)
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.items.front().map(|(at, _)| (*at).max(self.stalled_until))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Nothing arrives until then.
    pub(crate) fn stall(&mut self, until: Instant) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// The link breaks: what has not arrived never will.
    pub(crate) fn cut(&mut self, now: Instant) {
        self.cut = true;
        let stalled = self.stalled_until > now;
        self.items.retain(|(at, _)| *at <= now && !stalled);
        self.held = self.items.iter().map(|(_, item)| item.len()).sum();
    }

    /// From now on the link is at its best.
    pub(crate) fn calm(&mut self, now: Instant) {
        self.manner = Manner::CALM;
        (self.busy_until, self.stalled_until) = (now, now);
        let late = now + self.manner.latency;
        self.items.iter_mut().for_each(|(at, _)| *at = (*at).min(late));
    }
}
