//! Links of lines: what is a frame, what is refused, and how much is held.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod talk;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use breakbulk::link::{Lines, Link, unix};
use breakbulk::{Arrival, Dialect, LinkError};
use breakbulk_proto::{Capacity, CloseReason, Transmit};
use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::io::{
    AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf, duplex, empty, sink, split,
};

use talk::{LONG, MAX_FRAME, assert_arrived, exchange, frame, next, rest, send};

const LENS: [usize; 5] = [10, 1_000_000, 30_000_000, 0, 70_000];

type DuplexLines = Lines<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>;

/// Both ends of a link with a buffer of this size in between.
fn pair(buffer: usize) -> (DuplexLines, DuplexLines) {
    let lines = |stream| {
        let (reader, writer) = split(stream);
        Lines::new(reader, writer, Capacity::of(u64::MAX), MAX_FRAME)
    };
    let (left, right) = duplex(buffer);
    (lines(left), lines(right))
}

async fn both_ways<L: Link>(left: L, right: L, dialect: Dialect) {
    let both = async { tokio::join!(exchange(left, dialect, &LENS), exchange(right, dialect, &LENS)) };
    let (left, right) = tokio::time::timeout(LONG, both).await.unwrap();
    assert_arrived(&left, &LENS);
    assert_arrived(&right, &LENS);
}

/// Brings these pieces, one a read.
struct Pieces(VecDeque<Vec<u8>>);

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(piece) = self.0.pop_front() {
            buf.put_slice(&piece);
        }
        Poll::Ready(Ok(()))
    }
}

async fn frames(pieces: impl IntoIterator<Item = Vec<u8>>) -> Vec<String> {
    let mut lines = Lines::new(Pieces(pieces.into_iter().collect()), sink(), Capacity::of(100), 100);
    let (frames, code, _) = rest(&mut lines).await;
    assert_eq!(code, 1000);
    assert!(lines.next().await.is_none());
    frames
}

#[tokio::test]
async fn thirty_megabytes_pass_both_ways_on_single_lines() {
    let (left, right) = pair(64 << 10);
    both_ways(left, right, Dialect::Plain).await;
}

#[tokio::test]
async fn thirty_megabytes_pass_both_ways_in_chunks() {
    let (left, right) = pair(64 << 10);
    both_ways(left, right, Dialect::Stdio).await;
}

#[tokio::test]
async fn a_message_that_has_begun_is_amid_a_frame_and_a_prompt_is_not() {
    for (text, is_amid) in [("{\"id\":1,", true), ("{}\n{\"id\"", true), ("> ", false), ("{}\n", false), ("", false)] {
        let (mut peer, stream) = duplex(100);
        let (reader, writer) = split(stream);
        let mut lines = Lines::new(reader, writer, Capacity::of(100), 100);
        peer.write_all(text.as_bytes()).await.unwrap();
        while let Some(Some(_)) = lines.next().now_or_never() {}
        assert_eq!(lines.status().is_amid_frame, is_amid, "{text:?}");
    }
}

#[tokio::test]
async fn lines_are_the_same_wherever_they_are_cut() {
    let text = "{\"a\":1}\r\n\n \t\r\n\r\r\n{\"b\":\"\r\"}\nlast".as_bytes();
    let want = ["{\"a\":1}", "{\"b\":\"\r\"}", "last"];
    for at in 0..=text.len() {
        let (left, right) = text.split_at(at);
        assert_eq!(frames([left.to_vec(), right.to_vec()].into_iter().filter(|piece| !piece.is_empty())).await, want);
    }
    assert_eq!(frames(text.iter().map(|byte| vec![*byte])).await, want);
    assert_eq!(frames([]).await, [""; 0]);
    assert_eq!(frames([b"\n\n\r\n".to_vec()]).await, [""; 0]);
}

