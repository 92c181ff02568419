//! Writes WebSocket frames. Those of a client are masked a piece at a time, just before they are written.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use super::WebSocketRole;

/// A longer message is sent as one WebSocket message in several frames. The official AHP transport takes 16 MiB a frame, but 64 MiB a
/// message. A segment, which has to pass relays, is never that long.
const LONGEST_FRAME: usize = 15 << 20;
/// How much is masked at once: enough for one large write, and little enough to stay in the second-level cache until it is written.
const PIECE: usize = 256 << 10;
/// How many slices one write has at most. There are seldom more.
const SLICES: usize = 32;
/// Parts up to this length are copied together, into runs of up to `RUN` bytes. Otherwise each row of a list, and each comma between
/// them, would be a slice of its own.
const SHORT: usize = 4 << 10;
const RUN: usize = 64 << 10;

const FINAL: u8 = 0x80;
/// The kinds of messages.
pub(super) const TEXT: u8 = 1;
pub(super) const BINARY: u8 = 2;
const CONTINUATION: u8 = 0;
const MASKED: u8 = 0x80;

/// What has to be written, in order.
#[derive(Debug)]
pub(super) struct FrameWriter {
    role: WebSocketRole,
    queue: VecDeque<Part>,
    /// Short parts that come after the queue. A client has none, because it copies all parts when it masks them.
    run: Vec<u8>,
    /// Bytes in the queue and in the pieces.
    waiting: usize,
    pieces: Pieces,
}

/// Bytes of one frame, or of its header.
#[derive(Debug)]
struct Part {
    bytes: Bytes,
    /// The mask, as it applies from the first of these bytes on. Zeros change nothing.
    key: [u8; 4],
}

/// Masked bytes that are ready to be written, before the queue. Only a client has any. There are two pieces, so that no write is small
/// only because the first piece ends.
#[derive(Debug, Default)]
struct Pieces([Piece; 2]);

