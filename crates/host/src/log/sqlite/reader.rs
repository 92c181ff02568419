//! Reads from the file, one bounded page at a time, and compares each record with its checksum.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode};

use super::super::gaps::Gaps;
use super::super::{ChannelInfo, DamagedRecord, Entry, ReadError, Rows, Seq, Snapshot};
use super::buffer_pool::BufferPool;
use super::pieces::{self, EntryBody};
use super::shared_bodies::SharedBodies;
use super::{db, record};

/// How many entries one page may scan, wanted or not.
const MAX_SCANNED: usize = 10_000;

/// A connection for reading.
pub(super) struct Reader {
    pub(super) connection: Connection,
    buffers: RefCell<BufferPool>,
    long_bodies: SharedBodies,
}

/// What readers have to know of the whole log before they read.
pub(super) struct Outline {
    /// The highest seq that was ever used.
    pub(super) last: Seq,
    /// The names of the channels.
    pub(super) names: HashMap<i64, Arc<str>>,
    /// The highest trimmed seq of each channel that was trimmed.
    pub(super) trims: HashMap<Arc<str>, Seq>,
    pub(super) gaps: Gaps,
}

impl Reader {
    pub(super) fn new(connection: Connection, long_bodies: SharedBodies) -> Self {
        Self { connection, buffers: RefCell::default(), long_bodies }
    }

