//! The completed turns of a chat, as rows of the log that are each encoded once.
//!
//! Rows are numbered from the middle of the range, because turns are prepended as well as appended. Each row has its offset
//! in the text that all rows would form, so the size of any range of turns is the difference of two offsets.
//!
//! Only rows that the log does not have yet are in memory. Of the others the state knows only their numbers.
//!
//! What side chats know of the chat are rows too, see [`SideChats`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahp_types::state::Turn;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::StateError;
use super::rows::{PAGE, Row, at_offset, encode, find_last, page, rows, scan, text_len};
use super::side_chats::SideChats;
use crate::log::{Log, Save};

/// The number of a chat's first row: the middle of the numbers that the log allows.
const MIDDLE: u64 = 1 << 31;

/// The rows of a chat's completed turns.
#[derive(Debug)]
pub(super) struct TurnRows {
    span: RowSpan,
    side_chats: SideChats,
    unsaved: BTreeMap<u64, Bytes>,
    /// Rows of the log from here on are outdated, and have to be removed at the next save.
    stale: Option<u64>,
    /// Changes whenever a row is removed. While it is the same, all rows that were seen still exist.
    epoch: u64,
}

/// The numbers and offsets of the rows. Part of the saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RowSpan {
    first: u64,
    end: u64,
    /// The offset of the first row, and the one after the last. Prepended rows have negative offsets.
    from: i64,
    to: i64,
}

impl TurnRows {
    pub(super) fn new() -> Self {
        Self::at(RowSpan::default(), SideChats::default())
    }

    /// Rows that the log has.
    pub(super) fn at(span: RowSpan, side_chats: SideChats) -> Self {
        Self { span, side_chats, unsaved: BTreeMap::new(), stale: None, epoch: next_epoch() }
    }

    /// No rows yet, for a replay from the first entry: all rows of the log are outdated.
    pub(super) fn from_scratch() -> Self {
        Self { stale: Some(0), ..Self::new() }
    }

    pub(super) const fn span(&self) -> RowSpan {
        self.span
    }

    /// Changes whenever there is a new row.
    pub(super) const fn extent(&self) -> (RowSpan, u64) {
        (self.span, self.side_chats.next())
    }

