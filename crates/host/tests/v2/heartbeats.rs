//! A peer that vanished without closing is noticed by both sides within 30 s, and nothing is sent to it for longer. The clock
//! is tokio's, paused: it moves only while nothing else happens.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use breakbulk::link::{WebSocket, WebSocketConfig};
use breakbulk::{Arrival, BoxLink, LinkError};
use breakbulk_host::endpoint::EndReason;
use breakbulk_proto::{CloseReason, Message, Meta, Tag, Transmit};
use futures_core::Stream;
use futures_sink::Sink;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::world::{DemoWithMode, TestHost};

/// How long a silent peer may go unnoticed: 30 s, and what a timer is late.
const NOTICED_WITHIN: Duration = Duration::from_millis(30_010);

/// What a socket of the system holds in each direction.
const SOCKET_BYTES: usize = 64 << 10;

/// Two sockets, and something between them that forwards bytes until it does not, and closes nothing.
struct Proxy {
    forwards: watch::Sender<bool>,
    /// Bytes that came from the host.
    from_host: Arc<AtomicU64>,
}

impl Proxy {
    /// The client's socket, the host's, and what is between them.
    fn new() -> (DuplexStream, DuplexStream, Self) {
        let (client, near) = duplex(SOCKET_BYTES);
        let (far, host) = duplex(SOCKET_BYTES);
        let (forwards, is_open) = watch::channel(true);
        let from_host = Arc::new(AtomicU64::new(0));
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = tokio::io::split(far);
        tokio::spawn(forward(near_read, far_write, is_open.clone(), Arc::default()));
        tokio::spawn(forward(far_read, near_write, is_open, Arc::clone(&from_host)));
        (client, host, Self { forwards, from_host })
    }

    /// From now on nothing passes. Both sockets stay open, and what is written into them still goes into their buffers.
    fn vanish(&self) -> Instant {
        self.forwards.send_replace(false);
        Instant::now()
    }
}

async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut is_open: watch::Receiver<bool>,
    count: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = tokio::select! {
            biased;
            _ = is_open.changed() => None,
            read = from.read(&mut buffer) => Some(read.unwrap_or(0)),
        };
        let Some(read) = read else { return std::future::pending().await };
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        count.fetch_add(read as u64, Relaxed);
    }
}

/// Which endpoint of the host a client talks to.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    Ahp,
    V2,
}

/// A client's end, and how the host's ends.
struct Connected {
    link: BoxLink,
    served: JoinHandle<EndReason>,
    proxy: Proxy,
}

impl Connected {
    fn new(host: &TestHost, protocol: Protocol) -> Self {
        let (near, far, proxy) = Proxy::new();
        let link = WebSocket::server(far, &WebSocketConfig::default());
        let (v2, ahp) = (host.host.v2().clone(), host.host.endpoint().clone());
        let served = tokio::spawn(async move {
            match protocol {
                Protocol::Ahp => ahp.serve(link, Some("someone".into())).await,
                Protocol::V2 => v2.serve(link, Some("someone".into())).await,
            }
        });
        Self { link: Box::new(WebSocket::client(near, &WebSocketConfig::default())), served, proxy }
    }

    async fn say(&mut self, command: Value) {
        let bytes = Message::from(command.to_string());
        let frame = Transmit::Frame { tag: Tag::default(), bytes, meta: Meta::default() };
        std::future::poll_fn(|cx| {
            let mut link = Pin::new(&mut self.link);
            std::task::ready!(link.as_mut().poll_ready(cx))?;
            link.as_mut().start_send(frame.clone())?;
            link.poll_flush(cx)
        })
        .await
        .unwrap();
    }

    async fn arrival(&mut self) -> Option<Result<Arrival, LinkError>> {
        std::future::poll_fn(|cx| Pin::new(&mut self.link).poll_next(cx)).await
    }

