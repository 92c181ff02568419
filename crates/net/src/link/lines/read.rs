//! Bytes into lines: each byte is searched once, and copied at most once beyond what the buffer's growth costs.

use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use breakbulk_proto::{Account, Grant, Over};

use crate::len64;
use crate::link::{LinkError, NextFrame};
use crate::memory::{FREE_FRAME, FrameMemory};

/// What a long line reserves first. What is longer is rare, and reserves as much as the longest line.
const USUAL_LINE: u64 = 1 << 20;

/// Room for a read. A pipe holds this much.
const READ: usize = 64 << 10;

/// A frame from this size on leaves its block to nobody.
const LONG_FRAME: usize = 1 << 20;

/// What a line may have beside its frame.
const LINE_END: usize = "\r\n".len();

/// With less room than this a new block is begun: a read into the last bytes of the old one is not worth its call.
const LEAST_READ: usize = 16 << 10;

/// A frame up to this size is copied out, so that one that is kept does not keep a whole block.
const SMALL_FRAME: usize = 4 << 10;

/// The input side of a link of lines.
#[derive(Debug)]
pub(super) struct LineReader<R> {
    io: R,
    buffer: BytesMut,
    /// So many bytes of the buffer are known to have no line end.
    searched: usize,
    max_frame: usize,
    /// What a line may take up before it is whole; none if only its length is bounded.
    memory: Option<Box<FrameMemory>>,
    /// The rest of the current line is not wanted.
    skips: bool,
    at_end: bool,
    /// Bytes that nobody got.
    forgotten: u64,
    /// Bytes that came.
    read: u64,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(super) fn new(io: R, max_frame_bytes: u64) -> Self {
        let mut reader = Self {
            io,
            buffer: BytesMut::new(),
            searched: 0,
            max_frame: 0,
            memory: None,
            skips: false,
            at_end: false,
            forgotten: 0,
            read: 0,
        };
        reader.set_max_frame(max_frame_bytes);
        reader
    }

    /// Sets the length of the longest frame.
    pub(super) fn set_max_frame(&mut self, bytes: u64) {
        self.max_frame = usize::try_from(bytes).unwrap_or(usize::MAX).min(usize::MAX - LINE_END);
    }

    /// Says who pays for lines from now on, the one under way among them.
    pub(super) fn set_account(&mut self, account: Option<Account>) {
        let most = len64(self.max_frame + LINE_END);
        self.memory = account.map(|account| Box::new(FrameMemory::new(account, most)));
    }

