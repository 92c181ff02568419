//! A link that notes every frame that passes it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use breakbulk::{Acked, Arrival, Link, LinkError, LinkStatus, ReceiveMemory};
use breakbulk_proto::{Capacity, Transmit};
use futures_core::Stream;
use futures_sink::Sink;

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toward {
    Client,
    Host,
}

/// A frame that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// On which connection, from 0.
    pub(crate) connection: usize,
    pub(crate) toward: Toward,
    pub(crate) len: usize,
    pub(crate) is_segment: bool,
}

/// The frames of all connections, in order. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tape(Arc<Mutex<(usize, Vec<Seen>)>>);

impl Tape {
    /// A new connection over `link`, from the client's side.
    pub(crate) fn watch<L>(&self, link: L) -> RecordedLink<L> {
        let mut tape = self.lock();
        tape.0 += 1;
        RecordedLink { link, tape: self.clone(), connection: tape.0 - 1 }
    }

    pub(crate) fn frames(&self) -> Vec<Seen> {
        self.lock().1.clone()
    }

    /// The frames of one connection in one direction.
    pub(crate) fn of(&self, connection: usize, toward: Toward) -> Vec<Seen> {
        self.frames().into_iter().filter(|seen| (seen.connection, seen.toward) == (connection, toward)).collect()
    }

    fn note(&self, connection: usize, toward: Toward, frame: &[u8]) {
        let head = String::from_utf8_lossy(&frame[..frame.len().min(80)]).into_owned();
        let is_segment = head.contains(r#""method":"ahp/messageSegment""#);
        self.lock().1.push(Seen { connection, toward, len: frame.len(), is_segment });
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Vec<Seen>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct RecordedLink<L> {
    link: L,
    tape: Tape,
    connection: usize,
}

impl<L: Link> Link for RecordedLink<L> {
    fn capacity(&self) -> Capacity {
        self.link.capacity()
    }

    fn status(&self) -> LinkStatus {
        self.link.status()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.link.receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.link.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        self.link.end_output()
    }
}

impl<L: Link> Stream for RecordedLink<L> {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let arrival = Pin::new(&mut self.link).poll_next(cx);
        if let Poll::Ready(Some(Ok(Arrival::Frame { bytes, .. }))) = &arrival {
            self.tape.note(self.connection, Toward::Client, bytes);
        }
        arrival
    }
}

impl<L: Link> Sink<Transmit> for RecordedLink<L> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if let Transmit::Frame { bytes, .. } = &item {
            self.tape.note(self.connection, Toward::Host, &bytes.to_bytes());
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
