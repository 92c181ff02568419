//! Reading a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

use ahp_types::commands::{ContentEncoding, ResourceReadParams, ResourceReadResult};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::OFlags;

use super::error::FileError;
use super::inspect::type_of;
use super::mime::mime_type;
use super::roots::{FILE, FinalLink, Roots};
use super::uri::path_of;

pub(super) fn read(roots: &Roots, limit: u64, params: &ResourceReadParams) -> Result<ResourceReadResult, FileError> {
    let path = path_of(&params.uri)?;
    let (file, resolved) = open(roots, &path)?;
    Ok(encoded(&resolved.real, contents(&file, limit)?, params.encoding.as_ref()))
}

/// Opens a file for reading in pieces.
pub(super) fn open_uri(roots: &Roots, uri: &str) -> Result<OpenFile, FileError> {
    let (file, resolved) = open(roots, &path_of(uri)?)?;
    let metadata = file.metadata()?;
    let content_type = mime_type(&resolved.real, b"", true).to_owned();
    Ok(OpenFile { size: metadata.len(), modified: metadata.modified().ok(), content_type, file })
}

/// A file that is open for reading.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) size: u64,
    pub(crate) modified: Option<SystemTime>,
    pub(crate) content_type: String,
}

/// How long a file is.
pub(super) fn size_of(roots: &Roots, limit: u64, uri: &str) -> Result<u64, FileError> {
    let (file, _) = open(roots, &path_of(uri)?)?;
    let size = file.metadata()?.len();
    if size > limit { Err(FileError::TooLarge { size, limit }) } else { Ok(size) }
}

/// The answer to `resourceRead` for these contents.
pub(crate) fn encoded(name: &Path, bytes: Vec<u8>, encoding: Option<&ContentEncoding>) -> ResourceReadResult {
    let asked_for_text = encoding == Some(&ContentEncoding::Utf8);
    let text = match encoding {
        Some(ContentEncoding::Base64) => Err(bytes),
        // NUL bytes are valid UTF-8 but no text. Unless text was requested, base64 is used: JSON escapes need six bytes for a NUL.
        _ if !asked_for_text && bytes.contains(&0) => Err(bytes),
        _ => String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes),
    };
    match text {
        Ok(data) => {
            let kind = mime_type(name, data.as_bytes(), true).to_owned();
            ResourceReadResult { data, encoding: ContentEncoding::Utf8, content_type: Some(kind) }
        }
        Err(bytes) => {
            let is_text = encoding == Some(&ContentEncoding::Base64) && std::str::from_utf8(&bytes).is_ok();
            let kind = mime_type(name, &bytes, is_text).to_owned();
            let data = STANDARD.encode(&bytes);
            ResourceReadResult { data, encoding: ContentEncoding::Base64, content_type: Some(kind) }
        }
    }
}

/// Opens a file for reading. Anything else is not opened. If the file was replaced by something else in between, that is
/// opened without blocking, and not read.
pub(super) fn open(roots: &Roots, path: &Path) -> Result<(File, super::roots::ResolvedPath), FileError> {
    let resolved = roots.find(path, FinalLink::Follow)?;
    only_file(&resolved.hold()?)?;
    let (file, resolved) = roots.open_at(path, FinalLink::Follow, FILE | OFlags::RDONLY)?;
    let file = File::from(file);
    only_file(&file)?;
    Ok((file, resolved))
}

pub(super) fn only_file(file: &File) -> Result<(), FileError> {
    let found = file.metadata()?.file_type();
    type_of(found)?;
    if found.is_dir() { Err(FileError::IsDirectory) } else { Ok(()) }
}

/// The whole file, but never more than `limit` bytes, even if it grows meanwhile.
fn contents(file: &File, limit: u64) -> Result<Vec<u8>, FileError> {
    let size = file.metadata()?.len();
    if size > limit {
        return Err(FileError::TooLarge { size, limit });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match u64::try_from(read) {
        Ok(size) if size > limit => Err(FileError::TooLarge { size, limit }),
        _ => Ok(bytes),
    }
}
