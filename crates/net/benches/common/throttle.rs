//! A way between two sockets that takes only so many bytes a second.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// What is passed on at once.
const PIECE: usize = 16 << 10;
/// How late a timer may be. What it lost is made up for, or the way would be slower than it says.
const LATE: Duration = Duration::from_millis(5);

/// Stands before `address`; gives where to connect instead. Its buffers are small, as those of a slow way are.
pub(crate) async fn throttle(address: SocketAddr, bytes_a_second: f64) -> SocketAddr {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(64 << 10).expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let listener: TcpListener = socket.listen(1).expect("a port");
    let here = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.expect("a client");
        let server = TcpStream::connect(address).await.expect("a server");
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        tokio::join!(pass(from_client, to_server, bytes_a_second), pass(from_server, to_client, bytes_a_second));
    });
    here
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, bytes_a_second: f64) {
    let mut piece = vec![0; PIECE];
    let mut free_at = Instant::now();
    loop {
        let Ok(len @ 1..) = from.read(&mut piece).await else { return };
        free_at = free_at.max(Instant::now() - LATE) + Duration::from_secs_f64(len as f64 / bytes_a_second);
        tokio::time::sleep_until(free_at).await;
        if to.write_all(&piece[..len]).await.is_err() {
            return;
        }
    }
}
