//! A link over our own standard input and output, on which each line is a frame.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use breakbulk_proto::Capacity;

use super::lines::{Lines, PipeWriter};

/// A link over standard input and output.
pub type Stdio = Lines<pipe::Receiver, Output>;

/// How much is copied at once: as much as a pipe holds.
const READ: usize = 64 << 10;

/// Whether there is such a link already. Two would each get a part of the input.
static STDIO_IN_USE: AtomicBool = AtomicBool::new(false);

/// Takes standard input and output as a link, once in the life of the process. Nothing else may read or print there.
///
/// They may be a pipe, a socket, a file or a terminal, and other processes may share them. Their mode is not changed: two threads carry
/// the bytes between them and pipes on which the runtime can wait. The threads do not keep the process alive. When the link has been
/// closed, everything is written.
///
/// # Errors
/// There is such a link already, or the system has no more files or threads.
///
/// # Panics
/// Outside of a tokio runtime with IO.
pub fn stdio(capacity: Capacity, max_frame_bytes: u64) -> io::Result<Stdio> {
    if STDIO_IN_USE.swap(true, Ordering::Relaxed) {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "standard input and output are in use already"));
    }
    let input = input(io::stdin().as_fd().try_clone_to_owned()?)?;
    let output = Output::new(io::stdout().as_fd().try_clone_to_owned()?)?;
    let carried = Arc::clone(&output.carried);
    Ok(Lines::new(input, output, capacity, max_frame_bytes).carried(carried))
}

/// Our standard output, by way of a pipe and a thread. It is shut down when the thread has written everything.
#[derive(Debug)]
pub struct Output {
    pipe: PipeWriter,
    /// How many bytes the thread has written.
    carried: Arc<AtomicU64>,
    /// How the thread ended; `None` after that was returned.
    end: Option<oneshot::Receiver<io::Result<()>>>,
}

impl Output {
    fn new(output: OwnedFd) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let (told, end) = oneshot::channel();
        let carried = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&carried);
        let carry = move || {
            // The receiver may have been dropped.
            let _ = told.send(carry(reader.into(), output, &count));
        };
        thread::Builder::new().name("stdout".to_owned()).spawn(carry)?;
        Ok(Self { pipe: PipeWriter::new(writer)?, carried, end: Some(end) })
    }
}

impl AsyncWrite for Output {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.pipe).poll_shutdown(cx))?;
        let Some(end) = &mut self.end else {
            return Poll::Ready(Ok(()));
        };
        let told = ready!(Pin::new(end).poll(cx));
        self.end = None;
        Poll::Ready(told.unwrap_or(Ok(())))
    }
}

fn input(input: OwnedFd) -> io::Result<pipe::Receiver> {
    let (reader, writer) = io::pipe()?;
    let carry = move || {
        // If the reader is gone, nothing more is needed; if the input fails, it has ended.
        let _ = carry(input, writer.into(), &AtomicU64::new(0));
    };
    thread::Builder::new().name("stdin".to_owned()).spawn(carry)?;
    pipe::Receiver::from_owned_fd(reader.into())
}

/// Copies all bytes, and counts them. If another process has made a file non-blocking, waits until it is ready.
fn carry(from: OwnedFd, to: OwnedFd, carried: &AtomicU64) -> io::Result<()> {
    let (mut from, mut to) = (File::from(from), File::from(to));
    let mut buffer = vec![0; READ];
    loop {
        let read = retry(&mut from, PollFlags::IN, |from| from.read(&mut buffer))?;
        let mut rest = buffer.get(..read).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        while !rest.is_empty() {
            let written = retry(&mut to, PollFlags::OUT, |to| to.write(rest))?;
            rest = rest.get(written..).unwrap_or_default();
            carried.fetch_add(u64::try_from(written).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }
}

/// Tries until the file is ready.
fn retry(file: &mut File, flags: PollFlags, mut work: impl FnMut(&mut File) -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match work(file) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // An error shows at the next try.
                let _ = poll(&mut [PollFd::new(file, flags)], None);
            }
            done => return done,
        }
    }
}
