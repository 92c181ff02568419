//! The connection string of a Web PubSub service: where it is, and the key that signs tokens for it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use url::Url;

/// The key that signs tokens. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey(String);

impl AccessKey {
    /// A new random key of 256 bits.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub fn generate() -> Result<Self, getrandom::Error> {
        use base64::Engine as _;
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(base64::engine::general_purpose::STANDARD.encode(bytes)))
    }

    /// The key itself, for whoever signs and verifies.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for AccessKey {
    type Err = ConnectionStringError;

    fn from_str(text: &str) -> Result<Self, ConnectionStringError> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';');
        if text.len() < MIN_KEY_BYTES || !is_plain {
            return Err(ConnectionStringError::Key);
        }
        Ok(Self(text.to_owned()))
    }
}

/// A shorter key could be guessed from a token that it has signed.
const MIN_KEY_BYTES: usize = 16;

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey(…)")
    }
}

/// Where a service is, and its key: `Endpoint=https://…;AccessKey=…;Version=1.0;`, perhaps with `Port=…`.
///
/// `Debug` does not show the key; [`reveal`](Self::reveal) does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionString {
    /// Where the service is.
    pub endpoint: Endpoint,
    /// The key that signs tokens for it.
    pub key: AccessKey,
}

/// Where a service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it is `https` and `wss`.
    pub is_tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Why a text is no connection string. Never shows a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectionStringError {
    /// A part has no `=`.
    #[error("a connection string has parts NAME=VALUE, separated by semicolons: Endpoint=…;AccessKey=…;Version=1.0;")]
    Malformed,
    /// There is no endpoint, or it is no URL of a service.
    #[error("the connection string needs Endpoint=https://HOST or Endpoint=http://HOST, without a path")]
    Endpoint,
    /// There is no key, or none that can sign.
    #[error("the connection string needs AccessKey=KEY, of at least {MIN_KEY_BYTES} visible characters")]
    Key,
    /// The port is none.
    #[error("the Port of the connection string is not a number from 1 to 65535")]
    Port,
}

impl ConnectionString {
    /// The whole text with the key, in the form that the service SDKs read.
    #[must_use]
    pub fn reveal(&self) -> String {
        let Endpoint { is_tls, port, .. } = &self.endpoint;
        let scheme = if *is_tls { "https" } else { "http" };
        format!("Endpoint={scheme}://{};AccessKey={};Port={port};Version=1.0;", self.endpoint.bracketed(), self.key.0)
    }
}

impl Endpoint {
    /// The URL of the HTTP interface, without a slash at the end.
    #[must_use]
    pub fn http_url(&self) -> String {
        self.url(if self.is_tls { "https" } else { "http" })
    }

    /// The URL of the WebSocket interface, without a slash at the end.
    pub(crate) fn web_socket_url(&self) -> String {
        self.url(if self.is_tls { "wss" } else { "ws" })
    }

    fn url(&self, scheme: &str) -> String {
        let usual = if self.is_tls { 443 } else { 80 };
        let host = self.bracketed();
        if self.port == usual { format!("{scheme}://{host}") } else { format!("{scheme}://{host}:{}", self.port) }
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

impl FromStr for ConnectionString {
    type Err = ConnectionStringError;

    fn from_str(text: &str) -> Result<Self, ConnectionStringError> {
        let (mut endpoint, mut key, mut port) = (None, None, None);
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(ConnectionStringError::Malformed)?;
            match name.to_ascii_lowercase().as_str() {
                "endpoint" => endpoint = Some(value),
                "accesskey" => key = Some(value),
                "port" => port = Some(value),
                // Version, and what may be added to it.
                _ => {}
            }
        }
        let mut endpoint: Endpoint = endpoint.ok_or(ConnectionStringError::Endpoint)?.parse()?;
        if let Some(port) = port {
            endpoint.port = port.parse().ok().filter(|port| *port > 0).ok_or(ConnectionStringError::Port)?;
        }
        Ok(Self { endpoint, key: key.ok_or(ConnectionStringError::Key)?.parse()? })
    }
}

impl FromStr for Endpoint {
    type Err = ConnectionStringError;

    /// Reads `https://HOST`, `http://HOST`, perhaps with a port; without a scheme it is `https`.
    fn from_str(text: &str) -> Result<Self, ConnectionStringError> {
        let text = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
        let url = Url::parse(&text).map_err(|_| ConnectionStringError::Endpoint)?;
        let is_plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let is_tls = match url.scheme() {
            "https" | "wss" => true,
            "http" | "ws" => false,
            _ => return Err(ConnectionStringError::Endpoint),
        };
        let host = url.host_str().filter(|_| is_plain && url.username().is_empty() && url.password().is_none());
        let host = host.ok_or(ConnectionStringError::Endpoint)?.trim_matches(['[', ']']).to_owned();
        Ok(Self { is_tls, host, port: url.port().unwrap_or(if is_tls { 443 } else { 80 }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConnectionString, ConnectionStringError> {
        text.parse()
    }

    #[test]
    fn a_connection_string_is_read_as_the_sdks_read_it() {
        for (text, url) in [
            ("Endpoint=https://h.example;AccessKey=0123456789abcdef=;Version=1.0;", "https://h.example"),
            ("endpoint=http://127.0.0.1;accesskey=0123456789abcdef;PORT=8080", "http://127.0.0.1:8080"),
            ("AccessKey=0123456789abcdef;Endpoint=h.example:444/;Version=2.0", "https://h.example:444"),
            ("Endpoint=http://[::1];AccessKey=0123456789abcdef;Port=80;", "http://[::1]"),
        ] {
            let read = parse(text).unwrap();
            assert_eq!(read.endpoint.http_url(), url, "{text}");
            assert_eq!(parse(&read.reveal()).unwrap(), read);
            assert!(!format!("{read:?}").contains("0123456789"));
        }
    }

    #[test]
    fn what_is_none_is_refused_by_name() {
        use ConnectionStringError as E;
        let key = "AccessKey=0123456789abcdef";
        for (text, error) in [
            ("", E::Endpoint),
            ("Endpoint", E::Malformed),
            ("Endpoint=https://h", E::Key),
            ("Endpoint=https://h;AccessKey=short", E::Key),
            (&format!("Endpoint=ftp://h;{key}"), E::Endpoint),
            (&format!("Endpoint=https://h/path;{key}"), E::Endpoint),
            (&format!("Endpoint=https://me:pw@h;{key}"), E::Endpoint),
            (&format!("Endpoint=https://h;{key};Port=0"), E::Port),
            (&format!("Endpoint=https://h;{key};Port=x"), E::Port),
        ] {
            assert_eq!(parse(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn each_generated_key_is_another() {
        assert_ne!(AccessKey::generate().unwrap(), AccessKey::generate().unwrap());
    }
}
