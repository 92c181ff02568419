//! The agents of a host: how they are named on the command line, in the environment and in the file.
//!
//! `--agent [NAME=]KIND[:COMMAND]`, or `--agent NAME` for one of the file's `[[agent]]` tables. If nobody names any, a host has all
//! tables of the file; without tables it has the demo, and what is found in `PATH`.

use std::ffi::OsStr;
use std::path::PathBuf;

use breakbulk_host::agent::acp::AcpConfig;
use breakbulk_host::agent::claude::ClaudeConfig;
use breakbulk_host::agent::{ProcessLimits, ProgramConfig, find_program};
use strum::{Display, EnumString, VariantNames};
use toml::de::DeValue;

use super::error::SettingError;
use super::layers::{Layers, Origin};
use super::value::{Value, allowed};

/// The sort of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum AgentKind {
    /// A scripted one.
    Demo,
    /// The Claude Code program.
    Claude,
    /// A program that speaks the Agent Client Protocol.
    Acp,
}

/// An agent as it is named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AgentChoice {
    /// One of the `[[agent]]` tables.
    Table(String),
    /// One that is described here.
    Described {
        /// What clients call it; without one, its kind or its program.
        name: Option<String>,
        kind: AgentKind,
        /// The program and its arguments; empty for the usual program.
        command: Vec<String>,
    },
}

const ALLOWED: &str = "allowed are demo, claude, claude:COMMAND, acp:COMMAND, each with NAME= before it, and the name of an [[agent]] of the file";

impl Value for AgentChoice {
    const NAME: &'static str = "AGENT";

    fn choices() -> Vec<&'static str> {
        vec!["demo", "claude"]
    }

    fn parse(text: &str) -> Result<Self, String> {
        // A command may have an equals sign too; a name has no colon.
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) if !name.contains(':') => (Some(name), rest),
            _ => (None, text),
        };
        if let Some(name) = name {
            check_name(name)?;
        }
        let (kind, command) = rest.split_once(':').map_or((rest, None), |(kind, command)| (kind, Some(command)));
        let Ok(kind) = kind.parse::<AgentKind>() else {
            return match (name, command) {
                (None, None) if check_name(rest).is_ok() => Ok(Self::Table(rest.to_owned())),
                _ => Err(ALLOWED.to_owned()),
            };
        };
        let command = shell_words::split(command.unwrap_or_default()).map_err(|error| error.to_string())?;
        check_command(kind, &command)?;
        Ok(Self::Described { name: name.map(str::to_owned), kind, command })
    }

    fn text(&self) -> String {
        match self {
            Self::Table(name) => name.clone(),
            Self::Described { name, kind, command } => {
                let name = name.as_ref().map(|name| format!("{name}=")).unwrap_or_default();
                let command =
                    if command.is_empty() { String::new() } else { format!(":{}", shell_words::join(command)) };
                format!("{name}{kind}{command}")
            }
        }
    }
}

/// An `[[agent]]` table of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentTable {
    pub(crate) origin: Origin,
    pub(crate) name: String,
    pub(crate) kind: AgentKind,
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) inherit: Vec<String>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) mode: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) auth_method: Option<String>,
}

