//! Decides what is sent next: order across lanes, slots for groups, deadlines, small messages before the rest of large ones.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::error::{Over, SendError};
use crate::rpc::IdKey;

/// How many bytes of small messages may be sent before a large one gets its turn: about one segment on a busy link.
pub(crate) const SMALL_RUN: u64 = 64 << 10;

/// Which messages a message must stay in order with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// With none, and it never waits: a ping.
    Urgent,
    /// With none: it may overtake others, and be overtaken.
    Free,
    /// It starts after all ordered messages that were accepted before it. In which order they finish is up to [`Finish`].
    Ordered(LaneKey),
    /// As `Ordered`, and nothing that was accepted later starts before it has finished: the answer to a handshake.
    Barrier,
}

impl Order {
    /// Whether it starts in the order of acceptance.
    pub(crate) const fn is_ordered(self) -> bool {
        matches!(self, Self::Ordered(_) | Self::Barrier)
    }
}

/// How a message is bound to a request. A cancel never passes the request that it names, whatever its [`Order`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bond {
    /// To none.
    None,
    /// It is the request with this id.
    Request(IdKey),
    /// It cancels the request with this id.
    Cancels(IdKey),
}

/// Messages that must stay in order with each other have the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LaneKey(pub(crate) u64);

/// In which order ordered messages finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// In the order of acceptance, because the peer uses the highest seq that it saw as its cursor.
    InOrder,
    /// In the order of acceptance within each lane, because the peer keeps a settled cursor.
    PerLane,
}

/// What a message needs from the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// One frame.
    Frame,
    /// More than one frame. If the peer takes no groups, the message is refused when it starts.
    Group,
    /// Not decided yet, so the message waits: the peer's limits are not known, or the link is too slow for it at present.
    Wait,
}

/// A message that waits.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    pub(crate) rank: Rank,
    bytes: u64,
    /// The request that it waits for, if it cancels one that is not sent yet: its id, and its acceptance number.
    after: Option<(IdKey, u64)>,
    pub(crate) item: T,
}

/// Where a message stands among all that were accepted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rank {
    accepted: u64,
    pub(crate) order: Order,
    /// Its id, if it is a request.
    request: Option<IdKey>,
}

/// A message of which some segments have gone.
#[derive(Debug)]
struct InFlight<G> {
    rank: Rank,
    /// When half of the receiver's timeout has passed, and when all of it has. `None` means never.
    late_at: Option<Instant>,
    due: Option<Instant>,
    turn: u64,
    group: G,
}

/// What goes next.
#[derive(Debug)]
pub(crate) enum Pick<T> {
    /// This message starts. If it needs a group, the caller has to call [`Queue::begin_group`], or [`Queue::settle`] if it is refused.
    Start(Entry<T>),
    /// The group in flight at this index sends its next segment.
    Continue(usize),
}

/// Messages to send: those that wait, and those that are under way.
#[derive(Debug)]
pub(crate) struct Queue<T, G> {
    urgent: VecDeque<Entry<T>>,
    ordered: VecDeque<Entry<T>>,
    free: VecDeque<Entry<T>>,
    flights: Vec<InFlight<G>>,
    /// The acceptance numbers of barriers that have not finished, oldest first.
    barriers: VecDeque<u64>,
    /// The acceptance numbers of requests that have not been sent whole.
    requests: HashMap<IdKey, u64>,
    queued_bytes: u64,
    max_queued_bytes: u64,
    accepted: u64,
    turns: u64,
    small_run: u64,
}

impl<T, G> Queue<T, G> {
    pub(crate) fn new(max_queued_bytes: u64) -> Self {
        Self {
            urgent: VecDeque::new(),
            ordered: VecDeque::new(),
            free: VecDeque::new(),
            flights: Vec::new(),
            barriers: VecDeque::new(),
            requests: HashMap::new(),
            queued_bytes: 0,
            max_queued_bytes,
            accepted: 0,
            turns: 0,
            small_run: 0,
        }
    }

