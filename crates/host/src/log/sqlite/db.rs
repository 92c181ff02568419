//! The writer's connection to the database: opening it, beginning and ending transactions, and cached facts.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::super::gaps::{self, Gaps};
use super::super::{AppendError, BatchId, Gap, Metrics, OpenError, Seq, WriteError};
use super::acknowledged::AcknowledgedFile;
use super::batch_ids::BatchIds;
use super::files::LogFiles;
use super::reserve::RoomBehind;
use super::{Options, salvage, schema};

/// How long to wait for another connection's lock. Readers hold theirs for one page.
const BUSY: Duration = Duration::from_secs(5);

/// How many gaps are stored. A client with a position before the oldest one gets snapshots.
const MAX_GAPS: u64 = 4_096;

/// Why a transaction failed. The connection is not used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    Full,
    Fenced,
    /// A part of the file cannot be read.
    Unreadable(String),
    Store(String),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            _ if is_full(&error) => Self::Full,
            Some(ErrorCode::DatabaseCorrupt) => Self::Unreadable(error.to_string()),
            _ => Self::Store(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Store(error.to_string()),
        }
    }
}

impl From<&Failure> for AppendError {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Full => Self::Full,
            Failure::Fenced => Self::Fenced,
            Failure::Unreadable(_) | Failure::Store(_) => Self::Unknown,
        }
    }
}

impl From<&Failure> for WriteError {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Full => Self::Full,
            Failure::Fenced => Self::Fenced,
            Failure::Unreadable(_) => Self::Unreadable,
            Failure::Store(_) => Self::Unknown,
        }
    }
}

/// Whether the disk is full: for the database, the write-ahead log, or the index of that, which is a file, too.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        || error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}

/// A channel as the writer knows it.
#[derive(Debug, Clone)]
pub(super) struct ChannelRecord {
    pub(super) id: i64,
    pub(super) uri: Arc<str>,
    pub(super) session: Option<Arc<str>>,
    pub(super) last: Seq,
    pub(super) trimmed: Seq,
    pub(super) snapshot: Seq,
}

/// The connection, and facts that would be slow to query each time. After a failure all of it is dropped.
pub(super) struct Db {
    pub(super) connection: Connection,
    pub(super) channels: HashMap<Arc<str>, ChannelRecord>,
    /// The highest seq that was ever used.
    pub(super) last: Seq,
    /// The next seq, which may be far above.
    pub(super) next: Seq,
    pub(super) gaps: Gaps,
    mark: AcknowledgedFile,
    pub(super) at_ms: u64,
    pub(super) ids: BatchIds,
    epoch: u64,
    options: Options,
    files: LogFiles,
    /// Behind the connection, because it is to be closed after it.
    pub(super) room_behind: Option<RoomBehind>,
}

impl Db {
    /// As [`open`](Self::open). If a part of the file that the writer needs cannot be read, the database is first replaced by a
    /// copy without that part.
    pub(super) fn open_or_salvage(files: &LogFiles, options: &Options) -> Result<Self, OpenError> {
        match Self::open(files, options) {
            Err(OpenError::Damaged { .. }) => Self::open_salvaged(files, options),
            opened => opened,
        }
    }

    /// Replaces the database by a copy of what can be read, and opens that.
    pub(super) fn open_salvaged(files: &LogFiles, options: &Options) -> Result<Self, OpenError> {
        salvage::salvage(files).map_err(|error| super::opening(&files.database(), error))?;
        Self::open(files, options)
    }

