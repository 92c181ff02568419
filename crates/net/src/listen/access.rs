//! Who may come in: those with the token, from pages of our own, by a name that is ours.

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

/// The key of a token in a query, for browsers and plain clients, which cannot set headers.
const TOKEN_KEY: &str = "token";

/// The most that is logged of what a client showed.
const MAX_SHOWN_BYTES: usize = 100;

/// A door: what a client must show, and from where it may come.
///
/// Whatever the token, a browser is let in only from our own page or a configured one (a page of somebody else's could
/// talk to us in its user's name), and only by a name of ours (a stranger's name that points to our address would make
/// the stranger's page ours).
#[derive(Debug)]
pub struct AccessPolicy {
    token: Option<Token>,
    origins: Vec<String>,
    hosts: Vec<String>,
    throttle: Mutex<Throttle>,
}

/// Why somebody was not let in, and what they are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessError {
    /// The `Host` is missing or not ours.
    Host,
    /// The `Origin` is not ours.
    Origin,
    /// There is no token.
    NoToken,
    /// There is a wrong one; the answer has to wait so long.
    WrongToken(Duration),
}

impl AccessPolicy {
    /// A door that opens to this token, shown as `Authorization: Bearer …` or as `?token=…`.
    #[must_use]
    pub fn with_token(token: Token) -> Self {
        Self { token: Some(token), ..Self::open() }
    }

    /// A door without a lock. Every program on this machine, of every user, can come in and do whatever the other side
    /// allows; with remote clients allowed, so can everyone on the network. Pages of strangers still cannot.
    #[must_use]
    pub fn open() -> Self {
        Self { token: None, origins: Vec::new(), hosts: Vec::new(), throttle: Mutex::default() }
    }

    /// Lets in browsers on pages of this origin, such as `https://chat.example.com`, beside our own.
    #[must_use]
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Self {
        self.origins.push(origin.into());
        self
    }

    /// Lets clients call us by this name, with or without a port, beside `localhost` and our address.
    #[must_use]
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Whether anyone may come in without a token.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.token.is_none()
    }

    /// Lets a request in, under a name if it proved one.
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

    /// By which name, and from which page, a request comes.
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

/// Where a request came in, and from where.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestContext {
    pub(super) local: SocketAddr,
    pub(super) peer: IpAddr,
    pub(super) is_tls: bool,
}

impl RequestContext {
    /// The port that goes without saying.
    const fn usual_port(&self) -> u16 {
        if self.is_tls { 443 } else { 80 }
    }

    /// The name by which a request calls us.
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

    /// What the client showed that was refused, if it is no secret. The words are the client's own, and few.
    pub(super) fn shown(self, request: &Parts) -> Option<&str> {
        let name = match self {
            Self::Host => header::HOST,
            Self::Origin => header::ORIGIN,
            Self::NoToken | Self::WrongToken(_) => return None,
        };
        let shown = request.headers.get(name)?.to_str().ok()?;
        shown.get(..shown.floor_char_boundary(MAX_SHOWN_BYTES))
    }

    /// What whoever runs the server can do about it, for logs.
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::Host => ": allow_host accepts more host names",
            Self::Origin => ": allow_origin accepts more origins",
            Self::NoToken | Self::WrongToken(_) => "",
        }
    }

    /// One line for the client. Who calls us by a forwarded port (`ssh -L`, `docker -p`) cannot see our log.
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

    /// How long the answer must wait.
    pub(super) const fn delay(self) -> Duration {
        match self {
            Self::WrongToken(delay) => delay,
            _ => Duration::ZERO,
        }
    }
}

/// A request's path and query, without the token.
pub(super) fn target_without_token(request: &Parts) -> String {
    let path = request.uri.path();
    let rest = request.uri.query().unwrap_or_default().split('&').filter(|pair| !is_token_pair(pair));
    let query = rest.collect::<Vec<_>>().join("&");
    if query.is_empty() { path.into() } else { format!("{path}?{query}") }
}

/// Whether a part of a query is the token, however its key is spelled.
fn is_token_pair(pair: &str) -> bool {
    form_urlencoded::parse(pair.as_bytes()).any(|(key, _)| key == TOKEN_KEY)
}

/// The token that a request shows: in its headers, or else in its query.
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

/// The one value of a header, if there is one. Two are a trick, and an unreadable one is no value.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
        (Some(_), Some(_)) => Err(()),
    }
}

/// Whether a page of this origin was served by the host that it now calls.
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
