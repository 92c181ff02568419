//! Our own standard input and output: one frame a line.

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

/// What is carried at once. A pipe holds this much.
const READ: usize = 64 << 10;

/// Two links on one input would tear its lines apart.
static STDIO_IN_USE: AtomicBool = AtomicBool::new(false);

/// Takes standard input and output as a link, once in the life of the process. Nothing else may read or print there.
///
/// Whatever they are (a pipe, a socket, a file, a terminal), and whoever shares them with us, they stay as they are: two
/// threads of our own carry bytes between them and pipes that the runtime can wait on. Neither thread keeps the process
/// alive, so a read that never returns ends with it. What was written is out when the link has been closed.
///
/// # Errors
/// They are taken already, or the system has no more files or threads.
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

/// Where what we write goes: by a pipe, through a thread. It is shut down when the thread has passed all of it on.
#[derive(Debug)]
pub struct Output {
    pipe: PipeWriter,
    /// Bytes that the thread has passed on.
    carried: Arc<AtomicU64>,
    /// How the thread ended; none when that was told.
    end: Option<oneshot::Receiver<io::Result<()>>>,
}

impl Output {
    fn new(output: OwnedFd) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let (told, end) = oneshot::channel();
        let carried = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&carried);
        let carry = move || {
            // Nobody may be left to hear it.
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
        // A reader that is gone wants nothing more, and an input that fails has ended.
        let _ = carry(input, writer.into(), &AtomicU64::new(0));
    };
    thread::Builder::new().name("stdin".to_owned()).spawn(carry)?;
    pipe::Receiver::from_owned_fd(reader.into())
}

/// Carries all bytes over, and counts them. Whoever shares a file with us may have made it non-blocking: then we wait for it.
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

/// Does something once the file is ready for it.
fn retry(file: &mut File, flags: PollFlags, mut work: impl FnMut(&mut File) -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match work(file) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // However that ends, the next try tells.
                let _ = poll(&mut [PollFd::new(file, flags)], None);
            }
            done => return done,
        }
    }
}
