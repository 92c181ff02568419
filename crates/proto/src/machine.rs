//! The interface of every dialect: a driver passes in what happens, with the time, and polls for frames and events.

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
/// A driver passes in what happens, then polls until both polls return `None`: frames from
/// [`poll_transmit`](Self::poll_transmit) as fast as the link takes them, events from [`poll_event`](Self::poll_event) as fast as
/// the application takes them. Neither poll blocks the other, and an extra call costs little. After a [`Transmit::Close`] there is
/// nothing more to transmit.
///
/// # What is held, and who pays for it
/// Charged to the connection's [`Account`](crate::Account): messages that arrive in parts, from their first part until they
/// are polled, and finished ones that start-order delivery holds back. Not charged, but bounded:
///
/// | What | Bound |
/// |---|---|
/// | messages to send, until their last frame is polled | [`max_queued_bytes`](crate::LimitsConfig::max_queued_bytes), a handshake and its answer beside it |
/// | messages that came in one frame, until they are polled | what the driver passes in between polls; poll until there is no event |
/// | frames that are passed in while none are wanted | the longest message: see [`wants_frames`](Self::wants_frames) |
/// | error answers for the peer | when 64 wait, nothing is read; in `cep22` 1,024 may wait, and more are dropped and counted. The last line or frame before that may be a batch: of up to 1,024 of its requests the ids are kept, of at most 256 bytes each, and each answer is made when it is polled |
/// | errors for callers here, in place of the answers in a batch | the ids of up to 1,024 of them, of at most 256 bytes each, until they are polled |
///
/// What a poll returns belongs to the driver, and is no longer counted.
pub trait Machine {
    /// Takes something that happened. It does not fail: if the peer broke a rule, the polls report it.
    fn handle(&mut self, input: Input, now: Instant);

    /// The next frame to put on the link, or the close. Call it only when the link can take a frame: frames are made on demand, so
    /// that a small message can pass the rest of a large one.
    #[must_use]
    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit>;

    /// The next event for the application.
    #[must_use]
    fn poll_event(&mut self) -> Option<Event>;

    /// When to send [`Input::Timeout`], at the latest: when the oldest message that is arriving has taken too long, or when the
    /// budget is to be asked again. A time in the past means now. First pass in the frames that have arrived.
    #[must_use]
    fn poll_timeout(&self) -> Option<Instant>;

    /// Sets the task to wake when [`poll_timeout`](Self::poll_timeout) changes without any input. That is when the budget evicts a
    /// message that is arriving here, because another connection needs the memory. Call it before each wait; a driver that never
    /// does gives the memory back only at the next input.
    fn wake_with(&mut self, waker: &Waker);

    /// Whether to go on reading frames. `false` while the budget has no memory for a message that has begun, or while the peer does
    /// not take its answers. It may change after a timeout, and when frames have left.
    ///
    /// A driver may have read frames already, so those that are passed in all the same are kept until frames are wanted again. If they
    /// come to more than the longest message, the connection is closed ([`CloseReason::Unwanted`]). That holds in every dialect; in
    /// `cep22`, frames are always wanted.
    #[must_use]
    fn wants_frames(&self) -> bool;

    /// How often each named reason occurred.
    #[must_use]
    fn counters(&self) -> &Counters;
}

/// So that a driver can have a machine of any type.
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

/// So that a driver can borrow its machine.
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
    /// The link reports whether it took a frame. Only some links do.
    Acked {
        /// Which frame.
        tag: Tag,
        /// Taken, with a receipt; or refused.
        result: Result<Receipt, Refusal>,
    },
    /// The link's cap, at the start and whenever it changes. Before that, a machine assumes that there is none.
    Capacity(Capacity),
    /// We stopped reading from the link (`true`) or resumed (`false`). Time in between does not count against the peer.
    Paused(bool),
    /// The time that [`Machine::poll_timeout`] returned has come, and all frames that had arrived were passed in.
    Timeout,
    /// The peer sends nothing more, and still takes what we send: the input of a pipe has ended. A message of which the rest is missing
    /// fails. In `ahp` nothing happens: such a message never settles, and a client that resumes gets it again.
    EndOfInput,
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
    /// The application or the link ends the connection, at once. Messages that have not been sent whole fail with
    /// [`SendError::Disconnected`], and messages that have arrived in part are dropped. To send everything first, wait for
    /// the [`Event::Sent`] of each message.
    Close(CloseReason),
}