impl AgentTable {
    /// Reads a table. `origin` is where something in it is.
    pub(super) fn read(
        at: usize,
        found: &toml::de::DeTable<'_>,
        origin: impl Fn(usize) -> Origin,
    ) -> Result<Self, SettingError> {
        let (mut kind, mut name) = (None, None);
        let mut table = Self {
            origin: origin(at),
            name: String::new(),
            kind: AgentKind::Demo,
            command: Vec::new(),
            env: Vec::new(),
            inherit: Vec::new(),
            cwd: None,
            mode: None,
            model: None,
            auth_method: None,
        };
        for (key, value) in found {
            let origin = origin(key.span().start);
            let wrong =
                |key, why| SettingError::Type { key, kind: value.get_ref().type_str(), origin: origin.clone(), why };
            let text = |key| text(value.get_ref()).ok_or_else(|| wrong(key, "allowed is a string"));
            let bad = |key, value: String, why| SettingError::Value { key, value, origin: origin.clone(), why };
            match key.get_ref().as_ref() {
                "name" => {
                    let text = text("name")?;
                    check_name(&text).map_err(|why| bad("name", text.clone(), why))?;
                    name = Some(text);
                }
                "kind" => {
                    let text = text("kind")?;
                    let parsed = text.parse().map_err(|_| bad("kind", text, allowed(AgentKind::VARIANTS)))?;
                    kind = Some(parsed);
                }
                "command" => {
                    table.command = match value.get_ref() {
                        DeValue::String(text) => shell_words::split(text)
                            .map_err(|error| bad("command", text.to_string(), error.to_string()))?,
                        other => {
                            texts(other).ok_or_else(|| wrong("command", "allowed is a string or a list of strings"))?
                        }
                    };
                }
                "env" => {
                    let DeValue::Table(variables) = value.get_ref() else {
                        return Err(wrong("env", "allowed is a table of strings"));
                    };
                    for (name, value) in variables {
                        let Some(text) = self::text(value.get_ref()) else {
                            return Err(wrong("env", "allowed is a table of strings"));
                        };
                        table.env.push((name.get_ref().to_string(), text));
                    }
                }
                "inherit" => {
                    table.inherit =
                        texts(value.get_ref()).ok_or_else(|| wrong("inherit", "allowed is a list of strings"))?;
                }
                "cwd" => table.cwd = Some(text("cwd")?.into()),
                "mode" => table.mode = Some(text("mode")?),
                "model" => table.model = Some(text("model")?),
                "auth_method" => table.auth_method = Some(text("auth_method")?),
                other => {
                    return Err(SettingError::Unknown { key: other.to_owned(), near: near(other), origin });
                }
            }
        }
        let missing = "it needs a kind: demo, claude or acp";
        let refused = |why: String| SettingError::Value {
            key: "agent",
            value: name.clone().unwrap_or_default(),
            origin: table.origin.clone(),
            why,
        };
        table.kind = kind.ok_or_else(|| refused(missing.to_owned()))?;
        check_command(table.kind, &table.command).map_err(refused)?;
        table.name = name.unwrap_or_else(|| usual_name(table.kind, &table.command));
        Ok(table)
    }
}

/// An agent as proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AgentSettings {
    /// A scripted one.
    Demo,
    /// The Claude Code program.
    Claude(Box<ClaudeConfig>),
    /// A program that speaks the Agent Client Protocol.
    Acp(Box<AcpConfig>),
}

/// Programs that are known to speak the Agent Client Protocol, and the arguments with which they do.
const KNOWN_ACP: [&[&str]; 6] = [
    &["opencode", "acp"],
    &["gemini", "--experimental-acp"],
    &["goose", "acp"],
    &["codex-acp"],
    &["claude-agent-acp"],
    &["elizacp", "acp"],
];

impl AgentSettings {
    /// The agents of a host, at least one. The first answers when a client names none. `process` limits each that is a program.
    pub(crate) fn prove(
        chosen: Vec<AgentChoice>,
        tables: &[AgentTable],
        process: &ProcessLimits,
        layers: &Layers,
    ) -> Result<Vec<Self>, SettingError> {
        let mut agents = Self::chosen(chosen, tables, layers)?;
        for program in agents.iter_mut().filter_map(Self::program_mut) {
            program.process.clone_from(process);
        }
        Ok(agents)
    }

    /// How its program is run, if it is one.
    pub(crate) fn program(&self) -> Option<&ProgramConfig> {
        match self {
            Self::Demo => None,
            Self::Claude(config) => Some(&config.program),
            Self::Acp(config) => Some(&config.program),
        }
    }

