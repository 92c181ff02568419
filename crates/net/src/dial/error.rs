//! Why there is no link, one variant per cause.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};
use thiserror::Error;

use crate::link::ExecError;
use crate::private::PrivateError;
use crate::tls::TlsError;

/// Why a link could not be made. Carries no secrets: no header values, no query.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DialError {
    /// Nobody listens on a Unix socket, or we may not connect to it.
    #[error("{} cannot be reached: {source}", path.display())]
    Unix {
        /// The socket's file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A command cannot be started, or has exited.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// Standard input and output cannot be used.
    #[error("standard input and output cannot be used: {0}")]
    Stdio(io::Error),
    /// This program has nothing that opens links to addresses of this scheme.
    #[error("links of the scheme {0:?} cannot be opened here")]
    NoConnector(&'static str),
    /// A transport that another crate provides could not open a link.
    #[error("{scheme}: {cause}")]
    External {
        /// Its scheme.
        scheme: &'static str,
        /// Why. Shows no secrets.
        #[source]
        cause: Box<dyn Error + Send + Sync>,
    },
    /// A name has no address.
    #[error("{host} cannot be resolved: {source}")]
    NotResolved {
        /// The name.
        host: String,
        /// The error of the resolver.
        source: io::Error,
    },
    /// Nobody listens there.
    #[error("{host} port {port} refused the connection: nobody listens there")]
    Refused {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
    /// There is no route to the host.
    #[error("{host} port {port} cannot be reached: {source}")]
    Unreachable {
        /// The name.
        host: String,
        /// The port.
        port: u16,
        /// The error of the system for the last address that was tried.
        source: io::Error,
    },
    /// It took longer than allowed.
    #[error("no connection after {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// TLS cannot be set up on our side.
    #[error(transparent)]
    TlsSetup(#[from] TlsError),
    /// TLS failed with this peer.
    #[error("TLS failed: {source}{hint}")]
    Tls {
        /// What can be done about it; empty, or begins with a semicolon.
        hint: &'static str,
        /// What was wrong.
        source: io::Error,
    },
    /// The server, or a proxy, answered with another status.
    #[error("HTTP status {status}{}{}", after_colon(words), status_hint(*status))]
    Status {
        /// The status.
        status: u16,
        /// The first words of the response's body.
        words: String,
    },
    /// The server is not a WebSocket server.
    #[error("not a WebSocket server: {0}")]
    NotWebSocket(&'static str),
    /// The server does not speak HTTP, or closed the connection too early.
    #[error("the HTTP exchange failed: {}", with_causes(.0))]
    Http(#[source] hyper::Error),
    /// The same, on a connection without TLS. A server that expects TLS looks like that.
    #[error("the HTTP exchange failed: {}; did you mean wss:// ?", with_causes(.0))]
    HttpWithoutTls(#[source] hyper::Error),
    /// The TLS handshake was done, and then the server closed the connection without an answer. Some servers refuse a client certificate
    /// like that.
    #[error(
        "the server closed the connection after the TLS handshake, without an answer: {}; \
         perhaps it requires a client certificate that it trusts",
        with_causes(.0)
    )]
    EndedAfterTls(#[source] hyper::Error),
    /// The connection through a proxy failed.
    #[error("proxy {proxy}: {cause}")]
    Proxy {
        /// Its host and port.
        proxy: String,
        /// Why.
        #[source]
        cause: Box<DialError>,
    },
    /// A proxy refused the name and password.
    #[error("HTTP status 407{}; it refused the name and password that were sent", after_colon(words))]
    ProxyCredentials {
        /// The first words of the response's body.
        words: String,
    },
    /// The proxy that is configured cannot be used.
    #[error("{named_by} does not name an http:// or https:// proxy")]
    ProxyInvalid {
        /// The environment variable, or the option.
        named_by: &'static str,
    },
    /// A header is not valid, or is one that belongs to the handshake.
    #[error("header {0:?} cannot be sent")]
    Header(String),
    /// The host or the path is not allowed in a request.
    #[error("the host or the path of the address is not allowed in a request")]
    Target,
    /// The link was opened, and could not be made private.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// The system gave no random bytes.
    #[error("the system gave no random bytes: {0}")]
    Random(getrandom::Error),
}

impl DialError {
    pub(super) fn in_tls(source: io::Error) -> Self {
        let hint = source.get_ref().and_then(|error| error.downcast_ref()).map_or("", hint);
        Self::Tls { hint, source }
    }

    /// A failed HTTP exchange. That a server refuses our certificate shows only here, after the TLS handshake.
    pub(super) fn in_http(error: hyper::Error) -> Self {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            let io: Option<&io::Error> = inner.downcast_ref();
            if let Some(tls) = io.and_then(|io| io.get_ref()).and_then(|error| error.downcast_ref::<rustls::Error>()) {
                return Self::in_tls(io::Error::new(io::ErrorKind::InvalidData, tls.clone()));
            }
            cause = inner.source();
        }
        Self::Http(error)
    }

    /// The same, where there is no TLS.
    pub(super) fn without_tls(self) -> Self {
        match self {
            Self::Http(error) => Self::HttpWithoutTls(error),
            other => other,
        }
    }

    /// The same, after a TLS handshake: there an end without an answer may be a refusal of our certificate.
    pub(super) fn after_tls(self) -> Self {
        match self {
            Self::Http(error) if !error.is_parse() => Self::EndedAfterTls(error),
            other => other,
        }
    }
}

/// A colon and the words of the server, if there are any.
fn after_colon(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

/// What can be done about a status.
fn status_hint(status: u16) -> &'static str {
    match status {
        407 => "; it requires a name and password: http://NAME:PASSWORD@HOST:PORT",
        _ => "",
    }
}

/// An error of hyper with its causes, which hyper does not print.
fn with_causes(error: &hyper::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}

/// What can be done about a failure of TLS.
fn hint(error: &rustls::Error) -> &'static str {
    use rustls::Error as Tls;
    match error {
        Tls::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "; no authority that we trust has signed its certificate: name its CA file (--tls-ca FILE), \
             or pin its fingerprint (--tls-fingerprint sha256:HEX)"
        }
        Tls::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            "; its certificate does not have the pinned fingerprint: it was renewed, or this is another server"
        }
        Tls::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "; its certificate is for another name: connect by that name",
        Tls::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => "; its certificate is not valid today, or our clock is wrong",
        Tls::InvalidMessage(_) => "; it does not speak TLS on this port: did you mean ws:// ?",
        Tls::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown,
        ) => {
            "; it requires a client certificate that it trusts: name it and its key (--tls-client-cert FILE, \
             --tls-client-key FILE)"
        }
        _ => "",
    }
}
