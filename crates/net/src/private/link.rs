//! A link around another one, which seals what goes out and opens what comes in.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use breakbulk_proto::{Capacity, CloseReason, Grant, Measure, Meta, Overhead, Tag, Transmit};
use futures_core::Stream;
use futures_sink::Sink;

use super::seal::{Coding, Opened, Session};
use crate::driver::ABNORMAL;
use crate::link::{
    Acked, Arrival, BoxLink, FrameContent, HalfClose, Intake, Link, LinkError, LinkStatus, NextFrame, ReceiveMemory,
};

/// A private link. Whoever is in between sees the lengths of frames, and when they pass.
pub struct PrivateLink {
    link: BoxLink,
    session: Session,
    input: Input,
    /// Whether the link under this one is still to be told of our close, which it has as a sealed frame.
    owes_close: bool,
}

/// Whether something more may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Open,
    Ended,
}

impl PrivateLink {
    pub(super) const fn new(link: BoxLink, session: Session) -> Self {
        Self { link, session, input: Input::Open, owes_close: false }
    }

    /// Tells the link under this one of our close. The code and the text are the peer's alone, and were sealed.
    fn poll_owed_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.owes_close {
            ready!(Pin::new(&mut self.link).poll_ready(cx))?;
            self.owes_close = false;
            Pin::new(&mut self.link).start_send(Transmit::Close(CloseReason::Normal))?;
        }
        Poll::Ready(Ok(()))
    }

    /// What came through the link, opened.
    fn open(&mut self, arrival: Arrival) -> Result<Arrival, LinkError> {
        let arrival = match arrival {
            Arrival::Frame { bytes, meta } => match self.session.open(&bytes) {
                Some(Opened::Frame(bytes)) => Arrival::Frame { bytes, meta },
                Some(Opened::Close { code, text }) => Arrival::Closed { code, text },
                None => return Err(LinkError::NotAuthentic),
            },
            // Not the peer's, or it would be sealed. To the peer's machine it is a connection that broke.
            Arrival::Closed { code, .. } => {
                Arrival::Closed { code: ABNORMAL, text: format!("closed on the way, with code {code}") }
            }
            Arrival::Ended => Arrival::Closed { code: ABNORMAL, text: "ended on the way".into() },
            arrival @ (Arrival::Acked { .. } | Arrival::Exited { .. }) => arrival,
        };
        if matches!(arrival, Arrival::Closed { .. }) {
            self.input = Input::Ended;
        }
        Ok(arrival)
    }

    /// The memory of the link under this one.
    fn memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.link.receive_memory()
    }
}

impl Link for PrivateLink {
    fn capacity(&self) -> Capacity {
        let Capacity { cap, overhead } = self.link.capacity();
        let coding = self.session.coding();
        let overhead = move |measure: Measure| {
            // The text of a sealed frame has no character that is escaped.
            let sealed = coding.sealed_len(measure.bytes);
            let around = overhead.of(Measure { bytes: sealed, escaped: sealed });
            sealed.saturating_sub(measure.bytes).saturating_add(around)
        };
        Capacity { cap, overhead: Overhead::new(overhead) }
    }

    fn status(&self) -> LinkStatus {
        // An end of one direction that is not sealed could be anyone's.
        LinkStatus { half_close: HalfClose::Unsupported, content: FrameContent::Text, ..self.link.status() }
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        if self.memory().is_some() { Some(self) } else { None }
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.link.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        false
    }
}

/// Frames are charged with their sealed length, which is longer.
impl ReceiveMemory for PrivateLink {
    fn set_intake(&mut self, Intake { max_frame_bytes, account }: Intake) {
        let max_frame_bytes = self.session.coding().sealed_len(max_frame_bytes);
        if let Some(memory) = self.memory() {
            memory.set_intake(Intake { max_frame_bytes, account });
        }
    }

    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        self.memory().map_or(Poll::Pending, |memory| memory.poll_evicted(cx))
    }

    fn release_last(&mut self) {
        if let Some(memory) = self.memory() {
            memory.release_last();
        }
    }

    fn set_next_frame(&mut self, next: NextFrame) {
        if let Some(memory) = self.memory() {
            memory.set_next_frame(next);
        }
    }

    fn take_last(&mut self) -> Option<Grant> {
        self.memory()?.take_last()
    }
}

impl Stream for PrivateLink {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.input == Input::Ended {
            return Poll::Ready(None);
        }
        let next = ready!(Pin::new(&mut self.link).poll_next(cx));
        let next = next.map(|arrival| self.open(arrival?));
        if matches!(next, Some(Err(LinkError::NotAuthentic))) {
            self.input = Input::Ended;
        }
        Poll::Ready(next)
    }
}

impl Sink<Transmit> for PrivateLink {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        let is_binary = self.session.coding() == Coding::Bytes;
        // Only after 2^64 frames.
        let used_up = |_| LinkError::Closed;
        let frame = match item {
            Transmit::Frame { tag, bytes, meta } => {
                let meta = Meta { is_binary, ..meta };
                Transmit::Frame { tag, bytes: self.session.seal(&bytes).map_err(used_up)?, meta }
            }
            Transmit::Close(reason) => {
                self.owes_close = true;
                let bytes = self.session.seal_close(reason.code(), &reason.text()).map_err(used_up)?;
                Transmit::Frame { tag: Tag::default(), bytes, meta: Meta { is_binary, ..Meta::default() } }
            }
        };
        Pin::new(&mut self.link).start_send(frame)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        ready!(self.poll_owed_close(cx))?;
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        ready!(self.poll_owed_close(cx))?;
        Pin::new(&mut self.link).poll_close(cx)
    }
}

impl fmt::Debug for PrivateLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateLink").field("input", &self.input).finish_non_exhaustive()
    }
}
