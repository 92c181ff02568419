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
use std::path::Path;
use std::sync::{Arc, Mutex};

use agent_client_protocol_schema::v1::{
    AvailableCommand, AvailableCommandInput, SessionConfigKind, SessionConfigOption, SessionConfigOptionCategory,
    SessionConfigSelectOptions, SessionModeState,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{AgentInfo, SessionConfigPropertySchema, SessionConfigSchema};
use breakbulk_lifecycle::acp::{AgentModel, Limits};
use serde_json::{Value, json};

use super::program::{KnownCommands, MODEL, ProgramConfig};
use super::{Agent, AgentCommand, AgentError, MODE, Start, Started, option};
use crate::lock::lock;
use crate::log::BoxFuture;

/// How the program is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpConfig {
    /// The program.
    pub program: ProgramConfig,
    /// How to log in, by the agent's own id for it, if the agent asks for that.
    pub auth_method: Option<String>,
    /// What the translator may hold.
    pub conversation: Limits,
}

impl AcpConfig {
    /// An agent of this name that is started with this command.
    #[must_use]
    pub fn new(name: impl Into<String>, command: Vec<OsString>) -> Self {
        Self { program: ProgramConfig::new(name, command), auth_method: None, conversation: Limits::default() }
    }
}

/// An agent that speaks ACP.
pub struct Acp {
    config: Arc<AcpConfig>,
    program_info: Arc<AcpProgramInfo>,
}

/// What the program said last about itself. All its conversations update it.
#[derive(Debug, Default)]
struct AcpProgramInfo {
    options: Mutex<SessionOptions>,
    commands: KnownCommands,
}

/// The modes and options that the program offers. They are unknown before the first conversation.
#[derive(Debug, Default)]
struct SessionOptions {
    modes: Option<SessionModeState>,
    options: Vec<SessionConfigOption>,
    /// The models of an agent that has no option for them.
    models: Vec<AgentModel>,
}

impl Acp {
    /// An agent that is run like this.
    #[must_use]
    pub fn new(config: AcpConfig) -> Self {
        Self { config: Arc::new(config), program_info: Arc::default() }
    }
}

impl SessionOptions {
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
        let listed = self.models.iter().map(|model| (model.id.clone(), model.name.clone()));
        listed.chain(self.values(&SessionConfigOptionCategory::Model)).collect()
    }
}

/// A command of the agent, for clients.
fn command(told: AvailableCommand) -> AgentCommand {
    let argument_hint = match told.input {
        Some(AvailableCommandInput::Unstructured(input)) => Some(input.hint),
        _ => None,
    };
    let description = Some(told.description).filter(|description| !description.is_empty());
    AgentCommand { name: told.name, description, argument_hint }
}

impl Agent for Acp {
    fn name(&self) -> &str {
        &self.config.program.name
    }

    fn info(&self) -> AgentInfo {
        let program = &self.config.program;
        let model = |(id, name): (String, String)| program.model_info(id, name, None);
        AgentInfo {
            provider: program.name.clone(),
            display_name: program.name.clone(),
            description: "An agent of this machine that speaks the Agent Client Protocol.".to_owned(),
            models: lock(&self.program_info.options).models().into_iter().map(model).collect(),
            protected_resources: None,
            customizations: None,
            capabilities: None,
        }
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
        Box::pin(conversation::start(Arc::clone(&self.config), Arc::clone(&self.program_info), start))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(self.config.program.check())
    }

    fn directory(&self) -> Option<&Path> {
        self.config.program.directory.as_deref()
    }

    fn commands(&self, directory: &Path) -> Vec<AgentCommand> {
        self.program_info.commands.of(directory)
    }

    fn options(&self, _chosen: &JsonObject) -> SessionConfigSchema {
        let (program, known) = (&self.config.program, lock(&self.program_info.options));
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
        let mode = property(&program.mode, known.modes(), "Mode", "What the agent may do without asking.");
        let model = property(&program.model, known.models(), "Model", "The model of messages that name none.");
        let properties = HashMap::from([(MODE.to_owned(), mode), (MODEL.to_owned(), model)]);
        SessionConfigSchema { r#type: "object".to_owned(), properties, required: None }
    }
}
