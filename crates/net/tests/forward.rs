//! A listener that carries its clients to another server: as bytes, with its own check of access, and never in a circle.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use breakbulk::dial::ProxyChoice;
use breakbulk::listen::{Forwarding, Pages, Upstream};
use breakbulk::{Accepted, AccessPolicy, Address, Arrival, BoxLink, Dialer, ListenConfig, Listener};
use breakbulk_proto::{CloseReason, Meta, Tag, Transmit};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::Response;
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const SOON: Duration = Duration::from_secs(20);

/// A listener at work.
struct Site {
    address: SocketAddr,
    accepted: mpsc::Receiver<Accepted>,
    upstream: watch::Sender<Upstream>,
}

impl Site {
    /// Forwards as `upstream` says; a client waits for so long.
    async fn new(upstream: Upstream, wait: Duration) -> Self {
        let (upstream, watched) = watch::channel(upstream);
        let dialer = Dialer {
            token: Some(TOKEN.parse().unwrap()),
            proxy: ProxyChoice::Never,
            timeout: Duration::from_secs(5),
            ..Dialer::default()
        };
        let forwarding = Forwarding::new(watched, dialer, wait, 2);
        let mut config =
            ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::with_token(TOKEN.parse().unwrap()));
        let pages = forwarding.clone();
        config.pages = Some(Pages::new(move |request, _| {
            let pages = pages.clone();
            async move {
                let path = request.uri().path().to_owned();
                match pages.page(request.method(), &path, request.headers()).await {
                    Some(response) => response,
                    None => Response::new(Full::from(format!("own {path}")).map_err(|never| match never {}).boxed()),
                }
            }
        }));
        config.forwarding = Some(forwarding);
        let mut listener = Listener::bind(config).await.unwrap();
        let address = listener.local_address();
        let (sender, accepted) = mpsc::channel(8);
        tokio::spawn(async move { while sender.send(listener.accept().await).await.is_ok() {} });
        Self { address, accepted, upstream }
    }

    async fn owner() -> Self {
        Self::new(Upstream::Here, SOON).await
    }

    async fn before(owner: &Self) -> Self {
        Self::new(owner.as_upstream(), SOON).await
    }

    fn as_upstream(&self) -> Upstream {
        Upstream::At(format!("ws://{}", self.address).parse().unwrap())
    }

    async fn dial(&self) -> BoxLink {
        let dialer = Dialer { token: Some(TOKEN.parse().unwrap()), proxy: ProxyChoice::Never, ..Dialer::default() };
        let address: Address = format!("ws://{}/ahp", self.address).parse().unwrap();
        timeout(SOON, dialer.dial(&address)).await.unwrap().unwrap()
    }

    async fn accept(&mut self) -> Accepted {
        timeout(SOON, self.accepted.recv()).await.unwrap().unwrap()
    }

    /// The answer to a request with these header lines.
    async fn ask(&self, target: &str, lines: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n{lines}\r\n", self.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = async {
            let is_upgrade = |answer: &[u8]| answer.starts_with(b"HTTP/1.1 101") && answer.ends_with(b"\r\n\r\n");
            while stream.read_buf(&mut answer).await.unwrap() > 0 && !is_upgrade(&answer) {}
        };
        timeout(SOON, read).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    async fn upgrade(&self, lines: &str) -> String {
        let lines = format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}"
        );
        self.ask("/ahp", &lines).await
    }
}

fn frame(text: String) -> Transmit {
    Transmit::Frame { tag: Tag::default(), bytes: text.into(), meta: Meta::default() }
}

