//! A gateway between applications that know nothing of segments: nothing is altered, nothing is lost, nothing loops.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod ending;
mod kept;
mod memory;
mod owed;
mod principals;
mod relay;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use breakbulk::link::{self, WebSocket, WebSocketConfig};
use breakbulk::{Dialect, Gateway, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Capacity, CloseReason, Event, Input, Limits, LimitsConfig, Message, Transmit};
use futures_util::{SinkExt, StreamExt};

use world::{
    App, CAP, INITIALIZE, WELCOME, World, gateways, gateways_of, join, join_as, join_until, limits, plain_gateway,
    request,
};

#[tokio::test]
async fn thirty_megabytes_pass_both_ways_byte_for_byte_in_frames_under_the_cap() {
    let mut world = World::new(CAP);
    world.greet().await;
    for len in [100, 1_000_000, 17_000_000, 30_000_000] {
        let there = request("7", len);
        world.client.send(there.clone());
        assert!(world.host_hears().await == there, "{len} bytes to the host");
        let back = request("\"of the host\"", len);
        world.host.send(back.clone());
        assert!(world.client_hears().await == back, "{len} bytes to the client");
    }
    let longest = world.longest.load(Ordering::Relaxed);
    assert!(longest > CAP / 2 && longest <= CAP, "{longest}");
}

#[tokio::test]
async fn many_messages_each_way_stay_in_order() {
    let mut world = World::new(CAP);
    world.greet().await;
    let lens = |n: usize| if n.is_multiple_of(10) { 300_000 } else { 50 };
    for n in 0..200 {
        world.client.send(request(&n.to_string(), lens(n)));
    }
    for n in 0..200 {
        assert!(world.host_hears().await == request(&n.to_string(), lens(n)), "{n}");
    }
}

#[tokio::test]
async fn a_close_passes_with_its_code() {
    for (code, want) in [(1000, 1000), (1001, 1001), (4401, 4401), (1011, 1011)] {
        let mut world = World::new(CAP);
        world.greet().await;
        world.host.driver.handle(Input::Close(CloseReason::Peer { code }));
        let (_, reason) = tokio::join!(world.host.end(), world.client.end());
        assert_eq!(reason.code(), want);
        let mut world = World::new(CAP);
        world.greet().await;
        world.client.driver.handle(Input::Close(CloseReason::Peer { code }));
        let (_, reason) = tokio::join!(world.client.end(), world.host.end());
        assert_eq!(reason.code(), want);
    }
}