    fn program_mut(&mut self) -> Option<&mut ProgramConfig> {
        match self {
            Self::Demo => None,
            Self::Claude(config) => Some(&mut config.program),
            Self::Acp(config) => Some(&mut config.program),
        }
    }

    fn chosen(chosen: Vec<AgentChoice>, tables: &[AgentTable], layers: &Layers) -> Result<Vec<Self>, SettingError> {
        let refuse = |why: String| layers.refuse("agent", why);
        let mut agents: Vec<Self> = Vec::new();
        if chosen.is_empty() {
            for table in tables {
                let refuse = |why: String| table.refuse(why);
                add(&mut agents, Self::of_table(table).map_err(refuse)?).map_err(refuse)?;
            }
            return Ok(if agents.is_empty() { Self::found() } else { agents });
        }
        for choice in chosen {
            let agent = match choice {
                AgentChoice::Table(name) => match tables.iter().find(|table| table.name == name) {
                    Some(table) => Self::of_table(table).map_err(|why| table.refuse(why))?,
                    None => return Err(refuse(ALLOWED.to_owned())),
                },
                AgentChoice::Described { name, kind, command } => {
                    // A table of that name says more about it.
                    let table = tables
                        .iter()
                        .find(|table| name.is_none() && command.is_empty() && table.name == kind.to_string());
                    match table {
                        Some(table) => Self::of_table(table).map_err(|why| table.refuse(why))?,
                        None => Self::described(name, kind, command).map_err(&refuse)?,
                    }
                }
            };
            add(&mut agents, agent).map_err(&refuse)?;
        }
        Ok(agents)
    }

    /// What clients call it.
    pub(crate) fn name(&self) -> &str {
        self.program().map_or("demo", |program| &program.name)
    }

    /// A description for the person who starts the host.
    pub(crate) fn description(&self) -> String {
        let Some(config) = self.program() else { return "demo (a script, needs no account)".to_owned() };
        let program = config.command.first().map(|program| program.as_os_str()).unwrap_or_default();
        match find_program(program) {
            Some(path) => format!("{} ({})", self.name(), path.display()),
            None => format!("{} (there is no program {})", self.name(), program.display()),
        }
    }

    /// The demo, and what is found in `PATH`. The demo comes first: nothing that costs money answers unless somebody asks for it.
    fn found() -> Vec<Self> {
        let claude = find_program(OsStr::new("claude")).map(|_| Self::Claude(Box::default()));
        let known = KNOWN_ACP.iter().filter_map(|command| {
            let program = command.first()?;
            find_program(OsStr::new(program))?;
            Some(Self::Acp(Box::new(AcpConfig::new(*program, command.iter().map(Into::into).collect()))))
        });
        std::iter::once(Self::Demo).chain(claude).chain(known).collect()
    }

    fn described(name: Option<String>, kind: AgentKind, command: Vec<String>) -> Result<Self, String> {
        let name = name.unwrap_or_else(|| usual_name(kind, &command));
        let table = AgentTable {
            origin: Origin::Default,
            name,
            kind,
            command,
            env: Vec::new(),
            inherit: Vec::new(),
            cwd: None,
            mode: None,
            model: None,
            auth_method: None,
        };
        Self::of_table(&table)
    }

    fn of_table(table: &AgentTable) -> Result<Self, String> {
        match table.kind {
            AgentKind::Demo if table.name == "demo" => Ok(Self::Demo),
            AgentKind::Demo => Err("the demo agent is always called demo".to_owned()),
            AgentKind::Claude => {
                let mut config = ClaudeConfig::default();
                table.apply(&mut config.program);
                Ok(Self::Claude(Box::new(config)))
            }
            AgentKind::Acp => {
                let mut config = AcpConfig::new(&table.name, Vec::new());
                table.apply(&mut config.program);
                config.auth_method.clone_from(&table.auth_method);
                Ok(Self::Acp(Box::new(config)))
            }
        }
    }
}

