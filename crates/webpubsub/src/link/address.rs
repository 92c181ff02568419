//! What an address `webpubsub:…` says: the service, how to prove who we are, the hub, and the host in it.

use std::fmt;

use breakbulk::{Address, Transport};
use thiserror::Error;
use url::{Url, form_urlencoded};

use crate::connection_string::{AccessKey, ConnectionString, ConnectionStringError, Endpoint};
use crate::token::{Claims, unix_time};

/// How long a token is valid that we sign. It is needed only to connect; each connection gets a new one.
const TOKEN_SECONDS: u64 = 600;
/// The longest name of a host or a user.
const MAX_NAME: usize = 64;

/// A Web PubSub hub, a host in it, and how to connect.
///
/// ```
/// use breakbulk_webpubsub::link::WebPubSubAddress;
///
/// let text = "webpubsub:Endpoint=https://h.example;AccessKey=0123456789abcdef;Version=1.0;?hub=agents&host=laptop";
/// let address = WebPubSubAddress::try_from(&text.parse::<breakbulk::Address>()?)?;
/// assert_eq!((address.hub(), address.host()), ("agents", "laptop"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct WebPubSubAddress {
    endpoint: Endpoint,
    proof: Proof,
    hub: String,
    host: String,
    user: Option<String>,
}

/// How we prove to the service who we are.
#[derive(Clone)]
enum Proof {
    /// With tokens that we sign.
    Key(AccessKey),
    /// With a token that somebody else has signed.
    Token(String),
}

