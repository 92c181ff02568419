//! Reads from the file, one bounded page at a time, and compares each record with its checksum.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, MAIN_DB};

use super::super::gaps::Gaps;
use super::super::{ChannelInfo, DamagedRecord, Entry, ReadError, Rows, Seq, Snapshot};
use super::buffer_pool::BufferPool;
use super::holes::{self, Hole};
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
        let read = |sql| self.connection.query_row(sql, [], |row| row.get::<_, Seq>(0));
        let last = match read("SELECT coalesce(max(seq), 0) FROM entry") {
            // The last page of the table cannot be read. An index has the seqs, too.
            Err(error) if holes::is_corrupt(&error) => read(
                "SELECT coalesce(max((SELECT max(seq) FROM entry INDEXED BY entry_channel WHERE channel = c.id)), 0)
                 FROM channel c",
            )?,
            last => last?,
        };
        Ok(last.max(read("SELECT value FROM meta WHERE key = 'next'")?.saturating_sub(1)))
    }

    /// Entries after a position up to a seq, and the position after them. `name` says whether the entries of a channel are
    /// wanted.
    pub(super) fn page(
        &self,
        (after, upto): (Seq, Seq),
        max_bytes: usize,
        name: impl Fn(i64) -> ChannelFilter,
    ) -> Result<(Vec<Entry>, Seq), ReadError> {
        let sql = "SELECT seq, channel, at, crc, about, body FROM entry WHERE seq >= ?1 AND seq <= ?2 ORDER BY seq";
        let lost = |position| self.lost_after(position, upto);
        // Not "after": that would search for the seq before, which may be on a page that cannot be read.
        let from = storable(after.saturating_add(1));
        let found = self.entries(sql, (from, storable(upto)), after, max_bytes, name, lost);
        found.map(|(page, position, ended)| {
            let position = if ended { upto.max(after) } else { position };
            (page, position)
        })
    }

    /// What cannot be read between a position, where a scan failed, and a seq.
    pub(super) fn lost_after(&self, position: Seq, upto: Seq) -> Result<DamagedRecord, ReadError> {
        let seq = |key: i64| Seq::try_from(key).unwrap_or(0);
        let first = position.saturating_add(1);
        Ok(match holes::find(&self.connection, holes::ENTRIES, storable(position)).map_err(store)? {
            Hole::Row(key) => DamagedRecord::Entry { seq: seq(key) },
            Hole::Before(key) => {
                DamagedRecord::Entries { first, last: seq(key).saturating_sub(1).min(upto).max(first) }
            }
            Hole::ToEnd => DamagedRecord::Entries { first, last: upto.max(first) },
        })
    }

    /// The next entry of a channel after a position, where a scan failed: an index knows it, without the table.
    fn lost_of_channel(&self, channel: i64, position: Seq) -> Result<DamagedRecord, ReadError> {
        let sql = "SELECT seq FROM entry INDEXED BY entry_channel WHERE channel = ?1 AND seq > ?2 ORDER BY seq LIMIT 1";
        let next = self.connection.query_row(sql, (channel, storable(position)), |row| row.get(0));
        match next {
            Ok(seq) => Ok(DamagedRecord::Entry { seq }),
            Err(error) if holes::is_corrupt(&error) => Ok(DamagedRecord::After { seq: position }),
            Err(error) => Err(store(error)),
        }
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
        let lost = |position| self.lost_of_channel(id, position);
        Ok(self.entries(sql, params, after, max_bytes, |_| ChannelFilter::Yes(uri.clone()), lost)?.0)
    }

    fn entries(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        after: Seq,
        max_bytes: usize,
        name: impl Fn(i64) -> ChannelFilter,
        lost: impl Fn(Seq) -> Result<DamagedRecord, ReadError>,
    ) -> Result<(Vec<Entry>, Seq, bool), ReadError> {
        let mut query = self.connection.prepare_cached(sql).map_err(store)?;
        let mut rows = query.query(params).map_err(store)?;
        let (mut page, mut bytes, mut position) = (Vec::new(), 0, after);
        let (mut names, mut buffers) = (Names { name, last: None }, self.buffers.borrow_mut());
        for _ in 0..MAX_SCANNED {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => return Ok((page, position, true)),
                // What was read before is returned first. The next read begins here, and returns the error.
                Err(_) if !page.is_empty() => return Ok((page, position, false)),
                Err(error) if holes::is_corrupt(&error) => return Err(ReadError::Damaged(lost(position)?)),
                Err(error) => return Err(store(error)),
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
                Err(_) if !page.is_empty() => return Ok((page, position, false)),
                Err(error) => return Err(error),
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
            .map_err(|error| if holes::is_corrupt(&error) { broken(error) } else { store(error) })?;
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

    /// Some bytes of a row. Only the pages that they are on are read, and those before.
    pub(super) fn row_bytes(
        &self,
        uri: &Arc<str>,
        index: u64,
        range: Range<usize>,
    ) -> Result<Option<Bytes>, ReadError> {
        let view = self.connection.unchecked_transaction().map_err(store)?;
        let sql = "SELECT part.id FROM part, channel WHERE uri = ?1 AND NOT erased AND part.id = channel.id << 32 | ?2";
        let key = view.prepare_cached(sql).and_then(|mut key| {
            let found = key.query_row((uri, index.min(u64::from(u32::MAX))), |row| row.get::<_, i64>(0).map(Some));
            found.or_else(db::none_is(None))
        });
        let Some(key) = key.map_err(store)? else { return Ok(None) };
        let blob = view.blob_open(MAIN_DB, "part", "body", key, true).map_err(store)?;
        let (start, end) = (range.start.min(blob.len()), range.end.min(blob.len()));
        let mut bytes = vec![0; end.saturating_sub(start)];
        blob.read_at_exact(&mut bytes, start).map_err(store)?;
        Ok(Some(bytes.into()))
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

/// SQLite's numbers are signed. No seq comes near the limit.
fn storable(seq: Seq) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

pub(super) fn store(error: rusqlite::Error) -> ReadError {
    ReadError::Store(error.to_string())
}
