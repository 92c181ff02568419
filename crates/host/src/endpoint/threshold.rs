//! A link until somebody has introduced themselves: little may come in, and what the client offers is read as it passes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use breakbulk::{Arrival, BoxLink, Intake, Link, LinkError};
use breakbulk_proto::json::{self, Path};
use breakbulk_proto::{Capacity, Over, Transmit};
use futures_core::Stream;
use futures_sink::Sink;

use super::traffic::Traffic;

/// A link that takes little before it is opened.
pub(super) struct Threshold {
    link: BoxLink,
    /// What has come so far; `None` when the limit no longer holds.
    came: Option<u64>,
    limit: u64,
    /// The longest message that the client says it takes. The machine hides this from us, and knows it only when the
    /// answer passes.
    offered: Option<u64>,
    traffic: Arc<Traffic>,
}

impl Threshold {
    pub(super) fn new(mut link: BoxLink, limit: u64, traffic: Arc<Traffic>) -> Self {
        // Not even in the link's own buffers is there more.
        link.set_intake(Intake { max_frame_bytes: limit, account: None });
        Self { link, came: Some(0), limit, offered: None, traffic }
    }

    /// The client has introduced itself: from now on these frames may come.
    pub(super) fn open(&mut self, intake: Intake) {
        self.came = None;
        self.link.set_intake(intake);
    }

    /// The longest message that the client says it takes, if it has said so.
    pub(super) const fn offered(&self) -> Option<u64> {
        self.offered
    }

    fn note(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        static PATHS: [Path; 1] = [&["params", "capabilities", "chunking", "maxIncomingMessageBytes"]];
        let Some(came) = self.came else { return Ok(()) };
        let size = came.saturating_add(u64::try_from(frame.len()).unwrap_or(u64::MAX));
        if size > self.limit {
            return Err(LinkError::FrameTooLarge(Over { size, limit: self.limit }));
        }
        self.came = Some(size);
        let found = json::find([frame], &PATHS).ok().and_then(|found| found.get(0));
        let text = found.and_then(|found| {
            frame.get(usize::try_from(found.span.start).ok()?..usize::try_from(found.span.end).ok()?)
        });
        self.offered = text.and_then(|text| json::number(text).to_u64()).or(self.offered);
        Ok(())
    }
}

impl Link for Threshold {
    fn capacity(&self) -> Capacity {
        self.link.capacity()
    }
}

impl Stream for Threshold {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let arrival = ready!(Pin::new(&mut self.link).poll_next(cx));
        Poll::Ready(match arrival {
            Some(Ok(Arrival::Frame { bytes, meta })) => {
                self.traffic.received.frame(bytes.len());
                Some(self.note(&bytes).map(|()| Arrival::Frame { bytes, meta }))
            }
            // A client that says nothing more has left.
            Some(Ok(Arrival::Ended)) => Some(Ok(Arrival::Closed { code: 1000, text: String::new() })),
            other => other,
        })
    }
}

impl Sink<Transmit> for Threshold {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if let Transmit::Frame { bytes, .. } = &item {
            self.traffic.sent.frame(bytes.len());
        }
        Pin::new(&mut self.link).start_send(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_close(cx)
    }
}
