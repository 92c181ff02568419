//! A link that remembers what a size limit would show by: the longest frame lately, and whether the link outlived it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_sink::Sink;

use breakbulk_proto::{Capacity, Transmit};

use crate::driver::now;
use crate::link::{Arrival, Intake, Link, LinkError, Moved};

/// How much longer a later segment of a message may be: its number has more digits.
const DIGITS: u64 = 16;
/// Frames up to here need no proof that they pass.
const NEVER_TOO_LONG: u64 = 8 << 10;
/// Bytes that may lie in the system's buffers. When more was written after a frame, the peer has read it.
const IN_FLIGHT: u64 = 16 << 20;

/// How soon after a frame a link closes that does not take frames of that size. Later, the frame has passed.
pub(super) const SOON: Duration = Duration::from_secs(2);

/// A link, watched. The cap may be lower than the link's own.
#[derive(Debug)]
pub(super) struct Watched<L> {
    link: L,
    cap: u64,
    /// The longest frame so far: the first one of its length, because a limit strikes at it and not at the tenth.
    longest: Option<Suspect>,
    /// The shortest frame so far.
    shortest: Option<u64>,
    /// The longest frame that surely passed.
    passed: u64,
    /// The sign of the peer that would show that the longest has.
    probe: Option<u64>,
    /// The length of the longest message handed to the machine since then.
    message: u64,
}

/// A long frame, which a close may be for the sake of.
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

    fn is_outlived(&self) -> bool {
        now().saturating_duration_since(self.at) >= SOON || self.since >= IN_FLIGHT
    }
}

impl<L> Watched<L> {
    /// Watches a link on which frames may be as long as `cap`, and as the link takes.
    pub(super) const fn new(link: L, cap: u64) -> Self {
        Self { link, cap, longest: None, shortest: None, passed: 0, probe: None, message: 0 }
    }

    /// Frames may be as long as this from now on, and as the link takes.
    pub(super) const fn set_cap(&mut self, cap: u64) {
        self.cap = cap;
    }

