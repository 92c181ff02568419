//! A link that records evidence of an undeclared frame limit: its longest frame, and how the peer closed it. While there is no
//! host yet, it reads a little ahead.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_sink::Sink;

use breakbulk_proto::{Capacity, Transmit};

use super::frame_limits::TOO_BIG;
use super::waiting_client::ReadAhead;
use crate::driver::{ABNORMAL, now};
use crate::link::{Acked, Arrival, Intake, Link, LinkError, LinkStatus, ReceiveMemory};

/// How much longer a later segment of a message may be: its number has more digits.
const DIGITS: u64 = 16;

/// How soon a peer closes its link after a frame that is longer than it takes.
const SOON: Duration = Duration::from_secs(2);

/// A link whose frames may be limited to less than the link itself takes.
#[derive(Debug)]
pub(super) struct ObservedLink<L> {
    link: L,
    limit: u64,
    /// The longest frame so far: the first one of its length, because a limit strikes at it and not at the tenth.
    longest: Option<LongFrame>,
    /// The length of the longest message that was handed to the machine.
    message: u64,
    end: LinkEnd,
    /// What was read before there was a host.
    ahead: ReadAhead,
}

/// Who has closed a link first.
#[derive(Debug, Clone, Copy)]
enum LinkEnd {
    /// Nobody.
    Open,
    /// We have. What the peer does after that is no evidence.
    ClosedByUs,
    /// The peer has, or the network, and nobody has asked yet.
    ClosedByPeer { code: u16, at: Instant },
    /// The same, and it was [taken](ObservedLink::take_peer_close).
    Taken,
}

/// How the peer has closed a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkClose {
    /// The code.
    pub(super) code: u16,
    /// The frame because of which the peer may have closed.
    pub(super) frame: Option<LongFrame>,
}

/// A long frame, because of which a peer may have closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LongFrame {
    /// Its length.
    pub(super) frame: u64,
    /// The length of the longest message on its link. The frame seems to be a part of that message.
    pub(super) message: u64,
    at: Instant,
}

impl LongFrame {
    /// A frame that goes out now.
    pub(super) fn new(frame: u64, message: u64) -> Self {
        Self { frame, message, at: now() }
    }
}

impl<L> ObservedLink<L> {
    /// A link on which frames may be as long as `limit`, and as the link takes.
    pub(super) fn new(link: L, limit: u64) -> Self {
        Self { link, limit, longest: None, message: 0, end: LinkEnd::Open, ahead: ReadAhead::default() }
    }

    /// What was read ahead.
    #[cfg(test)]
    pub(super) const fn ahead(&self) -> &ReadAhead {
        &self.ahead
    }

    /// Frames may be as long as this, and as the link takes.
    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Frames may be as long as this from now on, and as the link takes.
    pub(super) const fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// A message of this length is about to be sent.
    pub(super) fn note_message(&mut self, bytes: u64) {
        self.message = self.message.max(bytes);
    }

    /// How the peer or the network has closed the link. `None` if it has not, or if this was taken before. If the close
    /// came soon after the longest frame, that frame may be the cause. A close with 1009 may come later.
    pub(super) fn take_peer_close(&mut self) -> Option<LinkClose> {
        let LinkEnd::ClosedByPeer { code, at } = self.end else { return None };
        self.end = LinkEnd::Taken;
        let longest = self.longest.map(|longest| LongFrame { message: self.message.max(longest.frame), ..longest });
        let is_soon = |longest: &LongFrame| at.saturating_duration_since(longest.at) < SOON;
        Some(LinkClose { code, frame: longest.filter(|longest| code == TOO_BIG || is_soon(longest)) })
    }

    /// We close the link. Whoever was first has closed it.
    fn note_our_close(&mut self) {
        if matches!(self.end, LinkEnd::Open) {
            self.end = LinkEnd::ClosedByUs;
        }
    }

    /// The peer has closed the link with this code, or it has failed.
    fn note_peer_close(&mut self, code: u16) {
        if matches!(self.end, LinkEnd::Open) {
            self.end = LinkEnd::ClosedByPeer { code, at: now() };
        }
    }

    /// Notes the result of a write: a link that fails is closed.
    fn note_write(&mut self, result: Result<(), LinkError>) -> Result<(), LinkError> {
        result.inspect_err(|_| self.note_peer_close(ABNORMAL))
    }

    /// Notes a frame that goes out.
    fn note_frame(&mut self, frame: u64) {
        if self.longest.is_none_or(|longest| frame > longest.frame.saturating_add(DIGITS)) {
            self.longest = Some(LongFrame::new(frame, frame));
        }
    }
}

impl<L: Link> ObservedLink<L> {
    /// Limits the frames that the link takes from now on, and says who pays for them.
    pub(super) fn set_intake(&mut self, intake: Intake) {
        if let Some(memory) = self.link.receive_memory() {
            memory.set_intake(intake);
        }
    }

    /// The cap that is declared for the peer, if one is.
    pub(super) fn declared_cap(&self) -> Option<u64> {
        Some(self.link.capacity().cap).filter(|cap| *cap != u64::MAX)
    }

    /// Gives back the memory of the frame that came last.
    pub(super) fn release_last(&mut self) {
        if let Some(memory) = self.link.receive_memory() {
            memory.release_last();
        }
    }

