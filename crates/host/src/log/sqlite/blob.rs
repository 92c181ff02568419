//! Writes long bodies into rows without copies: SQLite makes two copies of every value that is bound to a statement.

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, MAIN_DB};

/// A body up to this length is bound to the statement.
const SHORT: usize = 1 << 20;
/// How much is written at once.
const STEP: usize = 256 << 10;

/// The value that is bound for a body: the body, or as many zeroes.
pub(super) fn blob_value(text: &[u8]) -> BlobValue<'_> {
    BlobValue(text)
}

/// Writes a body over the zeroes, if zeroes were bound for it.
pub(super) fn fill(connection: &Connection, table: &str, row: i64, text: &[u8]) -> rusqlite::Result<()> {
    if text.len() <= SHORT {
        return Ok(());
    }
    let mut blob = connection.blob_open(MAIN_DB, table, "body", row, false)?;
    for (n, step) in text.chunks(STEP).enumerate() {
        blob.write_at(step, n * STEP)?;
    }
    blob.close()
}

/// A body, or zeroes in its place.
pub(super) struct BlobValue<'a>(&'a [u8]);

impl ToSql for BlobValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match u64::try_from(self.0.len()) {
            Ok(len) if self.0.len() > SHORT => Ok(ToSqlOutput::ZeroBlob(len)),
            _ => Ok(ToSqlOutput::Borrowed(ValueRef::Blob(self.0))),
        }
    }
}
