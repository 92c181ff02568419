//! What the program has told about itself.

use serde::Deserialize;

use super::wire::{Maybe, SystemLine, Text, Word};

/// What is known of the program and of its settings. Each turn begins with news of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Info {
    /// The program's version.
    pub version: Option<String>,
    /// The conversation's name, which is the token to resume with.
    pub session: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The permission mode.
    pub permission_mode: Option<String>,
    /// Tools that it can call.
    pub tools: Vec<String>,
    /// Names of the slash commands that it takes.
    pub slash_commands: Vec<String>,
    /// Kinds of sub-agents that it can set to work.
    pub agents: Vec<String>,
    /// Slash commands with their descriptions, from the answer to [`Control::Initialize`](super::Control::Initialize).
    pub commands: Vec<SlashCommand>,
    /// Models to choose from, from the same answer.
    pub models: Vec<ModelInfo>,
}

/// A slash command, for completions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlashCommand {
    /// Its name, without the slash.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// What it takes.
    pub argument_hint: Option<String>,
}

/// A model to choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// What [`Control::SetModel`](super::Control::SetModel) takes.
    pub value: String,
    /// What a person reads.
    pub name: Option<String>,
    /// What it is good for.
    pub description: Option<String>,
}

/// The answer to `initialize`.
#[derive(Debug, Deserialize)]
pub(super) struct Initialized<'a> {
    #[serde(default, borrow)]
    claude_code_version: Word<'a>,
    #[serde(default, borrow)]
    current_permission_mode: Word<'a>,
    #[serde(default, borrow)]
    commands: Maybe<Vec<WireCommand<'a>>>,
    #[serde(default, borrow)]
    models: Maybe<Vec<WireModel<'a>>>,
}

/// The answer to a change of the mode or of the model: what it is now.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Changed<'a> {
    #[serde(default, borrow)]
    pub(super) mode: Word<'a>,
    #[serde(default, borrow)]
    pub(super) model: Word<'a>,
}

#[derive(Debug, Deserialize)]
struct WireCommand<'a> {
    #[serde(default, borrow)]
    name: Word<'a>,
    #[serde(default, borrow)]
    description: Maybe<Text<'a>>,
    #[serde(rename = "argumentHint", default, borrow)]
    argument_hint: Maybe<Text<'a>>,
}

#[derive(Debug, Deserialize)]
struct WireModel<'a> {
    #[serde(default, borrow)]
    value: Word<'a>,
    #[serde(rename = "displayName", default, borrow)]
    name: Maybe<Text<'a>>,
    #[serde(default, borrow)]
    description: Maybe<Text<'a>>,
}

impl Info {
    /// Takes the news with which a turn begins.
    pub(super) fn refresh(&mut self, line: SystemLine<'_>) {
        replace(&mut self.version, &line.claude_code_version);
        replace(&mut self.session, &line.session_id);
        replace(&mut self.model, &line.model);
        replace_list(&mut self.tools, line.tools);
        replace_list(&mut self.slash_commands, line.slash_commands);
        replace_list(&mut self.agents, line.agents);
    }

    pub(super) fn initialized(&mut self, answer: Initialized<'_>) {
        replace(&mut self.version, &answer.claude_code_version);
        replace(&mut self.permission_mode, &answer.current_permission_mode);
        let command = |command: WireCommand<'_>| {
            let (description, argument_hint) = (owned(command.description), owned(command.argument_hint));
            command.name.to_owned().map(|name| SlashCommand { name, description, argument_hint })
        };
        let model = |model: WireModel<'_>| {
            let (name, description) = (owned(model.name), owned(model.description));
            model.value.to_owned().map(|value| ModelInfo { value, name, description })
        };
        self.commands = answer.commands.0.into_iter().flatten().filter_map(command).collect();
        self.models = answer.models.0.into_iter().flatten().filter_map(model).collect();
    }
}

fn replace(field: &mut Option<String>, news: &Word<'_>) {
    if let Some(news) = news.get()
        && field.as_deref() != Some(news)
    {
        *field = Some(news.to_owned());
    }
}

fn replace_list(field: &mut Vec<String>, news: Maybe<Vec<Text<'_>>>) {
    if let Some(news) = news.0 {
        *field = news.into_iter().map(|Text(text)| text.into_owned()).collect();
    }
}

fn owned(text: Maybe<Text<'_>>) -> Option<String> {
    text.0.map(|Text(text)| text.into_owned()).filter(|text| !text.is_empty())
}
