//! What goes out: control frames first, then whole messages, then transfers in turn.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::SendError;
use crate::json;
use crate::machine::{Capacity, Event, Measure, Meta, Refusal, Tag, Transmit};
use crate::message::{Message, len64};
use crate::outbox::Outbox;
use crate::rpc::Kind;

use super::book::{Book, Peer};
use super::cut::Plan;
use super::outgoing::{Outgoing, Sending, Transfer, refusal};
use super::wire::Writer;
use super::{Config, Time};

/// Control frames that may wait. More are dropped: their peers have timeouts of their own.
const MAX_CONTROL: usize = 1024;
/// Frames whose fate may be open. For the oldest beyond that, no news is good news.
const MAX_UNCONFIRMED: usize = 4096;
/// The first pause after a link said that we are too fast.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause; below any soft timeout that makes sense.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Pauses in a row after which a frame is given up.
const MAX_PAUSES: u32 = 12;

/// What the sender needs to know and to tell.
pub(super) struct Desk<'a> {
    pub(super) config: &'a Config,
    pub(super) book: &'a mut Book,
    pub(super) outbox: &'a mut Outbox,
    pub(super) time: Time,
}

/// Everything that goes out.
#[derive(Debug)]
pub(super) struct Sender {
    capacity: Capacity,
    pub(super) writer: Writer,
    control: VecDeque<(Bytes, Meta)>,
    direct: VecDeque<Outgoing>,
    /// Too large for a frame, and not begun.
    large: VecDeque<Outgoing>,
    /// Begun; the first is due next.
    transfers: VecDeque<Transfer>,
    /// Handed to a link that acknowledges, by tag; `None` once it did.
    unconfirmed: VecDeque<(Tag, Option<Sending>)>,
    /// Refused for their speed only.
    retries: VecDeque<Sending>,
    pauses: u32,
    paused_until: Option<Instant>,
    queued_bytes: u64,
    last_tag: u64,
    last_serial: u64,
}

impl Sender {
    pub(super) fn new() -> Self {
        Self {
            capacity: Capacity::of(u64::MAX),
            writer: Writer::default(),
            control: VecDeque::new(),
            direct: VecDeque::new(),
            large: VecDeque::new(),
            transfers: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            retries: VecDeque::new(),
            pauses: 0,
            paused_until: None,
            queued_bytes: 0,
            last_tag: 0,
            last_serial: 0,
        }
    }

    /// The link's cap is known, or is another one. What is begun goes on as it began.
    pub(super) fn set_capacity(&mut self, capacity: Capacity, desk: &mut Desk<'_>) {
        self.capacity = capacity;
        for what in std::mem::take(&mut self.direct) {
            self.queue(what, desk);
        }
    }

    /// Queues a frame of our own making.
    pub(super) fn control(&mut self, bytes: Bytes, meta: Meta, outbox: &mut Outbox) {
        if self.control.len() < MAX_CONTROL {
            self.control.push_back((bytes, meta));
        } else {
            outbox.count("control-dropped");
        }
    }

    /// Queues a message, or says why not.
    pub(super) fn send(&mut self, what: Outgoing, desk: &mut Desk<'_>) {
        let (size, limit) = (len64(what.message.len()), desk.config.limits.max_queued_bytes());
        while self.queued_bytes.saturating_add(size) > limit {
            if !self.settle_oldest(desk) {
                return self.fail(&what, SendError::QueueFull { size, limit }, desk);
            }
        }
        self.queued_bytes = self.queued_bytes.saturating_add(size);
        self.queue(what, desk);
    }

    /// The next frame.
    pub(super) fn poll(&mut self, desk: &mut Desk<'_>) -> Option<Transmit> {
        if self.paused_until.is_some_and(|until| desk.time.now < until) {
            return None;
        }
        self.paused_until = None;
        while let Some(again) = self.retries.pop_front() {
            if let Some(frame) = self.emit(again, desk) {
                return Some(frame);
            }
        }
        if let Some((bytes, meta)) = self.control.pop_front() {
            return self.emit(Sending::Control(bytes, meta), desk);
        }
        if let Some(what) = self.direct.pop_front() {
            return self.emit(Sending::Direct(what), desk);
        }
        self.begin(desk);
        for _ in 0..self.transfers.len() {
            let next = self.transfers.front().and_then(|transfer| transfer.next(desk.config));
            self.transfers.rotate_left(1);
            if let Some(next) = next {
                return self.emit(next, desk);
            }
        }
        None
    }

