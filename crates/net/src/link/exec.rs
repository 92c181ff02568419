//! A child process: its standard input and output are the link, one frame a line.

mod child;
mod config;
mod exit;
mod log;
mod process;

use std::fs::File;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use futures_sink::Sink;
use rustix::io::ioctl_fionread;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};
use tracing::warn;

use breakbulk_proto::{Capacity, Transmit};

use self::process::Process;
use super::lines::{Lines, PipeWriter};
use super::{Acked, Arrival, Link, LinkError, LinkStatus, Moved, ReceiveMemory};

pub use self::child::{Child, Lease};
pub use self::config::{ExecConfig, ExecError};
pub use self::exit::Exit;
pub use self::process::kill_children;

/// How long we go on reading after the child has exited. What it wrote is in the pipe, but a process that it left behind may
/// keep the pipe open for ever.
const LINGER: Duration = Duration::from_millis(250);

/// The ends of the pipes to a child.
type Pipes = Lines<pipe::Receiver, PipeWriter>;

/// A link to a child process.
///
/// When the child exits, the link ends after everything that it wrote was read ([`Arrival::Exited`]): with code 1000 if its
/// status was 0, else with 1011, and a text that says how it ended. When the link is closed or dropped, the child's input is closed; if it
/// does not exit by itself then, its whole process group is ended. Closing waits for that, dropping does not: a program
/// that is about to end should close.
pub struct Exec {
    /// `None` only while the link is dropped.
    pipes: Option<Pipes>,
    process: Arc<Process>,
    /// Where the pipes go when this link is dropped, if the child outlives it.
    return_to: Option<oneshot::Sender<Pipes>>,
    /// Says whether the child has finished what was begun on this link.
    lease: Lease,
    /// Whether the child has exited, or reads or writes no more, so that no later link can use it.
    is_unusable: bool,
    exited: Pin<Box<dyn Future<Output = Exit> + Send>>,
    /// Resolves when no process of the group is left; `None` after that.
    gone: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    exit: Option<Exit>,
    output: ChildOutput,
    /// The child has exited or ended its output. Runs until the other of the two is no longer waited for.
    patience: Option<Pin<Box<Sleep>>>,
    /// Why the child's input failed. Reported when the timer is up, unless the child exits before and says more by that.
    broken: Option<(LinkError, Pin<Box<Sleep>>)>,
    is_closing: bool,
    /// The reading end of the child's input, once that has ended: it shows how much the child has yet to read.
    unread: Option<File>,
}

/// How far the output of a child was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChildOutput {
    Open,
    /// All of it was read. How the child exited is still waited for.
    Ended,
    /// The end of the link was handed out.
    Reported,
}

impl Exec {
    /// Starts a command, for this link alone.
    ///
    /// # Errors
    /// It cannot be started.
    ///
    /// # Panics
    /// Outside of a tokio runtime with IO and time.
    pub fn spawn(config: &ExecConfig) -> Result<Self, ExecError> {
        let (process, pipes) = process::spawn(config)?;
        Ok(Self::new(pipes, process, None))
    }

    fn new(pipes: Pipes, process: Arc<Process>, return_to: Option<oneshot::Sender<Pipes>>) -> Self {
        Self {
            exited: Box::pin(process.exited()),
            gone: Some(Box::pin(process.gone())),
            pipes: Some(pipes),
            process,
            return_to,
            lease: Lease::default(),
            is_unusable: false,
            exit: None,
            output: ChildOutput::Open,
            patience: None,
            broken: None,
            is_closing: false,
            unread: None,
        }
    }

    /// The lease by which it is decided, when the link is dropped, whether the next link gets the same child.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Begins the grace period, in which the child can read the rest of its input and exit by itself.
    fn begin_to_close(&mut self) {
        self.is_closing = true;
        if self.return_to.is_none() {
            self.process.end();
        }
    }

    /// The pipes, while the link is in use.
    fn pipes(&mut self) -> Result<Pin<&mut Pipes>, LinkError> {
        self.pipes.as_mut().map(Pin::new).ok_or(LinkError::Closed)
    }

    /// What the pipes bring, or the end of the child.
    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Result<Arrival, LinkError>> {
        loop {
            if self.exit.is_none()
                && let Poll::Ready(exit) = self.exited.as_mut().poll(cx)
            {
                self.exit = Some(exit);
                self.is_unusable = true;
                self.patience.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            }
            if self.output == ChildOutput::Open {
                match self.pipes()?.poll_next(cx) {
                    Poll::Ready(Some(Ok(Arrival::Ended)) | None) => {
                        self.output = ChildOutput::Ended;
                        self.is_unusable = true;
                        let grace = self.process.grace;
                        self.patience.get_or_insert_with(|| Box::pin(sleep(grace)));
                    }
                    Poll::Ready(Some(arrival)) => return Poll::Ready(arrival),
                    Poll::Pending => {}
                }
            }
            if let (ChildOutput::Ended, Some(exit)) = (self.output, self.exit) {
                return Poll::Ready(Ok(exit.arrival(&self.process.name)));
            }
            // A line that waits for memory is not given up: that is not the fault of the child.
            let waits = self.pipes.as_ref().is_some_and(|pipes| pipes.status().waits_for_memory);
            let Some(patience) = self.patience.as_mut().filter(|_| !waits) else {
                return Poll::Pending;
            };
            ready!(patience.as_mut().poll(cx));
            if self.output == ChildOutput::Ended {
                let text = format!("{} closed its output", self.process.name);
                return Poll::Ready(Ok(Arrival::Exited { code: 1000, text }));
            }
            self.pipes()?.end_input();
        }
    }

