//! The past of a conversation, for whoever has to know it: the completed turns of a chat, read when they are needed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ahp_types::state::{SnapshotState, Turn};

use super::content::{self, Content};
use super::kept::Known;
use super::rows::{self, Row};
use super::slim::{self, Reference};
use super::slot::{Held, Slots};
use super::{StateError, heavy};

/// Turns of a chat that follow each other, from its first one on; by default none.
///
/// It says which turns they are, and holds none of them: a chat may be far larger than memory. Turns that the chat gets
/// later are not among them. Once any of them is taken back, what it reads is an error, or a turn that came later; but
/// what a side chat knows is never taken back.
#[derive(Clone, Default)]
pub struct History(Option<Turns>);

/// Turns of a chat.
#[derive(Clone)]
struct Turns {
    slots: Arc<Slots>,
    chat: Arc<str>,
    which: Which,
}

#[derive(Clone)]
enum Which {
    /// Completed ones that the chat has, by the numbers of their rows.
    Shown(Range<u64>),
    /// All that a side chat knows.
    Known { side: Arc<str>, count: u64, is_unfinished: bool },
}

impl History {
    /// How many turns there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |turns| match &turns.which {
            Which::Shown(rows) => len(rows),
            Which::Known { count, .. } => *count,
        })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the last of them was not over when a side chat was made about it. Then its answer is what there was of it by
    /// that time, calls may be under way in it, and it says of itself that it was cancelled: there is no other word for it.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        matches!(&self.0, Some(Turns { which: Which::Known { is_unfinished: true, .. }, .. }))
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
        let Some(turns) = &self.0 else { return Ok(Vec::new()) };
        let (page, chat) = (turns.page(from, room).await?, Arc::clone(&turns.chat));
        let read = move |row| slimmed(&chat, row, room).turn();
        parsed(page, read).await
    }

    /// What a reference in one of these turns names.
    ///
    /// # Errors
    /// [`StateError::NotFound`] when it names nothing of this chat, or what was there is not there any more.
    pub async fn content(&self, uri: &str) -> Result<Content, StateError> {
        let turns = self.0.as_ref().ok_or(StateError::NotFound)?;
        let reference = Reference::read(uri).filter(|reference| *reference.channel == *turns.chat);
        let reference = reference.ok_or(StateError::NotFound)?;
        if let Which::Shown(_) = &turns.which {
            return content::content(&turns.slots, reference).await;
        }
        let (held, rows) = turns.hold().await?;
        content::in_rows(&*turns.slots.log, &rows, &held.turns.fresh(0..u64::MAX), reference).await
    }

    /// The completed turns of a chat before the turn that it is in; `None` if it is not in this one.
    pub(super) async fn before(slots: &Arc<Slots>, chat: &str, turn: &str) -> Result<Option<Self>, StateError> {
        let held = slots.hold_chat(chat).await?;
        Ok(is_in(&held, turn).then(|| Self::of(slots, &held, Which::Shown(held.turns.range()))))
    }

    /// The completed turns of a chat up to this one, which may be the one that it is in; `None` if it is neither.
    pub(super) async fn through(slots: &Arc<Slots>, chat: &str, turn: &str) -> Result<Option<Self>, StateError> {
        let held = slots.hold_chat(chat).await?;
        let all = held.turns.range();
        let end = match held.turns.find_last(&*slots.log, chat, turn).await? {
            Some(row) => Some(row.number + 1),
            None => is_in(&held, turn).then_some(all.end),
        };
        Ok(end.map(|end| Self::of(slots, &held, Which::Shown(all.start..end))))
    }

    /// What a side chat knows of a chat, even of one that is no more.
    pub(super) async fn beside(slots: &Arc<Slots>, chat: &str, side: &str) -> Result<Self, StateError> {
        let held = match slots.hold(chat).await {
            Err(StateError::NotFound) => return Ok(Self::default()),
            held => held?,
        };
        let Some(known) = held.turns.kept().get(side) else { return Ok(Self::default()) };
        let count = known.rows().iter().map(len).sum();
        let which = Which::Known { side: side.into(), count, is_unfinished: known.is_unfinished };
        Ok(Self::of(slots, &held, which))
    }

    fn of(slots: &Arc<Slots>, held: &Held, which: Which) -> Self {
        Self(Some(Turns { slots: Arc::clone(slots), chat: Arc::clone(&held.uri), which }))
    }

    /// The id of the last one.
    pub(crate) async fn last_id(&self) -> Result<Option<String>, StateError> {
        let (Some(turns), Some(last)) = (&self.0, self.len().checked_sub(1)) else { return Ok(None) };
        turns.page(last, 0).await?.first().map(Row::id).transpose()
    }

    /// All of them, as they are.
    pub(crate) async fn whole(&self) -> Result<Vec<Turn>, StateError> {
        let Some(turns) = &self.0 else { return Ok(Vec::new()) };
        let (held, wanted) = turns.hold().await?;
        let mut found = Vec::new();
        for wanted in wanted {
            let fresh = held.turns.fresh(wanted.clone());
            found.extend(rows::rows(&*turns.slots.log, &turns.chat, wanted, fresh).await?);
        }
        drop(held);
        parsed(found, |row| row.turn()).await
    }

    /// Whether these are the turns of an earlier one, and one more.
    pub(crate) fn follows(&self, earlier: &Self) -> bool {
        let (Some(now), Some(before)) = (&self.0, &earlier.0) else { return false };
        let (Which::Shown(rows), Which::Shown(earlier)) = (&now.which, &before.which) else { return false };
        now.chat == before.chat && rows.start == earlier.start && rows.end.checked_sub(1) == Some(earlier.end)
    }
}

