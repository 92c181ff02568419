//! The workspace: files, terminals, watches, changesets and customizations inside the roots, behind their methods.

mod agent_services;
mod byte_range;
mod changed_files;
mod connected_clients;
mod directories;
mod resources;
mod scan_queue;
mod session_scan;
mod temporary_channels;
mod terminals;
mod watches;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp_types::actions::StateAction;
use ahp_types::errors::json_rpc_error_codes::INTERNAL_ERROR;
use breakbulk_proto::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use self::changed_files::ChangesetFollowers;
use self::connected_clients::ConnectedClients;
pub(super) use self::connected_clients::{ClientKey, key as client_key};
use self::scan_queue::{ScanQueue, ScanScope};
pub(super) use self::session_scan::SESSION_SCHEME;
pub(super) use self::temporary_channels::TEMPORARY_CHANNELS;
use self::temporary_channels::{ChannelFollowers, PendingErasures};
use self::watches::Watches;
use super::log_writer::LogWriter;
use super::{HostConfig, StartError};
use crate::changes::{Changes, CheckedOut};
use crate::customize::{CompleteConfig, CustomizeConfig};
use crate::endpoint::{ClientInfo, DispatchError, Dispatched, RawParams, Reply};
use crate::error::MethodError;
use crate::exact;
use crate::files::{Files, path_of};
use crate::lock::lock;
use crate::terminal::Terminals;

/// What the host does in its roots for clients and sessions.
pub(crate) struct Workspace {
    log_writer: Arc<LogWriter>,
    /// Nothing outside of these directories is read or changed.
    roots: Vec<PathBuf>,
    files: Files,
    terminals: Terminals,
    /// Locked while an action on a terminal other than input is checked, logged and carried out.
    terminal_order: Arc<tokio::sync::Mutex<()>>,
    changes: Changes,
    customize: CustomizeConfig,
    complete: CompleteConfig,
    connected_clients: ConnectedClients,
    /// How long a client that lost its link has to come back before everybody may claim its terminals.
    grace: Duration,
    watches: Arc<Watches>,
    scan_queue: ScanQueue,
    changeset_followers: ChangesetFollowers,
    channel_followers: ChannelFollowers,
    pending_erasures: PendingErasures,
    tasks: BackgroundTasks,
}

impl Workspace {
    pub(crate) fn new(log_writer: Arc<LogWriter>, config: &HostConfig) -> Result<Self, StartError> {
        Ok(Self {
            roots: config.files.roots.clone(),
            files: Files::new(config.files.clone())?,
            terminals: Terminals::new(log_writer.clone(), config.terminals.clone()),
            terminal_order: Arc::default(),
            changes: Changes::new(log_writer.clone(), config.changes.clone()),
            customize: config.customize.clone(),
            complete: config.complete.clone(),
            connected_clients: ConnectedClients::default(),
            grace: config.reconnect_grace,
            watches: Arc::new(Watches::new(config.reconnect_grace)),
            scan_queue: ScanQueue::default(),
            changeset_followers: ChangesetFollowers::default(),
            channel_followers: ChannelFollowers::default(),
            pending_erasures: PendingErasures::default(),
            tasks: BackgroundTasks::default(),
            log_writer,
        })
    }