#[tokio::test]
async fn a_message_that_is_bad_past_its_front_reaches_nobody_and_ends_its_connection() {
    let mut world = World::new(CAP);
    world.greet().await;
    world.client.send(format!(r#"{{"jsonrpc":"2.0","id":9,"method":"m","params":["{}"}}"#, "x".repeat(3_000_000)));
    let (heard, reason) = tokio::join!(world.host.next(), world.client.end());
    assert_eq!((heard.map_err(|reason| reason.code()), reason.code()), (Err(1001), 4400));
}

#[tokio::test]
async fn a_host_that_is_gone_is_a_bad_gateway_to_the_client_and_a_client_that_is_gone_is_gone() {
    let mut world = World::new(CAP);
    world.greet().await;
    drop(world.host);
    assert_eq!(world.client.end().await.code(), 1014);
    let mut world = World::new(CAP);
    world.greet().await;
    drop(world.client);
    assert_eq!(world.host.end().await.code(), 1001);
}

#[tokio::test]
async fn what_was_said_before_a_close_still_arrives() {
    let mut world = World::new(CAP);
    world.greet().await;
    let last = request("9", 3_000_000);
    world.client.send(last.clone());
    while !matches!(world.client.driver.next().await, Some(Event::Sent { .. })) {}
    world.client.driver.handle(Input::Close(CloseReason::Normal));
    assert_eq!(world.client.end().await, CloseReason::Normal);
    assert!(world.host.next().await.unwrap() == last);
    assert_eq!(world.host.end().await.code(), 1000);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_stops_finishes_what_is_under_way_and_says_that_it_restarts() {
    const MESSAGES: usize = 30;
    let (gateway, _) = gateways(CAP);
    let any = Capacity::of(u64::MAX);
    let ((client, downstream), (upstream, host)) = (link::pair(&any, 4), link::pair(&any, 4));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let ended = join_until(&gateway, downstream, upstream, async { stopped.await.unwrap() });
    let (mut client, mut host) = (App::new(client, Role::Client), App::new(host, Role::Server));
    let asked = |n: usize| Message::from(format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"m"}}"#));
    (0..MESSAGES).for_each(|n| client.send(asked(n)));
    // The host reads nothing yet: the link has four of them, the gateway has the rest.
    tokio::time::timeout(Duration::from_secs(1), client.next()).await.unwrap_err();
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(1), client.next()).await.unwrap_err();
    for n in 0..MESSAGES {
        assert_eq!(host.next().await.unwrap(), asked(n));
    }
    let (downstream, upstream) = tokio::join!(client.end(), host.end());
    assert_eq!((downstream.code(), upstream.code()), (1012, 1012));
    assert_eq!(ended.await.unwrap().downstream.reason, CloseReason::Restart);
}

#[tokio::test]
async fn what_one_side_did_wrong_is_not_told_to_the_other() {
    let config = LimitsConfig { max_frame_bytes: CAP, max_message_bytes: 1 << 20, ..LimitsConfig::default() };
    let gateway = plain_gateway(Limits::prove(config, &BudgetConfig::default()).unwrap(), BudgetConfig::default());
    let (mut client, mut host) = joined(&gateway, u64::MAX);
    client.send(request("1", 2 << 20));
    let (downstream, upstream) = tokio::join!(client.end(), host.end());
    assert_eq!((downstream.code(), upstream.code()), (1009, 1001));
    let (mut client, mut host) = joined(&gateway, u64::MAX);
    host.send(request("1", 2 << 20));
    let (downstream, upstream) = tokio::join!(client.end(), host.end());
    assert_eq!((downstream.code(), upstream.code()), (1014, 1009));
}

/// A client, and a host behind a link of this cap.
fn joined(gateway: &Arc<Gateway>, cap: u64) -> (App, App) {
    let (client, downstream) = link::pair(&Capacity::of(u64::MAX), 4);
    let (upstream, host) = link::pair(&Capacity::of(cap), 4);
    join(gateway, downstream, upstream);
    (App::new(client, Role::Client), App::new(host, Role::Server))
}

#[tokio::test]
async fn a_prompt_that_the_host_cannot_take_closes_both_links_once_by_name_and_is_then_left_out() {
    let text = "p".repeat(5000);
    let front = format!(r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{{"clientSeq":1,"text":"{text}"}}}}"#);
    let back = format!(r#"{{"params":{{"clientSeq":1,"text":"{text}"}},"jsonrpc":"2.0","method":"dispatchAction"}}"#);
    for prompt in [front, back] {
        let gateway = plain_gateway(Limits::default(), BudgetConfig::default());
        for round in 0..3 {
            let (mut client, mut host) = joined(&gateway, 1000);
            client.send(prompt.clone());
            if round == 0 {
                let (downstream, upstream) = tokio::join!(client.end(), host.end());
                assert_eq!((downstream.code(), upstream.code()), (4413, 4413));
                let why = client.driver.close_text().unwrap();
                assert!(why.starts_with("an action cannot be sent: message of 5"), "{why}");
            } else {
                client.send(request("2", 100));
                assert!(
                    tokio::select! { heard = host.next() => heard.unwrap(), end = client.next() => panic!("{end:?}") }
                        == request("2", 100)
                );
            }
        }
        assert_eq!(gateway.counts().get("dropped-unsendable"), Some(&2));
    }
}

/// Between two gateways: the first time an action closes the link by a name, and then it is left out.
async fn closes_once(limits: Limits, bad: String, why: &str) {
    let (beside_client, beside_host) = gateways_of(limits);
    let good = r#"{"jsonrpc":"2.0","method":"action","params":{"channel":"c","serverSeq":8}}"#;
    for round in 0..3 {
        let mut world = World::with(&beside_client, &beside_host, CAP);
        world.greet().await;
        world.host.send_as_it_is(&bad).await;
        if round == 0 {
            let (downstream, upstream) = tokio::join!(world.client.end(), world.host.end());
            assert_eq!((downstream.code(), upstream.code()), (4422, 4422), "{downstream} {upstream}");
            let text = world.host.driver.close_text().unwrap();
            assert!(text.contains(why), "{text}");
        } else {
            world.host.send(good);
            assert_eq!(world.client_hears().await, Message::from(good), "round {round}");
        }
    }
    assert_eq!(beside_host.counts().get("dropped-unsendable"), Some(&2));
}

#[tokio::test]
async fn an_action_that_is_nested_too_deep_closes_once_by_that_name_and_is_then_left_out() {
    let config = LimitsConfig { max_frame_bytes: CAP, max_depth: 128, ..LimitsConfig::default() };
    let nested = format!("{}{}", "[".repeat(138), "]".repeat(138));
    let deep =
        format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"c","serverSeq":7,"x":{nested}}}}}"#);
    let limits = Limits::prove(config, &BudgetConfig::default()).unwrap();
    closes_once(limits, deep, "nested 140 levels deep, the limit is 128").await;
}

