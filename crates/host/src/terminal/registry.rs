//! The terminals of a host, and their list on the root channel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{RootTerminalsChangedAction, StateAction, TerminalClaimedAction};
use ahp_types::state::{
    TerminalClaim, TerminalInfo, TerminalLifecycleState, TerminalRunningLifecycleState, TerminalState,
};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use super::claim;
use super::client_actions::ProgramRequest;
use super::{TerminalConfig, TerminalError};
use crate::action_sink::{ActionSink, TrimSchedule};
use crate::lock::lock;
use crate::log::{AppendError, Seq};

pub(super) struct Registry {
    pub(super) config: TerminalConfig,
    act: Arc<dyn ActionSink>,
    terminal: Mutex<BTreeMap<String, Arc<Terminal>>>,
    /// Locked while a list is appended, so that lists are logged in order.
    root: tokio::sync::Mutex<()>,
}

/// One terminal.
pub(super) struct Terminal {
    pub(super) channel: String,
    pub(super) cwd: String,
    shown: Mutex<TerminalView>,
    /// Limits the bytes of input that wait. Set when the program starts.
    pub(super) input: Mutex<Option<Arc<Semaphore>>>,
    pub(super) requests: mpsc::UnboundedSender<ProgramRequest>,
    pub(super) waiting: Mutex<Option<mpsc::UnboundedReceiver<ProgramRequest>>>,
    pub(super) stopped: watch::Sender<bool>,
    pub(super) watched: watch::Sender<bool>,
    /// Whether the program has exited, and that is in the log.
    pub(super) exited: watch::Sender<bool>,
    /// Notified when the program is to be killed.
    pub(super) kill: Notify,
    ledger: Mutex<TrimSchedule>,
    pub(super) task: Mutex<Option<JoinHandle<()>>>,
}

/// The properties of a terminal that clients see and that change.
#[derive(Debug, Clone)]
pub(super) struct TerminalView {
    pub(super) title: String,
    pub(super) claim: TerminalClaim,
    pub(super) lifecycle: TerminalLifecycleState,
    pub(super) size: (u16, u16),
    /// Whether it is in the list of terminals.
    pub(super) announced: bool,
}

impl Registry {
    pub(super) fn new(act: Arc<dyn ActionSink>, config: TerminalConfig) -> Self {
        Self { config, act, terminal: Mutex::default(), root: tokio::sync::Mutex::default() }
    }

    /// Reserves the channel's name for this terminal.
    pub(super) fn reserve(&self, terminal: &Arc<Terminal>) -> Result<(), TerminalError> {
        let mut all = lock(&self.terminal);
        if all.contains_key(&terminal.channel) {
            return Err(TerminalError::Exists(terminal.channel.clone()));
        }
        if all.len() >= self.config.max_terminals {
            return Err(TerminalError::TooMany(all.len()));
        }
        all.insert(terminal.channel.clone(), terminal.clone());
        Ok(())
    }

    pub(super) fn find(&self, channel: &str) -> Option<Arc<Terminal>> {
        lock(&self.terminal).get(channel).filter(|terminal| terminal.shown().announced).cloned()
    }

    pub(super) fn set_watched(&self, channel: &str, is_watched: bool) {
        if let Some(terminal) = lock(&self.terminal).get(channel) {
            terminal.watched.send_replace(is_watched);
        }
    }

    /// Releases the name.
    pub(super) fn forget(&self, channel: &str) {
        lock(&self.terminal).remove(channel);
    }

    pub(super) async fn remove(&self, channel: &str) -> Result<(), AppendError> {
        self.forget(channel);
        self.announce().await
    }

    pub(super) fn infos(&self) -> Vec<TerminalInfo> {
        lock(&self.terminal).values().filter_map(|terminal| terminal.info()).collect()
    }

    /// Appends these actions.
    pub(super) async fn log(&self, actions: Vec<(String, StateAction)>) -> Result<Vec<Seq>, AppendError> {
        self.act.append_actions(actions).await
    }

    /// Trims a channel up to this seq.
    pub(super) async fn trim(&self, channel: &str, upto: Seq) {
        self.act.trim(channel, upto).await;
    }

    /// Appends these actions together with the present list.
    pub(super) async fn log_with_list(&self, mut actions: Vec<(String, StateAction)>) -> Result<Vec<Seq>, AppendError> {
        let _order = self.root.lock().await;
        let list = RootTerminalsChangedAction { terminals: self.infos() };
        actions.push((ROOT_RESOURCE_URI.to_owned(), StateAction::RootTerminalsChanged(list)));
        self.log(actions).await
    }

