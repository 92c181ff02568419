//! Opens a link to an address.

mod error;
mod fetch;
mod forward;
mod http;
mod proxy;
mod tcp;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ::http::{Request, Uri};
use bytes::Bytes;
use http_body_util::Empty;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

pub use self::error::DialError;
pub(crate) use self::forward::Forwarded;
use breakbulk_proto::Capacity;

use self::http::{Exchanged, exchange};
use self::proxy::Proxy;
pub use self::proxy::ProxyChoice;
use crate::address::{Address, Transport};
use crate::external::{Connector, LinkRequest};
use crate::link::{BoxLink, Exec, ExecConfig, Key, WebSocket, WebSocketConfig, accept_for, stdio, unix};
use crate::listen::Token;
use crate::private::{self, PrivateError};
use crate::tls::ClientTls;

/// Opens links to addresses.
#[derive(Clone)]
pub struct Dialer {
    /// Additional headers of the handshake request, such as cookies. Never logged.
    pub headers: HeaderMap,
    /// Sent as `Authorization: Bearer …`. Never logged.
    pub token: Option<Token>,
    /// TLS settings for `wss://`: which servers are trusted, and our certificate.
    pub tls: ClientTls,
    /// How long it may take to open a link, with name resolution, proxy, TLS and handshake. 15 s.
    pub timeout: Duration,
    /// The HTTP proxy. By default the one that the environment names.
    pub proxy: ProxyChoice,
    /// Settings of the link. A cap in the address takes precedence. The longest frame holds for all transports.
    pub link: WebSocketConfig,
    /// What opens links to addresses of a scheme that another crate provides. Without one, they cannot be dialed.
    pub connector: Option<Arc<dyn Connector>>,
}

impl Default for Dialer {
    fn default() -> Self {
        Self {
            headers: HeaderMap::new(),
            token: None,
            tls: ClientTls::default(),
            timeout: Duration::from_secs(15),
            proxy: ProxyChoice::Environment,
            link: WebSocketConfig::default(),
            connector: None,
        }
    }
}

impl Dialer {
    /// Adds a header as a person writes it: `Name: value`.
    ///
    /// # Errors
    /// It is not a header, or it is one that belongs to the handshake itself.
    pub fn add_header(&mut self, line: &str) -> Result<(), DialError> {
        let refused = || DialError::Header(line.split(':').next().unwrap_or_default().trim().into());
        let (name, value) = line.split_once(':').ok_or_else(refused)?;
        let name: HeaderName = name.trim().parse().map_err(|_| refused())?;
        let mut value: HeaderValue = value.trim().parse().map_err(|_| refused())?;
        if OURS.contains(&name) {
            return Err(refused());
        }
        value.set_sensitive(true);
        self.headers.append(name, value);
        Ok(())
    }

    /// Opens a link to this address. A token in the address takes precedence over [`token`](Self::token), and over an `Authorization`
    /// header.
    ///
    /// # Errors
    /// No link could be opened; there is one variant per cause.
    pub async fn dial(&self, address: &Address) -> Result<BoxLink, DialError> {
        let Some(private) = &address.private else { return self.dial_openly(address).await };
        let code = private.pairing_code().map_err(PrivateError::from)?;
        let link = self.dial_openly(address).await?;
        Ok(private::connect(link, &code, self.link.max_frame_bytes).await?)
    }

    /// Opens a link to this address, and takes no notice of its `private=`: for who makes it private from the side of the host.
    ///
    /// # Errors
    /// As [`dial`](Self::dial).
    pub async fn dial_openly(&self, address: &Address) -> Result<BoxLink, DialError> {
        match &address.token {
            // A person who pastes an address with a token means that token.
            Some(token) => {
                let mut dialer = self.clone();
                dialer.headers.remove(header::AUTHORIZATION);
                dialer.token = Some(token.clone());
                dialer.reach_address(address).await
            }
            None => self.reach_address(address).await,
        }
    }

    async fn reach_address(&self, address: &Address) -> Result<BoxLink, DialError> {
        let cap = address.effective_cap().unwrap_or(self.link.cap);
        let (capacity, max) = (Capacity::of(cap), self.link.max_frame_bytes);
        let Transport::WebSocket { tls, host, port, target } = &address.transport else {
            return match &address.transport {
                Transport::Unix(path) => {
                    let failed = |source| DialError::Unix { path: path.clone(), source };
                    Ok(Box::new(unix::connect(path, capacity, max).await.map_err(failed)?))
                }
                Transport::Exec(command) => {
                    Ok(Box::new(Exec::spawn(&ExecConfig::new(command.clone(), capacity, max))?))
                }
                Transport::External { scheme, .. } => {
                    let connector = self.connector.as_ref().ok_or(DialError::NoConnector(scheme.name))?;
                    let request = LinkRequest { cap, max_frame_bytes: max };
                    match tokio::time::timeout(self.timeout, connector.connect(request)).await {
                        Ok(dialed) => dialed,
                        Err(_) => Err(DialError::TimedOut(self.timeout)),
                    }
                }
                _ => Ok(Box::new(stdio(capacity, max).map_err(DialError::Stdio)?)),
            };
        };
        let target = Target { is_tls: *tls, host, port: *port, path: target };
        let link = WebSocketConfig { cap, ..self.link };
        match tokio::time::timeout(self.timeout, self.web_socket(target, &link)).await {
            Ok(dialed) => dialed,
            Err(_) => Err(DialError::TimedOut(self.timeout)),
        }
    }

