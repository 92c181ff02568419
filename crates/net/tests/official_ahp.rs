//! The official `ahp` client and its `MultiHostClient`, unmodified, on our transport: what they never heard of works.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "official_ahp/driver.rs"]
mod driver;
#[path = "../examples/ahp_client.rs"]
mod example;
// The model host is the one that the machine itself is tested with.
#[path = "../../proto/tests/official_ahp/host.rs"]
mod host;
#[path = "official_ahp/recorded_link.rs"]
mod recorded_link;
#[path = "official_ahp/world.rs"]
mod world;

use std::time::Duration;

use ahp::{Client, ClientConfig, ClientError, ResourceRequestHandlers, Transport, TransportError, TransportMessage};
use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::ActionEnvelope;
use ahp_types::commands::{ContentEncoding, ResourceReadParams, ResourceReadResult, ResourceWriteParams};
use ahp_ws::WebSocketTransport;
use breakbulk::ahp::{Negotiated, Segmented};
use breakbulk::link;
use breakbulk::{Arrival, BoxLink, Dialer};
use breakbulk_proto::{Budget, Capacity, CloseReason, Limits, Transmit};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};

use self::driver::Line;
use self::host::Handshake;
use self::recorded_link::Toward;
use self::world::{World, client_on, offered, soon};

const A: &str = "ahp-terminal:/a";
const B: &str = "ahp-terminal:/b";
const MB: usize = 1_000_000;

#[test]
fn the_example_runs() {
    example::main().unwrap();
}

#[tokio::test]
async fn seventeen_megabytes_pass_both_ways_in_frames_of_65_536_bytes() {
    seventeen_megabytes_pass_both_ways_inside_the_process(65_536).await;
}

#[tokio::test]
async fn seventeen_megabytes_pass_both_ways_in_frames_of_900_000_bytes() {
    seventeen_megabytes_pass_both_ways_inside_the_process(900_000).await;
}

async fn seventeen_megabytes_pass_both_ways_inside_the_process(cap: u64) {
    let world = World::new(cap);
    seventeen_megabytes_pass_both_ways(&world, &world.client().await).await;
    for toward in [Toward::Client, Toward::Host] {
        let longest = world.tape.of(0, toward).iter().map(|seen| seen.len as u64).max().unwrap();
        // When short messages have just gone, segments are 64 KiB long.
        assert!((cap.min(64 << 10) - 8..=cap).contains(&longest), "segments fill their frames, and no more: {longest}");
    }
}

/// More than the 16 MiB that the official WebSocket transport takes in a frame.
async fn seventeen_megabytes_pass_both_ways(world: &World, client: &Client) {
    let there = text(17 * MB, "積荷 🚢 \"there\"\n");
    soon(client.resource_write(write("file:///there", &there))).await.unwrap();
    assert!(world.host.file("file:///there") == Some(there));
    let back = text(17 * MB, "größe \\ back\t");
    world.host.put_file("file:///back", &back);
    assert!(soon(client.resource_read(read("file:///back"))).await.unwrap().data == back);
}

#[tokio::test]
async fn seventeen_megabytes_pass_both_ways_on_the_official_websocket_transport() {
    let world = World::new(1_000_000);
    let transport = WebSocketTransport::connect(&world.listen().await).await.unwrap();
    let client = client_on(Segmented::new(transport, Limits::default(), Negotiated::default())).await;
    seventeen_megabytes_pass_both_ways(&world, &client).await;
}

/// It takes 16 MiB a frame and 64 MiB a message, so a host on our WebSocket reaches it without segments, too.
#[tokio::test]
async fn thirty_megabytes_from_a_plain_host_on_our_websocket_reach_the_official_one() {
    let world = World::with_old_host(u64::MAX);
    let client = client_on(WebSocketTransport::connect(&world.listen().await).await.unwrap()).await;
    let back = text(30 * MB, "back ");
    world.host.put_file("file:///back", &back);
    assert!(soon(client.resource_read(read("file:///back"))).await.unwrap().data == back);
}

