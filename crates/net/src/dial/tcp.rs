//! TCP to a name: all of its addresses are tried.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::DialError;
use crate::link::{WebSocketConfig, tune};

/// Connects to the first address of `host` that answers. Each gets its share of the time, so that one which drops all
/// packets leaves some for the others.
pub(super) async fn connect(
    host: &str,
    port: u16,
    time: Duration,
    link: &WebSocketConfig,
) -> Result<TcpStream, DialError> {
    let end = Instant::now() + time;
    let unresolved = |source| DialError::NotResolved { host: host.into(), source };
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await.map_err(unresolved)?.collect();
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    if addresses.is_empty() {
        return Err(unresolved(last));
    }
    for (left, address) in (1u32..=u32::try_from(addresses.len()).unwrap_or(u32::MAX)).rev().zip(addresses) {
        let share = end.saturating_duration_since(Instant::now()) / left;
        match tokio::time::timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                tune(&stream, link);
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = ErrorKind::TimedOut.into(),
        }
    }
    let host = host.into();
    Err(match last.kind() {
        ErrorKind::ConnectionRefused => DialError::Refused { host, port },
        ErrorKind::TimedOut => DialError::TimedOut(time),
        _ => DialError::Unreachable { host, port, source: last },
    })
}
