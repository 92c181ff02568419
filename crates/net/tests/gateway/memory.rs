//! What a gateway holds is charged: frames that are not whole, and messages for those who do not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use breakbulk::gateway::Gateway;
use breakbulk::link::{self, InProcessLink, Lines, WebSocket, WebSocketConfig};
use breakbulk::{Arrival, Dialect, Link, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Capacity, Event, Limits, LimitsConfig, Message, Meta, Tag, Transmit};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use crate::world::{App, HANGS, INITIALIZE, WELCOME, join, join_until, plain_gateway, request};

const MB: usize = 1_000_000;
const FLOOR: u64 = 64 << 10;

/// The longest message.
const LONGEST: usize = 2 * MB;

/// A gateway that may hold six megabytes, nearly two of them only for messages of the other direction.
fn gateway() -> Arc<Gateway> {
    gateway_with(6 * MB)
}

/// So many bytes, for all connections together or for one principal.
fn memory(bytes: usize) -> BudgetConfig {
    BudgetConfig { process_bytes: bytes as u64, principal_bytes: bytes as u64, floor_bytes: FLOOR }
}

/// Limits for frames and messages of so many bytes.
fn limits_of(frame: usize, message: usize, memory: &BudgetConfig) -> Limits {
    let config =
        LimitsConfig { max_frame_bytes: frame as u64, max_message_bytes: message as u64, ..LimitsConfig::default() };
    Limits::prove(config, memory).unwrap()
}

/// A gateway that may hold so many bytes.
fn gateway_with(bytes: usize) -> Arc<Gateway> {
    let memory = memory(bytes);
    plain_gateway(limits_of(65_536, LONGEST, &memory), memory)
}

/// A WebSocket to a gateway, on which little is on its way.
fn socket() -> (DuplexStream, WebSocket<DuplexStream>) {
    let (theirs, ours) = duplex(1024);
    let config = WebSocketConfig { keepalive: None, ..WebSocketConfig::default() };
    (theirs, WebSocket::server(ours, &config))
}

/// A long WebSocket frame with this text, as a client sends it or a server.
fn frame(text: &Message, is_masked: bool) -> Vec<u8> {
    let (mask, key): (u8, &[u8]) = if is_masked { (0x80, &[0; 4]) } else { (0, &[]) };
    [&[0x81, mask | 127][..], &(text.len() as u64).to_be_bytes(), key, &text.to_bytes()].concat()
}

async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HANGS, wait).await.expect("what is waited for");
}

#[tokio::test]
async fn frames_that_are_not_whole_take_no_more_than_there_is_and_all_arrive_in_the_end() {
    frames_that_are_not_whole(gateway()).await;
}

#[tokio::test]
async fn nor_do_those_of_links_that_take_segments() {
    // Four megabytes are reserved for messages. A frame that may begin a message leaves two of the other six to frames that
    // go on with one.
    let memory = memory(10 * MB);
    let limits = limits_of(LONGEST, LONGEST, &memory);
    let (downstream, upstream) =
        (Setup::new(Dialect::Ahp, Role::Server, limits), Setup::new(Dialect::Plain, Role::Client, limits));
    frames_that_are_not_whole(Arc::new(Gateway::new(downstream, upstream, memory).unwrap())).await;
}

/// Eight clients send a frame of a megabyte each, but for its end, to a gateway with room for four.
async fn frames_that_are_not_whole(gateway: Arc<Gateway>) {
    let large = request("1", MB);
    let (mut hosts, mut clients) = (Vec::new(), Vec::new());
    let ((go_on, gone_on), taken) = (tokio::sync::watch::channel(false), Arc::new(AtomicUsize::new(0)));
    for _ in 0..8 {
        let (mut client, downstream) = socket();
        let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
        join(&gateway, downstream, upstream);
        hosts.push(App::new(host, Role::Server));
        let (bytes, mut gone_on, taken) = (frame(&large, true), gone_on.clone(), Arc::clone(&taken));
        clients.push(tokio::spawn(async move {
            let (most, rest) = bytes.split_at(bytes.len() - 2000);
            for part in most.chunks(1000) {
                client.write_all(part).await.unwrap();
                taken.fetch_add(part.len(), Ordering::Relaxed);
            }
            gone_on.wait_for(|goes| *goes).await.unwrap();
            client.write_all(rest).await.unwrap();
            client
        }));
    }
    until(|| gateway.held() >= 3 * MB as u64).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let most = 4 * MB + MB / 4;
    assert!(gateway.held() <= most as u64 + 8 * FLOOR);
    assert!(taken.load(Ordering::Relaxed) <= most + 8 * (FLOOR as usize + 2048));
    go_on.send(true).unwrap();
    for host in &mut hosts {
        assert!(host.next().await.unwrap() == large);
    }
    drop(clients);
    drop(hosts);
    until(|| gateway.held() == 0).await;
}

