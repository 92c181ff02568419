//! Compares the files under a watch with what they were.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahp_types::state::ResourceChangeType;

use super::filter::Filter;
use super::reports::{ReportQueue, ReportedPaths};
use super::system_watcher::WatcherHandle;
use crate::files::FilesInner;
use crate::files::error::FileError;
use crate::files::roots::{FinalLink, LISTING, ResolvedPath, Roots, names_in};
use crate::files::staging::is_staging_name;

/// Changes by path, relative to the watched path.
pub(super) type PathChanges = BTreeMap<PathBuf, ResourceChangeType>;

/// The files that a watch has seen, with the system's watches on the directories among them.
pub(super) struct Tracker {
    real: PathBuf,
    recursive: bool,
    filter: Filter,
    /// By real path: the entries of a directory follow it directly.
    seen: BTreeMap<PathBuf, FileStamp>,
    max_entries: usize,
    max_depth: usize,
    /// Set if not everything is seen: there are too many files, or the system refused a watch.
    partial: Option<FileError>,
    watcher_handle: WatcherHandle,
    /// The parent of the watched path, with its inode: only its watch reports that the path was replaced or created again.
    above: Option<(PathBuf, u64)>,
}

/// Changes whenever a file changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    is_dir: bool,
    inode: u64,
    changed: (i64, i64),
    size: u64,
}

impl Tracker {
    /// Scans everything once. What is found counts as known.
    pub(super) fn begin(
        shared: &FilesInner,
        resolved: &ResolvedPath,
        recursive: bool,
        filter: Filter,
        reports: &Arc<ReportQueue>,
    ) -> Result<Self, FileError> {
        let mut tracker = Self {
            real: resolved.real.clone(),
            recursive,
            filter,
            seen: BTreeMap::new(),
            max_entries: shared.config.max_watch_entries,
            max_depth: shared.config.max_depth,
            partial: None,
            watcher_handle: shared.system_watcher.join(reports)?,
            above: None,
        };
        if let Some(above) = resolved.real.parent().filter(|_| !resolved.is_root) {
            let inode = std::fs::symlink_metadata(above)?.ino();
            tracker.watcher_handle.watch(above, inode)?;
            tracker.above = Some((above.to_owned(), inode));
        }
        let real = resolved.real.clone();
        if stamp(&shared.roots, &real).is_none() {
            return Err(FileError::NotFound);
        }
        tracker.discover(&shared.roots, &real, &mut PathChanges::new());
        match tracker.partial.take() {
            Some(error) => Err(error),
            None => Ok(tracker),
        }
    }

    /// Checks the reported paths; returns what has changed since the last look.
    pub(super) fn look(&mut self, roots: &Roots, touched: ReportedPaths) -> PathChanges {
        let mut changes = PathChanges::new();
        let mut paths: BTreeSet<PathBuf> = &touched.paths | &touched.modified;
        if touched.all {
            paths.extend(self.seen.keys().cloned());
            paths.insert(self.real.clone());
        }
        paths.retain(|path| self.is_ours(path));
        // Removed names first. A renamed directory has the same watch in the system, and releasing the old name after watching
        // the new one would end both.
        for path in &paths {
            if self.seen.get(path).is_some_and(|old| stamp(roots, path).is_none_or(|new| !old.is_same(&new))) {
                self.forget(path, &mut changes);
            }
        }
        for path in paths {
            if touched.paths.contains(&path) {
                self.watch_again(&path);
            }
            self.update(roots, &path, touched.modified.contains(&path), touched.all, &mut changes);
        }
        if let Some(error) = self.partial.take() {
            tracing::warn!(%error, "a watch does not see everything");
            changes.insert(PathBuf::new(), ResourceChangeType::Updated);
        }
        changes
    }

    /// Watches a directory again: it may have been removed and created before this look, and then the system has dropped it.
    fn watch_again(&mut self, path: &Path) {
        let below = self.seen.range(path.to_owned()..).take_while(|(below, _)| below.starts_with(path));
        for (path, seen) in below.filter(|(path, seen)| seen.is_dir && (self.recursive || **path == self.real)) {
            if let Err(error) = self.watcher_handle.watch(path, seen.inode) {
                self.partial = Some(error);
            }
        }
    }

