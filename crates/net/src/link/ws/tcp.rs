//! What a TCP socket is told before a WebSocket uses it.

use tokio::net::TcpStream;

use super::WebSocketConfig;

/// Small frames leave at once, and little piles up in the system's buffer. Neither is needed for correctness, so a system
/// that refuses is only noted.
pub(crate) fn tune(stream: &TcpStream, config: &WebSocketConfig) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY refused");
    }
    #[cfg(any(target_os = "android", target_os = "linux"))]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(config.max_unsent_bytes) {
        tracing::debug!(%error, "TCP_NOTSENT_LOWAT refused");
    }
    #[cfg(not(any(target_os = "android", target_os = "linux")))]
    let _ = config;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tuned_socket_sends_at_once_and_holds_little() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tune(&stream, &WebSocketConfig::default());
        assert!(stream.nodelay().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(socket2::SockRef::from(&stream).tcp_notsent_lowat().unwrap(), 128 << 10);
    }
}
