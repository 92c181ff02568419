//! The transports of an address, and how they are written.

use std::fmt;
use std::path::PathBuf;

use http::uri::PathAndQuery;
use percent_encoding::percent_decode_str;
use url::Host;

use super::error::AddressError;
use super::mask;
use super::options::Options;
use crate::external::Scheme;
use crate::listen::{Token, TokenError};

/// What carries the frames. Its `Debug` shows no secrets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// A WebSocket.
    WebSocket {
        /// Whether it is `wss`.
        tls: bool,
        /// A name or an address, without brackets.
        host: String,
        /// The port; 80 or 443 if none was named.
        port: u16,
        /// The path and query of the request; at least `/`.
        target: String,
    },
    /// A Unix socket, on which each line is a frame.
    Unix(PathBuf),
    /// Our own standard input and output, on which each line is a frame.
    Stdio,
    /// The standard input and output of a child process, on which each line is a frame.
    Exec(Vec<String>),
    /// A transport whose links another crate provides.
    External {
        /// Its scheme.
        scheme: &'static Scheme,
        /// What stands between the scheme and the query. It may contain secrets.
        target: String,
        /// The parameters of the query that are not our own options, in order and unescaped.
        options: Vec<(String, String)>,
    },
}

impl Transport {
    /// Whether it is our own standard input and output.
    #[must_use]
    pub const fn is_stdio(&self) -> bool {
        matches!(self, Self::Stdio)
    }

    /// Whether it is a WebSocket.
    #[must_use]
    pub const fn is_web_socket(&self) -> bool {
        matches!(self, Self::WebSocket { .. })
    }

    /// Whether it is a WebSocket over TLS.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        matches!(self, Self::WebSocket { tls: true, .. })
    }

    /// Whether it carries frames as they are, so that a frame may contain line ends.
    #[must_use]
    pub const fn carries_frames(&self) -> bool {
        matches!(self, Self::WebSocket { .. } | Self::External { .. })
    }

    /// Whether it leads to a single peer, which is there from the start.
    #[must_use]
    pub const fn is_single(&self) -> bool {
        matches!(self, Self::Stdio | Self::Exec(_))
    }

    /// Writes it as an address with these options.
    pub(super) fn write(&self, options: &Options, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket { tls, host, port, target } => {
                f.write_str(if *tls { "wss://" } else { "ws://" })?;
                // Only an IPv6 address has colons.
                if host.contains(':') { write!(f, "[{host}]") } else { f.write_str(host) }?;
                if *port != default_port(*tls) {
                    write!(f, ":{port}")?;
                }
                f.write_str(&mask::target(target))?;
                write_query(options, if target.contains('?') { '&' } else { '?' }, f)
            }
            Self::Unix(path) => {
                write!(f, "unix:{}", path.display())?;
                write_query(options, '?', f)
            }
            Self::Stdio => {
                f.write_str("stdio:")?;
                write_query(options, '?', f)
            }
            Self::Exec(words) => {
                f.write_str("exec:")?;
                if !options.is_empty() {
                    write!(f, "?{options} ")?;
                }
                f.write_str(&shell_words::join(mask::command(words)))
            }
            Self::External { scheme, target, options: own } => {
                write!(f, "{}:{}", scheme.name, mask::settings(target))?;
                let mut between = '?';
                for (name, value) in own {
                    write!(f, "{between}{}", mask::option(name, value))?;
                    between = '&';
                }
                write_query(options, between, f)
            }
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(&Options::default(), f)
    }
}

