//! Carries what a listener accepts to another server, as bytes, while that one serves in its place.
//!
//! Access is checked before. A WebSocket is requested of the other server with the client's own key, so that its answer suits the
//! client, and from then on bytes are copied in both directions without being looked at. Each direction holds no more than
//! one buffer, reads when the other side takes, and passes its end on.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::http::BoxBody;
use crate::address::Address;
use crate::dial::{DialError, Dialer, Forwarded};
use crate::log_limit::LogLimit;

/// Marks requests that were forwarded, so that none is forwarded twice.
pub(super) const MARK: HeaderName = HeaderName::from_static("breakbulk-forwarded");
/// The wait before the same server is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Bytes on their way in one direction of a connection.
const BUFFER: usize = 32 << 10;

/// Who serves what a listener accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// This process does.
    Here,
    /// The server at this address does. Of a WebSocket address, scheme, host and port count.
    At(Address),
    /// Nobody does at the moment.
    Nobody,
}

/// Forwards to whoever serves at the moment. A connection is cut when that changes, so that its client comes back.
#[derive(Clone)]
pub struct Forwarding {
    upstream: watch::Receiver<Upstream>,
    dialer: Arc<Dialer>,
    /// How long a client waits while nobody serves.
    wait: Duration,
    connections: Arc<Semaphore>,
    max_connections: usize,
    log: Arc<LogLimit>,
}

/// What became of a request.
pub(super) enum Opened {
    /// This process serves it.
    Here,
    /// The other server has answered with a WebSocket.
    Carried(Box<Carried>, HeaderMap),
    /// Nobody can serve it now.
    Refused(Response<BoxBody>),
}

/// A connection to the other server that became a WebSocket.
pub(super) struct Carried {
    forwarded: Forwarded,
    /// Who serves it.
    by: Upstream,
    upstream: watch::Receiver<Upstream>,
    _permit: OwnedSemaphorePermit,
}

impl Forwarding {
    /// Forwards to what `upstream` says, as `dialer` dials. While nobody serves, a client waits for at most `wait`. No more than
    /// `max_connections` are carried at a time.
    #[must_use]
    pub fn new(upstream: watch::Receiver<Upstream>, dialer: Dialer, wait: Duration, max_connections: usize) -> Self {
        let max_connections = max_connections.min(Semaphore::MAX_PERMITS);
        let connections = Arc::new(Semaphore::new(max_connections));
        Self { upstream, dialer: Arc::new(dialer), wait, connections, max_connections, log: Arc::default() }
    }

    /// How many connections are carried now.
    #[must_use]
    pub fn carried(&self) -> usize {
        self.max_connections.saturating_sub(self.connections.available_permits())
    }

    /// Asks whoever serves for a page, and answers with what it says. `None` if this process serves it.
    pub async fn page(&self, method: &Method, target: &str, headers: &HeaderMap) -> Option<Response<BoxBody>> {
        let mut request = Request::new(());
        *request.method_mut() = method.clone();
        *request.headers_mut() = passed_on(headers);
        let is_forwarded = headers.contains_key(MARK);
        let answered = self.with_server(is_forwarded, |dialer, address| {
            let (dialer, request, target) = (Arc::clone(dialer), request.clone(), target.to_owned());
            async move { dialer.forward_page(&address, &target, request).await }
        });
        match answered.await {
            Answer::Here => None,
            Answer::From(_, response) => Some(response.map(|body| body.map_err(std::io::Error::other).boxed())),
            Answer::None => Some(come_again()),
        }
    }

