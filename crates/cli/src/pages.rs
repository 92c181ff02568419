//! The HTTP pages of a listener: `/healthz`, `/metrics`, and what its subject has.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use breakbulk::listen::{BoxBody, Pages, Peer};
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::Mutex;

/// Anyone may request the health page, so health is checked no more often than this.
const FRESH: Duration = Duration::from_millis(500);

/// A host or a bridge that reports its health and metrics.
pub(crate) trait Subject: Send + Sync + 'static {
    /// Answers a request for its content at this path, which follows `/content/`. `None` if it has none.
    fn content(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> impl Future<Output = Option<Response<BoxBody>>> + Send;

    /// Answers a request for a public file at this path, which needs no token. `None` if it has none.
    fn file(&self, path: &str, headers: &HeaderMap) -> Option<Response<BoxBody>>;

    /// Its health now.
    fn health(&self) -> impl Future<Output = Health> + Send;

    /// Its metrics, in the text format of Prometheus.
    fn metrics(&self) -> String;
}

/// The health of a host or bridge.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    pub(crate) is_good: bool,
    /// As JSON. Anyone may read it, so it contains names only, no addresses and no errors.
    pub(crate) text: String,
}

/// The pages of a host or bridge whose WebSockets are at these paths, or at any path if there are none.
pub(crate) fn all(subject: impl Subject, paths: Vec<String>) -> Pages {
    let site = Arc::new(Site { subject, paths, seen: Mutex::new(None) });
    Pages::new(move |request, is_admitted| {
        let (site, method, path) = (Arc::clone(&site), request.method().clone(), request.uri().path().to_owned());
        let is_here = request.extensions().get::<Peer>().is_some_and(|peer| peer.0.to_canonical().is_loopback());
        async move {
            // Content is for those with the token only, also on this machine.
            if let Some(content) = path.strip_prefix("/content/").filter(|_| is_admitted && is_reading(&method))
                && let Some(answer) = site.subject.content(&method, content, request.headers()).await
            {
                return answer;
            }
            if is_reading(&method)
                && let Some(answer) = site.subject.file(&path, request.headers())
            {
                return answer;
            }
            site.answer(&method, &path, is_admitted || is_here, is_admitted).await
        }
    })
}

struct Site<S> {
    subject: S,
    paths: Vec<String>,
    seen: Mutex<Option<(Instant, Health)>>,
}

impl<S: Subject> Site<S> {
    async fn answer(&self, method: &Method, path: &str, is_trusted: bool, is_admitted: bool) -> Response<BoxBody> {
        let is_reading = is_reading(method);
        match path {
            "/healthz" | "/metrics" if !is_reading => {
                with(line(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.\n"), ALLOW, "GET, HEAD")
            }
            "/healthz" => self.health().await,
            "/metrics" if is_trusted => {
                let response = page(StatusCode::OK, self.subject.metrics());
                with(response, CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")
            }
            "/metrics" => needs_token(),
            path if path.starts_with("/content/") && !is_admitted => needs_token(),
            path if self.paths.is_empty() || self.paths.iter().any(|own| own == path) => {
                line(StatusCode::UPGRADE_REQUIRED, "There is nothing here but a WebSocket.\n")
            }
            _ => line(StatusCode::NOT_FOUND, "There is nothing here.\n"),
        }
    }

    async fn health(&self) -> Response<BoxBody> {
        let mut seen = self.seen.lock().await;
        let health = match &*seen {
            Some((at, health)) if at.elapsed() < FRESH => health.clone(),
            _ => {
                let health = self.subject.health().await;
                *seen = Some((Instant::now(), health.clone()));
                health
            }
        };
        drop(seen);
        let status = if health.is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        with(page(status, format!("{}\n", health.text)), CONTENT_TYPE, "application/json")
    }
}

fn needs_token() -> Response<BoxBody> {
    let text = "A token is needed, as Authorization: Bearer TOKEN or as ?token=TOKEN.\n";
    with(line(StatusCode::UNAUTHORIZED, text), WWW_AUTHENTICATE, "Bearer")
}

const fn is_reading(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
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
    use super::*;

    /// A bridge whose health is given.
    struct FixedHealth(bool);

    impl Subject for FixedHealth {
        async fn content(&self, _: &Method, _: &str, _: &HeaderMap) -> Option<Response<BoxBody>> {
            None
        }

        fn file(&self, _: &str, _: &HeaderMap) -> Option<Response<BoxBody>> {
            None
        }

        async fn health(&self) -> Health {
            Health { is_good: self.0, text: "{}".to_owned() }
        }

        fn metrics(&self) -> String {
            "breakbulk_build_info 1\n".to_owned()
        }
    }

    #[tokio::test]
    async fn metrics_are_for_those_with_the_token_or_on_this_machine() {
        let site = |path: Option<&str>, is_good| Site {
            subject: FixedHealth(is_good),
            paths: path.iter().map(|path| (*path).to_owned()).collect(),
            seen: Mutex::new(None),
        };
        let (host, anywhere, ill) = (site(Some("/ahp"), true), site(None, true), site(None, false));
        for (site, method, path, is_trusted, status) in [
            (&host, Method::GET, "/metrics", true, 200),
            (&host, Method::GET, "/metrics", false, 401),
            (&host, Method::POST, "/metrics", true, 405),
            (&host, Method::GET, "/healthz", false, 200),
            (&host, Method::HEAD, "/healthz", false, 200),
            (&host, Method::DELETE, "/healthz", true, 405),
            (&host, Method::GET, "/ahp", true, 426),
            (&host, Method::GET, "/", true, 404),
            (&host, Method::GET, "/content/file/x", false, 401),
            (&host, Method::GET, "/content/file/x", true, 404),
            (&anywhere, Method::GET, "/", true, 426),
            (&anywhere, Method::GET, "/metrics", false, 401),
            (&ill, Method::GET, "/healthz", false, 503),
        ] {
            let answer = site.answer(&method, path, is_trusted, is_trusted).await;
            assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        }
    }
}
