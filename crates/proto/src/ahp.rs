//! The `ahp` dialect: `ahp/messageSegment`, negotiated limits, reassembly, order and cursor.
//!
//! A [`Connection`] stands between an application and its link and watches the handshake: it adds our capability to
//! `initialize` and `reconnect`, learns the peer's, and hides both from an application that has never heard of them.
//! Messages that fit a frame pass as they are; larger ones go in segments, if the peer takes segments.

mod arrivals;
mod cursor;
mod handshake;
mod negotiate;
mod order;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::arrivals::{Arrivals, Finished};
use self::handshake::Agreement;
use self::order::{MAX_REQUESTS, Requests};
use self::receive::{Incoming, Receiver, Taken};
use self::send::{Nature, Refused, Sender};
use self::wire::{CHANNEL_AT, Codec, Control, LOOK, LOOKS, SERVER_SEQ_AT};
use crate::budget::Account;
use crate::error::{CloseReason, Counters, SendError, Violation};
use crate::limits::Limits;
use crate::machine::{Event, Input, Lane, Machine, Meta, Progress, Subject, Ticket, Transmit};
use crate::message::{Message, len64};
use crate::outbox::Outbox;
use crate::outgoing::{Look, Outgoing, too_late};
use crate::queue::Order;
use crate::rpc::{self, Kind};

pub use self::arrivals::Delivery;
pub use self::cursor::Applied;
pub use self::handshake::Role;
pub use self::negotiate::{Chunking, Negotiated};

/// How often room is asked for again, and groups are looked at that may be too old: short against a timeout.
const RETRY: Duration = Duration::from_millis(100);

/// How a connection is set up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Which side of AHP this is.
    pub role: Role,
    /// What we take.
    pub limits: Limits,
    /// When ordered messages reach the application.
    pub delivery: Delivery,
    /// What earlier connections negotiated. Keep it, and pass it to the next one.
    pub negotiated: Negotiated,
    /// What the peer takes, when both sides know each other's limits beforehand and no handshake is to come.
    pub agreed: Option<Chunking>,
    /// Whether the application is not told of segments even if it asks for them: its own link takes none.
    pub hides_chunking: bool,
    /// Unpredictable bytes, for group ids that nobody can guess.
    pub seed: [u8; 32],
}

impl Config {
    /// A connection that remembers nothing, with start-order delivery.
    #[must_use]
    pub fn new(role: Role, limits: Limits, seed: [u8; 32]) -> Self {
        let (delivery, negotiated) = (Delivery::default(), Negotiated::default());
        Self { role, limits, delivery, negotiated, agreed: None, hides_chunking: false, seed }
    }
}

/// AHP with segments, over one link.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    agreement: Agreement,
    receiver: Receiver,
    arrivals: Arrivals,
    paused: bool,
    /// Frames that wait for room, the first of which begins a group.
    parked: VecDeque<Bytes>,
    /// When to look whether there is room, and whether a group here is too old or has to make room.
    look_at: Option<Instant>,
    sender: Sender,
    /// The peer's requests that we have not answered.
    asked: Requests,
    /// Our requests that the peer has not answered.
    asks: Requests,
    codec: Codec,
    outbox: Outbox,
}

impl Connection {
    /// A connection over a fresh link. What it holds is charged to `account`.
    #[must_use]
    pub fn new(config: Config, account: Account) -> Self {
        let Config { role, limits, delivery, negotiated, agreed, hides_chunking, seed } = config;
        let mut agreement = Agreement::new(role, Chunking::from(&limits), agreed, negotiated);
        agreement.hides_chunking = hides_chunking;
        let (receiver, arrivals) = (Receiver::new(limits, account), Arrivals::new(delivery, limits.max_held_bytes));
        let (sender, codec) = (Sender::new(&limits, seed), Codec::new());
        let (paused, parked, look_at, asked, asks, outbox) = Default::default();
        Self { role, agreement, receiver, arrivals, paused, parked, look_at, sender, asked, asks, codec, outbox }
    }

