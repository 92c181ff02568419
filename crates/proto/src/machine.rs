//! What every dialect is to a driver: input goes in with the time, frames and events come out of polls.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;

use crate::envelope::Envelope;
use crate::error::{CloseReason, Counters, SendError, Violation};
use crate::message::Message;

/// A protocol over one link, without the link.
///
/// A driver passes in what happens, then polls until both polls answer `None`:
/// frames leave through [`poll_transmit`](Self::poll_transmit) as fast as the link takes them, events through
/// [`poll_event`](Self::poll_event) as fast as the application does. Neither blocks the other. Both are cheap to
/// call again. After a [`Transmit::Close`] there is nothing more to transmit.
///
/// # What is held, and who pays for it
/// Charged to the connection's [`Account`](crate::Account): messages that arrive in parts, from their first part until they
/// are polled, and finished ones that start-order delivery holds back. Not charged, but bounded:
///
/// | What | Bound |
/// |---|---|
/// | messages to send, until their last frame is polled | [`max_queued_bytes`](crate::LimitsConfig::max_queued_bytes), a handshake and its answer beside it |
/// | messages that came in one frame, until they are polled | what the driver feeds between polls; poll until there is no event |
/// | a frame that begins a message for which there is no room, and what is fed after it | see [`wants_frames`](Self::wants_frames) |
/// | error answers for the peer | 64 on a pipe, and then nothing is read |
///
/// Whatever leaves a poll is the driver's.
pub trait Machine {
    /// Takes note of something that happened. A violation becomes state: it comes out of the polls.
    fn handle(&mut self, input: Input, now: Instant);

    /// The next thing to put on the link. Call it only when the link can take a frame: each frame is made on demand,
    /// so that a small message may pass the rest of a large one.
    #[must_use]
    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit>;

    /// The next thing to tell the application.
    #[must_use]
    fn poll_event(&mut self) -> Option<Event>;

    /// When to send [`Input::Timeout`], at the latest: when the first of what is arriving is too old, or room is asked for
    /// again. A time that has passed means at once. Drain the frames that have arrived first.
    #[must_use]
    fn poll_timeout(&self) -> Option<Instant>;

    /// Whom to wake when [`poll_timeout`](Self::poll_timeout) says something else without any input: another connection needs
    /// the room of a message that is arriving here. Call it before each wait. A driver that never does gives such room back
    /// at the next input.
    fn wake_with(&mut self, waker: &Waker);

    /// Whether to go on reading frames. `false` while the budget has no room for a message that has begun, or the peer does not
    /// take its answers; reading goes on after a timeout, or when frames have left.
    ///
    /// Frames that are fed all the same wait with the one for which there was no room, since a driver may have read some
    /// already. Past the length of the longest message the connection is closed ([`CloseReason::Unwanted`]).
    #[must_use]
    fn wants_frames(&self) -> bool;

    /// How often each named reason occurred.
    #[must_use]
    fn counters(&self) -> &Counters;
}

