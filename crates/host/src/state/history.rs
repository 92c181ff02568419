//! The completed turns of a chat for its agent, read page by page when they are needed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ahp_types::state::{SnapshotState, Turn};

use super::by_reference::{self, Reference};
use super::cache::{ChannelCache, ChannelGuard};
use super::content::{self, Content};
use super::rows::{self, Row};
use super::side_chats::KnownTurns;
use super::{StateError, run_blocking};

/// Consecutive turns of a chat, from its first one on; by default none.
///
/// It holds no turns, only which ones they are: a chat may be far larger than memory. Later turns of the chat are not among
/// them. If the chat removes any of them, reading returns an error or a later turn; but turns that a side chat knows are
/// never removed.
#[derive(Clone, Default)]
pub struct History(Option<TurnRange>);

/// Some turns of a chat.
#[derive(Clone)]
struct TurnRange {
    cache: Arc<ChannelCache>,
    chat: Arc<str>,
    selection: Selection,
}

#[derive(Clone)]
enum Selection {
    /// Completed turns of the chat, by their row numbers.
    Completed(Range<u64>),
    /// All turns that a side chat knows.
    KnownTurns { side: Arc<str>, count: u64, is_unfinished: bool },
}

impl History {
    /// How many turns there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |turns| match &turns.selection {
            Selection::Completed(rows) => len(rows),
            Selection::KnownTurns { count, .. } => *count,
        })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the last turn was still active when a side chat was made about it. Then it has the answer as it was at that
    /// time, may contain tool calls that are not done, and its state is `cancelled`, because the protocol has no better one.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        matches!(&self.0, Some(TurnRange { selection: Selection::KnownTurns { is_unfinished: true, .. }, .. }))
    }

    /// The turns from this one on, of which the oldest is 0: as many as fit `max_bytes` of JSON, and at least one. Empty at the
    /// end.
    ///
    /// A turn that is longer by itself has its large content by reference, wherever the protocol has references;
    /// [`content`](Self::content) reads them. If that is not enough, the turn is returned whole.
    ///
    /// # Errors
    /// When turns cannot be read, or were removed.
    pub async fn page(&self, from: u64, max_bytes: usize) -> Result<Vec<Turn>, StateError> {
        let Some(turns) = &self.0 else { return Ok(Vec::new()) };
        let (page, chat) = (turns.page(from, max_bytes).await?, Arc::clone(&turns.chat));
        let read = move |row| reduced(&chat, row, max_bytes).turn();
        parsed(page, read).await
    }

    /// The content that a reference in one of these turns names.
    ///
    /// # Errors
    /// [`StateError::NotFound`] when it names nothing in this chat, or its content no longer exists.
    pub async fn content(&self, uri: &str) -> Result<Content, StateError> {
        let turns = self.0.as_ref().ok_or(StateError::NotFound)?;
        let reference = Reference::read(uri).filter(|reference| *reference.channel == *turns.chat);
        let reference = reference.ok_or(StateError::NotFound)?;
        if let Selection::Completed(_) = &turns.selection {
            return content::content(&turns.cache, reference).await;
        }
        let (guard, rows) = turns.lock().await?;
        content::in_rows(&*turns.cache.log, &rows, &guard.turns.unsaved(0..u64::MAX), reference).await
    }

    /// The completed turns of a chat before the turn that it is in; `None` if it is not in this one.
    pub(super) async fn before(cache: &Arc<ChannelCache>, chat: &str, turn: &str) -> Result<Option<Self>, StateError> {
        let guard = cache.lock_chat(chat).await?;
        Ok(is_in(&guard, turn).then(|| Self::of(cache, &guard, Selection::Completed(guard.turns.range()))))
    }

    /// The completed turns of a chat up to this one, which may be the active one; `None` if there is no such turn.
    pub(super) async fn through(cache: &Arc<ChannelCache>, chat: &str, turn: &str) -> Result<Option<Self>, StateError> {
        let guard = cache.lock_chat(chat).await?;
        let all = guard.turns.range();
        let end = match guard.turns.find_last(&*cache.log, chat, turn).await? {
            Some(row) => Some(row.number + 1),
            None => is_in(&guard, turn).then_some(all.end),
        };
        Ok(end.map(|end| Self::of(cache, &guard, Selection::Completed(all.start..end))))
    }

    /// The turns that a side chat knows of a chat, even of a closed one.
    pub(super) async fn beside(cache: &Arc<ChannelCache>, chat: &str, side: &str) -> Result<Self, StateError> {
        let guard = match cache.lock(chat).await {
            Err(StateError::NotFound) => return Ok(Self::default()),
            guard => guard?,
        };
        let Some(known_turns) = guard.turns.side_chats().get(side) else { return Ok(Self::default()) };
        let count = known_turns.rows().iter().map(len).sum();
        let selection = Selection::KnownTurns { side: side.into(), count, is_unfinished: known_turns.is_unfinished };
        Ok(Self::of(cache, &guard, selection))
    }

    fn of(cache: &Arc<ChannelCache>, guard: &ChannelGuard, selection: Selection) -> Self {
        Self(Some(TurnRange { cache: Arc::clone(cache), chat: Arc::clone(&guard.uri), selection }))
    }

    /// The id of the last one.
    pub(crate) async fn last_id(&self) -> Result<Option<String>, StateError> {
        let (Some(turns), Some(last)) = (&self.0, self.len().checked_sub(1)) else { return Ok(None) };
        turns.page(last, 0).await?.first().map(Row::id).transpose()
    }

    /// All turns, whole.
    pub(crate) async fn whole(&self) -> Result<Vec<Turn>, StateError> {
        let Some(turns) = &self.0 else { return Ok(Vec::new()) };
        let (guard, wanted) = turns.lock().await?;
        let mut found = Vec::new();
        for wanted in wanted {
            let unsaved = guard.turns.unsaved(wanted.clone());
            found.extend(rows::rows(&*turns.cache.log, &turns.chat, wanted, unsaved).await?);
        }
        drop(guard);
        parsed(found, |row| row.turn()).await
    }

    /// Whether these are the turns of `earlier` and one more.
    pub(crate) fn follows(&self, earlier: &Self) -> bool {
        let (Some(now), Some(before)) = (&self.0, &earlier.0) else { return false };
        let (Selection::Completed(rows), Selection::Completed(earlier)) = (&now.selection, &before.selection) else {
            return false;
        };
        now.chat == before.chat && rows.start == earlier.start && rows.end.checked_sub(1) == Some(earlier.end)
    }
}