    /// The first ordinal that is not settled: all before it have been delivered.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.arrivals.cursor.settled()
    }

    /// Where to resume: the highest seq among settled messages, from `action` notifications and from what the
    /// application noted. `None` when there was none on this connection.
    #[must_use]
    pub const fn cursor(&self) -> Option<u64> {
        self.arrivals.cursor.seq()
    }

    /// Says that a delivered message brought the application up to `seq`: an `initialize` result, a replay.
    pub fn note_seq(&mut self, ordinal: u64, seq: u64) {
        self.arrivals.cursor.note(ordinal, Some(seq));
    }

    /// What the peer takes; `None` while it takes no segments.
    #[must_use]
    pub const fn peer(&self) -> Option<Chunking> {
        self.agreement.theirs
    }

    fn frame(&mut self, frame: Bytes, now: Instant) {
        if !self.parked.is_empty() || !self.take_frame(&frame, now) {
            self.parked.push_back(frame);
            self.run_clock(now);
        }
    }

    /// Takes frames that had to wait, as far as there is room.
    fn retry(&mut self, now: Instant) {
        while let Some(frame) = self.parked.pop_front() {
            if !self.take_frame(&frame, now) {
                return self.parked.push_front(frame);
            }
        }
        self.run_clock(now);
    }

    /// Takes a frame. `false`: there is no room for what it begins, and reading stops until there is.
    fn take_frame(&mut self, frame: &Bytes, now: Instant) -> bool {
        let (arrivals, invited) = (&mut self.arrivals, self.agreement.invited);
        let taken = self.receiver.frame(frame, invited, &mut self.codec, now, || arrivals.begin());
        match taken {
            Err(reason) => self.close(reason),
            Ok(Taken::NoRoom) => return false,
            Ok(Taken::Whole(incoming)) => {
                let ordinal = self.arrivals.begin();
                self.message(ordinal, incoming, now);
            }
            Ok(Taken::Segment { ordinal, received, expected, complete }) => {
                let subject = Subject::Incoming(ordinal);
                self.outbox.progress(Progress { subject, done: received, total: expected });
                if let Some(incoming) = complete {
                    self.message(ordinal, incoming, now);
                }
            }
        }
        true
    }

    fn run_clock(&mut self, now: Instant) {
        self.receiver.clock.pause(self.paused || !self.parked.is_empty(), now);
    }

    /// A whole message arrived: the handshake is read out of it, then it is delivered.
    fn message(&mut self, ordinal: u64, incoming: Incoming, now: Instant) {
        let Incoming { ref message, ref envelope, .. } = incoming;
        let (id, method) = (envelope.id_key(message), envelope.method(message));
        let ordered = match envelope.kind {
            Kind::Request => {
                let channel = rpc::string(message, incoming.looks.get(CHANNEL_AT));
                if let Some(id) = id
                    && !self.asked.note(id, &method, channel.as_deref())
                {
                    return self.close(Violation::TooManyRequests(MAX_REQUESTS).into());
                }
                false
            }
            Kind::Response => self.asks.answer(id).is_ordered(),
            Kind::Notification | Kind::Other => order::is_ordered(&method),
        };
        let seen = self.agreement.pass(self.role.peer(), message, envelope, &mut self.outbox);
        let seq = rpc::number(message, incoming.looks.get(SERVER_SEQ_AT).filter(|_| method == "action")).to_u64();
        drop(method);
        let Incoming { message, grant, .. } = incoming;
        self.deliver(ordinal, Finished { message: seen.unwrap_or(message), seq, ordered, grant }, now);
    }

    fn deliver(&mut self, ordinal: u64, mut finished: Finished, now: Instant) {
        if finished.grant.is_none() && self.arrivals.must_hold(ordinal, finished.ordered) {
            let size = len64(finished.message.len());
            finished.grant = self.receiver.hold(size, now);
            // A copy: the frame may be a slice of a much larger read.
            finished.message = Message::from(finished.message.to_bytes().to_vec());
            if finished.grant.is_none() {
                return self.close(CloseReason::NoRoom(size));
            }
        }
        match self.arrivals.finish(ordinal, finished) {
            Ok(events) => events.into_iter().for_each(|event| self.outbox.event(event)),
            Err(reason) => self.close(reason),
        }
    }

    /// Gives up groups that took too long, and the link if a group here has to make room.
    fn sweep(&mut self, now: Instant) {
        if self.receiver.is_evicted() {
            return self.close(CloseReason::Evicted);
        }
        for (ordinal, received) in self.receiver.sweep(now) {
            self.outbox.count("group-expired");
            self.outbox.event(Event::Expired { ordinal, received });
            if let Err(reason) = self.arrivals.expire(ordinal) {
                return self.close(reason);
            }
        }
    }

    /// Accepts a message of ours: the handshake is written into it, then it waits for its turn.
    fn send(&mut self, ticket: Ticket, message: Message, lane: Lane) {
        let look = Look::new(&message, &LOOK, |look| is_enough(look, &message)).ok();
        let Some(look) = look.filter(|look| !look.whole || look.envelope.is_valid(&message)) else {
            let out = Outgoing::new(Some(ticket), message, Meta::default());
            return self.fail(out, SendError::NotJsonRpc);
        };
        let method = rpc::string(&message, look.envelope.method).unwrap_or_default();
        let id = look.envelope.id_key(&message);
        let channel = rpc::string(&message, look.looks.get(CHANNEL_AT));
        let order = if method.is_empty() {
            order::response(self.role, self.asked.answer(id))
        } else {
            if let Some(id) = id {
                // Our own requests are bounded by their callers; past the bound an answer is merely not ordered.
                self.asks.note(id, &method, channel.as_deref());
            }
            order::outgoing(self.role, look.has_id(), &method, channel.as_deref())
        };
        let nature = match &*method {
            "" => Nature::Response,
            "initialize" | "reconnect" => Nature::Handshake,
            method if method.parse() == Ok(Control::Segment) => Nature::Segment,
            _ => Nature::Common,
        };
        let sent = self.agreement.pass(self.role, &message, &look.envelope, &mut self.outbox);
        let order = if lane == Lane::Free && order != Order::Barrier { Order::Free } else { order };
        drop((method, channel));
        let out = Outgoing::new(Some(ticket), sent.unwrap_or(message), Meta::default());
        if let Some(refused) = self.sender.push(out, nature, order) {
            self.refuse(refused);
        }
    }

    /// A message cannot be sent: a request fails here, a response is answered with an error, an ordered notification
    /// of a server closes the link, because without it the client would diverge.
    fn refuse(&mut self, refused: Refused) {
        let Refused { item, order, error } = refused;
        if item.nature == Nature::Handshake {
            self.agreement.withdraw();
        }
        // Of what seemed to be a notification, and was only looked at in front, the id may come last.
        let diverges = self.role == Role::Server && order.is_ordered() && item.out.named().0 == Kind::Notification;
        self.fail(item.out, error.clone());
        if diverges {
            self.close(CloseReason::Unsendable(error));
        }
    }

    fn fail(&mut self, out: Outgoing, error: SendError) {
        let Some(answer) = out.fail(error, &mut self.outbox) else { return };
        // The peer may have chosen an id that leaves no room for an answer.
        let fits = self.sender.fits(&answer.message, self.agreement.theirs);
        if fits { self.sender.answers.push_back(answer) } else { self.outbox.count("answer-too-large") }
    }

    /// Ends the connection: the table is dropped, nothing held back is released, nothing more is sent.
    fn close(&mut self, reason: CloseReason) {
        if self.outbox.is_closed() {
            return;
        }
        self.receiver.clear();
        self.arrivals.clear();
        self.parked.clear();
        self.sender.abandon(&mut self.outbox);
        self.outbox.close(reason);
    }
}

