//! A child process that outlives its links.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tracing::info;

use super::process::{self, Process};
use super::{Exec, ExecConfig, ExecError, Exit, Pipes};

/// A child process to which there are several links, one after the other. When this and its link are dropped, the child is ended.
///
/// Each link begins at the start of a line, in both directions: what the last link accepted is written whole first, and what the child
/// wrote while there was no link, or had begun to write by then, is discarded. If the child answers a request of an earlier link later,
/// the answer arrives on the next link. To prevent that, set the [`Lease`] of a link to busy: then the child is ended when the link is
/// dropped.
///
/// A child that has exited, or was ended, is started again when the next link is requested.
pub struct Child {
    /// Held by whoever has the link, or waits for it next.
    turn: Arc<Semaphore>,
    requests: mpsc::Sender<LeaseRequest>,
    current: Arc<ProcessSlot>,
}

/// Decides what happens to the child when the link with this lease is dropped. Cloning shares it.
///
/// At first it is idle: the next link gets the same child.
#[derive(Debug, Clone, Default)]
pub struct Lease(Arc<AtomicBool>);

impl Lease {
    /// Sets whether the child is still busy with something of this link: it owes an answer, or the rest of a message. If it is busy when
    /// the link is dropped, the child is ended.
    pub fn set_busy(&self, is_busy: bool) {
        self.0.store(is_busy, Ordering::Relaxed);
    }

    /// Whether the child is busy.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request for a link, of a caller whose turn it is.
struct LeaseRequest {
    link: oneshot::Sender<Result<Exec, ExecError>>,
    /// Given back when the next caller can have the child.
    turn: OwnedSemaphorePermit,
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
        let (requests, queue) = mpsc::channel(1);
        let current = Arc::new(ProcessSlot {
            config: config.clone(),
            running: Mutex::new(RunningProcess { process, ends: false }),
        });
        tokio::spawn(lend_in_turn(pipes, Arc::clone(&current), queue));
        Ok(Self { turn: Arc::new(Semaphore::new(1)), requests, current })
    }

    /// A link to the child, as soon as the last one is dropped. If the caller has to wait for that, it is logged. Cancel-safe.
    ///
    /// # Errors
    /// The child had exited, and cannot be started again.
    pub async fn link(&self) -> Result<Exec, ExecError> {
        let turn = Arc::clone(&self.turn);
        let turn = match Arc::clone(&turn).try_acquire_owned() {
            Ok(turn) => Ok(turn),
            Err(_) => {
                let command = &*self.current.process().name;
                info!(target: "breakbulk::exec", command, "a connection waits until the one before is done with the command");
                turn.acquire_owned().await
            }
        };
        let (answer, link) = oneshot::channel();
        if let Ok(turn) = turn
            && self.requests.send(LeaseRequest { link: answer, turn }).await.is_ok()
            && let Ok(link) = link.await
        {
            return link;
        }
        Err(self.current.ended())
    }

    /// How the child exited, if it has, and was not started again.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.current.process().exit()
    }

    /// Ends the child, and waits until no process of it is left. A link that still exists fails.
    pub async fn end(self) {
        self.current.lock().ends = true;
        drop(self.requests);
        self.current.retire().await;
    }
}

impl std::fmt::Debug for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let process = self.current.process();
        f.debug_struct("Child").field("command", &process.name).field("exit", &process.exit()).finish_non_exhaustive()
    }
}

/// The process that runs now, for those that do not have its pipes.
struct ProcessSlot {
    config: ExecConfig,
    running: Mutex<RunningProcess>,
}

struct RunningProcess {
    process: Arc<Process>,
    /// Whether it is not started again.
    ends: bool,
}

impl ProcessSlot {
    fn process(&self) -> Arc<Process> {
        Arc::clone(&self.lock().process)
    }

    /// Ends the process, and waits until no process of its group is left.
    async fn retire(&self) {
        let process = self.process();
        process.end();
        process.gone().await;
    }

    /// Starts the command again. The last process is ended first, because two of them might use the same files.
    async fn renew(&self) -> Result<Pipes, ExecError> {
        self.retire().await;
        let mut running = self.lock();
        if running.ends {
            drop(running);
            return Err(self.ended());
        }
        let (process, pipes) = process::spawn(&self.config)?;
        info!(target: "breakbulk::exec", command = &*process.name, "started anew");
        running.process = process;
        Ok(pipes)
    }

    fn ended(&self) -> ExecError {
        let process = self.process();
        ExecError::Exited { command: process.name.to_string(), exit: process.exit().unwrap_or(Exit::Unknown) }
    }

    fn lock(&self) -> MutexGuard<'_, RunningProcess> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lends the pipes to one link after the other, and keeps them in between.
async fn lend_in_turn(pipes: Pipes, current: Arc<ProcessSlot>, mut requests: mpsc::Receiver<LeaseRequest>) {
    let mut idle = Some(pipes);
    while let Some(LeaseRequest { link, turn }) = next_request(&mut idle, &mut requests).await {
        // The caller has given up, so nothing is started for it.
        if link.is_closed() {
            continue;
        }
        let alive = idle.take().filter(|_| current.process().exit().is_none());
        let pipes = match alive {
            Some(pipes) => Ok(pipes),
            None => current.renew().await,
        };
        let (back, returned) = oneshot::channel();
        // If the caller has given up meanwhile, the link is dropped, and the pipes come back at once.
        let _ = link.send(pipes.map(|pipes| lend(pipes, current.process(), back)));
        idle = returned.await.ok();
        if idle.is_none() {
            current.retire().await;
        }
        drop(turn);
    }
}

/// Waits for the next request. Meanwhile the child's output is discarded, so that it does not block, and its end is noticed.
async fn next_request(idle: &mut Option<Pipes>, requests: &mut mpsc::Receiver<LeaseRequest>) -> Option<LeaseRequest> {
    poll_fn(|cx| {
        // At the end of its output the child cannot be used any more.
        if idle.as_mut().is_some_and(|pipes| pipes.poll_idle(cx).is_ready()) {
            *idle = None;
        }
        requests.poll_recv(cx)
    })
    .await
}

fn lend(mut pipes: Pipes, process: Arc<Process>, back: oneshot::Sender<Pipes>) -> Exec {
    let bytes = pipes.start_afresh();
    if bytes > 0 {
        let command = &*process.name;
        info!(target: "breakbulk::exec", command, bytes, "output between two connections was dropped");
    }
    Exec::new(pipes, process, Some(back))
}
