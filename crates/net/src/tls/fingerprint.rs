//! The fingerprint of a certificate: short enough to be copied by hand, long enough to be trusted.

use std::fmt::{self, Write};
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

const PREFIX: &str = "sha256:";

/// SHA-256 of a certificate, written `sha256:` and 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    pub(super) fn matches(&self, certificate: &CertificateDer<'_>) -> bool {
        self.0.ct_eq(&Self::of(certificate).0).into()
    }

    /// The first sixteen hex digits: enough to tell certificates apart that an authority has signed.
    pub(crate) fn short(&self) -> String {
        hex(self.0.get(..8).unwrap_or_default())
    }
}

/// A digest that was read elsewhere.
impl From<[u8; 32]> for Fingerprint {
    fn from(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads `sha256:` and 64 hex digits, in either case, with or without colons between them.
impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digits = text.strip_prefix(PREFIX).ok_or(FingerprintError::NoPrefix)?;
        let digits: Vec<u32> = digits
            .chars()
            .filter(|c| *c != ':')
            .map(|c| c.to_digit(16))
            .collect::<Option<_>>()
            .ok_or(FingerprintError::NotHex)?;
        let bytes = digits.chunks(2).filter_map(|pair| match *pair {
            [high, low] => u8::try_from(high << 4 | low).ok(),
            _ => None,
        });
        let bytes: Vec<u8> = bytes.collect();
        if digits.len() != 64 {
            return Err(FingerprintError::Length(digits.len()));
        }
        bytes.try_into().map(Self).map_err(|_| FingerprintError::NotHex)
    }
}

/// Why a text is no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FingerprintError {
    /// It does not begin with `sha256:`.
    #[error("a fingerprint begins with sha256:")]
    NoPrefix,
    /// It has something else than hex digits.
    #[error("a fingerprint has hex digits only")]
    NotHex,
    /// It has so many hex digits.
    #[error("a fingerprint has 64 hex digits, not {0}")]
    Length(usize),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_reads_back_as_written() {
        let fingerprint = Fingerprint::of(&CertificateDer::from(b"abc".to_vec()));
        let text = fingerprint.to_string();
        assert_eq!(text, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(text.parse(), Ok(fingerprint));
        let spaced = format!("sha256:BA:{}", &text[9..]);
        assert_eq!(spaced.parse(), Ok(fingerprint));
        assert_eq!(fingerprint.short(), "ba7816bf8f01cfea");
    }

    #[test]
    fn what_is_no_fingerprint_is_refused_by_name() {
        let parse = |text: &str| text.parse::<Fingerprint>().unwrap_err();
        assert_eq!(parse("ba7816bf"), FingerprintError::NoPrefix);
        assert_eq!(parse("sha256:ba78"), FingerprintError::Length(4));
        assert_eq!(parse("sha256:"), FingerprintError::Length(0));
        assert_eq!(parse("sha256:xyz"), FingerprintError::NotHex);
    }
}
