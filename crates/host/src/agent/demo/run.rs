//! Runs a command: no shell, little environment, bounded in time and output, and ended with all that it started.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use breakbulk::environment;
use breakbulk_lifecycle::{Content, ToolResult};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::process_group::{Exited, ProcessGroup};

/// What a command may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommandLimits {
    pub(super) time: Duration,
    pub(super) bytes: usize,
}

/// What a command has done.
#[derive(Debug)]
pub(super) struct CommandOutput {
    pub(super) output: Vec<u8>,
    pub(super) status: Option<ExitStatus>,
    pub(super) limit_reached: Option<LimitReached>,
}

/// Why a command was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitReached {
    Time,
    Bytes,
}

/// What of the environment a command sees. Secrets of the host are not among it.
const KEPT: [&str; 7] = ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "USER"];

/// How long we go on reading after the command has exited: a process that has left its group may hold the pipe for ever.
const LINGER: Duration = Duration::from_millis(250);

/// How much is read at once.
const READ: usize = 64 << 10;

/// Runs a command in a directory. Dropping the future ends the command.
pub(super) async fn run(argv: &[String], directory: &Path, limits: CommandLimits) -> io::Result<CommandOutput> {
    let deadline = Instant::now() + limits.time;
    let (argv, directory) = (argv.to_vec(), directory.to_path_buf());
    // Who stops waiting drops the group when it is there, and with it the command.
    let spawned = tokio::task::spawn_blocking(move || spawn(&argv, &directory));
    let (group, reader, exited) = spawned.await.map_err(io::Error::other)??;
    let mut reader = pipe::Receiver::from_owned_fd(reader.into())?;
    let mut exited = std::pin::pin!(exited);
    let mut output = Vec::new();
    let mut status = None;
    let mut limit_reached = tokio::select! {
        limit_reached = gather(&mut reader, &mut output, limits.bytes) => limit_reached,
        () = sleep_until(deadline) => Some(LimitReached::Time),
        exit = &mut exited => {
            status = Some(exit.unwrap_or(None));
            timeout(LINGER, gather(&mut reader, &mut output, limits.bytes)).await.unwrap_or(None)
        }
    };
    let status = match status {
        Some(status) => status,
        // It has closed its output, or is to end.
        None => {
            let exit = if limit_reached.is_none() { timeout_at(deadline, &mut exited).await.ok() } else { None };
            match exit {
                Some(exit) => exit.unwrap_or(None),
                None => {
                    limit_reached = limit_reached.or(Some(LimitReached::Time));
                    group.kill();
                    exited.await.unwrap_or(None)
                }
            }
        }
    };
    Ok(CommandOutput { output, status, limit_reached })
}

/// Reads until the output ends, or there is too much of it. May be dropped at any time.
async fn gather(reader: &mut pipe::Receiver, output: &mut Vec<u8>, max_bytes: usize) -> Option<LimitReached> {
    let mut buffer = vec![0; READ];
    loop {
        let length = match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(length) => length,
        };
        let free = max_bytes.saturating_sub(output.len());
        output.extend_from_slice(buffer.get(..length.min(free)).unwrap_or_default());
        if length > free {
            return Some(LimitReached::Bytes);
        }
    }
}

fn spawn(argv: &[String], directory: &Path) -> io::Result<(ProcessGroup, io::PipeReader, Exited)> {
    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).process_group(0);
    command.env_clear().env("TERM", "dumb").envs(environment::inherited_only(&KEPT));
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn()?;
    // It holds our ends of the pipe.
    drop(command);
    let (group, exited) = ProcessGroup::new(child, None)?;
    Ok((group, reader, exited))
}

impl CommandOutput {
    /// What the call of it produced.
    pub(super) fn into_result(self, shown: &str) -> ToolResult {
        let error = match (self.limit_reached, self.status) {
            (Some(LimitReached::Time), _) => Some("It took too long and was ended.".to_owned()),
            (Some(LimitReached::Bytes), _) => Some("It wrote too much and was ended.".to_owned()),
            (None, Some(status)) if status.success() => None,
            (None, Some(status)) => Some(match (status.code(), status.signal()) {
                (Some(code), _) => format!("It exited with status {code}."),
                (None, Some(signal)) => format!("It was ended by signal {signal}."),
                (None, None) => "It ended, nobody knows how.".to_owned(),
            }),
            (None, None) => Some("It ended, nobody knows how.".to_owned()),
        };
        let text = String::from_utf8(self.output)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let content = vec![Content::Text(text)];
        ToolResult { success: error.is_none(), summary: format!("Ran {shown}"), content, error }
    }
}
