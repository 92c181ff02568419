//! Terminals: programs on real ptys, as terminal channels.
//!
//! A terminal begins in two steps, because its channel needs an initial state in the log before its program can write:
//! [`Terminals::prepare`] checks the request and returns that state, [`Prepared::start`] runs the program. The output of the
//! program becomes `terminal/data`. While the log is busy, output is buffered up to a limit; then the pty is not read, so that
//! the program waits. Nothing is dropped.
//!
//! An action of a client takes two steps too: [`Terminals::accept`] checks whether it may be logged, and
//! [`AcceptedAction::perform`] carries it out once it is in the log.
//!
//! The protocol's reducer never removes output. So when a terminal's content has grown to
//! [`TerminalConfig::max_scrollback_bytes`], one batch clears it and sends its last lines again, after a line that says how
//! much is gone. Entries whose output is no longer in the content are trimmed from the log, step by step ([`ActionSink::trim`]).
//!
//! The output of a program that nobody [watches](Terminals::set_watched) is read slowly, so that the program waits; that of a
//! watched program is read as fast as [`TerminalConfig::watched_rate`] allows. Both may write a few seconds' worth at once.

mod claim;
mod client_actions;
mod decode;
mod program;
mod rate_limit;
mod registry;
mod scrollback;
mod task;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::StateAction;
use ahp_types::commands::CreateTerminalParams;
use ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use ahp_types::state::{TerminalInfo, TerminalState};
use thiserror::Error;

use self::claim::MAX_TITLE_CHARS;
pub use self::claim::TerminalRejection;
pub(crate) use self::claim::is_free;
pub(crate) use self::claim::is_of_client;
pub use self::client_actions::AcceptedAction;
use self::program::Program;
use self::registry::{Registry, Terminal};
use crate::action_sink::ActionSink;
use crate::error::MethodError;
use crate::files::{UriError, path_of, uri_of};
use crate::log::{AppendError, Seq};

/// What terminals may cost, and what they run.
#[derive(Debug, Clone)]
pub struct TerminalConfig {
    /// The directories in which terminals may start. One without a `cwd` starts in the first.
    pub roots: Vec<PathBuf>,
    /// The program and its arguments. By default the user's shell.
    pub command: Vec<OsString>,
    /// Set in the program's environment beside what the host itself has.
    pub env: Vec<(OsString, OsString)>,
    /// Prefixes of environment variables that the program does not get. By default none. Variables that begin with
    /// `BREAKBULK_` are never passed on, because they may contain a token.
    pub hidden_env: Vec<String>,
    /// The most terminals, including exited ones that nobody disposed of. By default 64.
    pub max_terminals: usize,
    /// Bytes of output that may wait for the log; with more, the program waits. By default 256 KiB.
    pub max_pending_bytes: usize,
    /// Bytes of input that may wait for the program; more is rejected. By default 4 MiB.
    pub max_input_bytes: u32,
    /// Bytes of output that are logged in a second while nobody watches; with more, the program waits. By default 64 KiB.
    pub unwatched_rate: u64,
    /// The same while somebody watches. By default 4 MiB.
    pub watched_rate: u64,
    /// The most bytes of content; then old output is removed. By default 1 MiB.
    pub max_scrollback_bytes: usize,
    /// How much of the content remains then. By default 256 KiB.
    pub kept_scrollback_bytes: usize,
    /// The time between the hangup and the kill when a terminal is disposed of. By default 500 ms.
    pub hangup_grace: Duration,
}

impl TerminalConfig {
    /// The defaults, in these roots.
    #[must_use]
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self {
            roots,
            command: vec![std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh".into())],
            env: Vec::new(),
            hidden_env: Vec::new(),
            max_terminals: 64,
            max_pending_bytes: 256 << 10,
            max_input_bytes: 4 << 20,
            unwatched_rate: 64 << 10,
            watched_rate: 4 << 20,
            max_scrollback_bytes: 1 << 20,
            kept_scrollback_bytes: 256 << 10,
            hangup_grace: Duration::from_millis(500),
        }
    }
}

