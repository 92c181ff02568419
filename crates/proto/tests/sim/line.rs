//! One link with a machine at each end.

use std::time::Instant;

use breakbulk_proto::ahp::Connection;
use breakbulk_proto::{Capacity, CloseReason, Input, Machine, Measure, Ticket, json};
use bytes::Bytes;

use crate::sim::endpoint::Endpoint;
use crate::sim::host::{Desk, Out};
use crate::sim::ledger::Ledger;
use crate::sim::link::{Item, Pipe};
use crate::sim::middle::{DOWN, Middle, UP};
use crate::sim::rng::Rng;
use crate::sim::segment;
use crate::sim::tally::Tally;

/// A link between a client and the host, with both ends as long as they live.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) id: u64,
    pub(crate) client: usize,
    pub(crate) pipes: [Pipe; 2],
    pub(crate) near: Option<Endpoint<Connection>>,
    pub(crate) far: Option<Endpoint<Connection>>,
    pub(crate) desk: Desk,
    pub(crate) middle: Middle,
    pub(crate) capacity: Capacity,
    /// When each end learns that the link is cut.
    pub(crate) cut: Option<[Instant; 2]>,
    pub(crate) tickets: u64,
}

impl Line {
    /// The client's application sends.
    pub(crate) fn send_up(&mut self, out: &Out, ledger: &mut Ledger, now: Instant) {
        self.tickets += 1;
        ledger.handed((self.id, UP), self.tickets, out.lane.clone(), out.text.as_bytes());
        if let Some(near) = &mut self.near {
            near.machine.handle(Input::send(Ticket(self.tickets), out.text.clone()), now);
        }
    }

    /// The host's application sends.
    pub(crate) fn send_down(&mut self, out: &Out, ledger: &mut Ledger, now: Instant) {
        let Some(far) = &mut self.far else { return };
        let ticket = self.desk.handed(out);
        ledger.handed((self.id, DOWN), ticket, out.lane.clone(), out.text.as_bytes());
        far.machine.handle(Input::send(Ticket(ticket), out.text.clone()), now);
    }

    /// The link breaks. Each end learns of it in its own time.
    pub(crate) fn cut(&mut self, near_at: Instant, far_at: Instant, now: Instant) {
        if self.cut.is_none() {
            self.cut = Some([near_at, far_at]);
            self.pipes.iter_mut().for_each(|pipe| pipe.cut(now));
        }
    }

    /// Tells the ends of a cut when it is time.
    pub(crate) fn notice(&mut self, now: Instant) {
        let Some([near_at, far_at]) = self.cut else { return };
        for (end, at) in [(&mut self.near, near_at), (&mut self.far, far_at)] {
            if let Some(end) = end.as_mut().filter(|_| at <= now) {
                end.machine.handle(Input::Close(CloseReason::Peer { code: 1006 }), now);
            }
        }
    }

    /// Both ends read what has arrived.
    pub(crate) fn read(&mut self, now: Instant) {
        let [up, down] = &mut self.pipes;
        if let Some(near) = &mut self.near {
            near.read(down, now);
        }
        if let Some(far) = &mut self.far {
            far.read(up, now);
        }
    }

    /// Both ends write what the link takes.
    pub(crate) fn write(&mut self, rng: &mut Rng, tally: &mut Tally, now: Instant) {
        let [up, down] = &mut self.pipes;
        let (middle, capacity) = (&mut self.middle, &self.capacity);
        for (end, pipe, direction) in [(&mut self.near, up, UP), (&mut self.far, down, DOWN)] {
            let Some(end) = end else { continue };
            end.write(pipe, now, |frame| {
                assert!(fits(&frame, capacity), "a frame of {} bytes is over the link's cap", frame.len());
                tally.one(if segment::peek(&frame).is_some() { "segments" } else { "whole frames" });
                middle.pass(direction, frame, rng)
            });
        }
        self.discard(now);
    }

    /// When something happens here by itself.
    pub(crate) fn wake(&self) -> Option<Instant> {
        let near = self.near.as_ref().and_then(|near| near.wake(&self.pipes[DOWN]));
        let far = self.far.as_ref().and_then(|far| far.wake(&self.pipes[UP]));
        near.into_iter().chain(far).chain(self.cut.into_iter().flatten()).min()
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.pipes.iter().all(Pipe::is_empty) && self.cut.is_none()
    }

    /// Whether an end waits for room.
    pub(crate) fn is_parked(&self) -> bool {
        self.near.iter().chain(&self.far).any(Endpoint::is_parked)
    }

    /// From now on nothing goes wrong here.
    pub(crate) fn calm(&mut self, now: Instant) {
        self.pipes.iter_mut().for_each(|pipe| pipe.calm(now));
        self.near.iter_mut().chain(self.far.iter_mut()).for_each(|end| end.calm(now));
        self.cut = self.cut.map(|ends| ends.map(|at| at.min(now)));
    }

    /// What arrives where nobody is left is gone.
    fn discard(&mut self, now: Instant) {
        for (gone, pipe) in [(self.near.is_none(), DOWN), (self.far.is_none(), UP)] {
            while gone && let Some(Item::Frame(_) | Item::Close(_)) = self.pipes[pipe].take(now) {}
        }
    }
}

fn fits(frame: &Bytes, capacity: &Capacity) -> bool {
    capacity.fits(Measure { bytes: frame.len() as u64, escaped: json::escaped_len(frame) })
}
