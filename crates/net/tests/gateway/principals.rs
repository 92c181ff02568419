//! Two principals behind one gateway: what one does not read does not keep the other waiting.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use breakbulk::gateway::Gateway;
use breakbulk::link::{self, InProcessLink, WebSocket, WebSocketConfig};
use breakbulk::{Arrival, Dialect, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Capacity, Limits, LimitsConfig, Meta, Tag, Transmit};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

use crate::world::{INITIALIZE, join_as};

const MB: usize = 1_000_000;
const WELCOME: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":0,"snapshots":[],"capabilities":{"chunking":{"maxIncomingFrameBytes":3000000,"maxIncomingMessageBytes":20000000}}}}"#;
/// The time that a group has.
const GROUP_TIME: Duration = Duration::from_secs(30);

/// A gateway that may hold 78 MB, 74 MB of them for one principal; 26 MB are reserved for what clients send, and for frames.
/// Hosts send it segments.
fn gateway() -> Arc<Gateway> {
    let config = BudgetConfig { process_bytes: 78 * MB as u64, principal_bytes: 74 * MB as u64, floor_bytes: 64 << 10 };
    let limits = LimitsConfig {
        max_frame_bytes: 3 * MB as u64,
        max_message_bytes: 20 * MB as u64,
        group_timeout: Some(GROUP_TIME),
        ..LimitsConfig::default()
    };
    let limits = Limits::prove(limits, &config).unwrap();
    let (downstream, upstream) =
        (Setup::new(Dialect::Plain, Role::Server, limits), Setup::new(Dialect::Ahp, Role::Client, limits));
    Arc::new(Gateway::new(downstream, upstream, config).unwrap())
}

/// A client that has introduced itself and reads nothing, and its host, which knows what the gateway takes.
async fn guest(gateway: &Arc<Gateway>, principal: &'static str) -> (DuplexStream, InProcessLink) {
    let (mut client, downstream) = duplex(64 << 10);
    let config = WebSocketConfig { keepalive: None, ..WebSocketConfig::default() };
    let (upstream, mut host) = link::pair(&Capacity::of(3 * MB as u64), 1);
    join_as(principal, gateway, WebSocket::server(downstream, &config), upstream, pending());
    let head = [0x81, 0x80 | 126, 0, u8::try_from(INITIALIZE.len()).unwrap(), 0, 0, 0, 0];
    client.write_all(&[&head, INITIALIZE.as_bytes()].concat()).await.unwrap();
    assert!(matches!(host.next().await, Some(Ok(Arrival::Frame { .. }))));
    say(&mut host, WELCOME.to_owned()).await;
    (client, host)
}

async fn say(host: &mut InProcessLink, text: String) {
    host.send(Transmit::Frame { bytes: text.into(), tag: Tag::default(), meta: Meta::default() }).await.unwrap();
}

/// One of ten segments.
fn segment(group: &str, index: usize, data: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{{"groupId":"{group}","index":{index},"total":10,"data":"{data}"}}}}"#
    )
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_does_not_keep_anothers_message_waiting_for_ever() {
    // 1.5 MB of white space.
    let (gateway, spaces) = (gateway(), "ICAg".repeat(500_000));
    let mut stalled = Vec::new();
    for _ in 0..2 {
        let (client, mut host) = guest(&gateway, "stalled").await;
        // A message of 15 MB begins, and others that nobody takes follow, until the gateway reads no more.
        say(&mut host, segment("g", 0, &spaces)).await;
        let note = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(400_000));
        while timeout(Duration::from_secs(1), say(&mut host, note.clone())).await.is_ok() {}
        stalled.push((client, host));
    }
    assert!(gateway.held() > 46 * MB as u64, "{}", gateway.held());
    // Another's message of nearly as much arrives in twice the time that theirs have.
    let (client, mut host) = guest(&gateway, "other").await;
    let says = tokio::spawn(async move {
        for index in 0..9 {
            say(&mut host, segment("h", index, &spaces)).await;
        }
        say(&mut host, segment("h", 9, "eyJqc29ucnBjIjoiMi4wIiwibWV0aG9kIjoibSJ9")).await;
        host
    });
    let config = WebSocketConfig { max_frame_bytes: 20 * MB as u64, ..WebSocketConfig::default() };
    let mut client = WebSocket::client(client, &config);
    assert!(matches!(client.next().await, Some(Ok(Arrival::Frame { .. }))), "the welcome");
    let arrival = timeout(2 * GROUP_TIME, client.next()).await.expect("in time");
    let Some(Ok(Arrival::Frame { bytes, .. })) = arrival else { panic!("{arrival:?}") };
    assert_eq!(bytes.len(), 9 * 1_500_000 + 30);
    says.await.unwrap();
}
