//! Long bodies are written in pieces, one transaction each, so that other batches do not wait for a whole long body.
//!
//! The pieces of a body are rows of a separate table, by `stage << 16 | index`. The entry is written last and makes the body
//! visible; it has the number `stage << 16 | count` in place of the body. Pieces without an entry remain from a batch that
//! was refused or interrupted by a crash; nobody reads them, and they are removed. Negative ids are the rows of the reserve.

use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use super::super::Seq;
use super::super::metrics::Metrics;
use super::super::queue::Append;
use super::db::{Db, Failure};
use super::record;
use super::shared_bodies::SharedBodies;

/// Bytes of one piece.
const PIECE: usize = 512 << 10;
/// The most bytes that are allocated before a body is read. Beyond that the buffer grows.
const MOST_AHEAD: usize = 64 << 20;
/// A body up to this length is not split.
pub(super) const WHOLE: usize = 64 << 10;

/// The SQL for the length of an entry's body.
pub(super) const BODY_LENGTH: &str = "CASE typeof(entry.body) WHEN 'integer' THEN
    (SELECT coalesce(sum(length(piece.body)), 0) FROM piece
     WHERE id >= (entry.body >> 16) << 16 AND id < ((entry.body >> 16) + 1) << 16)
    ELSE length(entry.body) END";

/// A batch whose long bodies are being written.
pub(super) struct StagedBatch {
    append: Append,
    stored: Vec<Option<StoredPieces>>,
    /// The entry and the byte where the next piece begins.
    entry: usize,
    from: usize,
}

/// Where the pieces of a body are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredPieces {
    stage: i64,
    count: i64,
}

impl StoredPieces {
    /// The number in place of the body.
    pub(super) const fn number(self) -> i64 {
        self.stage << 16 | self.count
    }
}

impl StagedBatch {
    pub(super) fn new(append: Append) -> Self {
        let stored = vec![None; append.batch.entries.len()];
        Self { append, stored, entry: 0, from: 0 }
    }

    /// Whether there is a piece left to write.
    pub(super) fn has_more(&mut self) -> bool {
        while let Some(entry) = self.append.batch.entries.get(self.entry) {
            // Deltas are not split, because they may be merged.
            if entry.body.len() > WHOLE && entry.part.is_none() && self.from < entry.body.len() {
                return true;
            }
            (self.entry, self.from) = (self.entry + 1, 0);
        }
        false
    }

    /// Writes the next piece, if there is one. To be called in a transaction.
    pub(super) fn write(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if !self.has_more() {
            return Ok(());
        }
        let entry = self.append.batch.entries.get(self.entry);
        let rest = entry.and_then(|entry| entry.body.get(self.from..));
        let (Some(rest), Some(stored)) = (rest, self.stored.get_mut(self.entry)) else { return Ok(()) };
        let stored = match stored {
            Some(stored) => stored,
            None => stored.insert(StoredPieces { stage: next_stage(connection)?, count: 0 }),
        };
        let piece = rest.get(..PIECE).unwrap_or(rest);
        let mut insert = connection.prepare_cached("INSERT INTO piece VALUES (?1, ?2)")?;
        insert.execute((stored.stage << 16 | stored.count, piece))?;
        stored.count += 1;
        self.from += piece.len();
        Ok(())
    }

    /// The batch, and where its long bodies are stored.
    pub(super) fn finish(self) -> (Append, Vec<Option<StoredPieces>>) {
        (self.append, self.stored)
    }
}

fn next_stage(connection: &Connection) -> rusqlite::Result<i64> {
    let mut last = connection.prepare_cached("SELECT max(id) FROM piece")?;
    Ok(last.query_row([], |row| row.get::<_, Option<i64>>(0))?.map_or(1, |id| (id.max(0) >> 16) + 1))
}

/// Removes pieces whose entry is not appended.
pub(super) fn remove(connection: &Connection, stored: &[Option<StoredPieces>]) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached("DELETE FROM piece WHERE id >= ?1 AND id < ?2")?;
    for StoredPieces { stage, .. } in stored.iter().flatten() {
        delete.execute((stage << 16, (stage + 1) << 16))?;
    }
    Ok(())
}

/// Removes pieces that belong to no entry. Each is a transaction of its own, because deleted bytes are overwritten and
/// the write-ahead log may not be able to grow. To be called when the log is opened, while nothing is being written.
pub(super) fn sweep(db: &Db, metrics: &Metrics) -> Result<(), Failure> {
    let sql = "SELECT id FROM piece WHERE id >= 0 AND id >> 16 NOT IN (
               SELECT body >> 16 FROM entry WHERE typeof(body) = 'integer')";
    let mut orphans = db.connection.prepare(sql)?;
    let orphans = orphans.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
    for id in orphans {
        db.connection.execute("DELETE FROM piece WHERE id = ?1", [id])?;
        db.checkpoint_if_long(metrics)?;
    }
    Ok(())
}

/// The body of an entry, from its row or from its pieces. If pieces are missing, the checksum is wrong.
pub(super) enum EntryBody<'a> {
    Row(&'a [u8]),
    Pieces(Bytes),
}

impl EntryBody<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Row(bytes) => bytes,
            Self::Pieces(bytes) => bytes,
        }
    }
}

/// Whether the body in a column of a row is in pieces.
pub(super) fn is_long(row: &Row<'_>, column: usize) -> rusqlite::Result<bool> {
    Ok(matches!(row.get_ref(column)?, ValueRef::Integer(_)))
}

/// Reads the body in a column of a row. With `shared`, a long body that is in memory already is shared by its seq; without, it
/// is always read from the file.
pub(super) fn body<'a>(
    connection: &Connection,
    row: &'a Row<'_>,
    column: usize,
    shared: Option<(&SharedBodies, Seq)>,
) -> rusqlite::Result<EntryBody<'a>> {
    let value = row.get_ref(column)?;
    let ValueRef::Integer(number) = value else { return Ok(EntryBody::Row(record::blob(value))) };
    let body = match shared {
        Some((bodies, seq)) => bodies.get_or_read(seq, || joined(connection, number))?,
        None => joined(connection, number)?,
    };
    Ok(EntryBody::Pieces(body))
}

/// Reads all pieces of a body.
fn joined(connection: &Connection, number: i64) -> rusqlite::Result<Bytes> {
    let (first, count) = (number >> 16 << 16, number & 0xFFFF);
    let mut pieces = connection.prepare_cached("SELECT body FROM piece WHERE id >= ?1 AND id < ?2 ORDER BY id")?;
    let mut pieces = pieces.query((first, first.saturating_add(count)))?;
    // The number may be damaged.
    let about = usize::try_from(count).unwrap_or(0).saturating_mul(PIECE).min(MOST_AHEAD);
    let mut bytes = Vec::with_capacity(about);
    while let Some(piece) = pieces.next()? {
        bytes.extend_from_slice(record::blob(piece.get_ref(0)?));
    }
    Ok(bytes.into())
}
