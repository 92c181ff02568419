//! The host: opens a log, connects the services, serves clients and stops.
//!
//! ```text
//!  client ─▶ Endpoint ─▶ Router ─┬─ calls ──▶ sessions, chats, Workspace (files, terminals, changesets)
//!               ▲                └─ actions ─▶ gate ─▶ LogWriter ─▶ LOG ─▶ AgentRunner ─▶ agents
//!               └── pulls ◀─────────────────────────────────────────┘ ▲         │
//!                                                                     └─ LogWriter ◀─ actions
//! ```

mod active_clients;
mod agent_runner;
mod channel_sessions;
mod chats;
mod command_completions;
pub mod config;
mod dispatch;
mod log_writer;
pub mod maintenance;
mod names;
mod restore;
mod retention;
mod router;
mod services;
mod session_config;
mod sessions;
mod workspace;

use std::fmt;
use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{RootAgentsChangedAction, StateAction};
use ahp_types::state::{AgentInfo, RootState, SnapshotState};
use breakbulk_proto::Budget;
use thiserror::Error;
use tracing::warn;

use self::active_clients::ActiveClients;
use self::agent_runner::AgentRunner;
use self::config::HostConfig;
pub(crate) use self::log_writer::{LogWriter, Transaction, append_error};
pub(crate) use self::names::new_id;
use self::retention::RetentionTask;
use self::router::Router;
use self::services::AgentList;
pub(crate) use self::services::Services;
use self::workspace::Workspace;
use crate::agent::Agent;
use crate::content::{self, ContentError, ContentReader};
use crate::endpoint::Endpoint;
use crate::error::MethodError;
use crate::files::RootError;
use crate::health::HostHealth;
use crate::log::Log;
use crate::metrics;
use crate::state::{State, StateError};
use crate::v2::V2;

/// An agent host. Cloning shares it. Serve clients with [`endpoint`](Self::endpoint); end with [`stop`](Self::stop).
#[derive(Clone)]
pub struct Host(Arc<HostParts>);

struct HostParts {
    log: Arc<dyn Log>,
    agents: Vec<Arc<dyn Agent>>,
    retention: RetentionTask,
    log_writer: Arc<LogWriter>,
    agent_runner: Arc<AgentRunner>,
    workspace: Arc<Workspace>,
    services: Arc<Services>,
    endpoint: Endpoint,
    v2: V2,
}

impl Host {
    /// Waits until no scan for changes and customizations runs and none is requested.
    #[cfg(feature = "test-support")]
    pub async fn scans_ended(&self) {
        self.0.workspace.scans_ended().await;
    }

    /// Starts a host on a log, with these agents. The first agent is the one for sessions that name none.
    ///
    /// # Errors
    /// A root is not a directory, or the log cannot be read or written.
    pub async fn start(
        log: Arc<dyn Log>,
        agents: Vec<Arc<dyn Agent>>,
        config: HostConfig,
        budget: Budget,
    ) -> Result<Self, StartError> {
        let state = State::open(Arc::clone(&log), config.state).await?;
        let log_writer = Arc::new(LogWriter::new(Arc::clone(&log), Arc::clone(&state)));
        let workspace = Arc::new(Workspace::new(Arc::clone(&log_writer), &config)?);
        let agent_runner = Arc::new(AgentRunner::new(Arc::clone(&log_writer), agents.clone(), Arc::clone(&workspace)));
        update_root(&log_writer, &agents).await?;
        workspace.start().await?;
        agent_runner.start().await?;
        let services = Services {
            log_writer: Arc::clone(&log_writer),
            agents: AgentList::new(agents.clone()),
            agent_runner: Arc::clone(&agent_runner),
            workspace: Arc::clone(&workspace),
            active_clients: ActiveClients::new(),
            feeds: Arc::default(),
            grace: config.reconnect_grace,
        };
        let services = Arc::new(services);
        let router = Router::new(Arc::clone(&services));
        let endpoint = Endpoint::new(Arc::clone(&log), state, Arc::new(router), config.endpoint, budget);
        let v2 = V2::new(Arc::clone(&services), endpoint.clone(), config.v2);
        let retention = RetentionTask::start(Arc::clone(&log_writer), config.retention, config.retain_every);
        Ok(Self(Arc::new(HostParts {
            log,
            agents,
            retention,
            log_writer,
            agent_runner,
            workspace,
            services,
            endpoint,
            v2,
        })))
    }

