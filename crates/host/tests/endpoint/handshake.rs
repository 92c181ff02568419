//! Coming in: versions, who may say what before, and which of two links wins.

use std::time::Duration;

use breakbulk_host::endpoint::{EndReason, EndpointConfig};
use breakbulk_proto::{CloseReason, Violation};
use serde_json::json;

use super::client::{Raw, initialize};
use super::world::{A, B, CHAT, World, soon};

#[tokio::test]
async fn initialize_answers_with_a_version_a_seq_snapshots_and_what_we_are() {
    let world = World::new().await;
    let seq = world.data(A, "one").await;
    let mut client = Raw::new(world.link(65_536, 4).0);
    let result = client.initialize("me", &[A, "ahp-terminal:/none", CHAT, A]).await;
    assert_eq!((&result["protocolVersion"], &result["serverSeq"]), (&json!("1.0.0"), &json!(seq)));
    assert_eq!(result["serverInfo"]["name"], "breakbulk");
    let snapshots = result["snapshots"].as_array().unwrap();
    assert_eq!(snapshots.iter().map(|snapshot| snapshot["resource"].as_str().unwrap()).collect::<Vec<_>>(), [A, CHAT]);
    assert_eq!(snapshots[0]["state"], world.state(A).await);
    let seq = world.data(A, "two").await;
    assert_eq!(client.action().await.0, seq);
    assert!(world.endpoint.clients().get(Some(&"someone".into()), "me").is_some());
    assert!(world.endpoint.clients().get(None, "me").is_none());
}

#[tokio::test]
async fn the_highest_offered_version_is_chosen_and_none_in_common_ends_the_connection() {
    let world = World::new().await;
    let mut client = Raw::new(world.link(65_536, 4).0);
    let mut params = initialize("me", &[]);
    params["protocolVersions"] = json!(["0.9.3", "1.7.0", "1.0.0", "2.0.0"]);
    assert_eq!(client.call("initialize", params.clone()).await.unwrap()["protocolVersion"], "1.7.0");

    let (link, ended) = world.link(65_536, 4);
    let mut client = Raw::new(link);
    params["protocolVersions"] = json!(["one"]);
    assert_eq!(client.call("initialize", params.clone()).await.unwrap_err()["code"], -32602);
    params["protocolVersions"] = json!(["0.2.0"]);
    let error = client.call("initialize", params).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["supportedVersions"][0]), (&json!(-32005), &json!("^1.0.0")));
    assert_eq!(client.code().await, 4415);
    assert_eq!(soon(ended).await.unwrap(), EndReason::Version);
    assert_eq!(world.endpoint.counts().get("endpoint-version"), 1);
}

