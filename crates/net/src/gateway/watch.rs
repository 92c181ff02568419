//! A link that remembers what a size limit would show by: the longest frame lately, whether the link outlived it, and who
//! ended it. Before anybody wants to know what comes, it reads a little ahead.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_sink::Sink;

use breakbulk_proto::{Capacity, Transmit};

use super::waiting::Ahead;
use crate::driver::{ABNORMAL, now};
use crate::link::{Arrival, Intake, Link, LinkError, Moved};

/// How much longer a later segment of a message may be: its number has more digits.
const DIGITS: u64 = 16;
/// Frames up to here need no proof that they pass.
const NEVER_TOO_LONG: u64 = 8 << 10;
/// Bytes that may lie in the system's buffers. When more was written after a frame, the peer has read it.
const IN_FLIGHT: u64 = 16 << 20;
/// More than stacks read at a time, of which Node with its 2 MiB reads the most. They answer pings by themselves: one that comes
/// with a frame may be answered before the program behind sees the frame, and closes because of it.
const AT_ONCE: u64 = 3 << 20;

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
    /// The sign of the peer that would show that it has gone on behind the longest.
    behind: Option<u64>,
    /// The sign that would show that it has the whole message.
    whole: Option<u64>,
    /// The length of the longest message handed to the machine since then.
    message: u64,
    end: End,
    /// What was read before anybody wanted to know.
    ahead: Ahead,
}

/// Who has ended a link.
#[derive(Debug, Clone, Copy)]
enum End {
    Open,
    /// We have: what the peer does then says nothing.
    Ours,
    /// The peer has, or the way, with this code; perhaps because of this frame.
    Theirs(u16, Option<Suspect>),
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
    /// Whether the peer has shown that it has read it, and went on.
    pub(super) is_read: bool,
    at: Instant,
    /// Bytes written since.
    since: u64,
}

impl Suspect {
    /// A frame that goes out now.
    pub(super) fn new(frame: u64, message: u64, shortest: Option<u64>) -> Self {
        Self { frame, message, shortest, is_read: false, at: now(), since: 0 }
    }

    fn is_outlived(&self) -> bool {
        now().saturating_duration_since(self.at) >= SOON || self.since >= IN_FLIGHT
    }

    /// Whether so much was written behind it that a sign of the peer from there would show something.
    const fn is_behind(&self) -> bool {
        self.frame > NEVER_TOO_LONG && self.since >= AT_ONCE
    }
}

impl<L> Watched<L> {
    /// Watches a link on which frames may be as long as `cap`, and as the link takes.
    pub(super) fn new(link: L, cap: u64) -> Self {
        let (longest, shortest, passed, behind, whole, message) = (None, None, 0, None, None, 0);
        Self { link, cap, longest, shortest, passed, behind, whole, message, end: End::Open, ahead: Ahead::default() }
    }

    /// What was read ahead.
    #[cfg(test)]
    pub(super) const fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    /// Frames may be as long as this from now on, and as the link takes.
    pub(super) const fn set_cap(&mut self, cap: u64) {
        self.cap = cap;
    }