    /// What readers have to know of the whole log.
    pub(super) fn outline(&self) -> rusqlite::Result<Outline> {
        let (mut names, mut trims) = (HashMap::new(), HashMap::new());
        let mut all = self.connection.prepare("SELECT id, uri, trimmed FROM channel WHERE NOT erased")?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let (uri, trimmed): (Arc<str>, Seq) = (row.get(1)?, row.get(2)?);
            names.insert(row.get(0)?, uri.clone());
            if trimmed > 0 {
                trims.insert(uri, trimmed);
            }
        }
        Ok(Outline { last: self.last()?, names, trims, gaps: db::load_gaps(&self.connection)? })
    }

    /// The highest seq that was ever used.
    pub(super) fn last(&self) -> rusqlite::Result<Seq> {
        let last = "SELECT max((SELECT coalesce(max(seq), 0) FROM entry), value - 1) FROM meta WHERE key = 'next'";
        self.connection.query_row(last, [], |row| row.get(0))
    }

    /// Entries after a position up to a seq, and the position after them. `name` says whether the entries of a channel are
    /// wanted.
    pub(super) fn page(
        &self,
        (after, upto): (Seq, Seq),
        max_bytes: usize,
        name: impl Fn(i64) -> ChannelFilter,
    ) -> Result<(Vec<Entry>, Seq), ReadError> {
        let sql = "SELECT seq, channel, at, crc, about, body FROM entry WHERE seq > ?1 AND seq <= ?2 ORDER BY seq";
        self.entries(sql, (storable(after), storable(upto)), after, max_bytes, name).map(|(page, position, ended)| {
            let position = if ended { upto.max(after) } else { position };
            (page, position)
        })
    }

    /// Entries of one channel.
    pub(super) fn read(&self, uri: &Arc<str>, range: Range<Seq>, max_bytes: usize) -> Result<Vec<Entry>, ReadError> {
        let view = self.connection.unchecked_transaction().map_err(store)?;
        let sql = "SELECT id, trimmed FROM channel WHERE uri = ?1 AND NOT erased";
        let known = view.prepare_cached(sql).and_then(|mut known| {
            known.query_row([uri], |row| Ok(Some((row.get::<_, i64>(0)?, row.get::<_, Seq>(1)?))))
        });
        let Some((id, trimmed)) = known.or_else(db::none_is(None)).map_err(store)? else { return Ok(Vec::new()) };
        if range.start <= trimmed && trimmed > 0 {
            return Err(ReadError::Trimmed { first: trimmed + 1 });
        }
        let sql = "SELECT seq, channel, at, crc, about, body FROM entry
                   WHERE channel = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq";
        let (params, after) = ((id, storable(range.start), storable(range.end)), range.start.saturating_sub(1));
        Ok(self.entries(sql, params, after, max_bytes, |_| ChannelFilter::Yes(uri.clone()))?.0)
    }

    fn entries(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        after: Seq,
        max_bytes: usize,
        name: impl Fn(i64) -> ChannelFilter,
    ) -> Result<(Vec<Entry>, Seq, bool), ReadError> {
        let mut query = self.connection.prepare_cached(sql).map_err(store)?;
        let mut rows = query.query(params).map_err(store)?;
        let (mut page, mut bytes, mut position) = (Vec::new(), 0, after);
        let (mut names, mut buffers) = (Names { name, last: None }, self.buffers.borrow_mut());
        for _ in 0..MAX_SCANNED {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => return Ok((page, position, true)),
                Err(error) => return after_damage(page, position, damaged(error, position)),
            };
            // A long body begins a new page, so that it is not read only to find that it does not fit.
            if !page.is_empty() && pieces::is_long(row, 5).map_err(store)? {
                break;
            }
            match self.entry(row, &mut names, &mut buffers) {
                Ok(Read { seq, entry: None }) => position = seq,
                Ok(Read { seq, entry: Some(entry) }) => {
                    bytes += entry.body.len();
                    if bytes > max_bytes && !page.is_empty() {
                        break;
                    }
                    page.push(entry);
                    position = seq;
                }
                Err(error) => return after_damage(page, position, error),
            }
        }
        Ok((page, position, false))
    }

    fn entry(
        &self,
        row: &rusqlite::Row<'_>,
        names: &mut Names<impl Fn(i64) -> ChannelFilter>,
        buffers: &mut BufferPool,
    ) -> Result<Read, ReadError> {
        let seq: Seq = row.get(0).map_err(store)?;
        let broken = |_| ReadError::Damaged(DamagedRecord::Entry { seq });
        let channel: i64 = row.get(1).map_err(broken)?;
        let uri = match names.wanted(channel) {
            ChannelFilter::Yes(uri) => Some(uri.clone()),
            ChannelFilter::No => return Ok(Read { seq, entry: None }),
            // The channel was erased, unless its number is damaged: the checksum decides.
            ChannelFilter::Unknown => None,
        };
        let (at_ms, crc): (u64, u32) = (row.get(2).map_err(broken)?, row.get(3).map_err(broken)?);
        let about = row.get_ref(4).and_then(|about| Ok(about.as_str_or_null()?)).map_err(broken)?;
        let body = pieces::body(&self.connection, row, 5, Some((&self.long_bodies, seq)))
            .map_err(|error| damaged(error, seq.saturating_sub(1)))?;
        if record::entry_sum(seq, channel, at_ms, about, body.bytes()) != crc {
            return Err(ReadError::Damaged(DamagedRecord::Entry { seq }));
        }
        let entry = uri.map(|channel| {
            let body = match body {
                EntryBody::Row(body) => buffers.copy(body),
                EntryBody::Pieces(body) => body,
            };
            Entry::new(seq, at_ms, channel, body)
        });
        Ok(Read { seq, entry })
    }

    /// The saved snapshot of a channel.
    pub(super) fn snapshot(&self, uri: &Arc<str>) -> Result<Option<Snapshot>, ReadError> {
        let sql = "SELECT channel, seq, version, crc, body FROM snapshot
                   WHERE channel = (SELECT id FROM channel WHERE uri = ?1 AND NOT erased)";
        let mut query = self.connection.prepare_cached(sql).map_err(store)?;
        let found = query.query_row([uri], |row| {
            let (id, seq, version): (i64, Seq, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let body = record::blob(row.get_ref(4)?);
            let good = row.get::<_, u32>(3)? == record::snapshot_sum(id, seq, &version, body);
            Ok(Some((Snapshot { seq, version, body: Bytes::copy_from_slice(body) }, good)))
        });
        match found.or_else(db::none_is(None)).map_err(store)? {
            Some((_, false)) => Err(ReadError::Damaged(DamagedRecord::Snapshot { channel: uri.clone() })),
            found => Ok(found.map(|(snapshot, _)| snapshot)),
        }
    }

    /// Rows of a channel.
    pub(super) fn rows(&self, uri: &Arc<str>, range: Range<u64>, max_bytes: usize) -> Result<Rows, ReadError> {
        let view = self.connection.unchecked_transaction().map_err(store)?;
        let id = view.prepare_cached("SELECT id FROM channel WHERE uri = ?1 AND NOT erased");
        let id = id.and_then(|mut id| id.query_row([uri], |row| row.get(0).map(Some))).or_else(db::none_is(None));
        let Some(id) = id.map_err(store)? else { return Ok(Rows::default()) };
        let last = view.prepare_cached("SELECT max(id) FROM part WHERE id >= ?1 AND id < ?2");
        let ends = (record::row_key(id, 0), record::row_key(id + 1, 0));
        let last = last.and_then(|mut last| last.query_row(ends, |row| row.get::<_, Option<i64>>(0))).map_err(store)?;
        let total = last.map_or(0, |key| record::row_index(key) + 1);
        let sql = "SELECT id, crc, body FROM part WHERE id >= ?1 AND id < ?2 ORDER BY id";
        let mut query = view.prepare_cached(sql).map_err(store)?;
        let keys = (record::row_key(id, range.start), record::row_key(id, range.end));
        let mut found = query.query(keys).map_err(store)?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while let Some(row) = found.next().map_err(store)? {
            let key: i64 = row.get(0).map_err(store)?;
            let body = record::blob(row.get_ref(2).map_err(store)?);
            bytes += body.len();
            if bytes > max_bytes && !rows.is_empty() {
                break;
            }
            let index = record::row_index(key);
            if row.get::<_, u32>(1).ok() != Some(record::row_sum(key, body)) {
                let damaged = DamagedRecord::Row { channel: uri.clone(), index };
                return if rows.is_empty() { Err(ReadError::Damaged(damaged)) } else { Ok(Rows { rows, total }) };
            }
            rows.push((index, Bytes::copy_from_slice(body)));
        }
        Ok(Rows { rows, total })
    }

    /// Bytes of the database.
    pub(super) fn store_bytes(&self) -> Result<u64, ReadError> {
        let value = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0)).map_err(store);
        Ok(value("page_count")?.saturating_mul(value("page_size")?))
    }

    /// What is known of channels.
    pub(super) fn channels(&self, session: Option<&str>) -> Result<Vec<ChannelInfo>, ReadError> {
        let sql = "SELECT uri, session, trimmed,
                max(removed, coalesce((SELECT max(seq) FROM entry WHERE channel = c.id), 0)),
                (SELECT seq FROM snapshot WHERE channel = c.id)
             FROM channel c WHERE NOT erased AND (?1 IS NULL OR session = ?1) ORDER BY uri";
        let mut query = self.connection.prepare_cached(sql).map_err(store)?;
        let infos = query.query_map([session], |row| {
            Ok(ChannelInfo {
                channel: row.get(0)?,
                session: row.get(1)?,
                first: row.get::<_, Seq>(2)? + 1,
                last: row.get(3)?,
                snapshot: row.get(4)?,
            })
        });
        infos.and_then(Iterator::collect).map_err(store)
    }
}

