//! What a host is made of, as the settings say: its agents and its limits. A node of a fleet makes several hosts of it, one after the
//! other.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use breakbulk_host::agent::acp::Acp;
use breakbulk_host::agent::claude::Claude;
use breakbulk_host::agent::demo::Demo;
use breakbulk_host::agent::{Agent, find_program, merge_actions};
use breakbulk_host::log::Log;
use breakbulk_host::log::sqlite::Options;
use breakbulk_host::{Host, HostConfig};
use breakbulk_proto::{Budget, BudgetConfig};
use tracing::{info, warn};

use crate::failure::Error;
use crate::settings::{AgentSettings, HostLimits, ServeSettings};

pub(super) struct HostParts {
    config: HostConfig,
    agents: Vec<Arc<dyn Agent>>,
    /// The agents, for people.
    offered: String,
    pub(super) store: Options,
    memory: BudgetConfig,
}

impl HostParts {
    /// Takes the agents and the limits out of the settings.
    pub(super) fn new(settings: &mut ServeSettings) -> Self {
        let HostLimits { host: mut config, mut store, demo, .. } = settings.limits.clone();
        let route = &settings.route;
        config.endpoint.limits = route.setup.limits;
        if settings.is_capped {
            let cap = usize::try_from(route.max_frame_bytes()).unwrap_or(usize::MAX);
            config.v2.max_event_bytes = config.v2.max_event_bytes.min(cap);
        }
        config.endpoint.max_whole_frame_bytes = settings.is_capped.then(|| route.max_frame_bytes());
        store.merge = Some(Arc::new(merge_actions));
        let agents = std::mem::take(&mut settings.agents);
        let offered = agents.iter().map(AgentSettings::description).collect::<Vec<_>>().join(", ");
        let agents = agents.into_iter().map(|agent| match agent {
            AgentSettings::Demo => Arc::new(Demo::new(demo)) as Arc<dyn Agent>,
            AgentSettings::Claude(config) => Arc::new(Claude::new(*config)) as Arc<dyn Agent>,
            AgentSettings::Acp(config) => Arc::new(Acp::new(*config)) as Arc<dyn Agent>,
        });
        Self { config, agents: agents.collect(), offered, store, memory: settings.link.budget }
    }

    /// Starts a host on a log.
    pub(super) async fn start(&self, log: Arc<dyn Log>) -> Result<Host, Error> {
        let begun = Host::start(log, self.agents.clone(), self.config.clone(), Budget::new(self.memory)).await;
        begun.map_err(|error| Error::Host(format!("the host cannot start: {error}")))
    }

    /// Says which agents there are, and what cannot be started.
    pub(super) fn say(&self) {
        info!("agents: {}", self.offered);
        let shell = self.config.terminals.command.first();
        if let Some(why) = shell.and_then(|shell| why_no_program(shell)) {
            warn!("{why}: terminals cannot be started; see --shell");
        }
    }

    pub(super) fn roots(&self) -> &[PathBuf] {
        &self.config.files.roots
    }
}

/// Why a program cannot be started, as far as one can tell without starting it.
fn why_no_program(program: &OsStr) -> Option<String> {
    if find_program(program).is_some() {
        return None;
    }
    let name = program.display();
    let is_path = Path::new(program).components().count() > 1;
    Some(if is_path { format!("there is no file {name}") } else { format!("{name} is not in PATH") })
}
