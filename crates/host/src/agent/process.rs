//! One supervised child process: what every adapter for an agent's program runs its program with.
//!
//! ```text
//!            ┌──────────── Process ────────────┐
//!  adapter ─▶│ write ─▶ bounded queue ─▶ stdin │─▶ the program, in a process group of its own
//!          ◀─│ read  ◀─ bounded lines ◀─ stdout│◀─
//!            │ the last 64 KiB       ◀─ stderr │◀─
//!            │ limits: start, silence, idle time, flood, memory
//!            └─────────────────────────────────┘
//! ```
//!
//! The program is never run through a shell, and sees only [allowed](environment) variables of our environment. Whatever it
//! does, it ends with a named [`ProgramEnd`], and everything that it has started ends with it. The adapter does not read while its own
//! events wait, so a program that writes faster than clients read waits in its pipe.
//!
//! The adapter says what it [expects](Process::expect) of the program, and that decides which clock runs.

pub(crate) mod environment;
mod lines;
mod memory;
pub(crate) mod orphans;
pub(crate) mod program;
mod stderr;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use breakbulk_lifecycle::{ExitReason, Failure};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use self::lines::{BoundedLines, ReadLine};
use self::stderr::StderrTail;
use crate::lock::lock;
use crate::process_group::{Exited, Mark, ProcessGroup};

/// What a program may use, and how long it may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLimits {
    /// From its start until it is ready: its first line, and for a protocol that opens sessions an open session. 60 s: a program on
    /// a cold disk that looks for updates first.
    pub start: Duration,
    /// Without a line while it works on a turn, unless it waits for a person or runs a tool. 10 min: models think for minutes,
    /// and programs retry an overloaded service for some more.
    pub silence: Duration,
    /// From when it was told to stop a turn until it has. 10 s: less than the host waits.
    pub cancel: Duration,
    /// Without a turn. 30 min: a person who reads comes back to a warm program, one who left costs no memory. The next prompt
    /// starts it anew, with its own memory of the conversation.
    pub idle: Duration,
    /// The longest line. 32 MiB: a screenshot or a file in a tool's result. Longer ones are skipped, and never held.
    pub max_line_bytes: usize,
    /// What it may write in a row that nobody understands. 256 MiB: some lines that are too long, not an endless one.
    pub max_noise_bytes: u64,
    /// What may wait to be read by it. 64 MiB: a prompt with images.
    pub max_input_bytes: usize,
    /// Memory of it and of all that it has started. 8 GiB: a compiler or two that a tool runs.
    pub max_memory_bytes: u64,
    /// How often its memory is looked at. 5 s.
    pub memory_interval: Duration,
    /// From SIGTERM to SIGKILL. 1 s: half of what the host waits for an agent to end.
    pub term: Duration,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(60),
            silence: Duration::from_secs(600),
            cancel: Duration::from_secs(10),
            idle: Duration::from_secs(1_800),
            max_line_bytes: 32 << 20,
            max_noise_bytes: 256 << 20,
            max_input_bytes: 64 << 20,
            max_memory_bytes: 8 << 30,
            memory_interval: Duration::from_secs(5),
            term: Duration::from_secs(1),
        }
    }
}

/// What is run.
#[derive(Debug, Clone)]
pub(crate) struct ProcessCommand {
    /// A path, or a name that is looked for in `PATH`.
    pub(crate) program: OsString,
    /// They reach the program as they are.
    pub(crate) arguments: Vec<OsString>,
    /// The working directory.
    pub(crate) directory: PathBuf,
    /// Names of our variables that it may see beside the [usual](environment::USUAL) ones. One that ends with `*` stands for all
    /// that begin so.
    pub(crate) inherit: Vec<String>,
    /// Variables that are set for it.
    pub(crate) env: Vec<(String, String)>,
}

