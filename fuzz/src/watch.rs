//! A machine whose promises are checked at each poll.

use std::time::{Duration, Instant};

use breakbulk_proto::{Capacity, CloseReason, Event, Input, Machine, Measure, Meta, Tag, Transmit, json};
use bytes::Bytes;

/// More polls in a row than any machine here can have a reason for.
const ENDLESS: usize = 200_000;

/// A machine, its clock, and whether it is over.
pub struct Watch<M> {
    machine: M,
    now: Instant,
    /// What the link takes, as it was told last.
    link: Capacity,
    /// [`Event::Closed`] came: no event may follow, except that what is sent then fails.
    closed: bool,
    /// [`Transmit::Close`] came: nothing to transmit may follow.
    cut: bool,
}

impl<M: Machine> Watch<M> {
    /// Begins to watch.
    pub fn new(machine: M) -> Self {
        Self { machine, now: Instant::now(), link: Capacity::of(u64::MAX), closed: false, cut: false }
    }

    /// Tells the machine something.
    pub fn handle(&mut self, input: Input) {
        if let Input::Capacity(link) = &input {
            self.link = link.clone();
        }
        self.machine.handle(input, self.now);
    }

    /// Its next frame, which fits the link.
    pub fn transmit(&mut self) -> Option<(Tag, Bytes, Meta)> {
        let transmit = self.machine.poll_transmit(self.now)?;
        assert!(!self.cut, "something to transmit after Close: {transmit:?}");
        match transmit {
            Transmit::Frame { tag, bytes, meta } => {
                let bytes = bytes.to_bytes();
                let measure = Measure { bytes: bytes.len() as u64, escaped: json::escaped_len(&bytes) };
                assert!(self.link.fits(measure), "a frame of {measure:?} on a link of {} bytes", self.link.cap);
                Some((tag, bytes, meta))
            }
            Transmit::Close(_) => {
                self.cut = true;
                assert!(self.machine.poll_transmit(self.now).is_none(), "Close was not the last");
                None
            }
        }
    }

    /// Its next event.
    pub fn event(&mut self) -> Option<Event> {
        let event = self.machine.poll_event()?;
        assert!(!self.closed || matches!(event, Event::SendFailed { .. }), "an event after Closed: {event:?}");
        self.closed |= matches!(event, Event::Closed(_));
        Some(event)
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it would go on reading.
    pub fn wants_frames(&self) -> bool {
        self.machine.wants_frames()
    }

    /// Lets time pass, and acts on the timeouts that fall due. A timeout that stays due would make a driver spin.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        for _ in 0..100 {
            match self.machine.poll_timeout() {
                Some(at) if at <= self.now => self.handle(Input::Timeout),
                _ => return,
            }
        }
        panic!("a timeout stays due");
    }

    /// Closes, polls until nothing comes, and checks that all ended as promised.
    pub fn finish(mut self) {
        self.handle(Input::Close(CloseReason::Normal));
        bounded(|| self.transmit().is_some());
        bounded(|| self.event().is_some());
        bounded(|| self.transmit().is_some());
        assert!(self.closed, "closed without Closed");
        self.handle(Input::Timeout);
        self.handle(Input::Close(CloseReason::Normal));
        assert!(self.event().is_none() && self.transmit().is_none(), "something after the end");
    }
}

/// Polls until there is nothing, which must come.
pub fn bounded(mut poll: impl FnMut() -> bool) {
    assert!((0..ENDLESS).any(|_| !poll()), "a poll never ends");
}
