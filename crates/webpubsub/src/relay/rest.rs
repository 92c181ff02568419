//! The HTTP interface: what the service SDKs call, `/healthz` and `/metrics`.

use breakbulk::listen::{BoxBody, Peer};
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde_json::json;
use url::form_urlencoded;

use super::client::{Client, Closed, Published};
use super::hub::{Hub, NoMemory, Target};
use super::page::{Problem, empty, json, response};
use super::permissions::Permission;
use super::{Relay, bearer};
use crate::token::{Claims, TokenError, unix_time};
use crate::wire::{self, DataType};

/// How long a token of `:generateToken` is valid if the request does not say: an hour. In minutes.
const TOKEN_MINUTES: u64 = 60;
/// Permissions for single groups that one client may have.
const MAX_NAMED_PERMISSIONS: usize = 4_096;

type Answer = Result<Response<BoxBody>, Problem>;

/// Answers a request.
pub(super) async fn answer(relay: &Relay, request: Request<Incoming>) -> Response<BoxBody> {
    let (head, body) = request.into_parts();
    let is_reading = matches!(head.method, Method::GET | Method::HEAD);
    match head.uri.path() {
        "/healthz" | "/api/health" if is_reading => response(StatusCode::OK, "text/plain; charset=utf-8", "ok\n"),
        "/metrics" if is_reading => metrics(relay, &head),
        path if path.starts_with("/api/hubs/") => match call(relay, &head, body).await {
            Ok(answer) => answer,
            Err(problem) => problem.into_response(),
        },
        _ => Problem::new(StatusCode::NOT_FOUND, "NotFound", "There is nothing at this path.").into_response(),
    }
}

/// For this machine, and for those that have the key.
fn metrics(relay: &Relay, head: &Parts) -> Response<BoxBody> {
    let is_here = head.extensions.get::<Peer>().is_some_and(|peer| peer.0.to_canonical().is_loopback());
    match is_here || authorized(relay, head).is_ok() {
        true => response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", relay.stats().to_prometheus()),
        false => unauthorized(TokenError::Missing).into_response(),
    }
}

fn authorized(relay: &Relay, head: &Parts) -> Result<(), TokenError> {
    let token = bearer(head).ok_or(TokenError::Missing)?;
    Claims::verify(token, &relay.0.config.key, head.uri.path(), unix_time()).map(drop)
}

/// A request to a hub.
struct Call<'a> {
    relay: &'a Relay,
    hub_name: String,
    hub: std::sync::Arc<Hub>,
    query: Vec<(String, String)>,
}

/// Answers a call of the data plane.
async fn call(relay: &Relay, head: &Parts, body: Incoming) -> Answer {
    authorized(relay, head).map_err(|error| {
        relay.0.counters.refuse("token");
        unauthorized(error)
    })?;
    let path = head.uri.path().strip_prefix("/api/hubs/").unwrap_or_default();
    let unescaped = |part: &str| percent_decode_str(part).decode_utf8().map(std::borrow::Cow::into_owned);
    let parts: Result<Vec<String>, _> = path.split('/').map(unescaped).collect();
    let parts = parts.map_err(|_| Problem::bad_request("The path is not UTF-8."))?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let Some((hub_name, rest)) = parts.split_first().filter(|(name, _)| Hub::may_be_called(name)) else {
        return Err(Problem::bad_request("The name of the hub is not valid."));
    };
    let query = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let hub = relay.0.hubs.get(hub_name);
    let call = Call { relay, hub_name: (*hub_name).to_owned(), hub, query };
    call.check_version()?;
    match (&head.method, rest) {
        (&Method::POST, [":send"]) => call.send(Target::All, head, body).await,
        (&Method::POST, ["groups", group, ":send"]) => call.send(Target::Group(group), head, body).await,
        (&Method::POST, ["users", user, ":send"]) => call.send(Target::User(user), head, body).await,
        (&Method::POST, ["connections", id, ":send"]) => call.send(Target::Client(id), head, body).await,
        (&Method::POST, [":closeConnections"]) => Ok(call.close(Target::All)),
        (&Method::POST, ["groups", group, ":closeConnections"]) => Ok(call.close(Target::Group(group))),
        (&Method::POST, ["users", user, ":closeConnections"]) => Ok(call.close(Target::User(user))),
        (&Method::DELETE, ["connections", id]) => Ok(call.close(Target::Client(id))),
        (&Method::HEAD, ["connections", id]) => Ok(call.exists(Target::Client(id))),
        (&Method::HEAD, ["groups", group]) => Ok(call.exists(Target::Group(group))),
        (&Method::HEAD, ["users", user]) => Ok(call.exists(Target::User(user))),
        (&Method::GET, ["groups", group, "connections"]) => Ok(call.list(group)),
        (&Method::PUT, ["groups", group, "connections", id]) => call.join_client(group, id),
        (&Method::DELETE, ["groups", group, "connections", id]) => Ok(call.leave(Target::Client(id), Some(group))),
        (&Method::PUT, ["users", user, "groups", group]) => call.join_user(group, user),
        (&Method::DELETE, ["users", user, "groups", group]) => Ok(call.leave(Target::User(user), Some(group))),
        (&Method::DELETE, ["users", user, "groups"]) => Ok(call.leave(Target::User(user), None)),
        (&Method::DELETE, ["connections", id, "groups"]) => Ok(call.leave(Target::Client(id), None)),
        (method, ["permissions", permission, "connections", id]) => call.permission(method, permission, id),
        (&Method::POST, [":generateToken"]) => Ok(call.generate_token()),
        (&Method::POST, [":addToGroups" | ":removeFromGroups"]) => {
            let message = "Filters are not supported here.";
            Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message))
        }
        _ => Err(Problem::new(StatusCode::NOT_FOUND, "NotFound", "There is no such operation.")),
    }
}

