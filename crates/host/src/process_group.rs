//! A child process with a process group of its own, which ends together with everything that it started.
//!
//! The id of a process is free for others as soon as somebody has waited for it. So one thread waits for each child without
//! reaping it, kills what is left of its group, and reaps it last: until then no signal can reach a stranger.
//!
//! A process can leave its group (`setsid`), and programs that run commands for others do that. Such processes are found by
//! a [mark](Mark) in their environment, where there is a `/proc`.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tokio::sync::oneshot;

use crate::lock::lock;

/// How the process exited, once it has. Nothing of its group is left then.
pub(crate) type Exited = oneshot::Receiver<Option<ExitStatus>>;

/// How often leftovers are looked for: a process may start another one while the list is read.
const SWEEPS: usize = 3;

/// The processes of a child. Killed when this is dropped.
pub(crate) struct ProcessGroup {
    pid: Pid,
    mark: Option<Mark>,
    /// Whether the group's number is no longer its own.
    is_over: Arc<Mutex<bool>>,
}

/// A variable that only one child and its descendants have in their environment.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    /// The name of the variable.
    pub(crate) name: &'static str,
    /// A random value.
    pub(crate) value: String,
}

impl ProcessGroup {
    /// Takes charge of a child that was started as the leader of a group, and with the mark in its environment.
    pub(crate) fn new(mut child: Child, mark: Option<Mark>) -> io::Result<(Self, Exited)> {
        let pid = Pid::from_child(&child);
        let group = Self { pid, mark: mark.clone(), is_over: Arc::new(Mutex::new(false)) };
        let (sender, exited) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel::<Child>();
        let is_over = Arc::clone(&group.is_over);
        let waiter = std::thread::Builder::new().name("child-wait".into()).spawn(move || {
            if let Ok(child) = told.recv() {
                // The receiver may be gone.
                let _ = sender.send(wait(child, pid, mark.as_ref(), &is_over));
            }
        });
        match waiter {
            Ok(_detached) => {
                let _ = tell.send(child);
                Ok((group, exited))
            }
            Err(error) => {
                group.kill();
                let _ = child.wait();
                *lock(&group.is_over) = true;
                Err(error)
            }
        }
    }

    /// The leader's process id.
    pub(crate) const fn leader(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Asks all processes to end.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills all processes at once.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        let is_over = lock(&self.is_over);
        if *is_over {
            return;
        }
        // Processes that have left the group come first: killing the leader may end the wait, and then nobody looks for
        // them.
        signal_marked(self.mark.as_ref(), signal);
        // This fails if the group is gone.
        let _ = kill_process_group(self.pid, signal);
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a child, and ends what it left behind.
fn wait(mut child: Child, pid: Pid, mark: Option<&Mark>, is_over: &Mutex<bool>) -> Option<ExitStatus> {
    while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
    let mut is_over = lock(is_over);
    let _ = kill_process_group(pid, Signal::KILL);
    for _ in 0..SWEEPS {
        if signal_marked(mark, Signal::KILL) == 0 {
            break;
        }
    }
    *is_over = true;
    child.wait().ok()
}

/// Sends a signal to all processes with this mark; returns how many there are.
fn signal_marked(mark: Option<&Mark>, signal: Signal) -> usize {
    let Some(Mark { name, value }) = mark else { return 0 };
    let line = format!("{name}={value}");
    let own = i32::try_from(std::process::id()).ok();
    let mut count = 0;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // The environment of other users' processes cannot be read. None of them is ours.
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == line.as_bytes());
        if is_marked
            && Some(number) != own
            && let Some(pid) = Pid::from_raw(number)
        {
            count += 1;
            let _ = kill_process(pid, signal);
        }
    }
    count
}