impl TurnRange {
    /// The rows from this one on that fit so many bytes, and at least one.
    async fn page(&self, from: u64, max_bytes: usize) -> Result<Vec<Row>, StateError> {
        let (guard, rows) = self.lock().await?;
        let Some(wanted) = rest(&rows, from) else { return Ok(Vec::new()) };
        let unsaved = guard.turns.unsaved(wanted.clone());
        let mut found = rows::page(&*self.cache.log, &self.chat, wanted, &unsaved, max_bytes).await?;
        let mut bytes = 0_usize;
        let fits = found.iter().take_while(|row| {
            bytes = bytes.saturating_add(row.text.len());
            bytes <= max_bytes
        });
        let count = fits.count().max(1);
        found.truncate(count);
        Ok(found)
    }

    /// The locked chat and the row numbers of these turns, if the chat still has all of them.
    async fn lock(&self) -> Result<(ChannelGuard, Vec<Range<u64>>), StateError> {
        match &self.selection {
            Selection::Completed(rows) => {
                let guard = self.cache.lock_chat(&self.chat).await?;
                let there = guard.turns.range();
                let is_there = rows.start >= there.start && rows.end <= there.end;
                if is_there { Ok((guard, vec![rows.clone()])) } else { Err(StateError::NotFound) }
            }
            Selection::KnownTurns { side, count, .. } => {
                let guard = self.cache.lock(&self.chat).await?;
                let rows = guard.turns.side_chats().get(side).map(KnownTurns::rows);
                let rows = rows.filter(|rows| rows.iter().map(len).sum::<u64>() == *count);
                rows.map(|rows| (guard, rows)).ok_or(StateError::NotFound)
            }
        }
    }
}

/// The row numbers from this position on, up to the end of a consecutive range.
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
    let turns: serde_json::Result<_> = run_blocking(bytes, move || rows.into_iter().map(read).collect()).await?;
    Ok(turns?)
}

fn reduced(chat: &str, row: Row, max_bytes: usize) -> Row {
    match by_reference::turn(chat, &row.text, max_bytes) {
        Some(reduced) => row.with_text(reduced.text.to_bytes()),
        None => row,
    }
}

fn is_in(guard: &ChannelGuard, turn: &str) -> bool {
    matches!(&guard.state, Some(SnapshotState::Chat(chat)) if chat.active_turn.as_ref().is_some_and(|there| there.id == turn))
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("turns", &self.len()).finish_non_exhaustive()
    }
}
