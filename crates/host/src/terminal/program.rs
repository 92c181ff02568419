//! A program on a pty, and all processes that it starts there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use breakbulk::environment;
use pty_process::{OwnedReadPty, OwnedWritePty, Size};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::Child;
use tokio::time::timeout;

use super::{TerminalConfig, TerminalError, TerminalProgram};

/// A running program. When dropped, it is killed with all processes that it started on its terminal.
pub(super) struct Program {
    pub(super) read: OwnedReadPty,
    pub(super) write: OwnedWritePty,
    pub(super) group: TerminalProcess,
}

/// The program's process, which leads a session of its own.
pub(super) struct TerminalProcess {
    child: Child,
}

/// After this time, a killed process that still exists is stuck in the kernel and is not waited for.
const STUCK: Duration = Duration::from_secs(5);

impl Program {
    /// Starts this program, or the configured one.
    pub(super) fn start(
        config: &TerminalConfig,
        program: Option<&TerminalProgram>,
        dir: &Path,
        (cols, rows): (u16, u16),
    ) -> Result<Self, TerminalError> {
        let command = program.map_or(&config.command, |program| &program.command);
        let env = program.map_or(&[][..], |program| &program.env);
        let start = |error: pty_process::Error| TerminalError::Start(error.to_string());
        let (name, arguments) =
            command.split_first().ok_or_else(|| TerminalError::Start("no command is configured".into()))?;
        let (pty, pts) = pty_process::open().map_err(start)?;
        pty.resize(Size::new(rows, cols)).map_err(start)?;
        let is_hidden = |name: &OsStr| {
            config.hidden_env.iter().any(|hidden| name.as_encoded_bytes().starts_with(hidden.as_bytes()))
        };
        let inherited = environment::inherited().filter(|(name, _)| !is_hidden(name));
        let command = pty_process::Command::new(name)
            .args(arguments)
            .current_dir(dir)
            .env_clear()
            .envs(inherited)
            .env("PWD", dir)
            .env("TERM", "xterm-256color")
            .envs(config.env.iter().chain(env).cloned());
        let child = command.spawn(pts).map_err(start)?;
        let (read, write) = pty.into_split();
        Ok(Self { read, write, group: TerminalProcess { child } })
    }

    /// Sends a hangup, as when a window is closed; kills what is left after the grace period.
    pub(super) async fn hang_up(mut self, grace: Duration) {
        self.group.signal(Signal::HUP);
        // A stopped process receives nothing else.
        self.group.signal(Signal::CONT);
        let drained = async {
            let mut unread = [0; 4096];
            // Its last output is discarded, but reading it lets the program end.
            while self.read.read(&mut unread).await.is_ok_and(|read| read > 0) {}
        };
        drop(timeout(grace, drained).await);
        self.group.kill();
        drop(timeout(STUCK, self.group.child.wait()).await);
    }
}

impl TerminalProcess {
    /// Waits for the end of the program itself.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Where the program is now, if the system says so.
    pub(super) fn cwd(&self) -> Option<std::path::PathBuf> {
        let path = std::fs::read_link(format!("/proc/{}/cwd", self.child.id()?)).ok()?;
        (!path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)")).then_some(path)
    }

    /// While the leader has not been waited for, no other process can have its id, or those of its groups.
    fn leader(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()?).ok()?)
    }

    fn signal(&self, signal: Signal) {
        for group in self.leader().map(groups).unwrap_or_default() {
            // A group that is gone needs no signal.
            _ = Pid::from_raw(group).map(|group| kill_process_group(group, signal));
        }
    }

    /// Kills the program and all that it has started on its terminal.
    ///
    /// Three times, because a process may have started while the list was read.
    pub(super) fn kill(&self) {
        for _ in 0..3 {
            self.signal(Signal::KILL);
        }
    }
}

impl Drop for TerminalProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The exit code, if the program gave one.
pub(super) fn exit_code(status: ExitStatus) -> Option<i64> {
    if status.signal().is_some() { None } else { status.code().map(i64::from) }
}

/// The process groups of a session: a shell gives each job its own. Where there is no `/proc`, the leader's.
fn groups(leader: Pid) -> BTreeSet<i32> {
    let leader = leader.as_raw_nonzero().get();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit());
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let members = stats.filter_map(|stat| group_and_session(&stat)).filter(|&(_, session)| session == leader);
    members.map(|(group, _)| group).chain([leader]).collect()
}

/// From a line of `/proc/PID/stat`: `pid (any name) state parent group session …`.
fn group_and_session(stat: &str) -> Option<(i32, i32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_have_any_name() {
        assert_eq!(group_and_session("12 (a) 9 (b) S 1 34 56 0 -1"), Some((34, 56)));
        assert_eq!(group_and_session("12"), None);
    }
}