    /// Whether nothing is read because there is no memory for it.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_waiting())
    }

    /// Says what the next line is to messages that are under way.
    pub(super) fn set_next_frame(&mut self, next: NextFrame) {
        if let Some(memory) = &mut self.memory {
            memory.set_next_frame(next);
        }
    }

    /// The next line that is not blank, without its end; `None` at the end of input.
    pub(super) fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkError>> {
        self.release_last();
        loop {
            while let Some(line) = self.take_line() {
                if let Some(frame) = self.frame(line)? {
                    return Poll::Ready(Ok(Some(frame)));
                }
            }
            if self.buffer.len() > self.max_frame + 1 {
                let error = self.too_large(self.buffer.len());
                self.forget();
                return Poll::Ready(Err(error));
            }
            if self.at_end {
                return Poll::Ready(self.last_line());
            }
            ready!(self.poll_fill(cx))?;
        }
    }

    /// Resolves when the budget evicts the line that is arriving, or the last one.
    pub(super) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        self.memory.as_mut().map_or(Poll::Pending, |memory| memory.poll_evicted(cx))
    }

    /// Gives back the memory of the line that came last.
    pub(super) fn release_last(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.release_last();
        }
    }

    /// Hands over the memory of the line that came last.
    pub(super) fn take_last(&mut self) -> Option<Grant> {
        self.memory.as_mut()?.take_last()
    }

    /// Whether a line has begun and not ended that looks like a message: a prompt, or a progress bar, may never end.
    pub(super) fn is_amid_message(&self) -> bool {
        !self.at_end && !self.skips && self.buffer.first() == Some(&b'{')
    }

    /// Bytes that were read so far.
    pub(super) const fn read(&self) -> u64 {
        self.read
    }

    /// Nothing more will be read.
    pub(super) const fn end(&mut self) {
        self.at_end = true;
    }

    /// Drops what was read, and skips the rest of a line of which a part is dropped.
    pub(super) fn forget(&mut self) {
        if let Some(last) = self.buffer.last() {
            self.skips = *last != b'\n';
        }
        self.forgotten = self.forgotten.saturating_add(len64(self.buffer.len()));
        self.clear();
    }

    /// Bytes that were dropped since this was asked last.
    pub(super) const fn take_forgotten(&mut self) -> u64 {
        std::mem::replace(&mut self.forgotten, 0)
    }

    /// Reads and drops. Ready at the end of input, or when reading fails.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.at_end {
            self.forget();
            if ready!(self.poll_fill(cx)).is_err() {
                break;
            }
        }
        Poll::Ready(())
    }

    /// Takes a whole line off the buffer; the end of one that is skipped goes with it.
    fn take_line(&mut self) -> Option<Bytes> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', unsearched) else {
                self.searched = self.buffer.len();
                if self.skips {
                    self.clear();
                }
                return None;
            };
            let end = self.searched + at;
            self.searched = 0;
            if !std::mem::take(&mut self.skips) {
                let line = self.split(end);
                self.buffer.advance(1);
                return Some(line);
            }
            self.buffer.advance(end + 1);
        }
    }

    /// A line as a frame, if it is not blank.
    fn frame(&self, mut line: Bytes) -> Result<Option<Bytes>, LinkError> {
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.max_frame {
            return Err(self.too_large(line.len()));
        }
        Ok(Some(line).filter(|line| !line.iter().all(u8::is_ascii_whitespace)))
    }

    /// What is left when nothing follows.
    fn last_line(&mut self) -> Result<Option<Bytes>, LinkError> {
        self.searched = 0;
        let line = self.split(self.buffer.len());
        if self.skips { Ok(None) } else { self.frame(line) }
    }

    /// Takes bytes off the front: copied if they are few, and with a block of their own if they are many.
    fn split(&mut self, len: usize) -> Bytes {
        if len <= SMALL_FRAME {
            let line = Bytes::copy_from_slice(self.buffer.get(..len).unwrap_or_default());
            self.buffer.advance(len);
            return line;
        }
        if let Some(memory) = &mut self.memory {
            memory.finish();
            memory.stop_waiting();
        }
        let line = self.buffer.split_to(len).freeze();
        if len >= LONG_FRAME {
            // Small lines are not to be read into the tail of a block that was made for a large one.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        line
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.searched = 0;
        if let Some(memory) = &mut self.memory {
            memory.finish();
            memory.stop_waiting();
            memory.release_last();
        }
    }

    /// Reads once, when there is room for it. At the end of input, says so to the next who looks.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let len = self.buffer.len();
        let has_space = self.buffer.capacity() - len >= LEAST_READ;
        // As a line grows, so does what is read of it at once.
        let size = if has_space { len } else { len.saturating_mul(2).min(self.max_frame + LINE_END).max(READ) };
        if let Some(memory) = &mut self.memory {
            ready!(poll_grow(memory, len64(size), cx))?;
        }
        self.buffer.reserve(size - len);
        let read = ready!(pin!(self.io.read_buf(&mut self.buffer)).poll(cx))?;
        self.read = self.read.saturating_add(len64(read));
        self.at_end = read == 0;
        if let Some(memory) = &self.memory {
            memory.note_progress(len64(self.buffer.len()));
        }
        Poll::Ready(Ok(()))
    }

    fn too_large(&self, len: usize) -> LinkError {
        LinkError::FrameTooLarge(Over { size: len64(len), limit: len64(self.max_frame) })
    }
}

/// Ready when a line may take up `bytes`. Nobody knows how long it will be, so it reserves memory in two steps: as much as most
/// long lines need, and as much as the longest.
fn poll_grow(memory: &mut FrameMemory, bytes: u64, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
    if !memory.is_reserved() && bytes <= FREE_FRAME {
        return Poll::Ready(Ok(()));
    }
    let longest = memory.max_frame_bytes();
    let first = USUAL_LINE.min(longest);
    memory.poll_grow(if bytes <= first { first } else { longest }, longest, cx)
}
