//! The completed turns of a chat: rows of the log, each encoded once.
//!
//! A row is numbered, and turns are prepended as well as appended, so numbers begin in the middle. It begins with its
//! offset in the text that all rows together would be: the size of any window is the difference of two offsets.
//!
//! In memory is only what the log does not have yet. Of those that it has, the state knows how many there are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahp_types::state::Turn;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::log::{Log, Save};

use super::StateError;

/// The number of a chat's first row: in the middle of what the log can number.
const MIDDLE: u64 = 1 << 31;

/// Bytes of a row before its text.
const HEADER: usize = 8;

/// What is read at once while looking for a turn.
const PAGE: usize = 1 << 20;

/// Where a chat's turns are.
#[derive(Debug)]
pub(super) struct Turns {
    place: Place,
    fresh: BTreeMap<u64, Bytes>,
    /// Rows from here on are in the log and are no longer ours.
    stale: Option<u64>,
    /// Another one whenever a row was taken away. While it is the same, rows that were seen are still there.
    epoch: u64,
}

/// Numbers and offsets of the rows; what a snapshot says of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    first: u64,
    end: u64,
    /// The offset of the first row, and that behind the last. Rows that were prepended have negative ones.
    from: i64,
    to: i64,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self::at(Place { first: MIDDLE, end: MIDDLE, from: 0, to: 0 })
    }

    /// Turns that the log has.
    pub(super) fn at(place: Place) -> Self {
        Self { place, fresh: BTreeMap::new(), stale: None, epoch: next_epoch() }
    }

    /// Turns of a replay from the beginning: whatever rows the log has are not these.
    pub(super) fn afresh() -> Self {
        Self { stale: Some(0), ..Self::new() }
    }

    pub(super) const fn place(&self) -> Place {
        self.place
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All row numbers.
    pub(super) const fn range(&self) -> Range<u64> {
        self.place.first..self.place.end
    }

    /// Bytes that are only in memory.
    pub(super) fn fresh_bytes(&self) -> usize {
        self.fresh.values().map(Bytes::len).sum()
    }

    /// Those of `range` that the log does not have yet.
    pub(super) fn fresh(&self, range: Range<u64>) -> BTreeMap<u64, Bytes> {
        self.fresh.range(range).map(|(number, row)| (*number, row.clone())).collect()
    }

    /// Where the next row begins.
    pub(super) const fn next_offset(&self) -> i64 {
        self.place.to
    }

    /// Adds the row that was [encoded](encode) for the next offset.
    pub(super) fn push(&mut self, row: Bytes) {
        self.place.to += text_len(&row);
        self.fresh.insert(self.place.end, row);
        self.place.end += 1;
    }

    /// Puts older turns before all others; the last of them is the latest.
    pub(super) fn prepend(&mut self, turns: &[Turn]) -> serde_json::Result<()> {
        for turn in turns.iter().rev() {
            let row = encode(0, turn)?;
            self.place.from -= text_len(&row);
            self.place.first -= 1;
            let mut row = BytesMut::from(row.as_ref());
            row.get_mut(..HEADER).unwrap_or_default().copy_from_slice(&self.place.from.to_le_bytes());
            self.fresh.insert(self.place.first, row.freeze());
        }
        Ok(())
    }

    /// Takes away the rows from `end` on, which begin at the offset `to`.
    pub(super) fn cut(&mut self, end: u64, to: i64) {
        if end >= self.place.end {
            return;
        }
        (self.place.end, self.place.to) = (end, to);
        self.fresh.split_off(&end);
        self.stale = Some(self.stale.map_or(end, |stale| stale.min(end)));
        self.epoch = next_epoch();
    }

    pub(super) fn clear(&mut self) {
        self.cut(self.place.first, self.place.from);
    }

    /// Adds what the log does not have to what is saved. Until [`settle`](Turns::settle) says how that went, it stays.
    pub(super) fn save(&mut self, mut save: Save) -> (Save, Option<u64>) {
        let stale = self.stale.take();
        if let Some(from) = stale {
            save = save.cut_rows(from);
        }
        save.rows = self.fresh.iter().map(|(number, row)| (*number, row.clone())).collect();
        (save, stale)
    }

    /// What was saved is in the log now, but for what has changed meanwhile.
    pub(super) fn settle(&mut self, saved: &[(u64, Bytes)]) {
        for (number, row) in saved {
            if self.fresh.get(number).is_some_and(|fresh| fresh.as_ptr() == row.as_ptr()) {
                self.fresh.remove(number);
            }
        }
    }

    /// Nothing was saved: what is stale in the log still is.
    pub(super) fn unsettle(&mut self, stale: Option<u64>) {
        self.stale = [self.stale, stale].into_iter().flatten().min();
    }

    /// The row with this number.
    pub(super) async fn row(&self, log: &dyn Log, channel: &str, number: u64) -> Result<Row, StateError> {
        rows(log, channel, number..number + 1, self.fresh(number..number + 1)).await?.pop().ok_or(StateError::Gone)
    }

    /// The last one.
    pub(super) async fn last(&self, log: &dyn Log, channel: &str) -> Result<Option<Row>, StateError> {
        if self.range().is_empty() {
            return Ok(None);
        }
        self.row(log, channel, self.place.end - 1).await.map(Some)
    }

    /// Calls `look` with each row's number, its end and its turn's id, from the oldest on, until it has seen enough.
    pub(super) async fn scan(
        &self,
        log: &dyn Log,
        channel: &str,
        look: impl FnMut(&Row, Cow<'_, str>) -> bool + Send,
    ) -> Result<(), StateError> {
        scan(log, channel, self.range(), &self.fresh, look).await
    }

    /// The first row whose turn has this id, as the reducer finds it.
    pub(super) async fn find(&self, log: &dyn Log, channel: &str, turn: &str) -> Result<Option<Row>, StateError> {
        let mut found = None;
        let look = |row: &Row, id: Cow<'_, str>| {
            found = (id == turn).then(|| row.clone());
            found.is_some()
        };
        self.scan(log, channel, look).await?;
        Ok(found)
    }
}

