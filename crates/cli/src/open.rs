//! Makes dialers and listeners from the settings, with the access policy of a listener.

use std::net::SocketAddr;

use breakbulk::dial::ProxyChoice;
use breakbulk::gateway::{Downstream, Endpoint, Upstream};
use breakbulk::link::{Child, ExecConfig, Keepalive, WebSocketConfig};
use breakbulk::tls::{self, ClientTls, ServerTls};
use breakbulk::{AccessPolicy, Dialer, ListenConfig, Listener, Route, Token, Transport, private};
use breakbulk_proto::Capacity;

use crate::external;
use crate::failure::Error;
use crate::pages::{self, Subject};
use crate::pairing::{self, Pairing};
use crate::settings::{self, Certificate, ClientAuth, LinkSettings, Proxy, Roots, Trust};

/// The dialer for a route.
pub(crate) fn dialer(route: &Route, link: &LinkSettings) -> Result<Dialer, Error> {
    Ok(Dialer { connector: external::connector(route, link)?, ..socket_dialer(route, link) })
}

/// The dialer for the sockets of a route, for crates that provide links of their own over them.
pub(crate) fn socket_dialer(route: &Route, link: &LinkSettings) -> Dialer {
    Dialer {
        headers: link.headers.clone(),
        tls: client_tls(link),
        timeout: link.connect_timeout,
        proxy: match link.proxy {
            Proxy::Environment => ProxyChoice::Environment,
            Proxy::None => ProxyChoice::Never,
        },
        link: web_socket(route, link),
        ..Dialer::default()
    }
}

/// The host of a gateway.
pub(crate) fn upstream(route: &Route, link: &LinkSettings, keep: bool) -> Result<Upstream, Error> {
    let mut upstream = Upstream::new(dialer(route, link)?, route.address.clone());
    if let (true, Transport::Exec(command)) = (keep, &route.address.transport) {
        if route.address.private.is_some() {
            let why = "--keep cannot be used with private=: each client needs a handshake with a process of its own";
            return Err(Error::Arguments(why.to_owned()));
        }
        let capacity = Capacity::of(route.address.cap.unwrap_or(u64::MAX));
        let config = ExecConfig::new(command.clone(), capacity, route.max_frame_bytes());
        upstream.kept = Some(Child::spawn(&config).map_err(|error| Error::Dial(error.into()))?);
    }
    Ok(upstream)
}

/// The listening side of a gateway, with its HTTP pages, and what a person has to know to connect.
pub(crate) async fn downstream(
    route: &Route,
    access: &settings::Access,
    link: &LinkSettings,
    pages: impl Subject,
) -> Result<(Downstream, Vec<String>, Option<Pairing>), Error> {
    match &route.address.transport {
        Transport::WebSocket { host, port, target, .. } => {
            let place = (host.as_str(), *port);
            // An address without a path accepts every path.
            let path = Some(target.as_str()).filter(|path| *path != "/");
            let (key, pairing) = pairing::host_key(route)?.unzip();
            let more = |config: &mut ListenConfig| {
                config.private = key;
                config.paths.extend(path.map(str::to_owned));
                config.pages = Some(pages::all(pages, config.paths.clone()));
            };
            let (listener, admission) = listener(place, access, web_socket(route, link), more).await?;
            let (scheme, path) = (admission.scheme, path.unwrap_or_default());
            let notes = admission.notes(&format!("{scheme}://{}{path}", listener.local_address()));
            Ok((Downstream::WebSocket(Box::new(listener)), notes, pairing))
        }
        Transport::External { .. } | Transport::Unix(_) => {
            let (acceptor, notes, pairing) = external::acceptor(route, link).await?;
            Ok((Downstream::External(acceptor), notes, pairing))
        }
        _ => {
            let key = pairing::host_key(route)?;
            if let Some((_, pairing)) = &key {
                // Before the handshake, for which somebody needs it.
                pairing.say();
            }
            let mut link = dialer(route, link)?.dial_openly(&route.address).await.map_err(Error::Dial)?;
            if let Some((key, _)) = &key {
                let accepted = private::accept(link, key, route.max_frame_bytes()).await;
                link = accepted.map_err(|error| Error::Dial(error.into()))?;
            }
            let is_stdio = route.address.transport.is_stdio();
            let name = if is_stdio { "standard input".to_owned() } else { route.address.to_string() };
            Ok((Downstream::Once(Some(Endpoint::new(link, name))), Vec::new(), None))
        }
    }
}

/// What a person has to know to connect.
pub(crate) struct Admission {
    pub(crate) scheme: &'static str,
    /// The token that a client must send, if any.
    pub(crate) token: Option<Token>,
    /// Whether the token was generated for this run, so it has to be printed.
    pub(crate) is_new: bool,
    /// The fingerprint of a certificate that was generated for this run.
    fingerprint: Option<tls::Fingerprint>,
}

impl Admission {
    /// The lines to print: the address, in a form that `send`, `chat` and `tap` accept, and further notes. A token that
    /// was configured is not printed.
    pub(crate) fn notes(&self, address: &str) -> Vec<String> {
        let token = self.token.as_ref().filter(|_| self.is_new);
        let token = token.map(|token| format!("#token={}", escaped(token.reveal()))).unwrap_or_default();
        let address = format!("listening on {address}{token}");
        let made = self.certificate_note();
        let open = "no token is required: every program and user that can reach the port can connect";
        let open = self.token.is_none().then(|| open.to_owned());
        [address].into_iter().chain(made).chain(open).collect()
    }

