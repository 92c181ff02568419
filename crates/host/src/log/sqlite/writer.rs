//! The writer thread: takes jobs from the queue, makes them durable and visible, answers them; and recovers from failures.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::super::admission;
use super::super::queue::{Append, ExclusiveJob, QueueItem, SharedJob, TakeMode};
use super::super::{LogHealth, OpenError, Seq};
use super::commit::Commit;
use super::db::{Db, Failure};
use super::files::{LogFiles, private};
use super::group_commit::{Large, group_commit, refuse, refuse_exclusive};
use super::pieces::{self, StagedBatch};
use super::reader::Outline;
use super::removal::{self, Removal};
use super::reserve::{Reserve, RoomBehind};
use super::{SqliteInner, record};

/// The wait before the second attempt to reopen the store, and the longest wait between later ones.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Opens the database and starts the thread.
pub(super) fn start(shared: &Arc<SqliteInner>, files: LogFiles, lock: File) -> Result<(), OpenError> {
    let path = files.database();
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| OpenError::Store { path: path.clone(), source };
    let unusable = |failure| match failure {
        Failure::Full => OpenError::Full(path.clone()),
        Failure::Unreadable(_) => OpenError::Damaged { path: path.clone() },
        failure => failed(format!("{failure:?}").into()),
    };
    let open = || {
        let mut db = Db::open_or_salvage(&files, &shared.options)?;
        // A writer that was killed leaves a write-ahead log that only grows, which needs space on the disk. Once all of it is in
        // the database, the next transaction begins at its start. If this fails, the disk may still have that space.
        if let Err(failure) = db.checkpoint("PASSIVE", &shared.metrics) {
            tracing::debug!(?failure, "the write-ahead log of an earlier run stays as it is");
        }
        // Its sync also makes durable what a killed writer wrote without a sync: that is visible from now on.
        let epoch = db.take_over().map_err(unusable)?;
        Ok((db, epoch))
    };
    let mut opened = open();
    while matches!(opened, Err(OpenError::Full(_))) && files.give_up_some_spare() {
        opened = open();
    }
    let (mut db, epoch) = opened?;
    let file = Arc::new(private(&files.database()).map_err(|error| failed(error.into()))?);
    if shared.options.reserve_bytes > 0 {
        db.room_behind = Some(RoomBehind::new(Arc::clone(&file), false));
    }
    files.sync_names().map_err(|error| failed(error.into()))?;
    if let Err(failure) = pieces::sweep(&db, &shared.metrics) {
        tracing::warn!(?failure, "pieces of an interrupted batch stay in the log until it is opened again");
    }
    let removals = removal::unfinished(&db).map_err(unusable)?;
    show(shared, &db);
    let reserve = Reserve::find(&db, &files).map_err(unusable)?;
    let mut writer = Writer {
        shared: shared.clone(),
        files,
        epoch,
        state: StoreState::Up(Box::new(db)),
        removals,
        staging: None,
        reserve,
        kept_open: vec![file],
    };
    writer.look_at_reserve().map_err(unusable)?;
    let ending = CloseOnExit { shared: shared.clone(), lock: Some(lock) };
    let run = move || {
        let ending = ending;
        writer.run();
        drop(ending);
    };
    std::thread::Builder::new().name("log".into()).spawn(run).map_err(|error| failed(error.into()))?;
    Ok(())
}

/// Releases the lock and fails all waiting jobs when the thread ends, even by a panic.
struct CloseOnExit {
    shared: Arc<SqliteInner>,
    lock: Option<File>,
}

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        drop(self.lock.take());
        self.shared.queue.close();
        while !matches!(
            self.shared.queue.take(Some(Duration::ZERO), TakeMode::All),
            QueueItem::Idle | QueueItem::Closed
        ) {}
        self.shared.health.send_replace(LogHealth::Closed);
    }
}

struct Writer {
    shared: Arc<SqliteInner>,
    files: LogFiles,
    epoch: u64,
    state: StoreState,
    removals: VecDeque<Removal>,
    /// The batch that is being written in pieces. `None` while the store is down.
    staging: Option<Box<StagedBatch>>,
    reserve: Reserve,
    /// The database as a file, to be closed only when no connection is open: closing a file releases SQLite's locks on it.
    kept_open: Vec<Arc<File>>,
}

enum StoreState {
    Up(Box<Db>),
    /// Nothing is acknowledged until the store is open again.
    Down {
        failure: Failure,
        retry: Instant,
        wait: Duration,
    },
    /// The store is not opened again.
    Over(Failure),
}