/// What is expected of a program, which decides how long it may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// That it gets ready. What it writes meanwhile does not set the clock back.
    Start,
    /// Something: it works on a turn.
    Output,
    /// Nothing: it waits for a person, or runs a tool, which may take any time.
    Nothing,
    /// The end of a turn that it was told to stop.
    Cancelled,
    /// The next prompt, from us.
    Idle,
}

/// What a program has done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProgramOutput {
    /// It has written a line, here without its line break.
    Line(Vec<u8>),
    /// It has written a line that is over the limit, and was not kept.
    Skipped {
        /// How long it was.
        bytes: u64,
    },
    /// Nothing of it is left.
    Ended(ProgramEnd),
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProgramEnd {
    /// By itself, with this status.
    Exited(i32),
    /// Somebody else killed it.
    Killed(i32),
    /// It wrote nothing in all this time, and was killed.
    Silent(Duration),
    /// It was not ready in time, and was killed.
    NotStarted(Duration),
    /// It did not stop a turn in time, and was killed.
    NotCancelled(Duration),
    /// It had no turn in all this time, and was ended.
    Idle(Duration),
    /// It wrote only what nobody understands, and was killed.
    Flooded {
        /// How much of that.
        bytes: u64,
    },
    /// It used more memory than it may, and was killed.
    TooMuchMemory {
        /// How much it used.
        bytes: u64,
        /// How much it may.
        limit: u64,
    },
    /// It does not read what it is told, and was killed.
    Deaf,
    /// Nobody knows.
    Unknown,
}

impl ProgramEnd {
    fn of(status: Option<ExitStatus>) -> Self {
        match status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => Self::Exited(code),
            Some((None, Some(signal))) => Self::Killed(signal),
            _ => Self::Unknown,
        }
    }

    /// A short name for programs.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Exited(_) => "agentExited",
            Self::Killed(_) => "agentKilled",
            Self::Silent(_) => "agentSilent",
            Self::NotStarted(_) => "agentDidNotStart",
            Self::NotCancelled(_) => "agentDidNotStop",
            Self::Idle(_) => "agentIdle",
            Self::Flooded { .. } => "agentFlooded",
            Self::TooMuchMemory { .. } => "agentOutOfMemory",
            Self::Deaf => "agentDeaf",
            Self::Unknown => "agentEnded",
        }
    }

    fn text(&self) -> String {
        let seconds = |time: &Duration| time.as_secs_f64();
        match self {
            Self::Exited(code) => format!("The agent's program exited with status {code}."),
            Self::Killed(signal) => format!("The agent's program was killed by signal {signal}."),
            Self::Silent(time) => {
                format!(
                    "The agent's program was silent for {} s in the middle of a turn, and was killed.",
                    seconds(time)
                )
            }
            Self::NotStarted(time) => {
                format!("The agent's program was not ready within {} s, and was killed.", seconds(time))
            }
            Self::NotCancelled(time) => {
                format!("The agent's program did not stop the turn within {} s, and was killed.", seconds(time))
            }
            Self::Idle(time) => {
                format!("The agent's program had nothing to do for {} s, and was ended.", seconds(time))
            }
            Self::Flooded { bytes } => {
                format!("The agent's program wrote {bytes} bytes that are no messages, and was killed.")
            }
            Self::TooMuchMemory { bytes, limit } => {
                format!("The agent's program used {bytes} bytes of memory, the limit is {limit}, and was killed.")
            }
            Self::Deaf => "The agent's program does not read what it is told, and was killed.".to_owned(),
            Self::Unknown => "The agent's program ended, nobody knows how.".to_owned(),
        }
    }

    /// What it means for the turn that it ended: if somebody wanted that turn to stop, it has stopped.
    pub(crate) fn reason(&self, stderr: &str) -> ExitReason {
        match self {
            Self::Idle(_) | Self::NotCancelled(_) => ExitReason::Stopped,
            end => ExitReason::Failed(end.failure(stderr)),
        }
    }

    /// How the turn fails that it ended. Shows what the program wrote to its standard error.
    pub(crate) fn failure(&self, stderr: &str) -> Failure {
        let mut message = self.text();
        if !stderr.is_empty() {
            message.push_str(" The end of its standard error:\n");
            message.push_str(stderr);
        }
        Failure::new(self.kind(), message)
    }
}

