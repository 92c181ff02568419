//! A pool of connections for reading. Each read uses one of them on a blocking thread.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::super::{DamagedRecord, OpenError, ReadError};
use super::reader::{Reader, store};
use super::shared_bodies::SharedBodies;
use super::{SqliteInner, db, opening, schema};
use crate::lock::lock;

/// How long to wait for running reads before the file is opened again without waiting for them.
const DRAIN: Duration = Duration::from_secs(2);

/// The pool of connections for reading.
pub(super) struct ReaderPool {
    path: PathBuf,
    turns: Arc<Semaphore>,
    count: usize,
    idle: Arc<Mutex<Vec<Reader>>>,
    long_bodies: SharedBodies,
    damaged: Damaged,
}

/// The damaged records that were found, each counted once.
#[derive(Clone)]
struct Damaged {
    found: Arc<Mutex<HashSet<DamagedRecord>>>,
    count: Arc<AtomicU64>,
}

/// The most damaged records that are counted. With more, the exact number does not matter.
const MOST_DAMAGED: usize = 10_000;

impl Damaged {
    fn note(&self, record: &DamagedRecord) {
        let mut found = lock(&self.found);
        if found.len() < MOST_DAMAGED {
            found.insert(record.clone());
        }
        self.count.store(found.len() as u64, Relaxed);
    }
}

impl ReaderPool {
    /// A pool of at most so many connections to a file. Damaged records are counted in `damaged`.
    pub(super) fn new(path: PathBuf, count: usize, damaged: Arc<AtomicU64>, long_bodies: SharedBodies) -> Self {
        let count = count.max(1);
        let damaged = Damaged { found: Arc::default(), count: damaged };
        Self { path, turns: Arc::new(Semaphore::new(count)), count, idle: Arc::default(), long_bodies, damaged }
    }

    /// Runs one read on a connection of its own.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let Ok(turn) = self.turns.clone().acquire_owned().await else { return Err(ReadError::Closed) };
        let (idle, path, damaged) = (self.idle.clone(), self.path.clone(), self.damaged.clone());
        let long_bodies = self.long_bodies.clone();
        let read = move || {
            let free = lock(&idle).pop();
            let reader = match free {
                Some(reader) => reader,
                None => Reader::new(db::open_reader(&path).map_err(store)?, long_bodies),
            };
            let result = work(&reader);
            if let Err(ReadError::Damaged(record)) = &result {
                damaged.note(record);
            }
            // After an error of the store the connection may have outdated pages.
            if !matches!(result, Err(ReadError::Store(_))) {
                lock(&idle).push(reader);
            }
            drop(turn);
            result
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(ReadError::Store(error.to_string())))
    }

    /// Waits for running reads and closes all connections. While the returned permit lives, no new ones are opened.
    pub(super) fn pause(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let all = u32::try_from(self.count).unwrap_or(u32::MAX);
        let begun = std::time::Instant::now();
        let turns = loop {
            match self.turns.clone().try_acquire_many_owned(all) {
                Ok(turns) => break Some(turns),
                Err(_) if begun.elapsed() > DRAIN => break None,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        lock(&self.idle).clear();
        turns
    }

    /// Loads what readers share, for a log without a writer.
    pub(super) fn load(&self, shared: &SqliteInner, path: &Path) -> Result<(), OpenError> {
        let connection = db::open_reader(path).map_err(|error| opening(path, error))?;
        let found = schema::check(&connection, path)?;
        if found == 0 {
            return Err(OpenError::Missing(path.to_path_buf()));
        }
        // Version 2 can be read: it only has no gaps.
        if found < 2 {
            let source = format!("version {found} has to be opened for writing once").into();
            return Err(OpenError::Store { path: path.to_path_buf(), source });
        }
        let reader = Reader::new(connection, self.long_bodies.clone());
        let outline = reader.outline().map_err(|error| opening(path, error))?;
        let last = outline.last;
        shared.recent_mut().reset(outline);
        shared.last.send_replace(last);
        Ok(())
    }
}
