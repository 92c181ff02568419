//! A plain AHP server on tokio-tungstenite, as somebody else would write it: it has never heard of segments.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, accept_async_with_config};

use super::driver::Port;
use super::host::Host;

/// Listens on loopback, and serves whoever comes as `host`. The URL to connect to.
pub(crate) async fn serve(host: &Host) -> String {
    let (listener, url) = bind().await;
    let host = host.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let host = host.clone();
            tokio::spawn(async move {
                // One that goes away in the handshake is no client.
                if let Some(socket) = accept(stream).await {
                    carry(socket, &host).await;
                }
            });
        }
    });
    url
}

/// A listener on loopback, and its URL.
pub(crate) async fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Takes messages of any size, in frames of any size.
pub(crate) async fn accept(stream: TcpStream) -> Option<WebSocketStream<TcpStream>> {
    accept_async_with_config(stream, Some(unlimited())).await.ok()
}

pub(crate) fn unlimited() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(None).max_frame_size(None)
}

/// Carries messages between a socket and the host, until one of them is gone.
async fn carry(socket: WebSocketStream<TcpStream>, host: &Host) {
    let (mut sink, mut stream) = socket.split();
    let (tx, mut from_host) = unbounded_channel::<Bytes>();
    let (to_host, rx) = unbounded_channel();
    host.serve(Port { tx, rx });
    let writing = async {
        while let Some(message) = from_host.recv().await {
            let text = Message::text(String::from_utf8(message.into()).unwrap());
            if sink.send(text).await.is_err() {
                return;
            }
        }
    };
    let reading = async {
        while let Some(Ok(message)) = stream.next().await {
            if let Message::Text(text) = message {
                let _ = to_host.send(Bytes::from(text));
            }
        }
    };
    tokio::select! { () = writing => {}, () = reading => {} }
}
