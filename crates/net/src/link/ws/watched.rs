//! A stream of bytes that notices signs of life, and gives back what was read too early.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream under a WebSocket.
#[derive(Debug)]
pub(super) struct Watched<S> {
    io: S,
    /// Read together with the handshake; comes before all else.
    ahead: Bytes,
    written: u64,
    signs_of_life: u64,
    /// The last write was not taken. Only the peer can change that.
    is_full: bool,
}

impl<S> Watched<S> {
    pub(super) fn new(io: S, ahead: Bytes) -> Self {
        Self { io, ahead: own(&ahead), written: 0, signs_of_life: 0, is_full: false }
    }

    /// How many bytes were taken from us.
    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    /// Grows whenever the peer shows that it is there: a byte comes, or there is room again where there was none.
    pub(super) const fn signs_of_life(&self) -> u64 {
        self.signs_of_life
    }

    fn note_life(&mut self) {
        self.signs_of_life = self.signs_of_life.wrapping_add(1);
    }

    fn note_write(&mut self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match outcome {
            Poll::Pending => self.is_full = true,
            Poll::Ready(Ok(len)) => {
                self.written = self.written.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
                if std::mem::take(&mut self.is_full) {
                    self.note_life();
                }
            }
            Poll::Ready(Err(_)) => {}
        }
        outcome
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ahead.is_empty() {
            let len = this.ahead.len().min(buffer.remaining());
            buffer.put_slice(&this.ahead.slice(..len));
            this.ahead.advance(len);
            if this.ahead.is_empty() {
                this.ahead = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut this.io).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.note_life();
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.note_write(outcome)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.note_write(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

/// A copy that holds nothing else. What was read with a handshake, even nothing, is a slice of the buffer which that was
/// read into, and would keep all of it for as long as the link lives.
fn own(ahead: &Bytes) -> Bytes {
    Bytes::copy_from_slice(ahead)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_was_read_too_early_comes_first_and_keeps_no_buffer() {
        let buffer = Bytes::from(vec![b'x'; 8 << 10]);
        let mut watched = Watched::new(&b"later"[..], buffer.slice(..5));
        drop(Watched::new(&b""[..], buffer.slice(8 << 10..)));
        assert!(buffer.is_unique(), "nobody else holds it");
        let mut read = String::new();
        watched.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "xxxxxlater");
    }
}
