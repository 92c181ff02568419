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
use self::send::{Made, Nature, Outgoing, Sender};
use self::wire::{CHANNEL_AT, Codec, Control, LOOK, LOOKS, SERVER_SEQ_AT};
use crate::budget::Account;
use crate::clock::ReadClock;
use crate::error::{CloseReason, Counters, SendError, Violation};
use crate::limits::Limits;
use crate::machine::{Event, Input, Lane, Machine, Meta, Progress, Subject, Tag, Ticket, Transmit};
use crate::message::{Message, len64};
use crate::outbox::Outbox;
use crate::outgoing::Look;
use crate::queue::Order;
use crate::rpc::{self, Kind};

pub use self::arrivals::Delivery;
pub use self::cursor::Applied;
pub use self::handshake::Role;
pub use self::negotiate::{Chunking, Negotiated};

/// How often room is asked for again, and an eviction looked for: short against a group's timeout.
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
    /// Unpredictable bytes, for group ids that nobody can guess.
    pub seed: [u8; 32],
}

impl Config {
    /// A connection that remembers nothing, with start-order delivery.
    #[must_use]
    pub fn new(role: Role, limits: Limits, seed: [u8; 32]) -> Self {
        let (delivery, negotiated) = (Delivery::default(), Negotiated::default());
        Self { role, limits, delivery, negotiated, agreed: None, seed }
    }
}

/// AHP with segments, over one link.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    agreement: Agreement,
    receiver: Receiver,
    arrivals: Arrivals,
    clock: Option<ReadClock>,
    paused: bool,
    /// Frames that wait for room, the first of which begins a group.
    parked: VecDeque<Bytes>,
    retry_at: Option<Instant>,
    /// When to look whether a group here has to make room.
    check_at: Option<Instant>,
    sender: Sender,
    /// Error answers in place of responses that cannot be sent.
    answers: VecDeque<Bytes>,
    /// The peer's requests that we have not answered.
    asked: Requests,
    /// Our requests that the peer has not answered.
    asking: Requests,
    codec: Codec,
    frames: u64,
    outbox: Outbox,
}

impl Connection {
    /// A connection over a fresh link. What it holds is charged to `account`.
    #[must_use]
    pub fn new(config: Config, account: Account) -> Self {
        let Config { role, limits, delivery, negotiated, agreed, seed } = config;
        Self {
            role,
            agreement: Agreement::new(role, Chunking::from(&limits), agreed, negotiated),
            receiver: Receiver::new(limits, account),
            arrivals: Arrivals::new(delivery, limits.max_held_bytes()),
            clock: None,
            paused: false,
            parked: VecDeque::new(),
            retry_at: None,
            check_at: None,
            sender: Sender::new(&limits, seed),
            answers: VecDeque::new(),
            asked: Requests::default(),
            asking: Requests::default(),
            codec: Codec::new(),
            frames: 0,
            outbox: Outbox::default(),
        }
    }

