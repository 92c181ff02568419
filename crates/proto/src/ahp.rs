//! The `ahp` dialect: `ahp/messageSegment`, negotiated limits, reassembly, order and cursor.
//!
//! A [`Connection`] stands between an application and its link and watches the handshake: it adds our capability to
//! `initialize` and `reconnect`, learns the peer's, and hides both from an application that has never heard of them.
//! Messages that fit a frame pass as they are; larger ones go in segments, if the peer takes segments.
//!
//! # Order
//! [`OrderClass`] says which messages must stay in order, unless the caller marks them [free](crate::Lane::Free). Messages that
//! must are in the lane of their `channel`, a response in that of its request. They start as they were accepted; a client's
//! `initialize` or `reconnect` goes before all that waits. They finish as they were accepted, too: within a lane and, if the peer
//! resumes from the highest seq that it saw, altogether. Of what arrives from a server,
//! [`Delivery::StartOrder`] may hold back what [carries state](OrderClass::carries_state).

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

use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::arrivals::{Arrivals, FinishedMessage};
use self::handshake::Agreement;
use self::order::{MAX_REQUESTS, Requests};
use self::receive::{Incoming, ReceivedFrame, Receiver};
use self::send::{MessageClass, Sender, UnsentMessage};
use self::wire::{ACTION_AT, CANCELLED_AT, CHANNEL_AT, Control, SEND_PATH_COUNT, SEND_PATHS};
use crate::budget::{Account, Grant};
use crate::envelope::Kind;
use crate::error::{CloseReason, Counters, SendError, Violation};
use crate::event_queue::EventQueue;
use crate::limits::Limits;
use crate::machine::{Event, Input, Lane, Machine, Meta, Progress, Subject, Ticket, Transmit};
use crate::mcp_order;
use crate::message::{Message, len64};
use crate::outgoing::{Outgoing, Scan, too_late};
use crate::parked::ParkedFrames;
use crate::queue::Order;
use crate::rpc;

pub use self::arrivals::{Charge, Delivery};
pub use self::cursor::Applied;
pub use self::handshake::Role;
pub use self::negotiate::{Chunking, Negotiated};
pub use self::order::{OrderClass, may_pass};

/// How often the budget is asked again for memory: often, compared with any group timeout.
const RETRY: Duration = Duration::from_millis(100);

/// In a longer message, the type of the action is not searched for to its end.
const LONG: usize = 64 << 10;

/// How a connection is set up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Which side of AHP this is.
    pub role: Role,
    /// What we accept, and advertise to the peer.
    pub limits: Limits,
    /// When ordered messages reach the application.
    pub delivery: Delivery,
    /// What earlier connections negotiated. Keep it, and pass it to the next connection.
    pub negotiated: Negotiated,
    /// The limits of the peer, if both sides know each other's limits beforehand, and there will be no handshake.
    pub agreed: Option<Chunking>,
    /// Whether chunking is hidden from the application even if it asks for it, because its own link takes no segments.
    pub hides_chunking: bool,
    /// How long an arrived message is charged to the account.
    pub charge: Charge,
    /// Unpredictable bytes, for group ids that nobody can guess.
    pub seed: [u8; 32],
}

impl Config {
    /// A connection without memory of earlier ones, with start-order delivery.
    #[must_use]
    pub fn new(role: Role, limits: Limits, seed: [u8; 32]) -> Self {
        Self {
            role,
            limits,
            delivery: Delivery::default(),
            negotiated: Negotiated::default(),
            agreed: None,
            hides_chunking: false,
            charge: Charge::default(),
            seed,
        }
    }
}

/// AHP with segments, over one link.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    agreement: Agreement,
    receiver: Receiver,
    arrivals: Arrivals,
    charge: Charge,
    /// The memory of the message that was polled last, until the next poll.
    grant: Option<Grant>,
    paused: bool,
    /// Frames that wait for memory, or until answers of ours have left. In the first case the first of them begins a group.
    parked: ParkedFrames,
    /// When to ask the budget for their memory again.
    retry_at: Option<Instant>,
    /// When the machine last got an input.
    heard: Option<Instant>,
    sender: Sender,
    /// Requests of the peer that we have not answered.
    peer_requests: Requests,
    /// Requests of ours that the peer has not answered.
    own_requests: Requests,
    events: EventQueue,
}

