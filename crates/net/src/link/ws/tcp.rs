//! Options of a TCP socket for a WebSocket.

use socket2::SockRef;
use tokio::net::TcpStream;

use super::WebSocketConfig;

/// The receive buffer of a loopback connection. Such a connection is as fast as its reader. In a larger buffer, small messages would
/// wait behind more bytes, and the bytes would not stay in the processor's cache.
const LOCAL_UNREAD: usize = 160 << 10;
/// The same where messages come whole. Nothing can overtake those, and with a larger buffer the reader and the writer wait less for
/// each other.
const LOCAL_UNREAD_WHOLE: usize = 1 << 20;
/// If longer frames are accepted, messages come whole: a peer that cuts them makes no frames of this length.
const LONGEST_SEGMENT: u64 = 4 << 20;
/// How many unsent bytes may wait in the send buffer of a loopback connection.
const LOCAL_UNSENT: u32 = 32 << 10;

/// Prepares a TCP socket for a [`WebSocket`](super::WebSocket), as our own dialer and listener do: small frames are sent at once, and
/// few bytes wait in the buffers of the system. None of it is needed for correctness, so an option that the system refuses is only
/// logged.
pub fn tune(stream: &TcpStream, config: &WebSocketConfig) {
    let note = |option, set: std::io::Result<()>| {
        set.unwrap_or_else(|error| tracing::debug!(%error, "{option} refused"));
    };
    note("TCP_NODELAY", stream.set_nodelay(true));
    let is_local = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
    if is_local {
        let is_whole = config.max_frame_bytes > LONGEST_SEGMENT;
        let most = if is_whole { LOCAL_UNREAD_WHOLE } else { LOCAL_UNREAD };
        note("SO_RCVBUF", SockRef::from(stream).set_recv_buffer_size(most));
    }
    #[cfg(any(target_os = "android", target_os = "linux"))]
    {
        let most = if is_local { LOCAL_UNSENT } else { u32::MAX };
        let set = SockRef::from(stream).set_tcp_notsent_lowat(config.max_unsent_bytes.min(most));
        note("TCP_NOTSENT_LOWAT", set);
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
        // The system may count its own overhead in, which doubles it.
        assert!(SockRef::from(&stream).recv_buffer_size().unwrap() <= 2 * LOCAL_UNREAD);
        #[cfg(target_os = "linux")]
        assert_eq!(SockRef::from(&stream).tcp_notsent_lowat().unwrap(), LOCAL_UNSENT);
    }

    #[tokio::test]
    async fn where_messages_come_whole_more_may_wait() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let unread = async |max_frame_bytes| {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            tune(&stream, &WebSocketConfig { max_frame_bytes, ..WebSocketConfig::default() });
            SockRef::from(&stream).recv_buffer_size().unwrap()
        };
        // How much more, the system may bound.
        assert!(unread(LONGEST_SEGMENT + 1).await > unread(LONGEST_SEGMENT).await);
    }
}
