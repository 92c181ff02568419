//! The system's watcher, which all watches share.
//!
//! Linux has 128 inotify instances for each user, so all watches share one, and each directory in it is there for one or more
//! of them. The system knows a directory by its inode, and we by its name, and a directory may be renamed. So both are stored:
//! whoever finds that a name is gone ends the system's watch on it for everybody, before the same directory is watched under
//! its new name. The other watches find the same when they look.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};

use super::reports::ReportQueue;
use crate::files::error::FileError;
use crate::lock::lock;

/// The shared watcher.
#[derive(Default)]
pub(in crate::files) struct SystemWatcher {
    /// The receivers of reports. The thread of the watcher takes only this lock.
    queues: Arc<Mutex<Vec<Arc<ReportQueue>>>>,
    watched: Mutex<WatchedDirs>,
}

#[derive(Default)]
struct WatchedDirs {
    /// Created for the first watch.
    watcher: Option<RecommendedWatcher>,
    dirs: HashMap<PathBuf, Dir>,
    count: u64,
}

/// A directory that is watched.
struct Dir {
    inode: u64,
    wanted_by: HashSet<u64>,
    /// Whether a watch has found it gone. It may exist again before the other watches have looked.
    is_gone: bool,
}

/// The handle of one watch.
#[derive(Debug)]
pub(super) struct WatcherHandle {
    system_watcher: Arc<SystemWatcher>,
    id: u64,
    reports: Arc<ReportQueue>,
}

impl SystemWatcher {
    /// Registers a receiver of reports.
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
    /// Watches a directory, without its subdirectories. Doing so again does no harm, and helps if the system has dropped the
    /// watch.
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
                    // Mostly the system has dropped it already.
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

    /// Notes that the directory no longer has this name.
    pub(super) fn gone(&self, path: &Path, inode: u64) {
        self.leave(path, inode, true);
    }

    /// Ends the interest of this watch in a directory, which may still exist.
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

/// Passes a report on. A report without paths is for everybody.
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
