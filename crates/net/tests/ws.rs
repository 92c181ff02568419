//! A WebSocket as a link, against peers that write and read the wire by hand: sizes, closes, silence, backpressure.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use breakbulk::link::{Keepalive, Link, WebSocket, WebSocketConfig};
use breakbulk::{Arrival, Driver, Intake, LinkError, ReceiveMemory};
use breakbulk_proto::{Budget, CloseReason, Event, Input, Limits, Message, Meta, Tag, Ticket, Transmit, plain};
use bytes::Bytes;
use futures_util::{Sink, SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

const LIMIT: u64 = 65_536;
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;
const SOON: Duration = Duration::from_secs(10);

fn config() -> WebSocketConfig {
    WebSocketConfig { max_frame_bytes: LIMIT, ..WebSocketConfig::default() }
}

/// A server's link, and the raw stream of its client.
fn server() -> (WebSocket<DuplexStream>, DuplexStream) {
    let (ours, theirs) = duplex(1 << 20);
    (WebSocket::server(ours, &config()), theirs)
}

async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

/// A client's frame, masked with zeros.
fn masked(head: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![head];
    match payload.len() {
        len @ 0..=125 => bytes.push(0x80 | len as u8),
        len @ 126..=65_535 => {
            bytes.push(0x80 | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}

fn close_payload(code: u16, text: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], text.as_bytes()].concat()
}

/// The next short frame that a server sends.
async fn unmasked(io: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    io.read_exact(&mut head).await.unwrap();
    assert!(head[1] <= 125, "a short frame");
    let mut payload = vec![0; head[1].into()];
    io.read_exact(&mut payload).await.unwrap();
    (head[0], payload)
}

/// The code and text of the close that a server sends.
async fn told(io: &mut (impl AsyncRead + Unpin)) -> (u16, String) {
    let (head, payload) = timeout(SOON, unmasked(io)).await.unwrap();
    assert_eq!(head, CLOSE);
    (u16::from_be_bytes([payload[0], payload[1]]), String::from_utf8(payload[2..].to_vec()).unwrap())
}

fn frame(bytes: impl Into<Message>) -> Transmit {
    Transmit::Frame { tag: Tag(0), bytes: bytes.into(), meta: Meta::default() }
}

fn driver<S: AsyncRead + AsyncWrite + Unpin + Send>(link: WebSocket<S>) -> Driver<WebSocket<S>, plain::Connection> {
    Driver::new(link, plain::Connection::new(plain::Config::new(Limits::default())))
}

#[tokio::test]
async fn a_peer_whose_frame_is_too_long_is_told_1009_while_it_still_sends() {
    let (mut client, server) = tcp().await;
    let mut driver = driver(WebSocket::server(server, &config()));
    let ours = tokio::spawn(async move { driver.next().await });
    // It goes on sending: our end must not be reset under the close.
    let frame = masked(TEXT, &vec![b'x'; 16 << 20]);
    let (mut reader, mut writer) = client.split();
    let (sent, told) = tokio::join!(writer.write_all(&frame), told(&mut reader));
    assert_eq!(told.0, 1009);
    sent.expect("all of it is read");
    drop(client);
    let event = timeout(SOON, ours).await.unwrap().unwrap();
    assert!(matches!(event, Some(Event::Closed(reason)) if reason.code() == 1009));
}

#[tokio::test]
async fn a_frame_at_the_limit_passes_and_one_byte_more_does_not() {
    let (mut link, mut client) = server();
    client.write_all(&masked(TEXT, &vec![b'x'; LIMIT as usize])).await.unwrap();
    assert!(matches!(link.next().await, Some(Ok(Arrival::Frame { bytes, .. })) if bytes.len() == LIMIT as usize));
    // Its header is enough.
    client.write_all(&masked(TEXT, &vec![b'x'; LIMIT as usize + 1])[..14]).await.unwrap();
    let refused = link.next().await.unwrap().unwrap_err();
    assert!(matches!(refused, LinkError::FrameTooLarge(over) if (over.size, over.limit) == (LIMIT + 1, LIMIT)));
}

#[tokio::test]
async fn a_frame_that_grows_too_long_in_parts_is_told_1009() {
    let (mut link, mut client) = server();
    client.write_all(&masked(0x01, &[b'x'; 40_000])).await.unwrap();
    client.write_all(&masked(0x00, &[b'x'; 40_000])).await.unwrap();
    assert!(matches!(link.next().await, Some(Err(LinkError::FrameTooLarge(_)))));
    let close = tokio::spawn(async move { link.close().await });
    assert_eq!(told(&mut client).await.0, 1009);
    drop(client);
    let _ = timeout(SOON, close).await.unwrap().unwrap();
}

#[tokio::test]
async fn who_breaks_the_rules_of_the_link_is_told_so() {
    let unmasked = vec![TEXT, 1, b'x'];
    let (reserved, unknown) = (masked(0x40 | TEXT, b"x"), masked(0x80 | 0x3, b"x"));
    let long_ping = masked(0x80 | 0x9, &[b'x'; 126]);
    for (bytes, code) in
        [(unmasked, 1002), (reserved, 1002), (unknown, 1002), (long_ping, 1002), (masked(TEXT, b"\xff"), 1007)]
    {
        let (link, mut client) = server();
        let mut driver = driver(link);
        client.write_all(&bytes).await.unwrap();
        let ends = tokio::spawn(async move {
            let event = driver.next().await;
            (event, driver.failure().map(ToString::to_string))
        });
        assert_eq!(told(&mut client).await.0, code, "{bytes:?}");
        drop(client);
        let (event, failure) = timeout(SOON, ends).await.unwrap().unwrap();
        assert!(matches!(event, Some(Event::Closed(CloseReason::Peer { code: 1006 }))), "{event:?}");
        assert!(failure.unwrap().contains(if code == 1002 { "broke the rules" } else { "not UTF-8" }));
    }
}

#[tokio::test]
async fn text_that_is_not_utf8_is_refused_with_1007() {
    let (mut link, mut client) = server();
    client.write_all(&masked(TEXT, b"\xff\xfe")).await.unwrap();
    assert!(matches!(link.next().await, Some(Err(LinkError::NotUtf8))));
    // A reason of ours comes too late, and is no error.
    link.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
    let close = tokio::spawn(async move { link.close().await });
    assert_eq!(told(&mut client).await.0, 1007);
    drop(client);
    let _ = timeout(SOON, close).await.unwrap().unwrap();
}

#[tokio::test]
async fn frames_that_break_the_rules_end_the_link_without_a_panic() {
    let too_short_close = masked(CLOSE, b"\x03");
    let reserved_code = masked(CLOSE, &close_payload(1006, ""));
    let long_ping = masked(PING, &[0; 126]);
    let compressed = masked(0xc1, b"x");
    let unmasked_text = vec![TEXT, 1, b'x'];
    for bytes in [too_short_close, reserved_code, long_ping, compressed, unmasked_text] {
        let (mut link, mut client) = server();
        client.write_all(&bytes).await.unwrap();
        assert!(matches!(link.next().await, Some(Err(LinkError::Protocol(_)))), "{bytes:?}");
    }
}

#[tokio::test]
async fn the_peers_close_comes_up_with_its_code_and_text_and_is_answered() {
    for (payload, code, text) in
        [(close_payload(4321, "enough"), 4321, "enough"), (close_payload(1000, ""), 1000, ""), (Vec::new(), 1005, "")]
    {
        let (mut link, mut client) = server();
        client.write_all(&masked(CLOSE, &payload)).await.unwrap();
        let closed = link.next().await.unwrap().unwrap();
        assert_eq!(closed, Arrival::Closed { code, text: text.into() });
        let close = tokio::spawn(async move { link.close().await });
        let (head, echoed) = unmasked(&mut client).await;
        assert_eq!((head, echoed.as_slice()), (CLOSE, &payload[..payload.len().min(2)]));
        drop(client);
        timeout(SOON, close).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn our_close_goes_out_with_its_code_and_text() {
    for (reason, code, text) in [
        (CloseReason::Restart, 1012, "restarting"),
        (
            CloseReason::GroupExpired { received: 1500, limit: None },
            4408,
            "a message was not finished within the time for a group: 1,500 bytes had come",
        ),
        (CloseReason::Peer { code: 1006 }, 1014, "the other side has ended"),
        (CloseReason::Program(3999, "so it is".into()), 3999, "so it is"),
    ] {
        let (mut link, mut client) = server();
        link.send(Transmit::Close(reason)).await.unwrap();
        assert_eq!(told(&mut client).await, (code, text.into()));
        client.write_all(&masked(CLOSE, &close_payload(code, ""))).await.unwrap();
        drop(client);
        timeout(SOON, link.close()).await.unwrap().unwrap();
    }
    let (mut link, mut client) = server();
    link.send(Transmit::Close(CloseReason::Peer { code: 1005 })).await.unwrap();
    assert_eq!(unmasked(&mut client).await, (CLOSE, Vec::new()));
}

#[tokio::test]
async fn a_frame_after_our_close_is_an_error() {
    let (mut link, _client) = server();
    link.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
    assert!(matches!(link.send(frame("late")).await, Err(LinkError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_asked_and_noticed_within_thirty_seconds() {
    let (mut link, mut client) = server();
    let start = Instant::now();
    let error = link.next().await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Silent(silence) if silence.as_secs() == 30), "{error}");
    assert_eq!(start.elapsed().as_secs(), 30);
    for _ in 0..2 {
        assert_eq!(unmasked(&mut client).await, (PING, Vec::new()));
    }
    // Nobody is there to wait for.
    link.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
    link.close().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_that_takes_nothing_is_noticed_too() {
    let (ours, _theirs) = duplex(64);
    let mut link = WebSocket::server(ours, &config());
    let start = Instant::now();
    let filled = timeout(Duration::from_secs(1), link.send(frame(vec![b'x'; 100_000]))).await;
    assert!(filled.is_err(), "the way is full");
    assert!(matches!(link.next().await, Some(Err(LinkError::Silent(_)))));
    assert!(start.elapsed() < Duration::from_secs(32));
    let close = async {
        link.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
        link.close().await.unwrap();
    };
    timeout(Duration::from_secs(1), close).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_pings_stays() {
    let (ours, theirs) = duplex(1 << 20);
    let (mut server, mut client) = (WebSocket::server(ours, &config()), WebSocket::client(theirs, &config()));
    let both = async { tokio::join!(server.next(), client.next()) };
    assert!(timeout(Duration::from_secs(3600), both).await.is_err(), "both are alive and have nothing to say");
}

#[tokio::test(start_paused = true)]
async fn one_byte_now_and_then_is_life() {
    let (mut link, mut client) = server();
    let slow = tokio::spawn(async move {
        for byte in masked(TEXT, b"as slow as can be") {
            tokio::time::sleep(Duration::from_secs(25)).await;
            client.write_all(&[byte]).await.unwrap();
        }
        client
    });
    assert!(matches!(link.next().await, Some(Ok(Arrival::Frame { .. }))));
    slow.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_what_we_send_is_alive_however_slowly() {
    let (ours, mut theirs) = duplex(64);
    let mut link = WebSocket::server(ours, &config());
    assert!(timeout(Duration::from_secs(1), link.send(frame(vec![b'x'; 60_000]))).await.is_err(), "the way is full");
    let slow = tokio::spawn(async move {
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(25)).await;
            theirs.read_exact(&mut [0; 64]).await.unwrap();
        }
        theirs
    });
    let start = Instant::now();
    assert!(matches!(link.next().await, Some(Err(LinkError::Silent(_)))));
    assert!(start.elapsed() >= Duration::from_secs(25 * 20), "{:?}", start.elapsed());
    slow.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn our_own_pause_is_not_the_peers_silence() {
    let (mut link, mut client) = server();
    // The first poll starts the count, and sends a ping.
    assert!(timeout(Duration::from_secs(11), link.next()).await.is_err());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    // It was alive all the time: its pong waits to be read.
    client.write_all(&masked(PONG, b"")).await.unwrap();
    let resumed = Instant::now();
    assert!(matches!(link.next().await, Some(Err(LinkError::Silent(_)))));
    assert_eq!(resumed.elapsed().as_secs(), 30, "the count began again with the pong");
}

#[tokio::test(start_paused = true)]
async fn a_peer_whose_frames_are_not_read_for_a_while_sees_that_we_are_there() {
    let (ours, theirs) = duplex(1 << 20);
    let plain = || plain::Connection::new(plain::Config::new(Limits::default()));
    let (mut server, mut client) =
        (Driver::new(WebSocket::server(ours, &config()), plain()), WebSocket::client(theirs, &config()));
    server.set_reading(false);
    let both = async {
        tokio::select! { event = server.next() => panic!("{event:?}"), end = client.next() => end }
    };
    let end = timeout(Duration::from_secs(3600), both).await;
    assert!(end.is_err(), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn so_does_one_whose_frame_waits_for_room() {
    let (ours, theirs) = duplex(1 << 20);
    let limit = 200_000;
    let config = WebSocketConfig { max_frame_bytes: limit, ..WebSocketConfig::default() };
    let (mut server, mut client) = (WebSocket::server(ours, &config), WebSocket::client(theirs, &config));
    let account = Some(Budget::default().account(None));
    server.set_intake(Intake { max_frame_bytes: limit, account });
    client.send(frame(vec![b'x'; 100_000])).await.unwrap();
    let both = async {
        tokio::select! { arrival = server.next() => panic!("{arrival:?}"), end = client.next() => end }
    };
    let end = timeout(Duration::from_secs(3600), both).await;
    assert!(end.is_err(), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn after_our_own_pause_a_peer_that_said_nothing_is_asked_first() {
    let (mut link, _client) = server();
    assert!(timeout(Duration::from_secs(5), link.next()).await.is_err());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(timeout(Duration::from_secs(15), link.next()).await.is_err(), "it has time to answer");
}

#[tokio::test(start_paused = true)]
async fn without_keepalive_silence_is_patience() {
    let (ours, _theirs) = duplex(64);
    let mut link = WebSocket::server(ours, &WebSocketConfig { keepalive: None, ..config() });
    assert!(timeout(Duration::from_secs(86_400), link.next()).await.is_err());
    let brief = Keepalive::within(Duration::from_secs(3));
    assert_eq!((brief.ping_after.as_secs(), brief.dead_after.as_secs()), (1, 3));
}

/// Frames of `len` bytes that a link takes before it is not ready.
async fn taken(link: &mut WebSocket<DuplexStream>, len: usize) -> usize {
    poll_fn(|cx| {
        let mut taken = 0;
        while Pin::new(&mut *link).poll_ready(cx).is_ready() {
            Pin::new(&mut *link).start_send(frame(vec![b'x'; len])).unwrap();
            taken += 1;
        }
        Poll::Ready(taken)
    })
    .await
}

#[tokio::test]
async fn a_full_way_is_not_ready_and_then_takes_less_at_a_time() {
    let (ours, mut theirs) = duplex(1024);
    let mut link = WebSocket::server(ours, &config());
    let mut each = Vec::new();
    for _ in 0..5 {
        let count = taken(&mut link, 66_000).await;
        each.push(count);
        drain(&mut link, &mut theirs, count * 66_010).await;
    }
    // Gathered up to 384 KiB while the way seemed open; one frame when it turned out to be full.
    assert_eq!((each[0], each[4]), (6, 1), "{each:?}");
}

#[tokio::test]
async fn of_short_frames_only_two_are_gathered() {
    let (ours, _theirs) = duplex(1024);
    let mut link = WebSocket::server(ours, &config());
    assert_eq!(taken(&mut link, 65_000).await, 2);
}

async fn drain(link: &mut WebSocket<DuplexStream>, theirs: &mut DuplexStream, len: usize) {
    let mut drained = vec![0; len];
    let (flushed, read) = tokio::join!(link.flush(), theirs.read_exact(&mut drained));
    flushed.unwrap();
    read.unwrap();
}

#[tokio::test]
async fn a_peer_that_pings_and_does_not_read_is_not_read_either() {
    let (mut link, mut client) = server();
    let reading = tokio::spawn(async move { link.next().await });
    let pings = masked(PING, &[7; 125]).repeat(500);
    let mut sent = 0;
    while timeout(Duration::from_millis(300), client.write_all(&pings)).await.is_ok() {
        sent += pings.len();
        assert!(sent < 32 << 20, "pongs pile up");
    }
    // Once it reads, all goes on.
    let (mut reader, mut writer) = tokio::io::split(client);
    let drain = tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
    timeout(SOON, writer.write_all(&pings)).await.unwrap().unwrap();
    reading.abort();
    drain.abort();
}

#[tokio::test]
async fn an_answer_to_a_ping_waits_until_a_frame_is_out_whole() {
    let (ours, theirs) = duplex(1024);
    let mut link = WebSocket::server(ours, &config());
    let text = Bytes::from(vec![b'x'; 60_000]);
    let pieces: Message = text.chunks(7001).map(|piece| text.slice_ref(piece)).collect();
    assert!(timeout(Duration::from_millis(100), link.send(frame(pieces))).await.is_err(), "the way is full");
    let (mut reader, mut writer) = tokio::io::split(theirs);
    writer.write_all(&masked(PING, b"there?")).await.unwrap();
    writer.write_all(&masked(TEXT, b"{}")).await.unwrap();
    assert!(matches!(link.next().await, Some(Ok(Arrival::Frame { .. }))), "it has read the ping");
    let mut head = [0; 4];
    let mut payload = vec![0; text.len()];
    let read = async {
        reader.read_exact(&mut head).await.unwrap();
        reader.read_exact(&mut payload).await.unwrap();
        unmasked(&mut reader).await
    };
    let (flushed, pong) = tokio::join!(link.flush(), read);
    flushed.unwrap();
    assert_eq!((head, pong), ([TEXT, 126, 0xea, 0x60], (PONG, b"there?".to_vec())));
    assert_eq!(payload, text);
}

#[tokio::test]
async fn binary_counts_as_text_and_the_cap_is_known() {
    let (ours, mut theirs) = duplex(1024);
    let mut link = WebSocket::server(ours, &WebSocketConfig { cap: 900_000, ..config() });
    assert_eq!(link.capacity().cap, 900_000);
    theirs.write_all(&masked(0x82, b"{}")).await.unwrap();
    let arrived = link.next().await.unwrap().unwrap();
    assert_eq!(arrived, Arrival::Frame { bytes: "{}".into(), meta: Meta::default() });
    assert!(!format!("{link:?}").contains("{}"), "what passes is not shown");
}

#[tokio::test]
async fn what_a_peer_has_said_before_it_reset_the_link_is_heard_though_nothing_can_be_written() {
    for (said, code) in [(close_payload(1009, "too long"), 1009), (vec![], 1006)] {
        let (ours, mut theirs) = tcp().await;
        let mut driver = driver(WebSocket::server(ours, &config()));
        driver.handle(Input::send(Ticket(1), r#"{"jsonrpc":"2.0","method":"first"}"#));
        while !matches!(driver.next().await, Some(Event::Sent { .. })) {}
        assert!(timeout(Duration::from_millis(50), driver.next()).await.is_err(), "it is on its way");
        // What is left unread makes its end a reset.
        let message = br#"{"jsonrpc":"2.0","method":"last"}"#;
        let close = if said.is_empty() { vec![] } else { masked(0x88, &said) };
        theirs.write_all(&[masked(0x81, message), close].concat()).await.unwrap();
        drop(theirs);
        tokio::time::sleep(Duration::from_millis(50)).await;
        driver.handle(Input::send(Ticket(2), format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(1 << 20))));
        let (mut heard, mut end) = (0, None);
        while let Some(event) = timeout(Duration::from_secs(20), driver.next()).await.unwrap() {
            match event {
                Event::Message { .. } => heard += 1,
                Event::Closed(reason) => end = Some(reason.code()),
                _ => {}
            }
        }
        assert_eq!((heard, end), (1, Some(code)));
    }
}

#[tokio::test]
async fn a_link_that_is_reset_ends_also_when_it_is_not_read_and_when_pings_wait_for_their_answers() {
    for (is_read, pings) in [(false, 0), (true, 20)] {
        let (ours, mut theirs) = tcp().await;
        let config = WebSocketConfig { keepalive: None, ..config() };
        let mut driver = driver(WebSocket::server(ours, &config));
        driver.set_reading(is_read);
        driver.handle(Input::send(Ticket(1), format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(16 << 20))));
        while timeout(Duration::from_millis(50), driver.next()).await.is_ok() {}
        theirs.write_all(&masked(0x89, b"x").repeat(pings)).await.unwrap();
        while timeout(Duration::from_millis(50), driver.next()).await.is_ok() {}
        theirs.set_zero_linger().unwrap();
        drop(theirs);
        let end = async {
            loop {
                if let Event::Closed(reason) = driver.next().await.unwrap() {
                    return reason.code();
                }
            }
        };
        assert_eq!(timeout(Duration::from_secs(20), end).await, Ok(1006), "{is_read} {pings}");
    }
}
