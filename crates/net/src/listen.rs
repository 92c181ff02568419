//! Accepts links: WebSockets behind a door, whose handshakes never hold each other up.

mod access;
mod http;
mod throttle;
mod token;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::HeaderValue;
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

pub use self::access::AccessPolicy;
use self::http::{Admitted, HttpServer, Upgraded};
pub use self::http::{BoxBody, Pages, Peer};
pub use self::token::{Token, TokenError};
use crate::link::{BoxLink, WebSocket, WebSocketConfig, tune};
use crate::log_limit::LogLimit;
use crate::tls::{Fingerprint, ServerTls, TlsError};

/// How long to wait before accepting again when the system has no room, such as for more open files.
const BREATHER: Duration = Duration::from_millis(100);

/// What to listen on, and who may come in.
#[derive(Debug)]
pub struct ListenConfig {
    /// The address and port. Port 0 takes any that is free.
    pub address: SocketAddr,
    /// Whether an address that other machines can reach is meant. No: anyone who can reach it can knock.
    pub allow_remote: bool,
    /// Who may come in.
    pub access: AccessPolicy,
    /// TLS, if the links are `wss`.
    pub tls: Option<ServerTls>,
    /// The only path at which there are WebSockets, such as `/ahp`. None: at any.
    pub path: Option<String>,
    /// What answers requests that ask for no WebSocket. None: they are told that there is nothing else.
    pub pages: Option<Pages>,
    /// How long a client may take for TLS, and as long again for its request. 10 s.
    pub handshake_timeout: Duration,
    /// How many connections may be in their handshake, or be asking for pages. When one more comes, the oldest of them
    /// goes: an honest one is done in far less time than others need to come. 256.
    pub max_handshakes: usize,
    /// How the links behave.
    pub link: WebSocketConfig,
}

impl ListenConfig {
    /// With this address and door, without TLS, and with usual limits.
    #[must_use]
    pub fn new(address: SocketAddr, access: AccessPolicy) -> Self {
        Self {
            address,
            allow_remote: false,
            access,
            tls: None,
            path: None,
            pages: None,
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 256,
            link: WebSocketConfig::default(),
        }
    }
}

/// Why nobody can be accepted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is not loopback, and nobody said that this is meant.
    #[error(
        "{0} can be reached from other machines: use a loopback address such as 127.0.0.1, or allow remote clients explicitly"
    )]
    Remote(SocketAddr),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A link that a client has made to us.
pub struct Accepted {
    /// The link.
    pub link: BoxLink,
    /// Where the client is.
    pub peer: SocketAddr,
    /// Under which name its bytes are charged to the budget: that of its token, or of its certificate. None for a client
    /// who did not have to prove anything.
    pub principal: Option<Arc<str>>,
    /// The path and query that it asked for. The token is not in it.
    pub target: String,
    /// The WebSocket subprotocol that it was granted: the first of those that it offered, if any.
    pub protocol: Option<HeaderValue>,
}

/// Accepts links.
///
/// Handshakes run in tasks of their own, so a client that is slow or silent in its own holds up nobody. Dropping the
/// listener ends those that are under way, and leaves accepted links alone.
pub struct Listener {
    tcp: TcpListener,
    local: SocketAddr,
    tls: Option<TlsAcceptor>,
    server: Arc<HttpServer>,
    link: WebSocketConfig,
    max_handshakes: usize,
    handshakes: JoinSet<Option<Accepted>>,
    /// The same tasks, oldest first.
    by_age: VecDeque<AbortHandle>,
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address is not loopback and this was not allowed, or cannot be had; or TLS cannot be set up.
    pub async fn bind(config: ListenConfig) -> Result<Self, ListenError> {
        let address = config.address;
        if !config.allow_remote && !address.ip().to_canonical().is_loopback() {
            return Err(ListenError::Remote(address));
        }
        let tls = config.tls.map(ServerTls::acceptor).transpose()?;
        let failed = |source| ListenError::Bind { address, source };
        let tcp = TcpListener::bind(address).await.map_err(failed)?;
        let local = tcp.local_addr().map_err(failed)?;
        let server = HttpServer {
            access: config.access,
            path: config.path,
            pages: config.pages,
            timeout: config.handshake_timeout,
            is_tls: tls.is_some(),
            log: LogLimit::default(),
        };
        Ok(Self {
            tcp,
            local,
            tls,
            server: Arc::new(server),
            link: config.link,
            max_handshakes: config.max_handshakes.max(1),
            handshakes: JoinSet::new(),
            by_age: VecDeque::new(),
        })
    }