#[tokio::test]
async fn an_action_that_is_no_message_closes_once_and_is_then_left_out() {
    let bad = r#"{"jsonrpc":"1.0","method":"action","params":{"channel":"c","serverSeq":7}}"#;
    closes_once(limits(CAP), bad.to_owned(), "not a JSON-RPC message").await;
}

#[tokio::test]
async fn what_arrived_in_one_piece_and_as_deep_as_is_taken_goes_on() {
    let mut world = World::new(CAP);
    world.greet().await;
    let nested = format!("{}{}", "[".repeat(99_998), "]".repeat(99_998));
    for text in ["", &"x".repeat(300_000)] {
        let deep = format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"text":"{text}","x":{nested}}}}}"#);
        world.host.send(deep.clone());
        assert!(world.client_hears().await == Message::from(deep));
    }
}

/// The host's gateway speaks to a client that takes no segments, over a link of this cap.
fn capped_client(cap: u64) -> (App, App) {
    let (_, gateway) = gateways(CAP);
    let (client, downstream) = link::pair(&Capacity::of(cap), 4);
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    join(&gateway, downstream, upstream);
    (App::new(client, Role::Client), App::new(host, Role::Server))
}

#[tokio::test]
async fn a_request_that_the_peer_cannot_take_is_answered_with_an_error() {
    let (mut client, mut host) = capped_client(1000);
    client.send(INITIALIZE);
    tokio::select! { asked = host.next() => asked.unwrap(), end = client.next() => panic!("{end:?}") };
    host.send(WELCOME);
    tokio::select! { answer = client.next() => answer.unwrap(), end = host.next() => panic!("{end:?}") };
    host.send(request("\"r1\"", 5000));
    let answer = tokio::select! { answer = host.next() => answer.unwrap(), end = client.next() => panic!("{end:?}") };
    let answer: serde_json::Value = serde_json::from_slice(&answer.to_bytes()).unwrap();
    assert_eq!((answer["id"].as_str(), answer["error"]["code"].as_i64()), (Some("r1"), Some(-32011)));
    assert_eq!(answer["error"]["data"]["reason"], "messageTooLarge");
}

