//! A link inside the process: two ends, with a bounded number of frames between them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use breakbulk_proto::{Capacity, Transmit};

use super::{Acked, Arrival, Link, LinkError, LinkStatus, Moved, ReceiveMemory};
use crate::len64;

/// One end of a link inside the process. When it is dropped, the other end sees an end without a close.
#[derive(Debug)]
pub struct InProcessLink {
    capacity: Capacity,
    incoming: mpsc::Receiver<Arrival>,
    outgoing: PollSender<Arrival>,
    moved: Moved,
}

/// The two ends of a link. Each takes frames of at most `capacity`, and up to `depth` of them may be on their way in each direction.
#[must_use]
pub fn pair(capacity: &Capacity, depth: usize) -> (InProcessLink, InProcessLink) {
    let ((to_right, from_left), (to_left, from_right)) = (mpsc::channel(depth), mpsc::channel(depth));
    let end = |outgoing, incoming| InProcessLink {
        capacity: capacity.clone(),
        incoming,
        outgoing: PollSender::new(outgoing),
        moved: Moved::default(),
    };
    (end(to_right, from_right), end(to_left, from_left))
}

impl Link for InProcessLink {
    fn capacity(&self) -> Capacity {
        self.capacity.clone()
    }

    fn status(&self) -> LinkStatus {
        LinkStatus { moved: self.moved, ..LinkStatus::default() }
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        None
    }

    fn poll_acked(&mut self, _: &mut Context<'_>) -> Poll<Acked> {
        Poll::Pending
    }

    fn end_output(&mut self) -> bool {
        false
    }
}

impl Stream for InProcessLink {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let arrival = ready!(self.incoming.poll_recv(cx));
        if let Some(Arrival::Frame { bytes, .. }) = &arrival {
            self.moved.inward = self.moved.inward.saturating_add(len64(bytes.len()));
        }
        Poll::Ready(arrival.map(Ok))
    }
}

impl Sink<Transmit> for InProcessLink {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(ready!(self.outgoing.poll_reserve(cx)).map_err(|_| LinkError::Closed))
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        let arrival = match item {
            Transmit::Frame { bytes, meta, .. } => {
                self.moved.outward = self.moved.outward.saturating_add(len64(bytes.len()));
                Arrival::Frame { bytes: bytes.to_bytes(), meta }
            }
            Transmit::Close(reason) => Arrival::Closed { code: reason.code(), text: reason.text() },
        };
        self.outgoing.send_item(arrival).map_err(|_| LinkError::Closed)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.outgoing.close();
        Poll::Ready(Ok(()))
    }
}
