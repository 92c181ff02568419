//! A tool call: its input, the question whether it may run, and its outcome.

use crate::Id;

/// A tool that an agent calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The call's own name.
    pub tool: Id,
    /// The tool's name, for programs.
    pub name: String,
    /// The tool's name, for people.
    pub title: String,
    /// What this call is for, for people.
    pub intention: Option<String>,
}

impl Call {
    /// A call without an intention.
    pub fn new(tool: impl Into<Id>, name: impl Into<String>, title: impl Into<String>) -> Self {
        Self { tool: tool.into(), name: name.into(), title: title.into(), intention: None }
    }

    pub(crate) fn weight(&self) -> usize {
        let intention = self.intention.as_ref().map_or(0, String::len);
        self.name.len().saturating_add(self.title.len()).saturating_add(intention)
    }
}

/// What somebody is asked before a call may run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ask {
    /// A short title.
    pub title: String,
    /// What will happen, in a sentence.
    pub message: String,
    /// Whether the input may be edited.
    pub editable: bool,
    /// Answers to choose from; none means plainly yes or no.
    pub choices: Vec<Choice>,
}

impl Ask {
    pub(crate) fn weight(&self) -> usize {
        let choices = self.choices.iter().map(|choice| choice.id.len().saturating_add(choice.label.len()));
        choices.fold(self.title.len().saturating_add(self.message.len()), usize::saturating_add)
    }
}

/// One answer to choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What the agent is told.
    pub id: String,
    /// What a person reads.
    pub label: String,
    /// Whether it is a yes.
    pub allows: bool,
}

/// How an ask was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The call may run.
    Allowed {
        /// The input that it runs with, if somebody has edited it.
        input: Option<String>,
        /// The choice that was taken.
        choice: Option<String>,
    },
    /// The call must not run.
    Denied {
        /// Why, or what to do instead.
        reason: Option<String>,
        /// The choice that was taken.
        choice: Option<String>,
    },
    /// Nobody has answered, and nobody can any more.
    Withdrawn,
}

impl Answer {
    /// A plain yes.
    #[must_use]
    pub const fn yes() -> Self {
        Self::Allowed { input: None, choice: None }
    }

    /// A plain no.
    #[must_use]
    pub const fn no() -> Self {
        Self::Denied { reason: None, choice: None }
    }

    /// Whether the call may run.
    #[must_use]
    pub const fn allows(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }

    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Allowed { input, .. } => input.as_ref().map_or(0, String::len),
            Self::Denied { reason, .. } => reason.as_ref().map_or(0, String::len),
            Self::Withdrawn => 0,
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It ran, well or not.
    Done(ToolResult),
    /// It never ran, or was stopped.
    Cancelled {
        /// Why.
        reason: Option<String>,
    },
}

impl Ending {
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Done(result) => {
                let content = result.content.iter().map(Content::weight).fold(0, usize::saturating_add);
                content.saturating_add(result.summary.len())
            }
            Self::Cancelled { reason } => reason.as_ref().map_or(0, String::len),
        }
    }
}

/// What a call has produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// Whether it did what it was called for.
    pub success: bool,
    /// What it did, in a sentence of the past.
    pub summary: String,
    /// What it produced.
    pub content: Vec<Content>,
    /// What went wrong.
    pub error: Option<String>,
}

impl ToolResult {
    /// A success with some text.
    pub fn text(summary: impl Into<String>, text: impl Into<String>) -> Self {
        Self { success: true, summary: summary.into(), content: vec![Content::Text(text.into())], error: None }
    }

    /// A failure.
    pub fn failed(summary: impl Into<String>, error: impl Into<String>) -> Self {
        Self { success: false, summary: summary.into(), content: Vec::new(), error: Some(error.into()) }
    }
}

/// A piece of what a call has produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Text.
    Text(String),
    /// Bytes, as base64.
    Data {
        /// The bytes.
        base64: String,
        /// Their MIME type.
        mime: String,
    },
    /// Something that can be read elsewhere.
    Link {
        /// Where.
        uri: String,
        /// Its MIME type, if known.
        mime: Option<String>,
    },
    /// A file that was written.
    Edit {
        /// The file.
        uri: String,
        /// Lines that are new.
        added: u64,
        /// Lines that are gone.
        removed: u64,
    },
}

impl Content {
    pub(crate) fn weight(&self) -> usize {
        let held = match self {
            Self::Text(text) => text.len(),
            Self::Data { base64, mime } => base64.len().saturating_add(mime.len()),
            Self::Link { uri, .. } | Self::Edit { uri, .. } => uri.len(),
        };
        size_of::<Self>().saturating_add(held)
    }
}
