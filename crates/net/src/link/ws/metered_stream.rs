//! A stream of bytes that notices signs of life, gives back what was read too early, asks before a long frame comes in, and
//! writes when it is flushed.

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

/// A stream under a WebSocket. What the stack writes through it are whole frames; between them go ours.
#[derive(Debug)]
pub(super) struct MeteredStream<S> {
    io: S,
    /// Comes before all else: what was read together with the handshake, or what waits for room.
    ahead: Bytes,
    meter: Meter,
    memory: Option<Box<FrameMemory>>,
    writer: FrameWriter,
    signs_of_life: u64,
    moved: Moved,
    /// The last write was not taken. Only the peer can change that.
    is_full: bool,
    /// Nothing more can be written. What the peer has said before is read all the same, a close that says why above all,
    /// until its end is there, or for so long nothing of it is read.
    broken: Option<(io::Error, Pin<Box<Sleep>>)>,
}

/// It may take the system a moment to tell of what had come before a link broke. Who does not read has no more time either.
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

    /// Long frames arrive in this memory from now on; `None` if nobody pays for them.
    pub(super) fn set_memory(&mut self, memory: Option<FrameMemory>) {
        self.memory = memory.map(Box::new);
    }

    /// Resolves when the budget evicts the message that is arriving, or the last one.
    pub(super) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        self.memory.as_mut().map_or(Poll::Pending, |memory| memory.poll_evicted(cx))
    }

    /// Says what the next frame is to messages that are under way.
    pub(super) fn set_next_frame(&mut self, next: NextFrame) {
        if let Some(memory) = &mut self.memory {
            memory.set_next_frame(next);
        }
    }

    /// Gives back the memory of the message that came last.
    pub(super) fn release_last(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.release_last();
        }
    }

    /// Hands over the memory of the message that came last.
    pub(super) fn take_last(&mut self) -> Option<Grant> {
        self.memory.as_mut()?.take_last()
    }

    /// Whether a message waits for memory.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_waiting())
    }

    /// Whether a message has begun to come in and is not whole.
    pub(super) const fn is_amid_message(&self) -> bool {
        self.meter.message() > 0
    }

    /// What is to be written at the next flush.
    pub(super) const fn writer(&self) -> &FrameWriter {
        &self.writer
    }

    /// The same, to be given more.
    pub(super) const fn writer_mut(&mut self) -> &mut FrameWriter {
        &mut self.writer
    }

    /// Grows whenever the peer shows that it is there: a byte comes, or there is room again where there was none.
    pub(super) const fn signs_of_life(&self) -> u64 {
        self.signs_of_life
    }

    /// Bytes of the stream that were read and written.
    pub(super) const fn moved(&self) -> Moved {
        self.moved
    }

    /// Whether nothing more can be written. The error comes when all is read that there is.
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
    /// Reads what has come. Where nothing can be written any more, the end is that error.
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

    /// Ready when the message that has begun may go on, or was evicted, and when one that asked in vain may ask again.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(memory) = &mut self.memory else { return Poll::Ready(()) };
        loop {
            ready!(memory.poll_retry(cx));
            // It may have begun before anybody asked.
            let begun = self.meter.begun();
            if memory.is_evicted() || begun.bytes == 0 || try_grow(memory, begun) {
                return Poll::Ready(());
            }
        }
    }

    /// Takes back, of what was read behind `before`, what may not pass yet.
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
            // While we are those who wait, the peer is not silent.
            self.note_life();
        } else if self.ahead.is_empty() {
            self.ahead = Bytes::new();
        }
        buffer.set_filled(before.saturating_add(passed));
    }

    /// Reads what the peer still sends, and keeps nothing of it.
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
    /// Writes all that waits. An error is told when all is read that there is, or after a moment.
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
            let had_no_room = std::mem::replace(is_full, outcome.is_pending());
            if had_no_room && matches!(outcome, Poll::Ready(Ok(_))) {
                *signs_of_life = signs_of_life.wrapping_add(1);
            }
        });
        ready!(written)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

/// For the stack, which writes little: all of it is taken, and goes out when it is flushed.
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

/// Whether a message may grow so far now. Where a frame is not the last one of its message, nobody knows how long that will be.
fn try_grow(memory: &mut FrameMemory, Growth { before, bytes, is_final }: Growth) -> bool {
    if before == 0 {
        memory.finish();
    }
    let longest = memory.max_frame_bytes();
    // What is longer is refused by the stack.
    if bytes <= FREE_FRAME || bytes > longest {
        memory.stop_waiting();
        return true;
    }
    memory.try_grow(bytes, if is_final { bytes } else { longest })
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
        let mut watched = MeteredStream::new(&b"later"[..], buffer.slice(..5), WebSocketRole::Client);
        drop(MeteredStream::new(&b""[..], buffer.slice(8 << 10..), WebSocketRole::Client));
        assert!(buffer.is_unique(), "nobody else holds it");
        let mut read = String::new();
        watched.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "xxxxxlater");
    }
}