    pub(super) const fn side_chats(&self) -> &SideChats {
        &self.side_chats
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All row numbers.
    pub(super) const fn range(&self) -> Range<u64> {
        self.span.first..self.span.end
    }

    /// Bytes of the rows that the log does not have yet.
    pub(super) fn unsaved_row_bytes(&self) -> usize {
        self.unsaved.values().map(Bytes::len).sum()
    }

    /// The rows of `range` that the log does not have yet.
    pub(super) fn unsaved(&self, range: Range<u64>) -> BTreeMap<u64, Bytes> {
        self.unsaved.range(range).map(|(number, row)| (*number, row.clone())).collect()
    }

    /// The offset of the next row.
    pub(super) const fn next_offset(&self) -> i64 {
        self.span.to
    }

    /// Adds the row that was [encoded](encode) for the next offset.
    pub(super) fn push(&mut self, row: Bytes) {
        self.span.to += text_len(&row);
        self.unsaved.insert(self.span.end, row);
        self.span.end += 1;
    }

    /// Puts older turns before all others. The last of them is the newest.
    pub(super) fn prepend(&mut self, turns: &[Turn]) -> serde_json::Result<()> {
        for turn in turns.iter().rev() {
            let row = encode(0, turn)?;
            self.span.from -= text_len(&row);
            self.span.first -= 1;
            self.unsaved.insert(self.span.first, at_offset(self.span.from, &row));
        }
        Ok(())
    }

    /// Records that a side chat knows the turns before the row `end`, and then the active turn if one is given.
    pub(super) fn keep(&mut self, side: String, end: u64, unfinished: Option<Bytes>) {
        let number = self.side_chats.insert(side, self.span.first..end, unfinished.is_some());
        self.unsaved.extend(number.zip(unfinished));
    }

    /// Removes a side chat. Copies that only it knew become empty rows.
    pub(super) fn release(&mut self, side: &str) {
        self.unsaved.extend(self.side_chats.remove(side).into_iter().map(|number| (number, Bytes::new())));
    }

    /// Removes the rows from `end` on, which begin at the offset `to`. Those that side chats know are copied first.
    pub(super) async fn cut(&mut self, log: &dyn Log, channel: &str, end: u64, to: i64) -> Result<(), StateError> {
        if end >= self.span.end {
            return Ok(());
        }
        self.copy(log, channel, end).await?;
        (self.span.end, self.span.to) = (end, to);
        self.unsaved.split_off(&end);
        self.stale = Some(self.stale.map_or(end, |stale| stale.min(end)));
        self.epoch = next_epoch();
        Ok(())
    }

    pub(super) async fn clear(&mut self, log: &dyn Log, channel: &str) -> Result<(), StateError> {
        self.cut(log, channel, self.span.first, self.span.from).await
    }

    /// Copies the rows from `end` on that side chats know, so that they survive.
    async fn copy(&mut self, log: &dyn Log, channel: &str, end: u64) -> Result<(), StateError> {
        let Some(known) = self.side_chats.beyond(end) else { return Ok(()) };
        let mut copies = Vec::new();
        while let Some(at) = Some(known.start + copies.len() as u64).filter(|at| *at < known.end) {
            match page(log, channel, at..known.end, &self.unsaved, PAGE).await {
                Ok(page) => copies.extend(page.iter().map(Row::encoded)),
                // A row that cannot be read must not make the whole chat unusable.
                Err(StateError::Damaged(record)) => {
                    warn!(channel, %record, "side chats lose turns of a chat: their rows are damaged");
                    self.side_chats.side_chats_with(end).iter().for_each(|side| self.release(side));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        let first = self.side_chats.copied(&known);
        self.unsaved.extend((first..).zip(copies));
        Ok(())
    }

    /// Adds the rows that the log does not have to a save. They stay in memory until [`settle`](TurnRows::settle).
    pub(super) fn save(&mut self, mut save: Save) -> (Save, Option<u64>) {
        let stale = self.stale.take();
        if let Some(from) = stale {
            save = save.cut_rows(from);
        }
        save.rows = self.unsaved.iter().map(|(number, row)| (*number, row.clone())).collect();
        (save, stale)
    }

    /// Drops the rows that were saved, except for those that have changed meanwhile.
    pub(super) fn settle(&mut self, saved: &[(u64, Bytes)]) {
        for (number, row) in saved {
            if self.unsaved.get(number).is_some_and(|unsaved| unsaved.as_ptr() == row.as_ptr()) {
                self.unsaved.remove(number);
            }
        }
    }

    /// Notes that a save failed: the outdated rows are still in the log.
    pub(super) fn unsettle(&mut self, stale: Option<u64>) {
        self.stale = [self.stale, stale].into_iter().flatten().min();
    }

    /// The row with this number.
    pub(super) async fn row(&self, log: &dyn Log, channel: &str, number: u64) -> Result<Row, StateError> {
        rows(log, channel, number..number + 1, self.unsaved(number..number + 1)).await?.pop().ok_or(StateError::Gone)
    }

    /// The last one.
    pub(super) async fn last(&self, log: &dyn Log, channel: &str) -> Result<Option<Row>, StateError> {
        if self.range().is_empty() {
            return Ok(None);
        }
        self.row(log, channel, self.span.end - 1).await.map(Some)
    }

    /// Calls `look` with each row and the id of its turn, from the oldest on, until it returns true.
    pub(super) async fn scan(
        &self,
        log: &dyn Log,
        channel: &str,
        look: impl FnMut(&Row, Cow<'_, str>) -> bool + Send,
    ) -> Result<(), StateError> {
        scan(log, channel, self.range(), &self.unsaved, look).await
    }

    /// The first row whose turn has this id: the one that the reducer would find.
    pub(super) async fn find(&self, log: &dyn Log, channel: &str, turn: &str) -> Result<Option<Row>, StateError> {
        let mut found = None;
        let look = |row: &Row, id: Cow<'_, str>| {
            found = (id == turn).then(|| row.clone());
            found.is_some()
        };
        self.scan(log, channel, look).await?;
        Ok(found)
    }

    /// The last one, see [`find_last`].
    pub(super) async fn find_last(&self, log: &dyn Log, channel: &str, turn: &str) -> Result<Option<Row>, StateError> {
        find_last(log, channel, self.range(), &self.unsaved, turn).await
    }
}

impl Default for RowSpan {
    fn default() -> Self {
        Self { first: MIDDLE, end: MIDDLE, from: 0, to: 0 }
    }
}

impl RowSpan {
    /// The number of the first row among the last so many turns. At least one, because the last turn may be resumed.
    pub(super) fn window(&self, turns: Option<u64>) -> u64 {
        turns.map_or(self.first, |turns| self.end.saturating_sub(turns.max(1)).max(self.first))
    }

    /// Bytes of all turns from this row on.
    pub(super) fn bytes_from(&self, row: &Row) -> u64 {
        u64::try_from(self.to - row.start()).unwrap_or(0)
    }
}

/// Every value is new, so that a chat that was evicted and loaded again is not taken for the same.
fn next_epoch() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}
