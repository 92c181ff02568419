//! The HTTP proxy to go by, and the hosts that the environment exempts from it.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request};
use http_body_util::Empty;
use url::Url;

use super::{DialError, bracketed};

/// Which HTTP proxy a dialer goes by.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// The one that `https_proxy` (for `wss`), `http_proxy` (for `ws`) or `all_proxy` names, except for hosts that
    /// `no_proxy` names and for our own machine. Upper-case names count too, except `HTTP_PROXY`.
    #[default]
    Environment,
    /// None, whatever the environment says.
    Never,
    /// This one, for every host: `http://name:password@host:port`, or `https://…`.
    Url(String),
}

impl ProxyChoice {
    pub(super) fn proxy_for(&self, is_tls: bool, host: &str, port: u16) -> Result<Option<Proxy>, DialError> {
        match self {
            Self::Environment => Environment::read().proxy_for(is_tls, host, port),
            Self::Never => Ok(None),
            Self::Url(url) => {
                Proxy::parse(url).map(Some).ok_or(DialError::ProxyInvalid { named_by: "the proxy option" })
            }
        }
    }
}

/// Says nothing about a password.
impl fmt::Debug for ProxyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("Environment"),
            Self::Never => f.write_str("Never"),
            Self::Url(url) => f.debug_tuple("Url").field(&Proxy::parse(url).map(|proxy| proxy.name())).finish(),
        }
    }
}

/// The variables that are about proxies. An empty one counts as none.
struct Environment {
    /// Name and value, for `wss`.
    https: Option<(&'static str, String)>,
    /// Name and value, for `ws`.
    http: Option<(&'static str, String)>,
    no_proxy: String,
}

impl Environment {
    /// As the process has it. The lower-case names come first, as everywhere; `HTTP_PROXY` is not looked at, because in a
    /// CGI program a stranger sets it with a `Proxy` header.
    fn read() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&'static str]| {
            let mut found =
                names.iter().filter_map(|name| Some((*name, lookup(name).filter(|value| !value.is_empty())?)));
            found.next()
        };
        Self {
            https: first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            http: first(&["http_proxy", "all_proxy", "ALL_PROXY"]),
            no_proxy: first(&["no_proxy", "NO_PROXY"]).map(|(_, value)| value).unwrap_or_default(),
        }
    }

    /// The proxy for this host, if there is one. Our own machine is never behind a proxy.
    fn proxy_for(&self, is_tls: bool, host: &str, port: u16) -> Result<Option<Proxy>, DialError> {
        let named = if is_tls { &self.https } else { &self.http };
        match named {
            Some((named_by, value)) if !is_local(host) && !self.is_exempt(host, port) => {
                Proxy::parse(value).map(Some).ok_or(DialError::ProxyInvalid { named_by })
            }
            _ => Ok(None),
        }
    }

    /// Whether `no_proxy` names the host: by itself, by a domain that it is in, by a network, or by `*`.
    fn is_exempt(&self, host: &str, port: u16) -> bool {
        let entries = self.no_proxy.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty());
        let address: Option<IpAddr> = host.parse().ok();
        entries.into_iter().any(|entry| match address {
            _ if entry == "*" => true,
            Some(address) => {
                is_in_network(address, entry)
                    || without_port(entry, port).parse().is_ok_and(|named: IpAddr| named == address)
            }
            None => {
                let domain = without_port(entry, port).trim_start_matches("*.").trim_matches('.').to_ascii_lowercase();
                let host = host.trim_end_matches('.').to_ascii_lowercase();
                let rest = host.strip_suffix(&domain);
                !domain.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
        })
    }
}

/// A proxy.
pub(super) struct Proxy {
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// `Basic …`, from a name and a password in the URL.
    authorization: Option<HeaderValue>,
}

impl Proxy {
    fn parse(text: &str) -> Option<Self> {
        let url = if text.contains("://") { Url::parse(text) } else { Url::parse(&format!("http://{text}")) }.ok()?;
        let is_tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
        let has_credentials = !url.username().is_empty() || url.password().is_some();
        let authorization = if has_credentials { Some(basic(&url)?) } else { None };
        Some(Self { is_tls, host, port: url.port_or_known_default()?, authorization })
    }

    /// Host and port; nothing secret.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", bracketed(&self.host), self.port)
    }

    /// Asks for a tunnel to `authority`.
    pub(super) fn connect(&self, authority: &str) -> Result<Request<Empty<Bytes>>, DialError> {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = authority.parse().map_err(|_| DialError::Target)?;
        let host = HeaderValue::from_str(authority).map_err(|_| DialError::Target)?;
        request.headers_mut().insert(header::HOST, host);
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::PROXY_AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    /// The error of a refused tunnel. If the proxy asks for a name and password although they were sent, it has refused them.
    pub(super) fn explain(&self, error: DialError) -> DialError {
        match error {
            DialError::Status { status: 407, words } if self.authorization.is_some() => {
                DialError::ProxyCredentials { words }
            }
            other => other,
        }
    }
}

