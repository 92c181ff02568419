//! The host: puts the rooms together. Sessions and chats are made and disposed of here.
//!
//! ```text
//!  client ─▶ Endpoint ─▶ Front ─┬─ calls ──▶ sessions, chats, settings, Workshop (files, terminals, changesets)
//!                               └─ actions ─▶ gate ─▶ Desk ─▶ LOG ─▶ Conduct ─▶ agents
//!                                                     ▲                 │
//!                                                     └──── actions ◀───┘
//! ```

mod attendance;
mod chats;
mod conduct;
mod config;
mod desk;
mod dispatch;
mod front;
mod homes;
mod names;
mod restore;
mod retain;
mod sessions;
mod settings;
mod upkeep;
mod workshop;

use std::fmt;
use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{RootAgentsChangedAction, StateAction};
use ahp_types::state::{AgentInfo, RootState, SnapshotState};
use breakbulk_proto::Budget;
use thiserror::Error;
use tracing::warn;

use self::conduct::Conduct;
pub use self::config::HostConfig;
use self::desk::{Desk, Sheet};
use self::front::{Agents, Front, Rooms};
use self::retain::Retainer;
pub use self::upkeep::{Unsaved, erase, save_all};
use self::workshop::Workshop;
use crate::agent::Agent;
use crate::endpoint::Endpoint;
use crate::error::MethodError;
use crate::files::RootError;
use crate::health::Health;
use crate::log::Log;
use crate::metrics;
use crate::state::{State, StateError};

/// An agent host. Cloning shares it. Serve clients with [`endpoint`](Self::endpoint); end with [`stop`](Self::stop).
#[derive(Clone)]
pub struct Host(Arc<House>);

struct House {
    log: Arc<dyn Log>,
    agents: Vec<Arc<dyn Agent>>,
    retainer: Retainer,
    desk: Arc<Desk>,
    conduct: Arc<Conduct>,
    workshop: Arc<Workshop>,
    endpoint: Endpoint,
}

impl Host {
    /// Opens a host on a log, with these agents; the first is who answers when a client names none.
    ///
    /// # Errors
    /// A root is no directory, the log cannot be read, or does not take what a host begins with.
    pub async fn start(
        log: Arc<dyn Log>,
        agents: Vec<Arc<dyn Agent>>,
        config: HostConfig,
        budget: Budget,
    ) -> Result<Self, StartError> {
        let state = State::open(Arc::clone(&log), config.state).await?;
        let desk = Arc::new(Desk::new(Arc::clone(&log), Arc::clone(&state)));
        let workshop = Arc::new(Workshop::new(Arc::clone(&desk), &config)?);
        let conduct = Arc::new(Conduct::new(Arc::clone(&desk), agents.clone(), Arc::clone(&workshop)));
        begin(&desk, &agents).await?;
        workshop.begin().await?;
        conduct.begin().await?;
        let grace = config.files.watch_grace;
        let rooms = Rooms::new(
            Arc::clone(&desk),
            Agents::new(agents.clone()),
            Arc::clone(&conduct),
            Arc::clone(&workshop),
            grace,
        );
        let front = Front::new(Arc::new(rooms));
        let endpoint = Endpoint::new(Arc::clone(&log), state, Arc::new(front), config.endpoint, budget);
        let retainer = Retainer::begin(Arc::clone(&desk), config.retention, config.retain_every);
        Ok(Self(Arc::new(House { log, agents, retainer, desk, conduct, workshop, endpoint })))
    }

    /// Where clients are served.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// Whether it can do its work: looks at the log, and asks each agent.
    pub async fn health(&self) -> Health {
        Health::check(&*self.0.log, &self.0.agents).await
    }

    /// What it does and how it is, in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        let (terminals, watches) = self.0.workshop.counts();
        let state = self.0.desk.state();
        let rooms = metrics::Rooms { terminals, watches, state_bytes: state.weight(), position: state.position() };
        metrics::text(&self.0.endpoint, self.0.log.metrics(), &rooms)
    }

    /// Stops: clients are told to come again later, agents and terminals end, and what is in memory is saved.
    pub async fn stop(&self) {
        self.0.endpoint.stop();
        self.0.retainer.stop();
        self.0.conduct.stop().await;
        self.0.workshop.stop().await;
        if let Err(error) = self.0.desk.state().close().await {
            warn!("what is in memory was not saved, and is made again from the log: {error}");
        }
    }
}

/// The root says which agents there are now, and how many sessions. A new log has none yet.
async fn begin(desk: &Desk, agents: &[Arc<dyn Agent>]) -> Result<(), MethodError> {
    let agents: Vec<AgentInfo> = agents.iter().map(|agent| agent.info()).collect();
    let listed = i64::try_from(desk.state().sessions_with(|_| true).await?.len()).unwrap_or(i64::MAX);
    let look = |state: &SnapshotState, seq| match state {
        SnapshotState::Root(root) if seq > 0 => Some((root.agents == agents, root.active_sessions == Some(listed))),
        _ => None,
    };
    let sheet = match desk.look(ROOT_RESOURCE_URI, look).await? {
        Some((true, true)) => return Ok(()),
        Some((knows_agents, has_counted)) => {
            let changed = StateAction::RootAgentsChanged(RootAgentsChangedAction { agents });
            let changed = (!knows_agents).then_some(changed);
            let counted = (!has_counted).then(|| sessions::active_sessions(listed));
            let all = changed.into_iter().chain(counted);
            all.fold(Sheet::new(), |sheet, action| sheet.action(ROOT_RESOURCE_URI, &action))
        }
        None => {
            let root =
                RootState { agents, active_sessions: Some(0), terminals: Some(Vec::new()), config: None, meta: None };
            Sheet::new().open(ROOT_RESOURCE_URI, None, &SnapshotState::Root(Box::new(root)))
        }
    };
    desk.put_seen(sheet).await.map(drop)
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("endpoint", &self.0.endpoint).finish_non_exhaustive()
    }
}

/// Why a host does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// A root cannot be used.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The log cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The log does not take what a host begins with.
    #[error("{0}")]
    Log(#[from] MethodError),
}
