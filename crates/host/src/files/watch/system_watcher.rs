//! What the system watches for all watches together, through one of its instances.
//!
//! Linux lends 128 instances to each user. So all watches share one, and each directory in it is there for those who want
//! it. The system knows a directory by its inode and we by its name, and one directory may come to have another name: so
//! each is known here by both, and whoever finds that a name is gone ends the watch on it for everybody, before the same
//! directory is watched under its new name. The others find the same when they look.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};

use super::reports::ReportQueue;
use crate::files::error::FileError;
use crate::lock::lock;

/// The system's watches.
#[derive(Default)]
pub(in crate::files) struct SystemWatcher {
    /// Who hears reports. The thread that brings them takes this lock, and no other.
    queues: Arc<Mutex<Vec<Arc<ReportQueue>>>>,
    watched: Mutex<WatchedDirs>,
}

#[derive(Default)]
struct WatchedDirs {
    /// Made for the first watch.
    watcher: Option<RecommendedWatcher>,
    dirs: HashMap<PathBuf, Dir>,
    count: u64,
}

/// A directory that is watched.
struct Dir {
    inode: u64,
    wanted_by: HashSet<u64>,
    /// Somebody has found it gone. It may be back under this name before the others have looked.
    is_gone: bool,
}

/// One watch's part in the hub.
#[derive(Debug)]
pub(super) struct WatcherHandle {
    system_watcher: Arc<SystemWatcher>,
    id: u64,
    reports: Arc<ReportQueue>,
}

impl SystemWatcher {
    /// From now on this inbox gets the reports that are for it.
    pub(super) fn join(self: &Arc<Self>, reports: &Arc<ReportQueue>) -> Result<WatcherHandle, FileError> {
        let mut watched = lock(&self.watched);
        if watched.watcher.is_none() {
            let queues = Arc::clone(&self.queues);
            let config = notify::Config::default().with_follow_symlinks(false);
            let hear = move |report| tell(&lock(&queues), &report);
            watched.watcher = Some(RecommendedWatcher::new(hear, config).map_err(refused)?);
        }
        watched.count = watched.count.wrapping_add(1);
        let watcher_handle =
            WatcherHandle { system_watcher: Arc::clone(self), id: watched.count, reports: Arc::clone(reports) };
        drop(watched);
        lock(&self.queues).push(Arc::clone(reports));
        Ok(watcher_handle)
    }
}

impl WatcherHandle {
    /// Watches a directory; not what is in its directories. To do so again does no harm, and helps where the system has
    /// given up a watch on its own.
    pub(super) fn watch(&self, path: &Path, inode: u64) -> Result<(), FileError> {
        let mut watched = lock(&self.system_watcher.watched);
        let WatchedDirs { watcher: Some(watcher), dirs, .. } = &mut *watched else { return Ok(()) };
        match dirs.get_mut(path) {
            Some(dir) if dir.inode == inode => {
                dir.wanted_by.insert(self.id);
                dir.is_gone = false;
            }
            other => {
                if other.is_some_and(|dir| !dir.is_gone) {
                    // Mostly the system has given it up already.
                    _ = watcher.unwatch(path);
                }
                let dir = Dir { inode, wanted_by: HashSet::from([self.id]), is_gone: false };
                dirs.insert(path.to_owned(), dir);
            }
        }
        let watching = watcher.watch(path, RecursiveMode::NonRecursive).map_err(refused);
        drop(watched);
        if watching.is_err() {
            self.release(path, inode);
        }
        watching
    }

    /// The directory does not have this name any more.
    pub(super) fn gone(&self, path: &Path, inode: u64) {
        self.leave(path, inode, true);
    }

    /// The directory may be there; we have no more use for it.
    pub(super) fn release(&self, path: &Path, inode: u64) {
        self.leave(path, inode, false);
    }

    fn leave(&self, path: &Path, inode: u64, is_gone: bool) {
        let mut watched = lock(&self.system_watcher.watched);
        let WatchedDirs { watcher: Some(watcher), dirs, .. } = &mut *watched else { return };
        let Some(dir) = dirs.get_mut(path).filter(|dir| dir.inode == inode) else { return };
        dir.wanted_by.remove(&self.id);
        let is_last = dir.wanted_by.is_empty();
        if (is_gone || is_last) && !std::mem::replace(&mut dir.is_gone, true) {
            _ = watcher.unwatch(path);
        }
        if is_last {
            dirs.remove(path);
        }
    }
}

impl Drop for WatcherHandle {
    fn drop(&mut self) {
        lock(&self.system_watcher.queues).retain(|reports| !Arc::ptr_eq(reports, &self.reports));
    }
}

impl fmt::Debug for SystemWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("dirs", &lock(&self.watched).dirs.len()).finish_non_exhaustive()
    }
}

/// What no path can be told of is for everybody.
fn tell(queues: &[Arc<ReportQueue>], report: &notify::Result<Event>) {
    for reports in queues {
        match report {
            Ok(event) if event.need_rescan() || reports.is_for(event) => reports.put(Ok(event.clone())),
            Ok(_) => {}
            Err(error) => reports.put(Err(notify::Error::generic(&error.to_string()))),
        }
    }
}

fn refused(error: notify::Error) -> FileError {
    FileError::Watch(error.to_string())
}