#[tokio::test]
async fn a_response_that_the_peer_cannot_take_becomes_an_error_for_it() {
    let (mut client, mut host) = capped_client(1000);
    client.send(r#"{"jsonrpc":"2.0","id":5,"method":"m"}"#);
    tokio::select! { asked = host.next() => asked.unwrap(), end = client.next() => panic!("{end:?}") };
    host.send(format!(r#"{{"jsonrpc":"2.0","id":5,"result":"{}"}}"#, "x".repeat(5000)));
    let answer = tokio::select! { answer = client.next() => answer.unwrap(), end = host.next() => panic!("{end:?}") };
    let answer: serde_json::Value = serde_json::from_slice(&answer.to_bytes()).unwrap();
    assert_eq!((answer["id"].as_i64(), answer["error"]["code"].as_i64()), (Some(5), Some(-32011)));
}

#[tokio::test]
async fn an_action_that_the_peer_cannot_take_closes_its_link_once_and_is_then_left_out() {
    let config = LimitsConfig { max_frame_bytes: CAP, max_message_bytes: 1 << 20, ..LimitsConfig::default() };
    let (beside_client, beside_host) = gateways_of(Limits::prove(config, &BudgetConfig::default()).unwrap());
    let action = |len: usize| {
        let text = "x".repeat(len);
        format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"c","serverSeq":7,"text":"{text}"}}}}"#)
    };
    let huge = action(2 << 20);
    for round in 0..3 {
        let mut world = World::with(&beside_client, &beside_host, CAP);
        world.greet().await;
        world.host.send(huge.clone());
        if round == 0 {
            let (downstream, _) = tokio::join!(world.client.end(), world.host.end());
            assert_eq!(downstream.code(), 4413, "{downstream}");
        } else {
            world.host.send(action(10));
            assert_eq!(world.client_hears().await, Message::from(action(10)), "round {round}");
        }
    }
    assert_eq!(beside_host.counts().get("dropped-unsendable"), Some(&2));
}

#[tokio::test]
async fn a_slow_reader_stops_what_comes_to_it_and_nobody_else() {
    let mut slow = World::new(CAP);
    slow.greet().await;
    let mut quick = World::new(CAP);
    quick.greet().await;
    // The host has a hundred megabytes for a client that reads nothing.
    let action = |n: usize| {
        let text = "x".repeat(1_000_000);
        format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"c","serverSeq":{n},"text":"{text}"}}}}"#)
    };
    (0..100).for_each(|n| slow.host.send(action(n)));
    let stuck = tokio::time::timeout(Duration::from_millis(500), slow.host.end()).await;
    assert!(stuck.is_err(), "{stuck:?}");
    let big = request("1", 30_000_000);
    quick.host.send(big.clone());
    assert!(quick.client_hears().await == big);
    for n in 0..100 {
        assert!(slow.client_hears().await == Message::from(action(n)), "{n}");
    }
}

