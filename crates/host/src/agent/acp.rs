//! Any agent that speaks the Agent Client Protocol (ACP), as an agent: one child process for each conversation.
//!
//! ```text
//!  host ─▶ AcpConversation ─▶ AcpTask ─▶ acp::Connection ─▶ Process ─▶ the program
//!                                │          (translator)       │
//!  host ◀────── EventStream ◀────┴─────────────────────────────┘
//!  host ◀─ files, terminals (HostServices) ◀─ requests of the program
//! ```
//!
//! **Memory.** An agent that can load or resume sessions gives a token in each turn, and a conversation begins with that token
//! if there is one. Otherwise, or when the agent does not know the session any more, the first prompt begins with the earlier
//! turns.
//!
//! **Files and terminals** that the agent asks its host for are the host's own: inside of the roots, and visible to clients.
//!
//! **Ends.** When the program ends, the conversation ends: a turn that was open fails with the reason, and the next turn begins
//! another conversation.

mod conversation;
mod prompt;
mod requests;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use agent_client_protocol_schema::v1::{
    AvailableCommand, SessionConfigKind, SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOptions,
    SessionModeState,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{AgentInfo, SessionConfigPropertySchema, SessionConfigSchema, SessionModelInfo};
use breakbulk_lifecycle::acp::Limits;
use serde_json::{Value, json};

use super::process::ProcessLimits;
use super::process::program::find_program;
use super::{Agent, AgentError, EventsConfig, Start, Started, option};
use crate::lock::lock;
use crate::log::BoxFuture;

/// The session's option for the mode.
const MODE: &str = "mode";

/// The session's option for the model. The model of a message comes before it.
const MODEL: &str = "model";

/// How the program is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpConfig {
    /// The provider id, by which clients ask for this agent.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables that are set for it.
    pub env: Vec<(String, String)>,
    /// Names of our variables that it may see, beside the usual ones. One that ends with `*` stands for all that begin so.
    pub inherit: Vec<String>,
    /// The working directory of sessions that name none.
    pub directory: Option<PathBuf>,
    /// The mode of new sessions. Without one, the agent's own choice.
    pub mode: Option<String>,
    /// The model of new sessions. Without one, the agent's own choice.
    pub model: Option<String>,
    /// How to log in, by the agent's own id for it, if the agent asks for that.
    pub auth_method: Option<String>,
    /// What the program may use.
    pub process: ProcessLimits,
    /// What the translator may hold.
    pub conversation: Limits,
    /// Events that may wait for the host.
    pub events: EventsConfig,
    /// How many bytes of earlier turns a new conversation is told, if it cannot be resumed. 128 KiB.
    pub max_history_bytes: usize,
}

impl AcpConfig {
    /// An agent of this name that is started with this command.
    #[must_use]
    pub fn new(name: impl Into<String>, command: Vec<OsString>) -> Self {
        Self {
            name: name.into(),
            command,
            env: Vec::new(),
            inherit: Vec::new(),
            directory: None,
            mode: None,
            model: None,
            auth_method: None,
            process: ProcessLimits::default(),
            conversation: Limits::default(),
            events: EventsConfig::default(),
            max_history_bytes: 128 << 10,
        }
    }
}

/// An agent that speaks ACP.
pub struct Acp {
    config: Arc<AcpConfig>,
    /// What the program has told last.
    known: Arc<Mutex<Known>>,
}

/// What a program has told about itself. It is not known before the first conversation.
#[derive(Debug, Default)]
struct Known {
    modes: Option<SessionModeState>,
    options: Vec<SessionConfigOption>,
    commands: Vec<AvailableCommand>,
}

impl Acp {
    /// An agent that is run like this.
    #[must_use]
    pub fn new(config: AcpConfig) -> Self {
        Self { config: Arc::new(config), known: Arc::default() }
    }
}

impl Known {
    /// The values of the option of a category, and their names.
    fn values(&self, category: &SessionConfigOptionCategory) -> Vec<(String, String)> {
        let option = self.options.iter().find(|option| option.category.as_ref() == Some(category));
        let Some(SessionConfigKind::Select(select)) = option.map(|option| &option.kind) else { return Vec::new() };
        let options = match &select.options {
            SessionConfigSelectOptions::Ungrouped(options) => options.iter().collect::<Vec<_>>(),
            SessionConfigSelectOptions::Grouped(groups) => groups.iter().flat_map(|group| &group.options).collect(),
            _ => Vec::new(),
        };
        options.into_iter().map(|option| (option.value.0.to_string(), option.name.clone())).collect()
    }

    /// The modes: as modes, or as the option of that category.
    fn modes(&self) -> Vec<(String, String)> {
        match &self.modes {
            Some(modes) => {
                modes.available_modes.iter().map(|mode| (mode.id.0.to_string(), mode.name.clone())).collect()
            }
            None => self.values(&SessionConfigOptionCategory::Mode),
        }
    }

    fn models(&self) -> Vec<(String, String)> {
        self.values(&SessionConfigOptionCategory::Model)
    }
}

impl Agent for Acp {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn info(&self) -> AgentInfo {
        let model = |(id, name): (String, String)| SessionModelInfo {
            id,
            provider: self.config.name.clone(),
            name,
            max_context_window: None,
            max_output_tokens: None,
            max_prompt_tokens: None,
            supports_vision: None,
            policy_state: None,
            config_schema: None,
            meta: None,
        };
        AgentInfo {
            provider: self.config.name.clone(),
            display_name: self.config.name.clone(),
            description: "An agent of this machine that speaks the Agent Client Protocol.".to_owned(),
            models: lock(&self.known).models().into_iter().map(model).collect(),
            protected_resources: None,
            customizations: None,
            capabilities: None,
        }
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
        Box::pin(conversation::start(Arc::clone(&self.config), Arc::clone(&self.known), start))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        let program = self.config.command.first().cloned().unwrap_or_default();
        Box::pin(async move {
            let shown = program.display().to_string();
            match tokio::task::spawn_blocking(move || find_program(&program)).await {
                Ok(Some(_)) => Ok(()),
                _ => Err(AgentError::Unavailable(format!("the program {shown} is not there"))),
            }
        })
    }

    fn options(&self, _chosen: &JsonObject) -> SessionConfigSchema {
        let known = lock(&self.known);
        let property = |default: &Option<String>, values: Vec<(String, String)>, title: &str, about: &str| {
            let (ids, names): (Vec<_>, Vec<_>) = values.into_iter().unzip();
            SessionConfigPropertySchema {
                default: default.clone().map(Value::String),
                // Before the first conversation nobody knows which there are, and any may be given.
                r#enum: (!ids.is_empty()).then(|| ids.iter().map(|id| json!(id)).collect()),
                enum_labels: (!names.is_empty()).then_some(names),
                ..option(title, about)
            }
        };
        let mode = property(&self.config.mode, known.modes(), "Mode", "What the agent may do without asking.");
        let model = property(&self.config.model, known.models(), "Model", "The model of messages that name none.");
        let properties = HashMap::from([(MODE.to_owned(), mode), (MODEL.to_owned(), model)]);
        SessionConfigSchema { r#type: "object".to_owned(), properties, required: None }
    }
}

/// What a session's options say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Choices {
    mode: Option<String>,
    model: Option<String>,
}

impl Choices {
    fn read(options: &JsonObject, config: &AcpConfig) -> Self {
        let text = |name: &str| options.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        Self {
            mode: text(MODE).map(str::to_owned).or_else(|| config.mode.clone()),
            model: text(MODEL).map(str::to_owned).or_else(|| config.model.clone()),
        }
    }
}
