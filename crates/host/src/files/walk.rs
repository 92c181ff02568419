//! Resolves a path name by name, and follows every symbolic link itself.
//!
//! `openat2` with `RESOLVE_BENEATH` would do the same inside of one root, but refuses all absolute links. Links from one root
//! to another, and absolute links to allowed places, are common in work trees.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, mkdirat, readlinkat};
use rustix::io::Errno;

use super::error::FileError;
use super::roots::{FinalLink, ResolvedPath, Root, Roots, hold_in};

/// Links on one path, as many as Linux follows.
const MAX_LINKS: u32 = 40;

/// How often one name is tried again because it changes between a directory and a link.
const MAX_TRIES: u32 = 16;

pub(super) struct PathWalk<'a> {
    roots: &'a Roots,
    here: WalkPosition<'a>,
    /// The remaining names, the next one last.
    todo: Vec<OsString>,
    /// While more names than this remain, they come from a link.
    link_floor: usize,
    links: u32,
    last: FinalLink,
    making: bool,
}

/// The present position.
enum WalkPosition<'a> {
    /// Not in a root (yet). Nothing is looked up: names are only joined until they are the path of a root.
    Above(PathBuf),
    /// In a root: the names of the directories below it, and the last of them, open.
    In { root: &'a Root, names: Vec<OsString>, dir: OwnedFd },
}

impl<'a> PathWalk<'a> {
    pub(super) fn new(roots: &'a Roots, path: &Path, last: FinalLink) -> Self {
        let here = WalkPosition::Above(PathBuf::from("/"));
        let mut walk = Self { roots, here, todo: Vec::new(), link_floor: usize::MAX, links: 0, last, making: false };
        walk.push(path);
        walk
    }

    /// Makes the directories on the way that are missing.
    pub(super) fn making(mut self) -> Self {
        self.making = true;
        self
    }

    pub(super) fn finish(mut self) -> Result<ResolvedPath, FileError> {
        self.enter(PathBuf::from("/"))?;
        while let Some(name) = self.todo.pop() {
            if self.todo.len() < self.link_floor {
                self.link_floor = usize::MAX;
            }
            match &mut self.here {
                WalkPosition::Above(path) => {
                    let mut path = std::mem::take(path);
                    if name == ".." {
                        path.pop();
                    } else {
                        path.push(&name);
                    }
                    self.enter(path)?;
                }
                WalkPosition::In { .. } if name == ".." => self.up()?,
                WalkPosition::In { .. } => {
                    if let Some(resolved) = self.down(name)? {
                        return Ok(resolved);
                    }
                }
            }
        }
        self.end()
    }

    /// Continues at a path; if that is a root, in the root.
    fn enter(&mut self, path: PathBuf) -> Result<(), FileError> {
        self.here = match self.roots.0.iter().find(|root| root.given == path || root.real == path) {
            Some(root) => WalkPosition::In { root, names: Vec::new(), dir: root.dir.try_clone()? },
            None => WalkPosition::Above(path),
        };
        Ok(())
    }

    /// Goes up for a `..`, which only links contain: opens the real parent again from the root.
    fn up(&mut self) -> Result<(), FileError> {
        let WalkPosition::In { root, names, dir } = &mut self.here else { return Ok(()) };
        if names.pop().is_some() {
            *dir = reopen(root, names)?;
            return Ok(());
        }
        let mut above = root.real.clone();
        above.pop();
        self.enter(above)
    }

    /// Goes down by one name. The last one is not opened: the caller does that.
    fn down(&mut self, name: OsString) -> Result<Option<ResolvedPath>, FileError> {
        let WalkPosition::In { root, names, dir } = &mut self.here else { return Ok(None) };
        let is_last = self.todo.is_empty();
        for _ in 0..MAX_TRIES {
            if is_last && self.last == FinalLink::Keep {
                break;
            }
            if !is_last {
                match hold_in(dir, &name) {
                    Ok(next) => {
                        *dir = next;
                        names.push(name);
                        return Ok(None);
                    }
                    Err(Errno::NOENT) if self.making && self.link_floor == usize::MAX => {
                        make(dir, &name)?;
                        continue;
                    }
                    Err(Errno::NOTDIR | Errno::LOOP) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            match readlinkat(&*dir, &name, Vec::new()) {
                Ok(target) => return self.follow(OsStr::from_bytes(target.as_bytes())).map(|()| None),
                Err(Errno::INVAL | Errno::NOENT) if is_last => break,
                // It is no link any more. If it is a directory now, the next attempt opens it.
                Err(Errno::INVAL) if is_file(dir, &name) && self.making => return Err(FileError::AlreadyExists),
                Err(Errno::INVAL) if is_file(dir, &name) => return Err(FileError::NotFound),
                Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if !is_last {
            return Err(FileError::Links);
        }
        let mut real = root.real.clone();
        real.extend(names.iter());
        real.push(&name);
        let linked = self.link_floor != usize::MAX;
        Ok(Some(ResolvedPath { dir: dir.try_clone()?, name, real, is_root: false, linked }))
    }

    /// Puts a link's target before the remaining names.
    fn follow(&mut self, target: &OsStr) -> Result<(), FileError> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(FileError::Links);
        }
        self.link_floor = self.link_floor.min(self.todo.len());
        let target = Path::new(target);
        self.push(target);
        if target.is_absolute() { self.enter(PathBuf::from("/")) } else { Ok(()) }
    }

    fn push(&mut self, path: &Path) {
        let names = path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from_vec(b"..".to_vec())),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        });
        self.todo.extend(names);
    }

    /// The path ended at a directory that is already open: a root, or where a link's last `..` led.
    fn end(self) -> Result<ResolvedPath, FileError> {
        let WalkPosition::In { root, mut names, dir } = self.here else { return Err(FileError::Outside) };
        let mut real = root.real.clone();
        real.extend(names.iter());
        match names.pop() {
            Some(name) => Ok(ResolvedPath { dir: reopen(root, &names)?, name, real, is_root: false, linked: true }),
            None => Ok(ResolvedPath { dir, name: OsString::from("."), real, is_root: true, linked: false }),
        }
    }
}

/// Opens nested directories; fails if one of them was replaced.
fn reopen(root: &Root, names: &[OsString]) -> Result<OwnedFd, FileError> {
    let mut dir = root.dir.try_clone()?;
    for name in names {
        dir = hold_in(&dir, name)?;
    }
    Ok(dir)
}

fn make(dir: &OwnedFd, name: &OsStr) -> Result<(), FileError> {
    match mkdirat(dir, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether it is there and neither a directory nor a link.
fn is_file(dir: &OwnedFd, name: &OsStr) -> bool {
    use rustix::fs::{AtFlags, FileType, statat};
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| !matches!(FileType::from_raw_mode(stat.st_mode), FileType::Directory | FileType::Symlink))
}