/// A whole address: the transport, the options that were taken out of it, and the token that follows it.
pub(super) fn parse(text: &str) -> Result<(Transport, Options, Option<Token>), AddressError> {
    // A mistyped address may have a secret further on.
    let unknown =
        |name: &str| AddressError::UnknownScheme { scheme: name.chars().take(32).collect(), likely: likely(text) };
    let without_token = |(transport, options)| (transport, options, None);
    if text.trim().is_empty() {
        return Err(AddressError::Empty);
    }
    let Some((name, rest)) = text.split_once(':') else {
        return Err(unknown(text.split(['?', '@', '/', ' ']).next().unwrap_or_default()));
    };
    match (name.to_ascii_lowercase().as_str(), rest.strip_prefix("//")) {
        ("ws", Some(rest)) => web_socket(false, rest),
        ("wss", Some(rest)) => web_socket(true, rest),
        ("ws" | "wss", None) => Err(unknown(&text[..=name.len()])),
        ("unix", _) => unix(rest).map(without_token),
        ("stdio", _) => stdio(rest).map(without_token),
        ("exec", _) => exec(rest).map(without_token),
        (name, _) if let Some(scheme) = Scheme::find(name) => external(scheme, rest).map(without_token),
        _ => Err(unknown(name.split(['?', '@', '/', ' ']).next().unwrap_or_default())),
    }
}

/// What was probably meant by an address without a scheme of ours. Nothing that follows the host is repeated: it may be
/// a secret.
fn likely(text: &str) -> Option<String> {
    if let Some((program, _)) = text.split_once(char::is_whitespace) {
        let is_program = !program.is_empty() && !program.contains("://");
        let words = shell_words::split(text).ok().filter(|_| is_program && !text.contains(['=', '@']))?;
        return Some(format!("exec:{}", shell_words::join(mask::command(&words))));
    }
    if text.starts_with(['/', '.', '~']) {
        return Some(format!("unix:{}", text.split('?').next()?));
    }
    match text {
        "stdio" | "stdin" | "stdout" | "-" => return Some("stdio:".to_owned()),
        "exec" => return Some("exec:COMMAND".to_owned()),
        "unix" => return Some("unix:PATH".to_owned()),
        _ => {}
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return port(text).ok().map(|port| format!("ws://127.0.0.1:{port}"));
    }
    // A word alone is a mistyped name of something else as often as a host.
    if !text.contains(['.', ':', '/', '[']) && text != "localhost" {
        return None;
    }
    let (scheme, rest) = text.split_once("://").unwrap_or_else(|| match text.split_once(':') {
        Some((scheme @ ("ws" | "wss"), rest)) => (scheme, rest),
        _ => ("", text),
    });
    let is_tls = ["https", "wss", "tls", "ssl"].iter().any(|part| scheme.to_ascii_lowercase().contains(part));
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = self::authority(authority, is_tls).ok()?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let port = if port == default_port(is_tls) { String::new() } else { format!(":{port}") };
    Some(format!("{}://{host}{port}", if is_tls { "wss" } else { "ws" }))
}

fn web_socket(tls: bool, rest: &str) -> Result<(Transport, Options, Option<Token>), AddressError> {
    let (rest, token) = match rest.split_once('#') {
        Some((rest, fragment)) => (rest, Some(self::token(fragment)?)),
        None => (rest, None),
    };
    let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let authority = self::authority(authority, tls).map_err(|error| match rest.rsplit_once('@') {
        // What looks like a host may be part of a password that has a slash in it.
        Some((_, after)) => {
            AddressError::UserInfo { host: after.split(['/', '?']).next().unwrap_or_default().to_owned() }
        }
        None => error,
    });
    let (host, port) = authority?;
    let (target, options) = self::target(target)?;
    Ok((Transport::WebSocket { tls, host, port, target }, options, token))
}

/// The token in a fragment, which may have escapes.
fn token(fragment: &str) -> Result<Token, AddressError> {
    let escaped = fragment.strip_prefix("token=").ok_or(AddressError::Fragment)?;
    let text = percent_decode_str(escaped).decode_utf8().map_err(|_| AddressError::Token(TokenError::NotVisible))?;
    text.parse().map_err(AddressError::Token)
}

