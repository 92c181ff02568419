//! Open directories: reading and writing stays inside of them, even if their names are changed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fchmod, mkdirat, open, openat, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::files::{FILE, HOLD, hold_in, staging_name};

/// An open directory.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    dir: OwnedFd,
    path: PathBuf,
}

/// A file, or the target of a symbolic link.
#[derive(Debug)]
pub(super) enum FileOrLink {
    /// A file, open for reading.
    File(File),
    /// The target of a symbolic link, not resolved.
    Link(OsString),
}

impl OpenDirectory {
    /// Opens the directory at a path without symbolic links. If there is one now, this fails.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let root = Self { dir: open("/", HOLD, Mode::empty())?, path: "/".into() };
        root.below(path.strip_prefix("/").map_err(io::Error::other)?)
    }

    /// Its path when it was opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory below this one. Fails if a name on the way is a symbolic link.
    pub(super) fn below(&self, path: &Path) -> io::Result<Self> {
        let mut dir = self.dir.try_clone()?;
        for name in names(path)? {
            dir = hold_in(&dir, name)?;
        }
        Ok(Self { dir, path: self.path.join(path) })
    }

    /// The same, and makes the directories that are missing.
    fn make_below(&self, path: &Path) -> io::Result<Self> {
        let mut dir = self.dir.try_clone()?;
        for name in names(path)? {
            match mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            dir = hold_in(&dir, name)?;
        }
        Ok(Self { dir, path: self.path.join(path) })
    }

    /// Opens the file or reads the link at a path below; `None` if there is nothing.
    pub(super) fn look(&self, path: &Path) -> io::Result<Option<FileOrLink>> {
        let (above, name) = split(path)?;
        let above = match self.below(above) {
            Err(error) if is_missing(&error) => return Ok(None),
            above => above?,
        };
        let stat = match statat(&above.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            stat => stat?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                // If it became something else in between, it is opened without waiting, and not read.
                let file = File::from(openat(&above.dir, name, FILE | OFlags::RDONLY, Mode::empty())?);
                if file.metadata()?.is_file() { Ok(Some(FileOrLink::File(file))) } else { Err(not_a_file()) }
            }
            FileType::Symlink => {
                let target = readlinkat(&above.dir, name, Vec::new())?;
                Ok(Some(FileOrLink::Link(OsStr::from_bytes(target.as_bytes()).to_owned())))
            }
            _ => Err(not_a_file()),
        }
    }

    /// The contents of a file below; `None` if there is none.
    pub(super) fn read(&self, path: impl AsRef<Path>, limit: u64) -> io::Result<Option<Vec<u8>>> {
        match self.look(path.as_ref())? {
            None => Ok(None),
            Some(FileOrLink::Link(_)) => Err(not_a_file()),
            Some(FileOrLink::File(file)) => {
                let mut bytes = Vec::new();
                file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
                let is_whole = u64::try_from(bytes.len()).is_ok_and(|size| size <= limit);
                if is_whole { Ok(Some(bytes)) } else { Err(too_large(limit)) }
            }
        }
    }

    /// The names in this directory that begin so.
    pub(super) fn names_with(&self, prefix: &str, most: usize) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::new(openat(&self.dir, ".", flags, Mode::empty())?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name.as_bytes().starts_with(prefix.as_bytes()) && found.len() < most {
                found.push(name.to_owned());
            }
        }
        Ok(found)
    }

    /// Puts a file of at most `most` bytes, or a link, at a path below, atomically. Returns its size.
    pub(super) fn install(&self, path: &Path, thing: FileOrLink, most: u64) -> io::Result<u64> {
        let (above, name) = split(path)?;
        let above = self.make_below(above)?;
        let new = staging_name().map_err(io::Error::other)?;
        let made = above.make(&new, thing, most);
        let made = made.and_then(|size| Ok(renameat(&above.dir, &new, &above.dir, name).map(|()| size)?));
        if made.is_err() {
            // The temporary file is removed, if it exists.
            _ = unlinkat(&above.dir, &new, AtFlags::empty());
        }
        made
    }

    fn make(&self, name: &OsStr, thing: FileOrLink, most: u64) -> io::Result<u64> {
        match thing {
            FileOrLink::Link(target) => Ok(symlinkat(target, &self.dir, name).map(|()| 0)?),
            FileOrLink::File(source) => {
                let mode = Mode::from_raw_mode(source.metadata()?.mode() & 0o777);
                let mut file = self.create(name)?;
                let size = io::copy(&mut source.take(most.saturating_add(1)), &mut file)?;
                if size > most {
                    return Err(too_large(most));
                }
                fchmod(&file, mode)?;
                Ok(size)
            }
        }
    }

    fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = FILE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        Ok(openat(&self.dir, name, flags, Mode::from_raw_mode(0o666))?.into())
    }

    /// Removes a file or link below, if it is there.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let (above, name) = split(path)?;
        let removed = self.below(above).and_then(|above| Ok(unlinkat(&above.dir, name, AtFlags::empty())?));
        removed.or_else(|error| if is_missing(&error) { Ok(()) } else { Err(error) })
    }

    /// Removes the directories above a path below that have become empty.
    pub(super) fn prune(&self, path: &Path) {
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            let Ok((parent, name)) = split(above) else { return };
            let Ok(parent) = self.below(parent) else { return };
            // Most are not empty, and then nothing above them is.
            if unlinkat(&parent.dir, name, AtFlags::REMOVEDIR).is_err() {
                return;
            }
        }
    }

    /// Takes a lock as git does: a file beside the real one, which then replaces it.
    pub(super) fn lock(&self, name: &str) -> io::Result<GitLock> {
        let lock = OsString::from(format!("{name}.lock"));
        let file = self.create(&lock)?;
        Ok(GitLock { directory: self.below(Path::new(""))?, name: name.into(), lock, file, is_done: false })
    }
}

/// A file that is written under a lock. If it is dropped before it is finished, the old file stays.
pub(super) struct GitLock {
    directory: OpenDirectory,
    name: OsString,
    lock: OsString,
    file: File,
    is_done: bool,
}

impl GitLock {
    /// Writes the new contents, with this time if there is one, and puts them in place of the old.
    pub(super) fn finish(mut self, contents: &[u8], modified: Option<SystemTime>) -> io::Result<()> {
        self.file.write_all(contents)?;
        if let Ok(old) = statat(&self.directory.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            fchmod(&self.file, Mode::from_raw_mode(old.st_mode & 0o777))?;
        }
        if let Some(modified) = modified {
            self.file.set_times(FileTimes::new().set_modified(modified))?;
        }
        self.file.sync_data()?;
        renameat(&self.directory.dir, &self.lock, &self.directory.dir, &self.name)?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for GitLock {
    fn drop(&mut self) {
        if !self.is_done {
            _ = unlinkat(&self.directory.dir, &self.lock, AtFlags::empty());
        }
    }
}

fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let name = |part| match part {
        Component::Normal(name) => Ok(name),
        _ => Err(io::Error::other("not a path below")),
    };
    path.components().filter(|part| *part != Component::CurDir).map(name).collect()
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    path.parent().zip(path.file_name()).ok_or_else(|| io::Error::other("not a path below"))
}

/// Whether nothing is there, or something above it is no directory.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn not_a_file() -> io::Error {
    io::Error::other("neither a file nor a symbolic link")
}

fn too_large(limit: u64) -> io::Error {
    io::Error::other(format!("more than {limit} bytes"))
}
