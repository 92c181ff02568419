//! New files and directories under a temporary name beside their destination, until they are complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::error::FileError;
use super::roots::{FILE, ResolvedPath};
use super::tree::{CopyLimits, remove};

const PREFIX: &str = ".breakbulk-";
const SUFFIX: &str = ".tmp";

/// A temporary name. Whatever has it is removed on drop, unless it was moved to its destination.
///
/// A crash may leave a file with such a name behind. It is safe to delete.
#[derive(Debug)]
pub(super) struct StagedEntry {
    dir: OwnedFd,
    name: OsString,
    copy_limits: CopyLimits,
    /// Whether to remove it on drop.
    is_ours: bool,
}

impl StagedEntry {
    /// A new temporary name in the directory of `resolved`.
    pub(super) fn beside(resolved: &ResolvedPath, copy_limits: CopyLimits) -> Result<Self, FileError> {
        let name = staging_name().map_err(|error| FileError::System(error.to_string()))?;
        Ok(Self { dir: resolved.dir.try_clone()?, name, copy_limits, is_ours: true })
    }

    /// Makes an empty file there.
    pub(super) fn file(&self, mode: Mode) -> Result<File, FileError> {
        let flags = FILE | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Ok(openat(&self.dir, &self.name, flags, mode)?.into())
    }

    pub(super) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Moves it to its destination atomically.
    pub(super) fn install(self, resolved: &ResolvedPath, replace: bool) -> Result<(), FileError> {
        match move_into_place(&self.dir, &self.name, resolved, replace, self.copy_limits)? {
            true => Ok(()),
            false => Err(FileError::System("the destination moved to another file system".to_owned())),
        }
    }
}

impl Drop for StagedEntry {
    fn drop(&mut self) {
        // Mostly it was moved already.
        if self.is_ours
            && let Err(error) = remove(&self.dir, &self.name, self.copy_limits.depth)
            && error != FileError::NotFound
        {
            tracing::warn!(%error, "a temporary file stays behind");
        }
    }
}

/// A name that nothing else has.
pub(crate) fn staging_name() -> Result<OsString, getrandom::Error> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)?;
    Ok(format!("{PREFIX}{:016x}{SUFFIX}", u64::from_le_bytes(random)).into())
}

/// Whether a name is a temporary name of this module.
pub(super) fn is_staging_name(name: &OsStr) -> bool {
    let middle = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
    middle.is_some_and(|middle| middle.len() == 16 && middle.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Moves a name to `resolved`, over what is there or only if nothing is.
///
/// A file replaces only a file, and a directory only a directory. Returns `false` if the destination is on another file
/// system, so that it has to be copied.
pub(super) fn move_into_place(
    dir: &OwnedFd,
    name: &OsStr,
    resolved: &ResolvedPath,
    replace: bool,
    copy_limits: CopyLimits,
) -> Result<bool, FileError> {
    if !replace {
        return move_to_free_name(dir, name, resolved);
    }
    match renameat(dir, name, &resolved.dir, &resolved.name) {
        Ok(()) => Ok(true),
        Err(Errno::XDEV) => Ok(false),
        Err(Errno::NOTEMPTY | Errno::EXIST) => replace_tree(dir, name, resolved, copy_limits).map(|()| true),
        // A directory on a file.
        Err(Errno::NOTDIR) => Err(FileError::NotADirectory),
        Err(errno) => Err(errno.into()),
    }
}

fn move_to_free_name(dir: &OwnedFd, name: &OsStr, resolved: &ResolvedPath) -> Result<bool, FileError> {
    match renameat_with(dir, name, &resolved.dir, &resolved.name, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(true),
        Err(Errno::XDEV) => return Ok(false),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
        Err(errno) => return Err(errno.into()),
    }
    // This file system cannot rename without replacing. A hard link to a file fails if the name exists.
    if !is_directory(dir, name)? {
        linkat(dir, name, &resolved.dir, &resolved.name, AtFlags::empty())?;
        unlinkat(dir, name, AtFlags::empty())?;
        return Ok(true);
    }
    match statat(&resolved.dir, &resolved.name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(FileError::AlreadyExists),
        Err(Errno::NOENT) => Ok(renameat(dir, name, &resolved.dir, &resolved.name).map(|()| true)?),
        Err(errno) => Err(errno.into()),
    }
}

/// Renames a directory that is not empty to a temporary name, and removes it when the other is in its place.
fn replace_tree(
    dir: &OwnedFd,
    name: &OsStr,
    resolved: &ResolvedPath,
    copy_limits: CopyLimits,
) -> Result<(), FileError> {
    let mut aside = StagedEntry::beside(resolved, copy_limits)?;
    aside.is_ours = false;
    renameat(&resolved.dir, &resolved.name, &aside.dir, &aside.name)?;
    if let Err(errno) = renameat(dir, name, &resolved.dir, &resolved.name) {
        renameat(&aside.dir, &aside.name, &resolved.dir, &resolved.name)?;
        return Err(errno.into());
    }
    aside.is_ours = true;
    Ok(())
}

/// Whether it is a directory; a link to one is not.
pub(super) fn is_directory(dir: impl AsFd, name: &OsStr) -> Result<bool, FileError> {
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
