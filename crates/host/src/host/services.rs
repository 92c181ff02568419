//! The services that answer clients: the log writer, the agents and their runner, the workspace, the active clients.

use std::sync::Arc;
use std::time::Duration;

use ahp_types::commands::{CreateSessionParams, ResourceResolveParams, ResourceType};
use ahp_types::errors::ahp_error_codes::{NOT_FOUND, PROVIDER_NOT_FOUND};
use ahp_types::state::{SessionState, SessionSummary};

use super::active_clients::ActiveClients;
use super::agent_runner::AgentRunner;
use super::log_writer::{LogWriter, Transaction};
use super::sessions;
use super::workspace::Workspace;
use crate::agent::Agent;
use crate::changes::CheckedOut;
use crate::error::MethodError;
use crate::files::{FileError, OpenFile, uri_of};
use crate::v2::Feeds;

/// What the methods of the host work with.
pub(crate) struct Services {
    pub(super) log_writer: Arc<LogWriter>,
    pub(super) agents: AgentList,
    pub(super) agent_runner: Arc<AgentRunner>,
    pub(super) workspace: Arc<Workspace>,
    pub(super) active_clients: ActiveClients,
    /// What v2 clients are told of sessions.
    pub(super) feeds: Arc<Feeds>,
    /// How long a client that lost its link has to come back.
    pub(super) grace: Duration,
}

impl Services {
    pub(crate) const fn feeds(&self) -> &Arc<Feeds> {
        &self.feeds
    }

    pub(crate) const fn log_writer(&self) -> &Arc<LogWriter> {
        &self.log_writer
    }

    /// Opens a file inside of the roots for reading in pieces.
    pub(crate) async fn open_file(&self, uri: String) -> Result<OpenFile, FileError> {
        self.workspace.files().open(uri).await
    }

    /// What a directory has checked out.
    pub(crate) async fn checked_out(&self, uri: &str) -> CheckedOut {
        self.workspace.checked_out(uri).await
    }

    /// Makes a session with an empty chat, in one transaction, to which `add` adds entries.
    pub(crate) async fn make_session(
        &self,
        params: CreateSessionParams,
        add: &(dyn Fn(Transaction) -> Transaction + Sync),
    ) -> Result<(), MethodError> {
        sessions::make(self, params, None, add).await
    }

    /// The chats of a session, also if it is no longer in the catalogue.
    pub(super) async fn chats_of(&self, session: &str, summary: Option<&SessionSummary>) -> Vec<String> {
        let read =
            |session: &SessionState, _| session.chats.iter().map(|chat| chat.resource.clone()).collect::<Vec<_>>();
        let listed = || {
            let chats = summary.and_then(|summary| summary.chats.as_ref()).into_iter().flatten();
            chats.map(|chat| chat.resource.clone()).collect()
        };
        self.log_writer.session(session, read).await.ok().flatten().unwrap_or_else(listed)
    }

    /// The working directories of a new session: those that the client asked for, if they are inside of the roots, and only
    /// the first of them if the agent supports one only; without any, the agent's own, or else the first root.
    pub(super) async fn working_directories(
        &self,
        agent: &dyn Agent,
        wanted: Option<Vec<String>>,
    ) -> Result<Vec<String>, MethodError> {
        let usual = || match agent.directory() {
            Some(directory) => uri_of(directory),
            None => self.workspace.files().first_root(),
        };
        let mut wanted = wanted.filter(|wanted| !wanted.is_empty()).unwrap_or_else(|| vec![usual()]);
        let takes_many =
            agent.info().capabilities.as_ref().is_some_and(|can| can.multiple_working_directories.is_some());
        if !takes_many {
            wanted.truncate(1);
        }
        for directory in &wanted {
            self.check_directory(directory).await?;
        }
        Ok(wanted)
    }

    /// Fails if this is not a directory inside of the roots.
    pub(super) async fn check_directory(&self, uri: &str) -> Result<(), MethodError> {
        let params = ResourceResolveParams {
            channel: ahp_types::ROOT_RESOURCE_URI.to_owned(),
            meta: None,
            uri: uri.to_owned(),
            follow_symlinks: Some(true),
        };
        match self.workspace.files().resolve(params).await?.r#type {
            ResourceType::Directory => Ok(()),
            _ => Err(MethodError::new(NOT_FOUND, "the working directory is a file, not a directory")),
        }
    }
}

/// The agents of a host.
pub(crate) struct AgentList(Vec<Arc<dyn Agent>>);

impl AgentList {
    pub(super) const fn new(agents: Vec<Arc<dyn Agent>>) -> Self {
        Self(agents)
    }

    /// The agent with this name; without a name, the first one.
    pub(super) fn find(&self, provider: Option<&str>) -> Result<&Arc<dyn Agent>, MethodError> {
        let found = match provider {
            Some(name) => self.0.iter().find(|agent| agent.name() == name),
            None => self.0.first(),
        };
        found.ok_or_else(|| {
            let named = provider.map(|name| format!(" {name:?}")).unwrap_or_default();
            let why = format!("there is no agent{named} here: the root channel lists those that are");
            MethodError::new(PROVIDER_NOT_FOUND, why)
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<dyn Agent>> {
        self.0.iter()
    }
}