impl Writer {
    fn run(mut self) {
        loop {
            self.upkeep();
            let wait = match &self.state {
                StoreState::Up(_) if self.removals.is_empty() && self.staging.is_none() => self.reserve.due(),
                StoreState::Up(_) => Some(Duration::ZERO),
                StoreState::Down { retry, .. } => Some(retry.saturating_duration_since(Instant::now())),
                StoreState::Over(_) => None,
            };
            let take = if self.staging.is_none() { TakeMode::All } else { TakeMode::NoLarge };
            let work = self.shared.queue.take(wait, take);
            self.shared.metrics.queued_bytes.store(self.shared.queue.used(), Relaxed);
            match work {
                QueueItem::Jobs(jobs) => self.work(jobs),
                QueueItem::Large(append) => self.begin_large(append),
                QueueItem::ExclusiveJob(job) => self.exclusive(job),
                // No other jobs wait: write the next piece.
                QueueItem::Idle | QueueItem::Closed if self.staging.is_some() => self.work(Vec::new()),
                QueueItem::Idle => {}
                QueueItem::Closed if matches!(self.state, StoreState::Up(_)) && !self.removals.is_empty() => {}
                QueueItem::Closed => break,
            }
        }
        if let StoreState::Up(db) = &self.state {
            // Everything is durable already. This makes the next start faster; if it fails, the next start does it.
            drop(db.checkpoint("PASSIVE", &self.shared.metrics));
        }
    }

    /// Makes or releases the reserve, as the disk has space, and updates the health.
    fn look_at_reserve(&mut self) -> Result<(), Failure> {
        let StoreState::Up(db) = &self.state else { return Ok(()) };
        let was_released = self.reserve.is_released();
        self.reserve.look(db, &self.files, &self.shared.metrics)?;
        if self.reserve.is_released()
            && let Some(large) = self.staging.take_if(|_| !was_released)
        {
            let (append, stored) = large.finish();
            refuse(SharedJob::Append(append), &Failure::Full);
            pieces::remove(&db.connection, &stored)?;
        }
        let health = if self.reserve.is_short(db) { LogHealth::Full } else { LogHealth::Good };
        let changed = self.shared.health.send_if_modified(|known| std::mem::replace(known, health.clone()) != health);
        if changed && health == LogHealth::Full {
            tracing::error!(
                "the disk is full: the log takes little more until there is room again; free some space, or erase sessions"
            );
        } else if changed {
            tracing::info!("the log takes everything again");
        }
        Ok(())
    }

    /// Refuses jobs that are too large for a full disk; returns the others.
    fn refuse_excess(&self, jobs: Vec<SharedJob>) -> Vec<SharedJob> {
        let StoreState::Up(db) = &self.state else { return jobs };
        if !self.reserve.is_released() {
            return jobs;
        }
        let (mut bytes, longest) = self.reserve.allowance(db);
        let allows = |job: &SharedJob| {
            let cost = job.cost() as u64;
            let allows = cost <= longest && cost <= bytes;
            if allows {
                bytes -= cost;
            }
            allows
        };
        let (kept, refused): (Vec<_>, Vec<_>) = jobs.into_iter().partition(allows);
        refused.into_iter().for_each(|job| refuse(job, &Failure::Full));
        kept
    }

    /// One transaction: these jobs, and a piece of a large batch if there is one.
    fn work(&mut self, jobs: Vec<SharedJob>) {
        let jobs = self.refuse_excess(jobs);
        if jobs.is_empty() && self.staging.is_none() {
            return;
        }
        let db = match &mut self.state {
            StoreState::Up(db) => db,
            StoreState::Down { failure, .. } | StoreState::Over(failure) => {
                return jobs.into_iter().for_each(|job| refuse(job, failure));
            }
        };
        let written = self.staging.take_if(|staging| !staging.has_more());
        let large = match (written, &mut self.staging) {
            (Some(staging), _) => {
                let (append, stored) = staging.finish();
                Large::Last(append, stored)
            }
            (None, Some(staging)) => Large::Piece(staging),
            (None, None) => Large::None,
        };
        if let Err(failure) = group_commit(db, &self.shared, jobs, large) {
            self.fail(failure);
        }
    }

