//! A link on which each line is a frame, over any stream of bytes: pipes, sockets, the standard input and output of a child.

mod pipe;
mod read;
mod write;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::{AsyncRead, AsyncWrite};

use breakbulk_proto::{Capacity, Grant, Meta, Transmit};

use self::read::LineReader;
use self::write::LineWriter;
use super::{
    Acked, Arrival, FrameContent, HalfClose, Intake, Link, LinkError, LinkStatus, Moved, NextFrame, ReceiveMemory,
};

pub(super) use self::pipe::PipeWriter;

/// A link on which a line is a frame.
///
/// Lines end with a line feed. On reading, a carriage return before it is removed, and blank lines are skipped. A last line without an
/// end is a frame, too; then comes [`Arrival::Ended`]. A line that is too long is refused before it is buffered whole. A close flushes,
/// and shuts down the writer.
#[derive(Debug)]
pub struct Lines<R, W> {
    reader: LineReader<R>,
    writer: LineWriter<W>,
    capacity: Capacity,
    is_over: bool,
    /// Counts the bytes that have left the process, if we write to a pipe from which a thread of ours carries them on. Then the end of
    /// that pipe is not the end of the peer's input.
    carried: Option<Arc<AtomicU64>>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Lines<R, W> {
    /// A link that writes lines of at most `capacity`, line end included, and accepts frames of at most `max_frame_bytes`.
    pub fn new(reader: R, writer: W, mut capacity: Capacity, max_frame_bytes: u64) -> Self {
        capacity.cap = capacity.cap.saturating_sub(1);
        let (reader, writer) = (LineReader::new(reader, max_frame_bytes), LineWriter::new(writer));
        Self { reader, writer, capacity, is_over: false, carried: None }
    }

    /// The same, with a writer from which a thread carries the bytes to the peer, and counts them.
    pub(super) fn carried(mut self, carried: Arc<AtomicU64>) -> Self {
        self.carried = Some(carried);
        self
    }

    /// The writer.
    pub(super) const fn writer(&self) -> &W {
        self.writer.io()
    }

    /// Ends the input: the next arrivals are the rest that was read, as a last line, and the end.
    pub(super) fn end_input(&mut self) {
        self.reader.end();
    }

    /// Prepares the link for another user. What was read is discarded, up to the end of the current line. What was accepted for writing is
    /// still written, because a part of it may already be. Returns how many bytes were discarded, including those that were read while
    /// nobody used the link.
    pub(super) fn start_afresh(&mut self) -> u64 {
        self.reader.forget();
        self.is_over = false;
        self.reader.take_forgotten()
    }

    /// The user is done with the link: discards what was read, and releases the account.
    pub(super) fn leave(&mut self) {
        self.reader.forget();
        self.reader.set_account(None);
    }

    /// While nobody uses the link: discards what is read, and writes what was accepted. Ready at the end of the input.
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // If writing fails, the next user notices.
        let _ = self.writer.poll_flush(cx);
        self.reader.poll_discard(cx)
    }
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> Link for Lines<R, W> {
    fn capacity(&self) -> Capacity {
        self.capacity.clone()
    }

    fn status(&self) -> LinkStatus {
        let carried = self.carried.as_ref().map(|carried| carried.load(Ordering::Relaxed));
        LinkStatus {
            half_close: HalfClose::Supported,
            is_amid_frame: self.reader.is_amid_message(),
            waits_for_memory: self.reader.waits_for_memory(),
            moved: Moved { inward: self.reader.read(), outward: carried.unwrap_or_else(|| self.writer.written()) },
            content: FrameContent::Text,
        }
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        Some(self)
    }

    fn poll_acked(&mut self, _: &mut Context<'_>) -> Poll<Acked> {
        Poll::Pending
    }

    fn end_output(&mut self) -> bool {
        let can_tell = self.carried.is_none();
        if can_tell {
            self.writer.close();
        }
        can_tell
    }
}

impl<R: AsyncRead + Unpin, W> ReceiveMemory for Lines<R, W> {
    fn set_intake(&mut self, Intake { max_frame_bytes, account }: Intake) {
        self.reader.set_max_frame(max_frame_bytes);
        self.reader.set_account(account);
    }

    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        self.reader.poll_evicted(cx)
    }

    fn release_last(&mut self) {
        self.reader.release_last();
    }

    fn set_next_frame(&mut self, next: NextFrame) {
        self.reader.set_next_frame(next);
    }

    fn take_last(&mut self) -> Option<Grant> {
        self.reader.take_last()
    }
}

impl<R: AsyncRead + Unpin, W: Unpin> Stream for Lines<R, W> {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let arrival = match ready!(self.reader.poll_line(cx)) {
            Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Arrival::Frame { bytes, meta: Meta::default() }))),
            Ok(None) => Ok(Arrival::Ended),
            Err(error) => Err(error),
        };
        self.is_over = true;
        Poll::Ready(Some(arrival))
    }
}

impl<R: Unpin, W: AsyncWrite + Unpin> Sink<Transmit> for Lines<R, W> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.writer.poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        match item {
            Transmit::Frame { bytes, .. } => self.writer.push(bytes.to_bytes()),
            Transmit::Close(_) => {
                self.writer.close();
                Ok(())
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.writer.poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.writer.close();
        self.writer.poll_flush(cx)
    }
}
