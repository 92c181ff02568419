//! TLS for both ends: who is trusted, and who we are.

mod client;
mod fingerprint;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use thiserror::Error;

pub use self::client::{ClientTls, Roots, Trust};
pub use self::fingerprint::{Fingerprint, FingerprintError};
pub use self::server::ServerTls;

/// Why TLS cannot be set up. Nothing has been sent by then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// A file has no certificate in it.
    #[error("{}: no certificate in it", .0.display())]
    NoCertificate(PathBuf),
    /// The system knows no authority, and no other was named.
    #[error("no root certificates found on this system: name a CA file, or use the built-in ones")]
    NoRoots,
    /// A certificate and a key do not belong together, or are of a sort that we cannot use.
    #[error("certificate or key: {0}")]
    Unusable(#[from] rustls::Error),
    /// A list of authorities for clients is of no use.
    #[error("client authorities: {0}")]
    ClientAuthorities(#[from] rustls::server::VerifierBuilderError),
    /// A self-signed certificate could not be made.
    #[error("self-signed certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
}

/// A certificate and its key, each in a PEM file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by those that lead to an authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Identity {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let certificates = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|source| TlsError::File { path: self.key.clone(), source })?;
        Ok((certificates, key))
    }

    /// Whether both files can be used, together.
    ///
    /// # Errors
    /// Names the file that cannot.
    pub fn check(&self) -> Result<(), TlsError> {
        let (certificates, key) = self.load()?;
        CertifiedKey::from_der(certificates, key, &provider())?;
        Ok(())
    }
}

/// Whether a PEM file has authorities in it, and nothing that is of no use as one.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_authorities(path: &Path) -> Result<(), TlsError> {
    add_authorities(&mut RootCertStore::empty(), path)
}

/// All certificates in a PEM file; at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source| TlsError::File { path: path.into(), source };
    let found = CertificateDer::pem_file_iter(path).map_err(file)?.collect::<Result<Vec<_>, _>>().map_err(file)?;
    if found.is_empty() { Err(TlsError::NoCertificate(path.into())) } else { Ok(found) }
}

/// Adds the authorities in a PEM file.
fn add_authorities(roots: &mut RootCertStore, path: &Path) -> Result<(), TlsError> {
    for certificate in certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(())
}

/// The cryptography that we use, whatever else the process has installed.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