    /// The first ordinal that is not settled: all before it have been delivered.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.arrivals.settled()
    }

    /// Where to resume: the highest seq among settled messages, from `action` notifications and from what the
    /// application noted. `None` when there was none on this connection.
    #[must_use]
    pub const fn cursor(&self) -> Option<u64> {
        self.arrivals.seq()
    }

    /// Says that a delivered message brought the application up to `seq`: an `initialize` result, a replay.
    pub fn note_seq(&mut self, ordinal: u64, seq: u64) {
        self.arrivals.note(ordinal, seq);
    }

    /// What the peer takes; `None` while it takes no segments.
    #[must_use]
    pub const fn peer(&self) -> Option<Chunking> {
        self.agreement.theirs
    }

    fn frame(&mut self, frame: Bytes, now: Instant) {
        if self.parked.is_empty() {
            self.take_frame(frame, now);
        } else {
            self.parked.push_back(frame);
        }
    }

    fn take_frame(&mut self, frame: Bytes, now: Instant) {
        let reading = self.clock.as_ref().map_or(Duration::ZERO, |clock| clock.at(now));
        let (arrivals, invited) = (&mut self.arrivals, self.agreement.invited);
        let taken = self.receiver.frame(&frame, invited, &mut self.codec, (now, reading), || arrivals.begin());
        match taken {
            Err(reason) => self.close(reason),
            Ok(Taken::NoRoom) => self.park(frame, now),
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
    }

    /// Stops reading until there is room.
    fn park(&mut self, frame: Bytes, now: Instant) {
        self.parked.push_front(frame);
        self.retry_at = now.checked_add(RETRY);
        self.run_clock(now);
    }

    /// Takes frames that had to wait, as far as there is room.
    fn retry(&mut self, now: Instant) {
        if self.retry_at.is_none_or(|at| at > now) {
            return;
        }
        self.retry_at = None;
        while let Some(frame) = self.parked.pop_front() {
            self.take_frame(frame, now);
            if self.retry_at.is_some() {
                return;
            }
        }
        self.run_clock(now);
    }

    fn run_clock(&mut self, now: Instant) {
        let running = !self.paused && self.parked.is_empty();
        self.clock.get_or_insert_with(ReadClock::new).run(running, now);
    }

    /// A whole message arrived: the handshake is read out of it, then it is delivered.
    fn message(&mut self, ordinal: u64, incoming: Incoming, now: Instant) {
        let Incoming { ref message, ref envelope, .. } = incoming;
        let id = envelope.id_key(message);
        let method = envelope.method(message);
        let (seen, ordered) = match envelope.kind {
            Kind::Request => {
                let channel = rpc::string(message, incoming.looks.get(CHANNEL_AT));
                if let Some(id) = id
                    && !self.asked.note(id, &method, channel.as_deref())
                {
                    return self.close(Violation::TooManyRequests { limit: MAX_REQUESTS }.into());
                }
                let server = self.role == Role::Server;
                let outbox = &mut self.outbox;
                (server.then(|| self.agreement.request_in(message, &method, id, outbox)).flatten(), false)
            }
            Kind::Response => {
                let order = self.asking.answer(id);
                let (client, is_error) = (self.role == Role::Client, envelope.error.is_some());
                let outbox = &mut self.outbox;
                let seen = client.then(|| self.agreement.response_in(message, id, is_error, outbox)).flatten();
                (seen, matches!(order, Order::Ordered(_) | Order::Barrier))
            }
            Kind::Notification | Kind::Other => (None, order::is_ordered(&method)),
        };
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
                return self.close(CloseReason::NoRoom { size });
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
        let reading = self.clock.as_ref().map_or(Duration::ZERO, |clock| clock.at(now));
        for (ordinal, received) in self.receiver.sweep(reading) {
            self.outbox.count("group-expired");
            self.outbox.event(Event::Expired { ordinal, received });
            if let Err(reason) = self.arrivals.expire(ordinal) {
                return self.close(reason);
            }
        }
    }

    /// Accepts a message of ours: the handshake is written into it, then it waits for its turn.
    fn send(&mut self, ticket: Ticket, message: Message, lane: Lane) {
        let Ok(look) = Look::new(&message, &LOOK, |look| self.is_enough(look, &message)) else {
            return self.outbox.send_failed(ticket, SendError::NotJsonRpc, None);
        };
        let method = rpc::string(&message, look.envelope.method).unwrap_or_default();
        let id = look.envelope.id_key(&message);
        let (sent, order) = if method.is_empty() {
            let order = order::response(self.role, self.asked.answer(id));
            let (server, is_error) = (self.role == Role::Server, look.envelope.error.is_some());
            (server.then(|| self.agreement.response_out(&message, id, is_error)).flatten(), order)
        } else {
            let channel = rpc::string(&message, look.looks.get(CHANNEL_AT));
            if let Some(id) = id {
                // Our own requests are bounded by their callers; past the bound an answer is merely not ordered.
                self.asking.note(id, &method, channel.as_deref());
            }
            let order = order::outgoing(self.role, look.has_id(), &method, channel.as_deref());
            let client = self.role == Role::Client;
            (client.then(|| self.agreement.request_out(&message, &method, id)).flatten(), order)
        };
        let nature = match &*method {
            "initialize" | "reconnect" => Nature::Handshake,
            method if Control::of(method) == Some(Control::Segment) => Nature::Segment,
            _ => Nature::Common,
        };
        let order = if lane == Lane::Free && order != Order::Barrier { Order::Free } else { order };
        drop(method);
        let message = self.fitting(message, sent);
        let pushed = self.sender.push(ticket, message, nature, order);
        if let Err((item, error)) = pushed {
            self.refuse(&item, order, error);
        }
    }

    /// The message with our handshake in it, unless only that makes it too large to be sent at all.
    fn fitting(&mut self, message: Message, sent: Option<Message>) -> Message {
        let theirs = self.agreement.theirs;
        match sent {
            Some(sent) if theirs.is_some() || self.sender.fits(&sent, theirs) => sent,
            Some(_) if self.sender.fits(&message, theirs) => {
                self.agreement.go_without();
                message
            }
            Some(sent) => sent,
            None => message,
        }
    }

    /// Whether enough of a message has been seen to order it.
    fn is_enough(&self, look: &Look<LOOKS>, message: &Message) -> bool {
        let Some(method) = rpc::string(message, look.envelope.method) else {
            return look.has_id() && (look.envelope.result.is_some() || look.envelope.error.is_some());
        };
        match self.role {
            Role::Client => look.has_id() || !order::is_tracked(&method),
            Role::Server if order::is_ordered(&method) => rpc::string(message, look.looks.get(CHANNEL_AT)).is_some(),
            Role::Server => look.has_id(),
        }
    }

    /// A message cannot be sent: a request fails here, a response is answered with an error, an ordered notification
    /// of a server closes the link, because without it the client would diverge.
    fn refuse(&mut self, item: &Outgoing, order: Order, error: SendError) {
        let message = &item.message;
        if item.nature == Nature::Handshake {
            self.agreement.withdraw();
        }
        let envelope = Look::new(message, &LOOK, |_| false).ok().map(|look| look.envelope);
        let kind = envelope.map_or(Kind::Other, |envelope| envelope.kind);
        let id = envelope.and_then(|envelope| envelope.id_text(message));
        let reply = id.map(|id| rpc::send_failed(&id, &error));
        let (answer, reply) = if kind == Kind::Response { (reply, None) } else { (None, reply) };
        match answer {
            Some(answer) if self.sender.fits(&answer, self.agreement.theirs) => {
                self.answers.push_back(answer.to_bytes())
            }
            // The peer chose an id that leaves no room for an answer.
            Some(_) => self.outbox.count("answer-too-large"),
            None => {}
        }
        self.outbox.send_failed(item.ticket, error.clone(), reply);
        let diverges = self.role == Role::Server && order != Order::Free;
        if diverges && matches!(kind, Kind::Notification | Kind::Other) {
            self.close(CloseReason::Unsendable(error));
        }
    }

    /// Ends the connection: the table is dropped, nothing held back is released, nothing more is sent.
    fn close(&mut self, reason: CloseReason) {
        if self.outbox.is_closed() {
            return;
        }
        self.receiver.clear();
        self.arrivals.clear();
        self.parked.clear();
        self.answers.clear();
        (self.retry_at, self.check_at) = (None, None);
        for ticket in self.sender.clear() {
            self.outbox.send_failed(ticket, SendError::Disconnected, None);
        }
        self.outbox.close(reason);
    }

    fn transmit(&mut self, bytes: Bytes) -> Transmit {
        self.frames = self.frames.wrapping_add(1);
        Transmit::Frame { tag: Tag(self.frames), bytes, meta: Meta::default() }
    }
}

