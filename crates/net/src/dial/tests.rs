//! Dialing against a listener of ours, a proxy of a few lines, and servers that misbehave.

use std::net::SocketAddr;

use breakbulk_proto::ahp::{Chunking, Config, Connection, Role};
use breakbulk_proto::{Budget, BudgetConfig, Event, Input, Limits, LimitsConfig, Message, Ticket};
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;

use super::*;
use crate::listen::{Accepted, AccessPolicy, ListenConfig, Listener};
use crate::tls::{ServerTls, Trust};
use crate::{Arrival, Driver};

const SOON: Duration = Duration::from_secs(20);
const CAP: u64 = 65_536;

fn address(tls: bool, host: &str, port: u16) -> Address {
    let transport = Transport::WebSocket { tls, host: host.into(), port, target: "/path?x=1".into() };
    Address { transport, dialect: None, cap: Some(CAP), preset: None, token: None, private: None }
}

fn dialer() -> Dialer {
    Dialer { proxy: ProxyChoice::Never, timeout: SOON, ..Dialer::default() }
}

async fn listener(access: AccessPolicy, tls: Option<ServerTls>) -> Listener {
    let mut config = ListenConfig::new("127.0.0.1:0".parse().unwrap(), access);
    config.tls = tls;
    Listener::bind(config).await.unwrap()
}

/// A server that answers the first request with these bytes, whatever it is.
async fn answering(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(answer).await;
        let _ = stream.shutdown().await;
        let _ = stream.read(&mut [0; 4096]).await;
    });
    address
}

async fn dialed(dialer: &Dialer, at: SocketAddr) -> Result<BoxLink, DialError> {
    tokio::time::timeout(SOON, dialer.dial(&address(false, "127.0.0.1", at.port()))).await.unwrap()
}

fn failed(dialed: Result<BoxLink, DialError>) -> DialError {
    dialed.map(|_| ()).unwrap_err()
}

fn connection(role: Role) -> Connection {
    let limits = LimitsConfig { max_frame_bytes: CAP, ..LimitsConfig::default() };
    let limits = Limits::prove(limits, &BudgetConfig::default()).unwrap();
    let mut config = Config::new(role, limits, [7; 32]);
    config.agreed = Some(Chunking::from(&limits));
    Connection::new(config, Budget::default().account(Some("someone")))
}

