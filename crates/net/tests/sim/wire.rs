//! A TCP stream that takes few bytes at a time, and breaks when it is told to.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::TcpStream;

/// The bytes that a wire has left before it breaks, both ways together.
#[derive(Debug)]
pub(crate) struct Fuse(AtomicU64);

impl Fuse {
    /// The wire breaks after so many more bytes.
    pub(crate) fn light(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn burn(&self, bytes: usize) {
        let burnt = |left: u64| (left != u64::MAX).then(|| left.saturating_sub(bytes as u64));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, burnt);
    }

    fn is_burnt(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// One end of a TCP stream.
#[derive(Debug)]
pub(crate) struct Wire {
    /// `None` when it is broken. Dropping it resets the connection, if there is something unread; else it ends it.
    io: Option<TcpStream>,
    piece: usize,
    fuse: Arc<Fuse>,
    /// Bytes that all wires have brought, pings and pongs left out.
    moved: Arc<AtomicU64>,
}

/// No longer than a ping or a pong.
const BEAT: usize = 8;

impl Wire {
    pub(crate) fn new(io: TcpStream, piece: usize, moved: Arc<AtomicU64>) -> Self {
        Self { io: Some(io), piece, fuse: Arc::new(Fuse(AtomicU64::new(u64::MAX))), moved }
    }

    pub(crate) fn fuse(&self) -> &Arc<Fuse> {
        &self.fuse
    }

    fn io(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if self.fuse.is_burnt() {
            self.io = None;
        }
        self.io.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = self.io()?.poll_read(cx, buffer);
        let len = buffer.filled().len() - before;
        self.fuse.burn(len);
        if len > BEAT {
            self.moved.fetch_add(len as u64, Ordering::Relaxed);
        }
        outcome
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let piece = &bytes[..bytes.len().min(self.piece)];
        let outcome = self.io()?.poll_write(cx, piece);
        if let Poll::Ready(Ok(len)) = outcome {
            self.fuse.burn(len);
        }
        outcome
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io()?.poll_shutdown(cx)
    }
}
