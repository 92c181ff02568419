//! Writes a file, so that readers see either the old content or the new.

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

use ahp_types::commands::{ContentEncoding, ResourceWriteMode, ResourceWriteParams, ResourceWriteResult};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown, openat};
use rustix::io::Errno;

use super::error::FileError;
use super::inspect::etag;
use super::locks::Locks;
use super::read::only_file;
use super::roots::{FILE, FinalLink, ResolvedPath, Roots};
use super::staging::StagedEntry;
use super::tree::CopyLimits;
use super::uri::path_of;

/// How often a path is resolved again because a symbolic link appears at its end.
const TRIES: u32 = 16;

/// Read and write for everybody, as far as the umask allows.
const NEW_FILE: u32 = 0o666;

/// What a write needs to know of the host.
pub(super) struct WriteContext<'a> {
    pub(super) roots: &'a Roots,
    pub(super) locks: &'a Locks,
    pub(super) max_bytes: u64,
    pub(super) copy_limits: CopyLimits,
}

pub(super) fn write(context: &WriteContext<'_>, params: ResourceWriteParams) -> Result<ResourceWriteResult, FileError> {
    let path = path_of(&params.uri)?;
    let create_only = params.create_only.unwrap_or(false);
    let job = WriteJob {
        create_only,
        mode: params.mode.unwrap_or(ResourceWriteMode::Truncate),
        position: params.position.unwrap_or(0),
        if_match: params.if_match,
        bytes: decode(params.data, params.encoding, context.max_bytes)?,
        copy_limits: context.copy_limits,
    };
    // A new file is not created through an existing link.
    let last = if create_only { FinalLink::Keep } else { FinalLink::Follow };
    for _ in 0..TRIES {
        let resolved = context.roots.find(&path, last)?;
        let _alone = context.locks.one(&resolved.real);
        match job.run(&resolved) {
            Err(FileError::Links) if !create_only => {}
            result => return result.map(|()| ResourceWriteResult {}),
        }
    }
    Err(FileError::Links)
}

fn decode(data: String, encoding: ContentEncoding, limit: u64) -> Result<Vec<u8>, FileError> {
    // For base64 a lower bound of the decoded length, so that too much is refused before decoding.
    let least = match encoding {
        ContentEncoding::Utf8 => data.len(),
        ContentEncoding::Base64 => (data.len() / 4).saturating_sub(1) * 3,
    };
    let within = |size: usize| {
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        if size <= limit { Ok(()) } else { Err(FileError::TooLarge { size, limit }) }
    };
    within(least)?;
    let bytes = match encoding {
        ContentEncoding::Utf8 => data.into_bytes(),
        ContentEncoding::Base64 => STANDARD.decode(data).map_err(|_| FileError::BadBase64)?,
    };
    within(bytes.len())?;
    Ok(bytes)
}

struct WriteJob {
    bytes: Vec<u8>,
    mode: ResourceWriteMode,
    position: i64,
    create_only: bool,
    if_match: Option<String>,
    copy_limits: CopyLimits,
}

impl WriteJob {
    fn run(&self, resolved: &ResolvedPath) -> Result<(), FileError> {
        if resolved.is_root {
            return Err(if self.create_only { FileError::AlreadyExists } else { FileError::IsDirectory });
        }
        let Some(old) = self.existing(resolved)? else {
            if self.if_match.is_some() {
                return Err(FileError::Conflict);
            }
            self.split(0)?;
            return self.create(resolved);
        };
        let metadata = old.metadata()?;
        if self.create_only {
            return Err(FileError::AlreadyExists);
        }
        self.check_match(&metadata)?;
        let (before, after) = self.split(metadata.len())?;
        if self.mode == ResourceWriteMode::Append && after == 0 {
            return self.append(resolved);
        }
        self.replace(resolved, old, &metadata, before, after)
    }

