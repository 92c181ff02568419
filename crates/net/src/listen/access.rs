//! Decides which clients may connect: by their token, by the origin of their page, and by the host name that they use for us.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts;
use http::uri::Authority;
use tokio::time::Instant;
use url::{Url, form_urlencoded};

use super::throttle::Throttle;
use super::token::Token;

/// The query parameter for the token, for browsers and other clients that cannot set headers.
const TOKEN_KEY: &str = "token";

/// How many bytes of a refused header are logged.
const MAX_SHOWN_BYTES: usize = 100;

/// Decides which clients may connect.
///
/// Beside the token, a browser needs an allowed origin, which is our own page or a configured one: otherwise any page could talk to us
/// in the name of its user. And it has to use an allowed host name for us: otherwise a stranger's host name that resolves to our address
/// would make the stranger's page count as ours.
#[derive(Debug)]
pub struct AccessPolicy {
    token: Option<Token>,
    origins: Vec<String>,
    hosts: Vec<String>,
    throttle: Mutex<Throttle>,
}

/// Why a client was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessError {
    /// The `Host` is missing or not ours.
    Host,
    /// The `Origin` is not ours.
    Origin,
    /// There is no token.
    NoToken,
    /// The token is wrong. The answer is delayed by this long.
    WrongToken(Duration),
}

impl AccessPolicy {
    /// Clients need this token, as `Authorization: Bearer …` or as `?token=…`.
    #[must_use]
    pub fn with_token(token: Token) -> Self {
        Self { token: Some(token), ..Self::open() }
    }

    /// Clients need no token. Every program of every user on this machine can connect, and do whatever the host allows; with remote
    /// clients allowed, so can everyone on the network. Pages of other origins still cannot.
    #[must_use]
    pub fn open() -> Self {
        Self { token: None, origins: Vec::new(), hosts: Vec::new(), throttle: Mutex::default() }
    }

    /// Also allows browsers on pages of this origin, such as `https://chat.example.com`.
    #[must_use]
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Self {
        self.origins.push(origin.into());
        self
    }

    /// Also allows clients to use this host name for us, with or without a port, beside `localhost` and our address.
    #[must_use]
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Whether clients need no token.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.token.is_none()
    }

    /// Admits a request. Returns its principal, if it has one.
    pub(super) fn admit(&self, request: &Parts, context: &RequestContext) -> Result<Option<Arc<str>>, AccessError> {
        self.check_where(request, context)?;
        let Some(token) = &self.token else {
            return Ok(None);
        };
        let shown = shown_token(request).ok_or(AccessError::NoToken)?;
        if token.is(&shown) {
            return Ok(Some(token.principal()));
        }
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        Err(AccessError::WrongToken(throttle.note_mistake(context.peer, Instant::now())))
    }

    /// Checks the host name and the origin of a request.
    fn check_where(&self, request: &Parts, context: &RequestContext) -> Result<(), AccessError> {
        let host = RequestContext::host(request).ok_or(AccessError::Host)?;
        if !self.is_ours(&host, context) {
            return Err(AccessError::Host);
        }
        match single(&request.headers, &header::ORIGIN) {
            Ok(None) => Ok(()),
            Ok(Some(origin)) if self.origins.iter().any(|allowed| is_same_origin(allowed, origin)) => Ok(()),
            Ok(Some(origin)) if is_page_of(origin, &host, context.usual_port()) => Ok(()),
            _ => Err(AccessError::Origin),
        }
    }

    fn is_ours(&self, host: &Authority, context: &RequestContext) -> bool {
        let name = bare(host.host());
        let port = host.port_u16().unwrap_or(context.usual_port());
        let is_configured = self.hosts.iter().any(|allowed| match allowed.parse::<Authority>() {
            Ok(allowed) => {
                bare(allowed.host()).eq_ignore_ascii_case(name) && allowed.port_u16().is_none_or(|named| named == port)
            }
            Err(_) => false,
        });
        let is_here = match name.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || address.to_canonical() == context.local.ip().to_canonical(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        };
        is_configured || is_here && port == context.local.port()
    }
}

/// The connection on which a request came.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestContext {
    pub(super) local: SocketAddr,
    pub(super) peer: IpAddr,
    pub(super) is_tls: bool,
}

impl RequestContext {
    /// The default port of the scheme.
    const fn usual_port(&self) -> u16 {
        if self.is_tls { 443 } else { 80 }
    }