    /// Erases the terminals and watches of an earlier run of the host. Changesets are opened when a client asks for them,
    /// so a host with a thousand sessions starts as fast as one with none.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), StartError> {
        self.erase_left_channels().await?;
        Ok(self.clear_terminal_list().await?)
    }

    /// What a directory has checked out. Nothing, if it is no directory of this host.
    pub(crate) async fn checked_out(&self, uri: &str) -> CheckedOut {
        match path_of(uri) {
            Ok(path) => self.changes.checked_out(path).await,
            Err(_) => CheckedOut::default(),
        }
    }

    /// Answers a method of the workspace; `None` if it is a method of another service.
    pub(crate) async fn call(
        self: &Arc<Self>,
        client: &ClientInfo,
        method: &str,
        params: &RawParams,
    ) -> Option<Result<Reply, MethodError>> {
        let answer = match method {
            "createResourceWatch" => self.create_watch(client, params).await,
            "createTerminal" => self.create_terminal(client, params).await,
            "disposeTerminal" => self.dispose_terminal(client, params).await,
            "invokeChangesetOperation" => self.invoke(params).await,
            "completions" => self.complete(params).await,
            _ => return self.resource(client, method, params).await,
        };
        Some(answer.map(Reply::from))
    }

    /// Checks, logs and carries out an action that a client has dispatched on a terminal.
    pub(crate) async fn dispatch(
        self: &Arc<Self>,
        client: &ClientInfo,
        dispatched: &Dispatched,
    ) -> Result<(), DispatchError> {
        self.act_on_terminal(client, dispatched).await
    }

    /// A session was made, or its working directories have changed: scans it for changes and customizations, and logs
    /// them. Returns at once.
    pub(crate) fn session_changed(self: &Arc<Self>, session: &str) {
        self.request_scan(session, ScanScope::Everything);
    }

    /// An agent has worked: scans its session for changes. Returns at once.
    pub(crate) fn agent_worked(self: &Arc<Self>, session: &str) {
        self.request_scan(session, ScanScope::ChangesAndEffects);
    }

    /// A session is disposed of: ends its scans and terminals. Afterwards nothing more is logged for its changesets.
    pub(crate) async fn session_disposed(self: &Arc<Self>, session: &str) {
        self.forget_scans(session).await;
        self.dispose_terminals_of(session).await;
    }

    /// A client has connected.
    pub(crate) fn client_connected(&self, client: &ClientInfo) {
        self.connected_clients.add(client);
    }

    /// Waits until no scan runs and none is requested.
    #[cfg(feature = "test-support")]
    pub(crate) async fn scans_ended(&self) {
        while !self.scan_queue.is_idle() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// A client has subscribed to a channel.
    pub(crate) fn client_subscribed(self: &Arc<Self>, client: &ClientInfo, channel: &str) {
        if temporary_channels::is_temporary(channel) {
            self.channel_followers.add(client, channel);
            self.terminals.set_watched(channel, true);
        }
        if watches::is_watch(channel) {
            self.follow_watch(client, channel);
        } else if let Some(session) = session_scan::of_changeset(channel) {
            self.changeset_followers.add(client, session, channel);
            self.request_scan(session, ScanScope::Changes);
        } else if channel.starts_with(session_scan::SESSION_SCHEME) && !self.scan_queue.is_scanned(channel) {
            self.request_scan(channel, ScanScope::Everything);
        }
    }

    /// A client has unsubscribed from a channel.
    pub(crate) fn client_unsubscribed(&self, client: &ClientInfo, channel: &str) {
        if self.channel_followers.remove(client, channel) {
            self.terminals.set_watched(channel, false);
        }
        self.watches.unsubscribed(client, channel);
        self.changeset_followers.remove(client, channel);
    }

    /// A connection has ended.
    pub(crate) fn client_disconnected(self: &Arc<Self>, client: &ClientInfo) {
        self.connected_clients.remove(client);
        self.release_if_gone(&client.id);
        for channel in self.channel_followers.remove_connection(client) {
            self.terminals.set_watched(&channel, false);
        }
        self.watches.disconnected(client);
        self.changeset_followers.remove_connection(client);
    }

    /// The files inside of the roots.
    pub(crate) const fn files(&self) -> &Files {
        &self.files
    }

    /// Whether a client is connected, on this connection or on another one.
    pub(crate) fn is_connected(&self, client: &ClientInfo) -> bool {
        self.connected_clients.of_same_principal(client, &client.id).is_some()
    }

    /// How many terminals and watches there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.terminals.infos().len(), self.watches.count())
    }

    /// Ends terminals and watches.
    pub(crate) async fn stop(&self) {
        self.tasks.stop().await;
        self.terminals.stop().await;
    }
}

/// Whether an action is one on a terminal, which the workspace carries out.
pub(crate) const fn takes(action: &StateAction) -> bool {
    matches!(
        action,
        StateAction::TerminalInput(_)
            | StateAction::TerminalResized(_)
            | StateAction::TerminalClaimed(_)
            | StateAction::TerminalTitleChanged(_)
            | StateAction::TerminalCleared(_)
    )
}

/// BackgroundTasks that outlive the calls which started them. Dropping it aborts them.
struct BackgroundTasks(Mutex<Option<JoinSet<()>>>);

impl Default for BackgroundTasks {
    fn default() -> Self {
        Self(Mutex::new(Some(JoinSet::new())))
    }
}

impl BackgroundTasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.0);
        let Some(tasks) = tasks.as_mut() else { return };
        // Ended tasks are removed.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Aborts all tasks. No new one begins.
    async fn stop(&self) {
        let tasks = lock(&self.0).take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
    }
}

/// Runs some work to its end, also when the caller is dropped.
pub(super) async fn run_to_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, MethodError>> + Send + 'static,
) -> Result<T, MethodError> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|_| Err(MethodError::new(INTERNAL_ERROR, "an internal error of the host: its log has more")))
}

/// From this size on, JSON is parsed and written on a thread that may block.
const BLOCKING_BYTES: usize = 128 << 10;

/// Parses the params of a method, which may be large.
async fn parsed<T: DeserializeOwned + Send + 'static>(params: &RawParams) -> Result<T, MethodError> {
    if params.text().len() < BLOCKING_BYTES {
        return params.parse();
    }
    let params = params.clone();
    blocking(move || params.parse()).await
}

/// Writes a result that may be large as JSON.
async fn large_json<T: Serialize + Send + 'static>(result: T) -> Result<Message, MethodError> {
    blocking(move || json(&result)).await
}

/// Writes a result as JSON.
pub(super) fn json(result: &impl Serialize) -> Result<Message, MethodError> {
    let text = exact::to_vec(result);
    text.map(Message::from).map_err(|error| MethodError::new(INTERNAL_ERROR, error.to_string()))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MethodError> + Send + 'static,
) -> Result<T, MethodError> {
    let panicked = |_| Err(MethodError::new(INTERNAL_ERROR, "an internal error of the host: its log has more"));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests;