/// A message this long goes from one gateway to the next in two WebSocket frames, of which the first does not say how long
/// all of it is.
const IN_TWO_FRAMES: usize = 17 * MB;

#[tokio::test]
async fn all_clients_of_an_uncapped_pair_are_served_although_their_messages_do_not_fit_at_once() {
    const CLIENTS: usize = 8;
    // Three first frames fit at once, and none of them could go on then.
    let memory = memory(64 << 20);
    let limits = limits_of(65_536, 18 * MB, &memory);
    let [beside_clients, beside_hosts] = [(); 2].map(|()| plain_gateway(limits, memory));
    let (large, any) = (request("1", IN_TWO_FRAMES), Capacity::of(u64::MAX));
    let answer = Message::from(format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(IN_TWO_FRAMES)));
    let mut served = Vec::new();
    for _ in 0..CLIENTS {
        let (client, downstream) = link::pair(&any, 1);
        let (left, right) = duplex(64 << 10);
        let (upstream, host) = link::pair(&any, 1);
        let socket = WebSocketConfig { keepalive: None, ..WebSocketConfig::default() };
        join(&beside_clients, downstream, WebSocket::client(left, &socket));
        join(&beside_hosts, WebSocket::server(right, &socket), upstream);
        let (large, answer) = (large.clone(), answer.clone());
        served.push(tokio::spawn(async move {
            let (mut client, mut host) = (App::new(client, Role::Client), App::new(host, Role::Server));
            client.send(large.clone());
            let heard = tokio::select! { heard = host.next() => heard?, end = client.next() => return end.map(drop) };
            assert!(heard == large);
            host.send(answer.clone());
            let heard = tokio::select! { heard = client.next() => heard?, end = host.next() => return end.map(drop) };
            assert!(heard == answer);
            Ok(())
        }));
    }
    for (client, served) in served.into_iter().enumerate() {
        served.await.unwrap().unwrap_or_else(|reason| panic!("client {client}: {reason}"));
    }
    until(|| beside_clients.held() == 0 && beside_hosts.held() == 0).await;
}

#[tokio::test]
async fn what_clients_do_not_read_takes_no_more_than_there_is_and_all_arrives_in_the_end() {
    const MESSAGES: usize = 10;
    let (gateway, large) = (gateway(), request("1", MB / 2));
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let (client, downstream) = socket();
        let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 1);
        join(&gateway, downstream, upstream);
        let mut host = App::new(host, Role::Server);
        (0..MESSAGES).for_each(|_| host.send(large.clone()));
        // The hosts speak all the while.
        let speaks = tokio::spawn(async move { while host.driver.next().await.is_some() {} });
        pairs.push((client, speaks));
    }
    until(|| gateway.held() >= 3 * MB as u64).await;
    for (client, speaks) in pairs {
        let mut client = App::new(WebSocket::client(client, &WebSocketConfig::default()), Role::Client);
        for _ in 0..MESSAGES {
            assert!(client.next().await.unwrap() == large);
        }
        speaks.abort();
    }
    until(|| gateway.held() == 0).await;
}

/// A notification of a bit more than `len` bytes, without line breaks.
fn one_line(len: usize) -> Message {
    Message::from(format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(len)))
}