    /// A peer lets our transfer begin. Says whether there was one.
    pub(super) fn accepted(&mut self, peer: &Peer, token: &str, desk: &mut Desk<'_>) -> bool {
        let waits = |transfer: &&mut Transfer| transfer.is_for(peer, token) && transfer.begun;
        let Some(transfer) = self.transfers.iter_mut().find(waits) else {
            return false;
        };
        // `accept` has the second place.
        transfer.release(3, desk);
        transfer.confirmed = true;
        true
    }

    /// A peer turned out to take transfers: those that wait for it need not. No `accept` has taken the second place.
    pub(super) fn supported(&mut self, peer: &Peer, desk: &mut Desk<'_>) {
        let own = |transfer: &&mut Transfer| transfer.begun && transfer.is_with(peer);
        self.transfers.iter_mut().filter(own).for_each(|transfer| transfer.release(2, desk));
    }

    /// A peer gives our transfer up. Says whether there was one.
    pub(super) fn aborted(&mut self, peer: &Peer, token: &str, desk: &mut Desk<'_>) -> bool {
        let found = self.transfers.iter().find(|transfer| transfer.is_for(peer, token) && transfer.begun);
        let Some(serial) = found.map(|transfer| transfer.serial) else {
            return false;
        };
        self.give_up(serial, SendError::Aborted, desk);
        true
    }

    /// The link said what became of a frame.
    pub(super) fn acked(&mut self, tag: Tag, result: Result<(), Refusal>, desk: &mut Desk<'_>) {
        let Ok(at) = self.unconfirmed.binary_search_by_key(&tag, |(tag, _)| *tag) else {
            return;
        };
        let Some(sending) = self.unconfirmed.get_mut(at).and_then(|(_, sending)| sending.take()) else {
            return;
        };
        while self.unconfirmed.front().is_some_and(|(_, sending)| sending.is_none()) {
            self.unconfirmed.pop_front();
        }
        match result {
            Ok(()) => {
                self.pauses = 0;
                self.confirm(sending, desk);
            }
            Err(refusal) => self.refused(sending, refusal, desk),
        }
    }

    /// Gives up transfers that nobody accepted or confirmed in time.
    pub(super) fn sweep(&mut self, desk: &mut Desk<'_>) {
        let silent = self.paused_until.is_some_and(|until| until > desk.time.now) || !self.retries.is_empty();
        let late: Vec<_> = self
            .transfers
            .iter_mut()
            .filter(|transfer| transfer.due.is_some_and(|due| due <= desk.time.read))
            .filter_map(|transfer| {
                if silent && transfer.first.is_some() {
                    // The link said why it is silent.
                    transfer.refresh(desk);
                    return None;
                }
                Some((transfer.serial, transfer.first.is_some()))
            })
            .collect();
        for (serial, accepted) in late {
            self.give_up(serial, if accepted { SendError::Refused } else { SendError::NotAccepted }, desk);
        }
    }

