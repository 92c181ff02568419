//! The writer's thread: takes what queued up, makes it durable, shows it, answers. And what it does when that fails.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::super::{Health, OpenError, Seq};
use super::chores::{self, Chore};
use super::db::{Db, Failure};
use super::files::Files;
use super::group::{group, refuse};
use super::queue::{Job, Work};
use super::{Shared, record};

/// The wait before a second attempt to open the store again, and the longest between later ones.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Opens the database and starts the thread.
pub(super) fn start(shared: &Arc<Shared>, files: Files, lock: File) -> Result<(), OpenError> {
    let path = files.database();
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| OpenError::Store { path: path.clone(), source };
    let mut db = Db::open(&files, &shared.options)?;
    // Its sync also makes durable what a killed writer had written and not synced: it is visible from now on.
    let epoch = db.take_over().map_err(|failure| match failure {
        Failure::Full => OpenError::Full(path.clone()),
        failure => failed(format!("{failure:?}").into()),
    })?;
    files.sync_names().map_err(|error| failed(error.into()))?;
    let chores = chores::unfinished(&db).map_err(|failure| failed(format!("{failure:?}").into()))?;
    show(shared, &db);
    let writer = Writer { shared: shared.clone(), files, epoch, state: State::Up(Box::new(db)), chores };
    let ending = Ending { shared: shared.clone(), lock: Some(lock) };
    let run = move || {
        let ending = ending;
        writer.run();
        drop(ending);
    };
    std::thread::Builder::new().name("log".into()).spawn(run).map_err(|error| failed(error.into()))?;
    Ok(())
}

/// What is true when the thread ends, however it ends: the lock is free, and nobody waits in vain.
struct Ending {
    shared: Arc<Shared>,
    lock: Option<File>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        drop(self.lock.take());
        self.shared.queue.close();
        while let Work::Jobs(jobs) = self.shared.queue.take(Some(Duration::ZERO)) {
            drop(jobs);
        }
        self.shared.health.send_replace(Health::Closed);
    }
}

struct Writer {
    shared: Arc<Shared>,
    files: Files,
    epoch: u64,
    state: State,
    chores: VecDeque<Chore>,
}

enum State {
    Up(Box<Db>),
    /// Nothing is acknowledged until the store has been opened again.
    Down {
        failure: Failure,
        retry: Instant,
        wait: Duration,
    },
    /// It will not be.
    Over(Failure),
}

impl Writer {
    fn run(mut self) {
        loop {
            self.upkeep();
            let wait = match &self.state {
                State::Up(_) if self.chores.is_empty() => None,
                State::Up(_) => Some(Duration::ZERO),
                State::Down { retry, .. } => Some(retry.saturating_duration_since(Instant::now())),
                State::Over(_) => None,
            };
            let work = self.shared.queue.take(wait);
            self.shared.metrics.queued_bytes.store(self.shared.queue.used(), Relaxed);
            match work {
                Work::Jobs(jobs) => self.work(jobs),
                Work::Idle => {}
                Work::Closed if matches!(self.state, State::Up(_)) && !self.chores.is_empty() => {}
                Work::Closed => break,
            }
        }
        if let State::Up(db) = &self.state {
            // All is durable already; this makes the next start short. If it fails, the next start does it.
            drop(db.checkpoint("PASSIVE", &self.shared.metrics));
        }
    }

    fn work(&mut self, mut jobs: Vec<Job>) {
        let failure = match &mut self.state {
            State::Up(db) => {
                let shared = &self.shared;
                let single = match jobs.pop() {
                    Some(job @ (Job::Append { .. } | Job::Save { .. })) => {
                        jobs.push(job);
                        None
                    }
                    job => job,
                };
                let done = match single {
                    None => group(db, shared, jobs),
                    Some(job) => chores::start(db, shared, job).map(|chore| self.chores.extend(chore)),
                };
                match done {
                    Ok(()) => return,
                    Err(failure) => failure,
                }
            }
            State::Down { failure, .. } | State::Over(failure) => {
                jobs.into_iter().for_each(|job| refuse(job, failure));
                return;
            }
        };
        self.fail(failure);
    }

    /// One step of what can wait.
    fn upkeep(&mut self) {
        let done = match &mut self.state {
            State::Up(db) => {
                let step = chores::step(db, &self.shared, &mut self.chores);
                step.and_then(|()| db.checkpoint_if_long(&self.shared.metrics))
            }
            State::Down { retry, wait, .. } if *retry <= Instant::now() => {
                let wait = *wait;
                return self.recover(wait);
            }
            _ => return,
        };
        if let Err(failure) = done {
            self.fail(failure);
        }
    }

