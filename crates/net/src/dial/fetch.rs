//! One HTTP request to the server of a WebSocket, for what it tells about itself.

use ::http::header::{self, HeaderValue};
use ::http::{Request, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::{DialError, Dialer, Target, secure};
use crate::address::{Address, Transport};

impl Dialer {
    /// Asks the server of a WebSocket address for the document of this type that is at the same URL. `Ok(None)` if it has none, or one
    /// of more than `max_bytes`. Redirects are not followed.
    ///
    /// # Errors
    /// The server could not be reached, or does not speak HTTP.
    pub async fn fetch(&self, address: &Address, accept: &str, max_bytes: usize) -> Result<Option<Bytes>, DialError> {
        let Transport::WebSocket { tls, host, port, target } = &address.transport else { return Ok(None) };
        let target = Target { is_tls: *tls, host, port: *port, path: target };
        match tokio::time::timeout(self.timeout, self.fetch_from(target, accept, max_bytes)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(DialError::TimedOut(self.timeout)),
        }
    }

    async fn fetch_from(&self, target: Target<'_>, accept: &str, max: usize) -> Result<Option<Bytes>, DialError> {
        let mut io = self.reach(target, &self.link).await?;
        if target.is_tls {
            io = secure(&self.tls.connector()?, target.host, io).await?;
        }
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = target.path.parse::<Uri>().map_err(|_| DialError::Target)?;
        for (name, value) in [(header::HOST, target.host_header().as_str()), (header::ACCEPT, accept)] {
            request.headers_mut().insert(name, HeaderValue::from_str(value).map_err(|_| DialError::Target)?);
        }
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(DialError::in_http)?;
        let answer = async move {
            let response = sender.send_request(request).await.map_err(DialError::in_http)?;
            if !response.status().is_success() {
                return Ok(None);
            }
            Ok(Limited::new(response.into_body(), max).collect().await.ok().map(|body| body.to_bytes()))
        };
        tokio::pin!(answer);
        tokio::pin!(connection);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // When the connection has ended, what is left of the answer is in memory.
            _ = &mut connection => answer.await,
        }
    }
}