    /// A message of this length is about to be sent.
    pub(super) fn begin(&mut self, len: usize) {
        self.message = self.message.max(u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// The longest frame, if it was written so shortly ago that a close now may be for its sake.
    pub(super) fn suspect(&self) -> Option<Suspect> {
        self.longest.filter(|longest| longest.frame > self.passed && !longest.is_outlived())
    }

    /// The longest frame, for a peer that says that one was too long: it may take its time to say so.
    pub(super) fn accused(&self) -> Option<Suspect> {
        let mut accused = self.longest?;
        if self.message > 0 {
            accused.message = self.message.max(accused.frame);
        }
        Some(accused)
    }

    /// The longest frame that surely passed.
    pub(super) const fn passed(&self) -> u64 {
        self.passed
    }

    /// The peer has answered all that it was asked: every frame has passed.
    pub(super) fn answered(&mut self) {
        self.passed = self.longest.map_or(0, |longest| longest.frame);
        self.message = 0;
    }

    /// Notes a frame that goes out.
    fn note(&mut self, frame: u64) {
        if let Some(longest) = &mut self.longest {
            longest.since = longest.since.saturating_add(frame);
        }
        self.clear();
        if self.longest.is_none_or(|longest| frame > longest.frame.saturating_add(DIGITS)) {
            self.longest = Some(Suspect::new(frame, self.message.max(frame), self.shortest));
            self.probe = None;
        }
        self.shortest = Some(self.shortest.map_or(frame, |shortest| shortest.min(frame)));
    }

    /// A frame that the link outlived has passed.
    fn clear(&mut self) {
        if self.longest.is_some_and(|longest| longest.frame > self.passed && longest.is_outlived()) {
            self.answered();
        }
    }
}

impl<L: Link> Watched<L> {
    /// Asks whether a frame has passed that has just gone out, if it is as long as the longest, and nobody knows.
    fn ask(&mut self, frame: u64) {
        let is_longest = self.longest.is_some_and(|longest| frame.saturating_add(DIGITS) >= longest.frame);
        if is_longest && frame > self.passed.max(NEVER_TOO_LONG) && self.probe.is_none() {
            self.probe = self.link.probe();
        }
    }

    /// A frame of which the peer has shown that it has read it has passed, whatever becomes of the link.
    fn look(&mut self) {
        if self.probe.take_if(|probe| *probe <= self.link.probed()).is_some() {
            self.passed = self.longest.map_or(0, |longest| longest.frame);
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

    fn is_amid_frame(&self) -> bool {
        self.link.is_amid_frame()
    }

    fn waits_for_room(&self) -> bool {
        self.link.waits_for_room()
    }

    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        self.link.poll_evicted(cx)
    }

    fn release_room(&mut self) {
        self.link.release_room();
    }

    fn end_output(&mut self) -> bool {
        self.link.end_output()
    }

    fn moved(&self) -> Moved {
        self.link.moved()
    }

    fn probe(&mut self) -> Option<u64> {
        self.link.probe()
    }

    fn probed(&self) -> u64 {
        self.link.probed()
    }
}

impl<L: Link> Stream for Watched<L> {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.link).poll_next(cx);
        self.look();
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
        let frame = match &item {
            Transmit::Frame { bytes, .. } => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Transmit::Close(_) => 0,
        };
        if frame > 0 {
            self.note(frame);
        }
        Pin::new(&mut self.link).start_send(item)?;
        self.ask(frame);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{WebSocket, WebSocketConfig};
    use futures_util::{FutureExt, SinkExt, StreamExt};

    fn watched(messages: &[(usize, u64)]) -> Watched<()> {
        let mut link = Watched::new((), u64::MAX);
        for (message, frame) in messages {
            link.begin(*message);
            link.note(*frame);
        }
        link
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_is_suspect_for_a_moment_and_can_be_accused_at_any_time() {
        let mut link = watched(&[(100, 100), (3_000_000, 900_000)]);
        let brief = |suspect: Option<Suspect>| suspect.map(|suspect| (suspect.frame, suspect.message));
        assert_eq!((brief(link.suspect()), link.passed()), (Some((900_000, 3_000_000)), 0));
        assert_eq!(brief(link.accused()), brief(link.suspect()));
        tokio::time::advance(SOON).await;
        assert_eq!((brief(link.suspect()), brief(link.accused())), (None, Some((900_000, 3_000_000))));
        link.note(100);
        assert_eq!((link.passed(), brief(link.accused())), (900_000, Some((900_000, 3_000_000))));
    }

    #[tokio::test]
    async fn what_the_peer_has_shown_that_it_has_read_has_passed() {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let config = WebSocketConfig { max_frame_bytes: 1 << 20, ..WebSocketConfig::default() };
        let (link, mut peer) = (WebSocket::client(ours, &config), WebSocket::server(theirs, &config));
        let mut link = Watched::new(link, u64::MAX);
        for (len, passed) in [(100, 0), (100_000, 100_000), (100_000, 100_000), (200_000, 200_000)] {
            link.begin(len);
            let frame =
                Transmit::Frame { tag: Default::default(), bytes: "x".repeat(len).into(), meta: Default::default() };
            let before = link.passed();
            link.send(frame).await.expect("a link");
            assert_eq!((link.passed(), link.suspect().is_some()), (before, len as u64 > before));
            while peer.next().now_or_never().is_some() {}
            assert!(link.next().now_or_never().is_none());
            assert_eq!((link.passed(), link.suspect().is_some()), (passed, passed == 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_answered_or_far_behind_has_passed() {
        let mut link = watched(&[(100, 100), (70_000, 70_000)]);
        link.answered();
        assert_eq!((link.suspect(), link.passed()), (None, 70_000));
        // Another message, in frames that are no longer: if one is too long now, it is of that one.
        link.begin(9_000_000);
        link.note(70_000);
        assert_eq!((link.suspect(), link.accused().map(|suspect| suspect.message)), (None, Some(9_000_000)));
        let link = watched(&[(20 << 20, 100), (0, 1 << 20), (0, IN_FLIGHT), (0, 1)]);
        assert_eq!(link.suspect().map(|suspect| suspect.frame), Some(IN_FLIGHT));
        assert_eq!(watched(&[]).accused(), None);
    }
}