    /// Begins to write a large batch in pieces, unless it would be refused.
    fn begin_large(&mut self, append: Append) {
        let takes = match &mut self.state {
            StoreState::Up(db) if admission::cost(&append.batch) as u64 > self.reserve.allowance(db).1 => Ok(false),
            StoreState::Up(db) => {
                Commit::begin(db, &self.shared.metrics).and_then(|commit| commit.would_take(&append.batch))
            }
            StoreState::Down { .. } | StoreState::Over(_) => Ok(false),
        };
        match takes {
            Ok(true) => self.staging = Some(Box::new(StagedBatch::new(append))),
            Ok(false) => self.work(vec![SharedJob::Append(append)]),
            Err(failure) => {
                refuse(SharedJob::Append(append), &failure);
                self.fail(failure);
            }
        }
    }

    /// Does or begins an exclusive job. A large batch starts again after it, because its pieces may belong to a session that is
    /// erased now.
    fn exclusive(&mut self, job: ExclusiveJob) {
        let db = match &mut self.state {
            StoreState::Up(db) => db,
            StoreState::Down { failure, .. } | StoreState::Over(failure) => return refuse_exclusive(job, failure),
        };
        let large = self.staging.take().map(|staging| staging.finish());
        let discarded = match &large {
            Some((_, stored)) => pieces::remove(&db.connection, stored).map_err(Failure::from),
            None => Ok(()),
        };
        let done = match discarded {
            Ok(()) => removal::start(db, &self.shared, job).map(|removal| self.removals.extend(removal)),
            Err(failure) => {
                refuse_exclusive(job, &failure);
                Err(failure)
            }
        };
        match (done, large) {
            (Ok(()), large) => {
                self.reserve.look_now();
                if let Some((append, _)) = large {
                    self.begin_large(append);
                }
            }
            (Err(failure), large) => {
                if let Some((append, _)) = large {
                    refuse(SharedJob::Append(append), &failure);
                }
                self.fail(failure);
            }
        }
    }

    /// Does one step of a removal, a checkpoint, or a recovery.
    fn upkeep(&mut self) {
        let done = match &mut self.state {
            StoreState::Up(db) => {
                // A step may write more than the write-ahead log has left, and on a full disk that cannot grow.
                let ready = match self.reserve.is_released() && !self.removals.is_empty() {
                    true => db.checkpoint("PASSIVE", &self.shared.metrics).map(drop),
                    false => Ok(()),
                };
                let step = ready.and_then(|()| removal::step(db, &self.shared, &mut self.removals));
                let done = step.and_then(|()| db.checkpoint_if_long(&self.shared.metrics));
                done.and_then(|()| self.look_at_reserve())
            }
            StoreState::Down { retry, wait, .. } if *retry <= Instant::now() => {
                let wait = *wait;
                return self.recover(wait);
            }
            _ => return,
        };
        if let Err(failure) = done {
            self.fail(failure);
        }
    }

    /// Stops acknowledging. The connection is dropped with its open transaction.
    fn fail(&mut self, failure: Failure) {
        self.shared.metrics.failures.fetch_add(1, Relaxed);
        tracing::error!(?failure, "the log stops acknowledging");
        self.shared.announce(&failure);
        for removal in self.removals.drain(..) {
            removal.refuse(&failure);
        }
        if let Some(staging) = self.staging.take() {
            refuse(SharedJob::Append(staging.finish().0), &failure);
        }
        self.state = match failure {
            Failure::Fenced => StoreState::Over(failure),
            failure => StoreState::Down { failure, retry: Instant::now(), wait: FIRST_WAIT },
        };
    }

