//! The page that `serve` shows: its files, which are part of the program.
//!
//! `/` is the page. Everything else of it is in a directory that is named after the content of all files, so a browser may
//! keep those for ever, and never mixes files of two versions.

use breakbulk::listen::BoxBody;
use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderName, IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full};

include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// What the page may do: run its own scripts, and connect to this host. Text never becomes markup: without a policy for
/// trusted types, a browser refuses `innerHTML` and the like.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// The file of the page at `/`.
const INDEX: &str = "index.html";

/// A file of the page.
struct PageFile {
    /// Below `web/`.
    path: &'static str,
    content_type: &'static str,
    /// With its quotes.
    etag: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
}

impl PageFile {
    /// Whether a browser can show it by itself. Scripts and style sheets follow the policy of the document that uses
    /// them.
    fn is_document(&self) -> bool {
        !self.path.ends_with(".js") && !self.path.ends_with(".css")
    }
}

/// Answers a request for a file of the page; `None` if there is none at this path.
pub(crate) fn answer(path: &str, headers: &HeaderMap) -> Option<Response<BoxBody>> {
    let (path, cache) = match path {
        "/" => (INDEX, "no-cache"),
        path => (path.strip_prefix(DIRECTORY)?, "public, max-age=31536000, immutable"),
    };
    let file = FILES.iter().find(|file| file.path == path)?;
    let has = |name: HeaderName, wanted: &str| {
        let listed = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        listed.flat_map(|value| value.split(',')).any(|one| is_accepted(one, wanted))
    };
    let is_known = has(IF_NONE_MATCH, file.etag);
    let (body, encoding) = match (is_known, has(ACCEPT_ENCODING, "gzip")) {
        (true, _) => (&[][..], None),
        (false, true) => (file.gzip, Some("gzip")),
        (false, false) => (file.plain, None),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(body)).map_err(|never| match never {}).boxed());
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let answered = response.headers_mut();
    for (name, value) in [
        (ETAG, file.etag),
        (CACHE_CONTROL, cache),
        (VARY, "accept-encoding"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        answered.insert(name, HeaderValue::from_static(value));
    }
    if file.is_document() {
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ] {
            answered.insert(name, HeaderValue::from_static(value));
        }
    }
    if !is_known {
        answered.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
        answered.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    if let Some(encoding) = encoding {
        answered.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    Some(response)
}

/// Whether an element of a list, as in `gzip;q=0.5` or `W/"tag"`, is the one that is wanted and is not refused.
fn is_accepted(listed: &str, wanted: &str) -> bool {
    let (name, weight) = listed.split_once(';').unwrap_or((listed, ""));
    let is_refused = weight.trim().strip_prefix("q=").is_some_and(|weight| weight.trim().parse() == Ok(0.0));
    name.trim().trim_start_matches("W/") == wanted && !is_refused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, headers: &[(HeaderName, &'static str)]) -> Option<Response<BoxBody>> {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        answer(path, &headers.collect())
    }

    fn header(response: &Response<BoxBody>, name: HeaderName) -> &str {
        response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    #[test]
    fn the_page_is_asked_for_each_time_and_its_files_are_kept_for_ever() {
        let page = get("/", &[]).unwrap();
        assert_eq!(page.status(), StatusCode::OK);
        assert_eq!(header(&page, CACHE_CONTROL), "no-cache");
        let main = get(&format!("{DIRECTORY}src/main.js"), &[]).unwrap();
        assert!(header(&main, CACHE_CONTROL).contains("immutable"));
        assert_eq!(header(&main, CONTENT_TYPE), "text/javascript; charset=utf-8");
        for gone in ["/page/0/src/main.js", "/src/main.js", "/index.html", "/page/", "/vendor/LICENSES.txt"] {
            assert!(get(gone, &[]).is_none(), "{gone}");
        }
    }

    #[test]
    fn a_browser_that_has_a_file_is_told_so() {
        let page = get("/", &[]).unwrap();
        let tag: &'static str = Box::leak(header(&page, ETAG).to_owned().into_boxed_str());
        let again = get("/", &[(IF_NONE_MATCH, tag)]).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(get("/", &[(IF_NONE_MATCH, "\"other\"")]).unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn files_are_compressed_for_those_who_take_that() {
        let encoding =
            |accepted| header(&get("/", &[(ACCEPT_ENCODING, accepted)]).unwrap(), CONTENT_ENCODING).to_owned();
        assert_eq!(encoding("br, gzip;q=0.5"), "gzip");
        assert_eq!(encoding("gzip;q=0"), "");
        assert_eq!(encoding("identity"), "");
        let file = FILES.iter().find(|file| file.path == INDEX).unwrap();
        assert!(file.gzip.len() < file.plain.len());
    }

    #[test]
    fn documents_say_what_they_may_do_and_nothing_is_taken_for_something_else() {
        for file in FILES {
            let path = if file.path == INDEX { "/".to_owned() } else { format!("{DIRECTORY}{}", file.path) };
            let response = get(&path, &[]).unwrap();
            assert_eq!(header(&response, CONTENT_SECURITY_POLICY), if file.is_document() { POLICY } else { "" });
            assert_eq!(header(&response, X_CONTENT_TYPE_OPTIONS), "nosniff");
        }
        assert!(FILES.iter().any(PageFile::is_document) && !POLICY.contains("unsafe"));
    }

    #[test]
    fn what_a_browser_fetches_before_it_shows_the_page_is_less_than_100_kb() {
        let is_first = |file: &&PageFile| !file.path.contains("/lazy/");
        let bytes: usize = FILES.iter().filter(is_first).map(|file| file.gzip.len()).sum();
        assert!(bytes < 100_000, "{bytes} bytes");
    }
}
