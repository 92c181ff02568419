//! The NATS servers of a fleet: their addresses, how a node proves who it is, and what is wrong when they do not answer.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::AccountErrorKind;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, jetstream};
use percent_encoding::percent_decode_str;
use thiserror::Error;
use tokio::time::timeout;
use tracing::{debug, info, warn};

/// How long connecting may take, and the first question to JetStream.
const PATIENCE: Duration = Duration::from_secs(5);
/// A server that is silent for twice as long counts as gone.
const PING: Duration = Duration::from_secs(2);
/// The longest wait between two attempts to connect again.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Addresses of NATS servers of one cluster: `nats://HOST:PORT[,HOST:PORT…]`, or `tls://…`. Before the first host may be `TOKEN@` or
/// `USER:PASSWORD@`, percent-encoded where needed.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsAddress {
    is_tls: bool,
    servers: Vec<String>,
    login: Login,
}

#[derive(Clone, PartialEq, Eq)]
enum Login {
    Nothing,
    Token(String),
    Password(String, String),
}

/// A text that is no address of NATS servers. It does not show the text, which may have a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "allowed is nats://HOST:PORT[,HOST:PORT…] or tls://…, with TOKEN@ or USER:PASSWORD@ before the first host if needed"
)]
pub struct NatsAddressError;

impl FromStr for NatsAddress {
    type Err = NatsAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let schemes = [("nats://", false), ("tls://", true)];
        let found = schemes.iter().find_map(|(scheme, is_tls)| Some((text.strip_prefix(scheme)?, scheme, *is_tls)));
        let (rest, scheme, is_tls) = found.ok_or(NatsAddressError)?;
        let (login, hosts) = match rest.rsplit_once('@') {
            None => (Login::Nothing, rest),
            Some((login, hosts)) => {
                let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(|text| text.into_owned());
                let login = match login.split_once(':') {
                    Some((user, password)) => Login::Password(
                        decoded(user).or(Err(NatsAddressError))?,
                        decoded(password).or(Err(NatsAddressError))?,
                    ),
                    None => Login::Token(decoded(login).or(Err(NatsAddressError))?),
                };
                (login, hosts)
            }
        };
        let servers: Vec<String> = hosts
            .split(',')
            .map(|host| host.strip_prefix(scheme).unwrap_or(host).trim_end_matches('/').to_owned())
            .collect();
        let is_valid = |host: &String| {
            !host.is_empty()
                && !host.contains(['/', '?', '#', ' ', '@'])
                && format!("nats://{host}").parse::<ServerAddr>().is_ok()
        };
        if servers.is_empty() || !servers.iter().all(is_valid) {
            return Err(NatsAddressError);
        }
        Ok(Self { is_tls, servers, login })
    }
}

/// Without the token and the password.
impl fmt::Display for NatsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "tls" } else { "nats" };
        let login = match &self.login {
            Login::Nothing => String::new(),
            Login::Token(_) => "***@".to_owned(),
            Login::Password(user, _) => format!("{user}:***@"),
        };
        write!(f, "{scheme}://{login}{}", self.servers.join(","))
    }
}

impl fmt::Debug for NatsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How to reach the NATS servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsAccess {
    /// Where they are.
    pub address: NatsAddress,
    /// The credentials file of this node, if it has one.
    pub credentials: Option<PathBuf>,
    /// Authorities to trust beside those of this machine, as PEM.
    pub authorities: Option<PathBuf>,
}

/// Why there is no connection to NATS, or JetStream cannot be used, as one line for whoever runs the node.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ConnectError(String);

/// A connection to the NATS servers, which is made again for as long as this lives.
#[derive(Debug, Clone)]
pub struct Nats {
    client: Client,
    /// What the server refused last. It says so apart from answers, of which there is none then.
    refused: Refused,
}

type Refused = Arc<Mutex<Option<String>>>;

