//! One machine at one end of a link, driven as a driver should: drain, then time out; Closed once, and last.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use breakbulk_proto::{CloseReason, Event, Input, Machine, Transmit};
use bytes::Bytes;

use crate::sim::ledger::Ledger;
use crate::sim::link::{Item, Pipe};
use crate::sim::plan::Sabotage;
use crate::sim::segment;
use crate::sim::trace::{front, trace};

/// What a machine counts when a group expires.
const EXPIRED: &str = "group-expired";

/// A machine, and what its driver knows.
#[derive(Debug)]
pub(crate) struct Endpoint<M> {
    pub(crate) machine: M,
    name: String,
    paused_until: Option<Instant>,
    batch: u32,
    /// What this driver does wrong.
    sabotage: Option<Sabotage>,
    sweep_after: Duration,
    /// How long this end has been reading, and since when it is.
    read_for: Duration,
    reading_since: Option<Instant>,
    /// Groups that this end has begun to read, with the reading time of their first segment.
    open: HashMap<String, Duration>,
    expired: bool,
    /// What to say about groups that expired too early.
    early: Vec<String>,
    closing: bool,
    closed: Option<CloseReason>,
}

impl<M: Machine> Endpoint<M> {
    pub(crate) fn new(machine: M, name: String, sweep_after: Duration, now: Instant) -> Self {
        Self {
            machine,
            name,
            paused_until: None,
            batch: 0,
            sabotage: None,
            sweep_after,
            read_for: Duration::ZERO,
            reading_since: Some(now),
            open: HashMap::new(),
            expired: false,
            early: Vec::new(),
            closing: false,
            closed: None,
        }
    }

    pub(crate) fn sabotaged(mut self, sabotage: Option<Sabotage>) -> Self {
        self.sabotage = sabotage;
        self
    }

    /// Reads so many frames more than are wanted.
    pub(crate) fn batched(mut self, batch: u32) -> Self {
        self.batch = batch;
        self
    }

    /// Whether the machine waits for room.
    pub(crate) fn is_parked(&self) -> bool {
        !self.machine.wants_frames()
    }

    /// Stops reading for a while.
    pub(crate) fn pause(&mut self, until: Instant, now: Instant) {
        if self.paused_until.is_some() {
            return;
        }
        trace(|| format!("{} pauses for {:?}", self.name, until - now));
        self.paused_until = Some(until);
        self.read_for = self.reading(now);
        self.reading_since = None;
        if self.sabotage != Some(Sabotage::RunningClock) {
            self.machine.handle(Input::Paused(true), now);
        }
    }

    /// Reads on as soon as possible.
    pub(crate) fn calm(&mut self, now: Instant) {
        if self.paused_until.is_some() {
            self.paused_until = Some(now);
        }
    }