#[tokio::test]
async fn seventeen_megabytes_pass_both_ways_on_our_own_websocket() {
    let world = World::new(900_000);
    let link = dial(&world.listen().await).await;
    let client = client_on(Segmented::over_link(link, Limits::default(), Negotiated::default())).await;
    seventeen_megabytes_pass_both_ways(&world, &client).await;
}

#[tokio::test]
async fn large_messages_of_both_sides_pass_each_other_on_the_official_websocket_transport() {
    let world = World::new(65_536);
    let transport = WebSocketTransport::connect(&world.listen().await).await.unwrap();
    let client = client_on(Segmented::new(transport, Limits::default(), Negotiated::default())).await;
    let data = text(8 * MB, "both ways at once ");
    world.host.put_file("file:///back", &data);
    let (wrote, got) = tokio::join!(
        soon(client.resource_write(write("file:///there", &data))),
        soon(client.resource_read(read("file:///back")))
    );
    wrote.unwrap();
    assert!(got.unwrap().data == data && world.host.file("file:///there") == Some(data));
}

#[tokio::test]
async fn neither_the_client_nor_the_host_sees_the_negotiation() {
    let world = World::new(65_536);
    let directory = format!("file:///{}", text(MB, "x"));
    world.host.set_default_directory(&directory);
    let client = Client::connect(world.connect(), ClientConfig::default()).await.unwrap();
    let result = soon(client.initialize("one-client".into(), offered(), vec![])).await.unwrap();
    assert!(result.default_directory == Some(directory), "even the first answer may be in segments");
    assert!(matches!(&world.host.handshakes()[..], [Handshake::Initialize(params)] if params.capabilities.is_none()));
}

#[tokio::test]
async fn the_host_asks_and_the_client_answers_in_segments() {
    let world = World::new(65_536);
    let client = world.client().await;
    let data = text(MB, "mine ");
    let answer = ResourceReadResult { data: data.clone(), encoding: ContentEncoding::Utf8, content_type: None };
    client.set_resource_request_handlers(ResourceRequestHandlers::new().on_resource_read(move |_| {
        let answer = answer.clone();
        async move { Ok(answer) }
    }));
    let result = soon(world.host.ask(7, "resourceRead", read("file:///mine"))).await;
    assert!(result["data"] == Value::String(data));
    assert!(world.tape.of(0, Toward::Host).iter().any(|seen| seen.is_segment));
}

#[tokio::test]
async fn a_thousand_actions_held_behind_a_large_one_all_arrive_on_one_thread() {
    a_thousand_actions_all_arrive(ClientConfig::default()).await;
}

#[tokio::test]
async fn a_thousand_actions_held_behind_a_large_one_all_arrive_in_channels_of_two_slots() {
    a_thousand_actions_all_arrive(ClientConfig { subscription_buffer: 2, ..ClientConfig::default() }).await;
}

/// The client's channels skip what they have no room for, if everything is released at once.
async fn a_thousand_actions_all_arrive(config: ClientConfig) {
    let world = World::new(65_536);
    let mut multi = world.multi_with(&[A, B], config).await;
    world.host.publish(B, &text(2 * MB, "large "));
    (0..1000).for_each(|n| _ = world.host.publish(A, &format!("small {n}")));
    assert!(multi.actions(1001).await == world.host.log());
    let frames = world.tape.of(0, Toward::Client);
    let last = frames.iter().rposition(|seen| seen.is_segment).unwrap();
    let held = frames[..last].iter().filter(|seen| !seen.is_segment).count();
    assert!(held > 900, "only {held} were held back");
}

