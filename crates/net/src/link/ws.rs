//! A WebSocket: each message of it is a frame, and the stack itself refuses one that is too long.

mod close;
mod keepalive;
mod key;
mod tcp;
mod watched;

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

use breakbulk_proto::{Capacity, LimitsConfig, Meta, Over, Transmit};

pub use self::keepalive::Keepalive;
use self::keepalive::{Beat, Pulse};
pub(crate) use self::key::{Key, accept_for};
pub(crate) use self::tcp::tune;
use self::watched::Watched;
use super::{Arrival, Link, LinkError};

/// Frames are gathered into writes of this many bytes while the way takes them as fast as they come. Fewer, larger system
/// calls are what bulk needs; nothing waits for it, because gathering takes no time of its own.
const MOST_GATHERED: u64 = 384 << 10;
/// And of this many while the way is full: what has been gathered is what a small message must wait for.
const LEAST_GATHERED: u64 = 64 << 10;
/// Pings that may wait for their pongs to leave. A peer that asks more often than it listens is not read meanwhile: the
/// stack would keep a pong, and the buffer that its ping came in, for each.
const MOST_UNANSWERED: u32 = 8;
/// Frames up to here are copied, so that keeping a small message does not keep the large buffer it came in.
const SMALL_FRAME: usize = 4 << 10;
/// How long what the peer still sends is read after our close. A socket that is dropped with bytes unread may take the
/// close back from the peer's hands.
const LINGER: Duration = Duration::from_secs(1);

/// How a WebSocket behaves, once its handshake is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocketConfig {
    /// The longest frame that we take. The peer of a longer one is told 1009 when the frame's header arrives. 4 MiB.
    pub max_frame_bytes: u64,
    /// The longest frame that the way to the peer takes. Unlimited.
    pub cap: u64,
    /// How a peer that has gone without a word is noticed, if it is. After 30 s.
    pub keepalive: Option<Keepalive>,
    /// On TCP: bytes that may wait in the system's buffer before it takes no more from us (`TCP_NOTSENT_LOWAT`, on
    /// Linux). What waits there can no longer be passed by a small message. 128 KiB.
    pub max_unsent_bytes: u32,
}

impl Default for WebSocketConfig {
    fn default() -> Self {
        Self {
            max_frame_bytes: LimitsConfig::default().max_frame_bytes,
            cap: u64::MAX,
            keepalive: Some(Keepalive::default()),
            max_unsent_bytes: 128 << 10,
        }
    }
}

