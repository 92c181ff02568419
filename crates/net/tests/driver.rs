//! Two machines on a real link: what is sent arrives, both ways, whatever the size, and an end is told on both sides.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk::Driver;
use breakbulk::link::{self, Acked, Arrival, Link, LinkError, LinkStatus, ReceiveMemory, WebSocket, WebSocketConfig};
use breakbulk_proto::ahp::{Chunking, Config, Connection, Role};
use breakbulk_proto::{
    Budget, BudgetConfig, Capacity, CloseReason, Event, Input, Limits, LimitsConfig, Machine, Message, Meta, Tag,
    Ticket, Transmit, cep22,
};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use futures_util::SinkExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;

const CAP: u64 = 65_536;

fn connection(role: Role) -> Connection {
    connection_with(role, LimitsConfig::default())
}

fn connection_with(role: Role, limits: LimitsConfig) -> Connection {
    let limits = LimitsConfig { max_frame_bytes: CAP, ..limits };
    let limits = Limits::prove(limits, &BudgetConfig::default()).unwrap();
    let mut config = Config::new(role, limits, [7; 32]);
    config.agreed = Some(Chunking::from(&limits));
    Connection::new(config, Budget::default().account(Some("someone")))
}

fn request(n: usize, len: usize) -> Message {
    format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"m","params":{{"text":"{}"}}}}"#, "x".repeat(len)).into()
}

/// Both ends of a WebSocket over loopback.
async fn sockets() -> (WebSocket<TcpStream>, WebSocket<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    let config = WebSocketConfig { max_frame_bytes: CAP, cap: CAP, ..WebSocketConfig::default() };
    (WebSocket::client(client.unwrap(), &config), WebSocket::server(server.unwrap().0, &config))
}

/// Sends messages of these lengths, and gathers what arrives until so many have come, here and at the other end.
async fn exchange<L: Link>(link: L, role: Role, lens: &[usize], both: &Barrier) -> Vec<Message> {
    let mut driver = Driver::new(link, connection(role));
    for (n, len) in lens.iter().enumerate() {
        driver.handle(Input::send(Ticket(n as u64), request(n, *len)));
    }
    let (mut arrived, mut sent) = (Vec::new(), 0);
    while arrived.len() < lens.len() || sent < lens.len() {
        match driver.next().await.expect("the link is open") {
            Event::Message { message, .. } => arrived.push(message),
            Event::Sent { .. } => sent += 1,
            Event::Progress(_) => {}
            other => panic!("{other:?}"),
        }
    }
    tokio::select! {
        biased;
        _ = both.wait() => arrived,
        event = async { while !matches!(driver.next().await, None | Some(Event::Closed(_))) {} } => panic!("{event:?}"),
    }
}

async fn both_ways<L: Link>(client: L, server: L) {
    let lens = [10, 1_000_000, 30_000_000, 0, 70_000];
    let barrier = Barrier::new(2);
    let both = async {
        tokio::join!(exchange(client, Role::Client, &lens, &barrier), exchange(server, Role::Server, &lens, &barrier))
    };
    let (at_client, at_server) = tokio::time::timeout(Duration::from_secs(120), both).await.unwrap();
    for arrived in [at_client, at_server] {
        let mut sizes: Vec<_> = arrived.iter().map(Message::len).collect();
        let mut want: Vec<_> = lens.iter().enumerate().map(|(n, len)| request(n, *len).len()).collect();
        sizes.sort_unstable();
        want.sort_unstable();
        assert_eq!(sizes, want);
    }
}