#[tokio::test]
async fn a_client_that_reconnects_loses_nothing_and_segments_its_first_request() {
    let world = World::new(65_536);
    let mut multi = world.multi(&[A]).await;
    // So many subscriptions that the `reconnect` request is larger than the cap: only a transport that remembers what
    // the host takes can send it.
    let uris: Vec<_> = (0..100).map(|n| format!("ahp-terminal:/{n}/{}", text(1000, "x"))).collect();
    for uri in &uris {
        soon(multi.client.subscribe(&"h".into(), uri.clone())).await.unwrap();
    }
    world.host.publish(A, "one");
    let mut actions = multi.actions(1).await;
    world.line(Line::cut);
    world.host.publish(A, &text(2 * MB, "two "));
    world.host.publish(&uris[50], "three");
    multi.connected().await;
    actions.extend(multi.actions(2).await);
    world.line(Line::cut);
    multi.connected().await;
    world.host.publish(A, &text(2 * MB, "four "));
    actions.extend(multi.actions(1).await);
    assert_eq!(seqs(&actions), [1, 2, 3, 4]);
    assert!(actions == world.host.log());

    assert!(world.tape.of(1, Toward::Host)[0].is_segment && world.tape.of(2, Toward::Host)[0].is_segment);
    assert!(world.tape.frames().iter().all(|seen| seen.len <= 65_536));
    let codes: Vec<_> = world.ended.lock().unwrap().iter().map(|ended| ended.reason().map(|end| end.code())).collect();
    assert_eq!(codes, [Some(1006), Some(1006), None]);
}

#[tokio::test]
async fn a_request_too_large_for_the_host_comes_back_as_an_error_and_the_client_lives() {
    let world = World::with_old_host(65_536);
    let client = world.client().await;
    let error = match soon(client.resource_write(write("file:///x", &text(200_000, "x")))).await {
        Err(ClientError::Rpc(error)) => error,
        other => panic!("no error response: {other:?}"),
    };
    let data = error.data.unwrap();
    assert_eq!((error.code, &data["reason"], &data["limit"]), (-32011, &json!("messageTooLarge"), &json!(65_536)));
    soon(client.resource_write(write("file:///x", "small"))).await.unwrap();
    assert_eq!(world.host.file("file:///x").as_deref(), Some("small"));
}

#[tokio::test]
async fn the_hosts_close_code_can_be_read_after_the_client_took_the_transport() {
    let world = World::new(65_536);
    let link = dial(&world.listen().await).await;
    let transport = Segmented::over_link(link, Limits::default(), Negotiated::default());
    let ended = transport.ended();
    let client = client_on(transport).await;
    assert_eq!(ended.reason(), None);
    world.line(|line| line.close(CloseReason::Restart));
    assert_eq!(soon(ended.wait()).await, CloseReason::Peer { code: 1012 });
    assert!(soon(client.ping()).await.is_err());
    assert_eq!(ended.reason(), Some(CloseReason::Peer { code: 1012 }));
}

#[tokio::test]
async fn the_end_of_a_connection_names_its_code_unless_it_is_in_order() {
    for (end, told) in [(CloseReason::Normal, None), (CloseReason::Restart, Some("1012"))] {
        let (near, mut far) = link::pair(&Capacity::of(65_536), 1);
        let mut transport = Segmented::over_link(near, Limits::default(), Negotiated::default());
        far.send(Transmit::Close(end)).await.unwrap();
        match (soon(transport.recv()).await, told) {
            (Ok(None), None) => {}
            (Err(TransportError::Io(text)), Some(code)) => assert!(text.contains(code), "{text}"),
            other => panic!("{other:?}"),
        }
        let refused = soon(transport.send(TransportMessage::Text("{}".into()))).await;
        assert!(matches!(refused, Err(TransportError::Closed)), "{refused:?}");
    }
}

#[tokio::test]
async fn a_host_that_breaks_a_rule_is_told_so_and_the_client_hears_which() {
    let (near, mut far) = link::pair(&Capacity::of(65_536), 1);
    let mut transport = Segmented::over_link(near, Limits::default(), Negotiated::default());
    far.send(frame("no json")).await.unwrap();
    let error = soon(transport.recv()).await.unwrap_err();
    assert!(matches!(&error, TransportError::Protocol(text) if text.contains("4400")), "{error}");
    assert!(matches!(soon(far.next()).await, Some(Ok(Arrival::Closed { code: 4400, .. }))));
}

