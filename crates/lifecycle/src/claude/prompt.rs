//! Prompts on their way to the program, and which of them a turn belongs to.
//!
//! The program keeps a queue of its own. It may begin prompts in another order than they were written, answer several in
//! one turn, or begin a turn that nobody prompted. Newer versions say where each prompt is; of older ones only the order
//! is known.

use std::collections::VecDeque;

use serde::Serialize;

use super::wire::Text;
use crate::Id;

/// What the program is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The turn that it begins.
    pub turn: Id,
    /// The prompt's name for the program: a UUID that was never used in this conversation, also before it was resumed. The
    /// program drops a prompt whose UUID it knows, without a word.
    pub uuid: String,
    /// When it is to be taken, if the program is working; the program decides if this is left open.
    pub priority: Option<Priority>,
    /// What it says.
    pub content: Vec<Part>,
}

impl Prompt {
    /// A prompt of plain text.
    pub fn text(turn: impl Into<Id>, uuid: impl Into<String>, text: impl Into<String>) -> Self {
        Self { turn: turn.into(), uuid: uuid.into(), priority: None, content: vec![Part::Text(text.into())] }
    }
}

/// When a prompt is to be taken by a program that is working.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// At once: the running turn is interrupted.
    Now,
    /// At the next occasion, which may be within the running turn.
    Next,
    /// After the running turn.
    Later,
}

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// An image.
    Image {
        /// Its bytes.
        base64: String,
        /// Its MIME type.
        mime: String,
    },
}

/// The line that hands a prompt over.
#[derive(Serialize)]
pub(super) struct PromptLine<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: UserMessage<'a>,
    parent_tool_use_id: Option<&'static str>,
    uuid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
}

#[derive(Serialize)]
struct UserMessage<'a> {
    role: &'static str,
    content: UserContent<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum UserContent<'a> {
    Plain(&'a str),
    Parts(Vec<UserPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum UserPart<'a> {
    Text { text: &'a str },
    Image { source: UserSource<'a> },
}

#[derive(Serialize)]
struct UserSource<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    media_type: &'a str,
    data: &'a str,
}

impl<'a> PromptLine<'a> {
    pub(super) fn new(prompt: &'a Prompt) -> Self {
        let content = match prompt.content.as_slice() {
            [Part::Text(text)] => UserContent::Plain(text),
            parts => UserContent::Parts(parts.iter().map(UserPart::new).collect()),
        };
        let message = UserMessage { role: "user", content };
        Self { kind: "user", message, parent_tool_use_id: None, uuid: &prompt.uuid, priority: prompt.priority }
    }
}

impl<'a> UserPart<'a> {
    fn new(part: &'a Part) -> Self {
        match part {
            Part::Text(text) => Self::Text { text },
            Part::Image { base64, mime } => {
                Self::Image { source: UserSource { kind: "base64", media_type: mime, data: base64 } }
            }
        }
    }
}

/// The prompts that were handed over and whose turn has not begun.
#[derive(Debug, Default)]
pub(super) struct Prompts(VecDeque<PendingPrompt>);

/// A prompt whose turn has not begun.
#[derive(Debug)]
pub(super) struct PendingPrompt {
    pub(super) turn: Id,
    pub(super) uuid: String,
    priority: Option<Priority>,
    pub(super) place: Place,
    /// Whether somebody wanted it stopped before it began.
    pub(super) is_interrupted: bool,
}

/// Where a prompt is, as far as the program has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It was handed over.
    Written,
    /// The program has put it into its queue.
    Queued,
    /// The program has taken it from there.
    Taken,
}

impl Prompts {
    pub(super) fn push(&mut self, prompt: Prompt) {
        let Prompt { turn, uuid, priority, .. } = prompt;
        self.0.push_back(PendingPrompt { turn, uuid, priority, place: Place::Written, is_interrupted: false });
    }

    pub(super) fn turns(&self) -> impl Iterator<Item = &Id> {
        self.0.iter().map(|pending| &pending.turn)
    }

    /// The program has said where a prompt is.
    pub(super) fn place(&mut self, uuid: &str, place: Place) {
        if let Some(pending) = self.0.iter_mut().find(|pending| pending.uuid == uuid) {
            pending.place = place;
        }
    }

    /// Takes out a prompt that will get no turn of its own.
    pub(super) fn remove(&mut self, uuid: &str) -> Option<PendingPrompt> {
        let at = self.0.iter().position(|pending| pending.uuid == uuid)?;
        self.0.remove(at)
    }

    /// Takes out the prompt whose turn begins: one that the line names, else the [next](Self::next). `None` if the
    /// program itself begins the turn.
    pub(super) fn take(&mut self, named: &[Text<'_>]) -> Option<PendingPrompt> {
        let is_named = |pending: &PendingPrompt| named.iter().any(|Text(uuid)| *uuid == *pending.uuid);
        let at = self.0.iter().position(is_named).or_else(|| self.next())?;
        self.0.remove(at)
    }

    /// The user interrupts while no turn is open: this applies to the prompt that is about to begin.
    pub(super) fn interrupt_next(&mut self) {
        if let Some(pending) = self.next().and_then(|at| self.0.get_mut(at)) {
            pending.is_interrupted = true;
        }
    }

    /// The prompt that the program has taken, else the first of which it has said nothing. One that the program says it
    /// has queued begins only after it says that it has taken it.
    fn next(&self) -> Option<usize> {
        let find = |is_it: fn(&PendingPrompt) -> bool| self.0.iter().position(is_it);
        find(|pending| pending.place == Place::Taken)
            .or_else(|| find(|pending| pending.place == Place::Written && pending.priority == Some(Priority::Now)))
            .or_else(|| find(|pending| pending.place == Place::Written))
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = PendingPrompt> {
        self.0.drain(..)
    }
}