/// Why an address is no address of a hub. Shows no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WebPubSubAddressError {
    /// It begins with another scheme.
    #[error("the address does not begin with webpubsub:")]
    Scheme,
    /// The connection string is none.
    #[error(transparent)]
    ConnectionString(#[from] ConnectionStringError),
    /// The URL for clients is none.
    #[error("a URL for clients has the form wss://HOST/client/hubs/HUB?access_token=TOKEN")]
    Url,
    /// The hub is not named, or is none.
    #[error("the address needs ?hub=NAME: a letter, then up to 127 letters, digits and _")]
    Hub,
    /// The name of a host or a user is none.
    #[error("{0}= is 1 to {MAX_NAME} letters, digits, - and _")]
    Name(&'static str),
    /// An option that is none.
    #[error("unknown option {0:?} in the address; allowed are hub, host, user, cap and dialect")]
    Option(String),
}

impl WebPubSubAddress {
    /// The hub.
    #[must_use]
    pub fn hub(&self) -> &str {
        &self.hub
    }

    /// The host in the hub.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The user as whom we connect, if the address says one.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The URL of the hub's WebSocket, without a token.
    pub(super) fn web_socket_url(&self) -> String {
        format!("{}{}", self.endpoint.web_socket_url(), self.path())
    }

    /// A token for one connection, with these roles.
    pub(super) fn token(&self, user: &str, roles: Vec<String>) -> String {
        let now = unix_time();
        match &self.proof {
            Proof::Token(token) => token.clone(),
            Proof::Key(key) => Claims {
                aud: vec![format!("{}{}", self.endpoint.http_url(), self.path())],
                exp: Some(now.saturating_add(TOKEN_SECONDS)),
                iat: Some(now),
                nbf: None,
                sub: Some(user.to_owned()),
                roles,
                groups: Vec::new(),
            }
            .sign(key),
        }
    }

    fn path(&self) -> String {
        format!("/client/hubs/{}", self.hub)
    }
}

impl TryFrom<&Address> for WebPubSubAddress {
    type Error = WebPubSubAddressError;

    fn try_from(address: &Address) -> Result<Self, WebPubSubAddressError> {
        let Transport::External { scheme, target, options } = &address.transport else {
            return Err(WebPubSubAddressError::Scheme);
        };
        if scheme.name != "webpubsub" {
            return Err(WebPubSubAddressError::Scheme);
        }
        let (mut hub, mut host, mut user, mut token) = (None, "host".to_owned(), None, None);
        for (name, value) in options {
            match name.as_str() {
                "hub" => hub = Some(value.clone()),
                "host" => host = self::name("host", value)?,
                "user" => user = Some(self::name("user", value)?),
                "access_token" => token = Some(value.clone()),
                other => return Err(WebPubSubAddressError::Option(other.chars().take(MAX_NAME).collect())),
            }
        }
        let (endpoint, proof) = if target.starts_with("ws://") || target.starts_with("wss://") {
            let (endpoint, named) = of_url(target)?;
            hub = hub.or(Some(named));
            (endpoint, Proof::Token(token.ok_or(WebPubSubAddressError::Url)?))
        } else {
            let ConnectionString { endpoint, key } = target.parse()?;
            (endpoint, Proof::Key(key))
        };
        let hub = hub.filter(|hub| is_hub(hub)).ok_or(WebPubSubAddressError::Hub)?;
        Ok(Self { endpoint, proof, hub, host, user })
    }
}

/// The service and the hub of a URL for clients.
fn of_url(text: &str) -> Result<(Endpoint, String), WebPubSubAddressError> {
    let url = Url::parse(text).map_err(|_| WebPubSubAddressError::Url)?;
    let hub = url.path().strip_prefix("/client/hubs/").ok_or(WebPubSubAddressError::Url)?.to_owned();
    let origin = format!("{}://{}", url.scheme(), url.authority());
    Ok((origin.parse().map_err(|_| WebPubSubAddressError::Url)?, hub))
}

fn is_hub(name: &str) -> bool {
    let mut letters = name.bytes();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
        && name.len() <= 128
}

fn name(option: &'static str, value: &str) -> Result<String, WebPubSubAddressError> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let fits = (1..=MAX_NAME).contains(&value.len()) && value.bytes().all(is_name);
    if fits { Ok(value.to_owned()) } else { Err(WebPubSubAddressError::Name(option)) }
}

/// The query that recovers a connection.
pub(super) fn recovery_query(connection: &str, token: &str) -> String {
    form_urlencoded::Serializer::new(String::new())
        .append_pair(crate::wire::CONNECTION_ID, connection)
        .append_pair(crate::wire::RECONNECTION_TOKEN, token)
        .finish()
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key(…)",
            Self::Token(_) => "Token(…)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "webpubsub:Endpoint=http://127.0.0.1;AccessKey=0123456789abcdef;Port=8080;Version=1.0;";

    fn parse(text: &str) -> Result<WebPubSubAddress, WebPubSubAddressError> {
        WebPubSubAddress::try_from(&text.parse::<Address>().unwrap())
    }

    #[test]
    fn a_connection_string_or_a_url_with_a_token_names_a_hub() {
        let address = parse(&format!("{KEY}?hub=agents&host=a-b&user=me")).unwrap();
        assert_eq!((address.hub(), address.host(), address.user()), ("agents", "a-b", Some("me")));
        assert_eq!(address.web_socket_url(), "ws://127.0.0.1:8080/client/hubs/agents");
        assert!(!format!("{address:?}").contains("0123456789"));
        let key = "0123456789abcdef".parse().unwrap();
        let claims = Claims::verify(&address.token("u", vec!["r".into()]), &key, "/client/hubs/agents", unix_time());
        assert_eq!((claims.clone().unwrap().sub.as_deref(), claims.unwrap().roles), (Some("u"), vec!["r".to_owned()]));

        let by_url = parse("webpubsub:wss://h.example/client/hubs/agents?access_token=x.y.z").unwrap();
        assert_eq!((by_url.hub(), by_url.host(), by_url.user()), ("agents", "host", None));
        assert_eq!(by_url.token("ignored", Vec::new()), "x.y.z");
        assert_eq!(by_url.web_socket_url(), "wss://h.example/client/hubs/agents");
    }

    #[test]
    fn each_mistake_has_a_name() {
        use WebPubSubAddressError as E;
        for (text, error) in [
            (KEY.to_owned(), E::Hub),
            (format!("{KEY}?hub=1"), E::Hub),
            (format!("{KEY}?hub=a/b"), E::Hub),
            (format!("{KEY}?hub=a&host=a.b"), E::Name("host")),
            (format!("{KEY}?hub=a&user="), E::Name("user")),
            (format!("{KEY}?hub=a&x=1"), E::Option("x".into())),
            ("webpubsub:Endpoint=http://h?hub=a".into(), E::ConnectionString(ConnectionStringError::Key)),
            ("webpubsub:wss://h/client/hubs/a".into(), E::Url),
            ("webpubsub:wss://h/a?access_token=x".into(), E::Url),
            ("ws://h".into(), E::Scheme),
        ] {
            assert_eq!(parse(&text).unwrap_err(), error, "{text}");
        }
    }
}
