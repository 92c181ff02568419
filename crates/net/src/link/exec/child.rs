//! A child process that outlives its links.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tracing::info;

use super::process::{self, Process};
use super::{Exec, ExecConfig, ExecError, Exit, Pipes};

/// A child process from which links can be queue, one after the other. Dropping it ends the child, once its link is
/// dropped too.
///
/// Each link begins at a line of its own, both ways: what one has accepted is written whole before what the next sends, and
/// of what the child writes while nobody has a link, or had begun to write by then, nothing is kept. An answer that the
/// child gives later to what an earlier link asked does arrive, unless that link's [`Lease`] was busy when it was dropped:
/// then the child is ended.
///
/// A child that has exited, or was ended so, is started anew when somebody asks for a link, and not before.
pub struct Child {
    /// Who has the child, or is next.
    turn: Arc<Semaphore>,
    requests: mpsc::Sender<LinkRequest>,
    current: Arc<ProcessSlot>,
}

/// What becomes of a child that outlives its links when the link that has this lease is dropped. Cloning shares it.
///
/// It is idle at first: the next link gets the same child.
#[derive(Debug, Clone, Default)]
pub struct Lease(Arc<AtomicBool>);

impl Lease {
    /// Says whether the child has yet to finish what was begun on the link: to answer, to send the rest of a message. If so
    /// when the link is dropped, the child is ended.
    pub fn set_busy(&self, is_busy: bool) {
        self.0.store(is_busy, Ordering::Relaxed);
    }

    /// Whether it has.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Somebody whose turn it is.
struct LinkRequest {
    link: oneshot::Sender<Result<Exec, ExecError>>,
    /// Given back when the next one can have the child.
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

    /// A link to it, as soon as the one before is dropped. Who has to wait for that is logged. Cancel-safe.
    ///
    /// # Errors
    /// It had exited, and cannot be started anew.
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
            && self.requests.send(LinkRequest { link: answer, turn }).await.is_ok()
            && let Ok(link) = link.await
        {
            return link;
        }
        Err(self.current.ended())
    }

    /// How it exited, if it has and was not started anew.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.current.process().exit()
    }

    /// Closes its input and ends it; done when nothing is left of it. A link that is still there breaks.
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

/// The process as it is now, for those who do not have its pipes.
struct ProcessSlot {
    config: ExecConfig,
    running: Mutex<RunningProcess>,
}

struct RunningProcess {
    process: Arc<Process>,
    /// It is not started again.
    ends: bool,
}

impl ProcessSlot {
    fn process(&self) -> Arc<Process> {
        Arc::clone(&self.lock().process)
    }

    /// Ends the process; done when nothing is left of it.
    async fn retire(&self) {
        let process = self.process();
        process.end();
        process.gone().await;
    }

    /// Starts the command anew. Never are there two of it: they may share files.
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

/// Has the pipes while no link does.
async fn lend_in_turn(pipes: Pipes, current: Arc<ProcessSlot>, mut requests: mpsc::Receiver<LinkRequest>) {
    let mut idle = Some(pipes);
    while let Some(LinkRequest { link, turn }) = next_request(&mut idle, &mut requests).await {
        // Nothing is started for somebody who waits no more.
        if link.is_closed() {
            continue;
        }
        let alive = idle.take().filter(|_| current.process().exit().is_none());
        let pipes = match alive {
            Some(pipes) => Ok(pipes),
            None => current.renew().await,
        };
        let (back, returned) = oneshot::channel();
        // A link that nobody waits for any more comes back at once.
        let _ = link.send(pipes.map(|pipes| lend(pipes, current.process(), back)));
        idle = returned.await.ok();
        if idle.is_none() {
            current.retire().await;
        }
        drop(turn);
    }
}

/// The next one who asks. Until then the child does not have to wait for a reader, and it is noticed when it writes no more.
async fn next_request(idle: &mut Option<Pipes>, requests: &mut mpsc::Receiver<LinkRequest>) -> Option<LinkRequest> {
    poll_fn(|cx| {
        // What is written before somebody asks is for nobody.
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