    /// The fingerprint of a certificate that was made for this run.
    pub(crate) fn certificate_note(&self) -> Option<String> {
        self.fingerprint.as_ref().map(|print| format!("certificate made for this run: {print}"))
    }
}

/// A token as part of an address.
pub(crate) fn escaped(token: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    token.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Listens for WebSockets at a host and port. `more` says what else is served there.
pub(crate) async fn listener(
    (host, port): (&str, u16),
    access: &settings::Access,
    link: WebSocketConfig,
    more: impl FnOnce(&mut ListenConfig),
) -> Result<(Listener, Admission), Error> {
    let (policy, token) = access_policy(access)?;
    let mut config = ListenConfig::new(resolve(host, port).await?, policy);
    config.allow_remote = access.bind_any;
    config.link = link;
    config.tls = access.tls.as_ref().map(|tls| server_tls(tls, host)).transpose()?;
    more(&mut config);
    let fingerprint = config.tls.as_ref().and_then(|tls| match access.tls.as_ref()?.certificate {
        Certificate::Made => Some(tls.fingerprint()),
        Certificate::Files(_) => None,
    });
    let listener = Listener::bind(config).await.map_err(|error| match error {
        breakbulk::ListenError::Remote(address) => Error::Arguments(format!("{address} {}", settings::REMOTE)),
        error => Error::Listen(error.to_string()),
    })?;
    let scheme = if access.tls.is_some() { "wss" } else { "ws" };
    Ok((listener, Admission { scheme, token, is_new: access.key == ClientAuth::Made, fingerprint }))
}

/// The access policy, and the token that clients must send.
fn access_policy(access: &settings::Access) -> Result<(AccessPolicy, Option<Token>), Error> {
    let token = match &access.key {
        ClientAuth::Nothing => None,
        ClientAuth::Token(secret) => {
            Some(secret.reveal().parse().map_err(|why| Error::Arguments(format!("token: {why}")))?)
        }
        ClientAuth::Made => Some(Token::generate().map_err(Error::Random)?),
    };
    let policy = token.clone().map_or_else(AccessPolicy::open, AccessPolicy::with_token);
    let policy = access.origins.iter().fold(policy, |policy, origin| policy.allow_origin(&origin.0));
    Ok((access.hosts.iter().fold(policy, |policy, host| policy.allow_host(&host.0)), token))
}

async fn resolve(host: &str, port: u16) -> Result<SocketAddr, Error> {
    let unknown = |why: String| Error::Listen(format!("cannot listen on {host} port {port}: {why}"));
    let mut found = tokio::net::lookup_host((host, port)).await.map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("the name has no address".into()))
}

pub(crate) fn web_socket(route: &Route, link: &LinkSettings) -> WebSocketConfig {
    let keepalive = Keepalive { ping_after: link.ping_interval, dead_after: link.idle_timeout };
    WebSocketConfig {
        max_frame_bytes: route.max_frame_bytes(),
        cap: route.address.effective_cap().unwrap_or(u64::MAX),
        keepalive: Some(keepalive),
        ..WebSocketConfig::default()
    }
}

fn client_tls(link: &LinkSettings) -> ClientTls {
    let (trust, ca_file) = match &link.trust {
        Trust::Signed { roots, ca } => {
            let roots = match roots {
                Roots::Native => tls::Roots::Native,
                Roots::WebPki => tls::Roots::WebPki,
                Roots::Both => tls::Roots::Both,
            };
            (tls::Trust::Authorities(roots), ca.clone())
        }
        Trust::Fingerprint(print) => (tls::Trust::Pinned(print.0.into()), None),
        Trust::Anything => (tls::Trust::Anyone, None),
    };
    ClientTls { trust, ca_file, identity: link.identity.as_ref().map(identity) }
}

fn server_tls(tls: &settings::ServerTls, host: &str) -> Result<ServerTls, Error> {
    let failed = |error: tls::TlsError| Error::Listen(error.to_string());
    let server = match &tls.certificate {
        Certificate::Made => ServerTls::self_signed([host, "localhost", "127.0.0.1"]).map_err(failed)?,
        Certificate::Files(files) => ServerTls::from_files(&identity(files)).map_err(failed)?,
    };
    match &tls.client_ca {
        Some(ca) => server.clients_signed_by(ca).map_err(failed),
        None => Ok(server),
    }
}

fn identity(files: &settings::Identity) -> tls::Identity {
    tls::Identity { certificate: files.certificate.clone(), key: files.key.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_same_after_its_way_through_an_address() {
        assert_eq!(escaped("aZ0-._~"), "aZ0-._~");
        assert_eq!(escaped("a+b/c=&"), "a%2Bb%2Fc%3D%26");
        let address: breakbulk::Address =
            format!("ws://h/ahp#token={}", escaped("0123456789+/=%#abc")).parse().unwrap();
        assert_eq!(address.token.as_ref().map(Token::reveal), Some("0123456789+/=%#abc"));
    }
}