impl NatsAccess {
    /// Connects.
    ///
    /// # Errors
    /// No server can be reached, or the one that was reached refuses.
    pub async fn connect(&self, node: &str) -> Result<Nats, ConnectError> {
        let refused = Refused::default();
        let told = refused.clone();
        let options = ConnectOptions::new()
            .name(format!("breakbulk {node}"))
            .connection_timeout(PATIENCE)
            .ping_interval(PING)
            .reconnect_delay_callback(|attempts| {
                Duration::from_millis(20).saturating_mul(u32::try_from(attempts).unwrap_or(u32::MAX)).min(LONGEST_WAIT)
            })
            .event_callback(move |event| {
                report(&event, &told);
                std::future::ready(())
            })
            .require_tls(self.address.is_tls);
        let options = match &self.address.login {
            Login::Nothing => options,
            Login::Token(token) => options.token(token.clone()),
            Login::Password(user, password) => options.user_and_password(user.clone(), password.clone()),
        };
        let options = match &self.credentials {
            None => options,
            Some(file) => options.credentials_file(file).await.map_err(|error| {
                ConnectError(format!("cannot read the NATS credentials {}: {error}", file.display()))
            })?,
        };
        let options = match &self.authorities {
            None => options,
            Some(file) => options.add_root_certificates(file.clone()),
        };
        let scheme = if self.address.is_tls { "tls" } else { "nats" };
        let servers: Result<Vec<ServerAddr>, _> =
            self.address.servers.iter().map(|server| format!("{scheme}://{server}").parse()).collect();
        let servers = servers.map_err(|error| ConnectError(format!("{}: {error}", self.address)))?;
        let client = options.connect(servers).await.map_err(|error| {
            let (address, why) = (&self.address, causes(&error));
            ConnectError(match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    format!(
                        "the NATS server at {address} refuses the token, the password or the credentials of this node"
                    )
                }
                ConnectErrorKind::Tls => format!("no TLS with the NATS server at {address}: {why}"),
                _ => format!("no NATS server answers at {address}: {why}"),
            })
        })?;
        Ok(Nats { client, refused })
    }
}

impl Nats {
    /// The client of this connection.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether there is a connection at the moment.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Checks that JetStream can be used.
    ///
    /// # Errors
    /// It is not enabled, or this node has no permission, or it does not answer.
    pub async fn check_jetstream(&self) -> Result<(), ConnectError> {
        let context = jetstream::new(self.client());
        match timeout(PATIENCE, context.query_account()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if matches!(error.kind(), AccountErrorKind::JetStreamUnavailable) => Err(ConnectError(
                "JetStream is not enabled on the NATS server: start it with -js, or with jetstream {} in its configuration"
                    .into(),
            )),
            Ok(Err(error)) => Err(self.explain(&format!("JetStream cannot be used: {}", causes(&error)))),
            Err(_) => Err(self.explain("JetStream does not answer")),
        }
    }

    /// What failed, with what the server refused if it refused anything.
    #[must_use]
    pub fn explain(&self, what: &str) -> ConnectError {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ConnectError(match refused {
            Some(refused) => format!("{what}; the NATS server refuses: {refused}"),
            None if !self.is_connected() => {
                format!("{what}; there is no connection to a NATS server")
            }
            None => what.to_owned(),
        })
    }
}

fn report(event: &Event, refused: &Refused) {
    match event {
        Event::Disconnected => warn!("the connection to NATS is lost; it is made again"),
        Event::Connected => info!("connected to NATS"),
        Event::ServerError(error) => {
            let text = error.to_string();
            if text.to_lowercase().contains("permissions violation") {
                *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.clone());
            }
            warn!("NATS: {text}");
        }
        event => debug!("NATS: {event}"),
    }
}

/// An error with all its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_servers_and_a_login_that_is_not_shown() {
        for (text, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://a:1,b:2,c", "nats://a:1,b:2,c"),
            ("nats://a:1,nats://b:2", "nats://a:1,b:2"),
            ("nats://[::1]:4222/", "nats://[::1]:4222"),
            ("tls://s3cret@a", "tls://***@a"),
            ("nats://me:p%40ss@a:1,b:2", "nats://me:***@a:1,b:2"),
        ] {
            let address: NatsAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), shown);
        }
        let address: NatsAddress = "nats://me:p%40ss@a".parse().unwrap();
        assert!(address.login == Login::Password("me".into(), "p@ss".into()));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "a:1", "http://a", "nats://", "nats://a,,b", "nats://a/b", "nats://a:port", "nats://a b"] {
            assert_eq!(text.parse::<NatsAddress>(), Err(NatsAddressError), "{text}");
        }
    }
}
