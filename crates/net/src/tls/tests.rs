//! Both ends of TLS: what is trusted, what is refused, and with which words.

use std::path::PathBuf;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::*;
use crate::dial::ProxyChoice;
use crate::listen::{Accepted, AccessPolicy, ListenConfig, Listener};
use crate::{Address, BoxLink, DialError, Dialer, Transport};

const SOON: Duration = Duration::from_secs(20);

/// An authority, and files that it signed.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let (dir, key) = (TempDir::new().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn identity(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let (certificate_file, key_file) =
            (self.dir.path().join(format!("{name}.pem")), self.dir.path().join(format!("{name}.key")));
        std::fs::write(&certificate_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        Identity { certificate: certificate_file, key: key_file }
    }
}

/// A client that trusts so much dials a server that shows so much.
async fn meet(client: ClientTls, server: ServerTls) -> Result<(BoxLink, Accepted), DialError> {
    let mut config = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open());
    config.tls = Some(server);
    let mut listener = Listener::bind(config).await.unwrap();
    let transport = Transport::WebSocket {
        tls: true,
        host: "localhost".into(),
        port: listener.local_address().port(),
        target: "/".into(),
    };
    let address = Address { transport, dialect: None, cap: None, preset: None, token: None, private: None };
    let dialer = Dialer { tls: client, proxy: ProxyChoice::Never, timeout: SOON, ..Dialer::default() };
    let accepting = tokio::spawn(async move { listener.accept().await });
    let link = dialer.dial(&address).await.inspect_err(|_| accepting.abort())?;
    Ok((link, accepting.await.unwrap()))
}

async fn refusal(client: ClientTls, server: ServerTls) -> String {
    let error = meet(client, server).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, DialError::Tls { .. }), "{error:?}");
    error.to_string()
}

fn trusting(trust: Trust) -> ClientTls {
    ClientTls { trust, ..ClientTls::default() }
}

fn self_signed() -> ServerTls {
    ServerTls::self_signed(["localhost"]).unwrap()
}

#[tokio::test]
async fn a_pinned_fingerprint_is_trusted_and_no_other() {
    let (server, other) = (self_signed(), self_signed());
    let pinned: Fingerprint = server.fingerprint().to_string().parse().unwrap();
    let refused = refusal(trusting(Trust::Pinned(pinned)), other).await;
    assert!(refused.contains("pinned fingerprint"), "{refused}");
    let (_link, accepted) = meet(trusting(Trust::Pinned(pinned)), server).await.unwrap();
    assert_eq!(accepted.principal, None);
}

#[tokio::test]
async fn a_certificate_that_nobody_signed_is_refused_with_advice() {
    for roots in [Roots::WebPki, Roots::Both] {
        let refused = refusal(trusting(Trust::Authorities(roots)), self_signed()).await;
        assert!(refused.contains("CA file") && refused.contains("pin"), "{refused}");
    }
    assert!(meet(trusting(Trust::Anyone), self_signed()).await.is_ok());
}

#[tokio::test]
async fn an_authority_from_a_file_is_trusted_for_the_names_that_it_signed() {
    let authority = Authority::new();
    let client = || ClientTls {
        trust: Trust::Authorities(Roots::None),
        ca_file: Some(authority.file()),
        ..ClientTls::default()
    };
    let server = |name| ServerTls::from_files(&authority.identity(name)).unwrap();
    assert!(meet(client(), server("localhost")).await.is_ok());
    let refused = refusal(client(), server("elsewhere.example")).await;
    assert!(refused.contains("another name"), "{refused}");
    let refused = refusal(client(), self_signed()).await;
    assert!(refused.contains("CA file"), "{refused}");
}

#[tokio::test]
async fn a_server_can_ask_who_its_clients_are() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = || self_signed().clients_signed_by(&authority.file()).unwrap();
    let client = |identity| ClientTls { identity, ..trusting(Trust::Anyone) };
    let (_link, accepted) = meet(client(Some(authority.identity("alice"))), server()).await.unwrap();
    assert!(accepted.principal.unwrap().starts_with("certificate:"));
    for identity in [None, Some(stranger.identity("mallory"))] {
        let refused = refusal(client(identity), server()).await;
        assert!(refused.contains("client certificate"), "{refused}");
    }
}

#[tokio::test]
async fn a_client_that_stalls_in_its_tls_holds_up_nobody_and_is_dropped() {
    let server = self_signed();
    let trust = Trust::Pinned(server.fingerprint());
    let mut config = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open());
    (config.tls, config.handshake_timeout) = (Some(server), Duration::from_millis(500));
    let mut listener = Listener::bind(config).await.unwrap();
    let at = listener.local_address();
    tokio::spawn(async move { while !listener.accept().await.target.is_empty() {} });
    let mut stalled = tokio::net::TcpStream::connect(at).await.unwrap();
    let transport = Transport::WebSocket { tls: true, host: "localhost".into(), port: at.port(), target: "/".into() };
    let dialer = Dialer { tls: trusting(trust), proxy: ProxyChoice::Never, timeout: SOON, ..Dialer::default() };
    assert!(
        dialer
            .dial(&Address { transport, dialect: None, cap: None, preset: None, token: None, private: None })
            .await
            .is_ok()
    );
    let end = tokio::time::timeout(SOON, tokio::io::AsyncReadExt::read(&mut stalled, &mut [0])).await;
    assert!(matches!(end.expect("it is dropped"), Ok(0) | Err(_)));
}

#[tokio::test]
async fn a_server_without_tls_is_found_out() {
    let mut listener =
        Listener::bind(ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open())).await.unwrap();
    let port = listener.local_address().port();
    tokio::spawn(async move { listener.accept().await });
    let transport = Transport::WebSocket { tls: true, host: "127.0.0.1".into(), port, target: "/".into() };
    let dialer = Dialer { proxy: ProxyChoice::Never, timeout: SOON, ..Dialer::default() };
    let error = dialer
        .dial(&Address { transport, dialect: None, cap: None, preset: None, token: None, private: None })
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("ws://"), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let missing = Identity { certificate: "no/such.pem".into(), key: "no/such.key".into() };
    let error = ServerTls::from_files(&missing).unwrap_err().to_string();
    assert!(error.contains("no/such.pem"), "{error}");
    let identity = authority.identity("x");
    let missing = Identity { key: "no/such.key".into(), ..identity.clone() };
    let error = missing.check().unwrap_err().to_string();
    assert!(error.contains("no/such.key"), "{error}");
    identity.check().unwrap();
    check_authorities(&identity.certificate).unwrap();
    std::fs::write(&identity.certificate, "no certificate").unwrap();
    let error = ServerTls::from_files(&identity).unwrap_err();
    assert!(matches!(error, TlsError::NoCertificate(_)), "{error}");
    let (one, two) = (authority.identity("one"), authority.identity("two"));
    let mixed = Identity { certificate: one.certificate, key: two.key };
    assert!(matches!(mixed.check(), Err(TlsError::Unusable(_))));
    let mixed = ServerTls::from_files(&mixed).unwrap();
    assert!(matches!(mixed.acceptor().map(|_| ()), Err(TlsError::Unusable(_))));
    let client = ClientTls { trust: Trust::Authorities(Roots::None), ..ClientTls::default() };
    assert!(matches!(client.connector().map(|_| ()), Err(TlsError::NoRoots)));
}

#[test]
fn keys_are_not_shown() {
    let shown = format!("{:?}", self_signed());
    assert!(shown.contains("sha256:") && shown.len() < 150, "{shown}");
}
