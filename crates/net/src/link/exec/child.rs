//! A child process that outlives its links.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::process::{self, Process};
use super::{Exec, ExecConfig, ExecError, Exit, Pipes};

/// A child process from which links can be taken, one after the other. Dropping it ends the child, once its link is
/// dropped too.
///
/// Each link begins at a line of its own, both ways: what one has accepted is written whole before what the next sends, and
/// of what the child writes while nobody has a link, or had begun to write by then, nothing is kept. An answer that the
/// child gives later to what an earlier link asked does arrive: who shares a child must tell answers apart.
pub struct Child {
    process: Arc<Process>,
    takers: mpsc::Sender<oneshot::Sender<Exec>>,
}

impl Child {
    /// Starts a command.
    ///
    /// # Errors
    /// It cannot be started.
    ///
    /// # Panics
    /// Outside of a tokio runtime with IO and time.
    pub fn spawn(config: &ExecConfig) -> Result<Self, ExecError> {
        let (process, pipes) = process::spawn(config)?;
        let (takers, taken) = mpsc::channel(1);
        tokio::spawn(keep(pipes, Arc::clone(&process), taken));
        Ok(Self { process, takers })
    }

    /// A link to it, as soon as the one before is dropped. Cancel-safe.
    ///
    /// # Errors
    /// It has exited.
    pub async fn link(&self) -> Result<Exec, ExecError> {
        let (taker, link) = oneshot::channel();
        if self.exit().is_none()
            && self.takers.send(taker).await.is_ok()
            && let Ok(link) = link.await
        {
            return Ok(link);
        }
        let exit = self.exit().unwrap_or(Exit::Unknown);
        Err(ExecError::Exited { command: self.process.name.to_string(), exit })
    }

    /// How it exited, if it has.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.process.exit()
    }

    /// Closes its input and ends it; done when nothing is left of it. A link that is still there breaks.
    pub async fn end(self) {
        let Self { process, takers } = self;
        drop(takers);
        process.end();
        process.gone().await;
    }
}

impl std::fmt::Debug for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Child").field("command", &self.process.name).field("exit", &self.exit()).finish_non_exhaustive()
    }
}

/// Has the pipes while no link does, and keeps the child from waiting for a reader.
async fn keep(mut pipes: Pipes, process: Arc<Process>, mut takers: mpsc::Receiver<oneshot::Sender<Exec>>) {
    loop {
        let taker = poll_fn(|cx| {
            // What is written before somebody asks is for nobody.
            let _ = pipes.poll_idle(cx);
            takers.poll_recv(cx)
        });
        let Some(taker) = taker.await else {
            return;
        };
        let bytes = pipes.start_afresh();
        if bytes > 0 {
            let command = &*process.name;
            tracing::info!(target: "breakbulk::exec", command, bytes, "output between two connections was dropped");
        }
        let (home, back) = oneshot::channel();
        // A link that nobody waits for any more comes back at once.
        let _ = taker.send(Exec::new(pipes, Arc::clone(&process), Some(home)));
        match back.await {
            Ok(returned) => pipes = returned,
            Err(_) => return,
        }
    }
}
