//! The reserve: disk space that the log holds for the time when the disk is full.
//!
//! A disk is often full because another program goes on writing, and then whatever the log gives back is gone at once. So the
//! log asks a full disk for nothing:
//!
//! - The write-ahead log has its whole length from the beginning, and keeps it.
//! - Behind the end of the database as many bytes are allocated, so that everything committed finds its place in the database.
//!   The disk counts as full when that is not possible.
//! - Rows of zeros take up space inside the database. When the disk is full they are deleted, and what is appended then, or written to
//!   erase and to compact, uses their pages. So the database does not grow.

use std::cell::Cell;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Metrics;
use super::db::{Db, Failure};
use super::files::{self, LogFiles};

/// The longest batch that is appended while the disk is full, and the share that it may have of what is left.
const SMALL: u64 = 64 << 10;
const SHARE: u64 = 64;
/// How often a full disk is checked, and how long after the start the rows are made: the host begins to serve first.
const LOOK: Duration = Duration::from_secs(2);
/// Bytes of one row.
const ROW: u64 = 512 << 10;

/// The reserve of a log.
pub(super) struct Reserve {
    bytes: u64,
    state: ReserveState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReserveState {
    /// The rows are there, or none are wanted.
    Held,
    /// The disk has space for the rows, and they are made at this time.
    Planned(Instant),
    /// The disk is full. At this time it is looked at again.
    Released(Instant),
}

impl Reserve {
    /// The reserve of a log that was just opened.
    pub(super) fn find(db: &Db, files: &LogFiles) -> Result<Self, Failure> {
        let bytes = db.options().reserve_bytes;
        let state = if bytes == 0 || db.reserve_rows()? == rows(bytes) {
            ReserveState::Held
        } else if has_space(files, bytes) {
            ReserveState::Planned(Instant::now() + LOOK)
        } else {
            ReserveState::Released(Instant::now())
        };
        if bytes > 0 {
            files.make_spare();
            db.make_room_behind()?;
        }
        Ok(Self { bytes, state })
    }

    /// Whether the disk is full, as far as this knows.
    pub(super) const fn is_released(&self) -> bool {
        matches!(self.state, ReserveState::Released(_))
    }

    /// When to [`look`](Self::look) next.
    pub(super) fn due(&self) -> Option<Duration> {
        match self.state {
            ReserveState::Held => None,
            ReserveState::Planned(at) | ReserveState::Released(at) => {
                Some(at.saturating_duration_since(Instant::now()))
            }
        }
    }

    /// Whether the log has so little room that only small batches are appended.
    pub(super) fn is_short(&self, db: &Db) -> bool {
        self.is_released() && db.free() < self.bytes
    }

    /// Bytes that may be appended now, and the longest batch of them. On a full disk, the less is left, the shorter that is: so a
    /// client can always still dispose of a session.
    pub(super) fn allowance(&self, db: &Db) -> (u64, u64) {
        if !self.is_released() {
            return (u64::MAX, u64::MAX);
        }
        let bytes = db.free().saturating_sub(self.bytes / 4);
        (bytes, if self.is_short(db) { SMALL.min(bytes / SHARE) } else { bytes })
    }

    /// Makes the rows if it is time and the disk has space for them. Releases them if the disk has become full.
    pub(super) fn look(&mut self, db: &Db, files: &LogFiles, metrics: &Metrics) -> Result<(), Failure> {
        if !self.is_released() && db.lacks_room_behind() {
            return self.release(db, metrics);
        }
        if self.due().is_none_or(|wait| wait > Duration::ZERO) {
            return Ok(());
        }
        if !has_space(files, self.bytes) {
            return self.release(db, metrics);
        }
        files.make_spare();
        self.state = ReserveState::Planned(Instant::now());
        db.set_lacks_room_behind(false);
        match db.make_reserve(self.bytes, metrics) {
            Ok(()) if !db.lacks_room_behind() => {
                self.state = ReserveState::Held;
                Ok(())
            }
            Ok(()) | Err(Failure::Full) => self.release(db, metrics),
            Err(failure) => Err(failure),
        }
    }

