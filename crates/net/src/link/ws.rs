//! A WebSocket: each message of it is a frame, and the stack itself refuses one that is too long.

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
pub use self::keepalive::Keepalive;
use self::keepalive::{KeepaliveAction, KeepaliveTimer};
pub(crate) use self::key::{Key, accept_for};
use self::metered_stream::MeteredStream;
pub use self::tcp::tune;
use self::write_batch::WriteBatch;
use super::{Arrival, HalfClose, Intake, Link, LinkError, LinkStatus, NextFrame, ReceiveMemory};
use crate::len64;
use crate::memory::FrameMemory;

/// Pings that may wait for their pongs to leave. A peer that asks more often than it listens is not read meanwhile: the
/// stack would keep a pong, and the buffer that its ping came in, for each.
const MAX_UNANSWERED_PINGS: u32 = 8;
/// Frames up to here are copied, so that keeping a small message does not keep the large buffer it came in.
const SMALL_FRAME: usize = 4 << 10;
/// How long what the peer still sends is read after our close. A socket that is dropped with bytes unread may take the
/// close back from the peer's hands.
const LINGER: Duration = Duration::from_secs(1);

/// A WebSocket over any stream of bytes, as a link. Both halves of it want to be polled by the same task.
pub struct WebSocket<S> {
    socket: WebSocketStream<MeteredStream<S>>,
    role: WebSocketRole,
    capacity: Capacity,
    keepalive: Option<KeepaliveTimer>,
    batch: WriteBatch,
    /// Pings since the stack's queue was last seen empty.
    unanswered: u32,
    /// Either side has closed, or broken the rules: only the stack may still say something.
    is_closed: bool,
    phase: ClosePhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WebSocketRole {
    Client,
    Server,
}

/// How far the end has come.
#[derive(Debug)]
enum ClosePhase {
    Open,
    /// The peer did not answer: nobody is there to take a close.
    Silent,
    /// Our side is shut down; what the peer still sends is thrown away until it stops, or the time is over.
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
        // We decide ourselves when the stack must write.
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

    /// The next message of the stack. Also writes what the stack has queued, such as pongs and our pings.
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

    /// What a message of the stack is to us; `None` for what the stack deals with by itself.
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

    /// The stack's error, as that of a link. The stack tells the peer by itself, except in one case.
    fn refuse(&mut self, error: Error) -> LinkError {
        self.is_closed = true;
        if let Error::PayloadTooLong { max_len, .. } = error {
            // A message in many small parts is refused by a part of the stack that sends no close. If one has been
            // sent, this fails, and that is well.
            let text = format!("max length: {max_len}");
            let _ = Pin::new(&mut self.socket).start_send(Message::close(Some(CloseCode::MESSAGE_TOO_BIG), &text));
        }
        link_error(error)
    }

    /// Asks whether the peer is alive, when all that had arrived is read. Ready with no error if a ping was queued.
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

    /// Tells the peer from time to time that we are there, while we do not read. Ready when a ping was queued.
    fn poll_unread_keepalive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(keepalive) = &mut self.keepalive else { return Poll::Pending };
        ready!(keepalive.poll_unread(cx));
        self.ping();
        Poll::Ready(())
    }

    fn ping(&mut self) {
        self.socket.get_mut().writer_mut().rest();
        // A link that is closing takes no pings, and needs none: whoever closes it waits a bounded time.
        let _ = Pin::new(&mut self.socket).start_send(Message::ping(Bytes::new()));
    }

    /// Writes all that is queued, and learns from how it went.
    fn poll_write_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.batch.note_write(flushed.is_ready());
        match flushed {
            Poll::Ready(result) => {
                self.unanswered = 0;
                Poll::Ready(result.map_err(link_error))
            }
            // A peer that is gone takes nothing; what it was to be told is not worth waiting for.
            Poll::Pending if matches!(self.phase, ClosePhase::Silent) || self.is_cut_off() => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Whether one side has closed, and nothing more can be written.
    fn is_cut_off(&self) -> bool {
        self.is_closed && self.socket.get_ref().is_broken()
    }

    /// Writes what can be written of what waits: the stack does so only for what is its own.
    fn write_some(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        if self.socket.get_ref().writer().waiting() > 0
            && let Poll::Ready(Err(error)) = Pin::new(self.socket.get_mut()).poll_flush(cx)
        {
            return Err(error.into());
        }
        Ok(())
    }

    /// Reads what the peer still sends, and throws it away.
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
        }
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        Some(self)
    }

    /// A WebSocket has no such thing.
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
        // Who reads next hears what fails here.
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

    /// The stack answers pings by itself. A binary frame counts as text.
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

    /// Ready while less is gathered than one write should have, and not again before nearly all of that write is taken: so
    /// a small message waits for little more than one write.
    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let this = self.get_mut();
        if this.batch.takes_more(this.socket.get_ref().writer().waiting()) {
            return Poll::Ready(Ok(()));
        }
        this.poll_write_all(cx)
    }

    fn start_send(self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        let this = self.get_mut();
        let bytes = match item {
            Transmit::Frame { bytes, .. } => bytes,
            Transmit::Close(reason) => {
                this.is_closed = true;
                // If the stack has closed already, it has told the peer why, and our reason comes too late.
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
        Ok(this.socket.get_mut().writer_mut().push_text(bytes.parts().iter().cloned().collect())?)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.get_mut().poll_write_all(cx)
    }

    /// Brings our close to the peer, waits for the peer's, and reads on for a moment if the peer goes on sending. How long
    /// to wait for the peer's close is the caller's affair.
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

/// Says nothing about what passes: those bytes are the peer's.
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