impl Machine for Connection {
    fn handle(&mut self, input: Input, now: Instant) {
        if self.outbox.is_closed() {
            return too_late(input, &mut self.outbox);
        }
        match input {
            Input::Frame { bytes, .. } => self.frame(bytes, now),
            Input::Capacity(link) => self.sender.set_capacity(link),
            Input::Paused(paused) => {
                self.paused = paused;
                self.run_clock(now);
            }
            Input::Timeout => {
                if self.look_at.take_if(|at| *at <= now).is_some() {
                    self.retry(now);
                }
                self.sweep(now);
            }
            Input::Send { ticket, message, lane, .. } => self.send(ticket, message, lane),
            Input::Close(reason) => self.close(reason),
            Input::Acked { .. } => {}
        }
        if self.receiver.is_idle() && self.parked.is_empty() {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = now.checked_add(RETRY);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if !self.sender.can_go_on(self.agreement.theirs) {
            self.close(CloseReason::CapShrank);
        }
        while !self.outbox.is_closed() {
            let (theirs, waiting) = (self.agreement.theirs, self.agreement.is_waiting());
            match self.sender.poll(theirs, waiting, &mut self.codec, now, &mut self.outbox)? {
                Ok(frame) => return Some(frame),
                Err(refused) => self.refuse(refused),
            }
        }
        self.outbox.poll_transmit_close().map(Transmit::Close)
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.outbox.poll_event();
        if let Some(Event::Message { ordinal, .. }) = event {
            self.arrivals.delivered(ordinal);
        }
        event
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.look_at.filter(|_| !self.outbox.is_closed())
    }

    fn wants_frames(&self) -> bool {
        self.parked.is_empty()
    }

    fn counters(&self) -> &Counters {
        self.outbox.counters()
    }
}

/// Whether enough of a message has been seen to order it: its id, or its channel if its id does not matter.
fn is_enough(look: &Look<LOOKS>, message: &Message) -> bool {
    let method = rpc::string(message, look.envelope.method);
    let in_channel = rpc::string(message, look.looks.get(CHANNEL_AT)).is_some();
    let is_seen = in_channel && method.is_some_and(|method| !order::is_tracked(&method));
    is_seen || (look.has_id() && look.has_kind())
}