/// A WebSocket over any stream of bytes, as a link.
pub struct WebSocket<S> {
    socket: WebSocketStream<Watched<S>>,
    role: Role,
    capacity: Capacity,
    pulse: Option<Pulse>,
    gather: Gather,
    /// Pings since the stack's queue was last seen empty.
    unanswered: u32,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// How much to collect before a write, and what has been.
#[derive(Debug)]
struct Gather {
    /// What the count of written bytes will be when all that was queued is written.
    queued_to: u64,
    /// What is gathered at present, between the least and the most.
    bound: u64,
    /// The way did not take all of the last write.
    is_stuck: bool,
}

/// How far the end has come.
#[derive(Debug)]
enum End {
    Open,
    /// The peer did not answer: nobody is there to take a close.
    Silent,
    /// Our side is shut down; what the peer still sends is thrown away until it stops, or the time is over.
    Lingering(Pin<Box<Sleep>>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// The client's end of a WebSocket whose handshake is done.
    pub fn client(io: S, config: &WebSocketConfig) -> Self {
        Self::after_handshake(io, Bytes::new(), Role::Client, config)
    }

    /// The server's end of a WebSocket whose handshake is done.
    pub fn server(io: S, config: &WebSocketConfig) -> Self {
        Self::after_handshake(io, Bytes::new(), Role::Server, config)
    }

    /// [`client`](Self::client), with bytes that were read together with the handshake.
    pub(crate) fn client_with(io: S, ahead: Bytes, config: &WebSocketConfig) -> Self {
        Self::after_handshake(io, ahead, Role::Client, config)
    }

    /// [`server`](Self::server), with bytes that were read together with the handshake.
    pub(crate) fn server_with(io: S, ahead: Bytes, config: &WebSocketConfig) -> Self {
        Self::after_handshake(io, ahead, Role::Server, config)
    }

    fn after_handshake(io: S, ahead: Bytes, role: Role, config: &WebSocketConfig) -> Self {
        let io = Watched::new(io, ahead);
        // A frame is never cut by the stack, and we decide ourselves when it must write.
        let stack = Config::default().frame_size(usize::MAX).flush_threshold(usize::MAX);
        let limits = Limits::default().max_payload_len(usize::try_from(config.max_frame_bytes).ok());
        let socket = match role {
            Role::Client => ClientBuilder::new().config(stack).limits(limits).take_over(io),
            Role::Server => ServerBuilder::new().config(stack).limits(limits).serve(io),
        };
        Self {
            socket,
            role,
            capacity: Capacity::of(config.cap),
            pulse: config.keepalive.map(Pulse::new),
            gather: Gather { queued_to: 0, bound: MOST_GATHERED, is_stuck: false },
            unanswered: 0,
            end: End::Open,
        }
    }

    /// What a message of the stack is to us; `None` for what the stack deals with by itself.
    fn arrival(&mut self, message: Message) -> Option<Arrival> {
        if let Some((code, text)) = message.as_close() {
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
        if let Error::PayloadTooLong { max_len, .. } = error {
            // A message in many small parts is refused by a part of the stack that sends no close. If one has been
            // sent, this fails, and that is well.
            let text = format!("max length: {max_len}");
            let _ = Pin::new(&mut self.socket).start_send(Message::close(Some(CloseCode::MESSAGE_TOO_BIG), &text));
        }
        error.into()
    }

    /// Whether the peer is alive, asked when all that had arrived is read.
    fn poll_pulse(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        let Some(pulse) = &mut self.pulse else {
            return Poll::Pending;
        };
        while let Poll::Ready(beat) = pulse.poll(self.socket.get_ref().signs_of_life(), cx) {
            match beat {
                Beat::Ping => {
                    // A link that is closing takes no pings, and needs none: whoever closes it waits a bounded time.
                    let _ = Pin::new(&mut self.socket).start_send(Message::ping(Bytes::new()));
                    // An error shows at the next read or write.
                    let _ = Pin::new(&mut self.socket).poll_flush(cx);
                }
                Beat::Dead(silence) => {
                    self.end = End::Silent;
                    return Poll::Ready(LinkError::Silent(silence));
                }
            }
        }
        Poll::Pending
    }

    /// Writes all that is queued, and learns from how it went.
    fn poll_write_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        match flushed {
            // A peer that is gone takes nothing; what it was to be told is not worth waiting for.
            Poll::Pending if matches!(self.end, End::Silent) => Poll::Ready(Ok(())),
            Poll::Ready(result) => {
                self.unanswered = 0;
                let gather = &mut self.gather;
                if !std::mem::take(&mut gather.is_stuck) {
                    gather.bound = gather.bound.saturating_mul(2).min(MOST_GATHERED);
                }
                Poll::Ready(result.map_err(LinkError::from))
            }
            Poll::Pending => {
                let gather = &mut self.gather;
                if !std::mem::replace(&mut gather.is_stuck, true) {
                    gather.bound = (gather.bound / 2).max(LEAST_GATHERED);
                }
                Poll::Pending
            }
        }
    }

    /// Bytes that were queued and are not written.
    fn waiting(&self) -> u64 {
        self.gather.queued_to.saturating_sub(self.socket.get_ref().written())
    }

    /// Reads what the peer still sends, and throws it away.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let End::Lingering(timer) = &mut self.end else {
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
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for WebSocket<S> {
    type Item = Result<Arrival, LinkError>;

    /// The stack answers pings by itself. A binary frame counts as text.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if matches!(this.end, End::Silent) {
            return Poll::Ready(None);
        }
        while this.unanswered < MOST_UNANSWERED || this.poll_write_all(cx)?.is_ready() {
            match Pin::new(&mut this.socket).poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => {
                    if let Some(arrival) = this.arrival(message) {
                        return Poll::Ready(Some(Ok(arrival)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(this.refuse(error)))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        this.poll_pulse(cx).map(|error| Some(Err(error)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<Transmit> for WebSocket<S> {
    type Error = LinkError;

    /// Ready while less is gathered than one write should have, and not again before all of that write is taken: so a
    /// small message waits for one write at most.
    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let this = self.get_mut();
        if !this.gather.is_stuck && this.waiting() < this.gather.bound {
            return Poll::Ready(Ok(()));
        }
        this.poll_write_all(cx)
    }

    fn start_send(self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        let this = self.get_mut();
        let bytes = match item {
            Transmit::Frame { bytes, .. } => bytes,
            Transmit::Close(reason) => {
                // If the stack has closed already, it has told the peer why, and our reason comes too late.
                return match Pin::new(&mut this.socket).start_send(close::message(&reason)) {
                    Ok(()) | Err(Error::AlreadyClosed) => Ok(()),
                    Err(error) => Err(error.into()),
                };
            }
        };
        let on_wire = wire_len(bytes.len(), this.role);
        Pin::new(&mut this.socket).start_send(Message::text(bytes))?;
        // Pongs and pings that went out in between were not counted when they were queued.
        this.gather.queued_to = this.gather.queued_to.max(this.socket.get_ref().written()).saturating_add(on_wire);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.get_mut().poll_write_all(cx)
    }

    /// Brings our close to the peer, waits for the peer's, and reads on for a moment if the peer goes on sending. How long
    /// to wait for the peer's close is the caller's affair.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let this = self.get_mut();
        if matches!(this.end, End::Open) {
            ready!(Pin::new(&mut this.socket).poll_close(cx))?;
            this.end = End::Lingering(Box::pin(tokio::time::sleep(LINGER)));
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

impl From<Error> for LinkError {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => Self::Io(error),
            Error::AlreadyClosed => Self::Closed,
            Error::Protocol(ProtocolError::InvalidUtf8) => Self::NotUtf8,
            Error::PayloadTooLong { len, max_len } => {
                let wide = |len| u64::try_from(len).unwrap_or(u64::MAX);
                Self::FrameTooLarge(Over { size: wide(len), limit: wide(max_len) })
            }
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// Bytes of a frame with a payload of `len`, header and mask included.
fn wire_len(len: usize, role: Role) -> u64 {
    let header = match len {
        0..=125 => 2,
        126..=65_535 => 4,
        _ => 10,
    };
    let mask = if role == Role::Client { 4 } else { 0 };
    u64::try_from(len).unwrap_or(u64::MAX).saturating_add(header + mask)
}