/// A message that takes long to free: until somebody says so.
struct Heavy {
    text: Bytes,
    gate: mpsc::Receiver<()>,
    is_freed: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Heavy {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Drop for Heavy {
    fn drop(&mut self) {
        let _ = self.gate.recv_timeout(Duration::from_secs(5));
        self.is_freed.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_large_message_is_let_go_of_where_nobody_waits_for_it() {
    let ((free, gate), is_freed) = (mpsc::channel(), Arc::new(AtomicBool::new(false)));
    let (near, far) = link::pair(&Capacity::of(CAP), 4);
    let (mut near, mut far) = (Driver::new(near, connection(Role::Client)), Driver::new(far, connection(Role::Server)));
    let heavy = Heavy { text: request(1, 5 << 20).to_bytes(), gate, is_freed: is_freed.clone() };
    near.handle(Input::send(Ticket(1), Bytes::from_owner(heavy)));
    near.handle(Input::send(Ticket(2), request(2, 10)));
    let mut arrived = 0;
    while arrived < 2 {
        tokio::select! {
            event = near.next() => assert!(matches!(event, Some(Event::Progress(_) | Event::Sent { .. })), "{event:?}"),
            event = far.next() => arrived += usize::from(matches!(event, Some(Event::Message { .. }))),
        }
    }
    assert!(!is_freed.load(Ordering::Relaxed), "both wait until the first is freed");
    free.send(()).unwrap();
    let freed = async {
        while !is_freed.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), freed).await.expect("it is freed all the same");
}

#[tokio::test]
async fn thirty_megabytes_pass_both_ways_inside_the_process() {
    let (client, server) = link::pair(&Capacity::of(CAP), 1);
    both_ways(client, server).await;
}

#[tokio::test]
async fn thirty_megabytes_pass_both_ways_over_a_websocket() {
    let (client, server) = sockets().await;
    both_ways(client, server).await;
}

/// `next` is polled once and dropped, again and again: whatever it had begun goes on where it was.
#[tokio::test]
async fn nothing_is_lost_when_next_is_dropped_midway() {
    const MESSAGES: usize = 30;
    let (client, server) = sockets().await;
    let (mut client, mut server) =
        (Driver::new(client, connection(Role::Client)), Driver::new(server, connection(Role::Server)));
    let sent: Vec<_> = (0..MESSAGES).map(|n| request(n, if n.is_multiple_of(3) { 500_000 } else { 10 })).collect();
    (0..).zip(&sent).for_each(|(n, message)| client.handle(Input::send(Ticket(n), message.clone())));
    let (mut arrived, mut told, mut dropped) = (Vec::new(), 0, 0);
    let all = async {
        while arrived.len() < MESSAGES || told < MESSAGES {
            tokio::select! {
                biased;
                event = client.next() => told += usize::from(matches!(event.unwrap(), Event::Sent { .. })),
                event = server.next() => if let Event::Message { message, .. } = event.unwrap() { arrived.push(message) },
                () = std::future::ready(()) => {
                    dropped += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    assert!(arrived == sent && dropped > 0, "{} of {MESSAGES}, dropped {dropped} times", arrived.len());
}

#[tokio::test]
async fn a_close_reaches_the_peer_with_its_code() {
    let (client, server) = sockets().await;
    let (mut client, mut server) =
        (Driver::new(client, connection(Role::Client)), Driver::new(server, connection(Role::Server)));
    client.handle(Input::Close(CloseReason::Restart));
    let (ours, theirs) = tokio::join!(client.next(), server.next());
    assert!(matches!(ours, Some(Event::Closed(CloseReason::Restart))), "{ours:?}");
    assert!(matches!(theirs, Some(Event::Closed(ref reason)) if reason.code() == 1012), "{theirs:?}");
    assert!(client.next().await.is_none() && server.next().await.is_none());
    assert_eq!((client.close_text(), server.close_text()), (None, Some("restarting")));
}

#[tokio::test]
async fn a_peer_that_says_much_as_it_closes_is_not_kept_whole() {
    let mut words = Some("é".repeat(10_000));
    let link = Saying(move || words.take().map(|text| Ok(Arrival::Closed { code: 4000, text })));
    let mut driver = Driver::new(link, connection(Role::Client));
    assert!(matches!(driver.next().await, Some(Event::Closed(CloseReason::Peer { code: 4000 }))));
    assert_eq!(driver.close_text(), Some(&*"é".repeat(256)));
}

#[tokio::test]
async fn the_words_for_an_end_say_who_ended_it() {
    let ends: [(Option<Result<Arrival, LinkError>>, &str); 5] = [
        (Some(Ok(Arrival::Closed { code: 4000, text: String::new() })), "closed by the peer with code 4000"),
        (
            Some(Ok(Arrival::Closed { code: 1009, text: "max\u{7}".into() })),
            r#"closed by the peer with code 1009, which says "max\u{7}""#,
        ),
        (Some(Ok(Arrival::Exited { code: 1011, text: "sh exited with status 3".into() })), "sh exited with status 3"),
        (Some(Err(LinkError::Silent(Duration::from_secs(30)))), "closed by us: the peer has been silent for 30 s"),
        (None, "the link ended without a close"),
    ];
    for (arrival, words) in ends {
        let is_silent = matches!(&arrival, Some(Err(LinkError::Silent(_))));
        let mut arrival = Some(arrival);
        let mut driver = Driver::new(Saying(move || arrival.take().flatten()), connection(Role::Client));
        let Some(Event::Closed(reason)) = driver.next().await else { panic!("{words}") };
        assert_eq!(driver.describe_end(&reason), words);
        assert_eq!(reason.name(), if is_silent { "close-idle" } else { "close-peer" });
    }
}

#[tokio::test]
async fn a_wire_that_is_cut_is_noticed() {
    let (client, server) = link::pair(&Capacity::of(CAP), 1);
    let mut client = Driver::new(client, connection(Role::Client));
    drop(server);
    assert!(matches!(client.next().await, Some(Event::Closed(reason)) if reason.code() == 1006));
}

/// Tokio's clock is not paused here: a time that has come moves on while it is looked at.
#[tokio::test]
async fn what_is_not_finished_expires_by_the_real_clock() {
    let soon = Duration::from_millis(30);
    let limits = LimitsConfig { group_timeout: Some(soon), grace: Duration::ZERO, ..LimitsConfig::default() };
    let segment =
        r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"g","index":0,"total":2,"data":"ICAg"}}"#;
    let expires = |event: &Event| matches!(event, Event::Expired { .. });
    assert!(expires(&what_comes_of(segment, connection_with(Role::Server, limits)).await));

    let config = cep22::Config { soft_timeout: soon, ..cep22::Config::default() };
    let start = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1,"cvm":{"type":"oversized-transfer","frameType":"start","completionMode":"render","totalBytes":10,"totalChunks":2,"digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}}}"#;
    let account = Budget::default().account(Some("someone"));
    assert!(expires(&what_comes_of(start, cep22::Connection::new(config, account)).await));
}

/// The first event that follows a frame, but for progress.
async fn what_comes_of(frame: &'static str, machine: impl Machine) -> Event {
    let (mut peer, link) = link::pair(&Capacity::of(CAP), 4);
    let mut driver = Driver::new(link, machine);
    peer.send(Transmit::Frame { tag: Tag::default(), bytes: frame.into(), meta: Meta::default() }).await.unwrap();
    let next = async {
        loop {
            match driver.next().await.unwrap() {
                Event::Progress(_) => {}
                event => return event,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), next).await.expect("something comes of it")
}

#[tokio::test]
async fn a_peer_that_never_stops_sending_does_not_put_off_the_time() {
    let soon = Duration::from_millis(30);
    let limits = LimitsConfig { group_timeout: Some(soon), grace: Duration::ZERO, ..LimitsConfig::default() };
    // It begins a message, and then sends others without end. To read one takes a while.
    let begins =
        r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"g","index":0,"total":2,"data":"ICAg"}}"#;
    let mut frames = std::iter::once(begins).chain(std::iter::repeat(r#"{"jsonrpc":"2.0","method":"m"}"#));
    let link = Saying(move || {
        std::thread::sleep(Duration::from_millis(1));
        Some(Ok(Arrival::Frame { bytes: frames.next()?.into(), meta: Meta::default() }))
    });
    let mut driver = Driver::new(link, connection_with(Role::Client, limits));
    for _ in 0..60_000 {
        match driver.next().await.unwrap() {
            Event::Message { .. } | Event::Progress(_) => {}
            event => return assert!(matches!(event, Event::Expired { .. }), "{event:?}"),
        }
    }
    panic!("a minute is long enough for a group that has 30 milliseconds");
}

/// A link whose peer says this, and takes whatever it is sent.
struct Saying<F>(F);

impl<F: FnMut() -> Option<Result<Arrival, LinkError>> + Send + Unpin> Link for Saying<F> {
    fn capacity(&self) -> Capacity {
        Capacity::of(CAP)
    }

    fn status(&self) -> LinkStatus {
        LinkStatus::default()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        None
    }

    fn poll_acked(&mut self, _: &mut Context<'_>) -> Poll<Acked> {
        Poll::Pending
    }

    fn end_output(&mut self) -> bool {
        false
    }
}

impl<F: FnMut() -> Option<Result<Arrival, LinkError>> + Unpin> Stream for Saying<F> {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready((self.0)())
    }
}

impl<F: Unpin> Sink<Transmit> for Saying<F> {
    type Error = LinkError;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, _: Transmit) -> Result<(), LinkError> {
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }
}
