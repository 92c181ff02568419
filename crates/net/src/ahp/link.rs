//! Any `ahp::Transport` as a link: its text frames are ours.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::ahp::{Transport, TransportError, TransportMessage};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use tracing::debug;

use breakbulk_proto::{Capacity, CloseReason, Meta, Tag, Transmit};

use super::{bytes, text};
use crate::link::{Acked, Arrival, InProcessLink, Link, LinkError, LinkStatus, ReceiveMemory, pair};

/// The close code for the end of a transport without an error: a close without a code.
const CLOSED: u16 = 1005;
/// The close code for its end with an error.
const ABNORMAL: u16 = 1006;

/// Any transport of the official crate's, as a link.
///
/// It requires of the transport what the official client requires: a `recv` that is dropped early has taken nothing, and a `send`
/// finishes without a call of `recv`. A transport does one of the two at a time, so nothing is read while a frame is being sent. If the
/// peer also does not read while it sends, both can block for ever. Our own links do not have this problem.
///
/// Such a transport has no close codes: its end is 1005, or 1006 after an error.
pub struct TransportLink {
    near: InProcessLink,
    /// Moves frames between the transport and the other end of `near`. `None` when it is done.
    carrier: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl TransportLink {
    /// A transport over a connection that takes frames of at most `capacity`.
    pub fn new<T: Transport>(transport: T, capacity: Capacity) -> Self {
        let (near, far) = pair(&capacity, 1);
        Self { near, carrier: Some(Box::pin(carry(transport, far))) }
    }

    /// Polls the transport.
    fn poll_carrier(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(carrier) = &mut self.carrier {
            std::task::ready!(carrier.as_mut().poll(cx));
            self.carrier = None;
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for TransportLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportLink").field("near", &self.near).finish_non_exhaustive()
    }
}

impl Link for TransportLink {
    fn capacity(&self) -> Capacity {
        self.near.capacity()
    }

    fn status(&self) -> LinkStatus {
        self.near.status()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.near.receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.near.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        self.near.end_output()
    }
}

impl Stream for TransportLink {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let _ = self.poll_carrier(cx);
        Pin::new(&mut self.near).poll_next(cx)
    }
}

impl Sink<Transmit> for TransportLink {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let _ = self.poll_carrier(cx);
        Pin::new(&mut self.near).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        Pin::new(&mut self.near).start_send(item)
    }

    /// There is nothing to flush: a transport sends what it is given before it takes more.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let _ = self.poll_carrier(cx);
        Pin::new(&mut self.near).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        std::task::ready!(Pin::new(&mut self.near).poll_close(cx))?;
        self.poll_carrier(cx).map(Ok)
    }
}

/// What happens next on a transport.
enum Step {
    /// Send this, or close if it is `None`.
    Send(Option<Arrival>),
    /// What was read was passed on.
    Handed,
    /// The transport read this.
    Read(Result<Option<TransportMessage>, TransportError>),
}

