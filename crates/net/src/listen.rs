//! Accepts WebSockets from clients that the access policy admits. A slow handshake does not delay others.

mod access;
mod forward;
mod http;
mod throttle;
mod token;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::HeaderValue;
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

pub use self::access::AccessPolicy;
pub use self::forward::{Forwarding, Upstream};
use self::http::{Admitted, HttpServer, Served, Upgraded};
pub use self::http::{BoxBody, Gate, Granted, Pages, Peer};
pub use self::token::{Token, TokenError};
use crate::link::{BoxLink, WebSocket, WebSocketConfig, tune};
use crate::log_limit::LogLimit;
use crate::private::{self, HostKey};
use crate::tls::{Fingerprint, ServerTls, TlsError};

/// How long to wait before accepting again when the system is out of a resource, such as open files.
const BREATHER: Duration = Duration::from_millis(100);

/// What to listen on, and who may connect.
#[derive(Debug)]
pub struct ListenConfig {
    /// The address and port. Port 0 takes any that is free.
    pub address: SocketAddr,
    /// Whether the address may be one that other machines can reach. No, because then anyone who can reach it can try to connect.
    pub allow_remote: bool,
    /// Who may connect.
    pub access: AccessPolicy,
    /// Decides about WebSockets instead of `access`, for servers whose clients authenticate in another way.
    pub gate: Option<Gate>,
    /// TLS, if the links are `wss`.
    pub tls: Option<ServerTls>,
    /// The paths at which there are WebSockets, such as `/ahp`. None for any path. [`Accepted::target`] says which one a client
    /// asked for.
    pub paths: Vec<String>,
    /// What answers requests that do not ask for a WebSocket. `None` if they get an error.
    pub pages: Option<Pages>,
    /// What carries connections to another server while that one serves in our place. `None` if this process serves all.
    pub forwarding: Option<Forwarding>,
    /// The key of the host, if all links are private. Then clients need its pairing code.
    pub private: Option<HostKey>,
    /// How long a client may take for the TLS handshake, and then again for its request. 10 s.
    pub handshake_timeout: Duration,
    /// How many connections may be in their handshake, or requesting pages. When one more comes, the oldest of them is dropped: an honest
    /// client is done long before so many others have come. 256.
    pub max_handshakes: usize,
    /// How the links behave.
    pub link: WebSocketConfig,
}

impl ListenConfig {
    /// With this address and access policy, without TLS, and with default limits.
    #[must_use]
    pub fn new(address: SocketAddr, access: AccessPolicy) -> Self {
        Self {
            address,
            allow_remote: false,
            access,
            gate: None,
            tls: None,
            paths: Vec::new(),
            pages: None,
            forwarding: None,
            private: None,
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 256,
            link: WebSocketConfig::default(),
        }
    }
}

/// Why a listener could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is not loopback, and remote clients were not allowed.
    #[error(
        "{0} can be reached from other machines: use a loopback address such as 127.0.0.1, or allow remote clients explicitly"
    )]
    Remote(SocketAddr),
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A link from a client.
pub struct Accepted {
    /// The link.
    pub link: BoxLink,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The principal to which its bytes are charged, by its token or certificate. `None` for a client that did not have to authenticate.
    pub principal: Option<Arc<str>>,
    /// The path and query that it requested, without the token.
    pub target: String,
    /// The WebSocket subprotocol that it was granted: the first of those that it offered, if any.
    pub protocol: Option<HeaderValue>,
    /// What the gate noted about the client.
    pub extensions: ::http::Extensions,
}

impl Accepted {
    /// The path that it requested.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split_once('?').map_or(&*self.target, |(path, _)| path)
    }
}