    /// Asks whoever serves for a WebSocket.
    pub(super) async fn open(&self, head: &Parts, target: &str) -> Opened {
        // Who serves can take it even if no more is carried.
        if *self.upstream.borrow() == Upstream::Here {
            return Opened::Here;
        }
        let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
            if let Some(permit) = self.log.permit("forwarded") {
                tracing::warn!(left_out = permit.left_out(), "too many connections are forwarded: one more is refused");
            }
            return Opened::Refused(come_again());
        };
        let mut request = Request::new(());
        *request.headers_mut() = passed_on(&head.headers);
        let is_forwarded = head.headers.contains_key(MARK);
        let served = self.with_server(is_forwarded, |dialer, address| {
            let (dialer, request, target) = (Arc::clone(dialer), request.clone(), target.to_owned());
            async move { dialer.forward(&address, &target, request).await }
        });
        match served.await {
            Answer::Here => Opened::Here,
            Answer::None => Opened::Refused(come_again()),
            Answer::From(by, mut forwarded) => {
                let headers = std::mem::take(&mut forwarded.headers);
                let upstream = self.upstream.clone();
                Opened::Carried(Box::new(Carried { forwarded, by, upstream, _permit: permit }), headers)
            }
        }
    }

    /// Calls `exchange` with whoever serves, again and again until there is an answer or the wait is over.
    async fn with_server<T, F>(&self, is_forwarded: bool, exchange: impl Fn(&Arc<Dialer>, Address) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, DialError>>,
    {
        let until = Instant::now() + self.wait;
        let mut upstream = self.upstream.clone();
        loop {
            let now = upstream.borrow_and_update().clone();
            match &now {
                Upstream::Here => return Answer::Here,
                // What another server believes to be ours is ours soon, or never.
                Upstream::At(address) if !is_forwarded => {
                    let answer = tokio::select! {
                        answer = timeout_at(until, exchange(&self.dialer, address.clone())) => answer,
                        // The other one is no longer there, or is stopped and cannot answer.
                        Ok(()) = upstream.changed() => continue,
                    };
                    match answer {
                        Ok(Ok(answer)) => return Answer::From(now, answer),
                        Ok(Err(error)) => self.report(&error, address),
                        Err(_) => return Answer::None,
                    }
                    // It may be dead. That is found out elsewhere.
                    drop(timeout(AGAIN, upstream.changed()).await);
                }
                Upstream::At(_) | Upstream::Nobody => {
                    if !matches!(timeout_at(until, upstream.changed()).await, Ok(Ok(()))) {
                        return Answer::None;
                    }
                }
            }
            if Instant::now() >= until {
                return Answer::None;
            }
        }
    }

    fn report(&self, error: &DialError, address: &Address) {
        let Some(permit) = self.log.permit("upstream") else { return };
        let left_out = permit.left_out();
        match error {
            DialError::Status { status: 401, .. } => tracing::warn!(
                %address, left_out, "the server that serves here has another token: give the same one to all"
            ),
            error => tracing::debug!(%address, left_out, "cannot reach the server that serves here: {error}"),
        }
    }
}

impl fmt::Debug for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarding").field("upstream", &*self.upstream.borrow()).finish_non_exhaustive()
    }
}

/// Who has answered a request.
enum Answer<T> {
    /// This process serves it.
    Here,
    From(Upstream, T),
    /// Nobody did in time.
    None,
}

impl Carried {
    /// Copies bytes in both directions until both have ended, one fails, or another server serves.
    pub(super) async fn run<S>(self, mut client: S, ahead: Bytes)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let Self { forwarded: Forwarded { mut io, ahead: answered, .. }, by, mut upstream, _permit } = self;
        let copied = async {
            client.write_all(&answered).await?;
            io.write_all(&ahead).await?;
            tokio::io::copy_bidirectional_with_sizes(&mut client, &mut io, BUFFER, BUFFER).await
        };
        tokio::select! {
            copied = copied => {
                if let Err(error) = copied {
                    tracing::debug!("a forwarded connection has ended: {error}");
                }
            }
            _ = upstream.wait_for(|now| *now != by) => {}
        }
    }
}

/// The headers of a request that mean something to the other server: not those about access, which was checked, and about
/// this connection.
fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    let about_websocket = [header::SEC_WEBSOCKET_KEY, header::SEC_WEBSOCKET_VERSION, header::SEC_WEBSOCKET_PROTOCOL];
    let about_content = [
        header::ACCEPT,
        header::RANGE,
        header::IF_RANGE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::USER_AGENT,
    ];
    for name in about_websocket.into_iter().chain(about_content) {
        for value in headers.get_all(&name) {
            kept.append(name.clone(), value.clone());
        }
    }
    kept.insert(MARK, HeaderValue::from_static("1"));
    kept
}

/// Tells a client to try again soon.
pub(super) fn come_again() -> Response<BoxBody> {
    let text = "Nobody serves this host at the moment. Try again in a second.\n";
    let mut response = Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