    /// A message of this length is about to be sent.
    pub(super) fn begin(&mut self, len: usize) {
        self.message = self.message.max(u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// The code with which the peer has ended it, or the way, if it was not we.
    pub(super) const fn left_with(&self) -> Option<u16> {
        if let End::Theirs(code, _) = self.end { Some(code) } else { None }
    }

    /// The longest frame, if it was written so shortly before the end, or ago, that a close may be for its sake.
    pub(super) fn suspect(&self) -> Option<Suspect> {
        match self.end {
            End::Theirs(_, suspect) => suspect,
            End::Open | End::Ours => {
                self.longest.filter(|longest| longest.frame > self.passed && !longest.is_outlived())
            }
        }
    }

    /// The link is ended by us, or by the peer with a code. Whoever was first has ended it.
    fn end(&mut self, code: Option<u16>) {
        if matches!(self.end, End::Open) {
            self.end = code.map_or(End::Ours, |code| End::Theirs(code, self.suspect()));
        }
    }

    /// Notes what a link says of something that was written: it has ended if it has failed.
    fn written(&mut self, result: Result<(), LinkError>) -> Result<(), LinkError> {
        result.inspect_err(|_| self.end(Some(ABNORMAL)))
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
            (self.behind, self.whole) = (None, None);
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
    /// Reads a little, and keeps it for whoever will want to know. Ready, with a code, when the peer has left without a word.
    pub(super) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<u16> {
        while self.ahead.wants_more() {
            let arrival = ready!(Pin::new(&mut self.link).poll_next(cx));
            self.link.release_room();
            self.ahead.push(arrival);
        }
        self.ahead.left_with().map_or(Poll::Pending, Poll::Ready)
    }

    /// Asks for a sign that the peer has gone on behind the longest frame, as soon as that would show something.
    fn ask(&mut self) {
        let asks = self.open().is_some_and(|longest| longest.is_behind() && !longest.is_read);
        if asks && self.behind.is_none() {
            self.behind = self.link.probe();
        }
    }

    /// A message of this length has been sent whole. If it is that of the longest frame, asks for a sign that it has arrived.
    pub(super) fn sent(&mut self, len: usize) {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        let asks = self.open().is_some_and(|longest| longest.is_behind() && len >= longest.message);
        if asks && self.whole.is_none() {
            self.whole = self.link.probe();
        }
    }

    /// The longest frame, if nobody knows whether it has passed.
    fn open(&self) -> Option<&Suspect> {
        self.longest.as_ref().filter(|longest| longest.frame > self.passed)
    }

    /// Looks for the signs that were asked for. A frame whose message has arrived has passed, whatever becomes of the link.
    fn look(&mut self) {
        let probed = self.link.probed();
        let has_come = |probe: &mut u64| *probe <= probed;
        if self.behind.take_if(has_come).is_some() {
            self.longest.iter_mut().for_each(|longest| longest.is_read = true);
        }
        if self.whole.take_if(has_come).is_some() {
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
        !self.ahead.is_empty() || self.link.is_amid_frame()
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
        let is_told = self.link.end_output();
        if is_told {
            self.end(None);
        }
        is_told
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
        let next = match self.ahead.pop() {
            Some(arrival) => Poll::Ready(arrival),
            None => Pin::new(&mut self.link).poll_next(cx),
        };
        self.look();
        match &next {
            Poll::Ready(Some(Ok(Arrival::Frame { .. }))) => self.clear(),
            Poll::Ready(Some(Ok(Arrival::Closed { code, .. }))) => self.end(Some(*code)),
            // What we refuse, we close for.
            Poll::Ready(Some(Err(LinkError::FrameTooLarge(_) | LinkError::NoRoom(_)))) => self.end(None),
            Poll::Ready(Some(Err(_)) | None) => self.end(Some(ABNORMAL)),
            _ => {}
        }
        next
    }
}

impl<L: Link> Sink<Transmit> for Watched<L> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let ready = Pin::new(&mut self.link).poll_ready(cx);
        ready.map(|ready| self.written(ready))
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if let Transmit::Frame { bytes, .. } = &item {
            self.note(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        } else {
            self.end(None);
        }
        let sent = Pin::new(&mut self.link).start_send(item);
        self.written(sent)?;
        self.ask();
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let flushed = Pin::new(&mut self.link).poll_flush(cx);
        flushed.map(|flushed| self.written(flushed))
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
    async fn what_the_peer_has_read_far_behind_was_read_and_what_it_has_whole_has_passed() {
        let (ours, theirs) = tokio::io::duplex(4 << 20);
        let config = WebSocketConfig { max_frame_bytes: 4 << 20, ..WebSocketConfig::default() };
        let (link, mut peer) = (WebSocket::client(ours, &config), WebSocket::server(theirs, &config));
        let mut link = Watched::new(link, u64::MAX);
        // Frames, of which message the last one was, whether the longest was read then, and what has passed. A stack answers a
        // ping right behind a frame before its program has seen the frame, so that shows nothing.
        let frames = [
            (100, 100, false, 0),
            (1_600_000, 9_000_000, false, 0),
            (1_600_000, 9_000_000, false, 0),
            (1_600_000, 1_600_000, true, 0),
            (1_600_000, 9_000_000, true, 1_600_000),
            (1_700_000, 9_000_000, false, 1_600_000),
        ];
        for (frame, message, is_read, passed) in frames {
            link.begin(9_000_000);
            let bytes = "x".repeat(frame).into();
            let frame = Transmit::Frame { tag: Default::default(), bytes, meta: Default::default() };
            link.send(frame).await.expect("a link");
            link.sent(message);
            link.flush().await.expect("a link");
            while peer.next().now_or_never().is_some() {}
            assert!(link.next().now_or_never().is_none());
            let longest = link.longest.expect("a frame");
            assert_eq!((longest.is_read, link.passed()), (is_read, passed), "{longest:?}");
            assert_eq!(link.suspect().is_some(), longest.frame > passed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_is_suspect_of_the_end_that_the_peer_made_however_long_that_takes() {
        let mut link = watched(&[(100, 100), (3_000_000, 900_000)]);
        link.end(Some(1011));
        link.end(None);
        tokio::time::advance(SOON).await;
        assert!(link.left_with() == Some(1011) && link.suspect().is_some());
        let mut link = watched(&[(100, 100), (3_000_000, 900_000)]);
        link.end(None);
        link.end(Some(1011));
        assert_eq!(link.left_with(), None);
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