    /// Reads a little, and keeps it for the host. Ready, with a code, when the peer has closed and had sent nothing.
    pub(super) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<u16> {
        while self.ahead.wants_more() {
            let arrival = ready!(Pin::new(&mut self.link).poll_next(cx));
            self.release_last();
            self.ahead.push(arrival);
        }
        self.ahead.close_code().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<L: Link> Link for ObservedLink<L> {
    fn capacity(&self) -> Capacity {
        let mut capacity = self.link.capacity();
        capacity.cap = capacity.cap.min(self.limit);
        capacity
    }

    fn status(&self) -> LinkStatus {
        let status = self.link.status();
        LinkStatus { is_amid_frame: status.is_amid_frame || !self.ahead.is_empty(), ..status }
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.link.receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.link.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        let has_ended = self.link.end_output();
        if has_ended {
            self.note_our_close();
        }
        has_ended
    }
}

impl<L: Link> Stream for ObservedLink<L> {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = match self.ahead.pop() {
            Some(arrival) => Poll::Ready(arrival),
            None => Pin::new(&mut self.link).poll_next(cx),
        };
        match &next {
            Poll::Ready(Some(Ok(Arrival::Closed { code, .. } | Arrival::Exited { code, .. }))) => {
                self.note_peer_close(*code)
            }
            // We close the link after refusing a frame.
            Poll::Ready(Some(Err(LinkError::FrameTooLarge(_) | LinkError::OverBudget(_)))) => self.note_our_close(),
            Poll::Ready(Some(Err(_)) | None) => self.note_peer_close(ABNORMAL),
            _ => {}
        }
        next
    }
}

impl<L: Link> Sink<Transmit> for ObservedLink<L> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let ready = Pin::new(&mut self.link).poll_ready(cx);
        ready.map(|ready| self.note_write(ready))
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if let Transmit::Frame { bytes, .. } = &item {
            self.note_frame(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        } else {
            self.note_our_close();
        }
        let sent = Pin::new(&mut self.link).start_send(item);
        self.note_write(sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let flushed = Pin::new(&mut self.link).poll_flush(cx);
        flushed.map(|flushed| self.note_write(flushed))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use breakbulk_proto::Budget;
    use futures_util::StreamExt;
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;
    use crate::link::{WebSocket, WebSocketConfig};

    fn observed(messages: &[(u64, u64)]) -> ObservedLink<()> {
        let mut link = ObservedLink::new((), u64::MAX);
        for (message, frame) in messages {
            link.note_message(*message);
            link.note_frame(*frame);
        }
        link
    }

    /// The code with which the peer has closed, and the frame and message because of which it may have.
    fn suspect(mut link: ObservedLink<()>) -> Option<(u16, Option<(u64, u64)>)> {
        let LinkClose { code, frame } = link.take_peer_close()?;
        assert_eq!(link.take_peer_close(), None, "a close counts once");
        Some((code, frame.map(|frame| (frame.frame, frame.message))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_is_because_of_the_longest_frame_if_it_follows_soon_or_says_so() {
        for (code, after, is_about_it) in
            [(1006, Duration::ZERO, true), (1011, SOON, false), (1009, SOON, true), (1009, 100 * SOON, true)]
        {
            let mut link = observed(&[(100, 100), (3_000_000, 900_000), (100, 100)]);
            tokio::time::advance(after).await;
            link.note_peer_close(code);
            // However long the end takes then.
            tokio::time::advance(SOON).await;
            let frame = Some((900_000, 3_000_000)).filter(|_| is_about_it);
            assert_eq!(suspect(link), Some((code, frame)), "{after:?}");
        }
        assert_eq!(suspect(observed(&[(100, 100)])), None);
        let mut link = observed(&[]);
        link.note_peer_close(1009);
        assert_eq!(suspect(link), Some((1009, None)));
    }

    #[tokio::test]
    async fn what_a_link_knows_and_holds_is_seen_through_it() {
        let (mut peer, ours) = duplex(1 << 20);
        let socket = WebSocket::server(ours, &WebSocketConfig { keepalive: None, ..WebSocketConfig::default() });
        let (mut link, budget) = (ObservedLink::new(socket, u64::MAX), Budget::default());
        link.set_intake(Intake { max_frame_bytes: 1 << 20, account: Some(budget.account(Some("peer"))) });
        let frame = [&[0x81, 0x80 | 127][..], &100_000_u64.to_be_bytes(), &[0; 4], &[b'x'; 100_000]].concat();
        peer.write_all(&frame).await.expect("a link");
        assert!(matches!(link.next().await, Some(Ok(Arrival::Frame { .. }))));
        assert_eq!(link.status(), link.link.status());
        assert_eq!(link.status().moved.inward, u64::try_from(frame.len()).expect("a length"));
        let grant = link.receive_memory().and_then(ReceiveMemory::take_last);
        assert_eq!(grant.map(|grant| grant.bytes()), Some(100_000));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_frame_of_its_length_counts_and_not_the_tenth() {
        let mut link = observed(&[(3_000_000, 900_000)]);
        tokio::time::advance(SOON).await;
        link.note_message(4_000_000);
        link.note_frame(900_000 + DIGITS);
        link.note_peer_close(1006);
        assert_eq!(suspect(link), Some((1006, None)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_closes_a_link_first_has_closed_it() {
        let mut link = observed(&[(3_000_000, 900_000)]);
        link.note_peer_close(1011);
        link.note_our_close();
        assert!(link.take_peer_close().is_some());
        let mut link = observed(&[(3_000_000, 900_000)]);
        link.note_our_close();
        link.note_peer_close(1011);
        assert!(link.take_peer_close().is_none());
    }
}