    async fn web_socket(&self, target: Target<'_>, link: &WebSocketConfig) -> Result<BoxLink, DialError> {
        let tls = if target.is_tls { Some(self.tls.connector()?) } else { None };
        let mut io = self.reach(target, link).await?;
        if let Some(tls) = tls {
            io = secure(&tls, target.host, io).await?;
        }
        let key = Key::generate().map_err(DialError::Random)?;
        let upgraded = exchange(io, self.upgrade(target, &key)?).await;
        let Exchanged { headers, io, ahead } =
            upgraded.map_err(|error| if target.is_tls { error.after_tls() } else { error.without_tls() })?;
        check_upgrade(&headers, &key)?;
        Ok(Box::new(WebSocket::client_with(io, ahead, link)))
    }

    /// Opens a stream of bytes to the target, through a proxy if there is one.
    async fn reach(&self, target: Target<'_>, link: &WebSocketConfig) -> Result<BoxIo, DialError> {
        let Some(proxy) = self.proxy.proxy_for(target.is_tls, target.host, target.port)? else {
            return Ok(Box::new(tcp::connect(target.host, target.port, self.timeout, link).await?));
        };
        self.tunnel(&proxy, target, link)
            .await
            .map_err(|cause| DialError::Proxy { proxy: proxy.name(), cause: Box::new(cause) })
    }

    async fn tunnel(&self, proxy: &Proxy, target: Target<'_>, link: &WebSocketConfig) -> Result<BoxIo, DialError> {
        let mut io: BoxIo = Box::new(tcp::connect(&proxy.host, proxy.port, self.timeout, link).await?);
        if proxy.is_tls {
            io = secure(&self.tls.connector()?, &proxy.host, io).await?;
        }
        let granted = exchange(io, proxy.connect(&target.authority())?).await;
        let Exchanged { io, ahead, .. } = granted.map_err(|error| proxy.explain(error))?;
        if ahead.is_empty() { Ok(io) } else { Err(DialError::NotWebSocket("the proxy speaks before it is asked")) }
    }

    /// The request that asks for a WebSocket.
    fn upgrade(&self, target: Target<'_>, key: &Key) -> Result<Request<Empty<Bytes>>, DialError> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = target.path.parse::<Uri>().map_err(|_| DialError::Target)?;
        let headers = request.headers_mut();
        for (name, value) in [
            (header::HOST, target.host_header().as_str()),
            (header::CONNECTION, "Upgrade"),
            (header::UPGRADE, "websocket"),
            (header::SEC_WEBSOCKET_VERSION, "13"),
            (header::SEC_WEBSOCKET_KEY, key.as_str()),
        ] {
            headers.insert(name, HeaderValue::from_str(value).map_err(|_| DialError::Target)?);
        }
        if let Some(token) = &self.token {
            headers.insert(header::AUTHORIZATION, token.bearer());
        }
        for (name, value) in &self.headers {
            if OURS.contains(name) {
                return Err(DialError::Header(name.to_string()));
            }
            headers.append(name, value.clone());
        }
        Ok(request)
    }
}

/// Shows the names of headers, and not their values.
impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer")
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("token", &self.token)
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .field("proxy", &self.proxy)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

/// Headers that belong to the handshake itself.
const OURS: [HeaderName; 8] = [
    header::HOST,
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
];

/// A stream of bytes of any type.
pub(crate) type BoxIo = Box<dyn Io>;

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for S {}

/// The server of a WebSocket.
#[derive(Clone, Copy)]
struct Target<'a> {
    is_tls: bool,
    host: &'a str,
    port: u16,
    path: &'a str,
}

impl Target<'_> {
    /// Host and port, for a proxy.
    fn authority(&self) -> String {
        format!("{}:{}", bracketed(self.host), self.port)
    }

    /// Host and port for the `Host` header, in which a default port is left out.
    fn host_header(&self) -> String {
        let usual = if self.is_tls { 443 } else { 80 };
        if self.port == usual { bracketed(self.host) } else { self.authority() }
    }
}

/// An IPv6 address needs brackets where a port may follow.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.into() }
}

/// Begins TLS on a stream.
async fn secure(tls: &TlsConnector, host: &str, io: BoxIo) -> Result<BoxIo, DialError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| DialError::Target)?;
    match tls.connect(name, io).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(DialError::in_tls(error)),
    }
}

/// Checks that the server accepted the handshake, and did not choose an extension that we did not offer.
fn check_upgrade(headers: &HeaderMap, key: &Key) -> Result<(), DialError> {
    let says = |name, value: &str| {
        headers.get(name).and_then(|found| found.to_str().ok()).is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    if !says(header::UPGRADE, "websocket") {
        return Err(DialError::NotWebSocket("it upgrades to something else"));
    }
    let accept = headers.get(header::SEC_WEBSOCKET_ACCEPT).map(HeaderValue::as_bytes);
    if accept != Some(accept_for(key.as_str().as_bytes()).as_bytes()) {
        return Err(DialError::NotWebSocket("it does not prove that it read our key"));
    }
    if headers.contains_key(header::SEC_WEBSOCKET_EXTENSIONS) {
        return Err(DialError::NotWebSocket("it uses extensions that we did not ask for"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