    /// Takes what comes until one of these says so.
    async fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let Some(Ok(Arrival::Frame { bytes, .. })) = self.arrival().await else { panic!("the link is open") };
            let value: Value = serde_json::from_slice(&bytes).unwrap();
            if is_it(&value) {
                return value;
            }
        }
    }

    /// Begins, and has a session.
    async fn open(&mut self, host: &TestHost, protocol: Protocol) -> String {
        match protocol {
            Protocol::V2 => {
                self.say(json!({"type": "hello", "protocolVersion": 2})).await;
                self.say(json!({"type": "open", "agent": "demo", "cwd": host.path()})).await;
                let ack = self.until(|event| event["type"] == "ack").await;
                ack["sessionId"].as_str().unwrap().to_owned()
            }
            Protocol::Ahp => {
                let session = "ahp-session:/of-ahp";
                let hello = json!({"channel": "ahp-root://", "clientId": "c", "protocolVersions": ["1.0.0"]});
                self.say(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})).await;
                self.until(|message| message["id"] == 1).await;
                let create = json!({"channel": session, "provider": "demo"});
                self.say(json!({"jsonrpc": "2.0", "id": 2, "method": "createSession", "params": create})).await;
                self.until(|message| message["id"] == 2).await;
                session.to_owned()
            }
        }
    }

    /// How the host's side ends and the client's, and when.
    async fn noticed(mut self) -> ((EndReason, Instant), (LinkError, Instant)) {
        let served = self.served;
        let host = tokio::spawn(async move { (served.await.unwrap(), Instant::now()) });
        let client = loop {
            match std::future::poll_fn(|cx| Pin::new(&mut self.link).poll_next(cx)).await {
                Some(Err(error)) => break (error, Instant::now()),
                Some(Ok(Arrival::Frame { .. })) => {}
                other => panic!("{other:?}"),
            }
        };
        (host.await.unwrap(), client)
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanished_is_noticed_by_both_sides_within_30_seconds() {
    for protocol in [Protocol::V2, Protocol::Ahp] {
        let host = TestHost::new(DemoWithMode::patient()).await;
        let mut client = Connected::new(&host, protocol);
        client.open(&host, protocol).await;
        let gone = client.proxy.vanish();
        let ((reason, by_host), (error, by_client)) = client.noticed().await;
        assert!(matches!(reason, EndReason::Link(CloseReason::Idle(_))), "{protocol:?}: {reason:?}");
        assert!(matches!(error, LinkError::Silent(_)), "{protocol:?}: {error}");
        for noticed in [by_host, by_client] {
            assert!(noticed - gone <= NOTICED_WITHIN, "{protocol:?}: after {:?}", noticed - gone);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_there_is_not_given_up_however_long_nothing_happens() {
    for protocol in [Protocol::V2, Protocol::Ahp] {
        let host = TestHost::new(DemoWithMode::patient()).await;
        let mut client = Connected::new(&host, protocol);
        client.open(&host, protocol).await;
        let nothing = tokio::time::timeout(Duration::from_secs(3_600), client.until(|_| false)).await;
        assert!(nothing.is_err(), "{protocol:?}");
        assert!(!client.served.is_finished(), "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanishes_while_much_is_sent_is_noticed_and_nothing_is_sent_to_it_for_longer() {
    // What the agent says while the peer is gone fits the buffers of the sockets, or does not.
    for prompt in ["/slow one two three four five six seven eight nine ten", "/big 2000000"] {
        let host = TestHost::new(DemoWithMode::steady()).await;
        let mut client = Connected::new(&host, Protocol::V2);
        let session = client.open(&host, Protocol::V2).await;
        let (mut second, gone) = (host.watcher(&session).await, client.proxy.vanish());
        second.send(&session, prompt, "1").await;
        let before = client.proxy.from_host.load(Relaxed);
        let from_host = Arc::clone(&client.proxy.from_host);
        let ((reason, by_host), (_, by_client)) = client.noticed().await;
        let silent = matches!(reason, EndReason::Link(CloseReason::Idle(_)) | EndReason::Stalled { .. });
        assert!(silent, "{prompt}: {reason:?}");
        for noticed in [by_host, by_client] {
            assert!(noticed - gone <= NOTICED_WITHIN, "{prompt}: after {:?}", noticed - gone);
        }
        assert_eq!(from_host.load(Relaxed), before, "nothing passed");
        // The session is there for others.
        second.turn_ended(&session, "1").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanishes_while_answers_wait_for_it_is_noticed_within_30_seconds() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut author, session) = host.opened().await;
    author.turn(&session, "/big 2000000", "1").await;
    let mut client = Connected::new(&host, Protocol::V2);
    client.say(json!({"type": "hello", "protocolVersion": 2})).await;
    client.until(|event| event["type"] == "client_id").await;
    // Commands and their answers are in the buffers when the peer vanishes: the host has read less than was said.
    for _ in 0..200 {
        client.say(json!({"type": "watch", "sessionId": session})).await;
    }
    let gone = client.proxy.vanish();
    let ((_, by_host), (_, by_client)) = client.noticed().await;
    for noticed in [by_host, by_client] {
        assert!(noticed - gone <= NOTICED_WITHIN, "after {:?}", noticed - gone);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_ping_gets_a_pong_for_its_ping_command() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let mut client = Connected::new(&host, Protocol::V2);
    client.say(json!({"type": "hello", "protocolVersion": 2})).await;
    for _ in 0..3 {
        client.say(json!({"type": "ping"})).await;
        client.until(|event| event["type"] == "pong").await;
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}