    /// Appends the present list to the root channel.
    pub(super) async fn announce(&self) -> Result<(), AppendError> {
        self.log_with_list(Vec::new()).await.map(drop)
    }

    /// Removes the claims of this client, and logs that. If appending fails, the claims stay.
    pub(super) async fn release(&self, client: &str) -> Result<(), AppendError> {
        let is_held =
            |terminal: &&Arc<Terminal>| terminal.info().is_some_and(|info| claim::is_of_client(&info.claim, client));
        let held: Vec<_> = lock(&self.terminal).values().filter(is_held).cloned().collect();
        if held.is_empty() {
            return Ok(());
        }
        let claimed = |terminal: &Arc<Terminal>| {
            let claimed = StateAction::TerminalClaimed(TerminalClaimedAction { claim: claim::nobody() });
            (terminal.channel.clone(), claimed)
        };
        let before: Vec<_> = held.iter().map(|terminal| terminal.shown().claim).collect();
        held.iter().for_each(|terminal| terminal.show(|shown| shown.claim = claim::nobody()));
        let logged = self.log_with_list(held.iter().map(claimed).collect()).await;
        if logged.is_err() {
            held.iter().zip(before).for_each(|(terminal, claim)| terminal.show(|shown| shown.claim = claim));
        }
        logged.map(drop)
    }

    pub(super) async fn stop(&self) {
        let all: Vec<_> = std::mem::take(&mut *lock(&self.terminal)).into_values().collect();
        // All are told to stop before the first is waited for, so that their grace periods overlap.
        all.iter().for_each(|terminal| terminal.tell_to_stop());
        for terminal in all {
            terminal.stop().await;
        }
    }

    /// Aborts every task. Each kills its program when it is dropped.
    pub(super) fn abort(&self) {
        for terminal in lock(&self.terminal).values() {
            // A terminal that is just starting has no task yet.
            terminal.tell_to_stop();
            if let Some(task) = lock(&terminal.task).take() {
                task.abort();
            }
        }
    }
}

impl Terminal {
    pub(super) fn new(channel: String, title: String, claim: TerminalClaim, cwd: String, size: (u16, u16)) -> Self {
        let lifecycle = TerminalLifecycleState::Running(TerminalRunningLifecycleState {});
        let (requests, waiting) = mpsc::unbounded_channel();
        Self {
            channel,
            cwd,
            shown: Mutex::new(TerminalView { title, claim, lifecycle, size, announced: false }),
            input: Mutex::default(),
            requests,
            waiting: Mutex::new(Some(waiting)),
            stopped: watch::Sender::new(false),
            watched: watch::Sender::new(false),
            exited: watch::Sender::new(false),
            kill: Notify::new(),
            ledger: Mutex::default(),
            task: Mutex::default(),
        }
    }

    /// What its channel begins with.
    pub(super) fn initial(&self) -> TerminalState {
        let shown = self.shown();
        TerminalState {
            title: shown.title,
            cwd: Some(self.cwd.clone()),
            cols: Some(shown.size.0.into()),
            rows: Some(shown.size.1.into()),
            content: Vec::new(),
            lifecycle: shown.lifecycle,
            claim: shown.claim,
            supports_command_detection: None,
            is_pty: Some(true),
        }
    }

    pub(super) fn shown(&self) -> TerminalView {
        lock(&self.shown).clone()
    }

    pub(super) fn show(&self, change: impl FnOnce(&mut TerminalView)) {
        change(&mut lock(&self.shown));
    }

    /// Notes that an action with so much text is in the log; returns the seq up to which the channel may be trimmed, if any.
    pub(super) fn logged(&self, seq: Seq, bytes: usize, config: &TerminalConfig) -> Option<Seq> {
        const LEAST: usize = 64 << 10;
        let step = u64::try_from(config.max_scrollback_bytes.max(LEAST)).unwrap_or(u64::MAX);
        // Clients that watch may be a little behind.
        let step = if *self.watched.borrow() { step.saturating_mul(4) } else { step };
        lock(&self.ledger).add(seq, bytes, step)
    }

    pub(super) fn tell_to_stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Ends the program and waits for it.
    pub(super) async fn stop(&self) {
        self.tell_to_stop();
        let task = lock(&self.task).take();
        if let Some(task) = task {
            // A task that was aborted or failed has killed its program as well.
            drop(task.await);
        }
    }

    fn info(&self) -> Option<TerminalInfo> {
        let TerminalView { title, claim, lifecycle, announced, .. } = self.shown();
        announced.then(|| TerminalInfo { resource: self.channel.clone(), title, claim, lifecycle })
    }
}