    /// Opens or makes the database, and migrates it to the present version.
    pub(super) fn open(files: &LogFiles, options: &Options) -> Result<Self, OpenError> {
        let path = files.database();
        let failed = |error: std::io::Error| match Failure::from(error) {
            Failure::Full => OpenError::Full(path.clone()),
            Failure::Fenced => OpenError::InUse(path.clone()),
            Failure::Unreadable(_) => OpenError::Damaged { path: path.clone() },
            Failure::Store(reason) => OpenError::Store { path: path.clone(), source: reason.into() },
        };
        files.make_database().map_err(failed)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&path, flags).map_err(|error| super::opening(&path, error))?;
        let found = schema::check(&connection, &path)?;
        Self::set_up(&mut connection, options, found).map_err(|error| super::opening(&path, error))?;
        // Not earlier: when SQLite opens a database without pages, it removes the write-ahead log.
        files.lengthen_wal(options.wal_bytes).map_err(failed)?;
        let mut db = Self {
            connection,
            channels: HashMap::new(),
            last: 0,
            next: 1,
            gaps: Gaps::default(),
            mark: AcknowledgedFile::open(files),
            at_ms: 0,
            ids: BatchIds::new(BatchId::at(0)),
            epoch: 0,
            options: options.clone(),
            files: files.clone(),
            room_behind: None,
        };
        db.load().map_err(|error| super::opening(&path, error))?;
        Ok(db)
    }

    fn set_up(connection: &mut Connection, options: &Options, found: i64) -> rusqlite::Result<()> {
        connection.busy_timeout(BUSY)?;
        // Closing must not write, because it may happen after a write failed.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        if found == 0 {
            // So that space can be returned to a disk that is full.
            connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        connection.pragma_update(
            None,
            "synchronous",
            if options.faults.no_sync.load(Relaxed) { "OFF" } else { "FULL" },
        )?;
        connection.pragma_update(None, "fullfsync", true)?;
        connection.pragma_update(None, "checkpoint_fullfsync", true)?;
        // The writer makes checkpoints itself, because SQLite does not report it when one fails.
        connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
        connection.pragma_update(None, "foreign_keys", false)?;
        // Deleted data is overwritten, so that nothing of an erased session remains in the file.
        connection.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))?;
        connection.set_prepared_statement_cache_capacity(64);
        schema::migrate(connection, found)?;
        let most = options.faults.max_pages.load(Relaxed);
        if most > 0 {
            connection.pragma_update_and_check(None, "max_page_count", most, |_| Ok(()))?;
        }
        Ok(())
    }

    fn load(&mut self) -> rusqlite::Result<()> {
        self.epoch = self.stored_epoch()?;
        let last = self.connection.query_row("SELECT max(seq) FROM entry", [], |row| row.get::<_, Option<u64>>(0))?;
        let next = self.connection.query_row("SELECT value FROM meta WHERE key = 'next'", [], |row| row.get(0))?;
        let next: Seq = next;
        self.last = last.unwrap_or(0).max(next.saturating_sub(1));
        self.gaps = load_gaps(&self.connection)?;
        self.next = self.gaps.newest().map_or(1, |gap| gap.next).max(self.last + 1);
        let newest = "SELECT at FROM entry ORDER BY seq DESC LIMIT 1";
        self.at_ms = self.connection.query_row(newest, [], |row| row.get(0)).or_else(none_is(0))?;
        let highest = "SELECT id FROM batch ORDER BY id DESC LIMIT 1";
        let highest = self.connection.query_row(highest, [], |row| row.get(0)).or_else(none_is([0; 16]))?;
        self.ids = BatchIds::new(BatchId::from_bytes(highest));
        let mut all = self.connection.prepare(
            "SELECT id, uri, session, trimmed,
                max(removed, coalesce((SELECT max(seq) FROM entry WHERE channel = id), 0)),
                coalesce((SELECT seq FROM snapshot WHERE channel = id), 0)
             FROM channel WHERE NOT erased",
        )?;
        let channels = all.query_map([], |row| {
            let uri: Arc<str> = row.get(1)?;
            Ok(ChannelRecord {
                id: row.get(0)?,
                uri,
                session: row.get(2)?,
                trimmed: row.get(3)?,
                last: row.get(4)?,
                snapshot: row.get(5)?,
            })
        })?;
        self.channels = channels.map(|channel| channel.map(|it| (it.uri.clone(), it))).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn stored_epoch(&self) -> rusqlite::Result<u64> {
        let mut epoch = self.connection.prepare_cached("SELECT value FROM meta WHERE key = 'epoch'")?;
        epoch.query_row([], |row| row.get(0))
    }

    /// Fences every earlier writer, and begins a new run above all seqs that earlier runs have assigned.
    pub(super) fn take_over(&mut self) -> Result<u64, Failure> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        self.connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'epoch'", [])?;
        let gap = self.begin_run()?;
        self.connection.execute_batch("COMMIT")?;
        (self.next, self.gaps) = (gap.next, load_gaps(&self.connection)?);
        if let Some(lost) = gap.lost {
            tracing::error!(
                last = self.last,
                lost,
                "entries after `last`, up to `lost`, were acknowledged in this directory and are not in the log: it was restored from a backup, or has lost its end"
            );
        }
        self.epoch = self.stored_epoch()?;
        Ok(self.epoch)
    }

    fn begin_run(&self) -> rusqlite::Result<Gap> {
        // If the last run has used no seq, its gap is extended.
        let before = self.gaps.newest().filter(|gap| gap.after == self.last);
        let (marked, lost) = (self.mark.read(), before.and_then(|gap| gap.lost));
        let lost = marked.max(lost).filter(|seq| *seq > self.last);
        let used = self.last.max(lost.unwrap_or(0)).max(before.map_or(0, |gap| gap.next));
        let (clock, random) = match self.options.faults.clock.load(Relaxed) {
            // Without random bytes, the time has to do.
            0 => (gaps::clock(), getrandom::u64().unwrap_or_else(|_| gaps::clock())),
            clock => (clock, 0),
        };
        let gap = Gap { after: self.last, next: gaps::first_of_run(used, clock, random), lost };
        let (after, next, lost) = (gap.after, gap.next, gap.lost.unwrap_or(0));
        self.connection.execute("INSERT OR REPLACE INTO gap VALUES (?1, ?2, ?3)", (after, next, lost))?;
        let oldest = "SELECT after, next FROM gap ORDER BY after DESC LIMIT 1 OFFSET ?1";
        let forget = self.connection.query_row(oldest, [MAX_GAPS], |row| Ok(Some((row.get(0)?, row.get(1)?))));
        if let Some((after, next)) = forget.or_else(none_is::<Option<(Seq, Seq)>>(None))? {
            self.connection.execute("DELETE FROM gap WHERE after <= ?1", [after])?;
            self.connection.execute("UPDATE meta SET value = ?1 WHERE key = 'gaps_from'", [next])?;
        }
        Ok(gap)
    }

    /// Records in a separate file that everything up to the last seq was acknowledged.
    pub(super) fn note_acknowledged(&mut self) {
        self.mark.write(self.last);
    }

    /// Continues as the same writer as before, and writes something to check that writing works.
    pub(super) fn resume(&mut self, epoch: u64) -> Result<(), Failure> {
        self.epoch = epoch;
        self.begin()?;
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES ('resumed', ?1)", [self.next])?;
        self.commit(&Metrics::default())
    }

    /// Begins a transaction, unless another writer has taken over.
    pub(super) fn begin(&self) -> Result<(), Failure> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        if self.stored_epoch()? == self.epoch { Ok(()) } else { Err(Failure::Fenced) }
    }

    /// Commits the transaction: returns when it is durable.
    pub(super) fn commit(&self, metrics: &Metrics) -> Result<(), Failure> {
        let begun = Instant::now();
        let faults = &self.options.faults;
        if faults.fail_before_commit.swap(false, Relaxed) {
            return Err(Failure::Store("an injected fault before the commit".into()));
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        if faults.fail_after_commit.swap(false, Relaxed) {
            return Err(Failure::Store("an injected fault after the commit".into()));
        }
        metrics.commit_us.observe_time(begun.elapsed());
        metrics.syncs.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Makes a checkpoint if the write-ahead log is nearly as long as it may be.
    pub(super) fn checkpoint_if_long(&self, metrics: &Metrics) -> Result<(), Failure> {
        let mut pages = self.connection.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?;
        let pages: u64 = pages.query_row([], |row| row.get(1)).or_else(none_is(0))?;
        // A WAL frame is a page and its header. A quarter is left for a large transaction.
        if pages.saturating_mul(4_120) < self.options.wal_bytes / 4 * 3 {
            return Ok(());
        }
        self.checkpoint("PASSIVE", metrics).map(drop)
    }

    /// Makes a checkpoint; returns whether all of the write-ahead log was moved into the database.
    pub(super) fn checkpoint(&self, mode: &str, metrics: &Metrics) -> Result<bool, Failure> {
        let begun = Instant::now();
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        let busy: i64 = self.connection.query_row(&sql, [], |row| row.get(0))?;
        metrics.checkpoints.fetch_add(1, Relaxed);
        // Of the write-ahead log, and of the database.
        metrics.syncs.fetch_add(2, Relaxed);
        metrics.checkpoint_us.observe_time(begun.elapsed());
        metrics.store_bytes.store(self.used()?.0, Relaxed);
        self.make_room_behind()?;
        Ok(busy == 0)
    }

    /// Empties the write-ahead log, so that no old data is in it. Returns false if a reader still uses it.
    pub(super) fn empty_wal(&self, metrics: &Metrics) -> Result<bool, Failure> {
        let done = self.checkpoint("RESTART", metrics)?;
        if done {
            self.files.clear_wal(self.options.wal_bytes)?;
        }
        Ok(done)
    }

    /// Returns free pages to the disk, but for `keep` bytes of them. A log of an older version is copied for that, and needs as much
    /// space as it takes.
    pub(super) fn compact(&self, keep: u64, metrics: &Metrics) -> Result<(), Failure> {
        const INCREMENTAL: i64 = 2;
        let mode: i64 = self.connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
        if mode == INCREMENTAL {
            let free = || self.connection.pragma_query_value(None, "freelist_count", |row| row.get::<_, u64>(0));
            let mut before = u64::MAX;
            let keep = keep / self.connection.pragma_query_value(None, "page_size", |row| row.get::<_, u64>(0))?;
            // In steps that fit into the write-ahead log.
            while (keep + 1..before).contains(&free()?) {
                before = free()?;
                let step = before.saturating_sub(keep).min(500);
                let mut step = self.connection.prepare(&format!("PRAGMA incremental_vacuum({step})"))?;
                let mut pages = step.query([])?;
                while pages.next()?.is_some() {}
                drop(pages);
                self.checkpoint("PASSIVE", metrics)?;
            }
        } else {
            self.connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
            self.connection.execute_batch("VACUUM")?;
        }
        self.empty_wal(metrics).map(drop)
    }

    /// Bytes of the database that are in no use.
    pub(super) fn free(&self) -> u64 {
        self.used().map_or(0, |(all, used)| all.saturating_sub(used))
    }

    /// Bytes of the database, and those of them in use.
    pub(super) fn used(&self) -> Result<(u64, u64), Failure> {
        let value = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
        let (pages, free, size) = (value("page_count")?, value("freelist_count")?, value("page_size")?);
        Ok((pages.saturating_mul(size), pages.saturating_sub(free).saturating_mul(size)))
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }
}

/// Opens a connection that only reads.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// Reads the gaps from the database.
pub(super) fn load_gaps(connection: &Connection) -> rusqlite::Result<Gaps> {
    let is_there = "SELECT count(*) FROM sqlite_schema WHERE name = 'gap'";
    if connection.query_row(is_there, [], |row| row.get::<_, u64>(0))? == 0 {
        return Ok(Gaps::default());
    }
    let from = "SELECT value FROM meta WHERE key = 'gaps_from'";
    let from = connection.query_row(from, [], |row| row.get(0)).or_else(none_is(0))?;
    let mut all = connection.prepare("SELECT after, next, lost FROM gap ORDER BY after")?;
    let all = all.query_map([], |row| {
        let lost: Seq = row.get(2)?;
        Ok(Gap { after: row.get(0)?, next: row.get(1)?, lost: Some(lost).filter(|lost| *lost > 0) })
    })?;
    Ok(Gaps::new(from, all.collect::<rusqlite::Result<_>>()?))
}

/// Turns the error of a query without rows into this value.
pub(super) fn none_is<T>(value: T) -> impl FnOnce(rusqlite::Error) -> rusqlite::Result<T> {
    |error| match error {
        rusqlite::Error::QueryReturnedNoRows => Ok(value),
        error => Err(error),
    }
}
