//! The built-in demo: an agent that follows a script, so that everything can be seen without an account.
//!
//! It is no model, and says so wherever a person sees it. Its answers depend only on its seed, the turn and the prompt; with
//! `/recall` also on earlier turns, which it gets from [`Start::history`] like any agent. It runs and writes only what the
//! user has allowed, and only in its working directory.

mod config;
mod conversation;
mod edit;
mod output;
mod prompt;
mod recall;
mod run;
mod scripts;
mod text;

use std::sync::Arc;

use ahp_types::state::{
    AgentCapabilities, AgentInfo, MultipleChatsCapability, MultipleWorkingDirectoriesCapability, SessionModelInfo,
};

pub use self::config::DemoConfig;
use super::{Agent, AgentError, Clock, RealClock, Start, Started};
use crate::log::BoxFuture;

/// The demo's provider id, and the id of its only model.
pub const NAME: &str = "demo";

/// The demo agent.
pub struct Demo {
    config: DemoConfig,
    clock: Arc<dyn Clock>,
}

impl Demo {
    /// A demo that speaks at its configured pace.
    #[must_use]
    pub fn new(config: DemoConfig) -> Self {
        Self::with_clock(config, Arc::new(RealClock::new()))
    }

    /// A demo whose pace is that of a clock.
    #[must_use]
    pub(crate) fn with_clock(config: DemoConfig, clock: Arc<dyn Clock>) -> Self {
        Self { config, clock }
    }
}

impl Default for Demo {
    fn default() -> Self {
        Self::new(DemoConfig::default())
    }
}

impl Agent for Demo {
    fn name(&self) -> &str {
        NAME
    }

    fn info(&self) -> AgentInfo {
        let model = SessionModelInfo {
            id: NAME.to_owned(),
            provider: NAME.to_owned(),
            name: "Demo script (no model)".to_owned(),
            max_context_window: None,
            max_output_tokens: None,
            max_prompt_tokens: None,
            supports_vision: Some(false),
            policy_state: None,
            config_schema: None,
            meta: None,
        };
        AgentInfo {
            provider: NAME.to_owned(),
            display_name: "Demo".to_owned(),
            description: "A scripted demo, not a model: it shows what this host does. Ask it for /help.".to_owned(),
            models: vec![model],
            protected_resources: None,
            customizations: None,
            capabilities: Some(AgentCapabilities {
                multiple_chats: Some(MultipleChatsCapability { fork: Some(true), side_chat: Some(true) }),
                multiple_working_directories: Some(MultipleWorkingDirectoriesCapability::default()),
            }),
        }
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
        Box::pin(async move { conversation::start(self.config, Arc::clone(&self.clock), start).await })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async { Ok(()) })
    }
}
