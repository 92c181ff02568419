//! Certificates for the tests: an authority that nobody else knows, and what it has signed.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An authority, with its files.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM files.
pub(crate) struct Signed {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let (dir, key) = (TempDir::new().unwrap(), KeyPair::generate().unwrap());
        let mut params = named("an authority", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Without it, OpenSSL does not take it for an authority when it is strict.
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    /// The file with its own certificate.
    pub(crate) fn file(&self) -> String {
        self.path("ca.pem")
    }

    /// Signs a certificate for these names, the first of which is also that of its files.
    pub(crate) fn sign(&self, names: &[&str]) -> Signed {
        let key = KeyPair::generate().unwrap();
        let mut params = named(names[0], names);
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files =
            Signed { cert: self.path(&format!("{}.pem", names[0])), key: self.path(&format!("{}.key", names[0])) };
        std::fs::write(&files.cert, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

impl Signed {
    /// As the peers want it, with the authority to trust, if any.
    pub(crate) fn for_peers(&self, authority: Option<&Authority>) -> Value {
        let mut files = json!({"cert": self.cert, "key": self.key});
        if let Some(authority) = authority {
            files["ca"] = authority.file().into();
        }
        files
    }
}

fn named(name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
