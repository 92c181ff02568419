//! What a relay sends to its clients, recorded on the way. Their own direction is masked; whatever matters of it comes out of the relay
//! again, to somebody else.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A port before the one of a relay.
pub(super) struct Capture {
    pub(super) port: u16,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Capture {
    /// Passes connections on to this port.
    pub(super) async fn before(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let shared = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let seen = Arc::clone(&shared);
                tokio::spawn(async move {
                    let Ok(relay) = TcpStream::connect(("127.0.0.1", target)).await else { return };
                    let ((mut from_client, mut to_client), (mut from_relay, mut to_relay)) =
                        (client.into_split(), relay.into_split());
                    let up = async {
                        let _ = tokio::io::copy(&mut from_client, &mut to_relay).await;
                        let _ = to_relay.shutdown().await;
                    };
                    let down = async {
                        let mut buffer = vec![0; 256 << 10];
                        while let Ok(count @ 1..) = from_relay.read(&mut buffer).await {
                            seen.lock().unwrap().extend_from_slice(&buffer[..count]);
                            if to_client.write_all(&buffer[..count]).await.is_err() {
                                break;
                            }
                        }
                        let _ = to_client.shutdown().await;
                    };
                    tokio::join!(up, down);
                });
            }
        });
        Self { port, seen }
    }

    /// All that was recorded so far.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.seen.lock().unwrap().clone()
    }
}
