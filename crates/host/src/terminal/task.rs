//! The task of a terminal: passes input to the program, and its output to the log.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp_types::actions::{
    StateAction, TerminalClearedAction, TerminalCwdChangedAction, TerminalDataAction, TerminalExitedAction,
    TerminalTitleChangedAction,
};
use ahp_types::state::{TerminalExitedLifecycleState, TerminalLifecycleState};
use pty_process::{OwnedReadPty, OwnedWritePty};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

use super::client_actions::{ProgramCommand, ProgramRequest};
use super::decode::{DecodedOutput, OutputDecoder};
use super::program::{Program, TerminalProcess, exit_code};
use super::rate_limit::RateLimit;
use super::registry::{Registry, Terminal};
use super::scrollback::Scrollback;
use crate::files::uri_of;
use crate::lock::lock;
use crate::log::AppendError;

/// Runs a terminal until its program ends or it is stopped.
pub(super) fn run(list: &Arc<Registry>, terminal: &Arc<Terminal>, program: Program) {
    *lock(&terminal.input) = Some(Arc::new(Semaphore::new(list.config.max_input_bytes as usize)));
    let Some(requests) = lock(&terminal.waiting).take() else { return };
    let task = tokio::spawn(serve(list.clone(), terminal.clone(), program, requests));
    *lock(&terminal.task) = Some(task);
}

async fn serve(
    list: Arc<Registry>,
    terminal: Arc<Terminal>,
    mut program: Program,
    requests: mpsc::UnboundedReceiver<ProgramRequest>,
) {
    let config = &list.config;
    let scrollback = Mutex::new(Scrollback::new(config.max_scrollback_bytes, config.kept_scrollback_bytes));
    let mut stopped = terminal.stopped.subscribe();
    let output = OutputPump {
        list: &list,
        terminal: &terminal,
        read: &mut program.read,
        group: &mut program.group,
        scrollback: &scrollback,
        decoder: OutputDecoder::default(),
        pending: Vec::new(),
        rate_limit: RateLimit::new(config.unwatched_rate, Instant::now()),
        cwd: None,
        end: ExitStage::NotYet,
    };
    let failed = tokio::select! {
        ended = output.run() => ended.err(),
        () = input(&mut program.write, requests, &scrollback) => None,
        _ = stopped.wait_for(|stopped| *stopped) => None,
    };
    if let Some(error) = failed {
        tracing::warn!(channel = terminal.channel, %error, "a terminal is killed: the log does not take its output");
    }
    program.hang_up(config.hangup_grace).await;
    // Also if the log did not take it: nobody waits for ever.
    terminal.exited.send_replace(true);
}

/// Handles requests. Never ends: a program that no longer reads may still write.
async fn input(
    write: &mut OwnedWritePty,
    mut requests: mpsc::UnboundedReceiver<ProgramRequest>,
    scrollback: &Mutex<Scrollback>,
) {
    while let Some(ProgramRequest { command, share }) = requests.recv().await {
        let written = match command {
            ProgramCommand::Input(data) => write.write_all(data.as_bytes()).await,
            ProgramCommand::Resize(size) => write.resize(size).map_err(std::io::Error::other),
            ProgramCommand::Clear => {
                lock(scrollback).clear();
                Ok(())
            }
        };
        drop(share);
        if let Err(error) = written {
            tracing::debug!(%error, "a program takes no input");
        }
    }
    std::future::pending().await
}

/// From the pty to the log.
struct OutputPump<'a> {
    list: &'a Registry,
    terminal: &'a Terminal,
    read: &'a mut OwnedReadPty,
    group: &'a mut TerminalProcess,
    scrollback: &'a Mutex<Scrollback>,
    decoder: OutputDecoder,
    /// Read, and not yet made into an action.
    pending: Vec<u8>,
    rate_limit: RateLimit,
    cwd: Option<PathBuf>,
    end: ExitStage,
}

/// How far the end of a program is.
#[derive(Debug, Clone, Copy)]
enum ExitStage {
    NotYet,
    /// The pty is closed, but the program still runs.
    Silent,
    /// The program has ended; the rest of its output is read until this time.
    Exited(ExitStatus, Instant),
    /// Both.
    Over(ExitStatus),
}

/// How long output of other processes is read after the program's end, where the system does not hang up itself.
const DRAIN: Duration = Duration::from_secs(1);
/// One read.
const READ: usize = 16 << 10;
/// The wait before a full log is tried again.
const FULL: Duration = Duration::from_secs(1);

