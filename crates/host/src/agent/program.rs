//! An agent that is a program: how it is run, and what all such agents have in common.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ahp_types::common::JsonObject;
use ahp_types::state::SessionModelInfo;
use serde_json::Value;

use super::directory::working_directory;
use super::process::program::find_program;
use super::process::{Process, ProcessCommand, ProcessLimits};
use super::{AgentCommand, AgentError, EventsConfig, MODE};
use crate::lock::lock;

/// The session's option for the model. The model of a message comes before it.
pub(super) const MODEL: &str = "model";

/// Working directories of which we remember the commands: more than one person works in.
const MAX_DIRECTORIES: usize = 256;

/// How a program is run that is an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramConfig {
    /// The provider id, by which clients ask for this agent.
    pub name: String,
    /// The program, which is looked for in `PATH`, and its arguments.
    pub command: Vec<OsString>,
    /// Variables that are set for it.
    pub env: Vec<(String, String)>,
    /// Names of our variables that it may see, beside the usual ones. One that ends with `*` stands for all that begin so.
    pub inherit: Vec<String>,
    /// The working directory of sessions that name none. It must be inside of the roots.
    pub directory: Option<PathBuf>,
    /// The permission mode of new sessions. Without one, the program's own choice.
    pub mode: Option<String>,
    /// The model of new sessions. Without one, the program's own choice.
    pub model: Option<String>,
    /// What the program may use.
    pub process: ProcessLimits,
    /// Events that may wait for the host.
    pub events: EventsConfig,
    /// How many bytes of earlier turns a new conversation is told, if it cannot be resumed. 128 KiB: a fifth of what the models can
    /// take in.
    pub max_history_bytes: usize,
}

impl ProgramConfig {
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
            process: ProcessLimits::default(),
            events: EventsConfig::default(),
            max_history_bytes: 128 << 10,
        }
    }

    /// Whether the program is there.
    pub(super) async fn check(&self) -> Result<(), AgentError> {
        let program = self.command.first().cloned().unwrap_or_default();
        let shown = program.display().to_string();
        match tokio::task::spawn_blocking(move || find_program(&program)).await {
            Ok(Some(_)) => Ok(()),
            _ => Err(AgentError::Unavailable(format!("the program {shown} is not there"))),
        }
    }

    /// The directories in which a conversation works, of those that its session names.
    pub(super) async fn directories(&self, named: &[PathBuf]) -> Result<Directories, AgentError> {
        let directories = match (named, &self.directory) {
            ([], Some(directory)) => std::slice::from_ref(directory),
            (named, _) => named,
        };
        let working = working_directory(directories).await?;
        Ok(Directories { working, others: directories.iter().skip(1).cloned().collect() })
    }

    /// Starts the program, with more arguments, and with more variables of ours than the configured ones.
    pub(super) async fn start(
        &self,
        directory: PathBuf,
        more_arguments: Vec<OsString>,
        more_variables: &[&str],
    ) -> Result<Process, AgentError> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(AgentError::Unavailable("no command is configured".to_owned()));
        };
        let command = ProcessCommand {
            program: program.clone(),
            arguments: arguments.iter().cloned().chain(more_arguments).collect(),
            directory,
            inherit: more_variables.iter().map(|name| (*name).to_owned()).chain(self.inherit.clone()).collect(),
            env: self.env.clone(),
        };
        let started = Process::start(command, self.process.clone()).await;
        started.map_err(|error| AgentError::Unavailable(format!("{} cannot be started: {error}", program.display())))
    }

    /// A model of this agent, for clients.
    pub(super) fn model_info(&self, id: String, name: String, sees_images: Option<bool>) -> SessionModelInfo {
        SessionModelInfo {
            id,
            provider: self.name.clone(),
            name,
            max_context_window: None,
            max_output_tokens: None,
            max_prompt_tokens: None,
            supports_vision: sees_images,
            policy_state: None,
            config_schema: None,
            meta: None,
        }
    }
}

/// Where a conversation works.
#[derive(Debug, Clone)]
pub(super) struct Directories {
    /// The working directory, as it really is.
    pub(super) working: PathBuf,
    /// Other directories that the agent may work in.
    pub(super) others: Vec<PathBuf>,
}

/// What a session's options say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) mode: Option<String>,
    pub(super) model: Option<String>,
}

impl Choices {
    pub(super) fn read(options: &JsonObject, config: &ProgramConfig) -> Self {
        let text = |name: &str| options.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        Self {
            mode: text(MODE).map(str::to_owned).or_else(|| config.mode.clone()),
            model: text(MODEL).map(str::to_owned).or_else(|| config.model.clone()),
        }
    }
}

/// The commands that a program has told last, for each working directory: projects have commands of their own.
#[derive(Debug, Default)]
pub(super) struct KnownCommands(Mutex<HashMap<PathBuf, Vec<AgentCommand>>>);

impl KnownCommands {
    pub(super) fn set(&self, directory: &Path, commands: Vec<AgentCommand>) {
        let mut known = lock(&self.0);
        if known.len() >= MAX_DIRECTORIES && !known.contains_key(directory) {
            known.clear();
        }
        known.insert(directory.to_owned(), commands);
    }

    pub(super) fn of(&self, directory: &Path) -> Vec<AgentCommand> {
        lock(&self.0).get(directory).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_chooses_before_the_configuration_and_an_empty_choice_is_none() {
        let mut config = ProgramConfig::new("a", vec!["a".into()]);
        (config.mode, config.model) = (Some("plan".to_owned()), Some("small".to_owned()));
        let options = |value: serde_json::Value| value.as_object().cloned().unwrap_or_default();
        let choices = Choices::read(&options(serde_json::json!({"mode": "code", "model": ""})), &config);
        assert_eq!((choices.mode.as_deref(), choices.model.as_deref()), (Some("code"), Some("small")));
    }

    #[test]
    fn commands_are_those_of_the_working_directory_and_not_of_too_many() {
        let known = KnownCommands::default();
        let command = |name: &str| AgentCommand { name: name.to_owned(), description: None, argument_hint: None };
        known.set(Path::new("/a"), vec![command("one")]);
        known.set(Path::new("/a"), vec![command("two")]);
        assert_eq!((known.of(Path::new("/a")), known.of(Path::new("/b"))), (vec![command("two")], vec![]));
        for number in 0..MAX_DIRECTORIES {
            known.set(Path::new(&format!("/{number}")), Vec::new());
        }
        assert!(lock(&known.0).len() <= MAX_DIRECTORIES);
    }
}