/// What waits to be read by the program is over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InputFull;

/// The variable by which processes are found that have left the program's group.
const MARK: &str = "AGENT_RUN_ID";

/// How long we go on reading after the program has exited: a process that has left its group may hold the pipe for ever.
const LINGER: Duration = Duration::from_millis(500);

/// How long a program may live on after it has closed its output.
const CLOSED: Duration = Duration::from_secs(2);

/// After this time, a killed process that still exists is stuck in the kernel and is not waited for.
const STUCK: Duration = Duration::from_secs(5);

/// A running program. When dropped, it is killed with everything that it has started.
pub(crate) struct Process {
    group: Arc<ProcessGroup>,
    limits: ProcessLimits,
    lines: BoundedLines<pipe::Receiver>,
    input: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// Bytes that wait to be read by it.
    queued: Arc<AtomicUsize>,
    tail: Arc<Mutex<StderrTail>>,
    /// Reads its standard error until that ends.
    stderr: JoinHandle<()>,
    exited: Exited,
    phase: ProcessPhase,
    /// Why somebody has killed it.
    verdict: Arc<Mutex<Option<ProgramEnd>>>,
    expectation: Expectation,
    /// When the clock of the expectation began: at its last line, or when the expectation changed.
    since: Instant,
    /// Bytes since the last line that the adapter understood.
    noise: u64,
    /// Ended when this is dropped.
    _helpers: JoinSet<()>,
}

/// Where a program is, as far as its output and its exit are seen.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ProcessPhase {
    Running,
    /// It has closed its output, but not exited.
    Closed {
        until: Instant,
    },
    /// It has exited, and its output may not be read to its end.
    Exited {
        end: ProgramEnd,
        until: Instant,
    },
    /// It was killed, and not seen to exit.
    Killed {
        until: Instant,
    },
    Over(ProgramEnd),
}

impl Process {
    /// Starts a program. Starting a process takes a while on a busy machine, so this waits on a thread that may block.
    pub(crate) async fn start(command: ProcessCommand, limits: ProcessLimits) -> io::Result<Self> {
        let mark = Mark { name: MARK, value: crate::log::BatchId::new().to_string() };
        let spawned = tokio::task::spawn_blocking(move || spawn(&command, mark)).await;
        // Who stops waiting drops the group when it is there, and with it the program.
        let Spawned { group, exited, stdin, stdout, stderr } = spawned.map_err(io::Error::other)??;
        let group = Arc::new(group);
        let lines = BoundedLines::new(pipe::Receiver::from_owned_fd(stdout.into())?, limits.max_line_bytes);
        let tail = Arc::new(Mutex::new(StderrTail::default()));
        let reader = stderr::keep(pipe::Receiver::from_owned_fd(stderr.into())?, Arc::clone(&tail));
        let stderr = tokio::spawn(reader);
        let (input, waiting) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let verdict = Arc::new(Mutex::new(None));
        let mut helpers = JoinSet::new();
        helpers.spawn(write(pipe::Sender::from_owned_fd(stdin.into())?, waiting, Arc::clone(&queued)));
        helpers.spawn(watch_memory(Arc::clone(&group), limits.clone(), Arc::clone(&verdict)));
        Ok(Self {
            group,
            limits,
            lines,
            input: Some(input),
            queued,
            tail,
            stderr,
            exited,
            phase: ProcessPhase::Running,
            verdict,
            expectation: Expectation::Start,
            since: Instant::now(),
            noise: 0,
            _helpers: helpers,
        })
    }