impl Input {
    /// A frame, from a link that has no metadata for it.
    pub fn frame(bytes: impl Into<Bytes>) -> Self {
        Self::Frame { bytes: bytes.into(), meta: Meta::default() }
    }

    /// A message to send, in the order that the dialect gives it.
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
        /// Its text, without any delimiter of the link. It may be in several pieces, which a link can write without joining them.
        bytes: Message,
        /// What the link needs to know about it.
        meta: Meta,
    },
    /// Close the link, with the code and text of this reason. Comes at most once, and last.
    Close(CloseReason),
}

/// What a machine tells the application.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A message arrived, whole and checked. Or several answers to requests of ours came in one batch, which is refused: then the
    /// error response for the first caller is in the [`ReceiveFailed`](Self::ReceiveFailed), and those for the others follow as
    /// messages.
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
    /// A message of ours could not be sent. In most cases nothing of it was sent. If the connection ended, or a transfer was
    /// given up half way, a part may have been: see [`SendError`]. Every [`Input::Send`] leads to either this or
    /// [`Sent`](Self::Sent), even if it comes after [`Closed`](Self::Closed).
    SendFailed {
        /// Which message.
        ticket: Ticket,
        /// Why.
        error: SendError,
        /// For a request: the error response that its caller should see.
        reply: Option<Message>,
    },
    /// A message of the peer's failed, and the connection goes on.
    ReceiveFailed {
        /// Its place in the order of arrival.
        ordinal: u64,
        /// The rule that it broke.
        violation: Violation,
        /// For what was, or may have been, the answer to a request of ours: the error response that its caller should see.
        reply: Option<Message>,
    },
    /// Part of a message has passed.
    Progress(Progress),
    /// An unfinished message of the peer's was given up, because it took too long. In `ahp`, such a message never settles, so neither
    /// the cursor nor [`settled`](crate::ahp::Connection::settled) moves past it again. An application that needs what it missed
    /// closes the link and resumes from the cursor; with start-order delivery, the machine closes by itself. If the message was
    /// the answer to a request and its id is known, a [`ReceiveFailed`](Self::ReceiveFailed) with the reply for the caller
    /// follows. In `ahp` the id is not known, and the caller has to time out by itself.
    Expired {
        /// Its place in the order of arrival.
        ordinal: u64,
        /// Bytes that had arrived.
        received: u64,
    },
    /// A line that is no message (on pipes): for the log.
    Line(Bytes),
    /// The connection is over. Comes exactly once. After it there are only failures of messages that are sent all the same.
    Closed(CloseReason),
}

/// How far a message has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Which message.
    pub subject: Subject,
    /// Bytes that have passed.
    pub done: u64,
    /// Bytes in all. For a message that is arriving, an estimate from its first segments.
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
    /// The tag of the next frame.
    pub(crate) const fn next(&mut self) -> Self {
        self.0 = self.0.wrapping_add(1);
        *self
    }
}

/// Which messages a message must stay in order with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lane {
    /// As the dialect decides from its method and channel.
    #[default]
    Auto,
    /// With none: it may overtake any other message, and be overtaken.
    Free,
}

/// Metadata of a frame. Only some links have it, such as Nostr relays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// Who sent it, or whom it is for.
    pub peer: Option<Arc<str>>,
    /// The id that the link gave the frame (on Nostr, that of the event).
    pub id: Option<Arc<str>>,
    /// The id of the frame that this one answers (on Nostr, the `e` tag).
    pub about: Option<Arc<str>>,
    /// Whether the sender's tags say that it supports transfers in parts.
    pub supports_parts: bool,
    /// Whether the frame is bytes, and not text. Only for links that carry such frames.
    pub is_binary: bool,
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
    /// Any other reason, or none that is clear. Sending the frame again would not help.
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
    /// A cap on the text itself, on a link that adds nothing to it.
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

/// The lengths of a text on which a link's overhead may depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measure {
    /// Its length.
    pub bytes: u64,
    /// Its length inside a JSON string.
    pub escaped: u64,
}

/// How many bytes a link adds to a text; by default none. A constant overhead is better subtracted from the cap.
#[derive(Clone, Default)]
pub struct Overhead(Option<Arc<dyn Fn(Measure) -> u64 + Send + Sync>>);

impl Overhead {
    /// An overhead that depends on the text. It must not shrink as the text grows.
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
