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
use std::path::Path;
use std::sync::{Arc, Mutex};

use ahp_types::common::JsonObject;
use ahp_types::state::{
    AgentCapabilities, AgentInfo, MultipleChatsCapability, MultipleWorkingDirectoriesCapability,
    SessionConfigPropertySchema, SessionConfigSchema, SessionModelInfo,
};
use breakbulk_lifecycle::claude::{Info, Limits, ModelInfo, SlashCommand};
use serde_json::{Value, json};

use super::program::{KnownCommands, MODEL, ProgramConfig};
use super::{Agent, AgentCommand, AgentError, MODE, Start, Started, option};
use crate::lock::lock;
use crate::log::BoxFuture;

/// The provider id, if the configuration names no other.
pub const NAME: &str = "claude";

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
    /// The program. By default `claude`. It may see `ANTHROPIC_*` and `CLAUDE_*` of our variables too.
    pub program: ProgramConfig,
    /// What the translator may hold.
    pub conversation: Limits,
}

impl Default for ClaudeConfig {
    fn default() -> Self {
        Self { program: ProgramConfig::new(NAME, vec!["claude".into()]), conversation: Limits::default() }
    }
}

/// The Claude Code program.
pub struct Claude {
    config: Arc<ClaudeConfig>,
    program_info: Arc<ClaudeProgramInfo>,
}

/// What the program said last about itself. All its conversations update it.
#[derive(Debug, Default)]
struct ClaudeProgramInfo {
    models: Mutex<Vec<ModelInfo>>,
    commands: KnownCommands,
}

impl ClaudeProgramInfo {
    /// Takes what the program says about itself in this working directory.
    fn take(&self, directory: &Path, info: &Info) {
        if !info.models.is_empty() {
            lock(&self.models).clone_from(&info.models);
        }
        let command = |told: &SlashCommand| AgentCommand {
            name: told.name.clone(),
            description: told.description.clone(),
            argument_hint: told.argument_hint.clone(),
        };
        self.commands.set(directory, info.commands.iter().map(command).collect());
    }
}

impl Claude {
    /// A program that is run like this.
    #[must_use]
    pub fn new(config: ClaudeConfig) -> Self {
        Self { config: Arc::new(config), program_info: Arc::default() }
    }

    fn models(&self) -> Vec<SessionModelInfo> {
        let told = lock(&self.program_info.models).clone();
        let model = |id: String, name: String| self.config.program.model_info(id, name, Some(true));
        if told.is_empty() {
            return MODELS.iter().map(|(id, name)| model((*id).to_owned(), (*name).to_owned())).collect();
        }
        told.into_iter().map(|told| model(told.value.clone(), told.name.unwrap_or(told.value))).collect()
    }
}

impl Agent for Claude {
    fn name(&self) -> &str {
        &self.config.program.name
    }

    fn info(&self) -> AgentInfo {
        let name = &self.config.program.name;
        AgentInfo {
            provider: name.clone(),
            display_name: if name == NAME { "Claude Code".to_owned() } else { name.clone() },
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
        let texts = |texts: &mut dyn Iterator<Item = &'static str>| Some(texts.map(str::to_owned).collect());
        let mode = SessionConfigPropertySchema {
            default: self.config.program.mode.clone().map(Value::String),
            r#enum: Some(MODES.iter().map(|(id, ..)| json!(id)).collect()),
            enum_labels: texts(&mut MODES.iter().map(|(_, label, _)| *label)),
            enum_descriptions: texts(&mut MODES.iter().map(|(.., description)| *description)),
            ..option("Permission mode", "Which calls the agent may make without asking.")
        };
        let models = self.models();
        let model = SessionConfigPropertySchema {
            default: self.config.program.model.clone().map(Value::String),
            r#enum: Some(models.iter().map(|model| json!(model.id)).collect()),
            enum_labels: Some(models.into_iter().map(|model| model.name).collect()),
            ..option("Model", "The model of messages that name none.")
        };
        let properties = HashMap::from([(MODE.to_owned(), mode), (MODEL.to_owned(), model)]);
        SessionConfigSchema { r#type: "object".to_owned(), properties, required: None }
    }
}