impl Connection {
    /// A connection over a new link. What it holds is charged to `account`.
    #[must_use]
    pub fn new(config: Config, account: Account) -> Self {
        let Config { role, limits, delivery, negotiated, agreed, hides_chunking, charge, seed } = config;
        let mut agreement = Agreement::new(role, Chunking::from(&limits), agreed, negotiated);
        agreement.hides_chunking = hides_chunking;
        Self {
            role,
            agreement,
            receiver: Receiver::new(limits, account),
            arrivals: Arrivals::new(delivery, limits.max_held_bytes),
            charge,
            grant: None,
            paused: false,
            parked: ParkedFrames::default(),
            retry_at: None,
            heard: None,
            sender: Sender::new(role, &limits, seed),
            peer_requests: Requests::answered_by(role),
            own_requests: Requests::answered_by(role.peer()),
            events: EventQueue::default(),
        }
    }

    /// The first ordinal that is not settled. All messages before it have been delivered.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.arrivals.cursor.settled()
    }

    /// The seq to resume from: the highest among settled messages, from `action` notifications and from
    /// [`note_seq`](Self::note_seq). `None` if there was none on this connection.
    #[must_use]
    pub const fn cursor(&self) -> Option<u64> {
        self.arrivals.cursor.seq()
    }

    /// Notes that a delivered message brought the application up to `seq`, such as the result of an `initialize`, or a replay.
    pub fn note_seq(&mut self, ordinal: u64, seq: u64) {
        self.arrivals.cursor.note(ordinal, Some(seq));
    }

    /// The limits of the peer; `None` while it takes no segments.
    #[must_use]
    pub const fn peer(&self) -> Option<Chunking> {
        self.agreement.theirs
    }

    /// Takes over the memory of the message that was polled last, with [`Charge::UntilDone`]. `None` for a message that came in a
    /// single frame, for which the machine reserves nothing. What is not taken over is given back at the next poll.
    pub const fn take_grant(&mut self) -> Option<Grant> {
        self.grant.take()
    }

    fn frame(&mut self, frame: Bytes, now: Instant) {
        if self.wants_frames() && self.take_frame(&frame, now) {
            return;
        }
        match self.parked.push(frame, Meta::default(), self.receiver.longest_message()) {
            Ok(()) => self.run_clock(now),
            Err(reason) => self.close(reason),
        }
    }

    /// Takes parked frames, as far as the budget has memory for them and the peer takes our answers.
    fn retry(&mut self, now: Instant) {
        while self.sender.may_read()
            && let Some(frame) = self.parked.first()
        {
            if !self.take_frame(&frame, now) {
                return;
            }
            self.parked.pop();
        }
        self.run_clock(now);
    }

    /// Takes a frame. Returns false if the budget has no memory for the group that it begins. Then reading stops until it has.
    fn take_frame(&mut self, frame: &Bytes, now: Instant) -> bool {
        let (arrivals, invitation) = (&mut self.arrivals, self.agreement.invitation);
        let taken = self.receiver.frame(frame, invitation, now, || arrivals.begin());
        match taken {
            Err(reason) => self.close(reason),
            Ok(ReceivedFrame::OutOfBudget) => return false,
            Ok(ReceivedFrame::Whole(incoming)) => {
                let ordinal = self.arrivals.begin();
                self.message(ordinal, incoming, now);
            }
            Ok(ReceivedFrame::Segment { ordinal, received, expected, complete }) => {
                let subject = Subject::Incoming(ordinal);
                self.events.push_progress(Progress { subject, done: received, total: expected });
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

    /// A message has arrived whole. If it belongs to the handshake, the peer's limits are read from it. Then it is delivered.
    fn message(&mut self, ordinal: u64, incoming: Incoming, now: Instant) {
        let Incoming { message, envelope, paths, grant } = incoming;
        let from = self.role.peer();
        let method = envelope.method(&message).unwrap_or_default();
        let envelope = envelope.with_ahp(wire::members(&message, &paths, &method));
        let id = envelope.id_key(&message);
        let carries_state = match envelope.kind() {
            Kind::Request => {
                let channel = envelope.channel(&message);
                if let Some(id) = id
                    && !self.peer_requests.note(id, &method, channel.as_deref())
                {
                    return self.close(Violation::TooManyRequests(MAX_REQUESTS).into());
                }
                false
            }
            Kind::Response => self.own_requests.answer(id).is_ordered(),
            kind @ (Kind::Notification | Kind::Other) => OrderClass::of(from, kind, &method).carries_state(),
        };
        // A client's messages finish in the order in which it sent them, except those that answer or cancel something. Those must
        // not wait, so nothing from a client is held back.
        let is_ordered = from == Role::Server && carries_state;
        let edit = self.agreement.pass(from, &message, &envelope, &mut self.events);
        if edit.is_some() {
            self.sender.pace.recall(self.agreement.rate());
        }
        drop(method);
        let (message, envelope) = match edit {
            Some(edit) => (edit.apply(&message), Box::new(envelope.after(&edit))),
            None => (message, Box::new(envelope)),
        };
        self.deliver(ordinal, FinishedMessage { message, envelope, is_ordered, grant }, now);
    }

    fn deliver(&mut self, ordinal: u64, mut finished: FinishedMessage, now: Instant) {
        if finished.grant.is_none() && self.arrivals.must_hold(ordinal, finished.is_ordered) {
            let size = len64(finished.message.len());
            finished.grant = self.receiver.hold(size, now);
            // Copied, because the frame may be a slice of a much larger buffer, which would not be freed.
            finished.message = Message::from(finished.message.to_bytes().to_vec());
            if finished.grant.is_none() {
                return self.close(CloseReason::OverBudget(size));
            }
        }
        if let Err(reason) = self.arrivals.finish(ordinal, finished, |event| self.events.push(event)) {
            self.close(reason);
        }
    }

    /// Gives up groups that took too long. Closes the link if the budget has evicted a group.
    fn sweep(&mut self, now: Instant) {
        if self.receiver.is_evicted() {
            return self.close(CloseReason::Evicted);
        }
        for (ordinal, received) in self.receiver.sweep(now) {
            self.events.count("group-expired");
            self.events.push(Event::Expired { ordinal, received });
            if self.arrivals.expire(ordinal) {
                let limit = Some(self.receiver.group_timeout());
                return self.close(CloseReason::GroupExpired { received, limit });
            }
        }
    }

    /// Accepts a message of ours. If it belongs to the handshake, our limits are written into it. Then it waits for its turn.
    fn send(&mut self, ticket: Ticket, message: Message, lane: Lane) {
        let scan = Scan::new(&message, &SEND_PATHS, |scan| is_enough(scan, &message)).ok();
        let Some(scan) = scan.filter(|scan| !scan.whole || scan.envelope.is_valid(&message, &scan.paths)) else {
            let out = Outgoing::new(Some(ticket), message, Meta::default());
            let is_alone = lane == Lane::Free;
            return self.give_up(out, !is_alone, SendError::NotJsonRpc);
        };
        let method = scan.envelope.method(&message).unwrap_or_default();
        let id = scan.envelope.id_key(&message);
        let channel = rpc::string(&message, scan.paths.get(CHANNEL_AT));
        let order = if method.is_empty() {
            self.peer_requests.answer(id)
        } else {
            if let Some(id) = id {
                // The callers bound the number of our own requests. If there are more than we track, the answer is merely not
                // ordered.
                self.own_requests.note(id, &method, channel.as_deref());
            }
            let order = OrderClass::of(self.role, scan.envelope.kind(), &method).in_lane(channel.as_deref());
            let action = rpc::string(&message, scan.paths.get(ACTION_AT)).filter(|_| method == order::DISPATCH);
            let passes = self.role == Role::Client && order::passes_other_channels(&method, action.as_deref());
            // It may overtake others only if it fits one frame; otherwise a later message for its channel could
            // overtake it. The peer's limits must be known to tell.
            let theirs = self.agreement.theirs.filter(|_| !self.agreement.is_waiting());
            let is_short = !self.agreement.is_waiting() && self.sender.fits(&message, theirs);
            if passes && is_short && !self.sender.has_unfinished(order) { Order::Free } else { order }
        };
        let bond = mcp_order::bond(&message, &scan.envelope, CANCELLED_AT.map(|at| scan.paths.get(at)));
        let class = match &*method {
            "" => MessageClass::Response,
            "initialize" | "reconnect" => MessageClass::Handshake,
            method if method.parse() == Ok(Control::Segment) => MessageClass::Segment,
            _ => MessageClass::Ordinary,
        };
        let edit = self.agreement.pass(self.role, &message, &scan.envelope, &mut self.events);
        if edit.is_some() {
            self.sender.pace.recall(self.agreement.rate());
        }
        let order = if lane == Lane::Free && order != Order::Barrier { Order::Free } else { order };
        drop((method, channel));
        let out = Outgoing::new(
            Some(ticket),
            edit.map_or_else(|| message.clone(), |edit| edit.apply(&message)),
            Meta::default(),
        );
        if let Some(refused) = self.sender.push(out, class, order, bond) {
            self.refuse(refused);
        }
    }

    /// A message that was queued cannot be sent.
    fn refuse(&mut self, refused: UnsentMessage) {
        let UnsentMessage { item, order, error } = refused;
        if item.class == MessageClass::Handshake {
            self.agreement.withdraw();
        }
        self.give_up(item.out, order.is_ordered(), error);
    }

    /// A message cannot be sent. A request fails here, and in place of a response the peer gets an error. If it is anything else that
    /// is ordered, a server closes the link, because the client's state would diverge without it.
    fn give_up(&mut self, out: Outgoing, is_ordered: bool, error: SendError) {
        let diverges = self.role == Role::Server && is_ordered && {
            // Only the front was scanned, so a message that looks like a notification may have an id at its end.
            let (kind, id) = out.named();
            kind == Kind::Notification || (kind == Kind::Other && id.is_none())
        };
        let reason = diverges.then(|| CloseReason::unsendable(&out.message, error.clone()));
        self.fail(out, error);
        if let Some(reason) = reason {
            self.close(reason);
        }
    }

    fn fail(&mut self, out: Outgoing, error: SendError) {
        let Some(answer) = out.fail(error, &mut self.events) else { return };
        // The peer may have chosen an id so long that no answer fits a frame.
        let fits = self.sender.fits(&answer.message, self.agreement.theirs);
        if fits { self.sender.answers.push_back(answer) } else { self.events.count("answer-too-large") }
    }

    /// Ends the connection. Unfinished groups are dropped, messages that were held back are not delivered, and nothing more is sent.
    fn close(&mut self, reason: CloseReason) {
        if self.events.is_closed() {
            return;
        }
        self.receiver.clear();
        self.arrivals.clear();
        self.parked = ParkedFrames::default();
        self.sender.abandon(&mut self.events);
        self.events.close(reason);
    }
}

impl Machine for Connection {
    fn handle(&mut self, input: Input, now: Instant) {
        if self.events.is_closed() {
            return too_late(input, &mut self.events);
        }
        self.heard = Some(now);
        match input {
            Input::Frame { bytes, .. } => self.frame(bytes, now),
            Input::Capacity(link) => self.sender.set_capacity(link),
            Input::Paused(paused) => {
                self.paused = paused;
                self.run_clock(now);
            }
            Input::Timeout => {
                if self.retry_at.take_if(|at| *at <= now).is_some() {
                    self.retry(now);
                }
                self.sweep(now);
            }
            Input::Send { ticket, message, lane, .. } => self.send(ticket, message, lane),
            Input::Close(reason) => self.close(reason),
            // A message that is not whole never settles, so a client that resumes gets it again.
            Input::Acked { .. } | Input::EndOfInput => {}
        }
        if self.parked.is_empty() {
            self.retry_at = None;
        } else if self.retry_at.is_none() {
            self.retry_at = now.checked_add(RETRY);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if !self.sender.can_go_on(self.agreement.theirs) {
            self.close(CloseReason::CapShrank);
        }
        while !self.events.is_closed() {
            let (theirs, waiting) = (self.agreement.theirs, self.agreement.is_waiting());
            let could_read = self.sender.may_read();
            let polled = self.sender.poll((theirs, waiting), now, &mut self.events);
            if let Some(rate) = self.sender.pace.news() {
                self.agreement.note_rate(rate);
            }
            if !could_read && self.sender.may_read() {
                self.retry(now);
            }
            match polled? {
                Ok(frame) => return Some(frame),
                Err(refused) => self.refuse(refused),
            }
        }
        self.events.poll_transmit_close().map(Transmit::Close)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.grant = None;
        let event = self.events.poll_event();
        if let Some(Event::Message { ordinal, .. }) = event {
            let grant = self.arrivals.delivered(ordinal);
            self.grant = grant.filter(|_| self.charge == Charge::UntilDone);
        }
        event
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.events.is_closed() {
            return None;
        }
        // An evicted group is dropped at once.
        let evicted = self.heard.filter(|_| self.receiver.is_evicted());
        evicted.or_else(|| self.receiver.due().into_iter().chain(self.retry_at).min())
    }

    fn wake_with(&mut self, waker: &Waker) {
        self.receiver.wake_with(waker);
    }

    fn wants_frames(&self) -> bool {
        self.parked.is_empty() && self.sender.may_read()
    }

    fn counters(&self) -> &Counters {
        self.events.counters()
    }
}

/// Whether enough of a message was scanned to know its order: its id, or its channel if the id does not matter.
fn is_enough(scan: &Scan<SEND_PATH_COUNT>, message: &Message) -> bool {
    let method = scan.envelope.method(message);
    let in_channel = rpc::string(message, scan.paths.get(CHANNEL_AT)).is_some();
    if method.as_ref().is_some_and(|method| method == order::DISPATCH) {
        // Only a short message may overtake others because of its type.
        let is_long = message.len() > LONG;
        return in_channel
            && (is_long || scan.paths.get(ACTION_AT).is_some_and(|kind| kind.span.end > kind.span.start));
    }
    // A cancel has to be read to its end. So has a request without its id in front, because a cancel may name it.
    let is_seen = method.is_some_and(|method| {
        let is_known = scan.envelope.has_id() || order::is_notification(&method);
        in_channel && is_known && !order::is_tracked(&method) && !mcp_order::is_cancel(&method)
    });
    is_seen || scan.envelope.is_final()
}
