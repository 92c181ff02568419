//! Links that are encrypted and authenticated from end to end, over links of any type: `?private=` in an address.
//!
//! The host has a key file ([`HostKey`]); its clients have the [`PairingCode`] that belongs to it: the host's public key, and a secret
//! that all of its clients share. When a link has opened, both sides do a handshake of the Noise protocol ([`connect`], [`accept`]).
//! After that each frame, and the close, is sealed ([`PrivateLink`]). A frame that was altered, lost, repeated or moved ends the link.
//!
//! `docs/design/net.md` says why this pattern was chosen, and what each frame looks like.

mod acceptor;
mod error;
mod handshake;
mod key;
mod key_file;
mod link;
mod seal;

pub use self::acceptor::PrivateAcceptor;
pub use self::error::PrivateError;
pub use self::handshake::{HANDSHAKE_TIMEOUT, accept, connect};
pub use self::key::{CodeError, HostKey, PairingCode};
pub use self::key_file::{KeyFile, KeyFileError, Loaded};
pub use self::link::PrivateLink;
pub use self::seal::{longest_within, sealed_len};

use std::path::PathBuf;

/// What `private=` says in an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrivateOption {
    /// A pairing code, for the side that connects.
    Code(PairingCode),
    /// A file: the key file of the side that listens. The side that connects can name a file with a pairing code, or the host's key file.
    File(PathBuf),
}

impl PrivateOption {
    /// The host's key, for the side that listens. If the file is not there, it is made, with a new key.
    ///
    /// # Errors
    /// It is a pairing code, or the file cannot be used.
    pub fn host_key(&self) -> Result<Loaded, KeyFileError> {
        match self {
            Self::Code(_) => Err(KeyFileError::CodeOfListener),
            Self::File(path) => KeyFile(path).load_or_create(),
        }
    }

    /// The pairing code, for the side that connects.
    ///
    /// # Errors
    /// The file cannot be used, or is not there.
    pub fn pairing_code(&self) -> Result<PairingCode, KeyFileError> {
        match self {
            Self::Code(code) => Ok(code.clone()),
            Self::File(path) => KeyFile(path).pairing_code(),
        }
    }
}

#[cfg(test)]
mod tests;
