//! A relay that speaks the protocol of Azure Web PubSub: for development, for tests, and for people who want no cloud.
//!
//! [`Relay`] is the service itself. A [`Listener`] takes its clients in: [`gate`](Relay::gate) decides who may connect, and
//! [`pages`](Relay::pages) serves the HTTP interface. A program calls [`serve`](Relay::serve) with both set.
//!
//! A *client* is what the protocol calls a connection: it has an id, groups, permissions and a queue, and it outlives the WebSocket that
//! carries it for as long as [`RelayConfig::keep`] says. Who delivers a message locks the group and then each client for a moment; who
//! reads and writes a WebSocket is one task for each.

mod ack_ids;
mod client;
mod config;
mod hub;
mod page;
mod permissions;
mod rest;
mod socket;
mod stats;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use breakbulk::listen::{Gate, Granted, Pages};
use breakbulk::{Accepted, Listener};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use url::form_urlencoded;

pub use self::config::RelayConfig;
pub use self::stats::RelayStats;

use self::client::Subprotocol;
use self::hub::{Hub, Hubs};
use self::page::Problem;
use self::stats::Counters;
use crate::token::{Claims, TokenError, unix_time};
use crate::wire::{CONNECTION_ID, RECONNECTION_TOKEN, RELIABLE, SIMPLE};

/// The path of the WebSocket of a hub.
const CLIENT_PATH: &str = "/client/hubs/";

/// The relay. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Relay(Arc<RelayState>);

#[derive(Debug)]
struct RelayState {
    /// WebSockets that are open.
    sockets: AtomicUsize,
    config: RelayConfig,
    hubs: Hubs,
    counters: Counters,
}

/// How a WebSocket begins: the gate decides, and the task of the WebSocket carries it out.
#[derive(Debug, Clone)]
enum Admission {
    /// A new client.
    New { hub: String, subprotocol: Subprotocol, claims: Arc<Claims> },
    /// A client that comes back, or says so.
    Recovery { hub: String, connection: String, token: String },
}

impl Relay {
    /// A relay that nobody is connected to.
    #[must_use]
    pub fn new(config: RelayConfig) -> Self {
        let counters = Counters::default();
        Self(Arc::new(RelayState { sockets: AtomicUsize::new(0), config, hubs: Hubs::default(), counters }))
    }

    /// Decides who may connect: who has a token for the hub, and speaks one of the two subprotocols. Set it as the gate of the listener.
    #[must_use]
    pub fn gate(&self) -> Gate {
        let relay = self.clone();
        Gate::new(move |head, _| {
            let (admission, protocol) = relay.admit(head).map_err(|refused| {
                relay.0.counters.refuse(refused.code());
                Box::new(refused.into_response())
            })?;
            let principal = match &admission {
                Admission::New { claims, .. } => claims.sub.as_deref().map(Arc::from),
                Admission::Recovery { .. } => None,
            };
            let mut extensions = http::Extensions::new();
            extensions.insert(admission);
            Ok(Granted { principal, protocol: Some(HeaderValue::from_static(protocol)), extensions })
        })
    }

    /// Serves the HTTP interface: what the service SDKs use, `/healthz` and `/metrics`. Set it as the pages of the listener.
    #[must_use]
    pub fn pages(&self) -> Pages {
        let relay = self.clone();
        Pages::new(move |request, _| {
            let relay = relay.clone();
            async move { rest::answer(&relay, request).await }
        })
    }

    /// Serves clients until `stop` is cancelled; then disconnects all.
    pub async fn serve(&self, mut listener: Listener, stop: CancellationToken) {
        let mut sockets = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = sockets.join_next() => {}
                Accepted { link, extensions, .. } = listener.accept() => {
                    let Some(admission) = extensions.get::<Admission>().cloned() else { continue };
                    sockets.spawn(socket::serve(self.clone(), link, admission));
                }
            }
        }
        drop(listener);
        self.0.hubs.close_all("The service is shutting down.");
        let farewell = async { while sockets.join_next().await.is_some() {} };
        drop(tokio::time::timeout(self.0.config.farewell, farewell).await);
        sockets.shutdown().await;
    }

    /// What has passed, and what there is now.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        self.0.counters.stats(&self.0.hubs)
    }

    /// The ids of the clients that have a WebSocket, in no order.
    #[must_use]
    pub fn connected(&self) -> Vec<String> {
        let clients = self.0.hubs.all_clients();
        clients.iter().filter(|client| client.is_connected()).map(|client| client.id.to_string()).collect()
    }

    /// Cuts the WebSockets of the clients that `pick` names by their ids, as a network would: without a close. They may come back. Returns
    /// how many there were. For tests, and for trying out recovery.
    pub fn cut(&self, pick: impl Fn(&str) -> bool) -> usize {
        self.0.hubs.all_clients().iter().filter(|client| pick(&client.id) && client.cut()).count()
    }

    fn admit(&self, head: &Parts) -> Result<(Admission, &'static str), Problem> {
        let uri = &head.uri;
        let query: Vec<_> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect();
        let parameter = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.to_string());
        let path = uri.path();
        let hub = match path.strip_prefix(CLIENT_PATH) {
            Some(hub) => hub.trim_end_matches('/').to_owned(),
            None if path.trim_end_matches('/') == "/client" => parameter("hub").unwrap_or_default(),
            None => String::new(),
        };
        if !Hub::may_be_called(&hub) {
            return Err(Problem::new(StatusCode::NOT_FOUND, "no-hub", "A hub is at /client/hubs/NAME."));
        }
        let (subprotocol, protocol) = offered(head).ok_or_else(|| {
            let message = format!("A client has to offer the subprotocol {RELIABLE} or {SIMPLE}.");
            Problem::new(StatusCode::BAD_REQUEST, "no-subprotocol", message)
        })?;
        if let (Some(connection), Some(token), Subprotocol::Reliable) =
            (parameter(CONNECTION_ID), parameter(RECONNECTION_TOKEN), subprotocol)
        {
            return Ok((Admission::Recovery { hub, connection, token }, protocol));
        }
        let token = bearer(head).map(str::to_owned).or_else(|| parameter("access_token"));
        let claims = token.as_deref().ok_or(TokenError::Missing).and_then(|token| {
            // A token for /client/?hub=NAME names that path, too.
            let full = format!("{CLIENT_PATH}{hub}");
            let verify = |path| Claims::verify(token, &self.0.config.key, path, unix_time());
            verify(&full).or_else(|error| match error {
                TokenError::Audience => verify(path),
                error => Err(error),
            })
        });
        let claims = claims.map_err(|error| Problem::new(StatusCode::UNAUTHORIZED, "token", error.to_string()))?;
        Ok((Admission::New { hub, subprotocol, claims: Arc::new(claims) }, protocol))
    }
}

/// The first subprotocol of those that the client offers, if we speak it.
fn offered(head: &Parts) -> Option<(Subprotocol, &'static str)> {
    let values = head.headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).find_map(|name| match name {
        RELIABLE => Some((Subprotocol::Reliable, RELIABLE)),
        SIMPLE => Some((Subprotocol::Simple, SIMPLE)),
        _ => None,
    })
}

/// The token of a request's `Authorization` header.
fn bearer(head: &Parts) -> Option<&str> {
    let (scheme, token) = head.headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