    /// Stops acknowledging. The connection is dropped with whatever it had open.
    fn fail(&mut self, failure: Failure) {
        self.shared.metrics.failures.fetch_add(1, Relaxed);
        tracing::error!(?failure, "the log stops acknowledging");
        self.shared.announce(&failure);
        for chore in self.chores.drain(..) {
            chore.refuse(&failure);
        }
        self.state = match failure {
            Failure::Fenced => State::Over(failure),
            failure => State::Down { failure, retry: Instant::now(), wait: FIRST_WAIT },
        };
    }

    /// Opens the store again, and looks whether everything acknowledged is there. A sync that failed is never repeated:
    /// the system may have dropped what it could not write, and would say that all is well. Instead all that the
    /// write-ahead log has is written anew, into the database.
    fn recover(&mut self, wait: Duration) {
        let readers = self.shared.readers.pause();
        if readers.is_some() {
            self.files.forget_cached();
        }
        match self.reopen() {
            Ok((db, chores)) => {
                let lost = lost(&db, &self.shared);
                self.state = match lost {
                    Ok(None) => {
                        show(&self.shared, &db);
                        self.chores = chores;
                        self.shared.metrics.recoveries.fetch_add(1, Relaxed);
                        tracing::info!("the log acknowledges again");
                        self.shared.health.send_replace(Health::Good);
                        State::Up(Box::new(db))
                    }
                    Ok(Some(seq)) => {
                        tracing::error!(seq, "the log lost what it had acknowledged");
                        self.shared.health.send_replace(Health::Lost { seq });
                        State::Over(Failure::Store("acknowledged entries are lost".into()))
                    }
                    Err(failure) => self.down(failure, wait),
                };
            }
            Err(Failure::Fenced) => {
                self.shared.health.send_replace(Health::Fenced);
                self.state = State::Over(Failure::Fenced);
            }
            Err(failure) => self.state = self.down(failure, wait),
        }
    }

    fn down(&self, failure: Failure, wait: Duration) -> State {
        tracing::warn!(?failure, "the log does not open again yet");
        self.shared.announce(&failure);
        State::Down { failure, retry: Instant::now() + wait, wait: (wait * 2).min(LONGEST_WAIT) }
    }

    fn reopen(&self) -> Result<(Db, VecDeque<Chore>), Failure> {
        let mut db = Db::open(&self.files, &self.shared.options).map_err(|error| match error {
            OpenError::Full(_) => Failure::Full,
            error => Failure::Store(error.to_string()),
        })?;
        db.resume(self.epoch)?;
        if !db.truncate_wal(&self.shared.metrics)? {
            return Err(Failure::Store("a reader holds on to the old state".into()));
        }
        let chores = chores::unfinished(&db)?;
        Ok((db, chores))
    }
}

/// Shows readers the log as it was opened.
fn show(shared: &Shared, db: &Db) {
    let names = db.channels.values().map(|channel| (channel.id, channel.uri.clone())).collect();
    let trimmed = db.channels.values().filter(|channel| channel.trimmed > 0);
    let trims: HashMap<_, _> = trimmed.map(|channel| (channel.uri.clone(), channel.trimmed)).collect();
    shared.recent_mut().reset(db.next - 1, names, trims);
    shared.last.send_replace(db.next - 1);
    shared.metrics.store_bytes.store(db.used().map_or(0, |(bytes, _)| bytes), Relaxed);
}

/// The first acknowledged entry that the store does not have as it was written, of those still in memory.
fn lost(db: &Db, shared: &Shared) -> Result<Option<Seq>, Failure> {
    let last = *shared.last.borrow();
    let mut query = db.connection.prepare("SELECT channel, at, crc, about, body FROM entry WHERE seq = ?1")?;
    for entry in shared.recent().entries() {
        let Some(channel) = db.channels.get(&entry.channel) else { continue };
        let same = query.query_row([entry.seq], |row| {
            let (id, at, crc): (i64, u64, u32) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (about, body): (Option<String>, _) = (row.get(3)?, record::blob(row.get_ref(4)?));
            let sum = record::entry_sum(entry.seq, id, at, about.as_deref(), body);
            Ok(id == channel.id && crc == sum && *body == *entry.body)
        });
        let same = same.or_else(super::db::none_is(entry.seq <= channel.trimmed))?;
        if !same {
            return Ok(Some(entry.seq));
        }
    }
    Ok((db.next <= last).then_some(last))
}