    /// Adds to what the program reads. Never waits.
    pub(crate) fn write(&self, line: Vec<u8>) -> Result<(), InputFull> {
        let bytes = line.len();
        // One line of any length always fits.
        let before = self.queued.fetch_add(bytes, Relaxed);
        if before > 0 && before.saturating_add(bytes) > self.limits.max_input_bytes {
            self.queued.fetch_sub(bytes, Relaxed);
            return Err(InputFull);
        }
        if let Some(input) = &self.input {
            // If it reads no more, it is about to end, and that is seen elsewhere.
            let _ = input.send(line);
        }
        Ok(())
    }

    /// Says what is expected of the program from now on.
    pub(crate) fn expect(&mut self, expectation: Expectation) {
        if self.expectation != expectation {
            self.expectation = expectation;
            self.since = Instant::now();
        }
    }

    /// The last line made sense.
    pub(crate) const fn understood(&mut self) {
        self.noise = 0;
    }

    /// Whether it has ended, or was killed and is about to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase != ProcessPhase::Running || lock(&self.verdict).is_some()
    }

    /// Kills the program, with everything that it has started. Its end is read as usual.
    pub(crate) fn kill(&mut self, why: ProgramEnd) {
        lock(&self.verdict).get_or_insert(why);
        self.group.kill();
        if matches!(self.phase, ProcessPhase::Running | ProcessPhase::Closed { .. }) {
            self.phase = ProcessPhase::Killed { until: Instant::now() + STUCK };
        }
    }

    /// What the program does next. Dropping the future loses nothing. After the end, the end again.
    pub(crate) async fn read(&mut self) -> ProgramOutput {
        loop {
            let (deadline, is_readable) = match &self.phase {
                ProcessPhase::Over(end) => return ProgramOutput::Ended(end.clone()),
                ProcessPhase::Running => (self.deadline(), true),
                ProcessPhase::Closed { until } | ProcessPhase::Killed { until } => (Some(*until), false),
                ProcessPhase::Exited { until, .. } => (Some(*until), true),
            };
            let has_exited = matches!(self.phase, ProcessPhase::Exited { .. });
            tokio::select! {
                // What it has written counts before it is judged by a clock.
                biased;
                line = self.lines.next(), if is_readable => match line {
                    Some(line) => {
                        if let Some(output) = self.take(line) {
                            return output;
                        }
                    }
                    None => self.output_ended(),
                },
                status = &mut self.exited, if !has_exited => self.exit(ProgramEnd::of(status.ok().flatten())),
                () = until(deadline) => self.late(),
            }
        }
    }

    /// Ends the program in order: asks it to, kills it after a while, and waits until nothing of it is left.
    pub(crate) async fn stop(&mut self) {
        self.input = None;
        self.group.terminate();
        if matches!(self.phase, ProcessPhase::Exited { .. } | ProcessPhase::Over(_)) {
            return;
        }
        if timeout(self.limits.term, &mut self.exited).await.is_err() {
            self.group.kill();
            let _ = timeout(STUCK, &mut self.exited).await;
        }
    }

    /// The end of what it has written to its standard error. To be called when it has ended.
    pub(crate) async fn stderr(&mut self) -> String {
        // What it wrote last may still be in the pipe.
        let _ = timeout(LINGER, &mut self.stderr).await;
        lock(&self.tail).text()
    }

    fn take(&mut self, line: ReadLine) -> Option<ProgramOutput> {
        if self.expectation != Expectation::Start {
            self.since = Instant::now();
        }
        let (bytes, output) = match line {
            ReadLine::Line(line) => (count(line.len()), Some(ProgramOutput::Line(line))),
            ReadLine::Skipped { bytes, last } => (last, Some(ProgramOutput::Skipped { bytes })),
            ReadLine::Skipping { last } => (last, None),
        };
        self.noise = self.noise.saturating_add(bytes);
        if self.noise > self.limits.max_noise_bytes {
            self.kill(ProgramEnd::Flooded { bytes: self.noise });
        }
        output
    }

    fn output_ended(&mut self) {
        self.phase = match &self.phase {
            ProcessPhase::Exited { end, .. } => ProcessPhase::Over(end.clone()),
            _ => ProcessPhase::Closed { until: Instant::now() + CLOSED },
        };
    }

    fn exit(&mut self, end: ProgramEnd) {
        let end = lock(&self.verdict).clone().unwrap_or(end);
        self.phase = match self.phase {
            ProcessPhase::Running => ProcessPhase::Exited { end, until: Instant::now() + LINGER },
            _ => ProcessPhase::Over(end),
        };
    }

    /// A deadline has passed.
    fn late(&mut self) {
        match &self.phase {
            ProcessPhase::Running => {
                let why = match self.expectation {
                    Expectation::Start => ProgramEnd::NotStarted(self.limits.start),
                    Expectation::Output => ProgramEnd::Silent(self.limits.silence),
                    Expectation::Cancelled => ProgramEnd::NotCancelled(self.limits.cancel),
                    Expectation::Idle => ProgramEnd::Idle(self.limits.idle),
                    Expectation::Nothing => return,
                };
                self.kill(why);
            }
            ProcessPhase::Closed { .. } => {
                self.group.kill();
                self.phase = ProcessPhase::Killed { until: Instant::now() + STUCK };
            }
            ProcessPhase::Exited { end, .. } => self.phase = ProcessPhase::Over(end.clone()),
            ProcessPhase::Killed { .. } => {
                self.phase = ProcessPhase::Over(lock(&self.verdict).clone().unwrap_or(ProgramEnd::Unknown))
            }
            ProcessPhase::Over(_) => {}
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let limit = match self.expectation {
            Expectation::Start => self.limits.start,
            Expectation::Output => self.limits.silence,
            Expectation::Cancelled => self.limits.cancel,
            Expectation::Idle => self.limits.idle,
            Expectation::Nothing => return None,
        };
        self.since.checked_add(limit)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The task that looks at its memory holds the group too.
        self.group.kill();
        self.stderr.abort();
    }
}

