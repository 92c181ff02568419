//! The Claude Code program as an agent: one child process for each conversation, which speaks `stream-json`.
//!
//! ```text
//!  host ─▶ ClaudeConversation ─▶ ClaudeTask ─▶ claude::Conversation ─▶ Process ─▶ the program
//!                                    │               (translator)         │
//!  host ◀──────── EventStream ◀──────┴────────────────────────────────────┘
//! ```
//!
//! **Memory.** The program keeps conversations itself, under a token that it gives in each turn. A conversation begins with that
//! token if there is one (`--resume`). Otherwise, or when the program does not know the token any more, the first prompt begins with a
//! summary of the earlier turns. In the second case the prompt is given twice, but the program has not taken it the first time, so
//! nothing runs twice.
//!
//! **Ends.** When the program ends, the conversation ends: a turn that was open fails with the reason, and the next turn begins
//! another conversation, which resumes.

mod conversation;
mod prompt;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ahp_types::common::JsonObject;
use ahp_types::state::{
    AgentCapabilities, AgentInfo, MultipleChatsCapability, MultipleWorkingDirectoriesCapability,
    SessionConfigPropertySchema, SessionConfigSchema, SessionModelInfo,
};
use breakbulk_lifecycle::claude::{Limits, Model};
use serde_json::{Value, json};

use super::process::ProcessLimits;
use super::process::program::find_program;
use super::{Agent, AgentError, EventsConfig, Start, Started, option};
use crate::lock::lock;
use crate::log::BoxFuture;

/// The provider id, if the configuration names no other.
pub const NAME: &str = "claude";

/// The session's option for the permission mode.
const MODE: &str = "mode";

/// The session's option for the model. The model of a message comes before it.
const MODEL: &str = "model";

/// The permission modes that all versions know, and what they mean.
const MODES: [(&str, &str, &str); 4] = [
    ("default", "Ask", "Ask before each call that changes something."),
    ("acceptEdits", "Accept edits", "Edit files without asking; ask before other calls."),
    ("plan", "Plan", "Read and plan only; change nothing."),
    ("bypassPermissions", "Bypass permissions", "Run every call without asking."),
];

/// Models that the program knows by these names, until it has told which it has.
const MODELS: [(&str, &str); 4] = [("default", "Default"), ("sonnet", "Sonnet"), ("opus", "Opus"), ("haiku", "Haiku")];

/// Variables of ours that the program may see beside the usual ones: how it is configured, and its key.
const INHERITED: [&str; 2] = ["ANTHROPIC_*", "CLAUDE_*"];

/// How the program is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaudeConfig {
    /// The provider id, by which clients ask for this agent.
    pub name: String,
    /// The program, and arguments that come before ours. By default `claude`, which is looked for in `PATH`.
    pub command: Vec<OsString>,
    /// Variables that are set for it.
    pub env: Vec<(String, String)>,
    /// Names of our variables that it may see, beside the usual ones and `ANTHROPIC_*` and `CLAUDE_*`. One that ends with `*`
    /// stands for all that begin so.
    pub inherit: Vec<String>,
    /// The working directory of sessions that name none.
    pub directory: Option<PathBuf>,
    /// The permission mode of new sessions. Without one, the program's own setting.
    pub permission_mode: Option<String>,
    /// The model of new sessions. Without one, the program's own setting.
    pub model: Option<String>,
    /// What the program may use.
    pub process: ProcessLimits,
    /// What the translator may hold.
    pub conversation: Limits,
    /// Events that may wait for the host.
    pub events: EventsConfig,
    /// How many bytes of earlier turns a new conversation is told, if it cannot be resumed. 128 KiB: a fifth of what the models can
    /// take in.
    pub max_history_bytes: usize,
}

impl Default for ClaudeConfig {
    fn default() -> Self {
        Self {
            name: NAME.to_owned(),
            command: vec!["claude".into()],
            env: Vec::new(),
            inherit: Vec::new(),
            directory: None,
            permission_mode: None,
            model: None,
            process: ProcessLimits::default(),
            conversation: Limits::default(),
            events: EventsConfig::default(),
            max_history_bytes: 128 << 10,
        }
    }
}

/// The Claude Code program.
pub struct Claude {
    config: Arc<ClaudeConfig>,
    /// The models, as the program has told them last.
    models: Arc<Mutex<Vec<Model>>>,
}

impl Claude {
    /// A program that is run like this.
    #[must_use]
    pub fn new(config: ClaudeConfig) -> Self {
        Self { config: Arc::new(config), models: Arc::default() }
    }

    fn models(&self) -> Vec<SessionModelInfo> {
        let told = lock(&self.models).clone();
        let model = |id: String, name: String| SessionModelInfo {
            id,
            provider: self.config.name.clone(),
            name,
            max_context_window: None,
            max_output_tokens: None,
            max_prompt_tokens: None,
            supports_vision: Some(true),
            policy_state: None,
            config_schema: None,
            meta: None,
        };
        if told.is_empty() {
            return MODELS.iter().map(|(id, name)| model((*id).to_owned(), (*name).to_owned())).collect();
        }
        told.into_iter().map(|told| model(told.value.clone(), told.name.unwrap_or(told.value))).collect()
    }
}

impl Agent for Claude {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn info(&self) -> AgentInfo {
        AgentInfo {
            provider: self.config.name.clone(),
            display_name: if self.config.name == NAME { "Claude Code".to_owned() } else { self.config.name.clone() },
            description: "The Claude Code program of this machine.".to_owned(),
            models: self.models(),
            protected_resources: None,
            customizations: None,
            capabilities: Some(AgentCapabilities {
                multiple_chats: Some(MultipleChatsCapability { fork: Some(true), side_chat: Some(true) }),
                multiple_working_directories: Some(MultipleWorkingDirectoriesCapability::default()),
            }),
        }
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
        Box::pin(conversation::start(Arc::clone(&self.config), Arc::clone(&self.models), start))
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
        let texts = |texts: &mut dyn Iterator<Item = &'static str>| Some(texts.map(str::to_owned).collect());
        let mode = SessionConfigPropertySchema {
            default: self.config.permission_mode.clone().map(Value::String),
            r#enum: Some(MODES.iter().map(|(id, ..)| json!(id)).collect()),
            enum_labels: texts(&mut MODES.iter().map(|(_, label, _)| *label)),
            enum_descriptions: texts(&mut MODES.iter().map(|(.., description)| *description)),
            ..option("Permission mode", "Which calls the agent may make without asking.")
        };
        let models = self.models();
        let model = SessionConfigPropertySchema {
            default: self.config.model.clone().map(Value::String),
            r#enum: Some(models.iter().map(|model| json!(model.id)).collect()),
            enum_labels: Some(models.into_iter().map(|model| model.name).collect()),
            ..option("Model", "The model of messages that name none.")
        };
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
    fn read(options: &JsonObject, config: &ClaudeConfig) -> Self {
        let text = |name: &str| options.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        Self {
            mode: text(MODE).map(str::to_owned).or_else(|| config.permission_mode.clone()),
            model: text(MODEL).map(str::to_owned).or_else(|| config.model.clone()),
        }
    }
}
