//! Two ends of the official AHP transport on a loopback WebSocket, each in a task of its own: messages in plain frames.

use ahp::{Transport, TransportMessage};
use ahp_ws::WebSocketTransport;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_tungstenite::{MaybeTlsStream, accept_async, client_async};

/// A way from a client to a host.
pub(crate) struct Official {
    orders: UnboundedSender<String>,
    arrived: UnboundedReceiver<TransportMessage>,
}

impl Official {
    /// A pair of transports whose receiving end parses what it gets, as the official client does, or leaves it as it is.
    pub(crate) async fn new(parses: bool) -> Self {
        let (mut client, mut host) = ends().await;
        let (orders, mut ordered) = unbounded_channel();
        let (arrive, arrived) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(text) = ordered.recv().await {
                client.send(TransportMessage::Text(text)).await.expect("a link");
            }
        });
        tokio::spawn(async move {
            while let Ok(Some(message)) = host.recv().await {
                let message =
                    if parses { TransportMessage::Parsed(message.into_parsed().expect("a message")) } else { message };
                drop(arrive.send(message));
            }
        });
        Self { orders, arrived }
    }

    /// Sends a message, and waits until it has arrived.
    pub(crate) async fn carry(&mut self, text: String) -> TransportMessage {
        self.orders.send(text).expect("the task lives");
        self.arrived.recv().await.expect("the task lives")
    }
}

async fn ends() -> (WebSocketTransport, WebSocketTransport) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (client, host) = tokio::join!(TcpStream::connect(address), listener.accept());
    let plain = |stream: TcpStream| {
        stream.set_nodelay(true).expect("a socket");
        MaybeTlsStream::Plain(stream)
    };
    let url = format!("ws://{address}");
    let (client, host) =
        tokio::join!(client_async(url, plain(client.expect("a link"))), accept_async(plain(host.expect("a link").0)));
    (
        WebSocketTransport::from_stream(client.expect("a handshake").0),
        WebSocketTransport::from_stream(host.expect("a handshake")),
    )
}