async fn text(link: &mut BoxLink) -> Bytes {
    match timeout(SOON, link.next()).await.unwrap().unwrap().unwrap() {
        Arrival::Frame { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn frames_and_closes_pass_in_both_directions() {
    let mut owner = Site::owner().await;
    let node = Site::before(&owner).await;
    let mut client = node.dial().await;
    let Accepted { mut link, target, principal, .. } = owner.accept().await;
    assert_eq!((target.as_str(), principal.is_some()), ("/ahp", true));
    let long = "x".repeat(3_000_000);
    let (there, back) = tokio::join!(
        async {
            client.send(frame(long.clone())).await.unwrap();
            text(&mut client).await
        },
        async {
            let there = text(&mut link).await;
            link.send(frame("back".into())).await.unwrap();
            there
        }
    );
    assert_eq!((&*there, back.len()), (&b"back"[..], long.len()));
    link.send(Transmit::Close(CloseReason::Restart)).await.unwrap();
    let closed = timeout(SOON, client.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(&closed, Arrival::Closed { code, .. } if *code == CloseReason::Restart.code()), "{closed:?}");
}

#[tokio::test]
async fn a_client_that_leaves_is_gone_at_the_other_server_too() {
    let mut owner = Site::owner().await;
    let node = Site::before(&owner).await;
    let client = node.dial().await;
    let mut link = owner.accept().await.link;
    drop(client);
    while let Some(Ok(arrival)) = timeout(SOON, link.next()).await.unwrap() {
        if matches!(arrival, Arrival::Closed { .. }) {
            break;
        }
    }
}

#[tokio::test]
async fn access_is_checked_before_anything_is_forwarded() {
    let owner = Site::owner().await;
    let node = Site::before(&owner).await;
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    assert!(node.upgrade(&token).await.starts_with("HTTP/1.1 101"));
    assert!(node.upgrade("").await.starts_with("HTTP/1.1 401"));
    assert!(
        node.upgrade("Authorization: Bearer 0123456789abcdef0123456789abcdee\r\n").await.starts_with("HTTP/1.1 401")
    );
    assert!(node.upgrade(&format!("{token}Origin: http://evil.example\r\n")).await.starts_with("HTTP/1.1 403"));
    let own_page = format!("{token}Origin: http://{}\r\n", node.address);
    assert!(node.upgrade(&own_page).await.starts_with("HTTP/1.1 101"), "the other server does not see the origin");
}

#[tokio::test]
async fn subprotocol_and_key_are_answered_by_who_serves() {
    let owner = Site::owner().await;
    let node = Site::before(&owner).await;
    let answer = node.upgrade(&format!("Authorization: Bearer {TOKEN}\r\nSec-WebSocket-Protocol: a, b\r\n")).await;
    let answer = answer.to_lowercase();
    assert!(answer.contains("sec-websocket-protocol: a\r\n"), "{answer}");
    assert!(answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"), "{answer}");
}

#[tokio::test]
async fn while_nobody_serves_a_client_waits_and_is_told_to_come_again() {
    let node = Site::new(Upstream::Nobody, Duration::from_millis(50)).await;
    let answer = node.upgrade(&format!("Authorization: Bearer {TOKEN}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.to_lowercase().contains("retry-after: 1"), "{answer}");
    // A port on which nobody listens.
    let dead = TcpStream::connect(node.address).await.unwrap().local_addr().unwrap();
    node.upstream.send_replace(Upstream::At(format!("ws://{dead}").parse().unwrap()));
    assert!(node.upgrade(&format!("Authorization: Bearer {TOKEN}\r\n")).await.starts_with("HTTP/1.1 503"));
}

#[tokio::test]
async fn who_waits_is_served_as_soon_as_somebody_serves() {
    let mut owner = Site::owner().await;
    let mut node = Site::new(Upstream::Nobody, SOON).await;
    let (client, ()) = tokio::join!(node.dial(), async {
        tokio::task::yield_now().await;
        node.upstream.send_replace(owner.as_upstream());
    });
    drop((client, owner.accept().await));
    node.upstream.send_replace(Upstream::Nobody);
    let upstream = node.upstream.clone();
    let (client, ()) = tokio::join!(node.dial(), async move {
        tokio::task::yield_now().await;
        upstream.send_replace(Upstream::Here);
    });
    drop((client, node.accept().await));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_left_for_the_next_one() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ws://{}", silent.local_addr().unwrap()).parse().unwrap();
    let mut owner = Site::owner().await;
    let node = Site::new(Upstream::At(address), SOON).await;
    let (client, _asked) = tokio::join!(node.dial(), async {
        let asked = silent.accept().await.unwrap();
        node.upstream.send_replace(owner.as_upstream());
        asked
    });
    drop((client, owner.accept().await));
}

#[tokio::test]
async fn carried_connections_are_cut_when_another_server_serves() {
    let mut owner = Site::owner().await;
    let node = Site::before(&owner).await;
    let mut client = node.dial().await;
    let _link = owner.accept().await;
    node.upstream.send_replace(Upstream::Nobody);
    let end = timeout(SOON, client.next()).await.unwrap();
    assert!(!matches!(end, Some(Ok(Arrival::Frame { .. }))), "{end:?}");
}

#[tokio::test]
async fn two_servers_that_point_at_each_other_do_not_go_in_circles() {
    let wait = Duration::from_millis(200);
    let one = Site::new(Upstream::Nobody, wait).await;
    let other = Site::new(one.as_upstream(), wait).await;
    one.upstream.send_replace(other.as_upstream());
    assert!(one.upgrade(&format!("Authorization: Bearer {TOKEN}\r\n")).await.starts_with("HTTP/1.1 503"));
}

#[tokio::test]
async fn no_more_connections_are_carried_than_allowed() {
    let mut owner = Site::owner().await;
    let node = Site::before(&owner).await;
    let clients = (node.dial().await, node.dial().await);
    let links = (owner.accept().await, owner.accept().await);
    assert!(node.upgrade(&format!("Authorization: Bearer {TOKEN}\r\n")).await.starts_with("HTTP/1.1 503"));
    drop((clients, links));
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_its_sender_back() {
    let mut owner = Site::owner().await;
    let node = Site::before(&owner).await;
    let mut client = node.dial().await;
    let mut link = owner.accept().await.link;
    let mut sent = 0_usize;
    // Sockets and buffers take some; without backpressure this goes on for ever.
    while sent < 2_000 && timeout(Duration::from_secs(1), link.send(frame("x".repeat(100_000)))).await.is_ok() {
        sent += 1;
    }
    assert!(sent < 2_000, "200 MB are somewhere");
    for _ in 0..sent {
        assert_eq!(text(&mut client).await.len(), 100_000);
    }
}

#[tokio::test]
async fn pages_come_from_who_serves() {
    let owner = Site::owner().await;
    let node = Site::before(&owner).await;
    for site in [&owner, &node] {
        let answer = site.ask("/content/x", "Connection: close\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("own /content/x"), "{answer}");
    }
}
