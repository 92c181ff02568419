//! `GET /content/…`: content of a host by range, with an entity tag.

use std::ops::Range;

use breakbulk::listen::BoxBody;
use breakbulk_host::Host;
use breakbulk_host::content::{ContentError, ContentReader};
use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderName, IF_NONE_MATCH, IF_RANGE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Empty, Full};

/// The principal whose quota the memory counts against. Without a principal, a reader may hold next to nothing, and a
/// long result would wait for ever.
const PRINCIPAL: &str = "content";

/// Which part of existing content a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum RequestedPart {
    Whole,
    Part(Range<u64>),
    /// The range is after the end.
    Nothing,
    /// The client has it already.
    Same,
}

/// Answers a request for the content at this path, which follows `/content/`.
pub(crate) async fn answer(host: &Host, method: &Method, path: &str, headers: &HeaderMap) -> Response<BoxBody> {
    let content = match host.content(path, Some(PRINCIPAL.into())).await {
        Ok(content) => content,
        Err(error) => {
            let status = match error {
                ContentError::NotFound => StatusCode::NOT_FOUND,
                ContentError::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            return text(status, format!("{error}\n"));
        }
    };
    let (size, wanted) = (content.size(), wanted(headers, content.size(), content.etag()));
    let (status, range) = match wanted {
        RequestedPart::Whole => (StatusCode::OK, 0..size),
        RequestedPart::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        RequestedPart::Same => (StatusCode::NOT_MODIFIED, 0..0),
        RequestedPart::Nothing => {
            let response = text(StatusCode::RANGE_NOT_SATISFIABLE, format!("There are {size} bytes.\n"));
            return with(response, CONTENT_RANGE, &format!("bytes */{size}"));
        }
    };
    let (etag, kind) = (content.etag().to_owned(), format!("{}; charset=utf-8", content.content_type()));
    let has_body = status != StatusCode::NOT_MODIFIED && *method != Method::HEAD;
    let body =
        if has_body { stream(content, range.clone()) } else { Empty::new().map_err(|never| match never {}).boxed() };
    let mut response = with(Response::new(body), ETAG, &etag);
    *response.status_mut() = status;
    if status != StatusCode::NOT_MODIFIED {
        response = with(response, CONTENT_LENGTH, &(range.end - range.start).to_string());
        response = with(response, CONTENT_TYPE, &kind);
    }
    if status == StatusCode::PARTIAL_CONTENT {
        response = with(response, CONTENT_RANGE, &format!("bytes {}-{}/{size}", range.start, range.end - 1));
    }
    secured(with(response, ACCEPT_RANGES, "bytes"))
}

/// Reads a range in pieces, one at a time and only as fast as the client takes them.
fn stream(content: ContentReader, mut range: Range<u64>) -> BoxBody {
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
    tokio::spawn(async move {
        while range.start < range.end {
            match content.read(range.clone()).await {
                Ok(piece) if piece.is_empty() => {
                    return sender.abort(std::io::Error::other("the content became shorter"));
                }
                Ok(piece) => {
                    range.start += u64::try_from(piece.len()).unwrap_or(u64::MAX);
                    if sender.send_data(piece).await.is_err() {
                        return;
                    }
                }
                Err(error) => return sender.abort(error),
            }
        }
    });
    body.boxed()
}

/// Which part a request asks for, by its headers.
fn wanted(headers: &HeaderMap, size: u64, etag: &str) -> RequestedPart {
    let header = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_ours = |listed: &str| listed.trim() == "*" || listed.trim().trim_start_matches("W/") == etag;
    if header(IF_NONE_MATCH).is_some_and(|tags| tags.split(',').any(is_ours)) {
        return RequestedPart::Same;
    }
    if header(IF_RANGE).is_some_and(|tag| tag.trim() != etag) {
        return RequestedPart::Whole;
    }
    // Several ranges, other units and what cannot be read are answered with the whole, as RFC 9110 allows.
    let Some((first, last)) = header(RANGE).and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return RequestedPart::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let range = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..size.min(last.saturating_add(1)),
        (Ok(first), Err(_)) if last.is_empty() => first..size,
        (Err(_), Ok(count)) if first.is_empty() => size.saturating_sub(count)..size,
        _ => return RequestedPart::Whole,
    };
    if range.start < range.end { RequestedPart::Part(range) } else { RequestedPart::Nothing }
}

/// A browser must not run what is in a file, or guess what it is.
fn secured(response: Response<BoxBody>) -> Response<BoxBody> {
    let response = with(response, X_CONTENT_TYPE_OPTIONS, "nosniff");
    let response = with(response, CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'");
    with(response, CACHE_CONTROL, "private, no-cache")
}

fn text(status: StatusCode, text: String) -> Response<BoxBody> {
    let mut response = Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    secured(with(response, CONTENT_TYPE, "text/plain; charset=utf-8"))
}

fn with(mut response: Response<BoxBody>, name: HeaderName, value: &str) -> Response<BoxBody> {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_as_rfc_9110_has_it() {
        let ask = |range: &str| {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_str(range).unwrap())]);
            wanted(&headers, 100, "\"t\"")
        };
        assert_eq!(ask("bytes=0-9"), RequestedPart::Part(0..10));
        assert_eq!(ask("bytes=90-"), RequestedPart::Part(90..100));
        assert_eq!(ask("bytes=-10"), RequestedPart::Part(90..100));
        assert_eq!(ask("bytes=-1000"), RequestedPart::Part(0..100));
        assert_eq!(ask("bytes=50-1000"), RequestedPart::Part(50..100));
        assert_eq!(ask("bytes=100-"), RequestedPart::Nothing);
        assert_eq!(ask("bytes=-0"), RequestedPart::Nothing);
        for odd in ["bytes=9-0", "lines=1-2", "bytes=a-b", "bytes=1-2,5-6", "bytes=-", ""] {
            assert_eq!(ask(odd), RequestedPart::Whole, "{odd}");
        }
    }

    #[test]
    fn a_client_that_has_it_is_told_so_and_a_range_of_something_else_is_the_whole() {
        let ask = |headers: &[(HeaderName, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            wanted(&headers.collect(), 100, "\"t\"")
        };
        assert_eq!(ask(&[(IF_NONE_MATCH, "\"x\", W/\"t\"")]), RequestedPart::Same);
        assert_eq!(ask(&[(IF_NONE_MATCH, "\"x\"")]), RequestedPart::Whole);
        assert_eq!(ask(&[(IF_RANGE, "\"t\""), (RANGE, "bytes=1-")]), RequestedPart::Part(1..100));
        assert_eq!(ask(&[(IF_RANGE, "\"x\""), (RANGE, "bytes=1-")]), RequestedPart::Whole);
    }
}