    /// Accepts a message of `bytes` bytes. Barriers are exempt from the limit, because without them no connection comes up.
    pub(crate) fn push(&mut self, item: T, bytes: u64, order: Order, bond: Bond) -> Result<(), (T, SendError)> {
        let queued = self.queued_bytes.saturating_add(bytes);
        if queued > self.max_queued_bytes && order != Order::Barrier {
            return Err((item, SendError::QueueFull(Over { size: bytes, limit: self.max_queued_bytes })));
        }
        self.queued_bytes = queued;
        self.accepted = self.accepted.saturating_add(1);
        let (request, after) = match bond {
            Bond::None => (None, None),
            Bond::Request(id) => (Some(id), None),
            Bond::Cancels(id) => (None, self.requests.get(&id).map(|accepted| (id, *accepted))),
        };
        let rank = Rank { accepted: self.accepted, order, request };
        self.requests.extend(request.map(|id| (id, rank.accepted)));
        let entry = Entry { rank, bytes, after, item };
        match order {
            Order::Urgent => self.urgent.push_back(entry),
            Order::Free => self.free.push_back(entry),
            Order::Ordered(_) => self.ordered.push_back(entry),
            Order::Barrier => {
                self.barriers.push_back(rank.accepted);
                self.ordered.push_back(entry);
            }
        }
        Ok(())
    }

    /// Accepts a message ahead of all ordered ones that wait, and exempt from the limit: a handshake, for which they wait.
    pub(crate) fn push_first(&mut self, item: T, bytes: u64, order: Order) {
        self.queued_bytes = self.queued_bytes.saturating_add(bytes);
        self.accepted = self.accepted.saturating_add(1);
        let rank = Rank { accepted: self.accepted, order, request: None };
        self.ordered.push_front(Entry { rank, bytes, after: None, item });
    }

    /// What is sent next. At most `slots` groups are in flight at once.
    pub(crate) fn pick(
        &mut self,
        now: Instant,
        slots: usize,
        finish: Finish,
        fit: impl Fn(&T) -> Fit,
    ) -> Option<Pick<T>> {
        if let Some(entry) = self.urgent.pop_front() {
            if fit(&entry.item) == Fit::Frame {
                self.queued_bytes = self.queued_bytes.saturating_sub(entry.bytes);
                self.settle(entry.rank);
                return Some(Pick::Start(entry));
            }
            self.free.push_front(entry);
        }
        let head = self.startable_head(finish).map(|entry| (fit(&entry.item), entry.rank.accepted));
        let small = self.oldest(head, Fit::Frame, &fit);
        if small.is_none() || self.small_run >= SMALL_RUN {
            self.small_run = 0;
            if let Some(flight) = self.late_flight(now) {
                return Some(Pick::Continue(flight));
            }
            if self.flights.len() < slots
                && let Some(place) = self.oldest(head, Fit::Group, &fit)
            {
                return self.remove(place).map(Pick::Start);
            }
            if let Some(flight) = self.next_flight() {
                return Some(Pick::Continue(flight));
            }
        }
        let entry = self.remove(small?)?;
        self.small_run = self.small_run.saturating_add(entry.bytes);
        self.settle(entry.rank);
        Some(Pick::Start(entry))
    }

    /// A message that was picked is now in flight as a group, and its first segment is sent. Returns its index.
    pub(crate) fn begin_group(&mut self, rank: Rank, group: G, now: Instant, timeout: Duration) -> usize {
        self.turns = self.turns.saturating_add(1);
        let late_at = timeout.checked_div(2).and_then(|half| now.checked_add(half));
        self.flights.push(InFlight { rank, late_at, due: now.checked_add(timeout), turn: self.turns, group });
        self.flights.len().saturating_sub(1)
    }

    /// A message that was picked is done: it went in one frame, its group has finished, or it was refused.
    pub(crate) fn settle(&mut self, rank: Rank) {
        self.barriers.retain(|barrier| *barrier != rank.accepted);
        if let Some(id) = rank.request.filter(|id| self.requests.get(id) == Some(&rank.accepted)) {
            self.requests.remove(&id);
        }
    }

    /// The group in flight at `place`, for its next segment.
    pub(crate) fn flight(&mut self, place: usize) -> Option<&mut G> {
        self.flights.get_mut(place).map(|flight| &mut flight.group)
    }

    /// The group in flight at `place` has sent its last segment.
    pub(crate) fn finish_group(&mut self, place: usize) {
        if place < self.flights.len() {
            let flight = self.flights.swap_remove(place);
            self.settle(flight.rank);
        }
    }

    /// Whether an ordered message of this order waits, or is in flight.
    pub(crate) fn has_unfinished(&self, order: Order) -> bool {
        self.ordered.iter().any(|entry| entry.rank.order == order)
            || self.flights.iter().any(|flight| flight.rank.order == order)
    }