/// Whether a channel's entries are wanted.
pub(super) enum ChannelFilter {
    Yes(Arc<str>),
    No,
    Unknown,
}

/// Remembers the last channel, because consecutive entries are often of the same one.
struct Names<F> {
    name: F,
    last: Option<(i64, ChannelFilter)>,
}

impl<F: Fn(i64) -> ChannelFilter> Names<F> {
    fn wanted(&mut self, channel: i64) -> &ChannelFilter {
        let (name, last) = (&self.name, &mut self.last);
        *last = last.take().filter(|(id, _)| *id == channel);
        &last.get_or_insert_with(|| (channel, name(channel))).1
    }
}

/// A row of the table; without an entry if it is not wanted.
struct Read {
    seq: Seq,
    entry: Option<Entry>,
}

/// Returns what was read before the damage. The next read returns the error.
fn after_damage(page: Vec<Entry>, position: Seq, error: ReadError) -> Result<(Vec<Entry>, Seq, bool), ReadError> {
    if page.is_empty() { Err(error) } else { Ok((page, position, false)) }
}

/// An error of the store while reading: it is broken, or cannot be read now.
fn damaged(error: rusqlite::Error, seq: Seq) -> ReadError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => ReadError::Damaged(DamagedRecord::After { seq }),
        _ => store(error),
    }
}

/// SQLite's numbers are signed. No seq comes near the limit.
fn storable(seq: Seq) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

pub(super) fn store(error: rusqlite::Error) -> ReadError {
    ReadError::Store(error.to_string())
}
