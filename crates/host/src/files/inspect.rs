//! Lists directories, and resolves a path to its metadata.

use std::fs::{File, FileType, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use ahp_types::commands::{
    DirectoryEntry, ResourceListParams, ResourceListResult, ResourceResolveParams, ResourceResolveResult, ResourceType,
};

use super::error::FileError;
use super::mime::mime_by_name;
use super::roots::{FinalLink, LISTING, Roots, names_in};
use super::time::iso_8601;
use super::uri::{path_of, uri_of};

/// The longest tick of a file system's clock: a file that changed longer ago than this gets another time when it changes again.
const TICK: Duration = Duration::from_millis(20);

pub(super) fn list(roots: &Roots, limit: usize, params: &ResourceListParams) -> Result<ResourceListResult, FileError> {
    let path = path_of(&params.uri)?;
    let (dir, resolved) = match roots.open_at(&path, FinalLink::Follow, LISTING) {
        // Its parent exists. Either nothing has this name, or it is no directory.
        Err(FileError::NotFound) if exists(roots, &path) => return Err(FileError::NotADirectory),
        result => result?,
    };
    let names = names_in(dir, limit)?;
    let entries = names.iter().map(|name| {
        let r#type = if leads_to_directory(roots, &resolved.real.join(name)) { "directory" } else { "file" };
        DirectoryEntry { name: name.to_string_lossy().into_owned(), r#type: r#type.to_owned() }
    });
    Ok(ResourceListResult { entries: entries.collect() })
}

pub(super) fn resolve(roots: &Roots, params: &ResourceResolveParams) -> Result<ResourceResolveResult, FileError> {
    let path = path_of(&params.uri)?;
    let last = if params.follow_symlinks.unwrap_or(true) { FinalLink::Follow } else { FinalLink::Keep };
    let resolved = roots.find(&path, last)?;
    let file = resolved.hold()?;
    let (metadata, etag) = settled(&file)?;
    let r#type = type_of(metadata.file_type())?;
    let size = (!metadata.is_dir()).then(|| i64::try_from(metadata.len()).unwrap_or(i64::MAX));
    let is_file = r#type == ResourceType::File;
    Ok(ResourceResolveResult {
        uri: if last == FinalLink::Keep || resolved.real == path { params.uri.clone() } else { uri_of(&resolved.real) },
        r#type,
        size,
        mtime: metadata.modified().ok().and_then(iso_8601),
        ctime: metadata.created().ok().and_then(iso_8601),
        content_type: is_file.then(|| mime_by_name(&resolved.real).map(str::to_owned)).flatten(),
        etag: if is_file { etag } else { None },
    })
}

/// A tag that changes whenever the file changes.
pub(super) fn etag(metadata: &Metadata) -> String {
    format!(
        "{:x}-{:x}-{:x}-{:x}.{:x}-{:x}.{:x}",
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec()
    )
}

/// Metadata and an etag that no later change can share.
///
/// Two changes in one tick of the file system's clock look the same, so this waits until the last one is a tick ago. A file
/// that changes all the time has no etag.
fn settled(file: &File) -> Result<(Metadata, Option<String>), FileError> {
    for _ in 0..3 {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok((metadata, None));
        }
        let age = changed_at(&metadata).and_then(|at| SystemTime::now().duration_since(at).ok());
        match age.and_then(|age| TICK.checked_sub(age)) {
            Some(rest) if !rest.is_zero() => std::thread::sleep(rest),
            _ => {
                let etag = etag(&metadata);
                return Ok((metadata, Some(etag)));
            }
        }
    }
    Ok((file.metadata()?, None))
}

fn changed_at(metadata: &Metadata) -> Option<SystemTime> {
    let whole = Duration::from_secs(u64::try_from(metadata.ctime()).ok()?);
    let part = Duration::from_nanos(u64::try_from(metadata.ctime_nsec()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(whole)?.checked_add(part)
}

/// Refuses what is neither a file, a directory nor a link.
pub(super) fn type_of(found: FileType) -> Result<ResourceType, FileError> {
    if found.is_char_device() || found.is_block_device() || found.is_fifo() || found.is_socket() {
        return Err(FileError::Special);
    }
    Ok(if found.is_dir() {
        ResourceType::Directory
    } else if found.is_symlink() {
        ResourceType::Symlink
    } else {
        ResourceType::File
    })
}

/// Whether a path is a directory, or a link to one inside of the roots.
fn leads_to_directory(roots: &Roots, path: &Path) -> bool {
    metadata_of(roots, path).is_ok_and(|metadata| metadata.is_dir())
}

fn exists(roots: &Roots, path: &Path) -> bool {
    metadata_of(roots, path).is_ok()
}

fn metadata_of(roots: &Roots, path: &Path) -> Result<Metadata, FileError> {
    Ok(roots.find(path, FinalLink::Follow)?.hold()?.metadata()?)
}
