//! A bounded breadth-first walk through a directory.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Files and directories below one directory, in the same order each time: by depth, then by name.
pub(super) struct DirectoryWalk {
    root: PathBuf,
    queue: VecDeque<(PathBuf, usize)>,
    found: VecDeque<WalkEntry>,
    /// The real paths of directories that were entered, because links may form cycles.
    entered: HashSet<PathBuf>,
    max_depth: usize,
    left: usize,
    /// Whether a limit was reached.
    pub(super) cut: bool,
}

/// A file or directory of the walk.
#[derive(Debug, Clone)]
pub(super) struct WalkEntry {
    /// Its path in the walk.
    pub(super) path: PathBuf,
    /// Its path without symbolic links.
    pub(super) real: PathBuf,
    pub(super) is_dir: bool,
}

/// Directories without files that the user wrote.
const SKIPPED: [&str; 6] = [".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"];
/// Marks a directory as a cache, which is skipped.
const CACHE_TAG: &str = "CACHEDIR.TAG";

impl DirectoryWalk {
    /// Walks `start`, which is `root` or below it; `None` if it is not, or not there.
    pub(super) fn new(root: &Path, start: &Path, max_depth: usize, max_entries: usize) -> Option<Self> {
        let real = root.canonicalize().ok()?;
        let start = real.join(start);
        let mut walk = Self {
            root: real,
            queue: VecDeque::new(),
            found: VecDeque::new(),
            entered: HashSet::new(),
            max_depth,
            left: max_entries,
            cut: false,
        };
        let entry = walk.look(start).filter(|entry| entry.is_dir)?;
        walk.entered.insert(entry.real);
        walk.queue.push_back((entry.path, 0));
        Some(walk)
    }

    /// Where it is.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn enter(&mut self, dir: &Path, depth: usize) {
        let Ok(entries) = dir.read_dir() else { return };
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).take(self.left + 1).collect();
        if names.len() > self.left {
            self.cut = true;
            names.truncate(self.left);
        }
        self.left -= names.len();
        if depth > 0 && names.iter().any(|name| name == CACHE_TAG) {
            return;
        }
        names.sort_unstable();
        for name in names {
            if SKIPPED.iter().any(|skipped| OsStr::new(skipped) == name) {
                continue;
            }
            let Some(entry) = self.look(dir.join(name)) else { continue };
            if entry.is_dir && self.entered.insert(entry.real.clone()) {
                if depth < self.max_depth {
                    self.queue.push_back((entry.path.clone(), depth + 1));
                } else {
                    self.cut = true;
                }
            }
            self.found.push_back(entry);
        }
    }

    /// The file or directory at a path; `None` for anything else, and for links that lead outside.
    fn look(&self, path: PathBuf) -> Option<WalkEntry> {
        let mut facts = path.symlink_metadata().ok()?;
        let real = if facts.is_symlink() {
            let real = path.canonicalize().ok()?;
            facts = real.symlink_metadata().ok()?;
            real
        } else {
            path.clone()
        };
        let is_kind = facts.is_dir() || facts.is_file();
        (is_kind && real.starts_with(&self.root)).then(|| WalkEntry { path, real, is_dir: facts.is_dir() })
    }
}

impl Iterator for DirectoryWalk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        loop {
            if let Some(entry) = self.found.pop_front() {
                return Some(entry);
            }
            let (dir, depth) = self.queue.pop_front()?;
            self.enter(&dir, depth);
        }
    }
}

/// The beginning of a file, as text. If it was replaced by a link or a pipe meanwhile, this fails without blocking.
pub(super) fn head(entry: &WalkEntry, max_bytes: usize) -> Option<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().try_into().ok()?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&entry.real).ok()?;
    let mut bytes = Vec::new();
    file.metadata().ok().filter(|facts| facts.is_file())?;
    file.take(u64::try_from(max_bytes).ok()?).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
