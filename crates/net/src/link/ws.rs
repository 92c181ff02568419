//! WebSockets: each WebSocket message is a frame of ours. The WebSocket stack refuses one that is too long.

mod close;
mod config;
mod frame_writer;
mod keepalive;
mod key;
mod meter;
mod metered_stream;
mod tcp;
mod write_batch;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_websockets::proto::ProtocolError;
use tokio_websockets::{ClientBuilder, CloseCode, Config, Error, Limits, Message, ServerBuilder, WebSocketStream};

use breakbulk_proto::{Capacity, Grant, Meta, Over, Transmit};

pub use self::config::WebSocketConfig;
use self::frame_writer::{BINARY, TEXT};
pub use self::keepalive::Keepalive;
use self::keepalive::{KeepaliveAction, KeepaliveTimer};
pub(crate) use self::key::{Key, accept_for};
use self::metered_stream::MeteredStream;
pub use self::tcp::tune;
use self::write_batch::WriteBatch;
use super::{Acked, Arrival, FrameContent, HalfClose, Intake, Link, LinkError, LinkStatus, NextFrame, ReceiveMemory};
use crate::len64;
use crate::memory::FrameMemory;

/// How many pings of the peer may wait until our pongs are written. While there are more, the peer is not read: for each ping, the
/// stack keeps a pong and the buffer in which the ping came.
const MAX_UNANSWERED_PINGS: u32 = 8;
/// Frames up to this length are copied, so that a small message does not keep alive the large buffer in which it came.
const SMALL_FRAME: usize = 4 << 10;
/// How long we read on after our close. If a socket is dropped with bytes unread, the system may reset the connection, and the peer may
/// not get the close.
const LINGER: Duration = Duration::from_secs(1);