/// Sends one large message each way over both ends of a link.
async fn both_ways(client: BoxLink, server: BoxLink) {
    let message =
        |len| Message::from(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":["{}"]}}"#, "x".repeat(len)));
    let both_done = Barrier::new(2);
    let talk = async |link, role, len: usize| {
        let mut driver = Driver::new(link, connection(role));
        driver.handle(Input::send(Ticket(1), message(len)));
        let (mut arrived, mut is_sent) = (0, false);
        while arrived == 0 || !is_sent {
            match driver.next().await.expect("the link is open") {
                Event::Message { message, .. } => arrived = message.len(),
                Event::Sent { .. } => is_sent = true,
                Event::Progress(_) => {}
                other => panic!("{other:?}"),
            }
        }
        // The link has all of it, and may still be writing: that goes on as long as somebody asks for events.
        tokio::select! {
            _ = both_done.wait() => {}
            _ = async { while driver.next().await.is_some() {} } => panic!("the link is open"),
        }
        (arrived, driver)
    };
    let both = async { tokio::join!(talk(client, Role::Client, 3_000_000), talk(server, Role::Server, 2_000_000)) };
    let ((at_client, _client), (at_server, _server)) = tokio::time::timeout(SOON, both).await.unwrap();
    assert_eq!((at_client, at_server), (message(2_000_000).len(), message(3_000_000).len()));
}

#[tokio::test]
async fn a_dialed_link_carries_messages_and_shows_the_token() {
    let token = Token::generate().unwrap();
    let mut listener = listener(AccessPolicy::with_token(token.clone()), None).await;
    let dialer = Dialer { token: Some(token), ..dialer() };
    let at = address(false, "localhost", listener.local_address().port());
    let (link, accepted) = tokio::join!(dialer.dial(&at), listener.accept());
    let link = link.unwrap();
    assert_eq!(link.capacity().cap, CAP);
    assert_eq!(accepted.target, "/path?x=1");
    both_ways(link, accepted.link).await;
}

#[tokio::test]
async fn headers_are_sent_and_never_shown() {
    let mut listener =
        listener(AccessPolicy::with_token("a token that is long enough".replace(' ', "-").parse().unwrap()), None)
            .await;
    let mut dialer = dialer();
    dialer.add_header("Authorization: Bearer a-token-that-is-long-enough").unwrap();
    let shown = format!("{dialer:?}");
    assert!(shown.contains("authorization") && !shown.contains("long-enough"), "{shown}");
    let (link, _) = tokio::join!(dialed(&dialer, listener.local_address()), listener.accept());
    assert!(link.is_ok());
    for line in ["no colon", "bad name: x", "Host: elsewhere", "Sec-WebSocket-Key: x", "X: a\nb"] {
        assert!(matches!(dialer.add_header(line), Err(DialError::Header(_))), "{line}");
    }
}

#[tokio::test]
async fn each_cause_has_its_error() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = free.local_addr().unwrap();
    drop(free);
    let refused = failed(dialed(&dialer(), nobody).await);
    assert!(matches!(refused, DialError::Refused { .. }), "{refused}");

    let nowhere = failed(dialer().dial(&address(false, "nowhere.invalid", 80)).await);
    assert!(matches!(nowhere, DialError::NotResolved { .. }), "{nowhere}");

    let not_found = answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 23\r\n\r\nNo such\n  path\x1b[1m here").await;
    let status = failed(dialed(&dialer(), not_found).await);
    assert!(
        matches!(&status, DialError::Status { status: 404, words } if words == "No such path [1m here"),
        "{status:?}"
    );

    for nonsense in [b"SSH-2.0-OpenSSH\r\n".as_slice(), b""] {
        let nonsense = failed(dialed(&dialer(), answering(nonsense).await).await);
        assert!(matches!(nonsense, DialError::HttpWithoutTls(_)), "{nonsense}");
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let brief = Dialer { timeout: Duration::from_millis(200), ..dialer() };
    let silent = failed(dialed(&brief, listener.local_addr().unwrap()).await);
    assert!(matches!(silent, DialError::TimedOut(after) if after.as_millis() == 200), "{silent}");

    let nobody = Address { transport: Transport::Unix("/nowhere/at/all".into()), ..address(false, "x", 1) };
    assert!(matches!(failed(dialer().dial(&nobody).await), DialError::Unix { .. }));
    let nothing = Address { transport: Transport::Exec(vec!["/nowhere/at/all".into()]), ..address(false, "x", 1) };
    assert!(matches!(failed(dialer().dial(&nothing).await), DialError::Exec(_)));
}

#[tokio::test]
async fn a_server_that_only_pretends_is_found_out() {
    let wrong_key = answering(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
    );
    let other = answering(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n");
    for at in [wrong_key.await, other.await] {
        let error = failed(dialed(&dialer(), at).await);
        assert!(matches!(error, DialError::NotWebSocket(_)), "{error}");
    }
}

#[tokio::test]
async fn who_mistakes_the_scheme_is_told_the_other_one() {
    for is_tls in [false, true] {
        let tls = is_tls.then(|| ServerTls::self_signed(["localhost"]).unwrap());
        let mut listener = listener(AccessPolicy::open(), tls).await;
        let at = address(!is_tls, "127.0.0.1", listener.local_address().port());
        let dialer = dialer();
        let error = tokio::select! {
            dialed = dialer.dial(&at) => failed(dialed).to_string(),
            _ = listener.accept() => panic!("nobody comes in"),
        };
        let wanted = if is_tls { "did you mean wss:// ?" } else { "did you mean ws:// ?" };
        assert!(error.contains(wanted), "{error}");
    }
}

#[tokio::test]
async fn an_endless_refusal_is_cut_short() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let endless = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000000\r\n\r\n").await;
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    let error = failed(dialed(&dialer(), at).await);
    assert!(matches!(&error, DialError::Status { status: 503, words } if words.len() == 200), "{error}");
    tokio::time::timeout(SOON, endless).await.expect("the connection is dropped").unwrap();
}

/// A proxy that knows one name and one password. Says what it was asked.
async fn proxy(to: SocketAddr, password: &'static str) -> (SocketAddr, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let proxy = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(client.read_buf(&mut head).await.unwrap() > 0);
        }
        let head = String::from_utf8(head).unwrap();
        if !head.contains(password) {
            let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 8\r\n\r\nWho is it";
            client.write_all(refusal).await.unwrap();
            return head;
        }
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
        let mut server = TcpStream::connect(to).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        head
    });
    (at, proxy)
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel_with_its_password() {
    for is_tls in [false, true] {
        let tls = is_tls.then(|| ServerTls::self_signed(["agents.example"]).unwrap());
        let pinned = tls.as_ref().map(ServerTls::fingerprint);
        let mut listener = listener(AccessPolicy::open().allow_host("agents.example"), tls).await;
        // me:secret
        let (at, proxy) = proxy(listener.local_address(), "Basic bWU6c2VjcmV0").await;
        let mut dialer = Dialer { proxy: ProxyChoice::Url(format!("http://me:secret@{at}")), ..dialer() };
        dialer.tls.trust = pinned.map_or(Trust::default(), Trust::Pinned);
        assert!(!format!("{dialer:?}").contains("secret"));
        // The name means something to the proxy alone.
        let target = address(is_tls, "agents.example", 9000);
        let (link, Accepted { link: other, .. }) = tokio::join!(dialer.dial(&target), listener.accept());
        both_ways(link.unwrap(), other).await;
        let head = proxy.await.unwrap();
        assert!(head.starts_with("CONNECT agents.example:9000 HTTP/1.1\r\n"), "{head}");
    }
}

