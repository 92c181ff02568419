//! The official `ahp` client and its `MultiHostClient`, unmodified, over the machine: what they never heard of works.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "official_ahp/driver.rs"]
mod driver;
#[path = "official_ahp/host.rs"]
mod host;
#[path = "official_ahp/link.rs"]
mod link;
#[path = "official_ahp/world.rs"]
mod world;

use std::collections::HashSet;
use std::time::Duration;

use ahp::{Client, ClientConfig, ClientError, ResourceRequestHandlers};
use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::commands::{ContentEncoding, ResourceReadParams, ResourceReadResult, ResourceWriteParams};
use ahp_types::messages::JsonRpcError;
use breakbulk_proto::ahp::Delivery;
use breakbulk_proto::{CloseReason, MESSAGE_TOO_LARGE, Over, SendError};
use bytes::Bytes;
use serde_json::{Value, json};

use self::host::Handshake;
use self::link::{Seen, Toward, Verdict};
use self::world::{Setup, World, offered, owned, soon};

const A: &str = "ahp-terminal:/a";
const B: &str = "ahp-terminal:/b";
const C: &str = "ahp-terminal:/c";
const MB: usize = 1_000_000;

#[tokio::test(start_paused = true)]
async fn segments_are_negotiated_and_neither_the_client_nor_the_host_sees_it() {
    let world = World::new(Setup::with_cap(65_536));
    let client = world.client(&[A]).await;
    client.ping().await.unwrap();
    let advertised = |seen: &&Seen| seen.mentions(r#""capabilities":{"chunking":{"maxIncoming"#);
    let frames = world.line.frames();
    let ways: Vec<_> = frames.iter().filter(advertised).map(|seen| seen.toward).collect();
    assert_eq!(ways, [Toward::Host, Toward::Client]);
    let (near, far) = (world.client_tape.record(), world.host_tape.record());
    assert_eq!((near.accepted, near.delivered.len()), (far.delivered, 2));
    assert_eq!(near.delivered, far.accepted, "capabilities are taken out again without a trace");
    assert!(matches!(&world.host.handshakes()[..], [Handshake::Initialize(params)] if params.capabilities.is_none()));
}

#[tokio::test(start_paused = true)]
async fn an_initialize_result_larger_than_the_cap_arrives_in_segments() {
    let world = World::new(Setup::with_cap(65_536));
    let directory = format!("file:///{}", text(MB, 1));
    world.host.set_default_directory(&directory);
    let client = Client::connect(world.connect(), ClientConfig::default()).await.unwrap();
    let result = client.initialize("one-client".into(), offered(), vec![]).await.unwrap();
    assert!(result.default_directory == Some(directory));
    assert!(groups(&world, 0, Toward::Client).len() == 1);
}

#[tokio::test(start_paused = true)]
async fn seventeen_megabytes_pass_both_ways_in_frames_of_65_536_bytes() {
    seventeen_megabytes_pass_both_ways(Setup::with_cap(65_536)).await;
}

#[tokio::test(start_paused = true)]
async fn seventeen_megabytes_pass_both_ways_in_frames_of_900_000_bytes() {
    seventeen_megabytes_pass_both_ways(Setup::with_cap(900_000)).await;
}

#[tokio::test(start_paused = true)]
async fn what_each_side_advertises_is_kept_where_the_link_itself_has_no_cap() {
    seventeen_megabytes_pass_both_ways(Setup { told: false, ..Setup::with_cap(100_000) }).await;
}

/// More than the 16 MiB that the official WebSocket transport takes in a frame.
async fn seventeen_megabytes_pass_both_ways(setup: Setup) {
    let world = World::new(setup);
    let client = world.client(&[]).await;
    let there = text(17 * MB, 2);
    quiet().await;
    client.resource_write(write("file:///there", &there)).await.unwrap();
    assert!(world.host.file("file:///there") == Some(there));
    let back = text(17 * MB, 3);
    world.host.put_file("file:///back", &back);
    quiet().await;
    assert!(client.resource_read(read("file:///back")).await.unwrap().data == back);

    let (near, far) = (world.client_tape.record(), world.host_tape.record());
    assert!(near.accepted == far.delivered && far.accepted == near.delivered, "byte for byte");
    assert!([&near, &far].iter().all(|tape| tape.accepted.iter().any(|text| text.len() > 16 << 20)));
    for toward in [Toward::Client, Toward::Host] {
        assert_eq!(groups(&world, 0, toward).len(), 1);
        let seen = world.line.frames().into_iter().filter(|seen| seen.toward == toward);
        let (longest, most) = (seen.map(|seen| seen.len as u64).max().unwrap(), setup.cap.min(120 << 10));
        assert!((most - 8..=most).contains(&longest), "segments fill what is chosen for them: {longest}");
    }
}

/// Until short messages are long ago: while they pass, segments do not fill their frames.
async fn quiet() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn the_host_asks_and_the_client_answers_in_segments() {
    let world = World::new(Setup::with_cap(65_536));
    let client = world.client(&[]).await;
    let data = text(MB, 4);
    let answer = ResourceReadResult { data: data.clone(), encoding: ContentEncoding::Utf8, content_type: None };
    client.set_resource_request_handlers(ResourceRequestHandlers::new().on_resource_read(move |_| {
        let answer = answer.clone();
        async move { Ok(answer) }
    }));
    let result = soon(world.host.ask(7, "resourceRead", read("file:///mine"))).await.unwrap();
    assert!(result["data"] == Value::String(data));
    assert_eq!(groups(&world, 0, Toward::Host).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ping_does_not_wait_for_a_large_answer() {
    let world = World::new(Setup::with_cap(65_536));
    let client = world.client(&[]).await;
    world.host.put_file("file:///large", &text(5 * MB, 5));
    let mut order = Vec::new();
    let (mut large, mut ping) =
        (Box::pin(client.resource_read(read("file:///large"))), Box::pin(async { client.ping().await }));
    while order.len() < 2 {
        tokio::select! {
            biased;
            result = &mut large, if !order.contains(&"large") => { result.unwrap(); order.push("large"); }
            result = &mut ping, if !order.contains(&"ping") => { result.unwrap(); order.push("ping"); }
        }
    }
    assert_eq!(order, ["ping", "large"]);
}

#[tokio::test(start_paused = true)]
async fn a_small_action_passes_a_large_one_on_the_wire_and_reaches_the_client_after_it() {
    let world = World::new(Setup::with_cap(65_536));
    let mut multi = world.multi(&[B, C]).await;
    world.host.publish(B, &text(10 * MB, 6));
    world.host.publish(C, "small");
    let actions = multi.actions(2).await;
    assert_eq!(seqs(&actions), [1, 2]);
    assert!(actions == world.host.log());
    let frames = world.line.frames();
    let small = frames.iter().position(is_action).unwrap();
    let last = frames.iter().rposition(|seen| seen.group().is_some()).unwrap();
    assert!(small + 100 < last, "the small one came {small}th of {last}");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_actions_held_behind_a_large_one_all_arrive_in_channels_of_eight_slots() {
    let world = World::new(Setup::with_cap(65_536));
    let config = ClientConfig { subscription_buffer: 8, ..ClientConfig::default() };
    let mut multi = world.multi_with(&[B, C], config).await;
    world.host.publish(B, &text(2 * MB, 7));
    (0..1000).for_each(|n| _ = world.host.publish(C, &format!("small {n}")));
    assert!(multi.actions(1001).await == world.host.log());
    let frames = world.line.frames();
    let last = frames.iter().rposition(|seen| seen.group().is_some()).unwrap();
    let held = frames[..last].iter().filter(|seen| is_action(seen)).count();
    assert!(held > 900, "only {held} were held back");
    multi.is_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_inside_a_group_costs_no_action_and_the_large_replay_arrives_in_segments() {
    let world = World::new(Setup::with_cap(65_536));
    let mut multi = world.multi(&[A, B, C]).await;
    world.host.publish(A, "one");
    let mut actions = multi.actions(1).await;
    world.line.set_rule(cut_after_a_small_action_passed());
    world.host.publish(B, &text(10 * MB, 8));
    world.host.publish(C, "three");
    actions.extend(multi.actions(2).await);
    assert_eq!(world.line.connections(), 2);
    assert!(multi.connected().await == 3);
    world.host.publish(A, "four");
    actions.extend(multi.actions(1).await);
    assert_eq!(seqs(&actions), [1, 2, 3, 4]);
    assert!(actions == world.host.log());
    multi.is_quiet().await;

    assert_eq!(last_seen(&world), [None, Some(1)]);
    assert_eq!(groups(&world, 1, Toward::Client).len(), 1, "the replay is one message in segments");
    assert_eq!(world.client_tape.record().closed, [CloseReason::Peer { code: 1006 }]);
}

/// The control for the test above: what start-order delivery is for.
#[tokio::test(start_paused = true)]
async fn without_start_order_the_same_cut_costs_the_official_client_an_action() {
    let world = World::new(Setup { delivery: Delivery::Settled, ..Setup::with_cap(65_536) });
    let mut multi = world.multi(&[A, B, C]).await;
    world.host.publish(A, "one");
    world.line.set_rule(cut_after_a_small_action_passed());
    world.host.publish(B, &text(10 * MB, 8));
    world.host.publish(C, "three");
    assert_eq!(seqs(&multi.actions(2).await), [1, 3]);
    multi.connected().await;
    multi.is_quiet().await;
    assert_eq!(last_seen(&world), [None, Some(3)]);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_remembers_segments_its_replay_to_a_client_that_repeats_nothing() {
    let world = World::new(Setup::with_cap(65_536));
    let mut multi = world.multi(&[A]).await;
    world.host.publish(A, "one");
    multi.actions(1).await;
    world.line.set_rule(strip_reconnect());
    world.line.cut();
    world.host.publish(A, &text(MB, 9));
    assert!(multi.actions(1).await[..] == world.host.log()[1..]);
    assert_eq!(last_seen(&world), [None, Some(1)]);
    assert_eq!(groups(&world, 1, Toward::Client).len(), 1);
}

/// The control for the test above: what the memory is for.
#[tokio::test(start_paused = true)]
async fn a_host_that_forgot_answers_with_an_error_and_the_client_initializes_again() {
    let world = World::new(Setup::with_cap(65_536));
    let mut multi = world.multi(&[A]).await;
    world.host.publish(A, "one");
    multi.actions(1).await;
    multi.world.lock().unwrap().forget();
    world.line.set_rule(strip_reconnect());
    world.line.cut();
    world.host.publish(A, &text(MB, 9));
    assert_eq!(multi.connected().await, 2, "the cursor of the new snapshot");
    assert_eq!(last_seen(&world), [None, Some(1), None]);
    world.host.publish(A, &text(MB, 10));
    assert!(multi.actions(1).await[..] == world.host.log()[2..], "segments are negotiated again");
    let error = world.client_tape.record().delivered.into_iter().find_map(|text| error_of(&text)).unwrap();
    assert_eq!((error.code, error.message.as_str()), (MESSAGE_TOO_LARGE, "MessageTooLarge"));
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_request_larger_than_the_cap_goes_in_segments_at_once() {
    let world = World::new(Setup::with_cap(65_536));
    let mut multi = world.multi(&[A]).await;
    let uris: Vec<_> = (0..100).map(|n| format!("ahp-terminal:/{n}/{}", "x".repeat(1000))).collect();
    for uri in &uris {
        multi.client.subscribe(&"h".into(), uri.clone()).await.unwrap();
    }
    world.host.publish(&uris[99], "one");
    multi.actions(1).await;
    world.line.cut();
    world.host.publish(&uris[50], "two");
    assert_eq!(seqs(&multi.actions(1).await), [2]);
    let frames = world.line.frames();
    let first = frames.iter().find(|seen| seen.connection == 1).unwrap();
    assert!(first.toward == Toward::Host && first.group().is_some());
}

#[tokio::test(start_paused = true)]
async fn every_action_arrives_once_and_in_order_over_a_link_that_is_cut_fifteen_times() {
    let world = World::new(Setup::with_cap(65_536));
    let mut multi = world.multi(&[A, B, C]).await;
    world.host.publish(A, "the first");
    let mut actions = multi.actions(1).await;
    let mut random = Random(11);
    let mut frames = 0;
    let mut left = random.below(40);
    world.line.set_rule(move |seen, _| {
        frames += 1;
        if seen.connection < 15 && frames > left {
            (frames, left) = (0, random.below(40));
            return Verdict::Cut;
        }
        Verdict::Pass
    });
    let host = world.host.clone();
    tokio::spawn(async move {
        let mut random = Random(12);
        for n in 0..120 {
            let len = if random.below(3) == 0 { 100_000 + random.below(900_000) } else { random.below(200) };
            host.publish([A, B, C][random.below(3) as usize], &text(len as usize, n));
            tokio::time::sleep(Duration::from_millis(random.below(100))).await;
        }
    });
    actions.extend(multi.actions(120).await);
    assert_eq!(seqs(&actions), (1..=121).collect::<Vec<_>>());
    assert!(actions == world.host.log());
    multi.is_quiet().await;
    assert_eq!(world.line.connections(), 16);
    world.line.frames();
}

#[tokio::test(start_paused = true)]
async fn a_request_too_large_for_a_host_without_segments_comes_back_as_an_error_with_its_id() {
    let world = World::new(Setup { host: false, ..Setup::with_cap(65_536) });
    let client = world.client(&[]).await;
    let data = text(200_000, 13);
    let error = rpc_error(client.resource_write(write("file:///x", &data)).await);
    let (near, far) = (world.client_tape.record(), world.host_tape.record());
    let (request, answer) = (near.accepted.last().unwrap(), near.delivered.last().unwrap());
    assert_too_large(&error, request.len(), 65_536);
    assert_eq!(id_of(answer), id_of(request));
    assert_eq!(far.delivered.len(), 1, "nothing of it was sent");

    client.ping().await.unwrap();
    client.resource_write(write("file:///x", "small")).await.unwrap();
    assert_eq!(world.host.file("file:///x").as_deref(), Some("small"));
    world.line.frames();
}

#[tokio::test(start_paused = true)]
async fn an_initialize_request_larger_than_the_cap_comes_back_as_an_error_and_a_smaller_one_works() {
    let world = World::new(Setup::with_cap(65_536));
    let client = Client::connect(world.connect(), ClientConfig::default()).await.unwrap();
    let uris = vec![text(70_000, 14)];
    let error = rpc_error(client.initialize("one-client".into(), offered(), uris).await);
    let data = error.data.unwrap();
    assert_eq!((error.code, &data["reason"], &data["limit"]), (-32011, &json!("messageTooLarge"), &json!(65_536)));
    let request = world.client_tape.record().accepted[0].len() as u64;
    assert!(data["size"].as_u64().unwrap() > request, "our capability counts too");
    client.initialize("one-client".into(), offered(), owned(&[A])).await.unwrap();
    client.resource_write(write("file:///x", &text(MB, 15))).await.unwrap();
    assert_eq!(groups(&world, 0, Toward::Host).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_too_large_for_a_client_without_segments_becomes_an_error_with_its_id() {
    let world = World::new(Setup { client: false, ..Setup::with_cap(65_536) });
    let client = world.client(&[]).await;
    world.host.put_file("file:///large", &text(200_000, 16));
    let error = rpc_error(client.resource_read(read("file:///large")).await);
    let answer = world.host_tape.record().accepted.pop().unwrap();
    assert_too_large(&error, answer.len(), 65_536);
    client.ping().await.unwrap();
    world.line.frames();
}

#[tokio::test(start_paused = true)]
async fn an_action_too_large_for_a_client_without_segments_closes_the_link_with_that_reason() {
    let world = World::new(Setup { client: false, ..Setup::with_cap(65_536) });
    let client = world.client(&[A]).await;
    let mut events = client.events();
    world.host.publish(A, "small");
    world.host.publish(A, &text(200_000, 17));
    world.host.publish(A, "never");
    assert!(soon(events.recv()).await.unwrap().is_some());
    assert!(soon(events.recv()).await.unwrap().is_none(), "the client sees a closed link and not a later action");
    let closed = world.host_tape.record().closed;
    assert!(
        matches!(
            closed[..],
            [CloseReason::Unsendable { error: SendError::NoSegments(Over { limit: 65_536, .. }), .. }]
        ),
        "{closed:?}"
    );
}

/// Cuts the first connection when a small action has passed a large one that is still under way.
fn cut_after_a_small_action_passed() -> impl FnMut(&Seen, &Bytes) -> Verdict + Send {
    let mut begun = false;
    let mut since = 0;
    move |seen, _| {
        begun |= seen.group().is_some();
        if begun && (since > 0 || is_action(seen)) {
            since += 1;
        }
        if seen.connection == 0 && since > 20 { Verdict::Cut } else { Verdict::Pass }
    }
}

/// Takes the capability out of `reconnect` requests: the RFC has none there.
fn strip_reconnect() -> impl FnMut(&Seen, &Bytes) -> Verdict + Send {
    |seen, frame| {
        if !seen.mentions(r#""method":"reconnect""#) {
            return Verdict::Pass;
        }
        let mut request: Value = serde_json::from_slice(frame).unwrap();
        assert!(request["params"].as_object_mut().unwrap().remove("capabilities").is_some());
        Verdict::As(request.to_string().into())
    }
}

fn is_action(seen: &Seen) -> bool {
    seen.toward == Toward::Client && seen.mentions(r#""method":"action""#)
}

/// The groups of one connection in one direction.
fn groups(world: &World, connection: usize, toward: Toward) -> HashSet<String> {
    let frames = world.line.frames().into_iter().filter(|seen| (seen.connection, seen.toward) == (connection, toward));
    frames.filter_map(|seen| seen.group().map(str::to_owned)).collect()
}

/// Of each handshake: the seq that a `reconnect` resumed from, `None` for an `initialize`.
fn last_seen(world: &World) -> Vec<Option<i64>> {
    let seen = |handshake: &Handshake| match handshake {
        Handshake::Initialize(_) => None,
        Handshake::Reconnect(params) => Some(params.last_seen_server_seq),
    };
    world.host.handshakes().iter().map(seen).collect()
}

fn seqs(actions: &[ActionEnvelope]) -> Vec<u64> {
    assert!(actions.iter().all(|envelope| matches!(envelope.action, StateAction::TerminalData(_))));
    actions.iter().map(|envelope| envelope.server_seq).collect()
}

fn rpc_error<T: std::fmt::Debug>(result: Result<T, ClientError>) -> JsonRpcError {
    match result {
        Err(ClientError::Rpc(error)) => error,
        other => panic!("no error response: {other:?}"),
    }
}

fn assert_too_large(error: &JsonRpcError, size: usize, limit: u64) {
    assert_eq!(error.code, -32011);
    assert_eq!(error.data, Some(json!({"reason": "messageTooLarge", "size": size, "limit": limit})));
}

fn error_of(text: &Bytes) -> Option<JsonRpcError> {
    let mut message: Value = serde_json::from_slice(text).unwrap();
    serde_json::from_value(message["error"].take()).ok()
}

fn id_of(text: &Bytes) -> u64 {
    serde_json::from_slice::<Value>(text).unwrap()["id"].as_u64().unwrap()
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

/// About `len` bytes that differ by `seed`: words, characters of two to four bytes, and what JSON escapes.
fn text(len: usize, seed: u64) -> String {
    const PIECES: [&str; 8] =
        ["lorem ipsum dolor sit ", "\u{1b}[0m\r\n", "größe ", "積荷 ", "🚢", "\"quoted\\\" ", "0123456789abcdef", "\t"];
    let mut random = Random(seed);
    let mut out = String::with_capacity(len + 32);
    while out.len() < len {
        out.push_str(PIECES[random.below(8) as usize]);
    }
    out
}

/// Reproducible numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}