impl Place {
    /// Where a window of the last so many turns begins. It has one at least: that is the turn which can be resumed.
    pub(super) fn window(&self, turns: Option<u64>) -> u64 {
        turns.map_or(self.first, |turns| self.end.saturating_sub(turns.max(1)).max(self.first))
    }

    /// Bytes of all texts from this row on.
    pub(super) fn bytes_from(&self, row: &Row) -> u64 {
        u64::try_from(self.to - row.offset).unwrap_or(0)
    }
}

/// A row, read.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) number: u64,
    offset: i64,
    /// The turn's JSON.
    pub(super) text: Bytes,
}

impl Row {
    /// The offset behind it.
    pub(super) fn end(&self) -> i64 {
        self.offset + i64::try_from(self.text.len()).unwrap_or(i64::MAX)
    }

    /// The offset of its first byte.
    pub(super) const fn start(&self) -> i64 {
        self.offset
    }

    /// The same with another text of the turn.
    pub(super) fn with_text(self, text: Bytes) -> Self {
        Self { text, ..self }
    }

    pub(super) fn turn(&self) -> serde_json::Result<Turn> {
        serde_json::from_slice(&self.text)
    }

    /// The turn's id.
    pub(super) fn id(&self) -> Result<String, StateError> {
        let Id { id } = serde_json::from_slice(&self.text)?;
        Ok(id.into_owned())
    }

    fn read(number: u64, row: &Bytes) -> Option<Self> {
        let offset = i64::from_le_bytes(row.get(..HEADER)?.try_into().ok()?);
        Some(Self { number, offset, text: row.slice(HEADER..) })
    }
}

/// Calls `look` with each row of a range and its turn's id, from the oldest on, until it has seen enough.
pub(super) async fn scan(
    log: &dyn Log,
    channel: &str,
    range: Range<u64>,
    fresh: &BTreeMap<u64, Bytes>,
    mut look: impl FnMut(&Row, Cow<'_, str>) -> bool + Send,
) -> Result<(), StateError> {
    let mut at = range.start;
    while at < range.end {
        let page = page(log, channel, at..range.end, fresh, PAGE).await?;
        at += page.len() as u64;
        for row in &page {
            let Id { id } = serde_json::from_slice(&row.text)?;
            if look(row, id) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// All rows of a range, from memory and from the log.
pub(super) async fn rows(
    log: &dyn Log,
    channel: &str,
    range: Range<u64>,
    fresh: BTreeMap<u64, Bytes>,
) -> Result<Vec<Row>, StateError> {
    let mut all = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let page = page(log, channel, at..range.end, &fresh, usize::MAX).await?;
        at += page.len() as u64;
        all.extend(page);
    }
    Ok(all)
}

/// Some rows from the beginning of a range, at least one.
pub(super) async fn page(
    log: &dyn Log,
    channel: &str,
    range: Range<u64>,
    fresh: &BTreeMap<u64, Bytes>,
    max_bytes: usize,
) -> Result<Vec<Row>, StateError> {
    let in_memory = fresh
        .range(range.clone())
        .enumerate()
        .map_while(|(at, (number, row))| (*number == range.start + at as u64).then(|| Row::read(*number, row)));
    let mut page: Vec<Row> = in_memory.flatten().collect();
    if page.is_empty() {
        let end = fresh.range(range.clone()).next().map_or(range.end, |(number, _)| *number);
        let read = log.rows(channel, range.start..end, max_bytes).await?;
        page = read.rows.iter().filter_map(|(number, row)| Row::read(*number, row)).collect();
    }
    let follows = page.iter().zip(range.start..).all(|(row, number)| row.number == number);
    if page.is_empty() || !follows {
        return Err(StateError::Gone);
    }
    Ok(page)
}

/// A row: an offset, and a turn's JSON.
pub(super) fn encode(offset: i64, turn: &Turn) -> serde_json::Result<Bytes> {
    let mut row = BytesMut::new().writer();
    row.get_mut().put_i64_le(offset);
    serde_json::to_writer(&mut row, turn)?;
    Ok(row.into_inner().freeze())
}

/// No two are the same, so that a chat that was forgotten and loaded again is not taken for what it was.
fn next_epoch() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

fn text_len(row: &Bytes) -> i64 {
    i64::try_from(row.len() - HEADER).unwrap_or(i64::MAX)
}

#[derive(Deserialize)]
struct Id<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
}
