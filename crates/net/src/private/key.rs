//! The key of a host, and the pairing code for its clients, as text.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use thiserror::Error;

/// A key, or a secret that is shared.
pub(super) type Key = [u8; 32];

/// Begins a pairing code.
pub(super) const CODE: &str = "pair1-";
/// Begins the text of a host's key.
pub(super) const HOST: &str = "key1-";
/// How many bytes of the digest follow, so that a typing error is found before a connection is made.
const CHECK: usize = 4;

/// The key of a host: the private half of its key pair, and the secret that it shares with its clients. Shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct HostKey {
    pub(super) private: Key,
    pub(super) secret: Key,
}

/// What a client needs to reach a host privately: the host's public key, and the secret that the host shares with its clients. Whoever
/// has it can connect to the host. Shown only by [`reveal`](Self::reveal).
#[derive(Clone, PartialEq, Eq)]
pub struct PairingCode {
    pub(super) public: Key,
    pub(super) secret: Key,
}

/// Why a text is no pairing code or key. Repeats nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CodeError {
    /// It begins with something else.
    #[error("a pairing code begins with {CODE}")]
    Prefix,
    /// It is the text of a host's key.
    #[error("this is a host's key, which stays in its file: clients need the pairing code, which begins with {CODE}")]
    HostKey,
    /// Characters are missing, or wrong.
    #[error("the pairing code is incomplete or mistyped")]
    Mistyped,
}

impl HostKey {
    /// A new one.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let (mut private, mut secret) = ([0; 32], [0; 32]);
        getrandom::fill(&mut private)?;
        getrandom::fill(&mut secret)?;
        Ok(Self { private, secret })
    }

    /// The pairing code for clients.
    #[must_use]
    pub fn pairing_code(&self) -> PairingCode {
        let mut public = [0; 32];
        if let Some(mut pair) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) {
            pair.set(&self.private);
            public.copy_from_slice(pair.pubkey());
        }
        PairingCode { public, secret: self.secret }
    }

    /// The text that stands in a key file.
    pub(super) fn reveal(&self) -> String {
        encode(HOST, &self.private, &self.secret)
    }
}

impl FromStr for HostKey {
    type Err = CodeError;

    fn from_str(text: &str) -> Result<Self, CodeError> {
        let (private, secret) = decode(HOST, text)?;
        Ok(Self { private, secret })
    }
}

impl PairingCode {
    /// The code itself, for who has to type or scan it. Not for logs.
    #[must_use]
    pub fn reveal(&self) -> String {
        encode(CODE, &self.public, &self.secret)
    }

    /// Whether a text is meant as a pairing code or as a key, and not as the name of a file.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with(CODE) || text.starts_with(HOST)
    }
}

impl FromStr for PairingCode {
    type Err = CodeError;

    fn from_str(text: &str) -> Result<Self, CodeError> {
        if text.starts_with(HOST) {
            return Err(CodeError::HostKey);
        }
        let (public, secret) = decode(CODE, text)?;
        Ok(Self { public, secret })
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostKey(…)")
    }
}

impl fmt::Debug for PairingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairingCode(…)")
    }
}

fn encode(prefix: &str, key: &Key, secret: &Key) -> String {
    let check = check(prefix, key, secret);
    let bytes: Vec<u8> = key.iter().chain(secret).chain(&check).copied().collect();
    format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes))
}

fn decode(prefix: &str, text: &str) -> Result<(Key, Key), CodeError> {
    let coded = text.strip_prefix(prefix).ok_or(CodeError::Prefix)?;
    let bytes = URL_SAFE_NO_PAD.decode(coded).map_err(|_not_base64| CodeError::Mistyped)?;
    let parts = bytes.split_first_chunk::<32>().and_then(|(key, rest)| Some((key, rest.split_first_chunk::<32>()?)));
    match parts {
        Some((key, (secret, end))) if end == check(prefix, key, secret) => Ok((*key, *secret)),
        _ => Err(CodeError::Mistyped),
    }
}

fn check(prefix: &str, key: &Key, secret: &Key) -> [u8; CHECK] {
    let digest = Sha256::new().chain_update(prefix).chain_update(key).chain_update(secret).finalize();
    let mut check = [0; CHECK];
    check.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_and_a_key_are_the_same_after_their_way_through_text() {
        let key = HostKey::generate().unwrap();
        let code = key.pairing_code();
        assert_eq!(key.reveal().parse(), Ok(key.clone()));
        assert_eq!(code.reveal().parse(), Ok(code.clone()));
        assert_ne!(code, HostKey::generate().unwrap().pairing_code());
        assert_ne!(code.public, key.private);
        let shown = format!("{key:?} {code:?}");
        assert_eq!(shown, "HostKey(…) PairingCode(…)");
    }

    #[test]
    fn a_mistyped_code_is_refused_whatever_is_wrong_with_it() {
        let key = HostKey::generate().unwrap();
        let code = key.pairing_code().reveal();
        for at in CODE.len()..code.len() {
            let other = if code.as_bytes()[at] == b'A' { "B" } else { "A" };
            let mistyped = format!("{}{other}{}", &code[..at], &code[at + 1..]);
            assert_eq!(mistyped.parse::<PairingCode>(), Err(CodeError::Mistyped), "character {at}");
        }
        assert_eq!(code[..code.len() - 1].parse::<PairingCode>(), Err(CodeError::Mistyped));
        assert_eq!(format!("{code}A").parse::<PairingCode>(), Err(CodeError::Mistyped));
        assert_eq!("x".parse::<PairingCode>(), Err(CodeError::Prefix));
        assert_eq!(key.reveal().parse::<PairingCode>(), Err(CodeError::HostKey));
        assert_eq!(code.parse::<HostKey>(), Err(CodeError::Prefix));
    }
}
