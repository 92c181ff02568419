//! What goes between a program, its orders and the log.

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

use super::admit::{Order, Work};
use super::cut::{Cut, Cutter};
use super::list::{List, Live};
use super::pace::Pace;
use super::program::{Group, Program, exit_code};
use super::scroll::Scroll;
use crate::files::uri_of;
use crate::lock::lock;
use crate::log::AppendError;

/// Runs a terminal until its program ends or it is stopped.
pub(super) fn run(list: &Arc<List>, live: &Arc<Live>, program: Program) {
    *lock(&live.input) = Some(Arc::new(Semaphore::new(list.config.max_input_bytes as usize)));
    let Some(orders) = lock(&live.waiting).take() else { return };
    let task = tokio::spawn(serve(list.clone(), live.clone(), program, orders));
    *lock(&live.task) = Some(task);
}

async fn serve(list: Arc<List>, live: Arc<Live>, mut program: Program, orders: mpsc::UnboundedReceiver<Order>) {
    let config = &list.config;
    let scroll = Mutex::new(Scroll::new(config.max_scrollback_bytes, config.kept_scrollback_bytes));
    let mut stopped = live.stopped.subscribe();
    let output = Output {
        list: &list,
        live: &live,
        read: &mut program.read,
        group: &mut program.group,
        scroll: &scroll,
        cutter: Cutter::default(),
        pending: Vec::new(),
        pace: Pace::new(config.unwatched_rate, Instant::now()),
        cwd: None,
        end: End::NotYet,
    };
    let failed = tokio::select! {
        ended = output.run() => ended.err(),
        () = input(&mut program.write, orders, &scroll) => None,
        _ = stopped.wait_for(|stopped| *stopped) => None,
    };
    if let Some(error) = failed {
        tracing::warn!(channel = live.channel, %error, "a terminal is killed: the log does not take its output");
    }
    program.hang_up(config.hangup_grace).await;
}

