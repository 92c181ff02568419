//! Moves frames between a link and a machine, and tells the machine the time, while the caller polls for events.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use breakbulk_proto::{CloseReason, Event, Input, Machine, Transmit, Violation};

use crate::deferred_drop::SendingMessages;
use crate::link::{Arrival, HalfClose, Link, LinkError};

/// How long a link usually has to take our close before it is dropped.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// The same after the peer has closed both directions: then nobody waits for what we still have to send.
const CLOSE_TIME_AFTER_PEER: Duration = Duration::from_secs(1);

/// While frames keep coming and going, the machine's timeout is checked once in this time. Before that, the frames that had
/// arrived are passed to the machine.
const BUSY_TIME: Duration = Duration::from_secs(1);

/// How many bytes are kept of the text of a close. A close frame can carry 123.
const MAX_CLOSE_TEXT_BYTES: usize = 512;

/// The close code that stands for a link that broke without a close.
pub(crate) const ABNORMAL: u16 = 1006;

/// A machine on a link.
///
/// Everything happens inside [`next`](Self::next), and nothing is lost when that is dropped before it is done. Nothing is
/// read while an event waits to be taken, and no frame is made before the link can take it. So a slow application slows
/// its peer, and a slow peer its application, and every buffer in between is bounded.
#[derive(Debug)]
pub struct Driver<L, M> {
    link: L,
    machine: M,
    phase: DriverPhase,
    input: InputState,
    output: OutputState,
    /// Large messages that the machine is sending, kept so that they are freed in the background.
    sending: SendingMessages,
    timer: Pin<Box<Sleep>>,
    /// When the machine's timeout was last checked.
    timeout_checked: Instant,
    wire: WireState,
    /// Why the link failed, if it did.
    failure: Option<LinkError>,
    /// Whether the caller wants frames to be read.
    reading: bool,
    /// Whether the machine was told that no frames are read. Such time does not count against the peer.
    paused: bool,
    /// How long the link has to take our close. With `is_patient`, the time begins anew whenever the peer takes something.
    close_time: Duration,
    is_patient: bool,
    /// When the close is given up, however much the peer still takes.
    close_deadline: Option<tokio::time::Instant>,
    /// What the peer had taken when `close_time` last began.
    taken_before: u64,
}

/// How far the end of the connection has come.
#[derive(Debug)]
enum DriverPhase {
    Open,
    /// The machine is closed, and the link gets its close. The caller gets the reason when that is done.
    Closing(CloseReason),
    Closed,
}

/// Whether the peer still sends.
#[derive(Debug)]
enum InputState {
    Open,
    /// It sends nothing more, and still reads.
    Ended,
    /// It closed the link, with this code and text of its own.
    Closed {
        code: u16,
        text: String,
    },
    /// It was a child process, and has exited as this text says.
    Exited {
        text: String,
    },
}

/// Whether we still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputState {
    Open,
    /// We send nothing more, except a close.
    Ended,
    /// The link has our close.
    CloseSent,
}

/// Whether all that the link was handed is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireState {
    Flushed,
    /// The link may hold something that is not on the wire yet.
    Unflushed,
    /// The link has failed, and takes nothing more, not even a close.
    Broken,
}

