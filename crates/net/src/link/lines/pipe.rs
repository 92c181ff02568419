//! The writing end of a pipe, which a shutdown closes.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;

/// The writing end of a pipe. That of tokio stays open at a shutdown, so that the reader would never see an end.
#[derive(Debug)]
pub(in crate::link) struct PipeWriter(Option<pipe::Sender>);

impl PipeWriter {
    pub(in crate::link) fn new(pipe: impl Into<OwnedFd>) -> io::Result<Self> {
        Ok(Self(Some(pipe::Sender::from_owned_fd(pipe.into())?)))
    }

    /// The reading end of the same pipe. It shows how many bytes were not read yet, even after the writer is closed. Only some systems
    /// allow to open it.
    pub(in crate::link) fn reading_end(&self) -> Option<File> {
        File::open(format!("/proc/self/fd/{}", self.0.as_ref()?.as_raw_fd())).ok()
    }

    fn pipe(&mut self) -> io::Result<Pin<&mut pipe::Sender>> {
        self.0.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl AsyncWrite for PipeWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.pipe()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.pipe()?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}