    /// The host name that a request uses for us.
    fn host(request: &Parts) -> Option<Authority> {
        single(&request.headers, &header::HOST).ok()??.parse().ok()
    }
}

impl AccessError {
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::NoToken | Self::WrongToken(_) => StatusCode::UNAUTHORIZED,
        }
    }

    /// A short name for logs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Host => "foreign-host",
            Self::Origin => "foreign-origin",
            Self::NoToken => "no-token",
            Self::WrongToken(_) => "wrong-token",
        }
    }

    /// The header that was refused, shortened, if it is not a secret. These are the client's own words.
    pub(super) fn shown(self, request: &Parts) -> Option<&str> {
        let name = match self {
            Self::Host => header::HOST,
            Self::Origin => header::ORIGIN,
            Self::NoToken | Self::WrongToken(_) => return None,
        };
        let shown = request.headers.get(name)?.to_str().ok()?;
        shown.get(..shown.floor_char_boundary(MAX_SHOWN_BYTES))
    }

    /// What the operator can do about it, for logs.
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::Host => ": allow_host accepts more host names",
            Self::Origin => ": allow_origin accepts more origins",
            Self::NoToken | Self::WrongToken(_) => "",
        }
    }

    /// A line for the client. A person who uses a forwarded port (`ssh -L`, `docker -p`) may not be able to see our log.
    pub(super) fn text(self, request: &Parts) -> String {
        match self {
            Self::Host => match RequestContext::host(request).filter(|host| host.as_str().len() <= MAX_SHOWN_BYTES) {
                Some(host) => format!(
                    "This server does not accept the host name {host}. If that is its own name or a forwarded port, \
                     start it with --allow-host {host}.\n"
                ),
                None => "This server does not accept the name in the Host header.\n".into(),
            },
            Self::Origin => "Pages of that origin may not connect here; --allow-origin accepts more origins.\n".into(),
            Self::NoToken => "A token is needed, as Authorization: Bearer TOKEN or as ?token=TOKEN.\n".into(),
            Self::WrongToken(_) => "The token is wrong.\n".into(),
        }
    }

    /// How long the answer is delayed.
    pub(super) const fn delay(self) -> Duration {
        match self {
            Self::WrongToken(delay) => delay,
            _ => Duration::ZERO,
        }
    }
}

/// The path and query of a request, without the token.
pub(super) fn target_without_token(request: &Parts) -> String {
    let path = request.uri.path();
    let rest = request.uri.query().unwrap_or_default().split('&').filter(|pair| !is_token_pair(pair));
    let query = rest.collect::<Vec<_>>().join("&");
    if query.is_empty() { path.into() } else { format!("{path}?{query}") }
}

/// Whether a query parameter is the token, even if its name is escaped.
fn is_token_pair(pair: &str) -> bool {
    form_urlencoded::parse(pair.as_bytes()).any(|(key, _)| key == TOKEN_KEY)
}

/// The token of a request: in its headers, or else in its query.
fn shown_token(request: &Parts) -> Option<Vec<u8>> {
    if let Some(authorization) = request.headers.get(header::AUTHORIZATION) {
        let (scheme, token) = authorization.as_bytes().split_at_checked("Bearer ".len())?;
        return scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii().to_vec());
    }
    let query = request.uri.query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes())
        .find(|(key, _)| key == TOKEN_KEY)
        .map(|(_, token)| token.into_owned().into())
}

/// The value of a header, if there is one. It is an error if there are two, or if it is not text.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
        (Some(_), Some(_)) => Err(()),
    }
}

/// Whether a page of this origin came from the host to which it now connects.
fn is_page_of(origin: &str, host: &Authority, usual_port: u16) -> bool {
    let Ok(origin) = Url::parse(origin) else {
        return false;
    };
    matches!(origin.scheme(), "http" | "https")
        && origin.host_str().is_some_and(|name| bare(name).eq_ignore_ascii_case(bare(host.host())))
        && origin.port_or_known_default() == Some(host.port_u16().unwrap_or(usual_port))
}

fn is_same_origin(allowed: &str, origin: &str) -> bool {
    match (Url::parse(allowed), Url::parse(origin)) {
        (Ok(allowed), Ok(origin)) => allowed.origin().is_tuple() && allowed.origin() == origin.origin(),
        _ => false,
    }
}

/// A host without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}