#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl FrameWriter {
    pub(super) fn new(role: WebSocketRole) -> Self {
        Self { role, queue: VecDeque::new(), run: Vec::new(), waiting: 0, pieces: Pieces::default() }
    }

    /// How many bytes wait.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Frees the memory for masking, if nothing waits. For a link that has been quiet for a while.
    pub(super) fn rest(&mut self) {
        if self.waiting == 0 {
            self.pieces = Pieces::default();
        }
    }

    /// Queues bytes that are written as they are.
    pub(super) fn push_raw(&mut self, bytes: Bytes) {
        self.push(bytes, [0; 4]);
        self.end_run();
    }

    /// Queues a message.
    ///
    /// # Errors
    /// The system gave no random bytes for a mask.
    pub(super) fn push_message(&mut self, kind: u8, mut parts: VecDeque<Bytes>) -> io::Result<()> {
        let mut left: usize = parts.iter().map(Bytes::len).sum();
        let mut opcode = kind;
        loop {
            let len = left.min(LONGEST_FRAME);
            left -= len;
            let key = self.header(opcode | if left == 0 { FINAL } else { 0 }, len)?;
            self.payload(&mut parts, len, key);
            if left == 0 {
                break;
            }
            opcode = CONTINUATION;
        }
        self.end_run();
        self.mask_ahead();
        Ok(())
    }

    /// Writes everything that waits. `note` is called with the outcome of each write.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
        mut note: impl FnMut(&Poll<io::Result<usize>>),
    ) -> Poll<io::Result<()>> {
        while self.waiting > 0 {
            self.mask_ahead();
            let mut slices = [IoSlice::new(&[]); SLICES];
            let parts = self.queue.iter().map(|part| &*part.bytes);
            let waiting =
                self.pieces.0.iter().map(Piece::rest).chain(parts.filter(|_| self.role == WebSocketRole::Server));
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(waiting.filter(|bytes| !bytes.is_empty())) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            let outcome = Pin::new(&mut *io).poll_write_vectored(cx, &slices[..count]);
            note(&outcome);
            match ready!(outcome)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                len => self.advance(len),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Queues a header for a payload of `len` bytes. Returns the mask of the payload.
    fn header(&mut self, head: u8, len: usize) -> io::Result<[u8; 4]> {
        let mask = if self.role == WebSocketRole::Client { MASKED } else { 0 };
        let mut header = Vec::with_capacity(14);
        header.push(head);
        match (u8::try_from(len), u16::try_from(len)) {
            (Ok(len @ 0..=125), _) => header.push(len | mask),
            (_, Ok(len)) => {
                header.push(126 | mask);
                header.extend_from_slice(&len.to_be_bytes());
            }
            _ => {
                header.push(127 | mask);
                header.extend_from_slice(&u64::try_from(len).unwrap_or(u64::MAX).to_be_bytes());
            }
        }
        let mut key = [0; 4];
        if self.role == WebSocketRole::Client {
            getrandom::fill(&mut key).map_err(io::Error::other)?;
            header.extend_from_slice(&key);
        }
        self.push(header.into(), [0; 4]);
        Ok(key)
    }

    /// Queues the next `len` bytes of `parts`.
    fn payload(&mut self, parts: &mut VecDeque<Bytes>, mut len: usize, mut key: [u8; 4]) {
        while len > 0
            && let Some(part) = parts.front_mut()
        {
            let bytes = part.split_to(len.min(part.len()));
            if part.is_empty() {
                parts.pop_front();
            }
            len -= bytes.len();
            let next = turned(key, bytes.len());
            self.push(bytes, key);
            key = next;
        }
    }

    fn push(&mut self, bytes: Bytes, key: [u8; 4]) {
        self.waiting += bytes.len();
        if self.role == WebSocketRole::Server && bytes.len() <= SHORT {
            self.run.extend_from_slice(&bytes);
            if self.run.len() >= RUN {
                self.end_run();
            }
        } else if !bytes.is_empty() {
            self.end_run();
            self.queue.push_back(Part { bytes, key });
        }
    }

    /// Moves the run of short parts into the queue, as one part.
    fn end_run(&mut self) {
        if !self.run.is_empty() {
            self.queue.push_back(Part { bytes: std::mem::take(&mut self.run).into(), key: [0; 4] });
        }
    }

    /// Masks what a client has to send, until the pieces are full.
    fn mask_ahead(&mut self) {
        while self.role == WebSocketRole::Client
            && let Some(part) = self.queue.front_mut()
            && let Some(piece) = self.pieces.filling()
        {
            piece.take(part);
            if part.bytes.is_empty() {
                self.queue.pop_front();
            }
        }
    }

    /// Removes bytes that were written.
    fn advance(&mut self, mut len: usize) {
        self.waiting -= len;
        len -= self.pieces.advance(len);
        while let Some(part) = self.queue.front_mut()
            && len > 0
        {
            let taken = len.min(part.bytes.len());
            part.bytes.advance(taken);
            len -= taken;
            if part.bytes.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

impl Pieces {
    /// The piece that is not full yet.
    fn filling(&mut self) -> Option<&mut Piece> {
        let [first, second] = &mut self.0;
        let is_first = first.to < PIECE && second.rest().is_empty();
        Some(if is_first { first } else { second }).filter(|piece| piece.to < PIECE)
    }

    /// Removes up to `len` bytes. Returns how many.
    fn advance(&mut self, len: usize) -> usize {
        let [first, second] = &mut self.0;
        let taken = first.advance(len);
        let all = taken + second.advance(len - taken);
        if first.rest().is_empty() {
            self.0.swap(0, 1);
        }
        all
    }
}

impl Piece {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// Masks bytes of `part` into this piece, until it is full.
    fn take(&mut self, part: &mut Part) {
        let len = part.bytes.len().min(PIECE - self.to);
        let end = self.to + len;
        if self.bytes.len() < end {
            self.bytes.resize(end.next_power_of_two(), 0);
        }
        mask(&mut self.bytes[self.to..end], &part.bytes[..len], part.key);
        (self.to, part.key) = (end, turned(part.key, len));
        part.bytes.advance(len);
    }

    fn advance(&mut self, len: usize) -> usize {
        let len = len.min(self.rest().len());
        self.from += len;
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        len
    }
}

/// Writes the masked bytes of `from` to `to`, which is as long. A word at a time: the compiler makes vector operations of this loop in
/// every profile.
fn mask(to: &mut [u8], from: &[u8], key: [u8; 4]) {
    let word = u32::from_ne_bytes(key);
    let (to, to_end) = to.as_chunks_mut();
    let (from, from_end) = from.as_chunks();
    for (to, from) in to.iter_mut().zip(from) {
        *to = (u32::from_ne_bytes(*from) ^ word).to_ne_bytes();
    }
    for ((to, from), key) in to_end.iter_mut().zip(from_end).zip(key) {
        *to = from ^ key;
    }
}

/// The mask as it applies `len` bytes later.
const fn turned(mut key: [u8; 4], len: usize) -> [u8; 4] {
    key.rotate_left(len % 4);
    key
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Takes so many bytes at a time, and nothing every other time.
    struct Sips {
        taken: Vec<u8>,
        most: usize,
        is_full: bool,
    }

    impl AsyncWrite for Sips {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.is_full = !self.is_full;
            if self.is_full {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let len = bytes.len().min(self.most);
            self.taken.extend_from_slice(&bytes[..len]);
            Poll::Ready(Ok(len))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// What is on the wire when all is written, `most` bytes at a time.
    async fn written(writer: &mut FrameWriter, most: usize) -> Vec<u8> {
        let mut io = Sips { taken: Vec::new(), most, is_full: false };
        poll_fn(|cx| writer.poll_write(&mut io, cx, |_| {})).await.unwrap();
        assert_eq!(writer.waiting(), 0);
        io.taken
    }

    /// The frames on a wire: the first byte of each, and its payload.
    fn frames(role: WebSocketRole, mut wire: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut frames = Vec::new();
        while !wire.is_empty() {
            let (head, len) = (wire.get_u8(), wire.get_u8());
            assert_eq!(len & MASKED != 0, role == WebSocketRole::Client);
            let len = match len & !MASKED {
                126 => wire.get_u16().into(),
                127 => wire.get_u64() as usize,
                len => len.into(),
            };
            let key: Vec<u8> =
                if role == WebSocketRole::Client { wire.get_u32().to_be_bytes().into() } else { vec![0; 4] };
            let payload = wire[..len].iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
            wire.advance(len);
            frames.push((head, payload));
        }
        frames
    }

    fn text(len: usize) -> Bytes {
        (0..len).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
    }

    /// The text in pieces of so many bytes.
    fn cut(text: &Bytes, size: usize) -> VecDeque<Bytes> {
        (0..text.len()).step_by(size).map(|at| text.slice(at..(at + size).min(text.len()))).collect()
    }

    #[tokio::test]
    async fn a_message_is_one_frame_however_it_is_cut_and_however_little_is_taken_at_once() {
        for role in [WebSocketRole::Client, WebSocketRole::Server] {
            for len in [0, 1, 125, 126, 65_535, 65_536, 3 * PIECE + 7] {
                for (size, most) in [(usize::MAX / 2, usize::MAX), (1 + len / 3, 70_001), (5001, 9973)] {
                    let (mut writer, text) = (FrameWriter::new(role), text(len));
                    writer.push_message(TEXT, cut(&text, size)).unwrap();
                    let wire = written(&mut writer, most).await;
                    assert_eq!(frames(role, &wire), [(FINAL | TEXT, text.to_vec())], "{len} by {size} and {most}");
                }
            }
        }
    }

    #[tokio::test]
    async fn frames_and_what_the_stack_says_leave_in_order_and_whole() {
        for role in [WebSocketRole::Client, WebSocketRole::Server] {
            let (mut writer, mut lone) = (FrameWriter::new(role), FrameWriter::new(role));
            let mut want = Vec::new();
            for len in [10, 2 * PIECE, 0, 300_000, 126] {
                lone.push_message(TEXT, cut(&text(3), 9)).unwrap();
                let raw = written(&mut lone, usize::MAX).await;
                writer.push_raw(raw.into());
                writer.push_message(TEXT, cut(&text(len), 65_000)).unwrap();
                want.extend([(FINAL | TEXT, text(3).to_vec()), (FINAL | TEXT, text(len).to_vec())]);
            }
            let wire = written(&mut writer, 100_003).await;
            assert!(frames(role, &wire) == want);
        }
    }

    #[tokio::test]
    async fn what_is_longer_than_the_longest_frame_is_one_message_in_many() {
        let (mut writer, text) = (FrameWriter::new(WebSocketRole::Client), text(2 * LONGEST_FRAME + 5));
        writer.push_message(TEXT, cut(&text, 1 << 20)).unwrap();
        let frames = frames(WebSocketRole::Client, &written(&mut writer, usize::MAX).await);
        let heads: Vec<_> = frames.iter().map(|(head, payload)| (*head, payload.len())).collect();
        assert_eq!(heads, [(TEXT, LONGEST_FRAME), (CONTINUATION, LONGEST_FRAME), (FINAL | CONTINUATION, 5)]);
        assert!(frames.into_iter().flat_map(|(_, payload)| payload).eq(text));
    }

    #[tokio::test]
    async fn a_server_writes_short_parts_together_and_long_ones_as_they_lie() {
        let (mut writer, short, long) = (FrameWriter::new(WebSocketRole::Server), text(100_000), text(SHORT + 1));
        let parts: VecDeque<Bytes> = cut(&short, 7).into_iter().chain([long.clone()]).chain(cut(&short, 7)).collect();
        writer.push_message(TEXT, parts).unwrap();
        assert!(writer.queue.len() <= 5, "{} parts", writer.queue.len());
        assert!(writer.queue.iter().any(|part| part.bytes.as_ptr() == long.as_ptr()), "it was not copied");
        let wire = written(&mut writer, 10_000).await;
        assert_eq!(frames(WebSocketRole::Server, &wire), [(FINAL | TEXT, [&short[..], &long, &short].concat())]);
    }

    #[tokio::test]
    async fn memory_is_let_go_of_only_when_nothing_waits() {
        let (mut writer, text) = (FrameWriter::new(WebSocketRole::Client), text(PIECE));
        let held = |writer: &FrameWriter| writer.pieces.0.iter().map(|piece| piece.bytes.capacity()).sum::<usize>();
        writer.push_message(TEXT, cut(&text, PIECE)).unwrap();
        writer.rest();
        let wire = written(&mut writer, 10_000).await;
        assert_eq!(frames(WebSocketRole::Client, &wire), [(FINAL | TEXT, text.to_vec())]);
        assert!(held(&writer) >= PIECE);
        writer.rest();
        assert_eq!(held(&writer), 0);
    }

    #[tokio::test]
    async fn each_frame_of_a_client_has_a_mask_of_its_own() {
        let mut writer = FrameWriter::new(WebSocketRole::Client);
        (0..20).for_each(|_| writer.push_message(TEXT, cut(&text(4), 9)).unwrap());
        let wire = written(&mut writer, usize::MAX).await;
        let keys: std::collections::HashSet<_> = wire.chunks(10).map(|frame| frame[2..6].to_vec()).collect();
        assert!(keys.len() > 15, "{} masks", keys.len());
    }
}
