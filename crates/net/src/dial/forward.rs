//! Requests of other clients that are passed on to the server of a WebSocket address.

use std::pin::pin;

use ::http::header::{self, HeaderMap, HeaderValue};
use ::http::{Request, Response, Uri};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::http::{Exchanged, exchange};
use super::{BoxIo, DialError, Dialer, Target, secure};
use crate::address::{Address, Transport};

/// A connection that became a WebSocket by the request of another client.
pub(crate) struct Forwarded {
    /// Those of the answer that concern the client.
    pub(crate) headers: HeaderMap,
    pub(crate) io: BoxIo,
    /// What the server sent behind its answer.
    pub(crate) ahead: Bytes,
}

impl Dialer {
    /// Asks for a WebSocket at this target, with the headers of the request, among them the key of the client.
    pub(crate) async fn forward(
        &self,
        address: &Address,
        target: &str,
        request: Request<()>,
    ) -> Result<Forwarded, DialError> {
        let (io, mut request) = self.begin(address, target, request).await?;
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        let Exchanged { headers, io, ahead } = exchange(io, request).await?;
        let mut kept = HeaderMap::new();
        for name in [header::SEC_WEBSOCKET_ACCEPT, header::SEC_WEBSOCKET_PROTOCOL] {
            if let Some(value) = headers.get(&name) {
                kept.insert(name, value.clone());
            }
        }
        Ok(Forwarded { headers: kept, io, ahead })
    }

    /// Asks for the page at this target. The connection lives as long as the body.
    pub(crate) async fn forward_page(
        &self,
        address: &Address,
        target: &str,
        request: Request<()>,
    ) -> Result<Response<Incoming>, DialError> {
        let (io, mut request) = self.begin(address, target, request).await?;
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(DialError::in_http)?;
        tokio::spawn(async move {
            // The body names its own errors.
            let connection = pin!(connection);
            drop(connection.await);
        });
        let mut response = sender.send_request(request).await.map_err(DialError::in_http)?;
        // It is about the connection between the servers.
        response.headers_mut().remove(header::CONNECTION);
        Ok(response)
    }

    /// Opens a connection, and completes the request.
    async fn begin(
        &self,
        address: &Address,
        target: &str,
        request: Request<()>,
    ) -> Result<(BoxIo, Request<Empty<Bytes>>), DialError> {
        let Transport::WebSocket { tls, host, port, .. } = &address.transport else { return Err(DialError::Target) };
        let place = Target { is_tls: *tls, host, port: *port, path: target };
        let mut io = self.reach(place, &self.link).await?;
        if place.is_tls {
            io = secure(&self.tls.connector()?, place.host, io).await?;
        }
        let mut request = request.map(|()| Empty::new());
        *request.uri_mut() = target.parse::<Uri>().map_err(|_| DialError::Target)?;
        let host = HeaderValue::from_str(&place.host_header()).map_err(|_| DialError::Target)?;
        request.headers_mut().insert(header::HOST, host);
        if let Some(token) = &self.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.bearer());
        }
        Ok((io, request))
    }
}
