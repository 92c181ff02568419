//! Moves frames between a link and a machine, and time into the machine, for as long as somebody asks for events.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use breakbulk_proto::{CloseReason, Event, Input, Machine, Transmit, Violation};

use crate::large::Held;
use crate::link::{Arrival, HalfClose, Link, LinkError};

/// How long a link usually has to take our close before it is dropped.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// How long it has when the peer has closed, where such a peer does not read on: nobody waits for what we still have to say.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// How long frames may go on coming and going before the machine is told the time all the same. What had arrived when a time
/// came is drained within it.
const BUSY_TIME: Duration = Duration::from_secs(1);

/// The most that is kept of what came with a close. A close frame has room for 123 bytes.
const MAX_CLOSE_TEXT_BYTES: usize = 512;

/// What a link that broke without a close counts as.
pub(crate) const ABNORMAL: u16 = 1006;

/// A machine on a link.
///
/// Everything happens inside [`next`](Self::next), and nothing is lost when that is dropped before it is done. Nothing is
/// read while an event waits to be taken, and no frame is made before the link can take it: so a slow application slows
/// its peer, and a slow peer its application, through buffers that are all bounded.
#[derive(Debug)]
pub struct Driver<L, M> {
    link: L,
    machine: M,
    /// What would take long to free, while the machine sends it.
    held: Held,
    timer: Pin<Box<Sleep>>,
    /// When the machine was last asked what it waits for.
    looked: Instant,
    /// The link has something that it may not have put on the wire yet.
    unflushed: bool,
    /// The link has our close.
    said_close: bool,
    /// Whether the caller wants frames to be read.
    reading: bool,
    /// What the machine was told: no frames are read, so the time does not count against the peer.
    paused: bool,
    /// The peer sends nothing more.
    ended: bool,
    /// The peer knows that we send nothing more.
    output_ended: bool,
    /// How long the link has to take our close; if the driver is patient, how long after it last took something.
    close_time: Duration,
    /// Whether a slow peer gets more time at the end than a dead one.
    is_patient: bool,
    /// When it is over, whatever moves.
    latest: Option<tokio::time::Instant>,
    /// What the peer had taken when the time at the end began.
    taken: u64,
    /// What failed, if the link did.
    failure: Option<LinkError>,
    /// The link takes nothing more, not even a close.
    broken: bool,
    /// How the peer ended the link, if it did.
    peer_end: Option<PeerEnd>,
    end: End,
}

/// How a peer has ended its link.
#[derive(Debug)]
enum PeerEnd {
    /// With a close, and these words of its own.
    Closed { code: u16, text: String },
    /// By exiting, as this says.
    Exited { text: String },
}

/// How far the end has come.
#[derive(Debug)]
enum End {
    Open,
    /// The machine is closed, and the link gets its close; the reason is told when that is done.
    Closing(CloseReason),
    Over,
}