    /// Reads what has arrived, then lets time pass in the machine.
    pub(crate) fn read(&mut self, pipe: &mut Pipe, now: Instant) {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.reading_since = Some(now);
            self.machine.handle(Input::Paused(false), now);
        }
        loop {
            let mut moved = false;
            // A driver that has read several frames at once hands over the rest, even if they are not wanted now.
            let mut in_hand = self.batch;
            while (self.is_reading() || (in_hand > 0 && moved && self.closed.is_none()))
                && let Some(item) = pipe.take(now)
            {
                in_hand -= u32::from(!self.machine.wants_frames());
                moved = true;
                self.take(item, now);
            }
            if self.machine.poll_timeout().is_some_and(|at| at <= now) {
                let expired = self.machine.counters().count(EXPIRED);
                self.machine.handle(Input::Timeout, now);
                (expired..self.machine.counters().count(EXPIRED)).for_each(|_| self.check_expiry(now));
                moved = true;
                assert!(
                    self.machine.poll_timeout().is_none_or(|at| at > now),
                    "{}: a timeout is due at once",
                    self.name
                );
            }
            if !moved {
                return;
            }
        }
    }

    /// The next event.
    pub(crate) fn event(&mut self, ledger: &mut Ledger) -> Option<Event> {
        let event = self.machine.poll_event()?;
        assert!(self.closed.is_none(), "{}: {event:?} after Closed", self.name);
        trace(|| format!("{} event {event:?}", self.name));
        self.early.drain(..).for_each(|note| ledger.lost(note));
        match event {
            Event::Closed(reason) => {
                self.closed = Some(reason.clone());
                assert_eq!(self.machine.poll_timeout(), None, "{}: a timeout after Closed", self.name);
                Some(Event::Closed(reason))
            }
            other => Some(other),
        }
    }

    /// Writes what the link takes, each frame by way of `pass`.
    pub(crate) fn write(&mut self, pipe: &mut Pipe, now: Instant, mut pass: impl FnMut(Bytes) -> Vec<Bytes>) {
        while (pipe.can_take() || self.closed.is_some())
            && let Some(transmit) = self.machine.poll_transmit(now)
        {
            assert!(!self.closing, "{}: {transmit:?} after Close", self.name);
            match transmit {
                Transmit::Frame { bytes, .. } => {
                    assert!(self.closed.is_none(), "{}: a frame after Closed", self.name);
                    let copy = Bytes::from(bytes.to_bytes().to_vec());
                    trace(|| format!("{} writes {}", self.name, front(&copy)));
                    pass(copy).into_iter().for_each(|frame| pipe.push(Item::Frame(frame), now));
                }
                Transmit::Close(reason) => {
                    self.closing = true;
                    pipe.push(Item::Close(reason.code()), now);
                }
            }
        }
    }

    /// Whether the application and the link have both been told that it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.closed.is_some() && self.closing
    }

    /// Whether a group has begun to arrive here and has not ended.
    pub(crate) fn has_open_groups(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether a group expired here.
    pub(crate) fn has_expired(&self) -> bool {
        self.expired
    }

    /// Why it closed.
    pub(crate) fn closed(&self) -> Option<&CloseReason> {
        self.closed.as_ref()
    }

    /// When this end has something to do.
    pub(crate) fn wake(&self, pipe: &Pipe) -> Option<Instant> {
        let arrival = if self.is_reading() { pipe.next_arrival() } else { None };
        arrival.into_iter().chain(self.machine.poll_timeout()).chain(self.paused_until).min()
    }

    fn is_reading(&self) -> bool {
        self.paused_until.is_none() && self.machine.wants_frames() && self.closed.is_none()
    }

    fn take(&mut self, item: Item, now: Instant) {
        let frame = match item {
            Item::Close(code) => return self.machine.handle(Input::Close(CloseReason::Peer { code }), now),
            Item::Frame(frame) => frame,
        };
        if let Some((id, index, total)) = segment::peek(&frame) {
            if index + 1 == total {
                self.open.remove(id);
            } else if index == 0 {
                self.open.insert(id.to_owned(), self.reading(now));
            }
        }
        trace(|| format!("{} reads {}", self.name, front(&frame)));
        self.machine.handle(Input::frame(frame), now);
    }

    fn reading(&self, now: Instant) -> Duration {
        self.read_for + self.reading_since.map_or(Duration::ZERO, |since| now - since)
    }

    /// A group may expire only if we have been reading for as long as we allow.
    fn check_expiry(&mut self, now: Instant) {
        self.expired = true;
        let oldest = self.open.iter().min_by_key(|(_, since)| **since).map(|(id, since)| (id.clone(), *since));
        let Some((id, since)) = oldest else { return };
        self.open.remove(&id);
        let (age, allowed) = (self.reading(now) - since, self.sweep_after);
        if age < allowed {
            let note = format!("{}: a group expired after {age:?} of reading, {allowed:?} are allowed", self.name);
            self.early.push(note);
        }
    }
}