/// Links do not carry the tag by which a peer on Nostr says that it takes transfers.
#[tokio::test]
async fn large_requests_and_answers_pass_over_cep22_both_ways_before_any_has_had_a_token() {
    let setup = |dialect, role| Setup::new(dialect, role, limits(CAP));
    let gateway = |downstream, upstream| Arc::new(Gateway::new(downstream, upstream, BudgetConfig::default()).unwrap());
    let beside_client = gateway(setup(Dialect::Plain, Role::Server), setup(Dialect::Cep22, Role::Client));
    let beside_host = gateway(setup(Dialect::Cep22, Role::Server), setup(Dialect::Plain, Role::Client));
    let any = Capacity::of(u64::MAX);
    let ((client, downstream), (upstream, host)) = (link::pair(&any, 4), link::pair(&any, 4));
    let (left, right) = tokio::io::duplex(64 << 10);
    let config = WebSocketConfig { max_frame_bytes: CAP, cap: CAP, ..WebSocketConfig::default() };
    join(&beside_client, downstream, WebSocket::client(left, &config));
    join(&beside_host, WebSocket::server(right, &config), upstream);
    let (mut client, mut host) = (App::new(client, Role::Client), App::new(host, Role::Server));
    client.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#);
    tokio::select! { asked = host.next() => asked.unwrap(), end = client.next() => panic!("{end:?}") };
    let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "梱包".repeat(500_000));
    host.send(answer.clone());
    let heard = tokio::select! { heard = client.next() => heard.unwrap(), end = host.next() => panic!("{end:?}") };
    assert!(heard == Message::from(answer));
    // The other way round, too: a host asks its client.
    let large = "梱包".repeat(100_000);
    host.send(format!(r#"{{"jsonrpc":"2.0","id":"h","method":"sampling/createMessage","params":{{"x":"{large}"}}}}"#));
    let heard = tokio::select! { heard = client.next() => heard.unwrap(), end = host.next() => panic!("{end:?}") };
    let heard: serde_json::Value = serde_json::from_slice(&heard.to_bytes()).unwrap();
    assert!(heard["params"]["x"] == large && heard["id"] == "h");
    let answer = format!(r#"{{"jsonrpc":"2.0","id":"h","result":"{large}"}}"#);
    client.send(answer.clone());
    let heard = tokio::select! { heard = host.next() => heard.unwrap(), end = client.next() => panic!("{end:?}") };
    assert!(heard == Message::from(answer));
}

#[tokio::test]
async fn a_client_that_knows_of_segments_is_not_told_of_those_on_another_link() {
    let mut world = World::new(CAP);
    let own = r#""clientId":"me","capabilities":{"chunking":{"maxIncomingFrameBytes":70000,"maxIncomingMessageBytes":90000}}"#;
    world.client.send(INITIALIZE.replace(r#""clientId":"me""#, own));
    assert_eq!(world.host_hears().await, Message::from(INITIALIZE));
    world.host.send(WELCOME);
    assert_eq!(world.client_hears().await, Message::from(WELCOME));
}

/// Begins as many large messages as it may, and finishes none.
async fn hog(gateway: &Arc<Gateway>) -> App {
    let (mut client, downstream) = link::pair(&Capacity::of(CAP), 4);
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    join_as("a hog", gateway, downstream, upstream, std::future::pending());
    let mut host = App::new(host, Role::Server);
    let limits = r#""chunking":{"maxIncomingFrameBytes":65536,"maxIncomingMessageBytes":1000000}"#;
    let hello = INITIALIZE.replace(r#""clientId":"me""#, &format!(r#""clientId":"hog","capabilities":{{{limits}}}"#));
    client.send(frame(&hello)).await.unwrap();
    host.next().await.unwrap();
    host.send(WELCOME);
    tokio::select! { _ = client.next() => {}, end = host.next() => panic!("{end:?}") };
    // Without room it is not read any more, and stands here until the test is over.
    tokio::spawn(async move {
        let data = "ICAg".repeat(12_000);
        for group in 0..8 {
            let params = format!(r#"{{"groupId":"g{group}","index":0,"total":900,"data":"{data}"}}"#);
            let segment = format!(r#"{{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{params}}}"#);
            client.send(frame(&segment)).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    host
}

fn frame(text: &str) -> Transmit {
    Transmit::Frame { tag: Default::default(), bytes: text.to_owned().into(), meta: Default::default() }
}

#[tokio::test]
async fn one_who_finishes_nothing_cannot_stop_the_large_message_of_another() {
    let (beside_client, beside_host) = gateways(CAP);
    let mut hogs = Vec::new();
    for _ in 0..4 {
        hogs.push(hog(&beside_host).await);
    }
    let mut world = World::with(&beside_client, &beside_host, CAP);
    world.greet().await;
    let large = request("7", 30_000_000);
    world.client.send(large.clone());
    assert!(world.host_hears().await == large);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_and_an_answer_pass_an_upload_on_its_way_between_gateways_and_a_prompt_does_not() {
    let (beside_client, beside_host) = gateways(CAP);
    let mut world = World::slow(&beside_client, &beside_host, CAP, 1_000_000);
    world.greet().await;
    world.host.send(r#"{"jsonrpc":"2.0","id":"q","method":"resourceRead","params":{}}"#);
    world.client_hears().await;
    let (upload, began) = (request("7", 15_000_000), tokio::time::Instant::now());
    let dispatch = |channel: &str, kind: &str| {
        let action = format!(r#"{{"channel":"{channel}","clientSeq":1,"action":{{"type":"{kind}"}}}}"#);
        Message::from(format!(r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{action}}}"#))
    };
    let (prompt, cancel) = (dispatch("ahp-chat:/2", "chat/turnStarted"), dispatch("ahp-chat:/1", "chat/turnCancelled"));
    let answer = Message::from(r#"{"jsonrpc":"2.0","id":"q","result":{}}"#);
    for message in [&upload, &prompt, &cancel, &answer] {
        world.client.send(message.clone());
    }
    assert_eq!([world.host_hears().await, world.host_hears().await], [cancel, answer]);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!([world.host_hears().await, world.host_hears().await] == [upload, prompt]);
    assert!(began.elapsed() > Duration::from_secs(15), "{:?}", began.elapsed());
}
