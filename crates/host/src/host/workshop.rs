//! The workshop: what the host does in the workspace for clients. Files, terminals, changesets, customizations.

mod looks;
mod people;
mod places;
mod resources;
mod session;
mod terminals;
mod touch;
mod viewers;
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

use self::looks::{Looks, Wish};
use self::people::People;
pub(super) use self::session::SCHEME;
use self::touch::Followed;
pub(super) use self::viewers::PASSING;
use self::viewers::{Leaving, Viewers};
use self::watches::Watches;
use super::desk::Desk;
use super::{HostConfig, StartError};
use crate::changes::Changes;
use crate::customize::{CompleteConfig, CustomizeConfig};
use crate::endpoint::{ClientInfo, DispatchError, Dispatched, RawParams, Reply};
use crate::error::MethodError;
use crate::exact;
use crate::files::Files;
use crate::lock::lock;
use crate::terminal::Terminals;

/// The workspace, as rooms.
pub(crate) struct Workshop {
    desk: Arc<Desk>,
    /// The directories that everything stays inside of.
    roots: Vec<PathBuf>,
    files: Files,
    terminals: Terminals,
    /// Held while an action on a terminal other than input is checked, logged and carried out.
    terminal_order: Arc<tokio::sync::Mutex<()>>,
    changes: Changes,
    customize: CustomizeConfig,
    complete: CompleteConfig,
    people: People,
    /// How long a client that lost its link has to come back before its terminals are anybody's.
    grace: Duration,
    watches: Arc<Watches>,
    looks: Looks,
    followed: Followed,
    viewers: Viewers,
    leaving: Leaving,
    tasks: Tasks,
}

impl Workshop {
    pub(crate) fn new(desk: Arc<Desk>, config: &HostConfig) -> Result<Self, StartError> {
        Ok(Self {
            roots: config.files.roots.clone(),
            files: Files::new(config.files.clone())?,
            terminals: Terminals::new(desk.clone(), config.terminals.clone()),
            terminal_order: Arc::default(),
            changes: Changes::new(desk.clone(), config.changes.clone()),
            customize: config.customize.clone(),
            complete: config.complete.clone(),
            people: People::default(),
            grace: config.files.watch_grace,
            watches: Arc::new(Watches::new(config.files.watch_grace)),
            looks: Looks::default(),
            followed: Followed::default(),
            viewers: Viewers::default(),
            leaving: Leaving::default(),
            tasks: Tasks::default(),
            desk,
        })
    }

    /// A host begins: says which terminals of its last life are gone. What sessions have is opened when somebody asks for
    /// it, so that a host with a thousand sessions begins as fast as one with none.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<(), StartError> {
        Ok(self.bury_terminals().await?)
    }

    /// Answers a method of the workspace; `None` if it is none.
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

    /// Takes an action that a client has dispatched on a terminal: checks it, logs it, carries it out.
    pub(crate) async fn dispatch(
        self: &Arc<Self>,
        client: &ClientInfo,
        dispatched: &Dispatched,
    ) -> Result<(), DispatchError> {
        self.act_on_terminal(client, dispatched).await
    }

    /// A session has begun, or its working directories have changed: looks for its changes and customizations, and logs
    /// them. Returns at once.
    pub(crate) fn opened(self: &Arc<Self>, session: &str) {
        self.want(session, Wish::Everything);
    }

    /// An agent has worked: looks at the changes of its session again. Returns at once.
    pub(crate) fn worked(self: &Arc<Self>, session: &str) {
        self.want(session, Wish::Work);
    }

    /// A session is gone: when this answers, nothing more is logged for its changesets, and its terminals are disposed of.
    pub(crate) async fn closed(self: &Arc<Self>, session: &str) {
        self.forget(session).await;
        self.dispose_terminals_of(session).await;
    }

    /// A client has come in.
    pub(crate) fn came(&self, client: &ClientInfo) {
        self.people.came(client);
    }

    /// A client follows this channel from now on.
    pub(crate) fn follows(self: &Arc<Self>, client: &ClientInfo, channel: &str) {
        if viewers::is_passing(channel) {
            self.viewers.follows(client, channel);
            self.terminals.set_watched(channel, true);
        }
        if watches::is_watch(channel) {
            self.follow_watch(client, channel);
        } else if let Some(session) = session::of_changeset(channel) {
            self.followed.follows(client, session, channel);
            self.want(session, Wish::Changes);
        } else if channel.starts_with(session::SCHEME) && !self.looks.has_looked(channel) {
            self.want(channel, Wish::Everything);
        }
    }

    /// A client has said that it does not follow this channel any more.
    pub(crate) fn left(&self, client: &ClientInfo, channel: &str) {
        if self.viewers.left(client, channel) {
            self.terminals.set_watched(channel, false);
        }
        self.watches.left(client, channel);
        self.followed.left(client, channel);
    }

    /// A connection has ended.
    pub(crate) fn gone(self: &Arc<Self>, client: &ClientInfo) {
        self.people.gone(client);
        self.release_if_gone(&client.id);
        for channel in self.viewers.gone(client) {
            self.terminals.set_watched(&channel, false);
        }
        self.watches.gone(client);
        self.followed.gone(client);
    }

    /// What lies inside of the roots.
    pub(crate) const fn files(&self) -> &Files {
        &self.files
    }

    /// Whether a client is here, on this connection or on another one.
    pub(crate) fn is_here(&self, client: &ClientInfo) -> bool {
        self.people.beside(client, &client.id).is_some()
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

/// Whether an action of a client is the workshop's to take.
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

/// What runs beside the calls. Dropping it ends all of it.
struct Tasks(Mutex<Option<JoinSet<()>>>);

impl Default for Tasks {
    fn default() -> Self {
        Self(Mutex::new(Some(JoinSet::new())))
    }
}

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.0);
        let Some(tasks) = tasks.as_mut() else { return };
        // Those that have ended are let go.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Ends all of it. Nothing more begins.
    async fn stop(&self) {
        let tasks = lock(&self.0).take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
    }
}

/// Does something to its end, also when whoever waits for it goes away.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, MethodError>> + Send + 'static,
) -> Result<T, MethodError> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|_| Err(MethodError::new(INTERNAL_ERROR, "an internal error of the host: its log has more")))
}

/// From this size on, JSON is read and written on a thread that may block.
const LARGE: usize = 128 << 10;

/// The params as the method has them.
async fn parsed<T: DeserializeOwned + Send + 'static>(params: &RawParams) -> Result<T, MethodError> {
    if params.text().len() < LARGE {
        return params.parse();
    }
    let params = params.clone();
    blocking(move || params.parse()).await
}

/// A result that may be large, as JSON.
async fn large<T: Serialize + Send + 'static>(result: T) -> Result<Message, MethodError> {
    blocking(move || json(&result)).await
}

/// A result as JSON.
pub(super) fn json(result: &impl Serialize) -> Result<Message, MethodError> {
    let text = exact::to_vec(result);
    text.map(Message::from).map_err(|error| MethodError::new(INTERNAL_ERROR, error.to_string()))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MethodError> + Send + 'static,
) -> Result<T, MethodError> {
    let broke = |_| Err(MethodError::new(INTERNAL_ERROR, "an internal error of the host: its log has more"));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(broke)
}

#[cfg(test)]
mod tests;
