//! Permissions that the program wants before it runs a call, and the answers to it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::wire::{self, ControlRequest, Maybe, Text, Word};
use crate::{Answer, Ask, Choice, Id};

/// The choice that allows one call.
pub const CHOICE_ONCE: &str = "once";
/// The choice that also allows what the program suggests to allow from now on.
pub const CHOICE_ALWAYS: &str = "always";
/// Begins the choices that allow the call and change the permission mode; the mode follows.
pub const CHOICE_MODE: &str = "mode:";
/// The choice that denies the call.
pub const CHOICE_DENY: &str = "deny";
/// The choice that denies the call and stops the turn.
pub const CHOICE_STOP: &str = "stop";

/// A permission that the program wants. The same is asked by [`Event::ToolAsked`](crate::Event::ToolAsked); this is for
/// a host that decides some by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionRequest {
    /// The program's name for its request.
    pub request: Id,
    /// The call.
    pub tool: Id,
    /// The tool's name.
    pub name: String,
    /// The call's input, as JSON text.
    pub input: String,
    /// What the program suggests to allow from now on, each as JSON text.
    pub suggestions: Vec<String>,
    /// What somebody is asked.
    pub ask: Ask,
}

/// Why an answer was not given to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The program does not wait for an answer about this call.
    #[error("the program requests no permission for this call")]
    NotAsked,
    /// The edited input is not an input.
    #[error("the edited input is not a JSON object")]
    NotAnObject,
}

/// The requests that wait for an answer, by the call that they are about.
#[derive(Debug, Default)]
pub(super) struct Asks(BTreeMap<Id, Asked>);

#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Id,
    input: Box<RawValue>,
    suggestions: Vec<Suggestion>,
}

/// Something to allow from now on.
#[derive(Debug)]
struct Suggestion {
    raw: Box<RawValue>,
    /// The mode to change to, if that is what it suggests.
    mode: Option<String>,
}

impl Asks {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A permission is wanted. Gives back the request that it replaces.
    pub(super) fn insert(&mut self, tool: Id, asked: Asked) -> Option<Asked> {
        self.0.insert(tool, asked)
    }

    pub(super) fn has_request(&self, request: &str) -> bool {
        self.0.values().any(|asked| *asked.request == *request)
    }

    pub(super) fn tools(&self) -> impl Iterator<Item = &Id> {
        self.0.keys()
    }

    /// The program does not wait for this answer any more.
    pub(super) fn withdraw(&mut self, request: &str) -> Option<(Id, Asked)> {
        let tool = self.0.iter().find(|(_, asked)| *asked.request == *request)?.0.clone();
        self.0.remove_entry(&tool)
    }

    /// A call has ended: its permission request needs no answer any more.
    pub(super) fn remove(&mut self, tool: &Id) -> Option<Asked> {
        self.0.remove(tool)
    }

    pub(super) fn take(&mut self) -> impl Iterator<Item = (Id, Asked)> + use<> {
        std::mem::take(&mut self.0).into_iter()
    }

    /// The line that answers, for a call that is asked about. It is asked about no more.
    pub(super) fn answer(&mut self, tool: &Id, answer: &Answer) -> Result<Vec<u8>, AnswerError> {
        let asked = self.0.get(tool).ok_or(AnswerError::NotAsked)?;
        let line = asked.answer(answer)?;
        self.0.remove(tool);
        Ok(line)
    }
}

impl Asked {
    /// Reads a request. Without an input there is nothing that could be allowed.
    pub(super) fn read(request: Id, wire: &ControlRequest<'_>) -> Option<Self> {
        let input = one_line(wire.input?)?;
        let Maybe(suggestions) = &wire.permission_suggestions;
        let suggestions = suggestions.iter().flatten().filter_map(|raw| Suggestion::read(raw)).collect();
        Some(Self { request, input, suggestions })
    }

    pub(super) fn permission(&self, tool: Id, wire: &ControlRequest<'_>) -> PermissionRequest {
        PermissionRequest {
            request: self.request.clone(),
            tool,
            name: wire.tool_name.as_str().to_owned(),
            input: self.input.get().to_owned(),
            suggestions: self.suggestions.iter().map(|suggestion| suggestion.raw.get().to_owned()).collect(),
            ask: self.ask(wire),
        }
    }