#[tokio::test]
async fn a_frame_of_exactly_the_limit_passes_and_a_longer_one_is_refused() {
    for (line, passes) in [(100, true), (101, false)] {
        for end in ["\n", "\r\n", ""] {
            let text = format!("{}{end}", "x".repeat(line));
            for pieces in [vec![text.clone().into_bytes()], text.bytes().map(|byte| vec![byte]).collect()] {
                let mut lines = Lines::new(Pieces(pieces.into()), sink(), Capacity::of(100), 100);
                match next(&mut lines).await {
                    Ok(Arrival::Frame { bytes, .. }) => assert!(passes && bytes.len() == 100, "{line} {end:?}"),
                    Err(LinkError::FrameTooLarge(over)) => assert!(!passes && over.limit == 100, "{line} {end:?}"),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// Brings one line that never ends, and counts it.
struct Endless(Arc<Mutex<u64>>);

impl AsyncRead for Endless {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let len = buf.remaining();
        buf.initialize_unfilled().fill(b'x');
        buf.advance(len);
        *self.0.lock().unwrap() += len as u64;
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_line_without_end_is_refused_before_much_of_it_is_read() {
    let read = Arc::new(Mutex::new(0));
    let mut lines = Lines::new(Endless(read.clone()), sink(), Capacity::of(100), 1_000_000);
    let error = next(&mut lines).await.unwrap_err();
    assert!(matches!(error, LinkError::FrameTooLarge(over) if over.limit == 1_000_000 && over.size > 1_000_000));
    assert!(*read.lock().unwrap() <= 3_000_000, "{} bytes were read", read.lock().unwrap());
    assert!(lines.next().await.is_none());
}

#[test]
fn the_line_end_counts_against_the_cap() {
    let lines = Lines::new(empty(), sink(), Capacity::of(65_536), 100);
    assert_eq!(lines.capacity().cap, 65_535);
}

#[tokio::test]
async fn a_frame_with_a_line_end_in_it_is_refused() {
    let mut lines = Lines::new(empty(), sink(), Capacity::of(100), 100);
    assert!(matches!(lines.send(frame("a\nb")).await, Err(LinkError::Protocol(_))));
}

#[tokio::test]
async fn no_more_is_taken_than_a_small_message_could_pass() {
    let (mut left, mut right) = pair(1);
    let piece = Bytes::from(vec![b'x'; 61_440]);
    let mut taken = 0;
    while futures_util::poll!(std::future::poll_fn(|cx| left.poll_ready_unpin(cx))).is_ready() {
        left.start_send_unpin(frame(piece.clone())).unwrap();
        taken += 1;
    }
    assert_eq!(taken, 2);
    let (flushed, _) = tokio::join!(left.flush(), async {
        for _ in 0..taken {
            assert!(matches!(next(&mut right).await, Ok(Arrival::Frame { bytes, .. }) if bytes == piece));
        }
    });
    flushed.unwrap();
}

/// Takes all, and remembers where it was and in how many writes.
#[derive(Clone, Default)]
struct RecordedWrites(Arc<Mutex<Vec<Write>>>);

/// The pieces of a write: where each was, and what.
type Write = Vec<(usize, Vec<u8>)>;

impl AsyncWrite for RecordedWrites {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(self: Pin<&mut Self>, _: &mut Context<'_>, s: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap().push(s.iter().map(|slice| (slice.as_ptr() as usize, slice.to_vec())).collect());
        Poll::Ready(Ok(s.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn large_frames_are_written_from_where_they_are_and_small_ones_together() {
    let taken = RecordedWrites::default();
    let mut lines = Lines::new(empty(), taken.clone(), Capacity::of(100), 100);
    let large = Bytes::from(vec![b'x'; 50_000]);
    for bytes in [Bytes::from_static(b"a"), large.clone(), Bytes::from_static(b"b"), Bytes::from_static(b"c")] {
        lines.feed(frame(bytes)).await.unwrap();
    }
    lines.flush().await.unwrap();
    let writes = taken.0.lock().unwrap();
    let [write] = &writes[..] else { panic!("{} writes", writes.len()) };
    assert_eq!(write[1].0, large.as_ptr() as usize);
    let bytes: Vec<u8> = write.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(bytes, [b"a\n", &large[..], b"\nb\nc\n"].concat());
}

#[tokio::test]
async fn a_close_flushes_and_ends_the_peers_input() {
    let (mut left, mut right) = pair(16);
    send(&mut left, "zeroth").await;
    left.feed(frame("first, and longer than the buffer")).await.unwrap();
    left.feed(frame("second")).await.unwrap();
    left.feed(Transmit::Close(CloseReason::Normal)).await.unwrap();
    let (flushed, (frames, code, _)) = tokio::join!(left.flush(), rest(&mut right));
    flushed.unwrap();
    assert_eq!((frames.join("|"), code), ("zeroth|first, and longer than the buffer|second".to_owned(), 1000));
    assert!(matches!(left.send(frame("third")).await, Err(LinkError::Closed)));
}

#[tokio::test]
async fn a_write_to_a_closed_pipe_is_an_error() {
    let (mut left, right) = pair(16);
    drop(right);
    assert!(matches!(left.send(frame("x")).await, Err(LinkError::Io(_))));
    assert!(matches!(left.send(frame("x")).await, Err(LinkError::Closed)));
}

#[tokio::test]
async fn thirty_megabytes_pass_both_ways_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    for dialect in [Dialect::Plain, Dialect::Stdio] {
        let listener = unix::UnixSocketListener::bind(&path).await.unwrap();
        let capacity = || Capacity::of(u64::MAX);
        let (left, right) =
            tokio::join!(unix::connect(&path, capacity(), MAX_FRAME), listener.accept(capacity(), MAX_FRAME));
        both_ways(left.unwrap(), right.unwrap(), dialect).await;
    }
}

#[tokio::test]
async fn a_socket_file_is_ours_alone_and_goes_with_its_listener() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listener = unix::UnixSocketListener::bind(&path).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(listener);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let stale = std::fs::metadata(&path).unwrap().ino();
    let listener = unix::UnixSocketListener::bind(&path).await.unwrap();
    assert_ne!(std::fs::metadata(&path).unwrap().ino(), stale);
    assert_eq!(unix::UnixSocketListener::bind(&path).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    // What is not ours any more stays.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "text").unwrap();
    drop(listener);
    assert_eq!(unix::UnixSocketListener::bind(&path).await.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
}

#[tokio::test]
async fn a_message_that_waits_for_a_slow_reader_is_not_lost_when_nobody_polls() {
    let (reader, mut writer) = duplex(1 << 20);
    let mut lines = Lines::new(reader, sink(), Capacity::of(100), 100);
    writer.write_all(b"one\ntw").await.unwrap();
    assert_eq!(talk::next_text(&mut lines).await, "one");
    // Polled once, and given up.
    assert!(futures_util::poll!(lines.next()).is_pending());
    writer.write_all(b"o\n").await.unwrap();
    assert_eq!(talk::next_text(&mut lines).await, "two");
}
