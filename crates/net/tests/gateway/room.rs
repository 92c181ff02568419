//! What a gateway holds is charged: frames that are not whole, and messages for those who do not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use breakbulk::gateway::Gateway;
use breakbulk::link::{self, Lines, WebSocket, WebSocketConfig};
use breakbulk::{Dialect, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, BudgetConfig, Capacity, Event, Limits, LimitsConfig, Message};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use crate::world::{App, join, join_until, plain_gateway, request};

const MB: usize = 1_000_000;
const FLOOR: u64 = 64 << 10;
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A gateway that may hold four megabytes.
fn gateway() -> (Arc<Gateway>, Budget) {
    gateway_with(4 * MB)
}

/// A gateway that may hold so many bytes, and takes messages of two megabytes.
fn gateway_with(bytes: usize) -> (Arc<Gateway>, Budget) {
    let config = BudgetConfig { process_bytes: bytes as u64, principal_bytes: bytes as u64, floor_bytes: FLOOR };
    let budget = Budget::new(config);
    let limits = LimitsConfig { max_frame_bytes: 65_536, max_message_bytes: 2 * MB as u64, ..LimitsConfig::default() };
    (plain_gateway(Limits::prove(limits, &config).unwrap(), budget.clone()), budget)
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
    tokio::time::timeout(LONG, wait).await.expect("in a minute");
}

#[tokio::test]
async fn frames_that_are_not_whole_take_no_more_than_there_is_and_all_arrive_in_the_end() {
    frames_that_are_not_whole(gateway().0).await;
}

#[tokio::test]
async fn nor_do_those_of_links_that_take_segments() {
    let (process_bytes, principal_bytes) = (4 * MB as u64, 4 * MB as u64);
    let config = BudgetConfig { process_bytes, principal_bytes, floor_bytes: FLOOR };
    let max = 2 * MB as u64;
    let limits = LimitsConfig { max_frame_bytes: max, max_message_bytes: max, ..LimitsConfig::default() };
    let limits = Limits::prove(limits, &config).unwrap();
    let (near, far) =
        (Setup::new(Dialect::Ahp, Role::Server, limits), Setup::new(Dialect::Plain, Role::Client, limits));
    frames_that_are_not_whole(Arc::new(Gateway::new(near, far, Budget::new(config)))).await;
}

/// Eight clients send a frame of a megabyte each, but for its end, to a gateway with room for four.
async fn frames_that_are_not_whole(gateway: Arc<Gateway>) {
    let large = request("1", MB);
    let (mut hosts, mut clients) = (Vec::new(), Vec::new());
    let ((go_on, gone_on), taken) = (tokio::sync::watch::channel(false), Arc::new(AtomicUsize::new(0)));
    for _ in 0..8 {
        let (mut client, near) = socket();
        let (far, host) = link::pair(&Capacity::of(u64::MAX), 4);
        join(&gateway, near, far);
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
    assert!(gateway.held() <= 4 * MB as u64 + 8 * FLOOR);
    assert!(taken.load(Ordering::Relaxed) <= 4 * MB + 8 * (FLOOR as usize + 2048));
    go_on.send(true).unwrap();
    for host in &mut hosts {
        assert!(host.next().await.unwrap() == large);
    }
    drop(clients);
    drop(hosts);
    until(|| gateway.held() == 0).await;
}

#[tokio::test]
async fn what_clients_do_not_read_takes_no_more_than_there_is_and_all_arrives_in_the_end() {
    const MESSAGES: usize = 10;
    let ((gateway, _), large) = (gateway(), request("1", MB / 2));
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let (client, near) = socket();
        let (far, host) = link::pair(&Capacity::of(u64::MAX), 1);
        join(&gateway, near, far);
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
    near: WebSocket<DuplexStream>,
    message: &Message,
    taken: &Arc<AtomicUsize>,
) -> JoinHandle<DuplexStream> {
    let (mut host, far) = duplex(1024);
    join(gateway, near, Lines::new(far, tokio::io::sink(), Capacity::of(u64::MAX), 0));
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
async fn what_a_link_has_taken_and_not_written_keeps_its_room() {
    let ((gateway, _), large) = (gateway_with(2 * MB + MB / 10), one_line(MB + MB / 2));
    let none = Arc::new(AtomicUsize::new(0));
    // There is room for one to leave, and for one to arrive, which leaves all the same.
    let ((mut one, near), (mut two, other)) = (socket(), socket());
    let first = speak(&gateway, near, &large, &none).await.unwrap();
    let second = speak(&gateway, other, &large, &none).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (taken, (mut three, near)) = (Arc::new(AtomicUsize::new(0)), socket());
    let third = speak(&gateway, near, &large, &taken);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(taken.load(Ordering::Relaxed) <= FLOOR as usize + 2048);
    for client in [&mut one, &mut two, &mut three] {
        let mut client = App::new(WebSocket::client(client, &WebSocketConfig::default()), Role::Client);
        assert!(client.next().await.unwrap() == large);
    }
    drop((first, second, third.await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_message_for_each_of_many_who_do_not_read_takes_no_more_than_there_is_either() {
    const CLIENTS: usize = 20;
    let ((gateway, _), large) = (gateway(), one_line(MB));
    let (taken, mut pairs) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    for _ in 0..CLIENTS {
        let (client, near) = socket();
        pairs.push((client, speak(&gateway, near, &large, &taken)));
    }
    // When nothing moves any more, four messages wait to leave, and what has arrived has the room of four more.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let most = 8 * MB + CLIENTS * (FLOOR as usize + 2048);
    let taken = taken.load(Ordering::Relaxed);
    assert!((6 * MB..=most).contains(&taken), "{taken}");
    for (client, speaks) in pairs {
        let mut client = App::new(WebSocket::client(client, &WebSocketConfig::default()), Role::Client);
        assert!(client.next().await.unwrap() == large);
        drop(speaks.await.unwrap());
    }
    until(|| gateway.held() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_stops_waits_for_the_rest_of_a_frame_that_has_begun() {
    let (gateway, _) = gateway();
    let (client, near) = link::pair(&Capacity::of(u64::MAX), 4);
    let (mut host, far) = duplex(1024);
    let config = WebSocketConfig { keepalive: None, ..WebSocketConfig::default() };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    join_until(&gateway, near, WebSocket::client(far, &config), async { stopped.await.unwrap() });
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
