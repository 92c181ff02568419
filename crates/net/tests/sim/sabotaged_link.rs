//! A link that sabotages one action on its way to a client: it is lost, repeated, altered or delayed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use breakbulk::{Acked, Arrival, Link, LinkError, LinkStatus, ReceiveMemory};
use breakbulk_proto::{Capacity, Transmit};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;

use crate::sim::plan::Sabotage;
use crate::sim::rng::Rng;
use crate::sim::segment::{self, Segment};

const ACTION: &[u8] = br#"{"jsonrpc":"2.0","method":"action""#;

/// A link. Honest, unless there is a sabotage.
pub(crate) struct SabotagedLink<L> {
    link: L,
    sabotage: Option<Sabotage>,
    rng: Rng,
    acted: bool,
    /// The group of the action that is being dropped.
    dropping: Option<String>,
    /// Comes after the next frame.
    waiting: Option<Arrival>,
    ready: VecDeque<Arrival>,
}

impl<L> SabotagedLink<L> {
    pub(crate) fn new(link: L, sabotage: Option<Sabotage>, rng: Rng) -> Self {
        Self { link, sabotage, rng, acted: false, dropping: None, waiting: None, ready: VecDeque::new() }
    }

    fn meddle(&mut self, arrival: Arrival) {
        let (Arrival::Frame { bytes, meta }, Some(sabotage)) = (&arrival, self.sabotage) else {
            return self.ready.push_back(arrival);
        };
        let group = segment::peek(bytes).map(|(id, _, _)| id.to_owned());
        if group.is_some() && group == self.dropping {
            return;
        }
        if let Some(waiting) = self.waiting.take() {
            return self.ready.extend([arrival, waiting]);
        }
        let is_whole = group.is_none();
        if self.acted || !is_action_start(bytes) || !self.rng.chance(20) {
            return self.ready.push_back(arrival);
        }
        match sabotage {
            Sabotage::DroppedAction => {
                (self.acted, self.dropping) = (true, group);
            }
            Sabotage::RepeatedAction if is_whole => {
                self.acted = true;
                self.ready.extend([arrival.clone(), arrival]);
            }
            Sabotage::SwappedActions => (self.acted, self.waiting) = (true, Some(arrival)),
            Sabotage::AlteredAction if is_whole => {
                self.acted = true;
                let (bytes, meta) = (alter(bytes), meta.clone());
                self.ready.push_back(Arrival::Frame { bytes, meta });
            }
            _ => self.ready.push_back(arrival),
        }
    }
}

/// Whether an action begins with this frame.
fn is_action_start(frame: &[u8]) -> bool {
    frame.starts_with(ACTION)
        || segment::peek(frame).is_some_and(|(_, index, _)| index == 0)
            && Segment::read(frame).is_some_and(|segment| segment.data.starts_with(ACTION))
}

/// The same action with one letter changed in its text.
fn alter(frame: &Bytes) -> Bytes {
    const TEXT: &[u8] = br#""text":""#;
    let mut bytes = frame.to_vec();
    let start = bytes.windows(TEXT.len()).position(|part| part == TEXT).map_or(0, |at| at + TEXT.len());
    if let Some(letter) = bytes[start..].iter_mut().find(|byte| byte.is_ascii_lowercase()) {
        *letter = if *letter == b'a' { b'b' } else { b'a' };
    }
    bytes.into()
}

impl<L: Link> Link for SabotagedLink<L> {
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

impl<L: Link> Stream for SabotagedLink<L> {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(arrival) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(arrival)));
            }
            match ready!(Pin::new(&mut self.link).poll_next(cx)) {
                Some(Ok(arrival)) => self.meddle(arrival),
                other => return Poll::Ready(other),
            }
        }
    }
}

impl<L: Link> Sink<Transmit> for SabotagedLink<L> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        Pin::new(&mut self.link).start_send(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_close(cx)
    }
}
