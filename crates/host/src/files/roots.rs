//! The root directories that clients may use, and resolving paths inside of them.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, open, openat};
use rustix::io::Errno;

use super::error::{FileError, RootError};
use super::walk::PathWalk;

/// Flags to open a directory only for lookups in it.
pub(crate) const HOLD: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Flags for files. `NONBLOCK`: opening a pipe that was just put there must not block.
pub(crate) const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Flags to read the entries of a directory.
pub(super) const LISTING: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How often a path is resolved again because its last name became a symbolic link in between.
const TRIES: u32 = 16;

/// The configured roots, each kept open: renaming the directories above them has no effect.
#[derive(Debug)]
pub(super) struct Roots(pub(super) Vec<Root>);

/// One of them.
#[derive(Debug)]
pub(super) struct Root {
    /// As configured, made absolute.
    pub(super) given: PathBuf,
    /// Without symbolic links.
    pub(super) real: PathBuf,
    pub(super) dir: OwnedFd,
}

/// What to do when the last name of a path is a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinalLink {
    /// Follow it.
    Follow,
    /// Use the link itself.
    Keep,
}

/// A resolved path: a name in an open directory. Nothing may exist under that name.
#[derive(Debug)]
pub(super) struct ResolvedPath {
    /// The open directory. It is never looked up again by its path.
    pub(super) dir: OwnedFd,
    /// One name; `.` for a root itself.
    pub(super) name: OsString,
    /// The whole path without symbolic links.
    pub(super) real: PathBuf,
    /// Whether it is the root itself.
    pub(super) is_root: bool,
    /// Whether the last name was written in a symbolic link, and not by the caller.
    pub(super) linked: bool,
}

impl Roots {
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, RootError> {
        paths
            .iter()
            .map(|path| Root::open(path).map_err(|error| RootError { path: path.clone(), error }))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Resolves `path`. Every directory on the way is opened by name from the one before, and every symbolic link is read and
    /// followed here, so that no change meanwhile can lead out of the roots.
    pub(super) fn find(&self, path: &Path, last: FinalLink) -> Result<ResolvedPath, FileError> {
        PathWalk::new(self, path, last).finish()
    }

    /// Opens what `path` names. It is never a symbolic link, unless `flags` allow one.
    pub(super) fn open_at(
        &self,
        path: &Path,
        last: FinalLink,
        flags: OFlags,
    ) -> Result<(OwnedFd, ResolvedPath), FileError> {
        for _ in 0..TRIES {
            let resolved = self.find(path, last)?;
            match resolved.open(flags) {
                // A link has just appeared there: the path has to be resolved again.
                Err(Errno::LOOP) if last == FinalLink::Follow => {}
                result => return Ok((result?, resolved)),
            }
        }
        Err(FileError::Links)
    }

    /// Makes a directory and those above it, unless they exist.
    pub(super) fn make_dirs(&self, path: &Path) -> Result<(), FileError> {
        let resolved = PathWalk::new(self, path, FinalLink::Follow).making().finish()?;
        if resolved.is_root {
            return Ok(());
        }
        // A dangling link is in the way: its target is not created.
        if !resolved.linked {
            match rustix::fs::mkdirat(&resolved.dir, &resolved.name, Mode::from_raw_mode(0o777)) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        match resolved.open(HOLD) {
            Ok(_) => Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Err(FileError::AlreadyExists),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether a root is at this real path or beneath it.
    pub(super) fn any_in(&self, real: &Path) -> bool {
        self.0.iter().any(|root| root.real.starts_with(real))
    }
}

impl Root {
    fn open(path: &Path) -> Result<Self, std::io::Error> {
        let given = std::path::absolute(path)?;
        let real = given.canonicalize()?;
        let dir = open(&real, HOLD, Mode::empty())?;
        Ok(Self { given, real, dir })
    }
}

impl ResolvedPath {
    pub(super) fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(&self.dir, &self.name, flags, Mode::empty())
    }

    /// Opens what is here, even a symbolic link, without access to its content.
    pub(super) fn hold(&self) -> Result<std::fs::File, Errno> {
        self.open(OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC).map(Into::into)
    }
}

/// The names in a directory, without `.` and `..`, sorted; refused when there are more than `limit`.
pub(super) fn names_in(dir: OwnedFd, limit: usize) -> Result<Vec<OsString>, FileError> {
    use std::os::unix::ffi::OsStringExt;
    let mut names = Vec::new();
    for entry in Dir::new(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name == b"." || name == b".." {
            continue;
        }
        if names.len() >= limit {
            return Err(FileError::TooMany { limit });
        }
        names.push(OsString::from_vec(name));
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a directory by its name in an open directory.
pub(crate) fn hold_in(dir: &OwnedFd, name: &std::ffi::OsStr) -> Result<OwnedFd, Errno> {
    openat(dir, name, HOLD, Mode::empty())
}