    /// Makes [`look`](Self::look) look at once: a job may have freed space.
    pub(super) fn look_now(&mut self) {
        if let ReserveState::Released(at) = &mut self.state {
            *at = Instant::now();
        }
    }

    /// Makes the rows free pages of the database. To be called when the disk is full.
    pub(super) fn release(&mut self, db: &Db, metrics: &Metrics) -> Result<(), Failure> {
        if self.bytes > 0 {
            self.state = ReserveState::Released(Instant::now() + LOOK);
            db.set_lacks_room_behind(true);
            db.release_reserve(metrics)?;
        }
        Ok(())
    }
}

/// Whether the disk has space for the rows, and as much beside them.
fn has_space(files: &LogFiles, bytes: u64) -> bool {
    files.free_bytes().is_none_or(|free| free >= bytes.saturating_mul(2))
}

const fn rows(bytes: u64) -> u64 {
    bytes.div_ceil(ROW)
}

/// Allocated bytes behind the end of the database: room for what is in the write-ahead log only.
pub(super) struct RoomBehind {
    /// To be closed only when no connection is open: closing a file releases SQLite's locks on it.
    file: Arc<File>,
    /// The disk was too full to allocate them.
    is_missing: Cell<bool>,
}

impl RoomBehind {
    pub(super) const fn new(file: Arc<File>, is_missing: bool) -> Self {
        Self { file, is_missing: Cell::new(is_missing) }
    }
}

impl Db {
    /// Allocates room behind the end of the database. SQLite releases it whenever it has moved the whole write-ahead log.
    pub(super) fn make_room_behind(&self) -> Result<(), Failure> {
        let Some(room) = &self.room_behind else { return Ok(()) };
        if room.is_missing.get() {
            return Ok(());
        }
        let (bytes, _) = self.used()?;
        match files::allocate_behind(&room.file, bytes.saturating_add(self.options().wal_bytes)).map_err(Failure::from)
        {
            Err(Failure::Full) => room.is_missing.set(true),
            done => done?,
        }
        Ok(())
    }

    /// Whether the disk is too full for that, and this is not tried any more.
    pub(super) fn lacks_room_behind(&self) -> bool {
        self.room_behind.as_ref().is_some_and(|room| room.is_missing.get())
    }

    fn set_lacks_room_behind(&self, is_missing: bool) {
        if let Some(room) = &self.room_behind {
            room.is_missing.set(is_missing);
        }
    }

    /// How many rows the reserve has.
    fn reserve_rows(&self) -> Result<u64, Failure> {
        let count = "SELECT count(*) FROM piece WHERE id < 0 AND length(body) = ?1";
        Ok(self.connection.query_row(count, [ROW], |row| row.get(0))?)
    }

    /// Bytes of the database in use, without the reserve.
    pub(super) fn used_by_entries(&self) -> Result<u64, Failure> {
        Ok(self.used()?.1.saturating_sub(self.reserve_rows()?.saturating_mul(ROW)))
    }

    /// Makes the rows of the reserve that are missing.
    fn make_reserve(&self, bytes: u64, metrics: &Metrics) -> Result<(), Failure> {
        for row in 1..=rows(bytes) {
            let id = 0_i64.saturating_sub_unsigned(row);
            self.connection.execute("INSERT OR IGNORE INTO piece VALUES (?1, zeroblob(?2))", (id, ROW))?;
            self.checkpoint_if_long(metrics)?;
        }
        self.checkpoint("PASSIVE", metrics).map(drop)
    }

    /// Deletes the rows of the reserve. Each in a transaction of its own that fits into the write-ahead log, because deleted bytes
    /// are overwritten.
    fn release_reserve(&self, metrics: &Metrics) -> Result<(), Failure> {
        while self.reserve_rows()? > 0 {
            self.checkpoint("PASSIVE", metrics)?;
            self.connection.execute("DELETE FROM piece WHERE id = (SELECT min(id) FROM piece WHERE id < 0)", [])?;
        }
        self.checkpoint("PASSIVE", metrics).map(drop)
    }
}