#[tokio::test]
async fn what_was_sent_before_a_shutdown_arrives_and_then_the_link_closes() {
    let world = World::new(65_536);
    let client = world.client().await;
    let data = text(5 * MB, "last words ");
    let wrote = tokio::spawn({
        let (client, params) = (client.clone(), write("file:///last", &data));
        async move { client.resource_write(params).await }
    });
    // The request is with the transport when its first frames are out.
    while world.tape.of(0, Toward::Host).len() < 3 {
        tokio::task::yield_now().await;
    }
    client.shutdown().await;
    assert!(soon(wrote).await.unwrap().is_err(), "nobody waits for the answer");
    let ended = world.ended.lock().unwrap()[0].clone();
    assert_eq!(soon(ended.wait()).await, CloseReason::Normal);
    soon(async {
        while world.host.file("file:///last").is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(world.host.file("file:///last") == Some(data));
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_is_dropped_ends_in_seconds_even_if_the_peer_takes_nothing() {
    let (near, far) = link::pair(&Capacity::of(65_536), 1);
    let budget = Budget::default();
    let negotiated = Negotiated::default();
    let mut transport = Segmented::charged_to(budget.account(None), near, Limits::default(), negotiated);
    let ended = transport.ended();
    for n in 0..10 {
        let ping = json!({"jsonrpc": "2.0", "id": n, "method": "ping", "params": {}}).to_string();
        transport.send(TransportMessage::Text(ping)).await.unwrap();
    }
    drop(transport);
    let waited = tokio::time::timeout(Duration::from_secs(11), ended.wait()).await;
    assert_eq!(waited.unwrap(), CloseReason::Normal);
    drop(far);
}

#[tokio::test]
async fn what_is_held_is_given_back_when_the_transport_is_dropped() {
    let (near, mut far) = link::pair(&Capacity::of(65_536), 1);
    let budget = Budget::default();
    let account = budget.account(Some("the host"));
    let mut transport = Segmented::charged_to(account, near, Limits::default(), Negotiated::default());
    let ended = transport.ended();
    let hello =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"c","protocolVersions":["1.0.0"]}}"#;
    transport.send(TransportMessage::Text(hello.into())).await.unwrap();
    assert!(matches!(soon(far.next()).await, Some(Ok(Arrival::Frame { .. }))));
    let data = "ICAg".repeat(15_000);
    let params = format!(r#"{{"groupId":"g","index":0,"total":9,"data":"{data}"}}"#);
    far.send(frame(&format!(r#"{{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{params}}}"#))).await.unwrap();
    far.send(frame(r#"{"jsonrpc":"2.0","method":"hello"}"#)).await.unwrap();
    assert!(matches!(soon(transport.recv()).await, Ok(Some(_))), "the segment before it was taken");
    assert!(budget.held() > 0);
    drop(transport);
    soon(ended.wait()).await;
    assert_eq!(budget.held(), 0);
    assert!(matches!(soon(far.next()).await, Some(Ok(Arrival::Closed { code: 1000, .. }))));
}

/// A WebSocket of ours to a host.
async fn dial(url: &str) -> BoxLink {
    Dialer::default().dial(&format!("{url}?cap=900000").parse().unwrap()).await.unwrap()
}

fn frame(text: &str) -> Transmit {
    Transmit::Frame { tag: Default::default(), bytes: text.to_owned().into(), meta: Default::default() }
}

fn seqs(actions: &[ActionEnvelope]) -> Vec<u64> {
    actions.iter().map(|envelope| envelope.server_seq).collect()
}

fn write(uri: &str, data: &str) -> ResourceWriteParams {
    ResourceWriteParams {
        channel: ROOT_RESOURCE_URI.into(),
        meta: None,
        uri: uri.into(),
        data: data.into(),
        encoding: ContentEncoding::Utf8,
        content_type: None,
        create_only: None,
        mode: None,
        position: None,
        if_match: None,
    }
}

fn read(uri: &str) -> ResourceReadParams {
    ResourceReadParams { channel: ROOT_RESOURCE_URI.into(), meta: None, uri: uri.into(), encoding: None }
}

/// About `len` bytes.
fn text(len: usize, piece: &str) -> String {
    piece.repeat(len.div_ceil(piece.len()))
}