/// Carries out orders. Never ends: a program that reads no more may still write.
async fn input(write: &mut OwnedWritePty, mut orders: mpsc::UnboundedReceiver<Order>, scroll: &Mutex<Scroll>) {
    while let Some(Order { work, share }) = orders.recv().await {
        let written = match work {
            Work::Input(data) => write.write_all(data.as_bytes()).await,
            Work::Resize(size) => write.resize(size).map_err(std::io::Error::other),
            Work::Clear => {
                lock(scroll).clear();
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
struct Output<'a> {
    list: &'a List,
    live: &'a Live,
    read: &'a mut OwnedReadPty,
    group: &'a mut Group,
    scroll: &'a Mutex<Scroll>,
    cutter: Cutter,
    /// Read, and not yet made into an action.
    pending: Vec<u8>,
    pace: Pace,
    cwd: Option<PathBuf>,
    end: End,
}

/// How far a program has come.
#[derive(Debug, Clone, Copy)]
enum End {
    NotYet,
    /// The pty has no more, but the program may live on without it.
    Silent,
    /// The program has ended; what is still in the pty is read until then.
    Exited(ExitStatus, Instant),
    /// Both.
    Over(ExitStatus),
}

/// What other processes write after the program's end is waited for this long, where the system does not hang up itself.
const DRAIN: Duration = Duration::from_secs(1);
/// One read.
const READ: usize = 16 << 10;
/// A full log is asked again after this.
const FULL: Duration = Duration::from_secs(1);

impl Output<'_> {
    /// Ends when the program has.
    async fn run(mut self) -> Result<(), AppendError> {
        loop {
            if !self.pending.is_empty() {
                self.paced().await;
                let actions = self.compose();
                self.log(actions).await?;
            } else if let End::Over(status) = self.end {
                return self.exited(status).await;
            } else {
                self.more().await;
            }
        }
    }

    /// Waits until more may go to the log, and reads on meanwhile as far as it may. The last of it does not wait.
    async fn paced(&mut self) {
        let (config, mut watched) = (&self.list.config, self.live.watched.subscribe());
        loop {
            let rate = if *watched.borrow_and_update() { config.watched_rate } else { config.unwatched_rate };
            let Some(until) = self.pace.wait(rate, Instant::now()) else { return };
            if matches!(self.end, End::Over(_)) {
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

    /// Logs, and reads on meanwhile as far as it may.
    async fn log(&mut self, (actions, listed): (Vec<(String, StateAction)>, bool)) -> Result<(), AppendError> {
        if actions.is_empty() {
            return Ok(());
        }
        let (list, own) = (self.list, actions.len());
        let bytes = actions.iter().map(|(_, action)| text_of(action)).sum();
        self.pace.spend(bytes);
        let logged = async {
            loop {
                let answer = match listed {
                    true => list.log_with_list(actions.clone()).await,
                    false => list.log(actions.clone()).await,
                };
                match answer {
                    // The program waits as long as the log does.
                    Err(AppendError::Full) => sleep(FULL).await,
                    other => return other,
                }
            }
        };
        let seqs = self.meanwhile(logged).await?;
        // With a list, the last of the seqs is the list's.
        if let Some(seq) = seqs.into_iter().take(own).next_back()
            && let Some(upto) = self.live.logged(seq, bytes, &list.config)
        {
            let live = self.live;
            self.meanwhile(list.trim(&live.channel, upto)).await;
        }
        Ok(())
    }

    /// Does something, and reads on as far as it may.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        let most = self.list.config.max_pending_bytes;
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.more(), if self.pending.len() < most && !matches!(self.end, End::Over(_)) => {}
            }
        }
    }

    /// Waits for one thing to happen: some output, or an end. Loses nothing when dropped.
    async fn more(&mut self) {
        let Self { read, group, pending, end, .. } = self;
        match *end {
            End::NotYet => {
                pending.reserve(READ);
                tokio::select! {
                    read = read.read_buf(pending) => if !read.is_ok_and(|read| read > 0) { *end = End::Silent },
                    Ok(status) = group.wait() => *end = End::Exited(status, Instant::now() + DRAIN),
                }
            }
            End::Silent => match group.wait().await {
                Ok(status) => *end = End::Over(status),
                Err(_) => std::future::pending().await,
            },
            End::Exited(status, until) => {
                pending.reserve(READ);
                tokio::select! {
                    read = read.read_buf(pending) => if !read.is_ok_and(|read| read > 0) { *end = End::Over(status) },
                    () = sleep_until(until) => *end = End::Over(status),
                }
            }
            End::Over(_) => {}
        }
    }

    /// Makes actions of what is pending; says whether the list of terminals changes with them.
    fn compose(&mut self) -> (Vec<(String, StateAction)>, bool) {
        let Cut { text, title, cwd } = self.cutter.push(&self.pending);
        self.pending.clear();
        let mut actions = self.show(&text);
        let title = title.filter(|title| *title != self.live.shown().title);
        if let Some(title) = &title {
            self.live.show(|shown| shown.title.clone_from(title));
            actions.push(StateAction::TerminalTitleChanged(TerminalTitleChangedAction { title: title.clone() }));
        }
        // The system knows better than the program's output; but not every system does.
        if let Some(cwd) = self.group.cwd().or(cwd).filter(|cwd| Some(cwd) != self.cwd.as_ref()) {
            let first = self.cwd.is_none() && uri_of(&cwd) == self.live.cwd;
            if !first {
                actions.push(StateAction::TerminalCwdChanged(TerminalCwdChangedAction { cwd: uri_of(&cwd) }));
            }
            self.cwd = Some(cwd);
        }
        (self.addressed(actions), title.is_some())
    }

    fn show(&self, text: &str) -> Vec<StateAction> {
        let data = |data: String| StateAction::TerminalData(TerminalDataAction { data });
        match lock(self.scroll).add(text) {
            _ if text.is_empty() => Vec::new(),
            Some(again) => vec![StateAction::TerminalCleared(TerminalClearedAction {}), data(again)],
            None => vec![data(text.to_owned())],
        }
    }

    async fn exited(mut self, status: ExitStatus) -> Result<(), AppendError> {
        let rest = self.cutter.finish().text;
        let mut actions = self.show(&rest);
        let exit_code = exit_code(status);
        let lifecycle = TerminalLifecycleState::Exited(TerminalExitedLifecycleState { exit_code });
        self.live.show(|shown| shown.lifecycle = lifecycle);
        actions.push(StateAction::TerminalExited(TerminalExitedAction { exit_code }));
        let actions = self.addressed(actions);
        self.log((actions, true)).await
    }

    fn addressed(&self, actions: Vec<StateAction>) -> Vec<(String, StateAction)> {
        actions.into_iter().map(|action| (self.live.channel.clone(), action)).collect()
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
