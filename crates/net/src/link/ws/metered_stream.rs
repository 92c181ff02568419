//! The stream of bytes under a WebSocket. It meters frames as they arrive and holds back long ones until the budget has memory for
//! them, notices whether the peer is alive, and writes our frames when it is flushed.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use breakbulk_proto::Grant;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::WebSocketRole;
use super::frame_writer::FrameWriter;
use super::meter::{Growth, Meter};
use crate::len64;
use crate::link::{LinkError, Moved, NextFrame};
use crate::memory::{FREE_FRAME, FrameMemory};

/// The stream of bytes under a WebSocket. The stack writes whole control frames through it; our data frames go between them.
#[derive(Debug)]
pub(super) struct MeteredStream<S> {
    io: S,
    /// Bytes that are read before those of `io`: what came together with the handshake, or what waits for memory.
    ahead: Bytes,
    meter: Meter,
    memory: Option<Box<FrameMemory>>,
    writer: FrameWriter,
    signs_of_life: u64,
    moved: Moved,
    /// Whether the last write was not taken. It is taken when the peer reads.
    is_full: bool,
    /// Why nothing more can be written. What the peer sent before that is still read, because it may be a close that tells the reason:
    /// until its end, or until nothing was read for as long as the timer runs.
    broken: Option<(io::Error, Pin<Box<Sleep>>)>,
}

/// How long we wait for more of what the peer had sent before the connection broke.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl<S> MeteredStream<S> {
    pub(super) fn new(io: S, ahead: Bytes, role: WebSocketRole) -> Self {
        Self {
            io,
            ahead: own(&ahead),
            meter: Meter::default(),
            memory: None,
            writer: FrameWriter::new(role),
            signs_of_life: 0,
            moved: Moved::default(),
            is_full: false,
            broken: None,
        }
    }

    /// Sets the memory in which long frames arrive from now on; `None` if they are not charged to an account.
    pub(super) fn set_memory(&mut self, memory: Option<FrameMemory>) {
        self.memory = memory.map(Box::new);
    }

    /// Resolves when the budget evicts the message that is arriving, or the last one that arrived.
    pub(super) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        self.memory.as_mut().map_or(Poll::Pending, |memory| memory.poll_evicted(cx))
    }

    /// Sets what the next frame is expected to be.
    pub(super) fn set_next_frame(&mut self, next: NextFrame) {
        if let Some(memory) = &mut self.memory {
            memory.set_next_frame(next);
        }
    }

    /// Gives back the memory of the last message.
    pub(super) fn release_last(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.release_last();
        }
    }

    /// Hands over the memory of the last message.
    pub(super) fn take_last(&mut self) -> Option<Grant> {
        self.memory.as_mut()?.take_last()
    }

    /// Whether a message waits for memory.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_waiting())
    }

    /// Whether a part of a message has arrived.
    pub(super) const fn is_amid_message(&self) -> bool {
        self.meter.message() > 0
    }

    /// The frames that are written at the next flush.
    pub(super) const fn writer(&self) -> &FrameWriter {
        &self.writer
    }

    /// The same, to be given more.
    pub(super) const fn writer_mut(&mut self) -> &mut FrameWriter {
        &mut self.writer
    }

    /// Grows whenever the peer shows that it is alive: bytes arrive, or it takes bytes after it had stopped.
    pub(super) const fn signs_of_life(&self) -> u64 {
        self.signs_of_life
    }

    /// How many bytes were read and written.
    pub(super) const fn moved(&self) -> Moved {
        self.moved
    }

    /// Whether writing has failed. The error is reported when everything that the peer had sent is read.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    fn note_life(&mut self) {
        self.signs_of_life = self.signs_of_life.wrapping_add(1);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        while buffer.remaining() > 0 && buffer.filled().len() == before {
            ready!(this.poll_memory(cx));
            if this.memory.as_ref().is_some_and(|memory| memory.is_evicted()) {
                return this.poll_discard(cx);
            }
            if this.ahead.is_empty() {
                ready!(this.poll_input(cx, buffer))?;
                let read = buffer.filled().len().saturating_sub(before);
                if read == 0 {
                    break;
                }
                this.moved.inward = this.moved.inward.saturating_add(len64(read));
                this.note_life();
            } else {
                let len = this.ahead.len().min(buffer.remaining());
                buffer.put_slice(&this.ahead.split_to(len));
            }
            this.let_pass(buffer, before);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> MeteredStream<S> {
    /// Reads what has arrived. If writing has failed, that error is returned at the end of the input.
    fn poll_input(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        let Some((_, timer)) = &mut self.broken else { return read };
        if buffer.filled().len() > before {
            timer.as_mut().reset(Instant::now() + LAST_WORDS);
            return read;
        }
        if read.is_pending() {
            ready!(timer.as_mut().poll(cx));
        }
        self.broken.take().map_or(read, |(error, _)| Poll::Ready(Err(error)))
    }

    /// Ready when the message that is arriving has memory, or was evicted, or when it is time to ask for memory again.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(memory) = &mut self.memory else { return Poll::Ready(()) };
        loop {
            ready!(memory.poll_retry(cx));
            // The message may have begun before the account was set.
            let begun = self.meter.begun();
            if memory.is_evicted() || begun.bytes == 0 || try_grow(memory, begun) {
                return Poll::Ready(());
            }
        }
    }

    /// Takes back those of the bytes that were read after `before` for which there is no memory yet.
    fn let_pass(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let read = buffer.filled().get(before..).unwrap_or_default();
        let memory = &mut self.memory;
        let may = |growth| memory.as_mut().is_none_or(|memory| try_grow(memory, growth));
        let passed = self.meter.pass(read, may);
        if let Some(memory) = &mut self.memory {
            match self.meter.message() {
                0 => memory.finish(),
                _ => memory.note_progress(self.meter.passed()),
            }
        }
        let back = read.get(passed..).unwrap_or_default();
        if !back.is_empty() {
            self.ahead = [back, &self.ahead].concat().into();
            // We wait for memory, so the peer does not count as silent.
            self.note_life();
        } else if self.ahead.is_empty() {
            self.ahead = Bytes::new();
        }
        buffer.set_filled(before.saturating_add(passed));
    }

    /// Reads what the peer still sends, and discards it.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ahead = Bytes::new();
        let mut scratch = [0; 8 << 10];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> MeteredStream<S> {
    /// Writes everything that waits. An error is reported when everything that the peer had sent is read, or after a moment.
    fn poll_write_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.broken.is_none() {
            match ready!(self.poll_try_write(cx)) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(error) => self.broken = Some((error, Box::pin(tokio::time::sleep(LAST_WORDS)))),
            }
        }
        if let Some((_, timer)) = &mut self.broken {
            ready!(timer.as_mut().poll(cx));
        }
        Poll::Ready(self.broken.take().map_or(Ok(()), |(error, _)| Err(error)))
    }

    fn poll_try_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, writer, signs_of_life, is_full, moved, .. } = self;
        let written = writer.poll_write(io, cx, |outcome| {
            if let Poll::Ready(Ok(written)) = outcome {
                moved.outward = moved.outward.saturating_add(len64(*written));
            }
            let was_full = std::mem::replace(is_full, outcome.is_pending());
            if was_full && matches!(outcome, Poll::Ready(Ok(_))) {
                *signs_of_life = signs_of_life.wrapping_add(1);
            }
        });
        ready!(written)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