/// A WebSocket over any stream of bytes, as a link. The same task has to poll it as a stream and as a sink.
pub struct WebSocket<S> {
    socket: WebSocketStream<MeteredStream<S>>,
    role: WebSocketRole,
    capacity: Capacity,
    keepalive: Option<KeepaliveTimer>,
    batch: WriteBatch,
    /// Pings since the stack's queue was last seen empty.
    unanswered: u32,
    /// Whether either side has closed, or broken the protocol. Then only the stack itself may still send.
    is_closed: bool,
    phase: ClosePhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WebSocketRole {
    Client,
    Server,
}

/// How far the close has come.
#[derive(Debug)]
enum ClosePhase {
    Open,
    /// The peer did not answer pings, so a close would not arrive.
    Silent,
    /// Our side is shut down. What the peer still sends is discarded until it stops, or until the timer is up.
    Lingering(Pin<Box<Sleep>>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// The client's end of a WebSocket whose handshake is done.
    pub fn client(io: S, config: &WebSocketConfig) -> Self {
        Self::after_handshake(io, Bytes::new(), WebSocketRole::Client, config)
    }

    /// The server's end of a WebSocket whose handshake is done.
    pub fn server(io: S, config: &WebSocketConfig) -> Self {
        Self::after_handshake(io, Bytes::new(), WebSocketRole::Server, config)
    }

    /// [`client`](Self::client), with bytes that were read together with the handshake.
    pub(crate) fn client_with(io: S, ahead: Bytes, config: &WebSocketConfig) -> Self {
        Self::after_handshake(io, ahead, WebSocketRole::Client, config)
    }

    /// [`server`](Self::server), with bytes that were read together with the handshake.
    pub(crate) fn server_with(io: S, ahead: Bytes, config: &WebSocketConfig) -> Self {
        Self::after_handshake(io, ahead, WebSocketRole::Server, config)
    }

    fn after_handshake(io: S, ahead: Bytes, role: WebSocketRole, config: &WebSocketConfig) -> Self {
        let io = MeteredStream::new(io, ahead, role);
        // The stack never flushes by itself. We decide when to write.
        let stack = Config::default().flush_threshold(usize::MAX);
        let limits = Limits::default().max_payload_len(usize::try_from(config.max_frame_bytes).ok());
        let socket = match role {
            WebSocketRole::Client => ClientBuilder::new().config(stack).limits(limits).take_over(io),
            WebSocketRole::Server => ServerBuilder::new().config(stack).limits(limits).serve(io),
        };
        Self {
            socket,
            role,
            capacity: Capacity::of(config.cap),
            keepalive: config.keepalive.map(KeepaliveTimer::new),
            batch: WriteBatch::default(),
            unanswered: 0,
            is_closed: false,
            phase: ClosePhase::Open,
        }
    }

    /// The next message from the stack. Also writes what is queued, such as pongs and our pings.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, LinkError>>> {
        loop {
            self.write_some(cx)?;
            let may_read = self.unanswered < MAX_UNANSWERED_PINGS || self.socket.get_ref().is_broken();
            if may_read || self.poll_write_all(cx)?.is_ready() {
                match Pin::new(&mut self.socket).poll_next(cx) {
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(self.refuse(error)))),
                    Poll::Ready(message) => {
                        return Poll::Ready(message.map(|message| message.map_err(link_error)));
                    }
                    Poll::Pending => {}
                }
            }
            if let Poll::Ready(error) = self.socket.get_mut().poll_evicted(cx) {
                return Poll::Ready(Some(Err(error)));
            }
            ready!(self.poll_keepalive(cx))?;
        }
    }

    /// A message of the stack as an arrival; `None` for pings and pongs.
    fn arrival(&mut self, message: Message) -> Option<Arrival> {
        if let Some((code, text)) = message.as_close() {
            self.is_closed = true;
            return Some(Arrival::Closed { code: code.into(), text: text.into() });
        }
        if message.is_ping() {
            self.unanswered = self.unanswered.saturating_add(1);
        }
        if !message.is_text() && !message.is_binary() {
            return None;
        }
        let mut bytes = Bytes::from(message.into_payload());
        if bytes.len() <= SMALL_FRAME {
            bytes = Bytes::copy_from_slice(&bytes);
        }
        Some(Arrival::Frame { bytes, meta: Meta::default() })
    }

    /// An error of the stack as one of the link. The stack sends the close for it, except in one case.
    fn refuse(&mut self, error: Error) -> LinkError {
        self.is_closed = true;
        if let Error::PayloadTooLong { max_len, .. } = error {
            // If a message in many small frames is too long, the stack does not send a close. If it has sent one, this fails, which
            // does no harm.
            let text = format!("max length: {max_len}");
            let _ = Pin::new(&mut self.socket).start_send(Message::close(Some(CloseCode::MESSAGE_TOO_BIG), &text));
        }
        link_error(error)
    }

    /// Checks whether the peer is alive, after everything that had arrived was read. Ready without an error if a ping was queued.
    fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.socket.get_ref().waits_for_memory() {
            ready!(self.poll_unread_keepalive(cx));
            return Poll::Ready(Ok(()));
        }
        let Some(keepalive) = &mut self.keepalive else {
            return Poll::Pending;
        };
        match ready!(keepalive.poll(self.socket.get_ref().signs_of_life(), cx)) {
            KeepaliveAction::Ping => {
                self.ping();
                Poll::Ready(Ok(()))
            }
            KeepaliveAction::Dead(silence) => {
                self.phase = ClosePhase::Silent;
                Poll::Ready(Err(LinkError::Silent(silence)))
            }
        }
    }

    /// Sends pings from time to time while we do not read, so that the peer sees that we are alive. Ready when a ping was queued.
    fn poll_unread_keepalive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(keepalive) = &mut self.keepalive else { return Poll::Pending };
        ready!(keepalive.poll_unread(cx));
        self.ping();
        Poll::Ready(())
    }

    fn ping(&mut self) {
        self.socket.get_mut().writer_mut().rest();
        // A link that is closing takes no pings. It needs none, because the close has a timeout.
        let _ = Pin::new(&mut self.socket).start_send(Message::ping(Bytes::new()));
    }

    /// Writes everything that is queued, and adapts the size of writes to how the peer takes it.
    fn poll_write_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.batch.note_write(flushed.is_ready());
        match flushed {
            Poll::Ready(result) => {
                self.unanswered = 0;
                Poll::Ready(result.map_err(link_error))
            }
            // The peer is gone, so nothing more will be written.
            Poll::Pending if matches!(self.phase, ClosePhase::Silent) || self.is_cut_off() => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Whether one side has closed, and writing has failed.
    fn is_cut_off(&self) -> bool {
        self.is_closed && self.socket.get_ref().is_broken()
    }

    /// Writes as much as possible of what waits. The stack does that only for frames of its own.
    fn write_some(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        if self.socket.get_ref().writer().waiting() > 0
            && let Poll::Ready(Err(error)) = Pin::new(self.socket.get_mut()).poll_flush(cx)
        {
            return Err(error.into());
        }
        Ok(())
    }

    /// Reads what the peer still sends, and discards it.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let ClosePhase::Lingering(timer) = &mut self.phase else {
            return Poll::Ready(());
        };
        let mut scratch = [0; 8 << 10];
        while timer.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(self.socket.get_mut()).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Link for WebSocket<S> {
    fn capacity(&self) -> Capacity {
        self.capacity.clone()
    }

    fn status(&self) -> LinkStatus {
        let socket = self.socket.get_ref();
        LinkStatus {
            half_close: HalfClose::Unsupported,
            is_amid_frame: socket.is_amid_message(),
            waits_for_memory: socket.waits_for_memory(),
            moved: socket.moved(),
            content: FrameContent::Bytes,
        }
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        Some(self)
    }

    fn poll_acked(&mut self, _: &mut Context<'_>) -> Poll<Acked> {
        Poll::Pending
    }

    /// A WebSocket cannot end one direction.
    fn end_output(&mut self) -> bool {
        false
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> ReceiveMemory for WebSocket<S> {
    fn set_intake(&mut self, Intake { max_frame_bytes, account }: Intake) {
        self.socket.limits_mut().set_max_payload_len(usize::try_from(max_frame_bytes).ok());
        self.socket.get_mut().set_memory(account.map(|account| FrameMemory::new(account, max_frame_bytes)));
    }

    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        while self.poll_unread_keepalive(cx).is_ready() {
            let _ = Pin::new(&mut self.socket).poll_flush(cx);
        }
        // If this fails, the next read reports it.
        let _ = self.write_some(cx);
        self.socket.get_mut().poll_evicted(cx)
    }

    fn release_last(&mut self) {
        self.socket.get_mut().release_last();
    }

    fn set_next_frame(&mut self, next: NextFrame) {
        self.socket.get_mut().set_next_frame(next);
    }

    fn take_last(&mut self) -> Option<Grant> {
        self.socket.get_mut().take_last()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for WebSocket<S> {
    type Item = Result<Arrival, LinkError>;

    /// Binary messages count as text. The stack answers pings by itself.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if matches!(this.phase, ClosePhase::Silent) {
            return Poll::Ready(None);
        }
        this.socket.get_mut().release_last();
        loop {
            match ready!(this.poll_message(cx)) {
                Some(Ok(message)) => {
                    if let Some(arrival) = this.arrival(message) {
                        return Poll::Ready(Some(Ok(arrival)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<Transmit> for WebSocket<S> {
    type Error = LinkError;

    /// Ready while fewer bytes wait than one write should have, and then not again until nearly all of that write was taken. So a small
    /// message waits for little more than one write.
    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let this = self.get_mut();
        if this.batch.takes_more(this.socket.get_ref().writer().waiting()) {
            return Poll::Ready(Ok(()));
        }
        this.poll_write_all(cx)
    }

    fn start_send(self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        let this = self.get_mut();
        let (bytes, kind) = match item {
            Transmit::Frame { bytes, meta, .. } => (bytes, if meta.is_binary { BINARY } else { TEXT }),
            Transmit::Close(reason) => {
                this.is_closed = true;
                // If the stack has sent a close already, ours comes too late.
                return match Pin::new(&mut this.socket).start_send(close::message(&reason)) {
                    Ok(()) | Err(Error::AlreadyClosed) => Ok(()),
                    Err(error) => Err(link_error(error)),
                };
            }
        };
        if this.is_closed {
            return Err(LinkError::Closed);
        }
        this.batch.note_frame(bytes.len());
        Ok(this.socket.get_mut().writer_mut().push_message(kind, bytes.parts().iter().cloned().collect())?)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.get_mut().poll_write_all(cx)
    }

    /// Writes our close, waits for that of the peer, and reads on for a moment if the peer goes on sending. The caller decides how long
    /// to wait for the peer's close.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let this = self.get_mut();
        if matches!(this.phase, ClosePhase::Open) {
            this.write_some(cx)?;
            let closed = Pin::new(&mut this.socket).poll_close(cx);
            if closed.is_pending() && this.is_cut_off() {
                return Poll::Ready(Ok(()));
            }
            ready!(closed).map_err(link_error)?;
            this.socket.get_mut().set_memory(None);
            this.phase = ClosePhase::Lingering(Box::pin(tokio::time::sleep(LINGER)));
        }
        this.poll_linger(cx).map(Ok)
    }
}

/// Shows nothing of what passes, because those are the peer's bytes.
impl<S> fmt::Debug for WebSocket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket").field("role", &self.role).field("cap", &self.capacity.cap).finish_non_exhaustive()
    }
}

/// The stack's error, as that of a link.
fn link_error(error: Error) -> LinkError {
    match error {
        Error::Io(error) => LinkError::Io(error),
        Error::AlreadyClosed => LinkError::Closed,
        Error::Protocol(ProtocolError::InvalidUtf8) => LinkError::NotUtf8,
        Error::PayloadTooLong { len, max_len } => {
            LinkError::FrameTooLarge(Over { size: len64(len), limit: len64(max_len) })
        }
        other => LinkError::Protocol(other.to_string()),
    }
}
