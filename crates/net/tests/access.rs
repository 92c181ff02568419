//! Admission: who may connect, what the others are told, and that nobody's handshake holds up another's.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use breakbulk::listen::{BoxBody, Pages, Peer};
use breakbulk::{Accepted, AccessPolicy, Arrival, ListenConfig, ListenError, Listener, Token};
use futures_util::StreamExt;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const SOON: Duration = Duration::from_secs(10);

/// A listener at work: where it is, and whom it let in.
struct Site {
    address: SocketAddr,
    accepted: mpsc::Receiver<Accepted>,
}

impl Site {
    async fn with(change: impl FnOnce(&mut ListenConfig)) -> Self {
        let access = AccessPolicy::with_token(TOKEN.parse().unwrap());
        let mut config = ListenConfig::new("127.0.0.1:0".parse().unwrap(), access);
        change(&mut config);
        let mut listener = Listener::bind(config).await.unwrap();
        let address = listener.local_address();
        let (sender, accepted) = mpsc::channel(8);
        tokio::spawn(async move { while sender.send(listener.accept().await).await.is_ok() {} });
        Self { address, accepted }
    }

    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A handshake in order, with this target and these header lines.
    fn handshake(&self, target: &str, lines: &str) -> String {
        self.request(
            target,
            &format!(
                "Host: {}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}",
                self.address
            ),
        )
    }

    fn request(&self, target: &str, lines: &str) -> String {
        format!("GET {target} HTTP/1.1\r\n{lines}\r\n")
    }

    /// The answer to these bytes: its head and whatever came with it.
    async fn answer(&self, request: &str) -> (u16, String, TcpStream) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = async {
            while !answer.windows(4).any(|window| window == b"\r\n\r\n")
                && stream.read_buf(&mut answer).await.unwrap() > 0
            {}
            if !answer.starts_with(b"HTTP/1.1 101") {
                let _ = stream.read_to_end(&mut answer).await;
            }
        };
        timeout(SOON, read).await.expect("an answer");
        let answer = String::from_utf8(answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        (status, answer, stream)
    }

    async fn status(&self, target: &str, lines: &str) -> u16 {
        self.answer(&self.handshake(target, lines)).await.0
    }