    fn update(&mut self, roots: &Roots, path: &Path, modified: bool, all: bool, changes: &mut PathChanges) {
        let (Some(new), relative) = (stamp(roots, path), self.relative(path)) else { return };
        let Some(old) = self.seen.get(path).copied() else { return self.discover(roots, path, changes) };
        if new.is_dir {
            if all {
                self.discover_in(roots, path, changes);
            }
        } else if modified || old != new {
            self.seen.insert(path.to_owned(), new);
            if self.filter.wants(&relative) {
                changes.entry(relative).or_insert(ResourceChangeType::Updated);
            }
        }
    }

    /// Adds what is new at this path and below.
    fn discover(&mut self, roots: &Roots, path: &Path, changes: &mut PathChanges) {
        let (Some(new), relative) = (stamp(roots, path), self.relative(path)) else { return };
        let wanted = self.filter.wants(&relative);
        if !new.is_dir && !wanted || self.seen.contains_key(path) {
            return;
        }
        if self.seen.len() >= self.max_entries {
            self.partial = Some(FileError::TooMany { limit: self.max_entries });
            return;
        }
        self.seen.insert(path.to_owned(), new);
        if wanted {
            let was_there = changes.contains_key(&relative);
            changes.insert(relative, if was_there { ResourceChangeType::Updated } else { ResourceChangeType::Added });
        }
        if new.is_dir && (self.recursive || path == self.real) {
            // Before its entries are read, so that none is missed.
            if let Err(error) = self.watcher_handle.watch(path, new.inode) {
                self.partial = Some(error);
            }
            self.discover_in(roots, path, changes);
        }
    }

    fn discover_in(&mut self, roots: &Roots, path: &Path, changes: &mut PathChanges) {
        if !self.recursive && path != self.real {
            return;
        }
        if self.relative(path).components().count() >= self.max_depth {
            self.partial = Some(FileError::TooDeep { limit: self.max_depth });
            return;
        }
        let names = roots.open_at(path, FinalLink::Keep, LISTING).and_then(|(dir, resolved)| {
            if resolved.real == path { names_in(dir, self.max_entries) } else { Ok(Vec::new()) }
        });
        match names {
            Ok(names) => {
                for path in names.iter().map(|name| path.join(name)) {
                    if self.is_ours(&path) {
                        self.discover(roots, &path, changes);
                    }
                }
            }
            Err(error @ (FileError::TooMany { .. } | FileError::TooDeep { .. })) => self.partial = Some(error),
            // It was removed, or cannot be read.
            Err(_) => {}
        }
    }

    /// Removes what was at this path and below.
    fn forget(&mut self, path: &Path, changes: &mut PathChanges) {
        let gone: Vec<_> = self
            .seen
            .range(path.to_owned()..)
            .take_while(|(below, _)| below.starts_with(path))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            if let Some(seen) = self.seen.remove(&path).filter(|seen| seen.is_dir) {
                self.watcher_handle.gone(&path, seen.inode);
            }
            let relative = self.relative(&path);
            if self.filter.wants(&relative) {
                changes.insert(relative, ResourceChangeType::Deleted);
            }
        }
    }

    fn is_ours(&self, path: &Path) -> bool {
        let Ok(relative) = path.strip_prefix(&self.real) else { return false };
        let is_near = self.recursive || relative.components().count() <= 1;
        is_near && self.filter.enters(relative) && !path.file_name().is_some_and(is_staging_name)
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.real).unwrap_or(path).to_owned()
    }
}

/// Makes one system call for each directory, so it must not run on a thread of the runtime.
impl Drop for Tracker {
    fn drop(&mut self) {
        let dirs = self.seen.iter().filter(|(_, seen)| seen.is_dir).map(|(path, seen)| (path, seen.inode));
        let above = self.above.iter().map(|(path, inode)| (path, *inode));
        dirs.chain(above).for_each(|(path, inode)| self.watcher_handle.release(path, inode));
    }
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracker").field("real", &self.real).field("seen", &self.seen.len()).finish_non_exhaustive()
    }
}

impl FileStamp {
    /// Whether both are the same file or directory. Files count as the same even if they were replaced.
    fn is_same(&self, new: &Self) -> bool {
        self.is_dir == new.is_dir && (!self.is_dir || self.inode == new.inode)
    }
}

/// The stamp of what is at a real path now. Links are not followed.
fn stamp(roots: &Roots, path: &Path) -> Option<FileStamp> {
    let resolved = roots.find(path, FinalLink::Keep).ok()?;
    let metadata = resolved.hold().ok()?.metadata().ok()?;
    // If a directory on the way became a link, the path leads elsewhere.
    (resolved.real == path).then(|| FileStamp {
        is_dir: metadata.is_dir(),
        inode: metadata.ino(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        size: metadata.len(),
    })
}
