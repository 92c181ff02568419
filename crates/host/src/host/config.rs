//! What a host may use, and for what.

use std::path::PathBuf;
use std::time::Duration;

use crate::changes::ChangesConfig;
use crate::customize::{CompleteConfig, CustomizeConfig, TRIGGERS};
use crate::endpoint::EndpointConfig;
use crate::files::{FilesConfig, uri_of};
use crate::log::RetentionPolicy;
use crate::state::StateConfig;
use crate::terminal::TerminalConfig;

/// What a host may use, and for what: one group of limits for each room.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostConfig {
    /// Connections.
    pub endpoint: EndpointConfig,
    /// What channels in memory take.
    pub state: StateConfig,
    /// Files, and the roots that they are in.
    pub files: FilesConfig,
    /// Terminals.
    pub terminals: TerminalConfig,
    /// Changesets.
    pub changes: ChangesConfig,
    /// The search for customizations.
    pub customize: CustomizeConfig,
    /// Completions.
    pub complete: CompleteConfig,
    /// How long entries are kept. By default until the log uses 4 GiB.
    pub retention: RetentionPolicy,
    /// How often to look for what is not. 10 minutes.
    pub retain_every: Duration,
}

impl HostConfig {
    /// The defaults, with these roots: the directories that agents, terminals and clients may work in. The first is where
    /// a session begins that names none.
    pub fn new(roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        let roots: Vec<PathBuf> = roots.into_iter().map(Into::into).collect();
        let mut endpoint = EndpointConfig::default();
        endpoint.welcome.default_directory = roots.first().map(|root| uri_of(root));
        endpoint.welcome.completion_trigger_characters = Some(TRIGGERS.iter().map(char::to_string).collect());
        Self {
            endpoint,
            state: StateConfig::default(),
            files: FilesConfig::new(roots.clone()),
            terminals: TerminalConfig::new(roots.clone()),
            changes: ChangesConfig { roots, ..ChangesConfig::default() },
            customize: CustomizeConfig::default(),
            complete: CompleteConfig::default(),
            retention: RetentionPolicy { max_bytes: Some(4 << 30), ..RetentionPolicy::default() },
            retain_every: Duration::from_mins(10),
        }
    }
}