    /// Opens the existing file for writing: without the permission to write it, it must not be replaced either.
    fn existing(&self, resolved: &ResolvedPath) -> Result<Option<File>, FileError> {
        let held = match resolved.hold() {
            Err(Errno::NOENT) => return Ok(None),
            result => result?,
        };
        let found = held.metadata()?.file_type();
        if found.is_symlink() {
            return Err(if self.create_only { FileError::AlreadyExists } else { FileError::Links });
        }
        if self.create_only {
            return Err(FileError::AlreadyExists);
        }
        only_file(&held)?;
        // A full overwrite reads nothing, so it needs no permission to read.
        let whole = self.mode == ResourceWriteMode::Truncate && self.position == 0;
        let file = File::from(resolved.open(FILE | if whole { OFlags::WRONLY } else { OFlags::RDWR })?);
        only_file(&file)?;
        Ok(Some(file))
    }

    fn check_match(&self, metadata: &Metadata) -> Result<(), FileError> {
        match &self.if_match {
            Some(wanted) if *wanted != etag(metadata) => Err(FileError::Conflict),
            _ => Ok(()),
        }
    }

    /// How many bytes of the old content come before and after the new.
    fn split(&self, size: u64) -> Result<(u64, u64), FileError> {
        let outside = FileError::Position { position: self.position, size };
        let Some(position) = u64::try_from(self.position).ok().filter(|position| *position <= size) else {
            return Err(outside);
        };
        Ok(match self.mode {
            ResourceWriteMode::Truncate => (position, 0),
            ResourceWriteMode::Append => (size - position, position),
            ResourceWriteMode::Insert => (position, size - position),
        })
    }

    fn create(&self, resolved: &ResolvedPath) -> Result<(), FileError> {
        if self.mode == ResourceWriteMode::Append && !self.create_only {
            return self.append(resolved);
        }
        let stage = StagedEntry::beside(resolved, self.copy_limits)?;
        let mut file = stage.file(Mode::from_raw_mode(NEW_FILE))?;
        file.write_all(&self.bytes)?;
        file.sync_data()?;
        stage.install(resolved, !self.create_only)
    }

    /// Appends to the file itself, so that others that append to it at the same time lose nothing.
    fn append(&self, resolved: &ResolvedPath) -> Result<(), FileError> {
        let flags = FILE | OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let mut file = File::from(openat(&resolved.dir, &resolved.name, flags, Mode::from_raw_mode(NEW_FILE))?);
        only_file(&file)?;
        file.write_all(&self.bytes)?;
        Ok(file.sync_data()?)
    }

    fn replace(
        &self,
        resolved: &ResolvedPath,
        mut old: File,
        metadata: &Metadata,
        before: u64,
        after: u64,
    ) -> Result<(), FileError> {
        let limit = self.copy_limits.bytes;
        if before.saturating_add(after) > limit {
            return Err(FileError::TooLarge { size: metadata.len(), limit });
        }
        let stage = StagedEntry::beside(resolved, self.copy_limits)?;
        let mut new = stage.file(Mode::from_raw_mode(0o600))?;
        std::io::copy(&mut (&old).take(before), &mut new)?;
        new.write_all(&self.bytes)?;
        std::io::copy(&mut (&old).take(after), &mut new)?;
        let is_like_old = copy_owner_and_mode(&new, metadata)?;
        new.sync_data()?;
        // The file may have changed while the new content was written.
        self.check_match(&resolved.hold()?.metadata()?)?;
        if is_like_old {
            return stage.install(resolved, true);
        }
        // It belongs to another user and has to stay theirs: the content is copied into the existing file.
        new.seek(SeekFrom::Start(0))?;
        old.seek(SeekFrom::Start(0))?;
        let size = std::io::copy(&mut new, &mut old)?;
        old.set_len(size)?;
        Ok(old.sync_data()?)
    }
}

/// Gives a new file the owner and the permissions of an old one; returns false if the owner cannot be set.
fn copy_owner_and_mode(new: &File, old: &Metadata) -> Result<bool, FileError> {
    let own = new.metadata()?;
    if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
        match fchown(new, Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid()))) {
            Err(Errno::PERM) => return Ok(false),
            result => result?,
        }
    }
    // Without setuid and setgid: writing to a file removes them too.
    fchmod(new, Mode::from_raw_mode(old.mode() & 0o777))?;
    Ok(true)
}