fn authority(text: &str, tls: bool) -> Result<(String, u16), AddressError> {
    if let Some((_, host)) = text.rsplit_once('@') {
        return Err(AddressError::UserInfo { host: host.to_owned() });
    }
    let (host, port) = match text.rsplit_once(':') {
        // The last colon of an IPv6 address is inside its brackets.
        Some((host, port)) if !port.ends_with(']') => (host, self::port(port)?),
        _ => (text, default_port(tls)),
    };
    match Host::parse(host) {
        Ok(Host::Domain(name)) => Ok((name, port)),
        Ok(Host::Ipv4(ip)) => Ok((ip.to_string(), port)),
        Ok(Host::Ipv6(ip)) => Ok((ip.to_string(), port)),
        Err(_) => Err(AddressError::Host(host.to_owned())),
    }
}

/// Digits only: `parse` alone would take a sign.
fn port(text: &str) -> Result<u16, AddressError> {
    let port = if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None };
    port.ok_or_else(|| AddressError::Port(text.to_owned()))
}

/// What the peer sees of a path and a query: all but our options, byte for byte and in order.
fn target(text: &str) -> Result<(String, Options), AddressError> {
    let (path, query) = match text.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (text, None),
    };
    let mut target = if path.is_empty() { "/".to_owned() } else { path.to_owned() };
    let mut options = Options::default();
    let mut between = '?';
    for part in query.into_iter().flat_map(|query| query.split('&')) {
        if !options.take(part)? {
            // The peer would never miss it, and the cap would not hold.
            let name = part.split_once('=').map_or(part, |(name, _)| name);
            if super::options::likely(name).is_some() {
                return Err(AddressError::unknown_option(name));
            }
            target.push(between);
            target.push_str(part);
            between = '&';
        }
    }
    let may_stand = |char: &char| char.is_ascii_graphic() && PathAndQuery::try_from(format!("/?{char}")).is_ok();
    match target.chars().find(|char| !may_stand(char)) {
        Some(char) => Err(AddressError::Target(char)),
        None if PathAndQuery::try_from(target.as_str()).is_err() => Err(AddressError::Target('?')),
        None => Ok((target, options)),
    }
}

/// The path ends at the first question mark.
fn unix(rest: &str) -> Result<(Transport, Options), AddressError> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(AddressError::NoPath);
    }
    Ok((Transport::Unix(path.into()), Options::parse(query)?))
}

fn stdio(rest: &str) -> Result<(Transport, Options), AddressError> {
    match rest.strip_prefix('?') {
        Some(query) => Ok((Transport::Stdio, Options::parse(query)?)),
        None if rest.is_empty() => Ok((Transport::Stdio, Options::default())),
        None => Err(AddressError::AfterStdio(rest.to_owned())),
    }
}

/// Options end at the first white space.
fn exec(rest: &str) -> Result<(Transport, Options), AddressError> {
    let (query, command) = match rest.strip_prefix('?') {
        Some(rest) => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        None => ("", rest),
    };
    let options = Options::parse(query)?;
    let words = shell_words::split(command).map_err(|_| AddressError::OpenQuote)?;
    // An empty name cannot be started either.
    match words.first() {
        Some(program) if !program.is_empty() => Ok((Transport::Exec(words), options)),
        _ => Err(AddressError::NoCommand),
    }
}

/// The target ends at the first question mark.
fn external(scheme: &'static Scheme, rest: &str) -> Result<(Transport, Options), AddressError> {
    let (target, query) = rest.split_once('?').unwrap_or((rest, ""));
    if target.is_empty() {
        return Err(AddressError::NoTarget { scheme: scheme.name, form: scheme.form });
    }
    let (mut options, mut own) = (Options::default(), Vec::new());
    for part in query.split('&').filter(|part| !part.is_empty()) {
        if options.take(part)? {
            continue;
        }
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        if super::options::likely(name).is_some() {
            return Err(AddressError::unknown_option(name));
        }
        own.push((unescaped(name), unescaped(value)));
    }
    Ok((Transport::External { scheme, target: target.to_owned(), options: own }, options))
}

fn unescaped(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

const fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

fn write_query(options: &Options, before: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if options.is_empty() { Ok(()) } else { write!(f, "{before}{options}") }
}