#[tokio::test]
async fn before_the_handshake_only_a_ping_is_answered_and_after_it_there_is_no_second() {
    let world = World::new().await;
    let mut client = Raw::new(world.link(65_536, 4).0);
    assert_eq!(client.call("ping", json!({"channel": "ahp-root://"})).await.unwrap(), json!(null));
    assert_eq!(client.call("echo", json!({})).await.unwrap_err()["code"], -32600);
    assert_eq!(client.call("subscribe", json!({"channel": A})).await.unwrap_err()["code"], -32600);
    client.notify(
        "dispatchAction",
        json!({"channel": A, "clientSeq": 1, "action": {"type": "terminal/data", "data": "x"}}),
    );
    for bad in [json!({}), json!([]), initialize("", &[]), initialize(&"x".repeat(257), &[])] {
        assert_eq!(client.call("initialize", bad).await.unwrap_err()["code"], -32602);
    }
    client.initialize("me", &[]).await;
    assert_eq!(client.call("initialize", initialize("me", &[])).await.unwrap_err()["code"], -32600);
    assert!(world.desk.done.lock().unwrap().is_empty());
    assert_eq!(world.endpoint.counts().get("endpoint-notifications-dropped"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stranger_who_says_nothing_is_closed_in_seconds() {
    let world = World::new().await;
    let (link, ended) = world.link(65_536, 4);
    assert_eq!(Raw::new(link).code().await, 4412);
    assert_eq!(soon(ended).await.unwrap(), EndReason::NoHandshake(Duration::from_secs(10)));
    // A ping is no handshake.
    let (link, ended) = world.link(65_536, 4);
    let mut client = Raw::new(link);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(3)).await;
        client.call("ping", json!({})).await.unwrap();
    }
    assert_eq!(client.code().await, 4412);
    assert!(matches!(soon(ended).await.unwrap(), EndReason::NoHandshake(_)));
}

#[tokio::test]
async fn a_stranger_may_send_a_few_kilobytes_and_no_more() {
    let world = World::new().await;
    let (link, ended) = world.link(1 << 20, 4);
    let mut client = Raw::plain(link);
    client.ask("initialize", json!({"x": "x".repeat(70_000)}));
    assert_eq!(client.code().await, 1009);
    let end = soon(ended).await.unwrap();
    assert!(matches!(end, EndReason::Link(CloseReason::Violation(Violation::FrameTooLarge(_)))), "{end:?}");
    // Many small ones are no way around it.
    let (link, ended) = world.link(1 << 20, 4);
    let mut client = Raw::plain(link);
    for _ in 0..2000 {
        client.ask("ping", json!({"x": "x".repeat(50)}));
    }
    client.code().await;
    assert_eq!(soon(ended).await.unwrap().code(), 1009);
}

#[tokio::test]
async fn of_two_links_of_one_client_the_newest_wins() {
    let world = World::new().await;
    let (link, ended) = world.link(65_536, 4);
    let mut old = Raw::new(link);
    old.initialize("me", &[A]).await;
    let mut other = Raw::new(world.link_of(65_536, 4, Some("somebody else")).0);
    other.initialize("me", &[A]).await;
    let mut new = Raw::new(world.link(65_536, 4).0);
    new.reconnect("me", 3, &[A]).await;
    assert_eq!(soon(ended).await.unwrap(), EndReason::Fenced);
    assert_eq!(old.code().await, 4409);
    let seq = world.data(A, "x").await;
    assert_eq!((new.action().await.0, other.action().await.0), (seq, seq));
    assert_eq!((world.endpoint.clients().len(), world.endpoint.counts().get("endpoint-fenced")), (2, 1));
}

#[tokio::test]
async fn a_client_that_leaves_is_gone_from_the_registry_and_a_stop_closes_everybody() {
    let world = World::new().await;
    let (link, ended) = world.link(65_536, 4);
    let mut client = Raw::new(link);
    client.initialize("me", &[B]).await;
    assert_eq!(world.endpoint.clients().len(), 1);
    drop(client);
    assert_eq!(soon(ended).await.unwrap(), EndReason::Link(CloseReason::Peer { code: 1006 }));
    assert!(world.endpoint.clients().is_empty());
    let (link, ended) = world.link(65_536, 4);
    let mut client = Raw::new(link);
    client.initialize("me", &[]).await;
    world.endpoint.stop();
    assert_eq!((soon(ended).await.unwrap(), client.code().await), (EndReason::Stopping, 1012));
    assert_eq!(Raw::new(world.link(65_536, 4).0).code().await, 1012);
}

#[tokio::test]
async fn initial_subscriptions_that_are_more_than_the_client_takes_are_cut_and_then_left_out() {
    let config = EndpointConfig { window_turns: 1, ..EndpointConfig::default() };
    let world = World::with(config).await;
    world.data(A, &"x".repeat(30_000)).await;
    let take = |limit: u64| {
        let world = world.clone();
        async move {
            let mut config = breakbulk_proto::LimitsConfig::default();
            (config.max_frame_bytes, config.max_message_bytes) = (4096, limit);
            let limits = breakbulk_proto::Limits::prove(config, &breakbulk_proto::BudgetConfig::default()).unwrap();
            let link = world.link(4096, 4).0;
            let mut client = Raw::with(link, &Default::default(), Default::default(), limits);
            let result = client.initialize("me", &[A, B, CHAT]).await;
            let snapshots = result["snapshots"].as_array().unwrap().clone();
            let turns = |snapshot: &serde_json::Value| snapshot["state"]["turns"].as_array().map(|turns| turns.len());
            snapshots
                .iter()
                .map(|snapshot| (snapshot["resource"].as_str().unwrap().to_owned(), turns(snapshot)))
                .collect::<Vec<_>>()
        }
    };
    let (a, b, chat) = (A.to_owned(), B.to_owned(), CHAT.to_owned());
    assert_eq!(take(100_000).await, [(a.clone(), None), (b.clone(), None), (chat.clone(), Some(4))]);
    assert_eq!(take(60_000).await, [(a, None), (b.clone(), None), (chat.clone(), Some(1))]);
    assert_eq!(take(20_000).await, [(b, None), (chat, Some(1))]);
}
