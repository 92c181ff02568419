//! Responses of the HTTP interface.

use breakbulk::listen::BoxBody;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full};

/// A response with a body of this type.
pub(super) fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<BoxBody> {
    let mut response = Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A response without a body.
pub(super) fn empty(status: StatusCode) -> Response<BoxBody> {
    let mut response = response(status, "text/plain", Bytes::new());
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

/// An object as JSON.
pub(super) fn json(value: &serde_json::Value) -> Response<BoxBody> {
    response(StatusCode::OK, "application/json; charset=utf-8", value.to_string())
}

/// What is wrong with a request, as the service says it.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// A request that is wrong in itself.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// Its name.
    pub(super) const fn code(&self) -> &'static str {
        self.code
    }

    pub(super) fn into_response(self) -> Response<BoxBody> {
        let Self { status, code, message } = self;
        let body = serde_json::json!({ "code": code, "message": message });
        let mut response = response(status, "application/json; charset=utf-8", body.to_string());
        let headers = response.headers_mut();
        headers.insert(HeaderName::from_static("x-ms-error-code"), HeaderValue::from_static(code));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
