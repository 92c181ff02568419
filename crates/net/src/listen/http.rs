//! Serves HTTP until a connection becomes a WebSocket: checks access, upgrades, and passes other requests to the pages.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::access::{AccessError, AccessPolicy, RequestContext, target_without_token};
use super::forward::{Carried, Forwarding, Opened};
use crate::link::accept_for;
use crate::log_limit::LogLimit;
use crate::private::HostKey;

/// The longest request head that is read: enough for cookies and a token.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// How many headers a request may have.
const MAX_HEADERS: usize = 100;

/// The body of a response, of any type.
pub type BoxBody = http_body_util::combinators::BoxBody<Bytes, std::io::Error>;

type ResponseFuture = Pin<Box<dyn Future<Output = Response<BoxBody>> + Send>>;

/// Serves requests that do not ask for a WebSocket, such as those for a page. Their host name and origin were checked. Whether they need
/// the token is decided here, by `is_admitted`. The [`Peer`] is among the extensions of the request.
#[derive(Clone)]
pub struct Pages(Arc<dyn Fn(Request<Incoming>, bool) -> ResponseFuture + Send + Sync>);

impl Pages {
    /// Answers by calling `serve(request, is_admitted)`.
    pub fn new<F, A>(serve: F) -> Self
    where
        F: Fn(Request<Incoming>, bool) -> A + Send + Sync + 'static,
        A: Future<Output = Response<BoxBody>> + Send + 'static,
    {
        Self(Arc::new(move |request, is_admitted| Box::pin(serve(request, is_admitted))))
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}

/// Decides about requests for a WebSocket in place of the access policy, for servers whose clients prove who they are in their own way.
/// Neither the token nor the host name nor the origin is checked for them; pages are requested without admission.
#[derive(Clone)]
pub struct Gate(Arc<Decide>);

type Decide = dyn Fn(&Parts, Peer) -> Result<Granted, Box<Response<BoxBody>>> + Send + Sync;

/// What a [`Gate`] grants to a client.
#[derive(Debug, Clone, Default)]
pub struct Granted {
    /// The principal to which its bytes are charged.
    pub principal: Option<Arc<str>>,
    /// The WebSocket subprotocol, which must be one that the client offered.
    pub protocol: Option<HeaderValue>,
    /// What the server wants to know about the client when it is accepted.
    pub extensions: http::Extensions,
}

impl Gate {
    /// Decides by calling `decide(request, peer)`.
    pub fn new(
        decide: impl Fn(&Parts, Peer) -> Result<Granted, Box<Response<BoxBody>>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(decide))
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

/// The address from which a request for a page comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// The HTTP server of a listener.
#[derive(Debug)]
pub(super) struct HttpServer {
    pub(super) access: AccessPolicy,
    /// What decides about WebSockets in place of the policy.
    pub(super) gate: Option<Gate>,
    pub(super) paths: Vec<String>,
    pub(super) pages: Option<Pages>,
    /// What carries WebSockets to another server.
    pub(super) forwarding: Option<Forwarding>,
    /// The key of the host, if links are private.
    pub(super) private: Option<HostKey>,
    pub(super) timeout: Duration,
    pub(super) is_tls: bool,
    /// Clients that are refused can try as often as they like, so what they cause is logged with a limit.
    pub(super) log: LogLimit,
}

/// A connection that became a WebSocket.
pub(super) struct Upgraded<S> {
    pub(super) io: S,
    /// What the client sent after its request.
    pub(super) ahead: Bytes,
    pub(super) served: Served,
}

/// Who serves a WebSocket.
pub(super) enum Served {
    /// This process.
    Here(Admitted),
    /// Another server, to which it is carried.
    Elsewhere(Box<Carried>),
}

/// What is known about a client that was admitted.
pub(super) struct Admitted {
    pub(super) principal: Option<Arc<str>>,
    pub(super) target: String,
    /// The subprotocol that it was granted.
    pub(super) protocol: Option<HeaderValue>,
    pub(super) extensions: http::Extensions,
}

/// Serves HTTP on a connection until it becomes a WebSocket, or ends.
pub(super) async fn serve<S>(
    stream: S,
    peer: SocketAddr,
    local: SocketAddr,
    server: &Arc<HttpServer>,
) -> Result<Option<Upgraded<S>>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let context = RequestContext { local, peer: peer.ip(), is_tls: server.is_tls };
    let served = Arc::new(Mutex::new(None));
    let service = service_fn(|request: Request<Incoming>| {
        let (server, served) = (Arc::clone(server), Arc::clone(&served));
        let answer = async move { Ok::<_, Infallible>(server.answer(request, context, &served).await) };
        Box::pin(answer) as Pin<Box<dyn Future<Output = _> + Send>>
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(server.timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        // Without keep-alive, hyper would replace the `Connection: Upgrade` of the 101 by `Connection: close`.
        .keep_alive(true);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let parts = connection.without_shutdown().await?;
    let (mut io, ahead) = (parts.io.into_inner(), parts.read_buf);
    let served = served.lock().unwrap_or_else(PoisonError::into_inner).take();
    if served.is_none() {
        // The response was sent. If the shutdown fails, the client does not see a clean end, which does no harm.
        let _ = tokio::time::timeout(server.timeout, io.shutdown()).await;
    }
    Ok(served.map(|served| Upgraded { io, ahead, served }))
}

impl HttpServer {
    async fn answer(
        &self,
        request: Request<Incoming>,
        context: RequestContext,
        slot: &Mutex<Option<Served>>,
    ) -> Response<BoxBody> {
        let (head, body) = request.into_parts();
        if !asks_for_upgrade(&head) {
            return self.page(Request::from_parts(head, body), &context).await;
        }
        let granted = match self.grant(&head, &context) {
            Ok(granted) => granted,
            Err(Refused::ByGate(response)) => return *response,
            Err(Refused::ByPolicy(refused)) => {
                if let Some(permit) = self.log.permit(refused.name()) {
                    let (shown, left_out) = (refused.shown(&head), permit.left_out());
                    let (reason, hint) = (refused.name(), refused.hint());
                    tracing::info!(peer = %context.peer, reason, shown, left_out, "a client was refused{hint}");
                }
                tokio::time::sleep(refused.delay()).await;
                return line(refused.status(), refused.text(&head));
            }
        };
        if !self.paths.is_empty() && !self.paths.iter().any(|path| head.uri.path() == path) {
            let own = self.paths.join(" and ");
            if let Some(permit) = self.log.permit("path") {
                let left_out = permit.left_out();
                tracing::info!(peer = %context.peer, path = own, left_out, "a client was refused: the WebSocket is at another path");
            }
            return line(StatusCode::NOT_FOUND, format!("There is no WebSocket at this path. It is at {own}.\n"));
        }
        let Some(mut response) = upgrade(&head) else {
            return line(StatusCode::BAD_REQUEST, "That is no WebSocket handshake of version 13.\n");
        };
        let put = |served| *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(served);
        let target = target_without_token(&head);
        if let Some(forwarding) = &self.forwarding {
            match forwarding.open(&head, &target).await {
                Opened::Here => {}
                Opened::Refused(response) => return response,
                Opened::Carried(carried, headers) => {
                    for name in [header::SEC_WEBSOCKET_ACCEPT, header::SEC_WEBSOCKET_PROTOCOL] {
                        // What the other server did not say, we must not say either.
                        match headers.get(&name) {
                            Some(value) => drop(response.headers_mut().insert(name, value.clone())),
                            None => drop(response.headers_mut().remove(name)),
                        }
                    }
                    put(Served::Elsewhere(carried));
                    return response;
                }
            }
        }
        let Granted { principal, protocol, extensions } = granted;
        if let Some(protocol) = &protocol {
            response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.clone());
        }
        put(Served::Here(Admitted { principal, target, protocol, extensions }));
        response
    }

    /// What a request for a WebSocket is granted.
    fn grant(&self, head: &Parts, context: &RequestContext) -> Result<Granted, Refused> {
        if let Some(Gate(decide)) = &self.gate {
            return decide(head, Peer(context.peer)).map_err(Refused::ByGate);
        }
        let principal = self.access.admit(head, context).map_err(Refused::ByPolicy)?;
        Ok(Granted { principal, protocol: first_protocol(&head.headers), ..Granted::default() })
    }

    async fn page(&self, request: Request<Incoming>, context: &RequestContext) -> Response<BoxBody> {
        let Some(pages) = &self.pages else {
            let mut response = line(StatusCode::UPGRADE_REQUIRED, "There is nothing here but a WebSocket.\n");
            response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            return response;
        };
        let (mut head, body) = request.into_parts();
        head.extensions.insert(Peer(context.peer));
        if self.gate.is_some() {
            return (pages.0)(Request::from_parts(head, body), false).await;
        }
        let is_admitted = match self.access.admit(&head, context) {
            Ok(_) => true,
            Err(refused @ (AccessError::Host | AccessError::Origin)) => {
                return line(refused.status(), refused.text(&head));
            }
            Err(refused) => {
                tokio::time::sleep(refused.delay()).await;
                false
            }
        };
        (pages.0)(Request::from_parts(head, body), is_admitted).await
    }
}

/// Why a request for a WebSocket is refused.
enum Refused {
    ByGate(Box<Response<BoxBody>>),
    ByPolicy(AccessError),
}

/// A response of one line, after which the connection is closed.
fn line(status: StatusCode, text: impl Into<Bytes>) -> Response<BoxBody> {
    let body = Full::new(text.into()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn asks_for_upgrade(head: &Parts) -> bool {
    lists(&head.headers, &header::UPGRADE, "websocket")
}

/// The response that makes the connection a WebSocket; `None` if the request is not a valid handshake.
fn upgrade(head: &Parts) -> Option<Response<BoxBody>> {
    let is_in_order = head.method == Method::GET
        && head.version == Version::HTTP_11
        && lists(&head.headers, &header::CONNECTION, "upgrade")
        && lists(&head.headers, &header::SEC_WEBSOCKET_VERSION, "13");
    let key = head.headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| is_in_order && key.len() == KEY_LEN)?;
    let mut response = Response::new(Full::default().map_err(|never| match never {}).boxed());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(&accept_for(key.as_bytes())).ok()?);
    Some(response)
}

/// The first subprotocol that a client offers, if any. Its meaning is between client and host. Browsers and other
/// clients give up a WebSocket if they offered a subprotocol and were granted none.
fn first_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let first = offered.flat_map(|value| value.split(',')).map(str::trim).find(|name| !name.is_empty())?;
    HeaderValue::from_str(first).ok()
}

/// Sixteen bytes in base64.
const KEY_LEN: usize = 24;

/// Whether a header has this word among those that it lists.
fn lists(headers: &HeaderMap, name: &header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|listed| listed.trim().eq_ignore_ascii_case(word))
}
