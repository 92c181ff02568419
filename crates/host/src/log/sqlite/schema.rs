//! The tables, their version, and the migration from older versions.

use std::path::Path;

use rusqlite::Connection;

use super::super::OpenError;
use super::record;

/// The present version.
pub(super) const VERSION: i64 = 3;

/// Marks the file as a log: "BBlk".
const APPLICATION: i64 = 0x4242_6C6B;

/// Version 1, as it was. Never changes again.
///
/// - `entry.channel` has an index, in which SQLite keeps the seq, too: a channel is read in order.
/// - `batch` is sorted by id, and ids begin with the time: a new one goes to the end.
/// - `part` holds rows by `channel << 32 | index`: a range of rows is a range of the table.
/// - `channel.trimmed` is the highest seq that was trimmed; `channel.removed` the highest that was removed for any reason.
/// - `meta` has `epoch`, the number of the writer, and `next`, below which seqs were used and removed.
const V1: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', 0), ('next', 1);
CREATE TABLE channel (
    id INTEGER PRIMARY KEY AUTOINCREMENT, uri TEXT NOT NULL UNIQUE, session TEXT,
    trimmed INTEGER NOT NULL DEFAULT 0, removed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX channel_session ON channel (session);
CREATE TABLE entry (seq INTEGER PRIMARY KEY, channel INTEGER NOT NULL, at INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX entry_channel ON entry (channel);
CREATE TABLE batch (id BLOB PRIMARY KEY, seqs BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE snapshot (
    channel INTEGER PRIMARY KEY, seq INTEGER NOT NULL, version TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE part (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
";

/// Version 2: every record has a checksum; an entry says which session it is about; an erasure survives a crash. The
/// body is the last column, so that all others are on the record's first page.
const V2: &str = "
ALTER TABLE entry RENAME TO entry_1;
DROP INDEX entry_channel;
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY, channel INTEGER NOT NULL, at INTEGER NOT NULL, crc INTEGER NOT NULL, about TEXT,
    body BLOB NOT NULL);
INSERT INTO entry SELECT seq, channel, at, 0, NULL, body FROM entry_1;
DROP TABLE entry_1;
CREATE INDEX entry_channel ON entry (channel);
CREATE INDEX entry_about ON entry (about) WHERE about IS NOT NULL;
ALTER TABLE snapshot RENAME TO snapshot_1;
CREATE TABLE snapshot (
    channel INTEGER PRIMARY KEY, seq INTEGER NOT NULL, version TEXT NOT NULL, crc INTEGER NOT NULL,
    body BLOB NOT NULL);
INSERT INTO snapshot SELECT channel, seq, version, 0, body FROM snapshot_1;
DROP TABLE snapshot_1;
ALTER TABLE part RENAME TO part_1;
CREATE TABLE part (id INTEGER PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL);
INSERT INTO part SELECT id, 0, body FROM part_1;
DROP TABLE part_1;
CREATE TABLE erasing (session TEXT PRIMARY KEY, upto INTEGER NOT NULL) WITHOUT ROWID;
ALTER TABLE channel ADD COLUMN erased INTEGER NOT NULL DEFAULT 0;
";

/// Version 3: gaps between the runs of the log, and bodies in pieces.
///
/// - `gap.lost` is the highest seq that is known to have been acknowledged in it, or 0; `meta` has `gaps_from`, below which
///   gaps have been forgotten.
/// - The pieces of a long body are in `piece`, written before its entry: `entry.body` is a number then, see `pieces.rs`. They
///   are deleted with the entry.
const V3: &str = "
CREATE TABLE gap (after INTEGER PRIMARY KEY, next INTEGER NOT NULL, lost INTEGER NOT NULL);
INSERT INTO meta VALUES ('gaps_from', 0);
CREATE TABLE piece (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE INDEX entry_pieces ON entry (body) WHERE typeof(body) = 'integer';
CREATE TRIGGER entry_pieces_go AFTER DELETE ON entry WHEN typeof(OLD.body) = 'integer' BEGIN
    DELETE FROM piece WHERE id >= (OLD.body >> 16) << 16 AND id < ((OLD.body >> 16) + 1) << 16;
END;
";

/// Refuses what is not a log, and what a later version wrote.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<i64, OpenError> {
    let read = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (found, application) = match (read("user_version"), read("application_id")) {
        (Ok(version), Ok(application)) => (version, application),
        (Err(error), _) | (_, Err(error)) => return Err(super::opening(path, error)),
    };
    let empty = found == 0 && application == 0;
    if !empty && application != APPLICATION {
        return Err(OpenError::NotALog(path.to_path_buf()));
    }
    if found > VERSION {
        return Err(OpenError::Newer { path: path.to_path_buf(), found, known: VERSION });
    }
    Ok(found)
}

/// Migrates a log of any older version, or an empty file, to the present version, in one transaction.
pub(super) fn migrate(connection: &mut Connection, found: i64) -> rusqlite::Result<()> {
    if found == VERSION {
        return Ok(());
    }
    let step = connection.transaction()?;
    if found < 1 {
        step.execute_batch(V1)?;
        step.pragma_update(None, "application_id", APPLICATION)?;
    }
    if found < 2 {
        step.execute_batch(V2)?;
        sum_all(&step)?;
    }
    if found < 3 {
        step.execute_batch(V3)?;
    }
    step.pragma_update(None, "user_version", VERSION)?;
    step.commit()
}

/// Gives every record of version 1 its checksum.
fn sum_all(connection: &Connection) -> rusqlite::Result<()> {
    let mut seqs = connection.prepare("SELECT seq, channel, at, body FROM entry")?;
    let mut update = connection.prepare("UPDATE entry SET crc = ?2 WHERE seq = ?1")?;
    let mut rows = seqs.query([])?;
    while let Some(row) = rows.next()? {
        let (seq, channel, at): (u64, i64, u64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let crc = record::entry_sum(seq, channel, at, None, record::blob(row.get_ref(3)?));
        update.execute((seq, crc))?;
    }
    let mut saved = connection.prepare("SELECT channel, seq, version, body FROM snapshot")?;
    let mut update = connection.prepare("UPDATE snapshot SET crc = ?2 WHERE channel = ?1")?;
    let mut rows = saved.query([])?;
    while let Some(row) = rows.next()? {
        let (channel, version): (i64, String) = (row.get(0)?, row.get(2)?);
        update
            .execute((channel, record::snapshot_sum(channel, row.get(1)?, &version, record::blob(row.get_ref(3)?))))?;
    }
    let mut parts = connection.prepare("SELECT id, body FROM part")?;
    let mut update = connection.prepare("UPDATE part SET crc = ?2 WHERE id = ?1")?;
    let mut rows = parts.query([])?;
    while let Some(row) = rows.next()? {
        let key: i64 = row.get(0)?;
        update.execute((key, record::row_sum(key, record::blob(row.get_ref(1)?))))?;
    }
    Ok(())
}
