//! Copies and removes whole trees, without following links.

use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, mkdirat, openat, readlinkat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use super::error::FileError;
use super::roots::{FILE, HOLD, LISTING, hold_in, names_in};

/// How many names of one directory are read at a time while it is removed.
const AT_A_TIME: usize = 1024;

/// The limits of a copy, and the deepest tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyLimits {
    pub(super) entries: usize,
    pub(super) bytes: u64,
    /// Levels: each keeps files open.
    pub(super) depth: usize,
}

/// Removes a file, a link, or a directory with all that is in it. A link is never followed.
pub(super) fn remove(dir: &OwnedFd, name: &OsStr, max_depth: usize) -> Result<(), FileError> {
    remove_level(dir, name, max_depth).map_err(|error| match error {
        FileError::TooDeep { .. } => FileError::TooDeep { limit: max_depth },
        other => other,
    })
}

fn remove_level(dir: &OwnedFd, name: &OsStr, depth: usize) -> Result<(), FileError> {
    match unlinkat(dir, name, AtFlags::empty()) {
        // For a directory, Linux returns the first and POSIX the second, which may also mean a missing permission.
        Err(Errno::ISDIR | Errno::PERM) => {}
        result => return Ok(result?),
    }
    let depth = depth.checked_sub(1).ok_or(FileError::TooDeep { limit: depth })?;
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(Errno::NOTDIR) => return Err(FileError::Denied),
        result => return Ok(result?),
    }
    let inner = hold_in(dir, name)?;
    loop {
        let names = some_names(&inner)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            match remove_level(&inner, &name, depth) {
                // It was removed meanwhile.
                Ok(()) | Err(FileError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

/// Copies a file, a link, or a directory with all that is in it to a new name. Links are copied as they are written.
pub(super) fn copy(
    from: (&OwnedFd, &OsStr),
    to: (&OwnedFd, &OsStr),
    copy_limits: CopyLimits,
    keep: Preserve,
) -> Result<(), FileError> {
    Copy { copy_limits, left: copy_limits, keep }.entry(from, to, copy_limits.depth)
}

/// What a copy preserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preserve {
    /// The permissions, for a new copy.
    Mode,
    /// Permissions, times, and the owner where that is allowed, for a move to another file system.
    All,
}

struct Copy {
    copy_limits: CopyLimits,
    left: CopyLimits,
    keep: Preserve,
}

type EntryAt<'a> = (&'a OwnedFd, &'a OsStr);

impl Copy {
    fn entry(&mut self, from: EntryAt<'_>, to: EntryAt<'_>, depth: usize) -> Result<(), FileError> {
        let limit = self.copy_limits.entries;
        self.left.entries = self.left.entries.checked_sub(1).ok_or(FileError::TooMany { limit })?;
        let stat = statat(from.0, from.1, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directory(from, to, depth),
            FileType::Symlink => {
                let target = readlinkat(from.0, from.1, Vec::new())?;
                Ok(symlinkat(target, to.0, to.1)?)
            }
            FileType::RegularFile => self.file(from, to),
            _ => Err(FileError::Special),
        }
    }

    fn file(&mut self, from: EntryAt<'_>, to: EntryAt<'_>) -> Result<(), FileError> {
        let source: File = openat(from.0, from.1, FILE | OFlags::RDONLY, Mode::empty())?.into();
        super::read::only_file(&source)?;
        let flags = FILE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut copy: File = openat(to.0, to.1, flags, Mode::from_raw_mode(0o600))?.into();
        self.bytes(&source, &mut copy)?;
        self.copy_metadata(&source, &copy)
    }

    fn bytes(&mut self, source: &File, copy: &mut File) -> Result<(), FileError> {
        let left = self.left.bytes;
        let copied = std::io::copy(&mut source.take(left.saturating_add(1)), copy)?;
        let limit = self.copy_limits.bytes;
        self.left.bytes = left.checked_sub(copied).ok_or_else(|| {
            let size = source.metadata().map_or(copied, |metadata| metadata.len());
            FileError::TooLarge { size: (limit - left).saturating_add(size), limit }
        })?;
        Ok(())
    }

    fn directory(&mut self, from: EntryAt<'_>, to: EntryAt<'_>, depth: usize) -> Result<(), FileError> {
        let depth = depth.checked_sub(1).ok_or(FileError::TooDeep { limit: self.copy_limits.depth })?;
        let source = openat(from.0, from.1, LISTING, Mode::empty())?;
        mkdirat(to.0, to.1, Mode::from_raw_mode(0o700))?;
        let copy = openat(to.0, to.1, LISTING, Mode::empty())?;
        let held = openat(&source, ".", HOLD, Mode::empty())?;
        let looked = File::from(source.try_clone()?);
        let names = names_in(source, self.left.entries).map_err(|error| match error {
            FileError::TooMany { .. } => FileError::TooMany { limit: self.copy_limits.entries },
            other => other,
        })?;
        for name in names {
            match self.entry((&held, &name), (&copy, &name), depth) {
                // It was removed since its name was read.
                Ok(()) | Err(FileError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        self.copy_metadata(&looked, &File::from(copy))
    }

    fn copy_metadata(&self, source: &File, copy: &File) -> Result<(), FileError> {
        let metadata = source.metadata()?;
        if self.keep == Preserve::All {
            // Only the superuser may change the owner. Otherwise the copy belongs to this process.
            _ = fchown(copy, Some(Uid::from_raw(metadata.uid())), Some(Gid::from_raw(metadata.gid())));
        }
        fchmod(copy, Mode::from_raw_mode(metadata.mode() & 0o777))?;
        if self.keep == Preserve::All
            && let Ok(modified) = metadata.modified()
        {
            copy.set_times(FileTimes::new().set_modified(modified))?;
        }
        Ok(())
    }
}

/// The first names in a directory, at most [`AT_A_TIME`].
fn some_names(dir: &OwnedFd) -> Result<Vec<OsString>, FileError> {
    let mut names = Vec::new();
    for entry in Dir::new(openat(dir, ".", LISTING, Mode::empty())?)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
        if names.len() == AT_A_TIME {
            break;
        }
    }
    Ok(names)
}
