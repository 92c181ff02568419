//! Writes lines. Large frames are written without copying, small ones are collected.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use crate::link::LinkError;

/// While so much waits, no frame is taken, because a small message could not overtake it. A pipe holds as much again.
const ENOUGH: usize = 64 << 10;

/// Frames up to this length are copied together, so that many are written at once.
const SMALL_FRAME: usize = 4 << 10;

/// How many pieces one write has at most. There are seldom more.
const PIECES: usize = 16;

/// The output side of a link of lines.
#[derive(Debug)]
pub(super) struct LineWriter<W> {
    io: W,
    /// Large frames, and what was collected between them.
    pieces: VecDeque<Bytes>,
    /// Line ends and small frames that come after all pieces.
    tail: BytesMut,
    /// How many bytes are in both.
    waiting: usize,
    /// How many bytes were written.
    written: u64,
    state: WriterState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriterState {
    Open,
    /// The writer is shut down after everything that waits is written.
    Closing,
    /// It is shut down, or broken.
    Closed,
}

impl<W: AsyncWrite + Unpin> LineWriter<W> {
    pub(super) fn new(io: W) -> Self {
        Self { io, pieces: VecDeque::new(), tail: BytesMut::new(), waiting: 0, written: 0, state: WriterState::Open }
    }

    /// Ready when few bytes wait.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        while self.state == WriterState::Open && self.waiting >= ENOUGH {
            ready!(self.poll_write(cx))?;
        }
        Poll::Ready(if self.state == WriterState::Open { Ok(()) } else { Err(LinkError::Closed) })
    }

    /// The underlying writer.
    pub(super) const fn io(&self) -> &W {
        &self.io
    }

    /// Bytes that were written so far.
    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    /// Takes a frame.
    pub(super) fn push(&mut self, frame: Bytes) -> Result<(), LinkError> {
        if self.state != WriterState::Open {
            return Err(LinkError::Closed);
        }
        if memchr::memchr(b'\n', &frame).is_some() {
            return Err(LinkError::Protocol("a frame with a line end in it cannot be a line".to_owned()));
        }
        self.waiting += frame.len() + 1;
        if frame.len() <= SMALL_FRAME {
            self.tail.put(frame);
        } else {
            if !self.tail.is_empty() {
                self.pieces.push_back(self.tail.split().freeze());
            }
            self.pieces.push_back(frame);
        }
        self.tail.put_u8(b'\n');
        Ok(())
    }

    /// Takes no more frames.
    pub(super) fn close(&mut self) {
        if self.state == WriterState::Open {
            self.state = WriterState::Closing;
        }
    }

    /// Writes everything that waits, and shuts down the writer after a close.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.state == WriterState::Closed {
            return Poll::Ready(Ok(()));
        }
        while self.waiting > 0 {
            ready!(self.poll_write(cx))?;
        }
        let io = Pin::new(&mut self.io);
        let done = ready!(if self.state == WriterState::Closing { io.poll_shutdown(cx) } else { io.poll_flush(cx) });
        if self.state == WriterState::Closing {
            self.state = WriterState::Closed;
        }
        Poll::Ready(done.or_else(|error| self.fail(error)))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        let pieces = self.pieces.iter().map(|piece| &piece[..]).chain([&self.tail[..]]);
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let slices = slices.get(..count).unwrap_or_default();
        let written = match ready!(Pin::new(&mut self.io).poll_write_vectored(cx, slices)) {
            Ok(0) => return Poll::Ready(self.fail(io::ErrorKind::WriteZero.into())),
            Ok(written) => written,
            Err(error) => return Poll::Ready(self.fail(error)),
        };
        self.advance(written);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut written: usize) {
        self.waiting -= written;
        self.written = self.written.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                return;
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
        self.tail.advance(written);
    }

    /// Writing has failed: discards what waits.
    fn fail(&mut self, error: io::Error) -> Result<(), LinkError> {
        (self.state, self.waiting) = (WriterState::Closed, 0);
        self.pieces.clear();
        self.tail.clear();
        Err(error.into())
    }
}