    /// When to look for transfers that nobody accepted or confirmed.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.transfers.iter().filter_map(|transfer| transfer.due).min()
    }

    /// When the link may be tried again, by our own clock.
    pub(super) const fn resume_at(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Fails all that is not sent.
    pub(super) fn close(&mut self, desk: &mut Desk<'_>) {
        let handed = self.unconfirmed.drain(..).filter_map(|(_, sending)| sending).chain(self.retries.drain(..));
        let handed = handed.filter_map(|sending| if let Sending::Direct(what) = sending { Some(what) } else { None });
        let begun = self.transfers.drain(..).map(|transfer| transfer.what);
        let all: Vec<_> = handed.chain(self.direct.drain(..)).chain(begun).chain(self.large.drain(..)).collect();
        for what in all {
            self.drop_message(&what, SendError::Disconnected, desk);
        }
        self.control.clear();
    }

    fn fits(&self, message: &Message) -> bool {
        let bytes = len64(message.len());
        let escaped = if self.capacity.overhead.needs_escaped() {
            message.slices().fold(0_u64, |sum, part| sum.saturating_add(json::escaped_len(part)))
        } else {
            bytes
        };
        self.capacity.fits(Measure { bytes, escaped })
    }

    fn queue(&mut self, what: Outgoing, desk: &mut Desk<'_>) {
        if self.fits(&what.message) {
            self.direct.push_back(what);
        } else {
            self.queue_large(what, desk);
        }
    }

    fn queue_large(&mut self, what: Outgoing, desk: &mut Desk<'_>) {
        if what.token.is_some() {
            self.large.push_back(what);
        } else {
            let size = len64(what.message.len());
            self.drop_message(&what, SendError::NoToken { size, limit: self.capacity.cap }, desk);
        }
    }

    /// Begins transfers while there is a slot. A token is in use once at a time.
    fn begin(&mut self, desk: &mut Desk<'_>) {
        while !self.large.is_empty() && len64(self.transfers.len()) < desk.config.max_transfers.into() {
            let open: Vec<_> = self.transfers.iter().map(|transfer| transfer.what.key()).collect();
            let Some(at) = self.large.iter().position(|what| !open.contains(&what.key())) else {
                return;
            };
            let Some(what) = self.large.remove(at) else {
                return;
            };
            let Some(token) = what.token.clone() else {
                continue;
            };
            let plan = Plan::make(&what.message, &token, &self.capacity, desk.config.max_chunks, &mut self.writer);
            let plan = match plan {
                Ok(plan) => plan,
                Err(error) => {
                    self.drop_message(&what, error, desk);
                    continue;
                }
            };
            let known = desk.config.known_support || desk.book.supports(&what.meta.peer);
            self.last_serial = self.last_serial.saturating_add(1);
            self.transfers.push_back(Transfer::new(self.last_serial, what, token, plan, known));
        }
    }

    /// Makes a frame. `None` when its transfer is over.
    fn emit(&mut self, sending: Sending, desk: &mut Desk<'_>) -> Option<Transmit> {
        let (bytes, mut meta) = match &sending {
            Sending::Control(bytes, meta) => (bytes.clone(), meta.clone()),
            Sending::Direct(what) => {
                // Whoever answers a request has seen that we support transfers.
                let supports_parts = what.kind == Kind::Request;
                (what.message.to_bytes(), Meta { supports_parts, ..what.meta.clone() })
            }
            Sending::Start(serial) | Sending::Chunk(serial, _) | Sending::End(serial) => {
                let transfer = self.transfers.iter_mut().find(|transfer| transfer.serial == *serial)?;
                let bytes = transfer.frame(&sending, &mut self.writer, desk);
                let supports_parts = matches!(sending, Sending::Start(_));
                (bytes, Meta { supports_parts, ..transfer.what.meta.clone() })
            }
        };
        meta.supports_parts |= desk.book.is_first(&meta.peer);
        self.last_tag = self.last_tag.saturating_add(1);
        let tag = Tag(self.last_tag);
        if desk.config.acks {
            self.unconfirmed.push_back((tag, Some(sending)));
            if self.unconfirmed.len() > MAX_UNCONFIRMED
                && let Some((_, Some(oldest))) = self.unconfirmed.pop_front()
            {
                self.confirm(oldest, desk);
            }
        } else {
            self.confirm(sending, desk);
        }
        Some(Transmit::Frame { tag, bytes, meta })
    }

    /// A frame is on its way for good.
    fn confirm(&mut self, sending: Sending, desk: &mut Desk<'_>) {
        let serial = match sending {
            Sending::Control(..) => return,
            Sending::Direct(what) => return self.sent(&what, desk),
            Sending::Start(serial) | Sending::Chunk(serial, _) | Sending::End(serial) => serial,
        };
        let Some(at) = self.transfers.iter().position(|transfer| transfer.serial == serial) else {
            return;
        };
        if matches!(sending, Sending::End(_)) {
            if let Some(transfer) = self.transfers.remove(at) {
                self.sent(&transfer.what, desk);
            }
        } else if let Some(transfer) = self.transfers.get_mut(at) {
            match sending {
                Sending::Chunk(_, place) => transfer.open.retain(|index| *index != place.index),
                _ => transfer.confirmed = true,
            }
            transfer.refresh(desk);
        }
    }

    fn refused(&mut self, sending: Sending, refusal: Refusal, desk: &mut Desk<'_>) {
        if refusal == Refusal::TooFast && self.pause(desk) {
            let serial = sending.serial();
            if let Some(transfer) = self.transfers.iter_mut().find(|transfer| Some(transfer.serial) == serial) {
                // A `start` that comes again has its time again.
                transfer.due = None;
                transfer.refresh(desk);
            }
            return self.retries.push_back(sending);
        }
        if refusal == Refusal::TooLarge {
            self.shrink(&sending);
        }
        match sending {
            Sending::Control(..) => desk.outbox.count("control-refused"),
            Sending::Direct(what) if refusal == Refusal::TooLarge => self.queue_large(what, desk),
            Sending::Direct(what) => self.drop_message(&what, SendError::Refused, desk),
            Sending::Start(serial) | Sending::Chunk(serial, _) | Sending::End(serial) => {
                self.give_up(serial, SendError::Refused, desk);
            }
        }
    }

    /// Waits before the next frame, longer each time. `false` when there were enough pauses.
    fn pause(&mut self, desk: &Desk<'_>) -> bool {
        if self.paused_until.is_none_or(|until| until <= desk.time.now) {
            self.pauses = self.pauses.saturating_add(1);
            let pause = FIRST_PAUSE.saturating_mul(1 << self.pauses.saturating_sub(1).min(16)).min(LAST_PAUSE);
            self.paused_until = desk.time.now.checked_add(pause);
        }
        self.pauses <= MAX_PAUSES
    }

    /// Learns from a refused frame that the link takes less than it said.
    fn shrink(&mut self, sending: &Sending) {
        let size = match sending {
            Sending::Direct(what) => len64(what.message.len()),
            Sending::Chunk(serial, _) => {
                let found = self.transfers.iter().find(|transfer| transfer.serial == *serial);
                found.map_or(u64::MAX, |transfer| transfer.plan.frame)
            }
            _ => return,
        };
        let fixed = self.capacity.overhead.of(Measure { bytes: size, escaped: size });
        self.capacity.cap = self.capacity.cap.min(size.saturating_add(fixed) / 2);
    }

    /// Ends a transfer that the peer cannot complete, and tells it so.
    fn give_up(&mut self, serial: u64, error: SendError, desk: &mut Desk<'_>) {
        let found = self.transfers.iter().position(|transfer| transfer.serial == serial);
        let Some(transfer) = found.and_then(|at| self.transfers.remove(at)) else {
            return;
        };
        if error != SendError::Aborted {
            let bytes = self.writer.abort(&transfer.token, transfer.after(), &error.to_string());
            self.control(bytes, transfer.what.meta.clone(), desk.outbox);
        }
        self.drop_message(&transfer.what, error, desk);
    }

    /// Reports a message that is not sent, and takes it off the books.
    fn drop_message(&mut self, what: &Outgoing, error: SendError, desk: &mut Desk<'_>) {
        self.queued_bytes = self.queued_bytes.saturating_sub(len64(what.message.len()));
        self.fail(what, error, desk);
    }

    /// Reports a message that is not sent. Whoever waits for it gets an error response.
    fn fail(&mut self, what: &Outgoing, error: SendError, desk: &mut Desk<'_>) {
        let mut reply = what.id.as_deref().map(|id| refusal(id, &error));
        match what.kind {
            Kind::Request => {
                if let Some(token) = &what.token {
                    desk.book.fail_asked(&what.meta.peer, token, "", "");
                }
            }
            Kind::Response if !matches!(error, SendError::Aborted | SendError::Disconnected) => {
                if let Some(reply) = reply.take() {
                    self.control(reply.to_bytes(), what.meta.clone(), desk.outbox);
                }
            }
            _ => reply = None,
        }
        desk.outbox.send_failed(what.ticket, error, reply);
    }

    fn sent(&mut self, what: &Outgoing, desk: &mut Desk<'_>) {
        self.queued_bytes = self.queued_bytes.saturating_sub(len64(what.message.len()));
        desk.outbox.event(Event::Sent { ticket: what.ticket });
    }

    /// Takes the oldest message that the link never answered for as sent. `false` when there is none.
    fn settle_oldest(&mut self, desk: &mut Desk<'_>) -> bool {
        let direct = |(_, sending): &&mut (Tag, Option<Sending>)| matches!(sending, Some(Sending::Direct(_)));
        let Some(sending) = self.unconfirmed.iter_mut().find(direct).and_then(|(_, sending)| sending.take()) else {
            return false;
        };
        self.confirm(sending, desk);
        true
    }
}
