//! A child process in a process group of its own, so that it can be ended together with everything that it started.

use std::future::Future;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::process::{kill_process_group, test_kill_process_group, waitid};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tracing::dispatcher;

use super::{ExecConfig, ExecError, Exit, Pipes, log};
use crate::environment;
use crate::link::lines::{Lines, PipeWriter};

/// How long a process has between SIGTERM and SIGKILL.
const TERM_TIME: Duration = Duration::from_secs(1);

/// How often it is checked whether the process is gone.
const LOOK: Duration = Duration::from_millis(5);

/// The process groups of all children that are not gone.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Kills all children of links at once, each with its process group. For a program that has to end now, and would leave them behind. A
/// program that has time closes its links instead.
pub fn kill_children() {
    for group in groups().iter() {
        // If the group is gone already, this fails, which does no harm.
        let _ = kill_process_group(*group, Signal::KILL);
    }
}

fn groups() -> MutexGuard<'static, Vec<Pid>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child process. When this is dropped, the child is ended in the background.
///
/// Two threads wait for its exit and read its standard error, so that neither depends on the runtime.
pub(super) struct Process {
    pub(super) name: Arc<str>,
    pub(super) grace: Duration,
    group: Pid,
    state: watch::Sender<ProcessState>,
    /// How many bytes it has written to its standard error.
    logged: Arc<AtomicU64>,
    /// `None` once it is being ended.
    running: Mutex<Option<WatchedChild>>,
}

struct WatchedChild {
    child: std::process::Child,
    waiter: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessState {
    Running,
    /// It has exited, but its process id is not free yet, and processes that it started may still run.
    Exited(Exit),
    /// No process of its group is left.
    Gone(Exit),
}

/// Starts a command.
pub(super) fn spawn(config: &ExecConfig) -> Result<(Arc<Process>, Pipes), ExecError> {
    let Some((program, arguments)) = config.command.split_first() else {
        return Err(ExecError::NoCommand);
    };
    start(program, arguments, config).map_err(|source| ExecError::Start { command: program.clone(), source })
}

fn start(program: &str, arguments: &[String], config: &ExecConfig) -> io::Result<(Arc<Process>, Pipes)> {
    let mut command = Command::new(program);
    command.args(arguments).process_group(0).env_clear().envs(environment::inherited());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let name: Arc<str> = program.rsplit('/').next().unwrap_or(program).into();
    let group = Pid::from_child(&child);
    groups().push(group);
    let logged = Arc::new(AtomicU64::new(0));
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let state = watch::Sender::new(ProcessState::Running);
    let waiter = thread("exec-wait", {
        let (state, name) = (state.clone(), Arc::clone(&name));
        move || wait(group, &name, &state)
    });
    let process = match waiter {
        Ok(waiter) => {
            let running = Mutex::new(Some(WatchedChild { child, waiter }));
            Arc::new(Process { name, grace: config.grace, group, state, logged: Arc::clone(&logged), running })
        }
        Err(error) => {
            let _ = kill_process_group(group, Signal::KILL);
            let killed = child.wait();
            forget(group);
            return killed.and(Err(error));
        }
    };
    // From here on, dropping the process ends the child.
    if let Some(stderr) = stderr {
        let name = Arc::clone(&process.name);
        thread("exec-log", move || log::lines(stderr, &name, &logged))?;
    }
    let pipes = pipes(stdin, stdout, config)?;
    Ok((process, pipes))
}

impl Process {
    /// How it exited, if it has.
    pub(super) fn exit(&self) -> Option<Exit> {
        match *self.state.borrow() {
            ProcessState::Running => None,
            ProcessState::Exited(exit) | ProcessState::Gone(exit) => Some(exit),
        }
    }

    /// How many bytes it has written to its standard error so far.
    pub(super) fn logged(&self) -> u64 {
        self.logged.load(Ordering::Relaxed)
    }

    /// Resolves when it has exited.
    pub(super) fn exited(&self) -> impl Future<Output = Exit> + Send + use<> {
        let mut state = self.state.subscribe();
        async move {
            match state.wait_for(|state| *state != ProcessState::Running).await.as_deref() {
                Ok(ProcessState::Exited(exit) | ProcessState::Gone(exit)) => *exit,
                Ok(ProcessState::Running) | Err(_) => Exit::Unknown,
            }
        }
    }

    /// Resolves when no process of its group is left.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state.subscribe();
        async move {
            // If the sender is gone, so is the process.
            let _ = state.wait_for(|state| matches!(state, ProcessState::Gone(_))).await;
        }
    }

    /// Ends it in the background: it has the grace period to exit by itself, then its group gets SIGTERM, then SIGKILL. The caller closes
    /// its input.
    pub(super) fn end(&self) {
        let Some(running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        let (group, grace, state) = (self.group, self.grace, self.state.clone());
        if thread("exec-end", move || end(group, grace, running, &state)).is_err() {
            // Without a thread to wait in, it is killed at once.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for the exit without reaping the process. So its id, which is also that of its group, is not reused until we are done with the
/// group.
fn wait(pid: Pid, name: &str, state: &watch::Sender<ProcessState>) {
    let exit = loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => break Exit::from(&status),
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => break Exit::Unknown,
        }
    };
    if exit.is_success() {
        tracing::debug!(target: "breakbulk::exec", command = name, "{exit}");
    } else {
        tracing::warn!(target: "breakbulk::exec", command = name, "{exit}");
    }
    state.send_replace(ProcessState::Exited(exit));
}

fn end(group: Pid, grace: Duration, mut running: WatchedChild, state: &watch::Sender<ProcessState>) {
    let has_exited = || *state.borrow() != ProcessState::Running;
    let signal = |signal| {
        // If the group is gone already, this fails, which does no harm.
        let _ = kill_process_group(group, signal);
    };
    let exited = within(grace, has_exited);
    signal(Signal::TERM);
    if !exited && !within(TERM_TIME, has_exited) {
        signal(Signal::KILL);
    }
    let _ = running.waiter.join();
    let _ = running.child.wait();
    // The number stays taken as long as anybody is in the group.
    if !within(TERM_TIME, || test_kill_process_group(group).is_err()) {
        signal(Signal::KILL);
    }
    forget(group);
    state.send_modify(|state| {
        if let ProcessState::Exited(exit) = *state {
            *state = ProcessState::Gone(exit);
        }
    });
}

/// Nothing is left of a group, so that its number may become another's.
fn forget(group: Pid) {
    groups().retain(|other| *other != group);
}

/// Whether something becomes true in time.
fn within(time: Duration, is_done: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while !is_done() {
        if begin.elapsed() >= time {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

fn pipes(stdin: Option<ChildStdin>, stdout: Option<ChildStdout>, config: &ExecConfig) -> io::Result<Pipes> {
    let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let reader = pipe::Receiver::from_owned_fd(stdout.into())?;
    Ok(Lines::new(reader, PipeWriter::new(stdin)?, config.capacity.clone(), config.max_frame_bytes))
}

/// Starts a thread that uses the tracing subscriber of its caller.
fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let log = dispatcher::get_default(Clone::clone);
    thread::Builder::new().name(name.to_owned()).spawn(move || dispatcher::with_default(&log, work))
}
