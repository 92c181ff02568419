//! What the demo remembers of its conversation, for `/recall`.

use ahp_types::state::{Message, ResponsePart, Turn};

use super::text::quoted;
use crate::agent::{History, SideChatContext};
use crate::state::StateError;

/// What the demo wants to read of the past at once, in bytes.
const MAX_TURN_BYTES: usize = 64 << 10;

/// What the demo remembers.
#[derive(Debug, Clone, Default)]
pub(super) struct Recall {
    turns: u64,
    /// The last prompt, as it is said back.
    last: Option<String>,
    /// What it says of what a side chat is about.
    beside: String,
}

impl Recall {
    /// What a conversation begins with.
    pub(super) async fn of(history: &History, beside: Option<&SideChatContext>) -> Result<Self, StateError> {
        let last = last(history).await?.map(|turn| quoted(&turn.message.text));
        let beside = match beside {
            Some(beside) => about(beside).await?,
            None => String::new(),
        };
        Ok(Self { turns: history.len(), last, beside })
    }

    /// A turn begins, and is known from now on.
    pub(super) fn learn(&mut self, message: &Message) {
        self.turns = self.turns.saturating_add(1);
        self.last = Some(quoted(&message.text));
    }

    /// What it says of it.
    pub(super) fn said(&self) -> String {
        let known = format!("(demo) Before this I know {} of this chat.", counted(self.turns));
        let last = self.last.as_ref().map(|last| format!(" The last prompt was:\n\n{last}")).unwrap_or_default();
        format!("{known}{last}{}", self.beside)
    }
}

/// What is known of the chat beside this one.
async fn about(SideChatContext { history, selection }: &SideChatContext) -> Result<String, StateError> {
    let mut said = format!("\n\nOf the chat beside it I know {}.", counted(history.len()));
    if let Some(turn) = last(history).await? {
        said += &format!(" The last prompt there was:\n\n{}", quoted(&turn.message.text));
        if history.is_unfinished() {
            said +=
                &format!("\n\nThe answer was not over. So far it was:\n\n{}", quoted(&answer(history, &turn).await?));
        }
    }
    if let Some(selection) = selection {
        said += &format!("\n\nThis was selected:\n\n{}", quoted(&selection.text));
    }
    Ok(said)
}

/// The words of an answer.
async fn answer(history: &History, turn: &Turn) -> Result<String, StateError> {
    let mut words = String::new();
    for part in &turn.response_parts {
        match part {
            ResponsePart::Markdown(part) => words += &part.content,
            // A long one, or something that is none of ours.
            ResponsePart::ContentRef(part) => match history.content(&part.uri).await {
                Err(StateError::NotFound) => {}
                content => words += &content?.data,
            },
            _ => {}
        }
    }
    Ok(words)
}

async fn last(history: &History) -> Result<Option<Turn>, StateError> {
    Ok(history.page(history.len().saturating_sub(1), MAX_TURN_BYTES).await?.pop())
}

fn counted(turns: u64) -> String {
    match turns {
        0 => "no turns".to_owned(),
        1 => "1 turn".to_owned(),
        turns => format!("{turns} turns"),
    }
}
