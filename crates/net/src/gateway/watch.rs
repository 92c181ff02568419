//! A link that remembers what a size limit would show by: the longest frame lately, and whether the link outlived it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_sink::Sink;

use breakbulk_proto::{Capacity, Transmit};

use crate::driver::now;
use crate::link::{Arrival, Intake, Link, LinkError};

/// How much longer a later segment of a message may be: its number has more digits.
const DIGITS: u64 = 16;
/// Bytes that may lie in the system's buffers. When more was written after a frame, the peer has read it.
const IN_FLIGHT: u64 = 16 << 20;

/// How soon after a frame a link closes that does not take frames of that size. Later, the frame has passed.
pub(super) const SOON: Duration = Duration::from_secs(2);

/// A link, watched. The cap may be lower than the link's own.
#[derive(Debug)]
pub(super) struct Watched<L> {
    link: L,
    cap: u64,
    last: Option<Suspect>,
    passed: u64,
    /// The shortest frame so far.
    shortest: Option<u64>,
    /// The length of the longest message handed to the machine since a long frame passed.
    message: u64,
}

/// A long frame that the link has not outlived yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Suspect {
    /// Its length.
    pub(super) frame: u64,
    /// The length of the message that it seems to be of.
    pub(super) message: u64,
    /// The shortest frame that the link took before it.
    pub(super) shortest: Option<u64>,
    at: Instant,
    /// Bytes written since.
    since: u64,
}

impl Suspect {
    /// A frame that goes out now.
    pub(super) fn new(frame: u64, message: u64, shortest: Option<u64>) -> Self {
        Self { frame, message, shortest, at: now(), since: 0 }
    }

    fn has_passed(&self) -> bool {
        now().saturating_duration_since(self.at) >= SOON || self.since >= IN_FLIGHT
    }
}

impl<L> Watched<L> {
    /// Watches a link on which frames may be as long as `cap`, and as the link takes.
    pub(super) const fn new(link: L, cap: u64) -> Self {
        Self { link, cap, last: None, passed: 0, shortest: None, message: 0 }
    }

    /// Frames may be as long as this from now on, and as the link takes.
    pub(super) const fn set_cap(&mut self, cap: u64) {
        self.cap = cap;
    }

    /// A message of this length is about to be sent.
    pub(super) fn begin(&mut self, len: usize) {
        self.message = self.message.max(u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// The longest frame written so shortly ago that a close now may be for its sake.
    pub(super) fn suspect(&self) -> Option<Suspect> {
        self.last.filter(|last| !last.has_passed())
    }

    /// The longest frame that surely passed.
    pub(super) const fn passed(&self) -> u64 {
        self.passed
    }

    /// The peer has answered all that it was asked: every frame has passed.
    pub(super) fn answered(&mut self) {
        self.pass();
    }

    /// Notes a frame that goes out. The first of the longest ones counts: a limit strikes at it, not at the tenth.
    fn note(&mut self, frame: u64) {
        if let Some(last) = &mut self.last {
            last.since = last.since.saturating_add(frame);
        }
        self.clear();
        let is_longer = |last: Suspect| frame > last.frame.saturating_add(DIGITS);
        if self.last.is_none_or(is_longer) && frame > self.passed.saturating_add(DIGITS) {
            self.last = Some(Suspect::new(frame, self.message.max(frame), self.shortest));
        }
        self.shortest = Some(self.shortest.map_or(frame, |shortest| shortest.min(frame)));
    }

    /// A frame that the link outlived has passed.
    fn clear(&mut self) {
        if self.last.as_ref().is_some_and(Suspect::has_passed) {
            self.pass();
        }
    }

    fn pass(&mut self) {
        if let Some(last) = self.last.take() {
            (self.passed, self.message) = (self.passed.max(last.frame), 0);
        }
    }
}

impl<L: Link> Link for Watched<L> {
    fn capacity(&self) -> Capacity {
        let mut capacity = self.link.capacity();
        capacity.cap = capacity.cap.min(self.cap);
        capacity
    }

    fn set_intake(&mut self, intake: Intake) {
        self.link.set_intake(intake);
    }

    fn set_owing(&mut self, owing: bool) {
        self.link.set_owing(owing);
    }

    fn ends_alone(&self) -> bool {
        self.link.ends_alone()
    }
}

impl<L: Link> Stream for Watched<L> {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.link).poll_next(cx);
        if matches!(next, Poll::Ready(Some(Ok(Arrival::Frame { .. })))) {
            self.clear();
        }
        next
    }
}

impl<L: Link> Sink<Transmit> for Watched<L> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if let Transmit::Frame { bytes, .. } = &item {
            self.note(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
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