impl<L: Link, M: Machine> Driver<L, M> {
    /// Puts a machine on a link, and tells it what the link takes.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn new(link: L, mut machine: M) -> Self {
        machine.handle(Input::Capacity(link.capacity()), now());
        let (timer, looked) = (Box::pin(tokio::time::sleep(Duration::ZERO)), now());
        let (unflushed, said_close, reading, paused, ended, broken) = (false, false, true, false, false, false);
        let (output_ended, close_time, is_patient, latest, taken) = (false, CLOSE_TIME, false, None, 0);
        let (held, failure, peer_end, end) = (Held::default(), None, None, End::Open);
        Self {
            link,
            machine,
            held,
            timer,
            looked,
            unflushed,
            said_close,
            reading,
            paused,
            ended,
            output_ended,
            close_time,
            is_patient,
            latest,
            taken,
            failure,
            broken,
            peer_end,
            end,
        }
    }

    /// The machine.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, to be asked or told what only its dialect knows.
    pub const fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The link.
    pub const fn link(&self) -> &L {
        &self.link
    }

    /// The link, to be told what only its kind knows.
    pub const fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Why the link failed, if it did: what [`CloseReason`] has no place for.
    pub const fn failure(&self) -> Option<&LinkError> {
        self.failure.as_ref()
    }

    /// The same, for whoever wants to keep it.
    pub const fn take_failure(&mut self) -> Option<LinkError> {
        self.failure.take()
    }

    /// What the peer said when it closed the link; `None` if it was not the peer that closed it, or not by a close.
    ///
    /// The words are the peer's own, at most 512 bytes of them: show them escaped (`{:?}`), as
    /// [`describe_end`](Self::describe_end) does.
    pub fn close_text(&self) -> Option<&str> {
        match &self.peer_end {
            Some(PeerEnd::Closed { text, .. }) => Some(text),
            Some(PeerEnd::Exited { .. }) | None => None,
        }
    }

    /// How the link ended, and who ended it, in one line for a log or a person. `reason` is that of [`Event::Closed`]. What the
    /// peer said as it closed is in it, in quotation marks and escaped.
    pub fn describe_end(&self, reason: &CloseReason) -> String {
        match (&self.peer_end, &self.failure, reason) {
            (Some(PeerEnd::Exited { text }), ..) => text.clone(),
            (Some(PeerEnd::Closed { code, text }), ..) if text.is_empty() => {
                format!("closed by the peer with code {code}")
            }
            (Some(PeerEnd::Closed { code, text }), ..) => {
                format!("closed by the peer with code {code}, which says {text:?}")
            }
            (None, Some(error @ LinkError::Silent(_)), _) => format!("closed by us: {error}"),
            (None, Some(error), _) => error.to_string(),
            (None, None, CloseReason::Peer { code: ABNORMAL }) => reason.to_string(),
            (None, None, CloseReason::Peer { code }) => {
                format!("closed by us with code {code}, as the other side ended")
            }
            (None, None, reason) => format!("closed by us: {reason}"),
        }
    }

    /// Whether the peer was a child process that has exited.
    pub(crate) const fn has_exited(&self) -> bool {
        matches!(self.peer_end, Some(PeerEnd::Exited { .. }))
    }

    /// Whether the peer has said that it sends nothing more. What is sent to it still arrives.
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the link has put all that it was handed on the wire.
    pub(crate) const fn has_flushed(&self) -> bool {
        !self.unflushed
    }

    /// Tells the peer, where the link can, that nothing more will be sent; what it sends is read all the same. Whether it is
    /// told. What the machine has to send from here on is dropped, so all that matters should have been
    /// [sent](Event::Sent).
    pub fn end_output(&mut self) -> bool {
        if !self.output_ended && self.link.end_output() {
            (self.output_ended, self.unflushed) = (true, true);
        }
        self.output_ended
    }

    /// At the end, a peer has five seconds to take what was sent to it. Whether they begin anew as often as it takes some.
    pub const fn set_patient(&mut self, is_patient: bool) {
        self.is_patient = is_patient;
    }

    /// When the end is over at the latest, however slow the peer is, once it has come to that.
    pub fn set_latest(&mut self, latest: tokio::time::Instant) {
        self.latest = Some(latest);
        if matches!(self.end, End::Closing(_)) && self.timer.deadline() > latest {
            self.timer.as_mut().reset(latest);
        }
    }

    /// After the end: whether the time was up before the link had all that was sent.
    pub const fn has_unsent(&self) -> bool {
        matches!(self.end, End::Over) && !self.broken && (self.unflushed || !self.said_close)
    }

    /// Tells the machine something, such as [`Input::Send`]. What follows from it happens in [`next`](Self::next).
    pub fn handle(&mut self, input: Input) {
        self.held.note_input(&input, &self.link);
        self.machine.handle(input, now());
    }

    /// Whether frames are read, for a caller who has no place for more messages. What is under way goes out all the same.
    pub const fn set_reading(&mut self, reading: bool) {
        self.reading = reading;
    }

    /// The next event; `None` after [`Event::Closed`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`next`](Self::next), to be polled.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.pause(!self.reading);
        loop {
            let is_open = matches!(self.end, End::Open);
            let wrote = is_open && self.poll_write(cx).unwrap_or_else(|error| self.fail(error));
            // After writing, because a message that cannot be sent is an event and no frame.
            let event = self.machine.poll_event().inspect(|event| self.held.note_event(event));
            match event {
                Some(Event::Closed(reason)) => self.begin_to_close(reason),
                Some(event) => {
                    self.pause(true);
                    return Poll::Ready(Some(event));
                }
                None => {}
            }
            if !matches!(self.end, End::Open) {
                return self.poll_end(cx);
            }
            // What had arrived is drained before the machine acts on the time.
            if self.poll_read(cx) || wrote {
                self.check_time();
            } else if !self.poll_timer(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Makes and writes one frame if the link takes one, or flushes if there is none. Whether there was one.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<bool, LinkError> {
        // After a close there is nothing more to make, and a link that has heard it is not ready any more.
        if !self.said_close
            && self.poll_ready(cx)?.is_ready()
            && let Some(transmit) = self.machine.poll_transmit(now())
        {
            let is_close = matches!(transmit, Transmit::Close(_));
            self.said_close |= is_close;
            if self.output_ended && !is_close {
                return Ok(true);
            }
            self.unflushed = true;
            return match Pin::new(&mut self.link).start_send(transmit) {
                // The peer's close was first, and the link answers it by itself.
                Err(LinkError::Closed) if is_close => Ok(true),
                sent => sent.map(|()| true),
            };
        }
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.link).poll_flush(cx)
        {
            self.unflushed = false;
            flushed?;
        }
        Ok(false)
    }

    /// Ready when something can be done with a frame.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        // What comes after the end is dropped.
        if self.output_ended { Poll::Ready(Ok(())) } else { Pin::new(&mut self.link).poll_ready(cx) }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        let wants_frames = self.machine.wants_frames();
        if !self.reading || self.ended || !wants_frames {
            // All events are taken: what came in last is the machine's only if it could not take it.
            let Some(memory) = self.link.receive_memory() else { return false };
            if wants_frames {
                memory.release_last();
            }
            return match memory.poll_evicted(cx) {
                Poll::Ready(error) => self.fail(error),
                Poll::Pending => false,
            };
        }
        let arrival = Pin::new(&mut self.link).poll_next(cx);
        self.pause(arrival.is_pending() && self.link.status().waits_for_memory);
        let input = match arrival {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(Arrival::Frame { bytes, meta }))) => Input::Frame { bytes, meta },
            Poll::Ready(Some(Ok(Arrival::Acked { tag, result }))) => Input::Acked { tag, result },
            Poll::Ready(Some(Ok(Arrival::Ended))) => {
                self.ended = true;
                return true;
            }
            Poll::Ready(Some(Ok(Arrival::Exited { code, text }))) => {
                self.peer_end = Some(PeerEnd::Exited { text });
                Input::Close(CloseReason::Peer { code })
            }
            Poll::Ready(Some(Ok(Arrival::Closed { code, mut text }))) => {
                text.truncate(text.floor_char_boundary(MAX_CLOSE_TEXT_BYTES));
                self.peer_end = Some(PeerEnd::Closed { code, text });
                if self.link.status().half_close == HalfClose::Unsupported {
                    (self.close_time, self.is_patient) = (self.close_time.min(FAREWELL_TIME), false);
                }
                Input::Close(CloseReason::Peer { code })
            }
            Poll::Ready(Some(Err(error))) => return self.fail(error),
            Poll::Ready(None) => Input::Close(CloseReason::Peer { code: ABNORMAL }),
        };
        self.machine.handle(input, now());
        true
    }

    /// Tells the machine the time, if it has waited for that long enough: a peer that never stops must not put it off.
    fn check_time(&mut self) {
        let now = now();
        if now < self.looked + BUSY_TIME {
            return;
        }
        self.looked = now;
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle(Input::Timeout, now);
        }
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let now = now();
        self.looked = now;
        self.machine.wake_with(cx.waker());
        let Some(at) = self.machine.poll_timeout() else {
            return false;
        };
        let set = self.timer.deadline().into_std();
        // A time that has come may move on with the clock: then the timer that was set for it counts, or none ever would.
        if set != at && (at > now || set > now) {
            self.timer.as_mut().reset(at.into());
        }
        let is_due = self.timer.as_mut().poll(cx).is_ready();
        if is_due {
            self.machine.handle(Input::Timeout, now);
        }
        is_due
    }

    /// The machine has closed; the link has a while to say so.
    fn begin_to_close(&mut self, reason: CloseReason) {
        self.begin_to_wait();
        self.end = End::Closing(reason);
    }

    fn begin_to_wait(&mut self) {
        self.taken = self.link.status().moved.outward;
        let until = tokio::time::Instant::now() + self.close_time;
        self.timer.as_mut().reset(self.latest.map_or(until, |latest| latest.min(until)));
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if matches!(self.end, End::Over) {
            return Poll::Ready(None);
        }
        ready!(self.poll_close(cx));
        match std::mem::replace(&mut self.end, End::Over) {
            End::Closing(reason) => Poll::Ready(Some(Event::Closed(reason))),
            End::Open | End::Over => Poll::Ready(None),
        }
    }

    /// Brings our close, if there is one to bring, onto the link. Done too when the link has failed, or takes too long.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.broken {
            match self.poll_write(cx) {
                Ok(true) => {}
                // A link that is busy has not heard our close yet.
                Ok(false) if self.unflushed || !self.said_close => break,
                Ok(false) => match Pin::new(&mut self.link).poll_close(cx) {
                    Poll::Pending => break,
                    Poll::Ready(_) => return Poll::Ready(()),
                },
                Err(error) => {
                    self.failure.get_or_insert(error);
                    self.broken = true;
                }
            }
        }
        while !self.broken && self.timer.as_mut().poll(cx).is_ready() {
            let is_late = self.latest.is_some_and(|latest| latest <= tokio::time::Instant::now());
            if is_late || !self.is_patient || self.link.status().moved.outward == self.taken {
                return Poll::Ready(());
            }
            self.begin_to_wait();
        }
        if self.broken { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The link failed. Always true: the machine has something to say about it.
    fn fail(&mut self, error: LinkError) -> bool {
        let reason = match error {
            LinkError::FrameTooLarge(over) => Violation::FrameTooLarge(over).into(),
            LinkError::NoRoom(bytes) => CloseReason::NoRoom(bytes),
            _ => CloseReason::Peer { code: ABNORMAL },
        };
        // A link that refuses what its peer sends can still say so.
        let is_refusal = matches!(reason, CloseReason::Violation(_) | CloseReason::NoRoom(_));
        self.broken |= !is_refusal && !matches!(error, LinkError::Protocol(_) | LinkError::NotUtf8);
        if !is_refusal {
            self.failure.get_or_insert(error);
        }
        self.unflushed = false;
        self.machine.handle(Input::Close(reason), now());
        true
    }

    fn pause(&mut self, paused: bool) {
        if std::mem::replace(&mut self.paused, paused) != paused {
            self.machine.handle(Input::Paused(paused), now());
        }
    }
}

/// The time as tokio tells it, so that tests can move it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
