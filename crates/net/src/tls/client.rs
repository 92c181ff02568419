//! The client's side: whom we trust, and who we say we are.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::{Fingerprint, Identity, TlsError, add_authorities, provider};

/// How a client does TLS. By default it trusts both the system's authorities and the built-in ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Which servers are trusted.
    pub trust: Trust,
    /// A PEM file of further authorities, trusted beside the others.
    pub ca_file: Option<PathBuf>,
    /// Who we are, for servers that ask.
    pub identity: Option<Identity>,
}

/// Which servers are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Those whose certificate leads to an authority and has the right name.
    Authorities(Roots),
    /// The one whose certificate has this fingerprint, whatever its name, issuer or age.
    Pinned(Fingerprint),
    /// Any. Whoever stands between us and the server can read and change everything, the token too. For development.
    Anyone,
}

impl Default for Trust {
    fn default() -> Self {
        Self::Authorities(Roots::Both)
    }
}

/// Where authorities come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Roots {
    /// The operating system's.
    Native,
    /// Mozilla's, built into the program.
    WebPki,
    /// Both.
    #[default]
    Both,
    /// Neither: only a CA file's.
    None,
}

impl ClientTls {
    /// Reads the files and proves that they fit together.
    ///
    /// # Errors
    /// Names the file, or what does not fit.
    pub(crate) fn connector(&self) -> Result<TlsConnector, TlsError> {
        let provider = provider();
        let builder =
            ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match self.trust {
            Trust::Authorities(roots) => builder.with_root_certificates(self.roots(roots)?),
            Trust::Pinned(fingerprint) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(ByHand { pinned: Some(fingerprint), provider })),
            Trust::Anyone => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(ByHand { pinned: None, provider }))
            }
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (certificates, key) = identity.load()?;
                builder.with_client_auth_cert(certificates, key)?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    fn roots(&self, from: Roots) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        if matches!(from, Roots::WebPki | Roots::Both) {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        if matches!(from, Roots::Native | Roots::Both) {
            let native = rustls_native_certs::load_native_certs();
            for error in native.errors {
                tracing::warn!(%error, "some of the system's root certificates cannot be read");
            }
            // Systems keep old certificates that no library understands any more.
            let (_, ignored) = roots.add_parsable_certificates(native.certs);
            if ignored > 0 {
                tracing::debug!(ignored, "some of the system's root certificates are of no use");
            }
        }
        if let Some(path) = &self.ca_file {
            add_authorities(&mut roots, path)?;
        }
        if roots.is_empty() { Err(TlsError::NoRoots) } else { Ok(roots) }
    }
}

/// Trusts by fingerprint, or anyone. That the server holds the key of its certificate is proven in any case.
#[derive(Debug)]
struct ByHand {
    pinned: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ByHand {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.pinned {
            Some(pinned) if !pinned.matches(certificate) => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
