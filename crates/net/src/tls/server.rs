//! The server's side: who we are, and which clients we ask who they are.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::{Fingerprint, Identity, TlsError, add_authorities, provider};

/// How a server does TLS.
pub struct ServerTls {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    fingerprint: Fingerprint,
    client_authorities: Option<RootCertStore>,
}

impl ServerTls {
    /// With a certificate and a key from PEM files.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub fn from_files(identity: &Identity) -> Result<Self, TlsError> {
        let (certificates, key) = identity.load()?;
        let fingerprint = certificates.first().map(Fingerprint::of);
        let fingerprint = fingerprint.ok_or_else(|| TlsError::NoCertificate(identity.certificate.clone()))?;
        Ok(Self { certificates, key, fingerprint, client_authorities: None })
    }

    /// With a new self-signed certificate for these names and addresses. For development: a client either pins its
    /// [`fingerprint`](Self::fingerprint), or accepts any certificate.
    ///
    /// # Errors
    /// A name is none.
    pub fn self_signed(names: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, TlsError> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let made = rcgen::generate_simple_self_signed(names)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let certificate = made.cert.der().clone();
        let fingerprint = Fingerprint::of(&certificate);
        Ok(Self { certificates: vec![certificate], key, fingerprint, client_authorities: None })
    }

    /// Lets in only clients with a certificate from one of the authorities in this PEM file.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn clients_signed_by(mut self, ca_file: &Path) -> Result<Self, TlsError> {
        add_authorities(self.client_authorities.get_or_insert_with(RootCertStore::empty), ca_file)?;
        Ok(self)
    }

    /// The certificate's fingerprint, which a client may pin.
    #[must_use]
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Proves that all fits together.
    pub(crate) fn acceptor(self) -> Result<TlsAcceptor, TlsError> {
        let provider = provider();
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(roots) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?,
            ),
        };
        let mut config = builder.with_single_cert(self.certificates, self.key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Says nothing about the key.
impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}
