//! Connections for reading: a few, each lent for one page, away from the async runtime.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::super::{OpenError, ReadError};
use super::reader::{Reader, store};
use super::{Shared, db, opening, schema};
use crate::lock::lock;

/// How long a page may take to end before the file is opened again without waiting for it.
const DRAIN: Duration = Duration::from_secs(2);

/// Connections for reading.
pub(super) struct Readers {
    path: PathBuf,
    turns: Arc<Semaphore>,
    count: usize,
    idle: Arc<Mutex<Vec<Reader>>>,
}

impl Readers {
    pub(super) fn new(path: PathBuf, count: usize) -> Self {
        let count = count.max(1);
        Self { path, turns: Arc::new(Semaphore::new(count)), count, idle: Arc::default() }
    }

    /// Runs one read on a connection of its own.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let Ok(turn) = self.turns.clone().acquire_owned().await else { return Err(ReadError::Closed) };
        let (idle, path) = (self.idle.clone(), self.path.clone());
        let read = move || {
            let free = lock(&idle).pop();
            let reader = match free {
                Some(reader) => reader,
                None => Reader::new(db::open_reader(&path).map_err(store)?),
            };
            let result = work(&reader);
            // After an error of the store the connection may hold what is no longer true.
            if !matches!(result, Err(ReadError::Store(_))) {
                lock(&idle).push(reader);
            }
            drop(turn);
            result
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(ReadError::Store(error.to_string())))
    }

    /// Closes all connections, when their pages are read, and returns what keeps new ones from being opened.
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

    /// Fills what readers share, for a log without a writer.
    pub(super) fn load(&self, shared: &Shared, path: &Path) -> Result<(), OpenError> {
        let connection = db::open_reader(path).map_err(|error| opening(path, error))?;
        let found = schema::check(&connection, path)?;
        if found == 0 {
            return Err(OpenError::Missing(path.to_path_buf()));
        }
        if found != schema::VERSION {
            let source = format!("version {found} has to be opened for writing once").into();
            return Err(OpenError::Store { path: path.to_path_buf(), source });
        }
        let reader = Reader::new(connection);
        let (last, names, trims) = reader.outline().map_err(|error| opening(path, error))?;
        shared.recent_mut().reset(last, names, trims);
        shared.last.send_replace(last);
        Ok(())
    }
}
