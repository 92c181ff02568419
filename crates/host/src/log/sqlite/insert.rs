//! Inserts many rows with one statement: SQLite keeps its position in the tree from one row to the next, and consecutive rows
//! are mostly neighbours.

use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, ToSql};

use super::super::{BatchId, Seq};
use super::pieces::StoredPieces;
use super::record;

/// Rows of one statement.
const ROWS: usize = 32;
/// And bytes of them: SQLite copies all values that are bound.
const BYTES: usize = 256 << 10;

/// A row of a table.
pub(super) trait InsertedRow {
    /// The statement that inserts one.
    const ONE: &'static str;

    /// The statement that inserts [`ROWS`] of them.
    fn many() -> &'static str;

    /// Bytes that are copied, about.
    fn bytes(&self) -> usize;

    /// Binds the columns, in their order.
    fn bind(&self, to: &mut Columns<'_, '_>) -> rusqlite::Result<()>;
}

/// An entry with its checksum.
pub(super) struct EntryRecord<'a> {
    pub(super) seq: Seq,
    pub(super) channel: i64,
    pub(super) at_ms: u64,
    pub(super) about: Option<&'a str>,
    pub(super) body: &'a [u8],
    /// Where the body is stored already.
    pub(super) stored: Option<StoredPieces>,
}

impl InsertedRow for EntryRecord<'_> {
    const ONE: &'static str = "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)";

    fn many() -> &'static str {
        static MANY: LazyLock<String> =
            LazyLock::new(|| EntryRecord::ONE.to_owned() + &repeated(", (?, ?, ?, ?, ?, ?)"));
        &MANY
    }

    fn bytes(&self) -> usize {
        if self.stored.is_some() { 0 } else { self.body.len() }
    }

    fn bind(&self, to: &mut Columns<'_, '_>) -> rusqlite::Result<()> {
        let Self { seq, channel, at_ms, about, body, stored } = *self;
        to.next(seq)?;
        to.next(channel)?;
        to.next(at_ms)?;
        to.next(record::entry_sum(seq, channel, at_ms, about, body))?;
        to.next(about)?;
        match stored {
            Some(stored) => to.next(stored.number()),
            None => to.next(body),
        }
    }
}

/// A batch with the seqs of its entries.
pub(super) struct BatchRecord {
    pub(super) id: BatchId,
    pub(super) seqs: Vec<u8>,
}

impl InsertedRow for BatchRecord {
    const ONE: &'static str = "INSERT INTO batch VALUES (?, ?)";

    fn many() -> &'static str {
        static MANY: LazyLock<String> = LazyLock::new(|| BatchRecord::ONE.to_owned() + &repeated(", (?, ?)"));
        &MANY
    }

    fn bytes(&self) -> usize {
        self.seqs.len()
    }

    fn bind(&self, to: &mut Columns<'_, '_>) -> rusqlite::Result<()> {
        to.next(self.id.to_bytes())?;
        to.next(&self.seqs)
    }
}

/// Inserts these, in this order.
pub(super) fn all<R: InsertedRow>(connection: &Connection, records: &[R]) -> rusqlite::Result<()> {
    for records in records.chunks(ROWS) {
        let bytes: usize = records.iter().map(InsertedRow::bytes).sum();
        let (rows, sql) = if records.len() == ROWS && bytes <= BYTES { (ROWS, R::many()) } else { (1, R::ONE) };
        let mut insert = connection.prepare_cached(sql)?;
        for records in records.chunks(rows) {
            let mut columns = Columns { of: &mut insert, bound: 0 };
            records.iter().try_for_each(|record| record.bind(&mut columns))?;
            insert.raw_execute()?;
        }
    }
    Ok(())
}

/// The values of all rows but the first.
fn repeated(values: &str) -> String {
    values.repeat(ROWS - 1)
}

/// Binds the columns of a statement's rows, one after the other.
pub(super) struct Columns<'a, 'c> {
    of: &'a mut CachedStatement<'c>,
    bound: usize,
}

impl Columns<'_, '_> {
    fn next(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.bound += 1;
        self.of.raw_bind_parameter(self.bound, value)
    }
}