    /// Whether anything waits that is not in flight.
    pub(crate) fn has_waiting(&self) -> bool {
        !(self.ordered.is_empty() && self.free.is_empty() && self.urgent.is_empty())
    }

    /// All messages that wait.
    pub(crate) fn waiting_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let waiting = self.urgent.iter_mut().chain(&mut self.ordered).chain(&mut self.free);
        waiting.map(|entry| &mut entry.item)
    }

    /// The earliest time at which a group in flight has to be finished.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.flights.iter().filter_map(|flight| flight.due).min()
    }

    /// How many [`Order::Barrier`] messages (answers to handshakes) have not been sent completely.
    pub(crate) fn barriers(&self) -> usize {
        self.barriers.len()
    }

    /// All groups in flight.
    pub(crate) fn flights(&self) -> impl Iterator<Item = &G> {
        self.flights.iter().map(|flight| &flight.group)
    }

    /// Empties the queue. Returns what waited, in the order of acceptance, and what was in flight.
    pub(crate) fn clear(&mut self) -> (Vec<T>, Vec<G>) {
        let mut waiting: Vec<_> =
            self.urgent.drain(..).chain(self.ordered.drain(..)).chain(self.free.drain(..)).collect();
        waiting.sort_by_key(|entry| entry.rank.accepted);
        let flights = self.flights.drain(..).map(|flight| flight.group).collect();
        self.barriers.clear();
        self.requests.clear();
        self.queued_bytes = 0;
        (waiting.into_iter().map(|entry| entry.item).collect(), flights)
    }

    /// The first ordered message, if it may start.
    fn startable_head(&self, finish: Finish) -> Option<&Entry<T>> {
        let head = self.ordered.front().filter(|head| self.passes_barriers(head))?;
        let blocked = self.flights.iter().any(|flight| match finish {
            Finish::InOrder => flight.rank.order.is_ordered(),
            Finish::PerLane => flight.rank.order == head.rank.order,
        });
        (!blocked).then_some(head)
    }

    fn passes_barriers(&self, entry: &Entry<T>) -> bool {
        self.barriers.front().is_none_or(|barrier| entry.rank.accepted <= *barrier)
    }

    /// Whether it cancels a request that has not been sent whole.
    fn waits_for_request(&self, entry: &Entry<T>) -> bool {
        entry.after.is_some_and(|(id, accepted)| self.requests.get(&id) == Some(&accepted))
    }

    /// The position of the oldest message that may start and needs `want`.
    fn oldest(&self, head: Option<(Fit, u64)>, want: Fit, fit: impl Fn(&T) -> Fit) -> Option<Position> {
        let free = self
            .free
            .iter()
            .enumerate()
            .find(|(_, entry)| {
                self.passes_barriers(entry) && fit(&entry.item) == want && !self.waits_for_request(entry)
            })
            .map(|(i, entry)| (entry.rank.accepted, Position::Free(i)));
        let head = head.filter(|(fit, _)| *fit == want).map(|(_, accepted)| (accepted, Position::Ordered));
        free.into_iter().chain(head).min_by_key(|(accepted, _)| *accepted).map(|(_, place)| place)
    }

    fn remove(&mut self, place: Position) -> Option<Entry<T>> {
        let entry = match place {
            Position::Ordered => self.ordered.pop_front(),
            Position::Free(i) => self.free.remove(i),
        }?;
        self.queued_bytes = self.queued_bytes.saturating_sub(entry.bytes);
        Some(entry)
    }

    /// The oldest group in flight for which half of the receiver's timeout has passed.
    fn late_flight(&self, now: Instant) -> Option<usize> {
        let late = self.flights.iter().enumerate().filter(|(_, flight)| flight.late_at.is_some_and(|at| at <= now));
        late.min_by_key(|(_, flight)| flight.late_at).map(|(place, _)| place)
    }

    /// The group in flight that has waited longest for its turn.
    fn next_flight(&mut self) -> Option<usize> {
        let (place, flight) = self.flights.iter_mut().enumerate().min_by_key(|(_, flight)| flight.turn)?;
        self.turns = self.turns.saturating_add(1);
        flight.turn = self.turns;
        Some(place)
    }
}

/// The position of a waiting message that may start.
#[derive(Debug, Clone, Copy)]
enum Position {
    Ordered,
    Free(usize),
}

#[cfg(test)]
mod tests;
