//! What a TCP socket is told before a WebSocket uses it.

use socket2::SockRef;
use tokio::net::TcpStream;

use super::WebSocketConfig;

/// Bytes that may wait in a socket of this machine's own, on the way in: it is as fast as its reader, so that more would
/// only be what a small message has to wait for, and would not stay in the processor's cache.
const LOCAL_UNREAD: usize = 160 << 10;
/// The same where messages come whole: nothing passes one of those, and its reader and writer wait for each other less.
const LOCAL_UNREAD_WHOLE: usize = 1 << 20;
/// Who takes longer frames is sent messages whole: a peer that cuts them makes no such frames.
const LONGEST_SEGMENT: u64 = 4 << 20;
/// And on the way out.
const LOCAL_UNSENT: u32 = 32 << 10;

/// Prepares a TCP socket for a [`WebSocket`](super::WebSocket), as our own dialer and listener do: small frames leave at
/// once, and little piles up in the system's buffers. None of it is needed for correctness, so what a system refuses is
/// only noted.
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
