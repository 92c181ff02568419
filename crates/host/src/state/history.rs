//! The past of a conversation, for whoever has to know it: the completed turns of a chat, read when they are needed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ahp_types::state::{SnapshotState, Turn};

use super::content::{self, Content};
use super::slim::{self, Reference};
use super::slot::{Held, Slots};
use super::turns::{self, Row};
use super::{StateError, heavy};

/// Completed turns of a chat that follow each other, from its first one on; by default none.
///
/// It says which turns they are, and holds none of them: a chat may be far larger than memory. Turns that the chat gets
/// later are not among them. Once any of them is taken back, what it reads is an error, or a turn that came later.
#[derive(Clone, Default)]
pub struct History(Option<Rows>);

/// Rows of a chat.
#[derive(Clone)]
struct Rows {
    slots: Arc<Slots>,
    chat: Arc<str>,
    range: Range<u64>,
}

impl History {
    /// How many turns there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |rows| rows.range.end.saturating_sub(rows.range.start))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The turns from this one on, of which the oldest is 0: as many as have `room` bytes of JSON together, and one at
    /// least. None where none is left.
    ///
    /// Of a turn that alone has more, what is large is by reference, wherever the protocol has references;
    /// [`content`](Self::content) reads them. If that is not enough, it comes whole.
    ///
    /// # Errors
    /// When turns cannot be read, or were taken back.
    pub async fn page(&self, from: u64, room: usize) -> Result<Vec<Turn>, StateError> {
        let Some(rows) = &self.0 else { return Ok(Vec::new()) };
        let (page, chat) = (rows.page(from, room).await?, Arc::clone(&rows.chat));
        let read = move |row| slimmed(&chat, row, room).turn();
        parsed(page, read).await
    }

    /// What a reference in one of these turns names.
    ///
    /// # Errors
    /// [`StateError::NotFound`] when it names nothing of this chat, or what was there is not there any more.
    pub async fn content(&self, uri: &str) -> Result<Content, StateError> {
        let rows = self.0.as_ref().ok_or(StateError::NotFound)?;
        let reference = Reference::read(uri).filter(|reference| *reference.channel == *rows.chat);
        content::content(&rows.slots, reference.ok_or(StateError::NotFound)?).await
    }

    /// The completed turns of a chat before the turn that it is in; `None` if it is not in this one.
    pub(super) async fn before(slots: &Arc<Slots>, chat: &str, turn: &str) -> Result<Option<Self>, StateError> {
        let held = slots.hold_chat(chat).await?;
        Ok(is_in(&held, turn).then(|| Self::of(slots, &held, held.turns.range())))
    }

    /// The completed turns of a chat up to this one, which may be the one that it is in; `None` if it is neither.
    pub(super) async fn through(slots: &Arc<Slots>, chat: &str, turn: &str) -> Result<Option<Self>, StateError> {
        let held = slots.hold_chat(chat).await?;
        let all = held.turns.range();
        let end = match held.turns.find(&*slots.log, chat, turn).await? {
            Some(row) => Some(row.number + 1),
            None => is_in(&held, turn).then_some(all.end),
        };
        Ok(end.map(|end| Self::of(slots, &held, all.start..end)))
    }

    fn of(slots: &Arc<Slots>, held: &Held, range: Range<u64>) -> Self {
        Self(Some(Rows { slots: Arc::clone(slots), chat: Arc::clone(&held.uri), range }))
    }

    /// The id of the last one.
    pub(crate) async fn last_id(&self) -> Result<Option<String>, StateError> {
        let (Some(rows), Some(last)) = (&self.0, self.len().checked_sub(1)) else { return Ok(None) };
        rows.page(last, 0).await?.first().map(Row::id).transpose()
    }

    /// All of them, as they are.
    pub(crate) async fn whole(&self) -> Result<Vec<Turn>, StateError> {
        let Some(rows) = &self.0 else { return Ok(Vec::new()) };
        let held = rows.hold(&rows.range).await?;
        let fresh = held.turns.fresh(rows.range.clone());
        let found = turns::rows(&*rows.slots.log, &rows.chat, rows.range.clone(), fresh).await?;
        drop(held);
        parsed(found, |row| row.turn()).await
    }

    /// Whether these are the turns of an earlier one, and one more.
    pub(crate) fn follows(&self, earlier: &Self) -> bool {
        let (Some(rows), Some(before)) = (&self.0, &earlier.0) else { return false };
        let (Range { start, end }, before_it) = (rows.range.clone(), before.range.clone());
        rows.chat == before.chat && start == before_it.start && end.checked_sub(1) == Some(before_it.end)
    }
}

impl Rows {
    /// Those from this one on that have so many bytes together, and one at least.
    async fn page(&self, from: u64, max_bytes: usize) -> Result<Vec<Row>, StateError> {
        let wanted = self.range.start.saturating_add(from)..self.range.end;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let held = self.hold(&wanted).await?;
        let fresh = held.turns.fresh(wanted.clone());
        let mut found = turns::page(&*self.slots.log, &self.chat, wanted, &fresh, max_bytes).await?;
        let mut bytes = 0_usize;
        let fits = found.iter().take_while(|row| {
            bytes = bytes.saturating_add(row.text.len());
            bytes <= max_bytes
        });
        let count = fits.count().max(1);
        found.truncate(count);
        Ok(found)
    }

    /// The chat, if it still has all of these.
    async fn hold(&self, wanted: &Range<u64>) -> Result<Held, StateError> {
        let held = self.slots.hold_chat(&self.chat).await?;
        let there = held.turns.range();
        if wanted.start < there.start || wanted.end > there.end { Err(StateError::NotFound) } else { Ok(held) }
    }
}

/// Turns from rows.
async fn parsed(
    rows: Vec<Row>,
    read: impl Fn(Row) -> serde_json::Result<Turn> + Send + 'static,
) -> Result<Vec<Turn>, StateError> {
    let bytes = rows.iter().map(|row| row.text.len()).sum();
    let turns: serde_json::Result<_> = heavy(bytes, move || rows.into_iter().map(read).collect()).await?;
    Ok(turns?)
}

fn slimmed(chat: &str, row: Row, room: usize) -> Row {
    match slim::turn(chat, &row.text, room) {
        Some(slim) => row.with_text(slim.text.to_bytes()),
        None => row,
    }
}

fn is_in(held: &Held, turn: &str) -> bool {
    matches!(&held.state, Some(SnapshotState::Chat(chat)) if chat.active_turn.as_ref().is_some_and(|there| there.id == turn))
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("turns", &self.len()).finish_non_exhaustive()
    }
}
