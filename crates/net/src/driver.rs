//! Moves frames between a link and a machine, and time into the machine, for as long as somebody asks for events.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use breakbulk_proto::{CloseReason, Event, Input, Machine, Transmit, Violation};

use crate::link::{Arrival, Link, LinkError};

/// How long a link has to take our close before it is dropped.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// What a link that broke without a close counts as.
const ABNORMAL: u16 = 1006;

/// A machine on a link.
///
/// Everything happens inside [`next`](Self::next), and nothing is lost when that is dropped before it is done. Nothing is
/// read while an event waits to be taken, and no frame is made before the link can take it: so a slow application slows
/// its peer, and a slow peer its application, through buffers that are all bounded.
pub struct Driver<L, M> {
    link: L,
    machine: M,
    timer: Pin<Box<Sleep>>,
    /// The link has something that it may not have put on the wire yet.
    unflushed: bool,
    /// Frames are read only when this is called, so the time in between does not count against the peer.
    paused: bool,
    end: End,
}

/// How far the end has come.
enum End {
    Open,
    /// The machine is closed, and the link gets its close; the reason is told when that is done.
    Closing(Option<CloseReason>),
    Over,
}

impl<L: Link, M: Machine> Driver<L, M> {
    /// Puts a machine on a link, and tells it what the link takes.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn new(link: L, mut machine: M) -> Self {
        machine.handle(Input::Capacity(link.capacity()), now());
        let timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        Self { link, machine, timer, unflushed: false, paused: false, end: End::Open }
    }

    /// The machine.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, to be asked or told what only its dialect knows.
    pub const fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// Tells the machine something, such as [`Input::Send`]. What follows from it happens in [`next`](Self::next).
    pub fn handle(&mut self, input: Input) {
        self.machine.handle(input, now());
    }

    /// The next event; `None` after [`Event::Closed`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`next`](Self::next), to be polled.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.pause(false);
        loop {
            match self.machine.poll_event() {
                Some(Event::Closed(reason)) => self.begin_to_close(reason),
                Some(event) => {
                    self.pause(true);
                    return Poll::Ready(Some(event));
                }
                None => {}
            }
            match &mut self.end {
                End::Over => return Poll::Ready(None),
                End::Closing(reason) => {
                    let reason = reason.take();
                    let is_done = self.poll_close(cx).is_ready();
                    if let (true, Some(reason)) = (is_done, reason.clone()) {
                        self.end = End::Over;
                        return Poll::Ready(Some(Event::Closed(reason)));
                    }
                    self.end = End::Closing(reason);
                    return Poll::Pending;
                }
                End::Open => {}
            }
            let wrote = self.poll_write(cx).unwrap_or_else(|error| self.fail(&error));
            let read = self.poll_read(cx);
            // What had arrived is drained before the machine acts on the time.
            if !wrote && !read && !self.poll_timer(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Writes without taking events, for a caller who has no place for one: what is under way goes on, and the machine's
    /// clock stands still because nothing is read.
    pub fn poll_write_only(&mut self, cx: &mut Context<'_>) {
        self.pause(true);
        if matches!(self.end, End::Open)
            && let Err(error) = self.poll_write(cx)
        {
            self.fail(&error);
        }
    }

    /// Makes and writes frames while the link takes them. Whether there were any.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<bool, LinkError> {
        let mut moved = false;
        loop {
            match Pin::new(&mut self.link).poll_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(moved),
            }
            let Some(transmit) = self.machine.poll_transmit(now()) else {
                break;
            };
            let is_close = matches!(transmit, Transmit::Close(_));
            Pin::new(&mut self.link).start_send(transmit)?;
            (moved, self.unflushed) = (true, true);
            if is_close {
                break;
            }
        }
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.link).poll_flush(cx)
        {
            self.unflushed = false;
            flushed?;
        }
        Ok(moved)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.machine.wants_frames() {
            return false;
        }
        let input = match Pin::new(&mut self.link).poll_next(cx) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(Arrival::Frame { bytes, meta }))) => Input::Frame { bytes, meta },
            Poll::Ready(Some(Ok(Arrival::Acked { tag, result }))) => Input::Acked { tag, result },
            Poll::Ready(Some(Ok(Arrival::Closed { code, .. }))) => Input::Close(CloseReason::Peer { code }),
            Poll::Ready(Some(Err(error))) => return self.fail(&error),
            Poll::Ready(None) => Input::Close(CloseReason::Peer { code: ABNORMAL }),
        };
        self.machine.handle(input, now());
        true
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.machine.poll_timeout() else {
            return false;
        };
        if self.timer.deadline().into_std() != at {
            self.timer.as_mut().reset(at.into());
        }
        let is_due = self.timer.as_mut().poll(cx).is_ready();
        if is_due {
            self.machine.handle(Input::Timeout, now());
        }
        is_due
    }

    /// The machine has closed; the link has a while to say so.
    fn begin_to_close(&mut self, reason: CloseReason) {
        self.timer.as_mut().reset(tokio::time::Instant::now() + CLOSE_TIME);
        self.end = End::Closing(Some(reason));
    }

    /// Brings our close, if there is one to bring, onto the link.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let failed = self.poll_write(cx).is_err();
        let closed = !self.unflushed && Pin::new(&mut self.link).poll_close(cx).is_ready();
        if failed || closed || self.timer.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The link failed. Always true: the machine has something to say about it.
    fn fail(&mut self, error: &LinkError) -> bool {
        self.unflushed = false;
        let reason = match *error {
            LinkError::FrameTooLarge(over) => Violation::FrameTooLarge(over).into(),
            _ => CloseReason::Peer { code: ABNORMAL },
        };
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
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
