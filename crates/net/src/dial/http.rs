//! One HTTP exchange that turns a connection into something else: `Upgrade` and `CONNECT`.

use std::pin::pin;

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::{BoxIo, DialError};

/// More than any honest answer needs.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How much of a refusal is read, and how many characters of it are shown.
const MAX_BODY_BYTES: usize = 4 << 10;
const MAX_WORDS: usize = 200;

/// A connection that is no longer HTTP.
pub(super) struct Exchanged {
    pub(super) headers: HeaderMap,
    pub(super) io: BoxIo,
    /// What the peer sent behind its answer.
    pub(super) ahead: Bytes,
}

/// Sends the request, and hands the connection back if the answer lets it become something else.
pub(super) async fn exchange(io: BoxIo, request: Request<Empty<Bytes>>) -> Result<Exchanged, DialError> {
    let is_connect = request.method() == Method::CONNECT;
    let granted = |status: StatusCode| {
        if is_connect { status.is_success() } else { status == StatusCode::SWITCHING_PROTOCOLS }
    };
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES).title_case_headers(true);
    let (mut sender, connection) = builder.handshake(TokioIo::new(io)).await.map_err(DialError::in_http)?;
    let mut connection = pin!(connection.without_shutdown());
    let mut answer = pin!(async move {
        let response = sender.send_request(request).await.map_err(DialError::in_http)?;
        let (head, body) = response.into_parts();
        if granted(head.status) {
            return Ok(head.headers);
        }
        Err(DialError::Status { status: head.status.as_u16(), words: first_words(body).await })
    });
    // The connection is what moves the answer, so both go on at once; a granted one ends the connection, too.
    let mut parts = None;
    let headers = loop {
        tokio::select! {
            biased;
            ended = &mut connection, if parts.is_none() => parts = Some(ended),
            answer = &mut answer => break answer?,
        }
    };
    let parts = match parts {
        Some(parts) => parts,
        None => connection.await,
    };
    let parts = parts.map_err(DialError::in_http)?;
    Ok(Exchanged { headers, io: parts.io.into_inner(), ahead: parts.read_buf })
}

/// The beginning of a text, on one line and without what could upset a terminal.
async fn first_words(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_BODY_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
    }
    let text = String::from_utf8_lossy(&bytes);
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(MAX_WORDS).collect()
}
