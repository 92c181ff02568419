//! Copies a log that cannot be written any more, because SQLite needs a page that it cannot read, into a new file.
//!
//! Entries on unreadable pages are lost. An index still has their seqs and channels, so the copy has a record for each, which
//! readers report as damaged. The bodies of entries that lost pieces are reported in the same way. If ids of batches are lost, a
//! batch that is repeated is appended a second time. All other tables have to be whole. The damaged file is kept.

use std::fs;
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use super::super::maintenance::now_ms;
use super::db::none_is;
use super::files::{self, LogFiles};
use super::holes::{self, ENTRIES, Hole, KeyedTable};
use super::schema;

/// Tables that have to be whole, with the places of their columns.
const WHOLE: [(&str, &str); 6] = [
    ("meta", "(?1, ?2)"),
    ("channel", "(?1, ?2, ?3, ?4, ?5, ?6)"),
    ("snapshot", "(?1, ?2, ?3, ?4, ?5)"),
    ("part", "(?1, ?2, ?3)"),
    ("erasing", "(?1, ?2)"),
    ("gap", "(?1, ?2, ?3)"),
];

const PIECES: KeyedTable = KeyedTable { name: "piece", key: "id" };

/// The checksum of a lost entry. Real ones are not negative, so it never matches.
const LOST: i64 = -1;

/// Less than every key. Distances from here to a key are no larger than numbers can be.
const BEFORE_ALL: i64 = -(1 << 62);

/// Replaces the database by a copy of what can be read. To be called while no connection is open.
pub(super) fn salvage(files: &LogFiles) -> rusqlite::Result<()> {
    let (database, copied) = (files.database(), files.beside("log.db.new"));
    let kept = files.beside(&format!("log.db.damaged-{}", now_ms() / 1_000));
    drop(fs::remove_file(&copied));
    let done = copy(&database, &copied).and_then(|lost| {
        files
            .replace_database(&copied, &kept)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        Ok(lost)
    });
    match done {
        Ok(lost) => {
            tracing::error!(
                lost_entries = lost,
                kept = %kept.display(),
                "a part of the log could not be read; the log was copied without it, and the damaged file is kept"
            );
            Ok(())
        }
        Err(error) => {
            drop(fs::remove_file(&copied));
            Err(error)
        }
    }
}

/// Copies what can be read; returns how many entries are lost.
fn copy(database: &Path, to: &Path) -> rusqlite::Result<u64> {
    let old = Connection::open(database)?;
    // Then nothing of the old write-ahead log can be applied to the new file.
    let busy: i64 = old.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if busy != 0 {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY),
            Some("another program reads the log: end it, and start again".into()),
        ));
    }
    files::private(to).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let mut new = Connection::open(to)?;
    new.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    schema::migrate(&mut new, 0)?;
    let lost = new.transaction().and_then(|new| {
        new.execute("DELETE FROM meta", [])?;
        for (table, columns) in WHOLE {
            let mut query = old.prepare(&format!("SELECT * FROM {table}"))?;
            let mut rows = query.query([])?;
            while let Some(row) = rows.next()? {
                insert(&new, &format!("INSERT INTO {table} VALUES {columns}"), row)?;
            }
        }
        // Ids of erased channels are not used again.
        let highest: i64 = old
            .query_row("SELECT seq FROM sqlite_sequence WHERE name = 'channel'", [], |row| row.get(0))
            .or_else(none_is(0))?;
        new.execute("UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'channel'", [highest])?;
        copy_batches(&old, &new)?;
        each_row(&old, PIECES, |row| insert(&new, "INSERT INTO piece VALUES (?1, ?2)", row), |_, _| Ok(()))?;
        let lost = copy_entries(&old, &new)?;
        new.commit()?;
        Ok(lost)
    })?;
    Ok(lost)
}

/// Copies the ids of batches from both ends up to what cannot be read.
fn copy_batches(old: &Connection, new: &Connection) -> rusqlite::Result<()> {
    for order in ["ASC", "DESC"] {
        let mut query = old.prepare(&format!("SELECT * FROM batch ORDER BY id {order}"))?;
        let mut rows = query.query([])?;
        loop {
            match rows.next() {
                Ok(Some(row)) => insert(new, "INSERT OR IGNORE INTO batch VALUES (?1, ?2)", row)?,
                Ok(None) => return Ok(()),
                Err(error) if holes::is_corrupt(&error) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn copy_entries(old: &Connection, new: &Connection) -> rusqlite::Result<u64> {
    let channels =
        new.prepare("SELECT id FROM channel")?.query_map([], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
    let mut in_index = old.prepare(
        "SELECT seq FROM entry INDEXED BY entry_channel WHERE channel = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq",
    )?;
    // Times ascend with seqs: a lost entry gets the time of the one before.
    let mut time_before = new.prepare("SELECT at FROM entry WHERE seq < ?1 ORDER BY seq DESC LIMIT 1")?;
    let mut lost_entry = new.prepare("INSERT OR IGNORE INTO entry VALUES (?1, ?2, ?3, ?4, NULL, x'')")?;
    let mut lost = 0;
    each_row(
        old,
        ENTRIES,
        |row| insert(new, "INSERT INTO entry VALUES (?1, ?2, ?3, ?4, ?5, ?6)", row),
        |after, before| {
            let at: i64 = time_before.query_row([before], |row| row.get(0)).or_else(none_is(0))?;
            let lost_before = lost;
            for channel in &channels {
                for seq in in_index.query_map((channel, after, before), |row| row.get::<_, i64>(0))? {
                    match seq {
                        Ok(seq) => lost += lost_entry.execute((seq, channel, at, LOST))? as u64,
                        Err(error) if holes::is_corrupt(&error) => break,
                        Err(error) => return Err(error),
                    }
                }
            }
            if lost == lost_before {
                // The index does not help. At least the place of the loss is recorded; no channel has the number 0.
                lost += lost_entry.execute((after.saturating_add(1).max(1), 0, at, LOST))? as u64;
            }
            Ok(())
        },
    )?;
    Ok(lost)
}

/// Reads the rows of a table in order. `lost` gets the keys around each part that cannot be read.
fn each_row(
    old: &Connection,
    table: KeyedTable,
    mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    mut lost: impl FnMut(i64, i64) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let KeyedTable { name, key } = table;
    let mut query = old.prepare(&format!("SELECT * FROM {name} WHERE {key} >= ?1 ORDER BY {key}"))?;
    let mut after = BEFORE_ALL;
    loop {
        let mut rows = query.query([after.saturating_add(1)])?;
        loop {
            match rows.next() {
                Ok(None) => return Ok(()),
                Ok(Some(row)) => {
                    read(row)?;
                    after = row.get(0)?;
                }
                Err(error) if holes::is_corrupt(&error) => break,
                Err(error) => return Err(error),
            }
        }
        drop(rows);
        match holes::find(old, table, after)? {
            Hole::ToEnd => return lost(after, i64::MAX),
            Hole::Row(key) => {
                lost(after, key.saturating_add(1))?;
                after = key;
            }
            Hole::Before(key) => {
                lost(after, key)?;
                after = key.saturating_sub(1);
            }
        }
    }
}

fn insert(new: &Connection, sql: &str, row: &Row<'_>) -> rusqlite::Result<()> {
    let mut insert = new.prepare_cached(sql)?;
    let values =
        (0..insert.parameter_count()).map(|column| row.get(column)).collect::<rusqlite::Result<Vec<Value>>>()?;
    insert.execute(params_from_iter(values)).map(drop)
}