#[tokio::test]
async fn a_proxys_refusal_names_the_proxy_and_not_the_password() {
    let (at, _proxy) = proxy("127.0.0.1:1".parse().unwrap(), "Basic something else").await;
    let dialer = Dialer { proxy: ProxyChoice::Url(format!("http://me:secret@{at}")), ..dialer() };
    let error = failed(dialer.dial(&address(false, "agents.example", 9000)).await);
    let shown = format!("{error} {error:?}");
    assert!(shown.contains(&at.to_string()) && shown.contains("407") && !shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn a_proxy_that_refuses_a_password_does_not_want_just_any() {
    for (who, wanted) in
        [("", "it requires a name and password"), ("me:secret@", "it refused the name and password that were sent")]
    {
        let (at, _proxy) = proxy("127.0.0.1:1".parse().unwrap(), "Basic something else").await;
        let dialer = Dialer { proxy: ProxyChoice::Url(format!("http://{who}{at}")), ..dialer() };
        let error = failed(dialer.dial(&address(false, "agents.example", 9000)).await).to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[tokio::test]
async fn a_close_travels_from_a_listener_to_a_dialer() {
    use breakbulk_proto::{CloseReason, Transmit};
    use futures_util::SinkExt;

    let mut listener = listener(AccessPolicy::open(), None).await;
    let dialer = dialer();
    let (link, mut accepted) = tokio::join!(dialed(&dialer, listener.local_address()), listener.accept());
    let mut link = link.unwrap();
    accepted.link.send(Transmit::Close(CloseReason::Restart)).await.unwrap();
    let closed = link.next().await.unwrap().unwrap();
    assert_eq!(closed, Arrival::Closed { code: 1012, text: "restarting".into() });
    let (ours, theirs) = tokio::join!(link.close(), accepted.link.close());
    assert!(ours.is_ok() && theirs.is_ok());
}