    /// Reopens the store, and checks whether it has everything that was acknowledged. A sync that failed is never repeated: the
    /// system may have dropped what it could not write, and would then report success. Instead the whole write-ahead log is
    /// written again, into the database.
    fn recover(&mut self, wait: Duration) {
        let readers = self.shared.readers.pause();
        if readers.is_some() {
            self.kept_open.clear();
            self.files.forget_cached();
        }
        let mut is_full = matches!(self.state, StoreState::Down { failure: Failure::Full, .. });
        let mut reopened = self.reopen();
        while matches!(reopened, Err(Failure::Full)) && self.files.give_up_some_spare() {
            is_full = true;
            reopened = self.reopen();
        }
        if is_full && let Ok((db, _)) = &reopened {
            let released = self.reserve.release(db, &self.shared.metrics);
            reopened = released.and(reopened);
        }
        match reopened {
            Ok((db, removals)) => {
                let lost = lost(&db, &self.shared);
                self.state = match lost {
                    Ok(None) => {
                        show(&self.shared, &db);
                        self.removals = removals;
                        self.shared.metrics.recoveries.fetch_add(1, Relaxed);
                        tracing::info!("the log acknowledges again");
                        self.state = StoreState::Up(Box::new(db));
                        if let Err(failure) = self.look_at_reserve() {
                            self.fail(failure);
                        }
                        return;
                    }
                    Ok(Some(seq)) => {
                        tracing::error!(seq, "the log has lost entries that it had acknowledged");
                        self.shared.health.send_replace(LogHealth::Lost { seq });
                        StoreState::Over(Failure::Store("acknowledged entries are lost".into()))
                    }
                    Err(failure) => self.down(failure, wait),
                };
            }
            Err(Failure::Fenced) => {
                self.shared.health.send_replace(LogHealth::Fenced);
                self.state = StoreState::Over(Failure::Fenced);
            }
            Err(failure) => self.state = self.down(failure, wait),
        }
    }

    fn down(&self, failure: Failure, wait: Duration) -> StoreState {
        tracing::warn!(?failure, "the log does not open again yet");
        self.shared.announce(&failure);
        StoreState::Down { failure, retry: Instant::now() + wait, wait: (wait * 2).min(LONGEST_WAIT) }
    }

    fn reopen(&mut self) -> Result<(Db, VecDeque<Removal>), Failure> {
        let is_unreadable = matches!(self.state, StoreState::Down { failure: Failure::Unreadable(_), .. });
        let open = if is_unreadable { Db::open_salvaged } else { Db::open_or_salvage };
        let mut db = open(&self.files, &self.shared.options).map_err(|error| match error {
            OpenError::Full(_) => Failure::Full,
            error => Failure::Store(error.to_string()),
        })?;
        if self.shared.options.reserve_bytes > 0 {
            let file = Arc::new(private(&self.files.database())?);
            self.kept_open.push(Arc::clone(&file));
            db.room_behind = Some(RoomBehind::new(file, self.reserve.is_released()));
        }
        // The next transaction begins at the start of the write-ahead log, which cannot grow if the disk is full.
        db.checkpoint("PASSIVE", &self.shared.metrics)?;
        db.resume(self.epoch)?;
        if !db.empty_wal(&self.shared.metrics)? {
            return Err(Failure::Store("a reader still uses the old write-ahead log".into()));
        }
        if let Err(failure) = pieces::sweep(&db, &self.shared.metrics) {
            tracing::warn!(?failure, "pieces of an interrupted batch stay in the log until it is opened again");
        }
        let removals = removal::unfinished(&db)?;
        Ok((db, removals))
    }
}

/// Resets what readers share to the log as it was opened.
fn show(shared: &SqliteInner, db: &Db) {
    let names = db.channels.values().map(|channel| (channel.id, channel.uri.clone())).collect();
    let trimmed = db.channels.values().filter(|channel| channel.trimmed > 0);
    let trims: HashMap<_, _> = trimmed.map(|channel| (channel.uri.clone(), channel.trimmed)).collect();
    shared.recent_mut().reset(Outline { last: db.last, names, trims, gaps: db.gaps.clone() });
    shared.last.send_replace(db.last);
    shared.metrics.store_bytes.store(db.used().map_or(0, |(bytes, _)| bytes), Relaxed);
}

/// The first acknowledged entry that the store lacks or has damaged, among those that are still in memory.
fn lost(db: &Db, shared: &SqliteInner) -> Result<Option<Seq>, Failure> {
    let last = *shared.last.borrow();
    let mut query = db.connection.prepare("SELECT channel, at, crc, about, body FROM entry WHERE seq = ?1")?;
    for entry in shared.recent().window.entries() {
        let Some(channel) = db.channels.get(&entry.channel) else { continue };
        let same = query.query_row([entry.seq], |row| {
            let (id, at, crc): (i64, u64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (about, body): (Option<String>, _) = (row.get(3)?, pieces::body(&db.connection, row, 4, None)?);
            let sum = record::entry_sum(entry.seq, id, at, about.as_deref(), body.bytes());
            Ok(id == channel.id && crc == i64::from(sum) && *body.bytes() == *entry.body)
        });
        let same = same.or_else(super::db::none_is(entry.seq <= channel.trimmed))?;
        if !same {
            return Ok(Some(entry.seq));
        }
    }
    Ok((db.last < last).then_some(last))
}