impl OutputPump<'_> {
    /// Ends when the program has.
    async fn run(mut self) -> Result<(), AppendError> {
        loop {
            if !self.pending.is_empty() {
                self.paced().await;
                let actions = self.compose();
                self.log(actions).await?;
            } else if let ExitStage::Over(status) = self.end {
                return self.exited(status).await;
            } else {
                self.more().await;
            }
        }
    }

    /// Waits until the rate limit allows more, and reads on meanwhile up to the buffer limit. The last output does not wait.
    async fn paced(&mut self) {
        let (config, mut watched) = (&self.list.config, self.terminal.watched.subscribe());
        loop {
            let rate = if *watched.borrow_and_update() { config.watched_rate } else { config.unwatched_rate };
            let Some(until) = self.rate_limit.wait(rate, Instant::now()) else { return };
            if matches!(self.end, ExitStage::Over(_)) {
                return;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                // The sender is in what we hold.
                _ = watched.changed() => {}
                () = self.more(), if self.pending.len() < config.max_pending_bytes => {}
            }
        }
    }

    /// Appends actions, and reads on meanwhile up to the buffer limit.
    async fn log(&mut self, (actions, listed): (Vec<(String, StateAction)>, bool)) -> Result<(), AppendError> {
        if actions.is_empty() {
            return Ok(());
        }
        let (list, own) = (self.list, actions.len());
        let bytes = actions.iter().map(|(_, action)| text_of(action)).sum();
        self.rate_limit.spend(bytes);
        let logged = async {
            loop {
                let answer = match listed {
                    true => list.log_with_list(actions.clone()).await,
                    false => list.log(actions.clone()).await,
                };
                match answer {
                    // While the log is full, the program waits.
                    Err(AppendError::Full) => sleep(FULL).await,
                    other => return other,
                }
            }
        };
        let seqs = self.meanwhile(logged).await?;
        // With a list, the last of the seqs is the list's.
        if let Some(seq) = seqs.into_iter().take(own).next_back()
            && let Some(upto) = self.terminal.logged(seq, bytes, &list.config)
        {
            let terminal = self.terminal;
            self.meanwhile(list.trim(&terminal.channel, upto)).await;
        }
        Ok(())
    }

    /// Waits for `work`, and reads on meanwhile up to the buffer limit.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        let most = self.list.config.max_pending_bytes;
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.more(), if self.pending.len() < most && !matches!(self.end, ExitStage::Over(_)) => {}
            }
        }
    }

    /// Waits for some output, or for an end. Cancel-safe.
    async fn more(&mut self) {
        let Self { read, group, pending, end, terminal, .. } = self;
        match *end {
            ExitStage::NotYet => {
                pending.reserve(READ);
                tokio::select! {
                    read = read.read_buf(pending) => if !read.is_ok_and(|read| read > 0) { *end = ExitStage::Silent },
                    Ok(status) = group.wait() => *end = ExitStage::Exited(status, Instant::now() + DRAIN),
                    () = terminal.kill.notified() => group.kill(),
                }
            }
            ExitStage::Silent => tokio::select! {
                waited = group.wait() => match waited {
                    Ok(status) => *end = ExitStage::Over(status),
                    Err(_) => std::future::pending().await,
                },
                () = terminal.kill.notified() => group.kill(),
            },
            ExitStage::Exited(status, until) => {
                pending.reserve(READ);
                tokio::select! {
                    read = read.read_buf(pending) => if !read.is_ok_and(|read| read > 0) { *end = ExitStage::Over(status) },
                    () = sleep_until(until) => *end = ExitStage::Over(status),
                }
            }
            ExitStage::Over(_) => {}
        }
    }

    /// Makes actions of the pending output; returns whether the list of terminals changes with them.
    fn compose(&mut self) -> (Vec<(String, StateAction)>, bool) {
        let DecodedOutput { text, title, cwd } = self.decoder.push(&self.pending);
        self.pending.clear();
        let mut actions = self.show(&text);
        let title = title.filter(|title| *title != self.terminal.shown().title);
        if let Some(title) = &title {
            self.terminal.show(|shown| shown.title.clone_from(title));
            actions.push(StateAction::TerminalTitleChanged(TerminalTitleChangedAction { title: title.clone() }));
        }
        // The system's answer is more reliable than the program's output, but not every system has one.
        if let Some(cwd) = self.group.cwd().or(cwd).filter(|cwd| Some(cwd) != self.cwd.as_ref()) {
            let first = self.cwd.is_none() && uri_of(&cwd) == self.terminal.cwd;
            if !first {
                actions.push(StateAction::TerminalCwdChanged(TerminalCwdChangedAction { cwd: uri_of(&cwd) }));
            }
            self.cwd = Some(cwd);
        }
        (self.addressed(actions), title.is_some())
    }

    fn show(&self, text: &str) -> Vec<StateAction> {
        let data = |data: String| StateAction::TerminalData(TerminalDataAction { data });
        match lock(self.scrollback).add(text) {
            _ if text.is_empty() => Vec::new(),
            Some(again) => vec![StateAction::TerminalCleared(TerminalClearedAction {}), data(again)],
            None => vec![data(text.to_owned())],
        }
    }

    async fn exited(mut self, status: ExitStatus) -> Result<(), AppendError> {
        let rest = self.decoder.finish().text;
        let mut actions = self.show(&rest);
        let exit_code = exit_code(status);
        let lifecycle = TerminalLifecycleState::Exited(TerminalExitedLifecycleState { exit_code });
        self.terminal.show(|shown| shown.lifecycle = lifecycle);
        actions.push(StateAction::TerminalExited(TerminalExitedAction { exit_code }));
        let actions = self.addressed(actions);
        self.log((actions, true)).await?;
        self.terminal.exited.send_replace(true);
        Ok(())
    }

    fn addressed(&self, actions: Vec<StateAction>) -> Vec<(String, StateAction)> {
        actions.into_iter().map(|action| (self.terminal.channel.clone(), action)).collect()
    }
}

/// Bytes of text in an action.
fn text_of(action: &StateAction) -> usize {
    match action {
        StateAction::TerminalData(data) => data.data.len(),
        StateAction::TerminalTitleChanged(changed) => changed.title.len(),
        StateAction::TerminalCwdChanged(changed) => changed.cwd.len(),
        _ => 0,
    }
}