/// Why a terminal method fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TerminalError {
    /// There is no terminal on this channel.
    #[error("no terminal {0}")]
    NotFound(String),
    /// The channel is taken.
    #[error("terminal {0} exists")]
    Exists(String),
    /// The URI is not one of a terminal.
    #[error("{0:?} is not the URI of a terminal")]
    BadChannel(String),
    /// The limit of terminals is reached.
    #[error("{0} terminals are open, which is the limit (max_terminals)")]
    TooMany(usize),
    /// The working directory is no file URI.
    #[error("cwd: {0}")]
    BadCwd(#[from] UriError),
    /// The working directory is not there or no directory.
    #[error("cwd: no directory {}", .0.display())]
    NoDirectory(PathBuf),
    /// The working directory is outside of the roots.
    #[error("cwd is outside of the roots")]
    Outside,
    /// The size is invalid.
    #[error("{cols} columns and {rows} rows are not a valid size")]
    BadSize {
        /// Columns asked for.
        cols: i64,
        /// Rows asked for.
        rows: i64,
    },
    /// The name is too long, or has control characters.
    #[error("name has {chars} characters: the limit is {MAX_TITLE_CHARS}, and control characters are not allowed")]
    BadName {
        /// How many characters it has.
        chars: usize,
    },
    /// The program does not start.
    #[error("cannot start the program: {0}")]
    Start(String),
    /// The log refused an action.
    #[error(transparent)]
    Log(#[from] AppendError),
}

impl TerminalError {
    /// Its code on the wire.
    #[must_use]
    pub const fn code(&self) -> i32 {
        match self {
            Self::NotFound(_) | Self::NoDirectory(_) => ahp_error_codes::NOT_FOUND,
            Self::Exists(_) => ahp_error_codes::ALREADY_EXISTS,
            Self::Outside => ahp_error_codes::PERMISSION_DENIED,
            Self::BadChannel(_) | Self::BadCwd(_) | Self::BadSize { .. } | Self::BadName { .. } => {
                json_rpc_error_codes::INVALID_PARAMS
            }
            Self::TooMany(_) | Self::Start(_) | Self::Log(_) => json_rpc_error_codes::INTERNAL_ERROR,
        }
    }
}

impl From<TerminalError> for MethodError {
    fn from(error: TerminalError) -> Self {
        match error {
            TerminalError::Log(AppendError::Full) => Self::log_full(),
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

/// All terminals of a host. When this is dropped, their programs are killed.
pub struct Terminals {
    list: Arc<Registry>,
}

/// What a terminal runs, if not the configured command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TerminalProgram {
    /// The program and its arguments. They reach the program as they are, without a shell.
    pub(crate) command: Vec<OsString>,
    /// Set in the program's environment beside what every terminal has.
    pub(crate) env: Vec<(OsString, OsString)>,
}

/// A terminal whose channel may be opened now. If it is dropped without a [start](Prepared::start), its name is free again.
#[must_use]
pub struct Prepared {
    list: Arc<Registry>,
    terminal: Arc<Terminal>,
    dir: PathBuf,
    program: Option<TerminalProgram>,
    started: bool,
}

impl Terminals {
    /// No terminals yet. Their actions go to `act`.
    #[must_use]
    pub fn new(act: Arc<dyn ActionSink>, config: TerminalConfig) -> Self {
        Self { list: Arc::new(Registry::new(act, config)) }
    }

    /// As [`prepare_program`](Self::prepare_program), with the configured program.
    #[cfg(any(test, feature = "test-support"))]
    pub async fn prepare(&self, params: CreateTerminalParams) -> Result<Prepared, TerminalError> {
        self.prepare_program(params, None).await
    }

    /// Checks a `createTerminal` and reserves its channel. The terminal runs this program, or the configured one.
    ///
    /// The caller checks whether a session that claims the terminal exists.
    pub(crate) async fn prepare_program(
        &self,
        params: CreateTerminalParams,
        program: Option<TerminalProgram>,
    ) -> Result<Prepared, TerminalError> {
        if !is_channel(&params.channel) {
            return Err(TerminalError::BadChannel(params.channel));
        }
        let size = size_of(params.cols.unwrap_or(DEFAULT_COLS), params.rows.unwrap_or(DEFAULT_ROWS))?;
        let title = params.name.unwrap_or_else(|| "Terminal".to_owned());
        if !claim::is_title(&title) {
            return Err(TerminalError::BadName { chars: title.chars().count() });
        }
        let dir = self.directory(params.cwd.as_deref()).await?;
        let terminal = Arc::new(Terminal::new(params.channel, title, params.claim, uri_of(&dir), size));
        self.list.reserve(&terminal)?;
        Ok(Prepared { list: self.list.clone(), terminal, dir, program, started: false })
    }

    /// Kills the terminal's program and everything that it started on this terminal, and removes the terminal from the list.
    pub async fn dispose(&self, channel: &str) -> Result<(), TerminalError> {
        let terminal = self.list.find(channel).ok_or_else(|| TerminalError::NotFound(channel.to_owned()))?;
        let list = self.list.clone();
        // On a task of its own, so that it is completed even if the caller is dropped.
        let disposed = tokio::spawn(async move {
            terminal.stop().await;
            list.remove(&terminal.channel).await
        });
        Ok(disposed.await.unwrap_or(Err(AppendError::Closed))?)
    }

    /// Waits until the program of a terminal has exited and that is in the log. Returns at once if there is no such terminal.
    pub(crate) async fn exited(&self, channel: &str) {
        let Some(terminal) = self.list.find(channel) else { return };
        let (mut exited, mut stopped) = (terminal.exited.subscribe(), terminal.stopped.subscribe());
        tokio::select! {
            _ = exited.wait_for(|is_exited| *is_exited) => {}
            _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
        }
    }

    /// Kills the program of a terminal. The terminal stays, and says that it has exited.
    pub(crate) fn kill(&self, channel: &str) {
        if let Some(terminal) = self.list.find(channel) {
            terminal.kill.notify_one();
        }
    }

    /// Checks whether this action of a client may be logged now, and reserves what it needs to be carried out.
    pub fn accept(
        &self,
        client: &str,
        channel: &str,
        action: &StateAction,
    ) -> Result<AcceptedAction, TerminalRejection> {
        let terminal = self.list.find(channel).ok_or(TerminalRejection::NoTerminal)?;
        client_actions::accept(&self.list, terminal, client, action)
    }

    /// Releases the terminals of this client: logs that nobody holds them, so that anybody may claim them.
    pub async fn release(&self, client: &str) -> Result<(), AppendError> {
        self.list.release(client).await
    }

    /// Sets whether anybody watches a terminal. At first nobody does.
    pub fn set_watched(&self, channel: &str, is_watched: bool) {
        self.list.set_watched(channel, is_watched);
    }

    /// Notes that an [accepted](Self::accept) action is in the log; returns the seq up to which the channel may be trimmed now,
    /// if any.
    #[must_use]
    pub fn logged(&self, channel: &str, seq: Seq) -> Option<Seq> {
        self.list.find(channel)?.logged(seq, 0, &self.list.config)
    }

    /// Logs the list of terminals on the root channel. For a host that starts: the terminals of its last run are gone.
    pub async fn announce(&self) -> Result<(), TerminalError> {
        Ok(self.list.announce().await?)
    }

    /// The terminals as `RootState.terminals` has them.
    #[must_use]
    pub fn infos(&self) -> Vec<TerminalInfo> {
        self.list.infos()
    }

    /// Kills every program and waits until they are gone. Nothing more is logged for them.
    pub async fn stop(&self) {
        self.list.stop().await;
    }

    async fn directory(&self, cwd: Option<&str>) -> Result<PathBuf, TerminalError> {
        let roots = self.list.config.roots.clone();
        let asked = match cwd {
            Some(uri) => path_of(uri)?,
            None => roots.first().cloned().ok_or(TerminalError::Outside)?,
        };
        // A slow file system must not block the runtime.
        let found = tokio::task::spawn_blocking(move || inside(&asked, &roots)).await;
        found.unwrap_or(Err(TerminalError::Outside))
    }
}

impl Drop for Terminals {
    fn drop(&mut self) {
        self.list.abort();
    }
}

impl Prepared {
    /// The terminal's channel.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.terminal.channel
    }

    /// What the channel begins with.
    #[must_use]
    pub fn state(&self) -> TerminalState {
        self.terminal.initial()
    }

    /// Runs the program and logs the new list of terminals. The channel must be open by now.
    pub async fn start(mut self) -> Result<(), TerminalError> {
        let program = Program::start(&self.list.config, self.program.as_ref(), &self.dir, self.terminal.shown().size)?;
        // On a task of its own, so that it is completed even if the caller is dropped.
        let started = tokio::spawn(async move {
            self.terminal.show(|shown| shown.announced = true);
            self.list.announce().await?;
            self.started = true;
            task::run(&self.list, &self.terminal, program);
            Ok(())
        });
        Ok(started.await.unwrap_or(Err(AppendError::Closed))?)
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.started {
            self.list.forget(&self.terminal.channel);
        }
    }
}

/// What xterm begins with.
const DEFAULT_COLS: i64 = 80;
const DEFAULT_ROWS: i64 = 24;

/// Checks a size. Larger ones would only cost the program memory.
fn size_of(cols: i64, rows: i64) -> Result<(u16, u16), TerminalError> {
    const MOST: u16 = 4096;
    let valid = |value: i64| u16::try_from(value).ok().filter(|value| (1..=MOST).contains(value));
    valid(cols).zip(valid(rows)).ok_or(TerminalError::BadSize { cols, rows })
}

/// Clients choose the URI of a terminal; it must have the right scheme and a reasonable length.
fn is_channel(uri: &str) -> bool {
    uri.strip_prefix("ahp-terminal:/")
        .is_some_and(|name| (1..=200).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// Resolves a directory, if it is inside of the roots. Touches the file system.
pub(crate) fn inside(dir: &Path, roots: &[PathBuf]) -> Result<PathBuf, TerminalError> {
    let real_roots: Vec<_> = roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    let is_inside = |path: &Path| real_roots.iter().chain(roots).any(|root| path.starts_with(root));
    let real = dir.canonicalize();
    // The error must not reveal whether something outside of the roots exists.
    if !is_inside(real.as_deref().unwrap_or(dir)) {
        return Err(TerminalError::Outside);
    }
    let real = real.map_err(|_| TerminalError::NoDirectory(dir.to_owned()))?;
    if real.is_dir() { Ok(real) } else { Err(TerminalError::NoDirectory(dir.to_owned())) }
}