impl<L: Link, M: Machine> Driver<L, M> {
    /// Puts a machine on a link, and tells it what the link takes.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn new(link: L, mut machine: M) -> Self {
        machine.handle(Input::Capacity(link.capacity()), now());
        Self {
            link,
            machine,
            phase: DriverPhase::Open,
            input: InputState::Open,
            output: OutputState::Open,
            sending: SendingMessages::default(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            timeout_checked: now(),
            wire: WireState::Flushed,
            failure: None,
            reading: true,
            paused: false,
            close_time: CLOSE_TIME,
            is_patient: false,
            close_deadline: None,
            taken_before: 0,
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

    /// What the peer said when it closed the link; `None` if it was not the peer that closed it, or not by a close.
    ///
    /// The words are the peer's own, at most 512 bytes of them: show them escaped (`{:?}`), as
    /// [`describe_end`](Self::describe_end) does.
    pub fn close_text(&self) -> Option<&str> {
        match &self.input {
            InputState::Closed { text, .. } => Some(text),
            InputState::Exited { .. } | InputState::Open | InputState::Ended => None,
        }
    }

    /// How the link ended, and who ended it, in one line for a log or a person. `reason` is that of [`Event::Closed`]. What the
    /// peer said as it closed is in it, in quotation marks and escaped.
    pub fn describe_end(&self, reason: &CloseReason) -> String {
        match &self.input {
            InputState::Exited { text } => return text.clone(),
            InputState::Closed { code, text } if text.is_empty() => {
                return format!("closed by the peer with code {code}");
            }
            InputState::Closed { code, text } => {
                return format!("closed by the peer with code {code}, which says {text:?}");
            }
            InputState::Open | InputState::Ended => {}
        }
        match (&self.failure, reason) {
            (Some(LinkError::Silent(_)), reason) => format!("closed by us: {reason}"),
            (Some(error), _) => error.to_string(),
            (None, CloseReason::Peer { code: ABNORMAL }) => reason.to_string(),
            (None, CloseReason::Peer { code }) => format!("closed by us with code {code}, as the other side ended"),
            (None, reason) => format!("closed by us: {reason}"),
        }
    }

    /// Whether the peer was a child process that has exited.
    pub(crate) const fn has_exited(&self) -> bool {
        matches!(self.input, InputState::Exited { .. })
    }

    /// Whether the peer has said that it sends nothing more. What is sent to it still arrives.
    pub const fn has_ended(&self) -> bool {
        matches!(self.input, InputState::Ended)
    }

    /// Whether the link has put all that it was handed on the wire.
    pub(crate) const fn has_flushed(&self) -> bool {
        !matches!(self.wire, WireState::Unflushed)
    }

    /// Tells the peer that nothing more will be sent, and goes on reading. Returns whether the peer is told: some links cannot.
    /// From here on, what the machine has to send is dropped, so wait first until everything that matters was
    /// [sent](Event::Sent).
    pub fn end_output(&mut self) -> bool {
        if self.output == OutputState::Open && self.link.end_output() {
            self.output = OutputState::Ended;
            self.note_unflushed();
        }
        self.output != OutputState::Open
    }

    /// At the end, a peer has five seconds to take what was sent to it. If patient, the five seconds begin anew whenever it has
    /// taken something.
    pub const fn set_patient(&mut self, is_patient: bool) {
        self.is_patient = is_patient;
    }

    /// Sets the time at which a close is given up at the latest, however slow the peer is.
    pub fn set_latest(&mut self, latest: tokio::time::Instant) {
        self.close_deadline = Some(latest);
        if matches!(self.phase, DriverPhase::Closing(_)) && self.timer.deadline() > latest {
            self.timer.as_mut().reset(latest);
        }
    }

    /// After the end: whether the time was up before the link had all that was sent.
    pub const fn has_unsent(&self) -> bool {
        let has_unsent = match self.wire {
            WireState::Flushed => !matches!(self.output, OutputState::CloseSent),
            WireState::Unflushed => true,
            WireState::Broken => false,
        };
        matches!(self.phase, DriverPhase::Closed) && has_unsent
    }

    /// Tells the machine something, such as [`Input::Send`]. What follows from it happens in [`next`](Self::next).
    pub fn handle(&mut self, input: Input) {
        self.sending.note_input(&input, &self.link);
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
            let is_open = matches!(self.phase, DriverPhase::Open);
            let wrote = is_open && self.poll_write(cx).unwrap_or_else(|error| self.fail(error));
            // After writing, because a message that cannot be sent is an event and no frame.
            let event = self.machine.poll_event().inspect(|event| self.sending.note_event(event));
            match event {
                Some(Event::Closed(reason)) => self.begin_to_close(reason),
                Some(event) => {
                    self.pause(true);
                    return Poll::Ready(Some(event));
                }
                None => {}
            }
            if !matches!(self.phase, DriverPhase::Open) {
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
        // After a close the machine has nothing more to send, and the link is not ready any more.
        if self.output != OutputState::CloseSent
            && self.poll_ready(cx)?.is_ready()
            && let Some(transmit) = self.machine.poll_transmit(now())
        {
            let is_close = matches!(transmit, Transmit::Close(_));
            if is_close {
                self.output = OutputState::CloseSent;
            } else if self.output == OutputState::Ended {
                return Ok(true);
            }
            self.note_unflushed();
            return match Pin::new(&mut self.link).start_send(transmit) {
                // The peer's close was first, and the link answers it by itself.
                Err(LinkError::Closed) if is_close => Ok(true),
                sent => sent.map(|()| true),
            };
        }
        if self.wire == WireState::Unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.link).poll_flush(cx)
        {
            self.wire = WireState::Flushed;
            flushed?;
        }
        Ok(false)
    }

    /// Ready when the link takes a frame, or when frames are dropped.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        match self.output {
            OutputState::Ended => Poll::Ready(Ok(())),
            OutputState::Open | OutputState::CloseSent => Pin::new(&mut self.link).poll_ready(cx),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        let wants_frames = self.machine.wants_frames();
        if !self.reading || self.has_ended() || !wants_frames {
            if let Poll::Ready((tag, result)) = self.link.poll_acked(cx) {
                self.machine.handle(Input::Acked { tag, result }, now());
                return true;
            }
            // All events are taken. So the machine still has the last frame only if it had no memory for it.
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
                if matches!(self.input, InputState::Open) {
                    self.input = InputState::Ended;
                }
                Input::EndOfInput
            }
            Poll::Ready(Some(Ok(Arrival::Exited { code, text }))) => {
                self.input = InputState::Exited { text };
                Input::Close(CloseReason::Peer { code })
            }
            Poll::Ready(Some(Ok(Arrival::Closed { code, mut text }))) => {
                text.truncate(text.floor_char_boundary(MAX_CLOSE_TEXT_BYTES));
                self.input = InputState::Closed { code, text };
                if self.link.status().half_close == HalfClose::Unsupported {
                    self.close_time = self.close_time.min(CLOSE_TIME_AFTER_PEER);
                    self.is_patient = false;
                }
                Input::Close(CloseReason::Peer { code })
            }
            Poll::Ready(Some(Err(error))) => return self.fail(error),
            Poll::Ready(None) => Input::Close(CloseReason::Peer { code: ABNORMAL }),
        };
        self.machine.handle(input, now());
        true
    }