    /// Serves clients: one [`serve`](Endpoint::serve) for each connection.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// Serves clients of message protocol v2: one [`serve`](V2::serve) for each connection.
    #[must_use]
    pub fn v2(&self) -> &V2 {
        &self.0.v2
    }

    /// The content at a path of a URL, for the principal that asks for it. See the [module](crate::content) for the paths.
    ///
    /// # Errors
    /// When there is no such content, or it cannot be read now.
    pub async fn content(&self, path: &str, principal: Option<Arc<str>>) -> Result<ContentReader, ContentError> {
        content::find(&self.0.services, &self.0.endpoint.answer_memory(principal), path).await
    }

    /// Checks whether the host can do its work: whether the log works, and each agent.
    pub async fn health(&self) -> HostHealth {
        HostHealth::check(&*self.0.log, &self.0.agents).await
    }

    /// The metrics page, in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        let (terminals, watches) = self.0.workspace.counts();
        let state = self.0.log_writer.state();
        let gauges =
            metrics::HostGauges { terminals, watches, state_bytes: state.weight(), position: state.position() };
        metrics::text(&self.0.endpoint, &self.0.v2, self.0.log.metrics(), &gauges)
    }

    /// Stops: closes connections so that clients reconnect later, ends agents and terminals, and saves the state.
    pub async fn stop(&self) {
        self.0.endpoint.stop();
        self.0.v2.stop();
        self.0.retention.stop();
        self.0.agent_runner.stop().await;
        self.0.workspace.stop().await;
        if let Err(error) = self.0.log_writer.state().close().await {
            warn!("the state was not saved; the next start builds it from the log: {error}");
        }
    }

    /// Gives up, because another node may serve this host: ends agents and terminals, and then closes connections so that clients
    /// reconnect. Nothing is saved. The log should refuse appends already, so that nobody waits for one.
    pub async fn abandon(&self) {
        self.0.retention.stop();
        tokio::join!(self.0.agent_runner.stop(), self.0.workspace.stop());
        self.0.endpoint.stop();
        self.0.v2.stop();
    }
}

/// Logs which agents there are now and how many sessions, if the root channel does not show that yet. Opens the root
/// channel in a new log.
async fn update_root(log_writer: &LogWriter, agents: &[Arc<dyn Agent>]) -> Result<(), MethodError> {
    let agents: Vec<AgentInfo> = agents.iter().map(|agent| agent.info()).collect();
    let listed = i64::try_from(log_writer.state().sessions_with(|_| true).await?.len()).unwrap_or(i64::MAX);
    let compare = |state: &SnapshotState, seq| match state {
        SnapshotState::Root(root) if seq > 0 => Some((root.agents == agents, root.active_sessions == Some(listed))),
        _ => None,
    };
    let transaction = match log_writer.read(ROOT_RESOURCE_URI, compare).await? {
        Some((true, true)) => return Ok(()),
        Some((knows_agents, has_counted)) => {
            let changed = StateAction::RootAgentsChanged(RootAgentsChangedAction { agents });
            let changed = (!knows_agents).then_some(changed);
            let counted = (!has_counted).then(|| sessions::active_sessions(listed));
            let all = changed.into_iter().chain(counted);
            all.fold(Transaction::new(), |transaction, action| transaction.action(ROOT_RESOURCE_URI, &action))
        }
        None => {
            let root =
                RootState { agents, active_sessions: Some(0), terminals: Some(Vec::new()), config: None, meta: None };
            Transaction::new().open(ROOT_RESOURCE_URI, None, &SnapshotState::Root(Box::new(root)))
        }
    };
    log_writer.append_and_apply(transaction).await.map(drop)
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("endpoint", &self.0.endpoint).finish_non_exhaustive()
    }
}

/// Why a host did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// A root cannot be used.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The log cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The log does not take the first entries of the host.
    #[error("{0}")]
    Log(#[from] MethodError),
}
