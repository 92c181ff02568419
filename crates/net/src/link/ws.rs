//! A WebSocket: each message of it is a frame, and the stack itself refuses one that is too long.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_websockets::{CloseCode, Config, Error, Limits, Message, WebSocketStream};

use breakbulk_proto::{Capacity, CloseReason, Meta, Over, Transmit};

use super::{Arrival, Link, LinkError};

/// Bytes that may wait in the stack before it must write them. With more, a small message would wait behind them.
const FLUSH_THRESHOLD: usize = 64 << 10;

/// A WebSocket over any stream of bytes, as a link.
#[derive(Debug)]
pub struct WebSocket<S> {
    socket: WebSocketStream<S>,
    capacity: Capacity,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// A WebSocket whose handshake is done, on a way that takes frames as large as `capacity` says. Build it with
    /// [`config`] and [`limits`].
    pub const fn new(socket: WebSocketStream<S>, capacity: Capacity) -> Self {
        Self { socket, capacity }
    }

    /// The stack's error, as that of a link.
    fn error(error: Error) -> LinkError {
        match error {
            Error::Io(error) => LinkError::Io(error),
            Error::AlreadyClosed => LinkError::Closed,
            Error::PayloadTooLong { len, max_len } => {
                let wide = |len| u64::try_from(len).unwrap_or(u64::MAX);
                LinkError::FrameTooLarge(Over { size: wide(len), limit: wide(max_len) })
            }
            other => LinkError::Protocol(other.to_string()),
        }
    }
}

/// How the stack is to write: a frame is never cut by it.
#[must_use]
pub fn config() -> Config {
    Config::default().frame_size(usize::MAX).flush_threshold(FLUSH_THRESHOLD)
}

/// What the stack is to take: a longer frame is refused when its header arrives.
#[must_use]
pub fn limits(max_frame_bytes: u64) -> Limits {
    Limits::default().max_payload_len(usize::try_from(max_frame_bytes).ok())
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Link for WebSocket<S> {
    fn capacity(&self) -> Capacity {
        self.capacity.clone()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for WebSocket<S> {
    type Item = Result<Arrival, LinkError>;

    /// The stack answers pings by itself. A binary frame counts as text.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let message = match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Poll::Ready(Some(Err(Self::error(error)))),
                None => return Poll::Ready(None),
            };
            if let Some((code, text)) = message.as_close() {
                let closed = Arrival::Closed { code: code.into(), text: text.into() };
                return Poll::Ready(Some(Ok(closed)));
            }
            if message.is_text() || message.is_binary() {
                let frame = Arrival::Frame { bytes: Bytes::from(message.into_payload()), meta: Meta::default() };
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<Transmit> for WebSocket<S> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.socket).poll_ready(cx).map_err(Self::error)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        let message = match item {
            Transmit::Frame { bytes, .. } => Message::text(bytes),
            Transmit::Close(reason) => close(&reason),
        };
        Pin::new(&mut self.socket).start_send(message).map_err(Self::error)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(Self::error)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(Self::error)
    }
}

/// A close frame. Codes that may not be sent, such as 1006 for a peer that is gone, go out as none.
fn close(reason: &CloseReason) -> Message {
    let code = CloseCode::try_from(reason.code()).ok().filter(|code| !code.is_reserved());
    Message::close(code, &reason.text())
}