/// A machine of any kind is a machine.
impl<M: Machine + ?Sized> Machine for Box<M> {
    fn handle(&mut self, input: Input, now: Instant) {
        (**self).handle(input, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        (**self).poll_transmit(now)
    }

    fn poll_event(&mut self) -> Option<Event> {
        (**self).poll_event()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (**self).poll_timeout()
    }

    fn wake_with(&mut self, waker: &Waker) {
        (**self).wake_with(waker);
    }

    fn wants_frames(&self) -> bool {
        (**self).wants_frames()
    }

    fn counters(&self) -> &Counters {
        (**self).counters()
    }
}

/// A driver need not own its machine.
impl<M: Machine + ?Sized> Machine for &mut M {
    fn handle(&mut self, input: Input, now: Instant) {
        (**self).handle(input, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        (**self).poll_transmit(now)
    }

    fn poll_event(&mut self) -> Option<Event> {
        (**self).poll_event()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (**self).poll_timeout()
    }

    fn wake_with(&mut self, waker: &Waker) {
        (**self).wake_with(waker);
    }

    fn wants_frames(&self) -> bool {
        (**self).wants_frames()
    }

    fn counters(&self) -> &Counters {
        (**self).counters()
    }
}

/// What a driver tells a machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Input {
    /// A frame arrived.
    Frame {
        /// Its text, without any delimiter of the link.
        bytes: Bytes,
        /// What the link knows about it.
        meta: Meta,
    },
    /// The link said what became of a frame. Only some links do.
    Acked {
        /// Which frame.
        tag: Tag,
        /// Taken, with a receipt; or refused.
        result: Result<Receipt, Refusal>,
    },
    /// The link's cap, at the start and whenever it changes. Until told, a machine assumes no cap.
    Capacity(Capacity),
    /// We stopped reading from the link (`true`) or resumed (`false`): a peer's clock stands still in between.
    Paused(bool),
    /// The time that [`Machine::poll_timeout`] named has come, and all frames that had arrived were passed in.
    Timeout,
    /// The application sends a message.
    Send {
        /// The caller's name for it, repeated in events.
        ticket: Ticket,
        /// The message.
        message: Message,
        /// Which messages it must stay in order with.
        lane: Lane,
        /// To whom, on links with many peers.
        meta: Meta,
    },
    /// The application or the link ends the connection, at once: what waits to be sent, or has gone in part, fails with
    /// [`SendError::Disconnected`], and what has arrived in part is dropped. To send all first, wait for the
    /// [`Event::Sent`] of each message.
    Close(CloseReason),
}

impl Input {
    /// A frame from a link that knows nothing else about it.
    pub fn frame(bytes: impl Into<Bytes>) -> Self {
        Self::Frame { bytes: bytes.into(), meta: Meta::default() }
    }

    /// A message in the order that the dialect gives it.
    pub fn send(ticket: Ticket, message: impl Into<Message>) -> Self {
        Self::Send { ticket, message: message.into(), lane: Lane::Auto, meta: Meta::default() }
    }
}

/// What a machine tells the link.
#[derive(Debug, Clone)]
pub enum Transmit {
    /// Put this frame on the link.
    Frame {
        /// Names the frame in [`Input::Acked`].
        tag: Tag,
        /// Its text, without any delimiter of the link. A long one may lie in pieces, which a link need not join.
        bytes: Message,
        /// What the link needs to know about it.
        meta: Meta,
    },
    /// Close the link, with this code and text. Comes at most once, and last.
    Close(CloseReason),
}

/// What a machine tells the application.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A message arrived, whole and checked.
    Message {
        /// The message.
        message: Message,
        /// What was found in it while it was checked: kind, method, id, channel, seq. Boxed, because it is three times as
        /// large as all the rest of an event.
        envelope: Box<Envelope>,
        /// Its place in the order in which messages began to arrive: the first is 0.
        ordinal: u64,
        /// What the link knows about it.
        meta: Meta,
    },
    /// The last frame of a message was handed to the link.
    Sent {
        /// Which message.
        ticket: Ticket,
    },
    /// A message of ours could not be sent. Mostly nothing of it was; of one that fails because the connection ends, or
    /// because its transfer is given up half way, a part may have gone: see [`SendError`]. Every [`Input::Send`] leads to
    /// one of this or [`Sent`](Self::Sent), also one that comes after [`Closed`](Self::Closed).
    SendFailed {
        /// Which message.
        ticket: Ticket,
        /// Why.
        error: SendError,
        /// For a request: the error response that its caller should see.
        reply: Option<Message>,
    },
    /// A message of the peer's failed alone; the connection lives.
    ReceiveFailed {
        /// Its place in the order of arrival.
        ordinal: u64,
        /// The rule that it broke.
        violation: Violation,
        /// For the answer to a request of ours: the error response that its caller should see.
        reply: Option<Message>,
    },
    /// Part of a message has passed.
    Progress(Progress),
    /// An unfinished message of the peer's was given up, because it took too long. It is never settled, so in `ahp` neither
    /// the cursor nor [`settled`](crate::ahp::Connection::settled) moves past it again: an application that has to have what
    /// it missed closes the link and resumes from the cursor. (With start-order delivery the machine closes by itself.) If it
    /// answered a request, a [`ReceiveFailed`](Self::ReceiveFailed) with the reply for the caller follows where the id is
    /// known; in `ahp` the caller's own timeout has to tell it.
    Expired {
        /// Its place in the order of arrival.
        ordinal: u64,
        /// Bytes that had arrived.
        received: u64,
    },
    /// A line that belongs to no message (`stdio`): for the log.
    Line(Bytes),
    /// The connection is over. Comes exactly once, and last: after it, only messages fail that are sent all the same.
    Closed(CloseReason),
}

