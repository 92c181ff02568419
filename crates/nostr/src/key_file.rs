//! The key file: the identity of a server, or of a client that wants to be recognised.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nostr::Keys;
use thiserror::Error;

/// A key file has 64 hex digits or 63 characters of `nsec1…`, and perhaps a line break.
const MAX_BYTES: u64 = 256;

/// Why a key file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The operating system reported an error.
    #[error("the key file {} cannot be used: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It has no key in it.
    #[error("the key file {} has no Nostr secret key in it: 64 hex digits or nsec1…", .0.display())]
    NoKey(PathBuf),
    /// Others may read it.
    #[error("others can read the key file {}: make it private with chmod 600", .0.display())]
    Exposed(PathBuf),
}

/// Whether a key file was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyFile {
    /// The key was read from it.
    Read,
    /// There was none: it was made, with a new key, readable by its owner alone.
    Created,
}

/// The keys in a file. Without the file, a new key is made and written to it.
pub(crate) fn load(path: &Path) -> Result<(Keys, KeyFile), KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    match File::open(path) {
        Ok(file) => {
            if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
                return Err(KeyFileError::Exposed(path.to_owned()));
            }
            let mut text = String::new();
            file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
            let keys = Keys::parse(text.trim()).map_err(|_| KeyFileError::NoKey(path.to_owned()))?;
            Ok((keys, KeyFile::Read))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keys = Keys::generate();
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
            writeln!(file, "{}", keys.secret_key().to_secret_hex()).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            Ok((keys, KeyFile::Created))
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_key_is_made_once_private_and_is_the_same_when_it_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let (made, how) = load(&path).unwrap();
        assert_eq!((how, fs::metadata(&path).unwrap().permissions().mode() & 0o777), (KeyFile::Created, 0o600));
        let (read, how) = load(&path).unwrap();
        assert_eq!((how, read.public_key()), (KeyFile::Read, made.public_key()));
    }

    #[test]
    fn a_key_file_that_others_can_read_or_without_a_key_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        load(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(load(&path), Err(KeyFileError::Exposed(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "hello").unwrap();
        let error = load(&path).unwrap_err();
        assert!(matches!(error, KeyFileError::NoKey(_)) && !error.to_string().contains("hello"));
        assert!(matches!(load(&dir.path().join("no/key")), Err(KeyFileError::Io { .. })));
    }
}