    async fn next(&mut self) -> Accepted {
        timeout(SOON, self.accepted.recv()).await.unwrap().unwrap()
    }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[tokio::test]
async fn the_token_admits_as_a_header_and_as_a_query() {
    let mut site = Site::new().await;
    let (status, answer, _stream) = site.answer(&site.handshake("/a/b?x=1", &bearer(TOKEN))).await;
    assert_eq!(status, 101);
    assert!(answer.to_ascii_lowercase().contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
    let first = site.next().await;
    assert_eq!(first.target, "/a/b?x=1");
    for target in [format!("/?x=1&token={TOKEN}&y=2"), format!("/?x=1&%74oken={TOKEN}&y=2")] {
        assert_eq!(site.status(&target, "").await, 101);
        let accepted = site.next().await;
        assert_eq!(accepted.target, "/?x=1&y=2", "the token is taken out");
        assert_eq!(accepted.principal, first.principal);
    }
    let principal = first.principal.unwrap();
    assert!(principal.starts_with("token:") && !principal.contains(TOKEN), "{principal}");
}

#[tokio::test]
async fn without_the_token_the_answer_is_401_and_says_what_is_needed() {
    let site = Site::new().await;
    let (status, answer, _) = site.answer(&site.handshake("/", "")).await;
    assert_eq!(status, 401);
    assert!(answer.contains("?token=TOKEN") && answer.to_ascii_lowercase().contains("www-authenticate: bearer"));
    for lines in [bearer("wrong"), bearer(&TOKEN[1..]), format!("Authorization: Basic {TOKEN}\r\n"), bearer("")] {
        assert_eq!(site.status("/", &lines).await, 401, "{lines}");
    }
    assert_eq!(site.status(&format!("/?token={TOKEN}x"), "").await, 401);
}

#[tokio::test]
async fn pages_of_strangers_are_refused_whatever_they_know() {
    let site = Site::with(|config| {
        config.access = AccessPolicy::with_token(TOKEN.parse().unwrap()).allow_origin("https://chat.example.com");
    })
    .await;
    let own = format!("http://{}", site.address);
    for (origin, status) in [
        (own.as_str(), 101),
        ("https://chat.example.com", 101),
        ("https://chat.example.com:443", 101),
        ("https://evil.example.com", 403),
        ("http://chat.example.com", 403),
        ("https://chat.example.com.evil.example", 403),
        ("http://127.0.0.1:1", 403),
        ("null", 403),
        ("", 403),
        ("file:///home", 403),
    ] {
        assert_eq!(site.status("/", &format!("Origin: {origin}\r\n{}", bearer(TOKEN))).await, status, "{origin}");
    }
    let two = format!("Origin: {own}\r\nOrigin: https://evil.example.com\r\n{}", bearer(TOKEN));
    assert_eq!(site.status("/", &two).await, 403);
}

#[tokio::test]
async fn strangers_names_for_our_address_are_refused() {
    let site = Site::with(|config| {
        config.access = AccessPolicy::with_token(TOKEN.parse().unwrap())
            .allow_host("agents.example.com")
            .allow_host("one.example:7");
    })
    .await;
    let port = site.address.port();
    for (host, status) in [
        (format!("127.0.0.1:{port}"), 101),
        (format!("localhost:{port}"), 101),
        (format!("LocalHost:{port}"), 101),
        (format!("[::1]:{port}"), 101),
        ("agents.example.com".into(), 101),
        ("agents.example.com:1234".into(), 101),
        ("one.example:7".into(), 101),
        ("one.example:8".into(), 421),
        (format!("evil.example.com:{port}"), 421),
        (format!("localhost.evil.example:{port}"), 421),
        (format!("10.1.2.3:{port}"), 421),
        ("localhost:1".into(), 421),
        ("localhost".into(), 421),
        (String::new(), 421),
    ] {
        let request = site.handshake("/", &bearer(TOKEN)).replace(&site.address.to_string(), &host);
        assert_eq!(site.answer(&request).await.0, status, "{host}");
    }
    let without = site.handshake("/", &bearer(TOKEN)).replace(&format!("Host: {}\r\n", site.address), "");
    assert_eq!(site.answer(&without).await.0, 421);
}

#[tokio::test]
async fn a_client_on_a_forwarded_port_is_told_how_the_server_would_let_it_in() {
    let site = Site::new().await;
    let forwarded = site.handshake("/", &bearer(TOKEN)).replace(&site.address.to_string(), "localhost:8080");
    let (status, answer, _) = site.answer(&forwarded).await;
    assert_eq!(status, 421);
    assert!(answer.contains("start it with --allow-host localhost:8080.\n"), "{answer}");
}

#[tokio::test]
async fn a_listener_without_a_token_admits_without_a_name_but_no_pages_of_strangers() {
    let mut site = Site::with(|config| config.access = AccessPolicy::open()).await;
    assert_eq!(site.status("/", "").await, 101);
    assert_eq!(site.next().await.principal, None);
    assert_eq!(site.status("/", "Origin: https://evil.example.com\r\n").await, 403);
}

#[tokio::test]
async fn what_is_no_handshake_is_answered_in_one_line() {
    let site = Site::new().await;
    let host = format!("Host: {}\r\n", site.address);
    let (status, answer, _) = site.answer(&site.request("/", &host)).await;
    assert_eq!(status, 426);
    assert!(answer.ends_with("There is nothing here but a WebSocket.\n"), "{answer}");
    let in_order = site.handshake("/", &bearer(TOKEN));
    for (part, other) in
        [("Version: 13", "Version: 8"), ("keep-alive, Upgrade", "close"), ("25jZQ==", "25j"), ("GET", "POST")]
    {
        let (status, ..) = site.answer(&in_order.replace(part, other)).await;
        assert_eq!(status, 400, "{other}");
    }
    assert_eq!(site.answer("nonsense\r\n\r\n").await.0, 400);
}

#[tokio::test]
async fn an_endless_head_is_cut_off() {
    let site = Site::new().await;
    let (status, ..) = site.answer(&site.handshake("/", &format!("X: {}\r\n", "x".repeat(20_000)))).await;
    assert_eq!(status, 431);
    let (status, ..) = site.answer(&site.handshake("/", &"X: y\r\n".repeat(200))).await;
    assert_eq!(status, 431);
}

#[tokio::test]
async fn pages_share_the_port_and_learn_whether_the_token_was_shown() {
    let pages = Pages::new(|request, is_admitted| async move {
        assert!(request.extensions().get::<Peer>().is_some_and(|peer| peer.0.is_loopback()));
        let text = format!("{} {is_admitted}", request.uri().path());
        let body: BoxBody = Full::from(text).map_err(|never| match never {}).boxed();
        Response::new(body)
    });
    let mut site = Site::with(|config| config.pages = Some(pages)).await;
    let host = format!("Host: {}\r\nConnection: close\r\n", site.address);
    let (status, answer, _) = site.answer(&site.request("/page", &host)).await;
    assert_eq!((status, answer.ends_with("/page false")), (200, true), "{answer}");
    let (_, answer, _) = site.answer(&site.request("/page", &format!("{host}{}", bearer(TOKEN)))).await;
    assert!(answer.ends_with("/page true"), "{answer}");
    let (status, ..) = site.answer(&site.request("/page", "Host: evil.example.com\r\nConnection: close\r\n")).await;
    assert_eq!(status, StatusCode::MISDIRECTED_REQUEST.as_u16());
    assert_eq!(site.status("/", &bearer(TOKEN)).await, 101);
    site.next().await;
}

#[tokio::test]
async fn with_a_path_there_are_web_sockets_nowhere_else() {
    let mut site = Site::with(|config| config.paths = vec!["/ahp".into(), "/v2".into()]).await;
    for target in ["/", "/ahp/", "/AHP", "//ahp", "/x?y=/ahp"] {
        assert_eq!(site.status(target, &bearer(TOKEN)).await, 404, "{target}");
    }
    assert_eq!(site.status("/elsewhere", "").await, 401, "a stranger does not learn which paths there are");
    assert_eq!(site.status(&format!("/ahp?token={TOKEN}"), "").await, 101);
    let accepted = site.next().await;
    assert_eq!((&*accepted.target, accepted.path()), ("/ahp", "/ahp"));
    assert_eq!(site.status(&format!("/v2?x=1&token={TOKEN}"), "").await, 101);
    assert_eq!(site.next().await.path(), "/v2");
}

#[tokio::test]
async fn a_client_that_stalls_in_its_handshake_holds_up_nobody_and_is_dropped() {
    let site = Site::with(|config| config.handshake_timeout = Duration::from_millis(500)).await;
    let mut stalled = Vec::new();
    for beginning in ["", "GET / HTTP/1.1\r\nHost: "] {
        let mut stream = TcpStream::connect(site.address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    assert_eq!(site.status("/", &bearer(TOKEN)).await, 101);
    for mut stream in stalled {
        let mut rest = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("it is dropped");
    }
}

#[tokio::test]
async fn of_too_many_handshakes_the_oldest_goes() {
    let site = Site::with(|config| config.max_handshakes = 3).await;
    let mut stalled = Vec::new();
    for _ in 0..10 {
        stalled.push(TcpStream::connect(site.address).await.unwrap());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(site.status("/", &bearer(TOKEN)).await, 101);
    for mut stream in stalled.drain(..7) {
        let end = timeout(SOON, stream.read(&mut [0])).await.expect("it is dropped");
        assert!(matches!(end, Ok(0) | Err(_)));
    }
    let newest = stalled.last_mut().unwrap();
    assert!(timeout(Duration::from_millis(100), newest.read(&mut [0])).await.is_err(), "the newest may go on");
}

/// Log lines, by their words; and how many were left out.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<(Vec<String>, u64)>>);

impl Lines {
    /// How many lines have these words, and how many are said to have been left out.
    fn with(&self, words: &str) -> (usize, u64) {
        let lines = self.0.lock().unwrap();
        (lines.0.iter().filter(|line| line.contains(words)).count(), lines.1)
    }
}

impl tracing::field::Visit for Lines {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().0.push(format!("{value:?}"));
        }
    }

    fn record_u64(&mut self, field: &tracing::field::Field, value: u64) {
        if field.name() == "left_out" {
            self.0.lock().unwrap().1 += value;
        }
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn strangers_cannot_fill_the_log() {
    const FLOOD: usize = 300;
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let (site, start) = (Site::with(|config| config.max_handshakes = 3).await, Instant::now());
    // Ten lines at once, and one each second: a slow machine may see more.
    let most = || 11 + usize::try_from(start.elapsed().as_secs()).unwrap();
    let mut stalled = Vec::new();
    for _ in 0..FLOOD {
        stalled.push(TcpStream::connect(site.address).await.unwrap());
        tokio::task::yield_now().await;
    }
    drop(stalled);
    for _ in 0..FLOOD {
        assert_eq!(site.status("/", "").await, 401);
    }
    let (crowded, _) = lines.with("too many handshakes");
    let (refused, _) = lines.with("a client was refused");
    assert!((10..=most()).contains(&crowded) && (10..=most()).contains(&refused), "{crowded} and {refused} lines");
    // The next line says how many there would have been.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(site.status("/", "").await, 401);
    let (refused, left_out) = lines.with("a client was refused");
    assert!(left_out + u64::try_from(refused).unwrap() > u64::try_from(FLOOD).unwrap(), "{left_out} were left out");
}

#[tokio::test]
async fn whoever_guesses_waits_and_whoever_knows_does_not() {
    let site = Site::new().await;
    let guess = site.handshake("/", &bearer("a guess, one of many"));
    let start = Instant::now();
    futures_util::future::join_all((0..8).map(|_| site.answer(&guess))).await;
    assert!(start.elapsed() >= Duration::from_millis(800), "{:?}", start.elapsed());
    let (known, guess) = (site.handshake("/", &bearer(TOKEN)), guess);
    let (guessing, knowing) = (site.answer(&guess), site.answer(&known));
    tokio::select! {
        biased;
        (status, ..) = guessing => panic!("the guess is answered first, with {status}"),
        (status, ..) = knowing => assert_eq!(status, 101),
    }
}

#[tokio::test]
async fn what_a_client_sends_right_behind_its_request_is_not_lost() {
    let mut site = Site::new().await;
    let request = site.handshake("/", &bearer(TOKEN));
    let mut stream = TcpStream::connect(site.address).await.unwrap();
    let mut bytes = request.into_bytes();
    bytes.extend([0x81, 0x82, 0, 0, 0, 0, b'{', b'}']);
    stream.write_all(&bytes).await.unwrap();
    let mut accepted = site.next().await;
    let arrived = timeout(SOON, accepted.link.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(arrived, Arrival::Frame { bytes, .. } if bytes == "{}"));
}

#[tokio::test]
async fn an_address_that_others_can_reach_must_be_meant() {
    let access = || AccessPolicy::with_token(Token::generate().unwrap());
    let refused = Listener::bind(ListenConfig::new("0.0.0.0:0".parse().unwrap(), access())).await.unwrap_err();
    assert!(matches!(refused, ListenError::Remote(_)));
    assert!(refused.to_string().contains("127.0.0.1") && refused.to_string().contains("allow"), "{refused}");
    let mut meant = ListenConfig::new("0.0.0.0:0".parse().unwrap(), access());
    meant.allow_remote = true;
    assert!(Listener::bind(meant).await.is_ok());
}

#[tokio::test]
async fn secrets_are_not_shown() {
    let token = Token::generate().unwrap();
    let config = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::with_token(token.clone()));
    let config_shown = format!("{config:?}");
    let listener = Listener::bind(config).await.unwrap();
    let shown = format!("{config_shown} {listener:?} {token:?}");
    assert!(!shown.contains(token.reveal()), "{shown}");
}

#[tokio::test]
async fn the_first_subprotocol_that_a_client_offers_is_granted() {
    let mut site = Site::new().await;
    for (lines, want) in [
        ("", None),
        ("Sec-WebSocket-Protocol: ahp.v1\r\n", Some("ahp.v1")),
        ("Sec-WebSocket-Protocol: , b.2, c\r\nSec-WebSocket-Protocol: d\r\n", Some("b.2")),
    ] {
        let (status, head, _stream) = site.answer(&site.handshake("/", &format!("{}{lines}", bearer(TOKEN)))).await;
        assert_eq!(status, 101, "{head}");
        let granted = head.lines().find_map(|line| line.strip_prefix("sec-websocket-protocol: "));
        assert_eq!(granted, want, "{head}");
        let accepted = site.next().await;
        assert_eq!(accepted.protocol.as_ref().map(|name| name.to_str().unwrap()), want);
    }
}
