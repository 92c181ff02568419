//! A link to one peer through a hub connection that others may share.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use breakbulk::link::{Link, LinkStatus, Moved, ReceiveMemory};
use breakbulk::{Acked, Arrival, HalfClose, LinkError};
use breakbulk_proto::{Capacity, Measure, Meta, Overhead, Transmit};
use futures_core::Stream;
use futures_sink::Sink;

use super::peer::{Peer, PeerEnd, PeerRead, Wish};
use super::presence::MAX_DIGITS;
use crate::wire;

/// A link to one peer.
pub(super) struct PeerLink {
    peer: Arc<Peer>,
    capacity: Capacity,
    moved: Moved,
    /// Held by the link of a client, whose hub connection ends with it.
    _alive: Option<tokio_util::sync::DropGuard>,
}

impl PeerLink {
    pub(super) const fn new(peer: Arc<Peer>, capacity: Capacity, alive: Option<tokio_util::sync::DropGuard>) -> Self {
        Self { peer, capacity, moved: Moved { inward: 0, outward: 0 }, _alive: alive }
    }
}

/// How long a frame may be whose text is sent to `out_group`, so that neither what we send nor what the receiver gets is longer than
/// `cap`. The receiver gets the name of our user with it.
pub(super) fn capacity(cap: u64, out_group: &str, user: &str) -> Capacity {
    let published = wire::publish(&wire::quoted(out_group), u64::MAX, []).len();
    let head = wire::message_head(Some(out_group), Some(user), wire::DataType::Text);
    let received = wire::message(Some(u64::MAX), &head.into(), &br#""""#[..].into()).len();
    let around = published.max(received).saturating_add(MAX_DIGITS).saturating_add(1);
    let around = u64::try_from(around).unwrap_or(u64::MAX);
    let overhead = move |measure: Measure| measure.escaped.saturating_sub(measure.bytes).saturating_add(around);
    Capacity { cap, overhead: Overhead::new(overhead) }
}

impl Link for PeerLink {
    fn capacity(&self) -> Capacity {
        self.capacity.clone()
    }

    fn status(&self) -> LinkStatus {
        LinkStatus { half_close: HalfClose::Unsupported, moved: self.moved, ..LinkStatus::default() }
    }

    /// Frames were made elsewhere in the process: the task has them whole, and bounds them.
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

impl Stream for PeerLink {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match self.peer.take_in(cx) {
            None => return Poll::Pending,
            Some(PeerRead::Frame(bytes)) => {
                self.moved.inward += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                Some(Ok(Arrival::Frame { bytes, meta: Meta::default() }))
            }
            Some(PeerRead::End(end)) => Some(match end {
                PeerEnd::Closed { code, text } => Ok(Arrival::Closed { code, text }),
                PeerEnd::Silent(silence) => Err(LinkError::Silent(silence)),
                PeerEnd::Broken(text) => Err(LinkError::Protocol(text)),
                PeerEnd::Lost => Err(LinkError::Io(io::ErrorKind::ConnectionReset.into())),
            }),
            Some(PeerRead::Nothing) => None,
        })
    }
}

impl Sink<Transmit> for PeerLink {
    type Error = LinkError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.peer.may_send(cx) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if self.peer.has_ended() {
            return Err(LinkError::Closed);
        }
        match item {
            Transmit::Frame { bytes, .. } => {
                self.moved.outward += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                self.peer.push_out(bytes);
            }
            Transmit::Close(reason) => self.peer.wish(Wish::Close { code: reason.code(), text: reason.text() }),
        }
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.peer.is_flushed(cx) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.poll_flush(cx)
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.peer.wish(Wish::Dropped);
    }
}

impl fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerLink").field("peer", &self.peer.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use breakbulk_proto::Message;
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::link::escape::escaped_parts;
    use crate::link::presence::frame_prefix;

    proptest! {
        #[test]
        fn a_text_that_fits_never_makes_a_frame_over_the_cap(
            text in r#"["\\a-z\n\u{1}é\u{10000}]{0,400}"#,
            cap in 300_u64..900,
            number in any::<u64>(),
        ) {
            let (group, user) = ("breakbulk.host.0123.up", "user-1");
            let capacity = capacity(cap, group, user);
            let measure = Measure { bytes: text.len() as u64, escaped: breakbulk_proto::json::escaped_len(text.as_bytes()) };
            let parts = escaped_parts(&Message::from(text.clone()));
            let parts: Vec<Bytes> = [frame_prefix(number)].into_iter().chain(parts).collect();
            let sent = wire::publish(&wire::quoted(group), number, parts.clone()).len() as u64;
            let data: Bytes = [&b"\""[..], &parts.concat(), b"\""].concat().into();
            let head = wire::message_head(Some(group), Some(user), wire::DataType::Text).into();
            let received = wire::message(Some(number), &head, &data).len() as u64;
            let counted = text.len() as u64 + capacity.overhead.of(measure);
            prop_assert!(sent.max(received) <= counted, "{sent} {received} {counted}");
            // Only the digits of numbers may be counted too high.
            prop_assert!(sent.max(received) + 3 * MAX_DIGITS as u64 >= counted);
        }
    }
}