/// For the stack, which writes only control frames: they are queued, and written at the next flush.
impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().writer.push_raw(Bytes::copy_from_slice(bytes));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = slices.iter().map(|slice| &**slice).collect::<Vec<_>>().concat();
        let len = bytes.len();
        self.get_mut().writer.push_raw(bytes.into());
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_write_all(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_write_all(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

/// Whether the budget has memory for a message to grow so far. If a frame is not the last of its message, the length of the message is
/// not known.
fn try_grow(memory: &mut FrameMemory, Growth { before, bytes, is_final }: Growth) -> bool {
    if before == 0 {
        memory.finish();
    }
    let longest = memory.max_frame_bytes();
    // The stack refuses a longer one.
    if bytes <= FREE_FRAME || bytes > longest {
        memory.stop_waiting();
        return true;
    }
    memory.try_grow(bytes, if is_final { bytes } else { longest })
}

/// A copy. What was read together with the handshake, even if it is empty, is a slice of the buffer of the handshake, and would keep
/// that alive as long as the link.
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
        let mut watched = MeteredStream::new(&b"later"[..], buffer.slice(..5), WebSocketRole::Client);
        drop(MeteredStream::new(&b""[..], buffer.slice(8 << 10..), WebSocketRole::Client));
        assert!(buffer.is_unique(), "nobody else holds it");
        let mut read = String::new();
        watched.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "xxxxxlater");
    }
}