    /// Reports a failure of the child's input, but not at once: a child that no longer reads has probably exited, and how it exited
    /// tells more than a broken pipe.
    fn poll_broken(
        &mut self,
        cx: &mut Context<'_>,
        mut sink: impl FnMut(Pin<&mut Pipes>, &mut Context<'_>) -> Poll<Result<(), LinkError>>,
    ) -> Poll<Result<(), LinkError>> {
        if self.broken.is_none() {
            let done = ready!(sink(self.pipes()?, cx));
            self.is_unusable |= done.is_err();
            match done {
                Err(error) if !self.is_closing && is_broken(&error) => {
                    self.broken = Some((error, Box::pin(sleep(self.process.grace))));
                }
                done => return Poll::Ready(done),
            }
        }
        if let Some((_, patience)) = &mut self.broken
            && self.output != ChildOutput::Reported
            && !self.is_closing
        {
            ready!(patience.as_mut().poll(cx));
        }
        Poll::Ready(Err(self.broken.take().map_or(LinkError::Closed, |(error, _)| error)))
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        let (Some(return_to), Some(mut pipes)) = (self.return_to.take(), self.pipes.take()) else {
            return;
        };
        if self.is_unusable || self.process.exit().is_some() {
            return;
        }
        if self.lease.is_busy() {
            // The task that waits for the pipes ends the child now.
            let command = &*self.process.name;
            return warn!(target: "breakbulk::exec", command, "ended: it owes answers to a connection that is over");
        }
        pipes.leave();
        // If nobody waits for the pipes any more, they are closed.
        let _ = return_to.send(pipes);
    }
}

impl Link for Exec {
    fn capacity(&self) -> Capacity {
        self.pipes.as_ref().map_or_else(|| Capacity::of(0), Link::capacity)
    }

    /// What the child writes to its standard error counts as moved, too. Outward counts only what the child has read.
    fn status(&self) -> LinkStatus {
        let status = self.pipes.as_ref().map(Link::status).unwrap_or_default();
        let unread = self.unread.as_ref().and_then(|pipe| ioctl_fionread(pipe).ok()).unwrap_or(0);
        let moved = Moved {
            inward: status.moved.inward.saturating_add(self.process.logged()),
            outward: status.moved.outward.saturating_sub(unread),
        };
        LinkStatus { moved, ..status }
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.pipes.as_mut()?.receive_memory()
    }

    fn poll_acked(&mut self, _: &mut Context<'_>) -> Poll<Acked> {
        Poll::Pending
    }

    /// Not for a child that has more links to come.
    fn end_output(&mut self) -> bool {
        let Some(pipes) = self.pipes.as_mut().filter(|_| self.return_to.is_none()) else { return false };
        if self.unread.is_none() {
            self.unread = pipes.writer().reading_end();
        }
        pipes.end_output()
    }
}

impl Stream for Exec {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.output == ChildOutput::Reported {
            return Poll::Ready(None);
        }
        let arrival = ready!(self.poll_arrival(cx));
        if !matches!(arrival, Ok(Arrival::Frame { .. } | Arrival::Acked { .. })) {
            self.output = ChildOutput::Reported;
        }
        Poll::Ready(Some(arrival))
    }
}

impl Sink<Transmit> for Exec {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.poll_broken(cx, |pipes, cx| pipes.poll_ready(cx))
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        match item {
            Transmit::Close(_) => {
                self.begin_to_close();
                Ok(())
            }
            _ if self.is_closing => Err(LinkError::Closed),
            frame => self.pipes()?.start_send(frame),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.poll_broken(cx, |pipes, cx| pipes.poll_flush(cx))
    }

    /// Ready when the child is gone, or, if it outlives the link, when everything was written.
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.begin_to_close();
        if self.return_to.is_some() {
            return self.poll_broken(cx, |pipes, cx| pipes.poll_flush(cx));
        }
        // Whether or not its input can be closed well, the child goes. It may have to write before it can.
        let _ = self.pipes()?.poll_close(cx);
        let _ = self.pipes()?.poll_idle(cx);
        if let Some(gone) = &mut self.gone {
            ready!(gone.as_mut().poll(cx));
            self.gone = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for Exec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exec").field("command", &self.process.name).field("exit", &self.exit).finish_non_exhaustive()
    }
}

fn is_broken(error: &LinkError) -> bool {
    matches!(error, LinkError::Closed)
        || matches!(error, LinkError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
}
