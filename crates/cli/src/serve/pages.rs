//! What a host answers beside its WebSocket: whether it is well, and what it does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use breakbulk::listen::{BoxBody, Pages, Peer};
use breakbulk_host::Host;
use breakbulk_host::health::Health;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::Mutex;

use crate::settings::PATH;

/// Anyone may ask how we are; so we look no more often than this.
const FRESH: Duration = Duration::from_millis(500);

/// The pages of a host.
pub(super) fn all(host: Host) -> Pages {
    let site = Arc::new(Site { host, seen: Mutex::new(None) });
    Pages::new(move |request, is_admitted| {
        let (site, method, path) = (Arc::clone(&site), request.method().clone(), request.uri().path().to_owned());
        let is_here = request.extensions().get::<Peer>().is_some_and(|peer| peer.0.to_canonical().is_loopback());
        async move { site.answer(&method, &path, is_admitted || is_here).await }
    })
}

struct Site {
    host: Host,
    seen: Mutex<Option<(Instant, Health)>>,
}

impl Site {
    async fn answer(&self, method: &Method, path: &str, is_trusted: bool) -> Response<BoxBody> {
        let is_reading = matches!(*method, Method::GET | Method::HEAD);
        match path {
            "/healthz" | "/metrics" if !is_reading => {
                with(line(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.\n"), ALLOW, "GET, HEAD")
            }
            "/healthz" => self.health().await,
            "/metrics" if is_trusted => {
                let response = page(StatusCode::OK, self.host.metrics());
                with(response, CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")
            }
            "/metrics" => {
                let text = "A token is needed, as Authorization: Bearer TOKEN or as ?token=TOKEN.\n";
                with(line(StatusCode::UNAUTHORIZED, text), WWW_AUTHENTICATE, "Bearer")
            }
            PATH => line(StatusCode::UPGRADE_REQUIRED, "There is nothing here but a WebSocket.\n"),
            _ => line(StatusCode::NOT_FOUND, "There is nothing here.\n"),
        }
    }

    async fn health(&self) -> Response<BoxBody> {
        let mut seen = self.seen.lock().await;
        let health = match &*seen {
            Some((at, health)) if at.elapsed() < FRESH => health.clone(),
            _ => {
                let health = self.host.health().await;
                *seen = Some((Instant::now(), health.clone()));
                health
            }
        };
        drop(seen);
        let status = if health.is_good() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        with(page(status, format!("{}\n", health.to_json())), CONTENT_TYPE, "application/json")
    }
}

fn line(status: StatusCode, text: &'static str) -> Response<BoxBody> {
    with(page(status, text), CONTENT_TYPE, "text/plain; charset=utf-8")
}

fn page(status: StatusCode, body: impl Into<Bytes>) -> Response<BoxBody> {
    let mut response = Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    with(response, CACHE_CONTROL, "no-store")
}

fn with(mut response: Response<BoxBody>, name: HeaderName, value: &'static str) -> Response<BoxBody> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

#[cfg(test)]
mod tests {
    use breakbulk_host::HostConfig;
    use breakbulk_host::log::MemoryLog;
    use breakbulk_proto::{Budget, BudgetConfig};

    use super::*;

    #[tokio::test]
    async fn metrics_are_for_those_with_the_token_or_on_this_machine() {
        let budget = Budget::new(BudgetConfig::default());
        let dir = tempfile::tempdir().unwrap();
        let config = HostConfig::new([dir.path()]);
        let host = Host::start(Arc::new(MemoryLog::new()), Vec::new(), config, budget).await.unwrap();
        let site = Site { host, seen: Mutex::new(None) };
        for (method, path, is_trusted, status) in [
            (Method::GET, "/metrics", true, 200),
            (Method::GET, "/metrics", false, 401),
            (Method::POST, "/metrics", true, 405),
            (Method::GET, "/healthz", false, 200),
            (Method::HEAD, "/healthz", false, 200),
            (Method::DELETE, "/healthz", true, 405),
            (Method::GET, "/", true, 404),
        ] {
            let answer = site.answer(&method, path, is_trusted).await;
            assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        }
    }
}
