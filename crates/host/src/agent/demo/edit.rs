//! Writes a file inside a directory, and nowhere else.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::files::uri_of;

/// A file that was written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) uri: String,
    pub(super) added: u64,
    pub(super) removed: u64,
}

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum EditError {
    /// The name leads out of the directory.
    #[error("the file must be inside of the working directory")]
    Outside,
    /// There is something else of that name.
    #[error("that is not a regular file")]
    NotAFile,
    /// The system did not do it.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for EditError {
    fn from(error: Errno) -> Self {
        match error {
            // What a link in the way looks like when it is not followed.
            Errno::LOOP | Errno::NOTDIR => Self::Outside,
            error => Self::Io(error.into()),
        }
    }
}

/// The most of an old file that is read, to say how many lines changed.
const OLD: u64 = 16 << 20;

/// Writes a text to a file, whose name is relative to the directory. No link is followed on the way, so that the file is
/// where its name says. Either all of it is written or nothing is. Blocks.
pub(super) fn write(directory: &Path, file: &str, text: &str) -> Result<Written, EditError> {
    let mut names = Vec::new();
    for component in Path::new(file).components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => return Err(EditError::Outside),
        }
    }
    let name = names.pop().ok_or(EditError::Outside)?;
    let folder_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder: OwnedFd = open(directory, folder_flags, Mode::empty())?;
    for name in &names {
        match mkdirat(&folder, *name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        folder = openat(&folder, *name, folder_flags, Mode::empty())?;
    }
    let name = Path::new(name);
    let text = with_line_end(text);
    let old = old(folder.as_fd(), name)?;
    replace(folder.as_fd(), name, &text)?;
    let (added, removed) = changed(&old, text.as_bytes());
    let path = names.iter().fold(directory.to_path_buf(), |path, name| path.join(name)).join(name);
    Ok(Written { uri: uri_of(&path), added, removed })
}

/// A text as a file has it: its last line has an end too.
pub(super) fn with_line_end(text: &str) -> String {
    if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// What the file holds now.
fn old(folder: BorrowedFd<'_>, name: &Path) -> Result<Vec<u8>, EditError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(Errno::LOOP) => return Err(EditError::NotAFile),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(EditError::NotAFile);
    }
    let mut old = Vec::new();
    file.take(OLD).read_to_end(&mut old)?;
    Ok(old)
}

/// Puts a new file in the place of an old one.
fn replace(folder: BorrowedFd<'_>, name: &Path, text: &str) -> Result<(), EditError> {
    let temporary = format!(".breakbulk-demo-{:016x}", super::text::hash(&name.to_string_lossy()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // What an earlier attempt may have left.
    let _ = unlinkat(folder, &temporary, AtFlags::empty());
    let file = openat(folder, &temporary, flags, Mode::from_raw_mode(0o666))?;
    let mut file = File::from(file);
    let written = file.write_all(text.as_bytes()).map_err(EditError::from);
    let done = written.and_then(|()| Ok(renameat(folder, &temporary, folder, name)?));
    if done.is_err() {
        let _ = unlinkat(folder, &temporary, AtFlags::empty());
    }
    done
}

/// How many lines are new and how many are gone, between what is the same at both ends.
fn changed(old: &[u8], new: &[u8]) -> (u64, u64) {
    let lines = |text: &'_ [u8]| text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (old, new) = (lines(old), lines(new));
    let head = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (old.len() - head, new.len() - head);
    let tails = old.iter().rev().zip(new.iter().rev());
    let tail = tails.take_while(|(old, new)| old == new).count().min(old_rest).min(new_rest);
    ((new_rest - tail) as u64, (old_rest - tail) as u64)
}
