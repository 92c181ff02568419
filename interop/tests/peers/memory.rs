//! What two bridges hold while a thousand messages pass, and while clients that hardly read, or do not, sit beside others.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Bytes, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::program::Bridge;
use super::relay::Relay;
use super::world::CAP;
use super::{server, soon};

const MB: u64 = 1_000_000;
/// What a process may hold beside twice its largest message.
const PEAK: u64 = 64 * MB;
const SIZE: usize = 1_000_000;

const HELLO: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"c","protocolVersions":["1.0.0"]}}"#;
const WELCOME: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":0,"snapshots":[]}}"#;

type Socket = WebSocketStream<TcpStream>;

/// Two bridges, and a host that sends so many messages of a megabyte to whoever asks, and counts those that it gets.
struct Pair {
    client_bridge: Bridge,
    host_bridge: Bridge,
    relay: Relay,
}

impl Pair {
    async fn new() -> Self {
        let (listener, url) = server::bind().await;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move { serve(server::accept(stream).await.unwrap()).await });
            }
        });
        let host_bridge = Bridge::open(&format!("ws://127.0.0.1:0?cap={CAP}"), &url);
        let relay = Relay::to(&host_bridge.url, []).await;
        let client_bridge = Bridge::open("ws://127.0.0.1:0", &format!("{}?cap={CAP}", relay.url));
        Self { client_bridge, host_bridge, relay }
    }

    /// A client that has said hello, so that both bridges know what the other takes, and asked for so many messages.
    async fn client(&self, asks_for: usize) -> Socket {
        let stream = TcpStream::connect(self.client_bridge.url.strip_prefix("ws://").unwrap()).await.unwrap();
        let (mut socket, _) =
            client_async_with_config(&self.client_bridge.url, stream, Some(server::unlimited())).await.unwrap();
        say(&mut socket, HELLO).await;
        assert!(hear(&mut socket).await.contains("protocolVersion"));
        say(&mut socket, &format!(r#"{{"jsonrpc":"2.0","method":"x/ask","params":[{asks_for}]}}"#)).await;
        socket
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_messages_of_a_megabyte_pass_each_way_within_64_mb_and_twice_the_largest() {
    let pair = Pair::new().await;
    let mut socket = pair.client(1000).await;
    let whole = async {
        for n in 0..1000 {
            assert!(hear(&mut socket).await == message(n), "message {n} to the client");
        }
        for n in 0..1000 {
            say(&mut socket, &message(n)).await;
        }
        say(&mut socket, r#"{"jsonrpc":"2.0","id":2,"method":"x/count"}"#).await;
        assert_eq!(hear(&mut socket).await, r#"{"jsonrpc":"2.0","id":2,"result":1000}"#);
    };
    soon(whole).await;
    for (name, bridge) in [("beside the client", &pair.client_bridge), ("beside the host", &pair.host_bridge)] {
        println!("{name}: at most {:.1} MB", bridge.peak() as f64 / MB as f64);
        assert!(bridge.peak() < PEAK + 2 * SIZE as u64, "{name}: {} bytes", bridge.peak());
    }
    assert!((1..=CAP).contains(&pair.relay.longest_frame()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_and_a_stalled_reader_hold_up_nobody_else_and_memory_stays_bounded() {
    let pair = Pair::new().await;
    let (slow, stalled) = (pair.client(200).await, pair.client(200).await);
    let mut slow = slow.into_inner();
    let reading = tokio::spawn(async move {
        let mut kilobyte = [0; 1000];
        while slow.read_exact(&mut kilobyte).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    // Until both have all that anyone will hold for them.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut other = pair.client(100).await;
    soon(async {
        for n in 0..100 {
            assert!(hear(&mut other).await == message(n), "message {n} beside slow readers");
        }
    })
    .await;
    assert!(!reading.is_finished(), "the slow reader is still there");
    for (name, bridge) in [("beside the client", &pair.client_bridge), ("beside the host", &pair.host_bridge)] {
        println!("{name}: at most {:.1} MB beside slow readers", bridge.peak() as f64 / MB as f64);
        // Each of the three has its own floor of waiting bytes; 400 MB wait for the slow ones in all.
        assert!(bridge.peak() < 2 * PEAK, "{name}: {} bytes", bridge.peak());
    }
    drop(stalled);
    reading.abort();
}

/// The host: answers `initialize` and `x/count`, sends what `x/ask` asks for, counts the rest.
async fn serve(mut socket: Socket) {
    let mut count = 0;
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        if text.contains(r#""initialize""#) {
            say(&mut socket, WELCOME).await;
        } else if text.contains(r#""x/count""#) {
            say(&mut socket, &format!(r#"{{"jsonrpc":"2.0","id":2,"result":{count}}}"#)).await;
        } else if let Some((_, asked)) = text.split_once(r#""x/ask","params":["#) {
            for n in 0..asked.trim_end_matches("]}").parse().unwrap() {
                if socket.send(Message::Text(self::message(n))).await.is_err() {
                    return;
                }
            }
        } else if text == self::message(count) {
            count += 1;
        }
    }
}

/// The n-th message of a megabyte.
fn message(n: usize) -> Utf8Bytes {
    let head = format!(r#"{{"jsonrpc":"2.0","method":"x/cargo","params":{{"n":{n},"text":""#);
    let mut text = Vec::with_capacity(SIZE + 4);
    text.extend(head.bytes());
    text.resize(SIZE - 3, b'a' + (n % 26) as u8);
    text.extend(br#""}}"#);
    Utf8Bytes::try_from(Bytes::from(text)).unwrap()
}

async fn say(socket: &mut Socket, text: &str) {
    socket.send(Message::text(text)).await.unwrap();
}

async fn hear(socket: &mut Socket) -> Utf8Bytes {
    loop {
        match soon(socket.next()).await.unwrap().unwrap() {
            Message::Text(text) => return text,
            Message::Close(close) => panic!("{close:?}"),
            _ => {}
        }
    }
}