    /// Where we listen, with the port that was given.
    #[must_use]
    pub const fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The next link. Cancel-safe. Does not fail: what goes wrong is one client's trouble, or passes.
    pub async fn accept(&mut self) -> Accepted {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    self.by_age.retain(|task| !task.is_finished());
                    if let Ok(Some(accepted)) = done {
                        return accepted;
                    }
                }
                arrived = self.tcp.accept() => match arrived {
                    Ok((stream, peer)) => self.begin(stream, peer),
                    Err(error) => {
                        if let Some(permit) = self.server.log.permit("accept") {
                            tracing::warn!(%error, left_out = permit.left_out(), "cannot accept a connection");
                        }
                        tokio::time::sleep(BREATHER).await;
                    }
                },
            }
        }
    }

    /// Begins a handshake, in place of the oldest one if there are too many.
    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        while self.by_age.len() >= self.max_handshakes {
            if let Some(oldest) = self.by_age.pop_front() {
                if let Some(permit) = self.server.log.permit("crowded") {
                    let (limit, left_out) = (self.max_handshakes, permit.left_out());
                    tracing::warn!(limit, left_out, "too many handshakes at once, the oldest is dropped");
                }
                oldest.abort();
            }
        }
        tune(&stream, &self.link);
        let (server, link, tls) = (Arc::clone(&self.server), self.link, self.tls.clone());
        let task = async move {
            let accepted = match tls {
                None => plain(stream, peer, &server, &link).await,
                Some(tls) => secured(stream, peer, &tls, &server, &link).await,
            };
            if let Err(error) = &accepted
                && let Some(permit) = server.log.permit("handshake-failed")
            {
                tracing::debug!(%peer, error, left_out = permit.left_out(), "handshake failed");
            }
            accepted.ok().flatten()
        };
        self.by_age.push_back(self.handshakes.spawn(task));
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local).field("server", &self.server).finish_non_exhaustive()
    }
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted").field("peer", &self.peer).field("principal", &self.principal).finish_non_exhaustive()
    }
}

/// A failed handshake concerns nobody but the one who logs it.
type HandshakeError = Box<dyn std::error::Error + Send + Sync>;

async fn plain(
    stream: TcpStream,
    peer: SocketAddr,
    server: &Arc<HttpServer>,
    link: &WebSocketConfig,
) -> Result<Option<Accepted>, HandshakeError> {
    let local = stream.local_addr()?;
    let upgraded = http::serve(stream, peer, local, server).await?;
    Ok(upgraded.map(|upgraded| accepted(upgraded, peer, None, link)))
}

async fn secured(
    stream: TcpStream,
    peer: SocketAddr,
    tls: &TlsAcceptor,
    server: &Arc<HttpServer>,
    link: &WebSocketConfig,
) -> Result<Option<Accepted>, HandshakeError> {
    let local = stream.local_addr()?;
    let secured = tokio::time::timeout(server.timeout, tls.accept(stream)).await?;
    let stream = secured.inspect_err(|error| report_uncertified(error, peer, &server.log))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|all| all.first()).map(certified);
    let upgraded = http::serve(stream, peer, local, server).await?;
    Ok(upgraded.map(|upgraded| accepted(upgraded, peer, certificate, link)))
}

/// Logs that a client was kept out for its certificate, or for want of one. Whatever else fails in TLS is no refusal.
fn report_uncertified(error: &io::Error, peer: SocketAddr, log: &LogLimit) {
    let reason = match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::NoCertificatesPresented) => "no-certificate",
        Some(rustls::Error::InvalidCertificate(_)) => "wrong-certificate",
        _ => return,
    };
    let Some(permit) = log.permit(reason) else { return };
    let left_out = permit.left_out();
    tracing::info!(peer = %peer.ip(), reason, %error, left_out, "a client was refused: it needs a certificate that an authority in tls_client_ca signed");
}

/// The name of a client that proved who it is by a certificate.
fn certified(certificate: &CertificateDer<'_>) -> Arc<str> {
    format!("certificate:{}", Fingerprint::of(certificate).short()).into()
}

fn accepted<S>(
    upgraded: Upgraded<S>,
    peer: SocketAddr,
    certificate: Option<Arc<str>>,
    link: &WebSocketConfig,
) -> Accepted
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let Upgraded { io, ahead, admitted: Admitted { principal, target, protocol } } = upgraded;
    let link = Box::new(WebSocket::server_with(io, ahead, link));
    Accepted { link, peer, principal: principal.or(certificate), target, protocol }
}
