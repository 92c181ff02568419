//! What this crate's own tests and benches need beside the public API. Not for others: it changes without notice.

use std::sync::Arc;

use breakbulk_proto::Budget;

use crate::agent::clock::Clock;
use crate::agent::demo::{Demo, DemoConfig};
use crate::endpoint::methods::Methods;
use crate::endpoint::snapshot_source::SnapshotSource;
use crate::endpoint::{Endpoint, EndpointConfig};
use crate::log::Log;

/// Where terminals and changesets append their actions.
pub mod action_sink {
    pub use crate::action_sink::*;
}

/// Agents, and the translation of their events into actions.
pub mod agent {
    pub use crate::agent::actions::*;
    pub use crate::agent::clock::*;
    pub use crate::agent::merge::*;
    pub use crate::agent::*;
}

/// Changesets.
pub mod changes {
    pub use crate::changes::*;
}

/// Customizations and completions.
pub mod customize {
    pub use crate::customize::*;
}

/// Connections, and what they ask of the rest of the host.
pub mod endpoint {
    pub use crate::endpoint::memory::*;
    pub use crate::endpoint::methods::*;
    pub use crate::endpoint::snapshot_source::*;
    pub use crate::endpoint::*;
}

/// Files inside the roots.
pub mod files {
    pub use crate::files::*;
}

/// What clients may dispatch.
pub mod gate {
    pub use crate::gate::*;
}

/// The state that follows the log.
pub mod state {
    pub use crate::state::*;
}

/// Terminals.
pub mod terminal {
    pub use crate::terminal::*;
}

/// An endpoint with methods and snapshots of a test's own.
#[must_use]
pub fn new_endpoint(
    log: Arc<dyn Log>,
    snapshots: Arc<dyn SnapshotSource>,
    methods: Arc<dyn Methods>,
    config: EndpointConfig,
    budget: Budget,
) -> Endpoint {
    Endpoint::new(log, snapshots, methods, config, budget)
}

/// A demo agent whose pace is that of a test's own clock.
#[must_use]
pub fn demo_with_clock(config: DemoConfig, clock: Arc<dyn Clock>) -> Demo {
    Demo::with_clock(config, clock)
}
