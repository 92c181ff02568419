//! Why a private link did not open.

use std::time::Duration;

use strum::IntoStaticStr;
use thiserror::Error;

use super::key_file::KeyFileError;
use crate::link::LinkError;

/// The close code for who fails the handshake. Clients do not try again after it.
pub(super) const REFUSED: u16 = 4401;

/// Why a private link did not open. Shows no keys.
#[derive(Debug, Error, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum PrivateError {
    /// The other side's first frame is not one of this handshake: it was told nothing of `private=`, or speaks another version of it.
    #[error("the other side does not speak privately: it needs private= in its address, and a program that knows it")]
    NotPrivate,
    /// A client has another pairing code.
    #[error("the client has another pairing code")]
    WrongPairingCode,
    /// The host does not have the key that belongs to the pairing code.
    #[error("the host does not have the key of this pairing code: it is another host, or has a new key")]
    WrongHostKey,
    /// A client began as one with the pairing code would, and could not go on: its first frame was somebody else's.
    #[error("the client has repeated the first frame of another one")]
    HandshakeRepeated,
    /// The other side ended the link during the handshake.
    #[error("the other side has ended the handshake with code {code}: {text:?}")]
    Ended {
        /// Its close code.
        code: u16,
        /// Its words.
        text: String,
    },
    /// The handshake took too long.
    #[error("the other side has not answered the handshake for {} s: it may know nothing of private=", .0.as_secs())]
    HandshakeTimedOut(Duration),
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The key file or the pairing code cannot be used.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// The handshake could not be begun.
    #[error("the handshake cannot be begun: {0}")]
    Noise(snow::Error),
}

impl PrivateError {
    /// A short name for logs and close texts.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Whether trying again would not help.
    pub(crate) const fn is_final(&self) -> bool {
        match self {
            Self::WrongHostKey | Self::NotPrivate | Self::KeyFile(_) => true,
            Self::Ended { code, .. } => *code == REFUSED,
            _ => false,
        }
    }

    /// Whether the other side is to be told.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::NotPrivate
                | Self::WrongPairingCode
                | Self::WrongHostKey
                | Self::HandshakeRepeated
                | Self::HandshakeTimedOut(_)
        )
    }
}