    fn ask(&self, wire: &ControlRequest<'_>) -> Ask {
        let name = wire.display_name.get().unwrap_or(wire.tool_name.as_str());
        let said = |Maybe(text): &Maybe<Text<'_>>| {
            text.as_ref().map(|Text(text)| text.to_string()).filter(|text| !text.trim().is_empty())
        };
        let title = said(&wire.title).unwrap_or_else(|| format!("Allow {name}?"));
        let reason = said(&wire.description).or_else(|| said(&wire.decision_reason)).or_else(|| self.purpose());
        let mut message = reason.unwrap_or_else(|| format!("The agent wants to use {name}."));
        if let Some(path) = said(&wire.blocked_path) {
            message.push_str(&format!(" (reaches {path})"));
        }
        Ask { title, message, editable: true, choices: self.choices() }
    }

    /// The purpose of the call, from its input. Old versions do not give it anywhere else.
    fn purpose(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Purpose<'a> {
            #[serde(default, borrow)]
            description: Word<'a>,
        }
        wire::parse::<Purpose<'_>>(&self.input)?.description.to_owned()
    }

    fn choices(&self) -> Vec<Choice> {
        let choice = |id: &str, label: &str, allows| Choice { id: id.to_owned(), label: label.to_owned(), allows };
        let mut choices = vec![choice(CHOICE_ONCE, "Allow once", true)];
        if self.rules().next().is_some() {
            choices.push(choice(CHOICE_ALWAYS, "Always allow", true));
        }
        for mode in self.suggestions.iter().filter_map(|suggestion| suggestion.mode.as_deref()) {
            choices.push(choice(&format!("{CHOICE_MODE}{mode}"), &format!("Allow, and switch to {mode} mode"), true));
        }
        choices.push(choice(CHOICE_DENY, "Deny", false));
        choices.push(choice(CHOICE_STOP, "Deny and stop", false));
        choices
    }

    /// The suggestions that "always" accepts: rules for calls like this one. A mode allows far more, so it is a
    /// separate choice; only if the program suggests nothing but modes does "always" mean them.
    fn rules(&self) -> impl Iterator<Item = &RawValue> {
        let has_rules = self.suggestions.iter().any(|suggestion| suggestion.mode.is_none());
        let is_rule = move |suggestion: &&Suggestion| suggestion.mode.is_none() || !has_rules;
        self.suggestions.iter().filter(is_rule).map(|suggestion| &*suggestion.raw)
    }

    fn answer(&self, answer: &Answer) -> Result<Vec<u8>, AnswerError> {
        let edited;
        let response = match answer {
            Answer::Allowed { input, choice } => {
                let input = match input {
                    Some(input) => {
                        edited = object(input).ok_or(AnswerError::NotAnObject)?;
                        &*edited
                    }
                    None => &*self.input,
                };
                Verdict::Allow { updated_input: input, updated_permissions: self.granted(choice.as_deref()) }
            }
            Answer::Denied { reason, choice } => Verdict::Deny {
                message: reason.as_deref().unwrap_or("The user denied this call."),
                interrupt: choice.as_deref() == Some(CHOICE_STOP),
            },
            Answer::Withdrawn => Verdict::Deny { message: "Nobody answered.", interrupt: false },
        };
        Ok(line(&ResponseLine::success(&self.request, response)))
    }

    fn granted(&self, choice: Option<&str>) -> Vec<&RawValue> {
        match choice {
            Some(CHOICE_ALWAYS) => self.rules().collect(),
            Some(choice) => match choice.strip_prefix(CHOICE_MODE) {
                Some(mode) => self.mode(mode).into_iter().collect(),
                None => Vec::new(),
            },
            None => Vec::new(),
        }
    }

    fn mode(&self, mode: &str) -> Option<&RawValue> {
        let suggestion = self.suggestions.iter().find(|suggestion| suggestion.mode.as_deref() == Some(mode))?;
        Some(&suggestion.raw)
    }

    /// The line that denies the call because nobody can answer any more.
    pub(super) fn deny(&self, message: &str) -> Vec<u8> {
        line(&ResponseLine::success(&self.request, Verdict::Deny { message, interrupt: false }))
    }
}

impl Suggestion {
    fn read(raw: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        struct Wire<'a> {
            #[serde(rename = "type", default, borrow)]
            kind: Word<'a>,
            #[serde(default, borrow)]
            mode: Word<'a>,
        }
        let wire: Wire<'_> = wire::parse(raw)?;
        let mode = if wire.kind.as_str() == "setMode" { Some(wire.mode.to_owned()?) } else { None };
        Some(Self { raw: one_line(raw)?, mode })
    }
}

/// The line that answers a request.
#[derive(Serialize)]
struct ResponseLine<'a, T> {
    #[serde(rename = "type")]
    kind: &'static str,
    response: ControlResult<'a, T>,
}

#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "lowercase")]
enum ControlResult<'a, T> {
    Success { request_id: &'a str, response: T },
    Error { request_id: &'a str, error: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "behavior", rename_all = "lowercase")]
enum Verdict<'a> {
    Allow {
        #[serde(rename = "updatedInput")]
        updated_input: &'a RawValue,
        #[serde(rename = "updatedPermissions", skip_serializing_if = "Vec::is_empty")]
        updated_permissions: Vec<&'a RawValue>,
    },
    Deny {
        message: &'a str,
        #[serde(skip_serializing_if = "is_false")]
        interrupt: bool,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl<'a> ResponseLine<'a, Verdict<'a>> {
    fn success(request: &'a Id, response: Verdict<'a>) -> Self {
        Self { kind: "control_response", response: ControlResult::Success { request_id: request, response } }
    }
}

/// The line that refuses a request, so that the program does not wait for ever.
pub(super) fn refusal(request: &str, error: &str) -> Vec<u8> {
    line(&ResponseLine::<()> {
        kind: "control_response",
        response: ControlResult::Error { request_id: request, error },
    })
}

/// One line of JSON, with its newline.
pub(super) fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = Vec::new();
    // Neither writing into memory nor these types can fail.
    if serde_json::to_writer(&mut line, value).is_err() {
        line.clear();
    }
    line.push(b'\n');
    line
}

/// An input that somebody has edited, if it is a JSON object.
fn object(text: &str) -> Option<Box<RawValue>> {
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    if raw.get().starts_with('{') { one_line(raw) } else { None }
}

/// The same JSON without line breaks. Inside of strings it has none, so those outside are white space.
fn one_line(raw: &RawValue) -> Option<Box<RawValue>> {
    if raw.get().contains(['\n', '\r']) {
        return RawValue::from_string(raw.get().replace(['\n', '\r'], " ")).ok();
    }
    Some(raw.to_owned())
}