/// A host on a pipe that says this through a gateway, and counts what was taken of it.
fn speak(
    gateway: &Arc<Gateway>,
    downstream: WebSocket<DuplexStream>,
    message: &Message,
    taken: &Arc<AtomicUsize>,
) -> JoinHandle<DuplexStream> {
    let (mut host, upstream) = duplex(1024);
    join(gateway, downstream, Lines::new(upstream, tokio::io::sink(), Capacity::of(u64::MAX), 0));
    let (line, taken) = ([&message.to_bytes()[..], b"\n"].concat(), Arc::clone(taken));
    tokio::spawn(async move {
        for part in line.chunks(1000) {
            host.write_all(part).await.unwrap();
            taken.fetch_add(part.len(), Ordering::Relaxed);
        }
        host
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_link_has_taken_and_not_written_keeps_its_memory() {
    // Two megabytes for each direction.
    let (gateway, large) = (gateway_with(2 * LONGEST), one_line(MB + MB / 2));
    let [none, taken] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let ((mut one, downstream), (mut two, other)) = (socket(), socket());
    let first = speak(&gateway, downstream, &large, &none).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = speak(&gateway, other, &large, &taken);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(taken.load(Ordering::Relaxed) <= FLOOR as usize + 2048);
    for client in [&mut one, &mut two] {
        let mut client = App::new(WebSocket::client(client, &WebSocketConfig::default()), Role::Client);
        assert!(client.next().await.unwrap() == large);
    }
    drop((first, second.await.unwrap()));
}

/// Two gateways in a row, both with hardly more memory than the longest message each way needs, and clients and hosts that all
/// send as much as they can at the same time.
async fn gateways_against_each_other(frame: usize, memory: BudgetConfig) {
    const PAIRS: usize = 10;
    const MESSAGES: usize = 3;
    let limits = limits_of(frame, MB, &memory);
    let setup = |dialect, role| Setup::new(dialect, role, limits);
    let gateway = |downstream, upstream| Arc::new(Gateway::new(downstream, upstream, memory).unwrap());
    let beside_clients = gateway(setup(Dialect::Plain, Role::Server), setup(Dialect::Ahp, Role::Client));
    let beside_hosts = gateway(setup(Dialect::Ahp, Role::Server), setup(Dialect::Plain, Role::Client));
    let any = WebSocketConfig { keepalive: None, ..WebSocketConfig::default() };
    let capped = WebSocketConfig { cap: frame as u64, max_frame_bytes: frame as u64, ..any };
    let large = request("7", MB - MB / 10);
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let [(client, downstream), (left, right), (upstream, host)] = [(); 3].map(|()| duplex(64 << 10));
        join(&beside_clients, WebSocket::server(downstream, &any), WebSocket::client(left, &capped));
        join(&beside_hosts, WebSocket::server(right, &capped), WebSocket::client(upstream, &any));
        let mut client = App::new(WebSocket::client(client, &any), Role::Client);
        let mut host = App::new(WebSocket::server(host, &any), Role::Server);
        let large = large.clone();
        pairs.push(tokio::spawn(async move {
            client.send(INITIALIZE);
            tokio::select! { asked = host.next() => drop(asked.unwrap()), end = client.next() => panic!("{end:?}") }
            host.send(WELCOME);
            tokio::select! { heard = client.next() => drop(heard.unwrap()), end = host.next() => panic!("{end:?}") }
            for _ in 0..MESSAGES {
                client.send(large.clone());
                host.send(large.clone());
            }
            let (mut at_client, mut at_host) = (0, 0);
            while at_client < MESSAGES || at_host < MESSAGES {
                let (heard, count) = tokio::select! {
                    heard = client.next() => (heard, &mut at_client),
                    heard = host.next() => (heard, &mut at_host),
                };
                assert!(heard.unwrap() == large);
                *count += 1;
            }
        }));
    }
    let all = async {
        for pair in pairs {
            pair.await.unwrap();
        }
    };
    let most = memory.process_bytes + 8 * PAIRS as u64 * FLOOR;
    let watch = async {
        loop {
            for gateway in [&beside_clients, &beside_hosts] {
                assert!(gateway.held() <= most, "{} bytes are held", gateway.held());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! { () = all => {}, () = watch => {} }
    until(|| beside_clients.held() == 0 && beside_hosts.held() == 0).await;
}

#[tokio::test]
async fn two_gateways_under_full_pressure_from_both_ends_do_not_wait_for_each_other() {
    gateways_against_each_other(65_536, memory(2 * MB)).await;
}

#[tokio::test]
async fn nor_do_they_where_segments_need_memory_of_their_own() {
    gateways_against_each_other(300_000, memory(2 * MB + 600_000)).await;
}

/// A client behind a gateway, whose host knows that the gateway takes segments; both ends as they are.
async fn segmented(gateway: &Arc<Gateway>) -> (InProcessLink, WebSocket<DuplexStream>) {
    const CHUNKING: &str =
        r#""capabilities":{"chunking":{"maxIncomingFrameBytes":300000,"maxIncomingMessageBytes":1000000}}"#;
    let config = WebSocketConfig { keepalive: None, ..WebSocketConfig::default() };
    let (mut client, downstream) = link::pair(&Capacity::of(u64::MAX), 4);
    let (upstream, host) = duplex(1 << 20);
    let mut host = WebSocket::server(host, &config);
    join(gateway, downstream, WebSocket::client(upstream, &config));
    say(&mut client, INITIALIZE.into()).await;
    assert!(matches!(host.next().await, Some(Ok(Arrival::Frame { .. }))));
    say(&mut host, WELCOME.replace(r#""snapshots":[]"#, &format!(r#""snapshots":[],{CHUNKING}"#))).await;
    assert!(matches!(client.next().await, Some(Ok(Arrival::Frame { .. }))));
    (client, host)
}

async fn say(link: &mut impl Link, text: String) {
    link.send(Transmit::Frame { bytes: text.into(), tag: Tag::default(), meta: Meta::default() }).await.unwrap();
}

/// One of six segments of 150 kB, which are spaces; the last has a notification.
fn segment(index: usize) -> String {
    let data = if index == 5 { "eyJqc29ucnBjIjoiMi4wIiwibWV0aG9kIjoibSJ9".into() } else { "ICAg".repeat(50_000) };
    format!(
        r#"{{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{{"groupId":"g","index":{index},"total":6,"data":"{data}"}}}}"#
    )
}

#[tokio::test(start_paused = true)]
async fn segments_that_begin_a_message_do_not_keep_out_the_rest_of_another() {
    // Enough for one message of this length from the hosts, and, beside the floors, for five segments.
    let memory = memory(2 * MB + 600_000);
    let limits = limits_of(300_000, MB, &memory);
    let (downstream, upstream) =
        (Setup::new(Dialect::Plain, Role::Server, limits), Setup::new(Dialect::Ahp, Role::Client, limits));
    let gateway = Arc::new(Gateway::new(downstream, upstream, memory).unwrap());
    let mut pairs = Vec::new();
    for _ in 0..7 {
        let (client, mut host) = segmented(&gateway).await;
        say(&mut host, segment(0)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        pairs.push((client, host));
    }
    for (client, host) in &mut pairs {
        let says = async {
            for index in 1..6 {
                say(host, segment(index)).await;
            }
        };
        let (arrival, ()) = tokio::time::timeout(HANGS, async { tokio::join!(client.next(), says) }).await.unwrap();
        assert!(matches!(&arrival, Some(Ok(Arrival::Frame { bytes, .. })) if bytes.len() == 750_030), "{arrival:?}");
    }
}

#[test]
fn a_gateway_without_memory_for_the_longest_message_each_way_is_refused() {
    let memory = memory(3 * MB);
    let setup = |role, longest| Setup::new(Dialect::Plain, role, limits_of(65_536, longest, &memory));
    let gateway = |longest| Gateway::new(setup(Role::Server, longest), setup(Role::Client, longest), memory);
    let error = gateway(LONGEST).unwrap_err();
    assert_eq!((error.key, error.value), ("max_message_bytes", LONGEST as u64));
    let longest = usize::try_from(error.max).unwrap();
    assert!((MB + MB / 2..LONGEST).contains(&longest), "{longest}");
    assert!(gateway(longest).is_ok() && gateway(longest + 1000).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_message_for_each_of_many_who_do_not_read_takes_no_more_than_there_is_either() {
    const CLIENTS: usize = 20;
    let (gateway, large) = (gateway(), one_line(MB));
    let (taken, mut pairs) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    for _ in 0..CLIENTS {
        let (client, downstream) = socket();
        pairs.push((client, speak(&gateway, downstream, &large, &taken)));
    }
    // When nothing moves any more, the four megabytes of this direction are taken, but for those that a line needs to begin.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let most = 4 * MB + MB / 4 + CLIENTS * (FLOOR as usize + 2048);
    let taken = taken.load(Ordering::Relaxed);
    assert!((3 * MB..=most).contains(&taken), "{taken}");
    for (client, speaks) in pairs {
        let mut client = App::new(WebSocket::client(client, &WebSocketConfig::default()), Role::Client);
        assert!(client.next().await.unwrap() == large);
        drop(speaks.await.unwrap());
    }
    until(|| gateway.held() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_stops_waits_for_the_rest_of_a_frame_that_has_begun() {
    let gateway = gateway();
    let (client, downstream) = link::pair(&Capacity::of(u64::MAX), 4);
    let (mut host, upstream) = duplex(1024);
    let config = WebSocketConfig { keepalive: None, ..WebSocketConfig::default() };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    join_until(&gateway, downstream, WebSocket::client(upstream, &config), async { stopped.await.unwrap() });
    let (mut client, last) = (App::new(client, Role::Client), request("1", 200_000));
    let bytes = frame(&last, false);
    let (half, rest) = bytes.split_at(bytes.len() / 2);
    host.write_all(half).await.unwrap();
    stop.send(()).unwrap();
    let early = tokio::time::timeout(Duration::from_secs(1), client.driver.next()).await;
    assert!(early.is_err(), "{early:?}");
    let (written, heard) = tokio::join!(host.write_all(rest), client.next());
    written.unwrap();
    assert!(heard.unwrap() == last);
    let end = client.driver.next().await;
    assert!(matches!(&end, Some(Event::Closed(reason)) if reason.code() == 1012), "{end:?}");
}
