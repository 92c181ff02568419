//! Finds where a table can be read again after a page that SQLite cannot read.
//!
//! A scan ends at such a page. A search by key does not need the page unless the key belongs there, so keys further on are tried:
//! first at doubling distances, then between the last failure and the first success. If several pages are unreadable, readable
//! rows between two of them may count as lost.

use rusqlite::{Connection, ErrorCode};

use super::db::none_is;

/// A table with numbers as keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyedTable {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
}

/// The entries of the log, by seq.
pub(super) const ENTRIES: KeyedTable = KeyedTable { name: "entry", key: "seq" };

/// What cannot be read after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hole {
    /// Only the content of the next row.
    Row(i64),
    /// All rows before this one.
    Before(i64),
    /// All rows.
    ToEnd,
}

/// What cannot be read after a key, of a table whose scan failed there.
pub(super) fn find(connection: &Connection, table: KeyedTable, after: i64) -> rusqlite::Result<Hole> {
    let KeyedTable { name, key } = table;
    let mut next = connection.prepare(&format!("SELECT {key} FROM {name} WHERE {key} >= ?1 ORDER BY {key} LIMIT 1"))?;
    // `None` if the page is unreadable, else the first row's key from here on if there is a row.
    let mut probe = |key: i64| match next.query_row([key], |row| row.get(0).map(Some)).or_else(none_is(None)) {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_corrupt(&error) => Ok(None),
        Err(error) => Err(error),
    };
    let after = after.saturating_add(1);
    if let Some(found) = probe(after)? {
        return Ok(found.map_or(Hole::ToEnd, Hole::Row));
    }
    let (mut bad, mut distance) = (after, 1_i64);
    let (mut good, mut row) = loop {
        let key = after.saturating_add(distance);
        match probe(key)? {
            Some(row) => break (key, row),
            None if key == i64::MAX || distance == i64::MAX => return Ok(Hole::ToEnd),
            None => (bad, distance) = (key, distance.saturating_mul(2)),
        }
    };
    while good.saturating_sub(bad) > 1 {
        let middle = bad + (good - bad) / 2;
        match probe(middle)? {
            Some(found) => (good, row) = (middle, found),
            None => bad = middle,
        }
    }
    Ok(row.map_or(Hole::ToEnd, Hole::Before))
}

/// Whether SQLite cannot read a part of the file.
pub(super) fn is_corrupt(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}