/// Says nothing about the password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("is_tls", &self.is_tls).field("name", &self.name()).finish_non_exhaustive()
    }
}

fn basic(url: &Url) -> Option<HeaderValue> {
    let decoded = |text: &str| -> Vec<u8> { percent_encoding::percent_decode_str(text).collect() };
    let mut pair = decoded(url.username());
    pair.push(b':');
    pair.extend(decoded(url.password().unwrap_or_default()));
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// An entry of `no_proxy`, without its port and brackets. Empty, so that it matches no host, if it is for another port.
fn without_port(entry: &str, port: u16) -> &str {
    let (host, named) = match entry.rsplit_once(':') {
        Some((host, named)) if !host.contains(':') || host.ends_with(']') => (host, Some(named)),
        _ => (entry, None),
    };
    if named.is_some_and(|named| named.parse() != Ok(port)) {
        return "";
    }
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether `entry` is a network such as `10.0.0.0/8` that has the address in it.
fn is_in_network(address: IpAddr, entry: &str) -> bool {
    let Some((network, bits)) = entry.split_once('/') else {
        return false;
    };
    let bits: Option<u32> = bits.parse().ok();
    let shift = |width: u32| bits.and_then(|bits| width.checked_sub(bits));
    match (address, network.parse()) {
        (IpAddr::V4(address), Ok(IpAddr::V4(network))) => shift(32).is_some_and(|shift| {
            address.to_bits().checked_shr(shift).unwrap_or(0) == network.to_bits().checked_shr(shift).unwrap_or(0)
        }),
        (IpAddr::V6(address), Ok(IpAddr::V6(network))) => shift(128).is_some_and(|shift| {
            address.to_bits().checked_shr(shift).unwrap_or(0) == network.to_bits().checked_shr(shift).unwrap_or(0)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Environment::from_lookup(lookup)
    }

    fn name(environment: &Environment, is_tls: bool, host: &str) -> Option<String> {
        environment.proxy_for(is_tls, host, 443).unwrap().map(|proxy| proxy.name())
    }

    #[test]
    fn each_scheme_has_its_variable_and_all_proxy_stands_in() {
        let both = environment(&[("https_proxy", "http://a:1"), ("HTTPS_PROXY", "http://b:2"), ("ALL_PROXY", "c:3")]);
        assert_eq!(name(&both, true, "example.com").unwrap(), "a:1");
        assert_eq!(name(&both, false, "example.com").unwrap(), "c:3");
        let upper = environment(&[("HTTPS_PROXY", "https://b"), ("HTTP_PROXY", "http://stranger:1")]);
        assert_eq!(name(&upper, true, "example.com").unwrap(), "b:443");
        assert_eq!(name(&upper, false, "example.com"), None);
        assert_eq!(name(&environment(&[("https_proxy", "")]), true, "example.com"), None);
    }

    #[test]
    fn hosts_that_no_proxy_names_and_our_own_machine_are_reached_directly() {
        let no_proxy = "one.example, .two.example,*.three.example 10.0.0.0/8,192.168.1.1,fd00::/8,four.example:443,five.example:80";
        let some = environment(&[("https_proxy", "p:1"), ("no_proxy", no_proxy)]);
        for direct in [
            "one.example",
            "A.One.Example",
            "two.example",
            "x.two.example",
            "x.three.example",
            "10.200.0.1",
            "192.168.1.1",
            "fd00::1",
            "four.example",
            "localhost",
            "127.0.0.1",
            "::1",
        ] {
            assert_eq!(name(&some, true, direct), None, "{direct}");
        }
        for by_proxy in ["anyone.example", "example", "11.0.0.1", "192.168.1.2", "fe00::1", "five.example"] {
            assert!(name(&some, true, by_proxy).is_some(), "{by_proxy}");
        }
        let all = environment(&[("https_proxy", "p:1"), ("NO_PROXY", "*")]);
        assert_eq!(name(&all, true, "example.com"), None);
    }

    #[test]
    fn credentials_are_sent_and_not_shown() {
        let proxy = Proxy::parse("http://me:p%40ss@proxy.example:3128").unwrap();
        let request = proxy.connect("example.com:443").unwrap();
        let sent = request.headers().get(header::PROXY_AUTHORIZATION).unwrap();
        assert_eq!(sent.to_str().unwrap(), format!("Basic {}", STANDARD.encode("me:p@ss")));
        let shown = format!("{proxy:?} {request:?}");
        assert!(shown.contains("proxy.example:3128") && !shown.contains("p@ss") && !shown.contains("Basic"), "{shown}");
    }

    #[test]
    fn a_proxy_of_another_sort_is_refused_by_the_name_of_its_variable() {
        let socks = environment(&[("ALL_PROXY", "socks5://secret@p:1")]);
        let error = socks.proxy_for(true, "example.com", 443).unwrap_err().to_string();
        assert!(error.contains("ALL_PROXY") && !error.contains("secret"), "{error}");
    }
}
