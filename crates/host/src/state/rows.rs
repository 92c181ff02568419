//! Rows of the log, each with a completed turn: its JSON, and its offset in the text that all rows of the chat would form.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use ahp_types::state::Turn;
use breakbulk::LogLimit;
use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use tracing::warn;

use super::StateError;
use super::channel::notice;
use crate::log::{DamagedRecord, Log, ROW_HEADER, ReadError};

/// How many bytes are read at once when many rows are scanned.
pub(super) const PAGE: usize = 1 << 20;

/// How many turns are searched in one step, from the newest on.
const STEP: u64 = 16;

/// A row, read.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) number: u64,
    offset: i64,
    /// The turn's JSON.
    pub(super) text: Bytes,
}

impl Row {
    /// The offset after its last byte.
    pub(super) fn end(&self) -> i64 {
        self.offset + i64::try_from(self.text.len()).unwrap_or(i64::MAX)
    }

    /// The offset of its first byte.
    pub(super) const fn start(&self) -> i64 {
        self.offset
    }

    /// The same row with another text.
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

    /// The row as the log stores it.
    pub(super) fn encoded(&self) -> Bytes {
        let mut row = BytesMut::with_capacity(ROW_HEADER + self.text.len());
        row.put_i64_le(self.offset);
        row.put_slice(&self.text);
        row.freeze()
    }

    fn read(number: u64, row: &Bytes) -> Option<Self> {
        let offset = i64::from_le_bytes(row.get(..ROW_HEADER)?.try_into().ok()?);
        Some(Self { number, offset, text: row.slice(ROW_HEADER..) })
    }
}

/// Calls `look` with each row of a range and the id of its turn, from the oldest on, until it returns true.
pub(super) async fn scan(
    log: &dyn Log,
    channel: &str,
    range: Range<u64>,
    unsaved: &BTreeMap<u64, Bytes>,
    mut look: impl FnMut(&Row, Cow<'_, str>) -> bool + Send,
) -> Result<(), StateError> {
    let mut at = range.start;
    while at < range.end {
        let page = page(log, channel, at..range.end, unsaved, PAGE).await?;
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

/// The last row of a range whose turn has this id. The search begins with the newest row, because old ones are rarely wanted.
pub(super) async fn find_last(
    log: &dyn Log,
    channel: &str,
    range: Range<u64>,
    unsaved: &BTreeMap<u64, Bytes>,
    turn: &str,
) -> Result<Option<Row>, StateError> {
    let mut end = range.end;
    while end > range.start {
        let start = end.saturating_sub(STEP).max(range.start);
        let mut found = None;
        let look = |row: &Row, id: Cow<'_, str>| {
            found = if id == turn { Some(row.clone()) } else { found.take() };
            false
        };
        scan(log, channel, start..end, unsaved, look).await?;
        if found.is_some() {
            return Ok(found);
        }
        end = start;
    }
    Ok(None)
}

/// All rows of a range, from memory and from the log.
pub(super) async fn rows(
    log: &dyn Log,
    channel: &str,
    range: Range<u64>,
    unsaved: BTreeMap<u64, Bytes>,
) -> Result<Vec<Row>, StateError> {
    let mut all = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let page = page(log, channel, at..range.end, &unsaved, usize::MAX).await?;
        at += page.len() as u64;
        all.extend(page);
    }
    Ok(all)
}

/// The first rows of a range, at least one.
pub(super) async fn page(
    log: &dyn Log,
    channel: &str,
    range: Range<u64>,
    unsaved: &BTreeMap<u64, Bytes>,
    max_bytes: usize,
) -> Result<Vec<Row>, StateError> {
    let in_memory = unsaved
        .range(range.clone())
        .enumerate()
        .map_while(|(at, (number, row))| (*number == range.start + at as u64).then(|| Row::read(*number, row)));
    let mut page: Vec<Row> = in_memory.flatten().collect();
    if page.is_empty() {
        let end = unsaved.range(range.clone()).next().map_or(range.end, |(number, _)| *number);
        page = match log.rows(channel, range.start..end, max_bytes).await {
            Ok(read) => read.rows.iter().filter_map(|(number, row)| Row::read(*number, row)).collect(),
            Err(ReadError::Damaged(DamagedRecord::Row { index, .. })) if index == range.start => {
                vec![damaged(log, channel, index).await?]
            }
            Err(error) => return Err(error.into()),
        };
    }
    let follows = page.iter().zip(range.start..).all(|(row, number)| row.number == number);
    if page.is_empty() || !follows {
        return Err(StateError::Gone);
    }
    Ok(page)
}

/// Bounds the warnings of damaged turns: each client that looks at such a turn causes several.
static WARNINGS: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);

/// A notice in place of a turn whose row is damaged. Its offset comes from the neighbouring rows, so sizes that are computed
/// from it differ by the difference of the two texts.
async fn damaged(log: &dyn Log, channel: &str, number: u64) -> Result<Row, StateError> {
    if let Some(permit) = WARNINGS.permit("damaged-turn") {
        warn!(channel, number, left_out = permit.left_out(), "a turn is damaged, and replaced by a notice");
    }
    let text = "This turn cannot be shown: its record in the host's log is damaged. `breakbulk log verify` names it."
        .to_owned();
    let text = Bytes::from(serde_json::to_vec(&notice(format!("damaged-row-{number}"), text))?);
    let beside = |number: u64| async move {
        let read = log.rows(channel, number..number.saturating_add(1), usize::MAX).await.ok()?;
        read.rows.first().and_then(|(number, row)| Row::read(*number, row))
    };
    let before = beside(number.saturating_sub(1)).await.map(|row| row.end());
    let len = i64::try_from(text.len()).unwrap_or(i64::MAX);
    let offset = match before {
        Some(end) => end,
        None => beside(number.saturating_add(1)).await.map_or(0, |row| row.start().saturating_sub(len)),
    };
    Ok(Row { number, offset, text })
}

/// A row: an offset, and a turn's JSON.
pub(super) fn encode(offset: i64, turn: &Turn) -> serde_json::Result<Bytes> {
    let mut row = BytesMut::new().writer();
    row.get_mut().put_i64_le(offset);
    serde_json::to_writer(&mut row, turn)?;
    Ok(row.into_inner().freeze())
}

/// The same row with another offset.
pub(super) fn at_offset(offset: i64, row: &Bytes) -> Bytes {
    let mut row = BytesMut::from(row.as_ref());
    row.get_mut(..ROW_HEADER).unwrap_or_default().copy_from_slice(&offset.to_le_bytes());
    row.freeze()
}

pub(super) fn text_len(row: &Bytes) -> i64 {
    i64::try_from(row.len() - ROW_HEADER).unwrap_or(i64::MAX)
}

#[derive(Deserialize)]
struct Id<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
}
