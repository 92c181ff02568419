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
use super::{Arrival, Link, LinkError, LinkStatus, Moved, ReceiveMemory};

pub use self::child::{Child, Lease};
pub use self::config::{ExecConfig, ExecError};
pub use self::exit::Exit;
pub use self::process::kill_children;

/// How long we go on reading after the child has exited: what it wrote is in the pipe, but a process that it left behind
/// may hold that open for ever.
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
    /// None only while it is dropped.
    pipes: Option<Pipes>,
    process: Arc<Process>,
    /// Where the pipes go when this link is done, if the child outlives it.
    return_to: Option<oneshot::Sender<Pipes>>,
    /// Says whether the child has finished what was begun on this link.
    lease: Lease,
    /// The child has exited, or reads or writes no more: nobody can use it after us.
    is_spent: bool,
    exited: Pin<Box<dyn Future<Output = Exit> + Send>>,
    /// Done when nothing is left of it; none when that is known.
    gone: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    exit: Option<Exit>,
    output_ended: bool,
    /// Runs from the first of the two above, for the other.
    patience: Option<Pin<Box<Sleep>>>,
    /// The child reads no more. It has a moment to say why.
    broken: Option<(LinkError, Pin<Box<Sleep>>)>,
    is_closing: bool,
    is_over: bool,
    /// Where it can be seen what the child has not read yet, once its input has ended.
    unread: Option<File>,
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
            is_spent: false,
            exit: None,
            output_ended: false,
            patience: None,
            broken: None,
            is_closing: false,
            is_over: false,
            unread: None,
        }
    }

    /// Says, when the link is dropped, whether the next one may have the child.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// From here on the child has its grace, in which to read what it was sent too.
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
                (self.exit, self.is_spent) = (Some(exit), true);
                self.patience.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            }
            if !self.output_ended {
                match self.pipes()?.poll_next(cx) {
                    Poll::Ready(Some(Ok(Arrival::Ended)) | None) => {
                        (self.output_ended, self.is_spent) = (true, true);
                        let grace = self.process.grace;
                        self.patience.get_or_insert_with(|| Box::pin(sleep(grace)));
                    }
                    Poll::Ready(Some(arrival)) => return Poll::Ready(arrival),
                    Poll::Pending => {}
                }
            }
            if let (true, Some(exit)) = (self.output_ended, self.exit) {
                return Poll::Ready(Ok(exit.arrival(&self.process.name)));
            }
            // What has no room yet is not given up: that is not up to the child.
            let waits = self.pipes.as_ref().is_some_and(|pipes| pipes.status().waits_for_memory);
            let Some(patience) = self.patience.as_mut().filter(|_| !waits) else {
                return Poll::Pending;
            };
            ready!(patience.as_mut().poll(cx));
            if self.output_ended {
                let text = format!("{} closed its output", self.process.name);
                return Poll::Ready(Ok(Arrival::Exited { code: 1000, text }));
            }
            self.pipes()?.end_input();
        }
    }

    /// A child that no longer reads has probably ended. How, is better news than that a pipe is broken: so the failure
    /// waits a moment for that to be read.
    fn poll_broken(
        &mut self,
        cx: &mut Context<'_>,
        mut sink: impl FnMut(Pin<&mut Pipes>, &mut Context<'_>) -> Poll<Result<(), LinkError>>,
    ) -> Poll<Result<(), LinkError>> {
        if self.broken.is_none() {
            let done = ready!(sink(self.pipes()?, cx));
            self.is_spent |= done.is_err();
            match done {
                Err(error) if !self.is_closing && is_broken(&error) => {
                    self.broken = Some((error, Box::pin(sleep(self.process.grace))));
                }
                done => return Poll::Ready(done),
            }
        }
        if let Some((_, patience)) = &mut self.broken
            && !self.is_over
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
        if self.is_spent || self.process.exit().is_some() {
            return;
        }
        if self.lease.is_busy() {
            // Whoever waits for the pipes ends it now.
            let command = &*self.process.name;
            return warn!(target: "breakbulk::exec", command, "ended: it owes answers to a connection that is over");
        }
        pipes.leave();
        // Nobody may be there any more; then the pipes close.
        let _ = return_to.send(pipes);
    }
}

impl Link for Exec {
    fn capacity(&self) -> Capacity {
        self.pipes.as_ref().map_or_else(|| Capacity::of(0), Link::capacity)
    }

    /// What the child says is also what it says in the log; what it has taken is what it has read.
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
        if self.is_over {
            return Poll::Ready(None);
        }
        let arrival = ready!(self.poll_arrival(cx));
        self.is_over = !matches!(arrival, Ok(Arrival::Frame { .. } | Arrival::Acked { .. }));
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