/// Moves frames until one side ends.
async fn carry<T: Transport>(mut transport: T, mut far: InProcessLink) {
    // A frame that was read and does not fit the link yet. Until it does, nothing more is read.
    let mut held = None;
    loop {
        let may_read = held.is_none();
        let step = tokio::select! {
            step = poll_fn(|cx| poll_far(&mut far, &mut held, cx)) => step,
            read = transport.recv(), if may_read => Step::Read(read),
        };
        match step {
            Step::Handed => {}
            Step::Send(Some(Arrival::Frame { bytes, .. })) => {
                let sent = match text(bytes) {
                    Ok(text) => transport.send(text).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = sent {
                    debug!("the transport does not send: {error}");
                    return finish(far, held, ABNORMAL).await;
                }
            }
            Step::Send(Some(Arrival::Acked { .. } | Arrival::Ended)) => {}
            Step::Send(Some(Arrival::Closed { .. } | Arrival::Exited { .. }) | None) => {
                if let Err(error) = transport.close().await {
                    debug!("the transport does not close: {error}");
                }
                return;
            }
            Step::Read(Ok(Some(message))) => match bytes(message) {
                Ok(bytes) => held = Some(frame(bytes)),
                Err(_) => return finish(far, held, ABNORMAL).await,
            },
            Step::Read(Ok(None)) => return finish(far, held, CLOSED).await,
            Step::Read(Err(error)) => {
                debug!("the transport does not read: {error}");
                return finish(far, held, ABNORMAL).await;
            }
        }
    }
}

/// Passes on the frame that was read, if the link takes it, or takes the next frame to send.
fn poll_far(far: &mut InProcessLink, held: &mut Option<Transmit>, cx: &mut Context<'_>) -> Poll<Step> {
    if held.is_some()
        && let Poll::Ready(ready) = Pin::new(&mut *far).poll_ready(cx)
    {
        let handed = ready.and_then(|()| held.take().map_or(Ok(()), |item| Pin::new(&mut *far).start_send(item)));
        return Poll::Ready(if handed.is_ok() { Step::Handed } else { Step::Send(None) });
    }
    Pin::new(far).poll_next(cx).map(|arrival| Step::Send(arrival.and_then(Result::ok)))
}

/// The transport has ended. Passes on what was read, then the end. What is still to be sent is dropped.
async fn finish(mut far: InProcessLink, held: Option<Transmit>, code: u16) {
    let mut last = Some(Transmit::Close(CloseReason::Peer { code }));
    let mut next = held.or_else(|| last.take());
    loop {
        let step = poll_fn(|cx| poll_far(&mut far, &mut next, cx)).await;
        if next.is_none() {
            next = last.take();
        }
        if let Step::Send(None | Some(Arrival::Closed { .. } | Arrival::Exited { .. })) = step {
            return;
        }
    }
}

/// A frame of the transport's, on its way to us.
fn frame(bytes: Bytes) -> Transmit {
    Transmit::Frame { tag: Tag::default(), bytes: bytes.into(), meta: Meta::default() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use ::ahp::TransportError;
    use futures_util::{FutureExt, SinkExt, StreamExt};
    use tokio::sync::mpsc;

    use super::*;

    /// One end of a transport in memory, which fails when it is told to.
    struct Pipe {
        tx: mpsc::Sender<TransportMessage>,
        rx: mpsc::Receiver<Result<TransportMessage, TransportError>>,
        closed: mpsc::Sender<()>,
    }

    impl Transport for Pipe {
        async fn send(&mut self, message: TransportMessage) -> Result<(), TransportError> {
            self.tx.send(message).await.map_err(|_| TransportError::Closed)
        }

        async fn recv(&mut self) -> Result<Option<TransportMessage>, TransportError> {
            self.rx.recv().await.transpose()
        }

        async fn close(&mut self) -> Result<(), TransportError> {
            self.closed.send(()).await.map_err(|_| TransportError::Closed)
        }
    }

    /// The other end.
    struct Far {
        tx: mpsc::Sender<Result<TransportMessage, TransportError>>,
        rx: mpsc::Receiver<TransportMessage>,
        closed: mpsc::Receiver<()>,
    }

    impl Far {
        async fn say(&self, text: &str) {
            self.tx.send(Ok(TransportMessage::Text(text.into()))).await.unwrap();
        }
    }

    fn open() -> (TransportLink, Far) {
        let ((tx, far_rx), (far_tx, rx), (closed, is_closed)) = (mpsc::channel(1), mpsc::channel(8), mpsc::channel(1));
        let link = TransportLink::new(Pipe { tx, rx, closed }, Capacity::of(1000));
        (link, Far { tx: far_tx, rx: far_rx, closed: is_closed })
    }

    async fn next(link: &mut TransportLink) -> String {
        match link.next().await {
            Some(Ok(Arrival::Frame { bytes, .. })) => String::from_utf8(bytes.into()).unwrap(),
            Some(Ok(Arrival::Closed { code, .. })) => code.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn messages_of_every_sort_are_frames_and_frames_go_out_as_text() {
        let (mut link, mut far) = open();
        let text = r#"{"jsonrpc":"2.0","method":"hello","params":{}}"#;
        let parsed = TransportMessage::Text(text.into()).into_parsed().unwrap();
        for message in [
            TransportMessage::Text(text.into()),
            TransportMessage::Binary(text.into()),
            TransportMessage::Parsed(parsed),
        ] {
            far.tx.send(Ok(message)).await.unwrap();
            assert_eq!(next(&mut link).await, text);
        }
        link.send(frame(text.into())).await.unwrap();
        link.next().now_or_never();
        assert_eq!(far.rx.recv().await, Some(TransportMessage::Text(text.into())));
    }

    #[tokio::test]
    async fn what_came_before_the_end_is_read_before_it() {
        let (mut link, far) = open();
        for text in ["one", "two", "three"] {
            far.say(text).await;
        }
        drop(far);
        for want in ["one", "two", "three", "1005"] {
            assert_eq!(next(&mut link).await, want);
            // While there is more to read, a caller that asks whether it can send does not learn of the end.
            assert!(!matches!(link.flush().now_or_never(), Some(Err(_))));
        }
    }

    #[tokio::test]
    async fn an_error_of_the_transport_is_an_end_without_a_code() {
        let (mut link, far) = open();
        far.say("one").await;
        far.tx.send(Err(TransportError::Io("the cable broke".into()))).await.unwrap();
        assert_eq!((next(&mut link).await.as_str(), next(&mut link).await.as_str()), ("one", "1006"));

        let (mut link, mut far) = open();
        far.rx.close();
        link.send(frame("lost".into())).await.unwrap();
        assert_eq!(next(&mut link).await, "1006");
    }

    #[tokio::test]
    async fn a_frame_that_the_peer_does_not_take_holds_up_the_next_ones_and_loses_none() {
        let (mut link, mut far) = open();
        let mut sent = 0;
        while link.send(frame(format!("{sent}").into())).now_or_never().is_some() {
            sent += 1;
            assert!(sent < 10, "it never waits");
        }
        far.say("meanwhile").await;
        assert!(link.next().now_or_never().is_none(), "a transport does one thing at a time");
        for n in 0..sent {
            let got = tokio::select! {
                biased;
                got = far.rx.recv() => got,
                text = next(&mut link) => { assert_eq!(text, "meanwhile"); far.rx.recv().await }
            };
            assert_eq!(got, Some(TransportMessage::Text(n.to_string())));
        }
    }

    #[tokio::test]
    async fn a_close_reaches_the_transport_after_the_frames_before_it() {
        let (mut link, mut far) = open();
        let peer = tokio::spawn(async move { (far.rx.recv().await, far.closed.recv().await, far.rx.recv().await) });
        link.send(frame("last".into())).await.unwrap();
        link.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
        link.close().await.unwrap();
        drop(link);
        assert_eq!(peer.await.unwrap(), (Some(TransportMessage::Text("last".into())), Some(()), None));
    }
}
