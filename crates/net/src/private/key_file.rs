//! Files with the key of a host, or with a pairing code. Nobody but their owner may read them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::key::{CODE, CodeError, HostKey, PairingCode};

/// A file has one key or code, and perhaps a line break.
const MAX_BYTES: u64 = 256;
/// What is added to the name of a key file, for the file with the pairing code beside it.
const PAIRING: &str = "pair";

/// The path of a key file, or of a file with a pairing code.
#[derive(Debug, Clone, Copy)]
pub struct KeyFile<'a>(pub &'a Path);

/// The key in a file.
#[derive(Debug)]
pub struct Loaded {
    /// The key.
    pub key: HostKey,
    /// Whether there was no file, so that one was made, with a new key.
    pub is_new: bool,
    /// The file beside it, with the pairing code for clients.
    pub pairing_file: PathBuf,
}

/// Why a key cannot be had.
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
    /// It has something else in it.
    #[error("the file {} has no key of a host in it: the side that listens needs one; it is made if there is no file", .0.display())]
    NoKey(PathBuf),
    /// It has neither a code nor a key in it.
    #[error("the file {} has no pairing code in it: {reason}", .path.display())]
    NoCode {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: CodeError,
    },
    /// Others may read it.
    #[error("others can read the file {}: make it private with chmod 600", .0.display())]
    Exposed(PathBuf),
    /// A pairing code was given to the side that listens.
    #[error("private= has a pairing code, and this side listens: it needs a key file, such as private=host.key")]
    CodeOfListener,
    /// The system gave no random bytes.
    #[error("the system gave no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

impl KeyFile<'_> {
    /// The key in it. If there is no file, it is made, with a new key, and beside it a file with the pairing code.
    ///
    /// # Errors
    /// It cannot be read or made, others can read it, or it has no key in it.
    pub fn load_or_create(self) -> Result<Loaded, KeyFileError> {
        let (key, is_new) = match read(self.0)? {
            Some(text) => (text.parse::<HostKey>().map_err(|_no_key| KeyFileError::NoKey(self.0.to_owned()))?, false),
            None => {
                let key = HostKey::generate()?;
                write(self.0, &key.reveal())?;
                (key, true)
            }
        };
        let mut pairing_file = self.0.as_os_str().to_owned();
        pairing_file.push(".");
        pairing_file.push(PAIRING);
        let pairing_file = PathBuf::from(pairing_file);
        let code = key.pairing_code().reveal();
        if read(&pairing_file)?.is_none_or(|text| text != code) {
            replace(&pairing_file, &code)?;
        }
        Ok(Loaded { key, is_new, pairing_file })
    }

    /// The pairing code in it, or the one that belongs to the key in it.
    ///
    /// # Errors
    /// It cannot be read, others can read it, or it has neither in it.
    pub fn pairing_code(self) -> Result<PairingCode, KeyFileError> {
        let missing = || KeyFileError::Io { path: self.0.to_owned(), source: io::ErrorKind::NotFound.into() };
        let text = read(self.0)?.ok_or_else(missing)?;
        if !text.starts_with(CODE)
            && let Ok(key) = text.parse::<HostKey>()
        {
            return Ok(key.pairing_code());
        }
        text.parse().map_err(|reason| KeyFileError::NoCode { path: self.0.to_owned(), reason })
    }
}

/// What is in a file that only its owner can read; `None` if there is none.
fn read(path: &Path) -> Result<Option<String>, KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
        return Err(KeyFileError::Exposed(path.to_owned()));
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(Some(text.trim().to_owned()))
}

/// Writes a file that is not there yet.
fn write(path: &Path, text: &str) -> Result<(), KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    writeln!(file, "{text}").and_then(|()| file.sync_all()).map_err(failed)
}

/// Writes a file anew.
fn replace(path: &Path, text: &str) -> Result<(), KeyFileError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(KeyFileError::Io { path: path.to_owned(), source: error })
        }
        _ => write(path, text),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_key_is_made_once_private_with_its_pairing_code_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.key");
        let made = KeyFile(&path).load_or_create().unwrap();
        assert!(made.is_new);
        assert_eq!(made.pairing_file, dir.path().join("host.key.pair"));
        assert_eq!((mode(&path), mode(&made.pairing_file)), (0o600, 0o600));
        let read = KeyFile(&path).load_or_create().unwrap();
        assert!(!read.is_new && read.key == made.key);
        let code = made.key.pairing_code();
        assert_eq!(KeyFile(&made.pairing_file).pairing_code().unwrap(), code);
        assert_eq!(KeyFile(&path).pairing_code().unwrap(), code, "on the host's own machine");
        fs::remove_file(&path).unwrap();
        let other = KeyFile(&path).load_or_create().unwrap();
        assert!(other.is_new);
        assert_eq!(KeyFile(&other.pairing_file).pairing_code().unwrap(), other.key.pairing_code(), "the code follows");
    }

    #[test]
    fn each_mistake_is_named_and_nothing_of_a_file_is_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.key");
        let made = KeyFile(&path).load_or_create().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(KeyFile(&path).load_or_create(), Err(KeyFileError::Exposed(_))));
        assert!(matches!(KeyFile(&path).pairing_code(), Err(KeyFileError::Exposed(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(KeyFile(&made.pairing_file).load_or_create(), Err(KeyFileError::NoKey(_))));
        fs::write(&path, "s3cret").unwrap();
        let error = KeyFile(&path).pairing_code().unwrap_err();
        assert!(matches!(error, KeyFileError::NoCode { .. }) && !error.to_string().contains("s3cret"), "{error}");
        let missing = dir.path().join("missing");
        assert!(matches!(KeyFile(&missing).pairing_code(), Err(KeyFileError::Io { .. })));
        assert!(!missing.exists(), "the side that connects makes no key");
    }
}