impl Machine for Connection {
    fn handle(&mut self, input: Input, now: Instant) {
        if self.outbox.is_closed() {
            if let Input::Send { ticket, .. } = input {
                self.outbox.send_failed(ticket, SendError::Disconnected, None);
            }
            return;
        }
        if self.clock.is_none() {
            self.run_clock(now);
        }
        match input {
            Input::Frame { bytes, .. } => self.frame(bytes, now),
            Input::Capacity(link) => {
                if let Err(reason) = self.sender.set_capacity(link) {
                    self.close(reason);
                }
            }
            Input::Paused(paused) => {
                self.paused = paused;
                self.run_clock(now);
            }
            Input::Timeout => {
                self.retry(now);
                self.sweep(now);
            }
            Input::Send { ticket, message, lane, .. } => self.send(ticket, message, lane),
            Input::Close(reason) => self.close(reason),
            Input::Acked { .. } => {}
        }
        if self.receiver.is_idle() {
            self.check_at = None;
        } else if self.check_at.is_none_or(|at| at <= now) {
            self.check_at = now.checked_add(RETRY);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        while !self.outbox.is_closed() {
            if let Some(answer) = self.answers.pop_front() {
                return Some(self.transmit(answer));
            }
            let (theirs, waiting) = (self.agreement.theirs, self.agreement.is_waiting());
            match self.sender.poll(theirs, waiting, &mut self.codec, now)? {
                Made::Frame { bytes, ticket, progress, done } => {
                    if done {
                        self.outbox.event(Event::Sent { ticket });
                    } else if let Some(progress) = progress {
                        self.outbox.progress(progress);
                    }
                    return Some(self.transmit(bytes));
                }
                Made::Refused(item, order, error) => self.refuse(&item, order, error),
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
        if self.outbox.is_closed() {
            return None;
        }
        let clock = self.clock.as_ref();
        let sweep = self.receiver.next_sweep().and_then(|reading| clock?.when(reading));
        sweep.into_iter().chain(self.retry_at).chain(self.check_at).min()
    }

    fn wants_frames(&self) -> bool {
        self.parked.is_empty()
    }

    fn counters(&self) -> &Counters {
        self.outbox.counters()
    }
}
