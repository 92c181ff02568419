//! What we ask of the program beside prompts, and what it answers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::wire::{self, Maybe, Text};
use crate::Id;

/// Something to ask of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Tell about yourself. It is the first thing to ask.
    Initialize,
    /// Stop the running turn. Prompts in the program's queue stay there.
    Interrupt,
    /// Work in another permission mode.
    SetPermissionMode(String),
    /// Work with another model; without one, with the program's own choice.
    SetModel(Option<String>),
    /// Take a prompt back that waits in the program's queue.
    CancelPrompt {
        /// The prompt's UUID.
        uuid: String,
    },
}

/// What the program has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It has done so. What is new is in [`Info`](super::Info).
    Done,
    /// It stops the running turn.
    Interrupted {
        /// UUIDs of the prompts that are still in its queue, and will run next.
        still_queued: Vec<String>,
    },
    /// Whether the prompt was still in its queue and has been taken out.
    PromptCancelled(bool),
}

/// Why the program has not done what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// It said no.
    #[error("the program refused: {0}")]
    Refused(String),
    /// It ended before it answered.
    #[error("the program ended before it answered")]
    Ended,
}

/// The line that asks something.
#[derive(Serialize)]
pub(super) struct RequestLine<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    request_id: &'a str,
    request: Request<'a>,
}

#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
enum Request<'a> {
    Initialize,
    Interrupt,
    SetPermissionMode {
        mode: &'a str,
    },
    SetModel {
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<&'a str>,
    },
    CancelAsyncMessage {
        message_uuid: &'a str,
    },
}

impl<'a> RequestLine<'a> {
    pub(super) fn new(id: &'a Id, control: &'a Control) -> Self {
        let request = match control {
            Control::Initialize => Request::Initialize,
            Control::Interrupt => Request::Interrupt,
            Control::SetPermissionMode(mode) => Request::SetPermissionMode { mode },
            Control::SetModel(model) => Request::SetModel { model: model.as_deref() },
            Control::CancelPrompt { uuid } => Request::CancelAsyncMessage { message_uuid: uuid },
        };
        Self { kind: "control_request", request_id: id, request }
    }
}

/// What was asked and not answered yet.
#[derive(Debug, Default)]
pub(super) struct Controls(BTreeMap<Id, Control>);

impl Controls {
    pub(super) fn insert(&mut self, request: Id, control: Control) {
        self.0.insert(request, control);
    }

    pub(super) fn remove(&mut self, request: &str) -> Option<(Id, Control)> {
        self.0.remove_entry(request)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Id, &Control)> {
        self.0.iter()
    }

    pub(super) fn take(&mut self) -> impl Iterator<Item = (Id, Control)> + use<> {
        std::mem::take(&mut self.0).into_iter()
    }
}

#[derive(Debug, serde::Deserialize)]
struct Interrupted<'a> {
    #[serde(default, borrow)]
    still_queued: Maybe<Vec<Text<'a>>>,
}

#[derive(Debug, serde::Deserialize)]
struct Cancelled {
    #[serde(default)]
    cancelled: Maybe<bool>,
}

/// What the program's answer to a control request means.
pub(super) fn reply(control: &Control, response: &wire::ControlResponse<'_>) -> Result<Reply, ControlError> {
    if response.subtype.as_str() != "success" {
        let Maybe(error) = &response.error;
        let error = error.as_ref().map_or_else(|| "no reason was given".to_owned(), |Text(text)| text.to_string());
        return Err(ControlError::Refused(error));
    }
    Ok(match control {
        Control::Interrupt => {
            let read = response.response.and_then(wire::parse::<Interrupted<'_>>);
            let queued = read.and_then(|read| read.still_queued.0).unwrap_or_default();
            Reply::Interrupted { still_queued: queued.into_iter().map(|Text(uuid)| uuid.into_owned()).collect() }
        }
        Control::CancelPrompt { .. } => {
            let read = response.response.and_then(wire::parse::<Cancelled>);
            Reply::PromptCancelled(read.and_then(|read| read.cancelled.0).unwrap_or(false))
        }
        Control::Initialize | Control::SetPermissionMode(_) | Control::SetModel(_) => Reply::Done,
    })
}