fn unauthorized(error: TokenError) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "Unauthorized", error.to_string())
}

impl Call<'_> {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters(name).next()
    }

    fn parameters(&self, name: &str) -> impl Iterator<Item = &str> {
        self.query.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Every version since the first has the operations that there are here.
    fn check_version(&self) -> Result<(), Problem> {
        let version = self
            .parameter("api-version")
            .ok_or_else(|| Problem::bad_request("The parameter api-version is missing."))?;
        let date = version.strip_suffix("-preview").unwrap_or(version);
        let mut parts = date.split('-').map(|part| (part.len(), part.parse::<u32>().ok()));
        let is_date = matches!(
            (parts.next(), parts.next(), parts.next(), parts.next()),
            (Some((4, Some(2021..))), Some((2, Some(1..=12))), Some((2, Some(1..=31))), None)
        );
        if is_date { Ok(()) } else { Err(Problem::bad_request("The api-version is not supported.")) }
    }

    async fn send(&self, target: Target<'_>, head: &Parts, body: Incoming) -> Answer {
        if self.parameter("filter").is_some() {
            return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", "Filters are not supported here."));
        }
        let limit = usize::try_from(self.relay.0.config.cap).unwrap_or(usize::MAX);
        let body = Limited::new(body, limit).collect().await.map_err(|_| {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLarge", "The message is larger than a frame may be.")
        })?;
        let (data_type, data) = payload(head, body.to_bytes())?;
        let group = match target {
            Target::Group(group) => Some(group),
            _ => None,
        };
        let message = Published::new(wire::message_head(group, None, data_type), data);
        let excluded: Vec<&str> = self.parameters("excluded").collect();
        let is_excluded = |client: &Client| excluded.iter().any(|id| **id == *client.id);
        let shared = &self.relay.0;
        let delivered = shared.hubs.deliver(shared, &self.hub_name, &self.hub, target, &message, is_excluded);
        delivered.map(|()| empty(StatusCode::ACCEPTED)).map_err(|NoMemory| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "There is no memory for the message now.",
            )
        })
    }

    fn close(&self, target: Target<'_>) -> Response<BoxBody> {
        let message = self.parameter("reason").unwrap_or("The connection was closed by the server.").to_owned();
        let excluded: Vec<&str> = self.parameters("excluded").collect();
        let shared = &self.relay.0;
        for client in self.hub.clients(target) {
            if !excluded.contains(&&*client.id) {
                let closed = Closed { reason: "by-server", code: 1008, message: message.clone() };
                shared.hubs.close(shared, &self.hub_name, &self.hub, &client, closed);
            }
        }
        empty(StatusCode::NO_CONTENT)
    }

    fn exists(&self, target: Target<'_>) -> Response<BoxBody> {
        let exists = !self.hub.clients(target).is_empty();
        empty(if exists { StatusCode::OK } else { StatusCode::NOT_FOUND })
    }

    fn list(&self, group: &str) -> Response<BoxBody> {
        let max = self.parameter("maxpagesize").or_else(|| self.parameter("top")).and_then(|max| max.parse().ok());
        let clients = self.hub.clients(Target::Group(group));
        let value: Vec<_> = clients
            .iter()
            .take(max.unwrap_or(usize::MAX))
            .map(|client| json!({ "connectionId": &*client.id, "userId": client.user.as_deref() }))
            .collect();
        json(&json!({ "value": value }))
    }

    fn join_client(&self, group: &str, id: &str) -> Answer {
        let client = self.hub.client(id).ok_or_else(no_connection)?;
        self.join(group, &client).map(|()| empty(StatusCode::OK))
    }

    fn join_user(&self, group: &str, user: &str) -> Answer {
        for client in self.hub.clients(Target::User(user)) {
            self.join(group, &client)?;
        }
        Ok(empty(StatusCode::OK))
    }

    fn join(&self, group: &str, client: &std::sync::Arc<Client>) -> Result<(), Problem> {
        if group.is_empty() || group.chars().nth(wire::MAX_GROUP_CHARS).is_some() {
            return Err(Problem::bad_request("The name of a group has 1 to 1,024 characters."));
        }
        let joined = self.hub.join(client, group, self.relay.0.config.max_groups);
        joined.then_some(()).ok_or_else(|| Problem::bad_request("The connection is in too many groups."))
    }

    fn leave(&self, target: Target<'_>, group: Option<&str>) -> Response<BoxBody> {
        for client in self.hub.clients(target) {
            match group {
                Some(group) => self.hub.leave(&client, group),
                None => self.hub.leave_all(&client),
            }
        }
        empty(StatusCode::NO_CONTENT)
    }

    fn permission(&self, method: &Method, permission: &str, id: &str) -> Answer {
        let permission =
            Permission::find(permission).ok_or_else(|| Problem::bad_request("There is no such permission."))?;
        let (client, group) = (self.hub.client(id), self.parameter("targetName"));
        match (method, client) {
            (&Method::DELETE, client) => {
                if let Some(client) = client {
                    client.lock().permissions.revoke(permission, group);
                }
                Ok(empty(StatusCode::NO_CONTENT))
            }
            (&Method::HEAD, client) => {
                let has = client.is_some_and(|client| client.lock().permissions.has(permission, group));
                Ok(empty(if has { StatusCode::OK } else { StatusCode::NOT_FOUND }))
            }
            (&Method::PUT, Some(client)) => {
                let permissions = &mut client.lock().permissions;
                if permissions.named() >= MAX_NAMED_PERMISSIONS {
                    return Err(Problem::bad_request("The connection has too many permissions."));
                }
                permissions.grant(permission, group);
                Ok(empty(StatusCode::OK))
            }
            (&Method::PUT, None) => Err(no_connection()),
            _ => Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "Only PUT, HEAD and DELETE.")),
        }
    }

    fn generate_token(&self) -> Response<BoxBody> {
        let many = |name| self.parameters(name).map(str::to_owned).collect::<Vec<_>>();
        let minutes = self.parameter("minutesToExpire").and_then(|minutes| minutes.parse().ok());
        let now = unix_time();
        let lifetime = minutes.unwrap_or(TOKEN_MINUTES).saturating_mul(60);
        let claims = Claims {
            aud: vec![format!("https://relay/client/hubs/{}", self.hub_name)],
            exp: Some(now.saturating_add(lifetime)),
            iat: Some(now),
            nbf: None,
            sub: self.parameter("userId").map(str::to_owned),
            roles: many("role"),
            groups: many("group"),
        };
        json(&json!({ "token": claims.sign(&self.relay.0.config.key) }))
    }
}

fn no_connection() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "Error.Connection.NotExisted", "The connection does not exist.")
}

/// A body as the payload of a message, by its content type.
fn payload(head: &Parts, body: Bytes) -> Result<(DataType, Bytes), Problem> {
    use base64::Engine as _;
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match content_type.as_str() {
        "application/json" => {
            let is_json = serde_json::from_slice::<&serde_json::value::RawValue>(&body).is_ok();
            if is_json { Ok((DataType::Json, body)) } else { Err(Problem::bad_request("The body is not JSON.")) }
        }
        "text/plain" => {
            let text = std::str::from_utf8(&body).map_err(|_| Problem::bad_request("The body is not UTF-8."))?;
            Ok((DataType::Text, wire::quoted(text).into()))
        }
        "application/octet-stream" => {
            let text = base64::engine::general_purpose::STANDARD.encode(&body);
            Ok((DataType::Binary, format!("\"{text}\"").into()))
        }
        _ => Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            "A message is application/json, text/plain or application/octet-stream.",
        )),
    }
}