/// A process with its pipes.
struct Spawned {
    group: ProcessGroup,
    exited: Exited,
    stdin: std::process::ChildStdin,
    stdout: std::process::ChildStdout,
    stderr: std::process::ChildStderr,
}

fn spawn(command: &ProcessCommand, mark: Mark) -> io::Result<Spawned> {
    let ProcessCommand { program, arguments, directory, inherit, env } = command;
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .process_group(0)
        .env_clear()
        .envs(environment::allowed(inherit))
        .envs(env.iter().map(|(name, value)| (name, value)))
        .env(mark.name, &mark.value)
        .envs(orphans::own_id().map(|own| (orphans::OWNER, own)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (group, exited) = ProcessGroup::new(child, Some(mark))?;
    match (stdin, stdout, stderr) {
        (Some(stdin), Some(stdout), Some(stderr)) => Ok(Spawned { group, exited, stdin, stdout, stderr }),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// Writes what waits to a program. Ends when the program reads no more, or there is nothing more to come.
async fn write(mut stdin: pipe::Sender, mut waiting: mpsc::UnboundedReceiver<Vec<u8>>, queued: Arc<AtomicUsize>) {
    while let Some(line) = waiting.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
        queued.fetch_sub(line.len(), Relaxed);
    }
}

/// Kills a program that uses too much memory.
async fn watch_memory(group: Arc<ProcessGroup>, limits: ProcessLimits, verdict: Arc<Mutex<Option<ProgramEnd>>>) {
    let leader = group.leader();
    loop {
        tokio::time::sleep(limits.memory_interval).await;
        let used = tokio::task::spawn_blocking(move || memory::used_by(leader)).await.unwrap_or(0);
        if used > limits.max_memory_bytes {
            let why = ProgramEnd::TooMuchMemory { bytes: used, limit: limits.max_memory_bytes };
            lock(&verdict).get_or_insert(why);
            group.kill();
            return;
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests;
