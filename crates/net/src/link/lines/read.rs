//! Reads lines. Each byte is searched once, and copied at most once, except when the buffer grows.

use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use breakbulk_proto::{Account, Grant, Over};

use crate::len64;
use crate::link::{LinkError, NextFrame};
use crate::memory::{FREE_FRAME, FrameMemory};

/// What a long line reserves first. Longer ones are rare, and reserve as much as the longest line.
const USUAL_LINE: u64 = 1 << 20;

/// The size of a read: as much as a pipe holds.
const READ: usize = 64 << 10;

/// From this length on, the rest of a frame's block is not used for other frames.
const LONG_FRAME: usize = 1 << 20;

/// The longest line end.
const LINE_END: usize = "\r\n".len();

/// If less space than this is left in a block, a new one is allocated: a smaller read is not worth a system call.
const LEAST_READ: usize = 16 << 10;

/// Frames up to this length are copied, so that a small frame does not keep alive a whole block.
const SMALL_FRAME: usize = 4 << 10;

/// The input side of a link of lines.
#[derive(Debug)]
pub(super) struct LineReader<R> {
    io: R,
    buffer: BytesMut,
    /// How many bytes of the buffer are known to contain no line end.
    searched: usize,
    max_frame: usize,
    /// The memory in which a long line arrives; `None` if it is not charged to an account.
    memory: Option<Box<FrameMemory>>,
    /// Whether the rest of the current line is discarded.
    skips: bool,
    at_end: bool,
    /// How many bytes were discarded.
    forgotten: u64,
    /// How many bytes were read.
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

    /// Sets the longest frame.
    pub(super) fn set_max_frame(&mut self, bytes: u64) {
        self.max_frame = usize::try_from(bytes).unwrap_or(usize::MAX).min(usize::MAX - LINE_END);
    }

    /// Sets the account to which lines are charged from now on, including the current one.
    pub(super) fn set_account(&mut self, account: Option<Account>) {
        let most = len64(self.max_frame + LINE_END);
        self.memory = account.map(|account| Box::new(FrameMemory::new(account, most)));
    }

    /// Whether the budget has no memory for more of the current line.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_waiting())
    }

    /// Sets what the next line is expected to be.
    pub(super) fn set_next_frame(&mut self, next: NextFrame) {
        if let Some(memory) = &mut self.memory {
            memory.set_next_frame(next);
        }
    }

    /// The next line that is not blank, without its end; `None` at the end of the input.
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

    /// Resolves when the budget evicts the line that is arriving, or the last one that arrived.
    pub(super) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        self.memory.as_mut().map_or(Poll::Pending, |memory| memory.poll_evicted(cx))
    }

    /// Gives back the memory of the last line.
    pub(super) fn release_last(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.release_last();
        }
    }

    /// Hands over the memory of the last line.
    pub(super) fn take_last(&mut self) -> Option<Grant> {
        self.memory.as_mut()?.take_last()
    }

    /// Whether a part of a line has arrived that looks like a message. Other lines do not count: a prompt or a progress bar may never
    /// end.
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

    /// Discards what was read, and the rest of the current line when it comes.
    pub(super) fn forget(&mut self) {
        if let Some(last) = self.buffer.last() {
            self.skips = *last != b'\n';
        }
        self.forgotten = self.forgotten.saturating_add(len64(self.buffer.len()));
        self.clear();
    }

    /// How many bytes were discarded since the last call.
    pub(super) const fn take_forgotten(&mut self) -> u64 {
        std::mem::replace(&mut self.forgotten, 0)
    }

    /// Reads and discards. Ready at the end of the input, or when reading fails.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.at_end {
            self.forget();
            if ready!(self.poll_fill(cx)).is_err() {
                break;
            }
        }
        Poll::Ready(())
    }

    /// Takes a whole line from the buffer. If the current line is discarded, takes the one after it.
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

    /// The rest of the input, as a last line.
    fn last_line(&mut self) -> Result<Option<Bytes>, LinkError> {
        self.searched = 0;
        let line = self.split(self.buffer.len());
        if self.skips { Ok(None) } else { self.frame(line) }
    }

    /// Takes bytes from the front of the buffer. A few are copied; many keep their block for themselves.
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
            // Small lines must not keep alive a block that was allocated for a large one.
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

    /// Reads once, when there is memory for it. At the end of the input, sets `at_end`.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let len = self.buffer.len();
        let has_space = self.buffer.capacity() - len >= LEAST_READ;
        // The longer a line gets, the more is read at once.
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

/// Ready when a line may take up `bytes`. Its length is not known, so memory is reserved in two steps: what most long lines need, and
/// what the longest line needs.
fn poll_grow(memory: &mut FrameMemory, bytes: u64, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
    if !memory.is_reserved() && bytes <= FREE_FRAME {
        return Poll::Ready(Ok(()));
    }
    let longest = memory.max_frame_bytes();
    let first = USUAL_LINE.min(longest);
    memory.poll_grow(if bytes <= first { first } else { longest }, longest, cx)
}