    /// Checks the machine's timeout now and then, although frames keep coming: a peer that never stops sending must not put it
    /// off.
    fn check_time(&mut self) {
        let now = now();
        if now < self.timeout_checked + BUSY_TIME {
            return;
        }
        self.timeout_checked = now;
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle(Input::Timeout, now);
        }
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let now = now();
        self.timeout_checked = now;
        self.machine.wake_with(cx.waker());
        let Some(at) = self.machine.poll_timeout() else {
            return false;
        };
        let set = self.timer.deadline().into_std();
        // A timeout that is due may be a little later each time the machine is asked. If the timer were reset each time, it would
        // never fire: so a timer that was set for an earlier time is kept.
        if set != at && (at > now || set > now) {
            self.timer.as_mut().reset(at.into());
        }
        let is_due = self.timer.as_mut().poll(cx).is_ready();
        if is_due {
            self.machine.handle(Input::Timeout, now);
        }
        is_due
    }

    /// The machine has closed. The link has a while to bring the close to the peer.
    fn begin_to_close(&mut self, reason: CloseReason) {
        self.begin_to_wait();
        self.phase = DriverPhase::Closing(reason);
    }

    fn begin_to_wait(&mut self) {
        self.taken_before = self.link.status().moved.outward;
        let until = tokio::time::Instant::now() + self.close_time;
        self.timer.as_mut().reset(self.close_deadline.map_or(until, |deadline| deadline.min(until)));
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if matches!(self.phase, DriverPhase::Closed) {
            return Poll::Ready(None);
        }
        ready!(self.poll_close(cx));
        match std::mem::replace(&mut self.phase, DriverPhase::Closed) {
            DriverPhase::Closing(reason) => Poll::Ready(Some(Event::Closed(reason))),
            DriverPhase::Open | DriverPhase::Closed => Poll::Ready(None),
        }
    }

    /// Writes our close, if there is one. Ready also when the link has failed, or takes too long.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.wire != WireState::Broken {
            match self.poll_write(cx) {
                Ok(true) => {}
                // A link that is busy does not have our close yet.
                Ok(false) if self.wire == WireState::Unflushed || self.output != OutputState::CloseSent => break,
                Ok(false) => match Pin::new(&mut self.link).poll_close(cx) {
                    Poll::Pending => break,
                    Poll::Ready(_) => return Poll::Ready(()),
                },
                Err(error) => {
                    self.failure.get_or_insert(error);
                    self.wire = WireState::Broken;
                }
            }
        }
        while self.wire != WireState::Broken && self.timer.as_mut().poll(cx).is_ready() {
            let is_late = self.close_deadline.is_some_and(|deadline| deadline <= tokio::time::Instant::now());
            if is_late || !self.is_patient || self.link.status().moved.outward == self.taken_before {
                return Poll::Ready(());
            }
            self.begin_to_wait();
        }
        if self.wire == WireState::Broken { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The link failed. Always true, because the machine then has an event.
    fn fail(&mut self, error: LinkError) -> bool {
        let reason = match error {
            LinkError::FrameTooLarge(over) => Violation::FrameTooLarge(over).into(),
            LinkError::OverBudget(bytes) => CloseReason::OverBudget(bytes),
            LinkError::NotAuthentic => Violation::FrameNotAuthentic.into(),
            LinkError::Silent(silence) => CloseReason::Idle(silence),
            _ => CloseReason::Peer { code: ABNORMAL },
        };
        // A link that refuses what its peer sends can still send a close.
        let is_refusal = matches!(reason, CloseReason::Violation(_) | CloseReason::OverBudget(_));
        let can_send = is_refusal || matches!(error, LinkError::Protocol(_) | LinkError::NotUtf8);
        if !can_send {
            self.wire = WireState::Broken;
        } else if self.wire == WireState::Unflushed {
            self.wire = WireState::Flushed;
        }
        if !is_refusal {
            self.failure.get_or_insert(error);
        }
        self.machine.handle(Input::Close(reason), now());
        true
    }

    fn note_unflushed(&mut self) {
        if self.wire == WireState::Flushed {
            self.wire = WireState::Unflushed;
        }
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