/// How far a message has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Which message.
    pub subject: Subject,
    /// Bytes that have passed.
    pub done: u64,
    /// Bytes in all; for a message that is arriving, as its first segments let one expect.
    pub total: u64,
}

/// A message, in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// One of ours.
    Outgoing(Ticket),
    /// One of the peer's, by its place in the order of arrival.
    Incoming(u64),
}

/// The caller's name for a message that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The machine's name for a frame that it made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(pub u64);

impl Tag {
    /// A name for the frame after this one.
    pub(crate) const fn next(&mut self) -> Self {
        self.0 = self.0.wrapping_add(1);
        *self
    }
}

/// Which messages a message must stay in order with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lane {
    /// As the dialect orders it by its method and channel.
    #[default]
    Auto,
    /// With none: it may pass, and be passed by, any other.
    Free,
}

/// What a link knows about a frame beside its text: only on links where frames have senders, tags and receipts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// Who sent it, or whom it is for.
    pub peer: Option<Arc<str>>,
    /// The link's own name for this frame (on Nostr, the event's id).
    pub id: Option<Arc<str>>,
    /// The frame that this one answers (on Nostr, the `e` tag).
    pub about: Option<Arc<str>>,
    /// Whether the sender's tags say that it supports transfers in parts.
    pub supports_parts: bool,
}

/// What a link says about a frame that it took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The link's name for the frame.
    pub id: Option<Arc<str>>,
}

/// Why a link did not take a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is too large for the link.
    TooLarge,
    /// Too many came too fast; the same frame may pass later.
    TooFast,
    /// Any other reason, which will not go away, or an ambiguous one.
    Other,
}

/// How large a frame may be on a link, and what the link adds to a text.
#[derive(Debug, Clone)]
pub struct Capacity {
    /// The most bytes that one frame may take on the wire.
    pub cap: u64,
    /// Bytes that the link adds to a text (headers, escaping, padding).
    pub overhead: Overhead,
}

impl Capacity {
    /// A cap on the text itself: the link adds nothing that counts.
    #[must_use]
    pub fn of(cap: u64) -> Self {
        Self { cap, overhead: Overhead::default() }
    }

    /// Whether a text of this measure fits one frame.
    #[must_use]
    pub fn fits(&self, measure: Measure) -> bool {
        measure.bytes.saturating_add(self.overhead.of(measure)) <= self.cap
    }
}

/// The properties of a text on which a link's overhead may depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measure {
    /// Its length.
    pub bytes: u64,
    /// Its length inside a JSON string.
    pub escaped: u64,
}

/// Bytes that a link adds to a text of a given measure: by default none. What it adds to any text is better taken off
/// the cap.
#[derive(Clone, Default)]
pub struct Overhead(Option<Arc<dyn Fn(Measure) -> u64 + Send + Sync>>);

impl Overhead {
    /// What is added depends on the text. It must not shrink as the text grows.
    pub fn new(of: impl Fn(Measure) -> u64 + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(of)))
    }

    /// The bytes added to a text.
    #[must_use]
    pub fn of(&self, measure: Measure) -> u64 {
        self.0.as_ref().map_or(0, |of| of(measure))
    }

    /// Whether [`of`](Self::of) looks at the escaped length, so that it has to be counted.
    pub(crate) const fn needs_escaped(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Overhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.needs_escaped() { "Overhead(of the text)" } else { "Overhead(none)" })
    }
}