impl Turns {
    /// Those from this one on that have so many bytes together, and one at least.
    async fn page(&self, from: u64, max_bytes: usize) -> Result<Vec<Row>, StateError> {
        let (held, rows) = self.hold().await?;
        let Some(wanted) = rest(&rows, from) else { return Ok(Vec::new()) };
        let fresh = held.turns.fresh(wanted.clone());
        let mut found = rows::page(&*self.slots.log, &self.chat, wanted, &fresh, max_bytes).await?;
        let mut bytes = 0_usize;
        let fits = found.iter().take_while(|row| {
            bytes = bytes.saturating_add(row.text.len());
            bytes <= max_bytes
        });
        let count = fits.count().max(1);
        found.truncate(count);
        Ok(found)
    }

    /// The chat, if all of these are still there, and the numbers of their rows.
    async fn hold(&self) -> Result<(Held, Vec<Range<u64>>), StateError> {
        match &self.which {
            Which::Shown(rows) => {
                let held = self.slots.hold_chat(&self.chat).await?;
                let there = held.turns.range();
                let is_there = rows.start >= there.start && rows.end <= there.end;
                if is_there { Ok((held, vec![rows.clone()])) } else { Err(StateError::NotFound) }
            }
            Which::Known { side, count, .. } => {
                let held = self.slots.hold(&self.chat).await?;
                let rows = held.turns.kept().get(side).map(Known::rows);
                let rows = rows.filter(|rows| rows.iter().map(len).sum::<u64>() == *count);
                rows.map(|rows| (held, rows)).ok_or(StateError::NotFound)
            }
        }
    }
}

/// The numbers of rows that follow each other directly, from this place on.
fn rest(rows: &[Range<u64>], mut from: u64) -> Option<Range<u64>> {
    for rows in rows {
        match from.checked_sub(len(rows)) {
            None => return Some(rows.start + from..rows.end),
            Some(less) => from = less,
        }
    }
    None
}

fn len(rows: &Range<u64>) -> u64 {
    rows.end.saturating_sub(rows.start)
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
