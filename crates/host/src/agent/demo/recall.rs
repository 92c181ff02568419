//! What the demo remembers of its conversation: enough to say how much that is.

use ahp_types::state::Message;

use super::words::quoted;
use crate::agent::History;
use crate::state::StateError;

/// What the demo wants to read of the past at once, in bytes.
const ROOM: usize = 64 << 10;

/// What the demo remembers.
#[derive(Debug, Clone, Default)]
pub(super) struct Recall {
    turns: u64,
    /// The last prompt, as it is said back.
    last: Option<String>,
    /// How much there is of what a side chat is about.
    beside: Option<u64>,
}

impl Recall {
    /// What a conversation begins with.
    pub(super) async fn of(history: &History, beside: Option<&History>) -> Result<Self, StateError> {
        let turns = history.len();
        let last = history.page(turns.saturating_sub(1), ROOM).await?.pop();
        let last = last.map(|turn| quoted(&turn.message.text));
        Ok(Self { turns, last, beside: beside.map(History::len) })
    }

    /// A turn begins, and is known from now on.
    pub(super) fn learn(&mut self, message: &Message) {
        self.turns = self.turns.saturating_add(1);
        self.last = Some(quoted(&message.text));
    }

    /// What it says of it.
    pub(super) fn said(&self) -> String {
        let known = match self.turns {
            0 => "no turns".to_owned(),
            1 => "1 turn".to_owned(),
            turns => format!("{turns} turns"),
        };
        let about = self.beside.map(|turns| format!(" The chat beside it has {turns}.")).unwrap_or_default();
        let last = self.last.as_ref().map(|last| format!(" The last prompt was:\n\n{last}")).unwrap_or_default();
        format!("(demo) Before this I know {known} of this chat.{about}{last}")
    }
}