impl AgentTable {
    /// Sets the options that all programs have.
    fn apply(&self, program: &mut ProgramConfig) {
        program.name.clone_from(&self.name);
        if !self.command.is_empty() {
            program.command = self.command.iter().map(Into::into).collect();
        }
        program.env.clone_from(&self.env);
        program.inherit.clone_from(&self.inherit);
        program.directory.clone_from(&self.cwd);
        program.mode.clone_from(&self.mode);
        program.model.clone_from(&self.model);
    }

    fn refuse(&self, why: String) -> SettingError {
        SettingError::Value { key: "agent", value: self.name.clone(), origin: self.origin.clone(), why }
    }
}

fn add(agents: &mut Vec<AgentSettings>, agent: AgentSettings) -> Result<(), String> {
    if agents.iter().any(|other| other.name() == agent.name()) {
        return Err(format!("two agents are called {:?}: write NAME= before one of them", agent.name()));
    }
    agents.push(agent);
    Ok(())
}

/// A name that clients can use in all places, and that no shell changes.
fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = (1..=64).contains(&name.len()) && name.bytes().all(is_plain);
    is_name.then_some(()).ok_or_else(|| "a name has 1 to 64 letters, digits, hyphens, underscores and dots".to_owned())
}

fn check_command(kind: AgentKind, command: &[String]) -> Result<(), String> {
    match kind {
        AgentKind::Demo if !command.is_empty() => Err("the demo agent has no command".to_owned()),
        AgentKind::Acp if command.is_empty() => Err("acp needs a command, such as acp:'opencode acp'".to_owned()),
        _ => Ok(()),
    }
}

/// The name of an agent that was given none: its kind, or for `acp` the name of its program.
fn usual_name(kind: AgentKind, command: &[String]) -> String {
    let program = command.first().and_then(|program| program.rsplit('/').next());
    match (kind, program) {
        (AgentKind::Acp, Some(program)) if check_name(program).is_ok() => program.to_owned(),
        _ => kind.to_string(),
    }
}

fn text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        _ => None,
    }
}

fn texts(value: &DeValue<'_>) -> Option<Vec<String>> {
    let DeValue::Array(array) = value else { return None };
    array.iter().map(|item| text(item.get_ref())).collect()
}

/// The key of a table that was probably meant.
fn near(key: &str) -> Option<&'static str> {
    const KEYS: [&str; 9] = ["name", "kind", "command", "env", "inherit", "cwd", "mode", "model", "auth_method"];
    const ALIKE: f64 = 0.6;
    let likeness = |known: &&str| strsim::normalized_damerau_levenshtein(known, key);
    let best = KEYS.into_iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    (likeness(&best) >= ALIKE).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_a_kind_with_a_name_before_it_and_a_command_behind_it() {
        let described = |name: Option<&str>, kind, command: &[&str]| AgentChoice::Described {
            name: name.map(str::to_owned),
            kind,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
        };
        for (text, want) in [
            ("demo", described(None, AgentKind::Demo, &[])),
            ("claude", described(None, AgentKind::Claude, &[])),
            ("work=claude", described(Some("work"), AgentKind::Claude, &[])),
            ("acp:opencode acp", described(None, AgentKind::Acp, &["opencode", "acp"])),
            ("x=claude:'/a b/claude' --key=v", described(Some("x"), AgentKind::Claude, &["/a b/claude", "--key=v"])),
            ("claude:c --key=v", described(None, AgentKind::Claude, &["c", "--key=v"])),
            ("other", AgentChoice::Table("other".to_owned())),
        ] {
            let choice = AgentChoice::parse(text).unwrap();
            assert_eq!(choice, want, "{text}");
            assert_eq!(AgentChoice::parse(&choice.text()).unwrap(), want, "{text}");
        }
        for text in ["", "gpt:x", "a b=claude", "=claude", "demo:x", "acp:", "acp", "claude:'x"] {
            assert!(AgentChoice::parse(text).is_err(), "{text}");
        }
    }
}