/// Accepts links.
///
/// Each handshake runs in a task of its own, so a slow or silent client does not delay others. Dropping the listener ends unfinished
/// handshakes and the connections that are carried to another server, and does not affect accepted links.
pub struct Listener {
    tcp: TcpListener,
    local: SocketAddr,
    tls: Option<TlsAcceptor>,
    server: Arc<HttpServer>,
    link: WebSocketConfig,
    max_handshakes: usize,
    handshakes: JoinSet<Option<Handshaken>>,
    /// The same tasks, oldest first.
    by_age: VecDeque<AbortHandle>,
    /// Connections that are carried to another server.
    carried: JoinSet<()>,
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address is not loopback and remote clients were not allowed, or the address cannot be used, or TLS cannot be set up.
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
            gate: config.gate,
            paths: config.paths,
            pages: config.pages,
            forwarding: config.forwarding,
            private: config.private,
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
            carried: JoinSet::new(),
        })
    }

    /// The address on which we listen, with the actual port.
    #[must_use]
    pub const fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The next link. Cancel-safe. Does not fail: errors concern a single client, or are temporary.
    pub async fn accept(&mut self) -> Accepted {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    self.by_age.retain(|task| !task.is_finished());
                    match done {
                        Ok(Some(Handshaken::Link(accepted))) => return *accepted,
                        Ok(Some(Handshaken::Carried(connection))) => drop(self.carried.spawn(connection)),
                        Ok(None) | Err(_) => {}
                    }
                }
                Some(_) = self.carried.join_next() => {}
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

    /// Begins a handshake. If there are too many, the oldest one is dropped.
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
            let accepted = match (accepted, &server.private) {
                (Ok(Some(Handshaken::Link(accepted))), Some(key)) => {
                    let private = make_private(*accepted, key, link.max_frame_bytes, &server.log).await;
                    Ok(private.map(|accepted| Handshaken::Link(Box::new(accepted))))
                }
                (accepted, _) => accepted,
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

/// What a handshake has led to.
enum Handshaken {
    Link(Box<Accepted>),
    /// The connection to another server, until it ends.
    Carried(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// Why a handshake failed. Only logged.
type HandshakeError = Box<dyn std::error::Error + Send + Sync>;

async fn plain(
    stream: TcpStream,
    peer: SocketAddr,
    server: &Arc<HttpServer>,
    link: &WebSocketConfig,
) -> Result<Option<Handshaken>, HandshakeError> {
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
) -> Result<Option<Handshaken>, HandshakeError> {
    let local = stream.local_addr()?;
    let secured = tokio::time::timeout(server.timeout, tls.accept(stream)).await?;
    let stream = secured.inspect_err(|error| report_uncertified(error, peer, &server.log))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|all| all.first()).map(certified);
    let upgraded = http::serve(stream, peer, local, server).await?;
    Ok(upgraded.map(|upgraded| accepted(upgraded, peer, certificate, link)))
}

/// Makes a link private. `None` if the client was refused.
async fn make_private(accepted: Accepted, key: &HostKey, max_frame_bytes: u64, log: &LogLimit) -> Option<Accepted> {
    let Accepted { link, peer, principal, target, protocol, extensions } = accepted;
    match private::accept(link, key, max_frame_bytes).await {
        Ok(link) => Some(Accepted { link, peer, principal, target, protocol, extensions }),
        Err(error) => {
            if let Some(permit) = log.permit(error.name()) {
                let (reason, left_out) = (error.name(), permit.left_out());
                tracing::info!(peer = %peer.ip(), reason, left_out, "a client was refused: {error}");
            }
            None
        }
    }
}

/// Logs that a client was refused because of its certificate, or because it has none. Other failures of TLS are no refusal.
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

/// The principal of a client that authenticated with a certificate.
fn certified(certificate: &CertificateDer<'_>) -> Arc<str> {
    format!("certificate:{}", Fingerprint::of(certificate).short()).into()
}

fn accepted<S>(
    upgraded: Upgraded<S>,
    peer: SocketAddr,
    certificate: Option<Arc<str>>,
    link: &WebSocketConfig,
) -> Handshaken
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let Upgraded { io, ahead, served } = upgraded;
    match served {
        Served::Here(Admitted { principal, target, protocol, extensions }) => {
            let link = Box::new(WebSocket::server_with(io, ahead, link));
            let principal = principal.or(certificate);
            Handshaken::Link(Box::new(Accepted { link, peer, principal, target, protocol, extensions }))
        }
        Served::Elsewhere(carried) => Handshaken::Carried(Box::pin(carried.run(io, ahead))),
    }
}
