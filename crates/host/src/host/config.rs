//! The limits of a host and of each of its parts.

use std::path::PathBuf;
use std::time::Duration;

pub use crate::changes::ChangesConfig;
use crate::customize::{COMMAND_TRIGGER, TRIGGERS};
pub use crate::customize::{CompleteConfig, CustomizeConfig};
pub use crate::endpoint::{EndpointConfig, MemoryConfig, Welcome};
pub use crate::files::FilesConfig;
use crate::files::uri_of;
pub use crate::log::RetentionPolicy;
pub use crate::state::StateConfig;
pub use crate::terminal::TerminalConfig;
pub use crate::v2::V2Config;

/// How long a host waits for an agent to start. An agent that is a program has a limit of its own, at most this.
pub const MAX_AGENT_START: Duration = Duration::from_mins(10);

/// The most that an agent's own limit for the end of a cancelled turn may be. The host waits ten seconds longer, in which the
/// agent can end its program.
pub const MAX_AGENT_CANCEL: Duration = Duration::from_secs(20);

/// The directories that a host works in, and its limits: one group for each part of the host.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostConfig {
    /// Connections.
    pub endpoint: EndpointConfig,
    /// Connections of message protocol v2.
    pub v2: V2Config,
    /// How much memory the state of channels takes.
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
    /// How long a client that lost its link may take to reconnect before its watches end, it is no longer active in its
    /// sessions, and others may claim its terminals. A new watch waits as long for its first subscriber. A watch that all
    /// clients have unsubscribed from ends at once. 60 s.
    pub reconnect_grace: Duration,
    /// How long entries are kept. By default until the log uses 4 GiB.
    pub retention: RetentionPolicy,
    /// How often entries that are not kept any longer are trimmed. 10 minutes.
    pub retain_every: Duration,
}

impl HostConfig {
    /// The defaults, with these roots: the directories that agents, terminals and clients may work in. A session that names
    /// no directory works in the first one.
    pub fn new(roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        let roots: Vec<PathBuf> = roots.into_iter().map(Into::into).collect();
        let mut endpoint = EndpointConfig::default();
        endpoint.welcome.default_directory = roots.first().map(|root| uri_of(root));
        endpoint.welcome.completion_trigger_characters =
            Some(TRIGGERS.iter().chain([&COMMAND_TRIGGER]).map(char::to_string).collect());
        Self {
            endpoint,
            v2: V2Config::default(),
            state: StateConfig::default(),
            files: FilesConfig::new(roots.clone()),
            terminals: TerminalConfig::new(roots.clone()),
            changes: ChangesConfig { roots, ..ChangesConfig::default() },
            customize: CustomizeConfig::default(),
            complete: CompleteConfig::default(),
            reconnect_grace: Duration::from_mins(1),
            retention: RetentionPolicy { max_bytes: Some(4 << 30), ..RetentionPolicy::default() },
            retain_every: Duration::from_mins(10),
        }
    }
}
