//! The endpoint on the real state and the real log: what a client has is what the host has, before and after a restart.

use std::path::Path;
use std::sync::Arc;

use breakbulk_host::endpoint::{Endpoint, EndpointConfig};
use breakbulk_host::log::{Options, SqliteLog};
use breakbulk_host::state::{State, StateConfig};
use breakbulk_proto::Budget;
use serde_json::json;

use super::client::{Mirror, Raw};
use super::world::{A, B, CHAT, World};

/// A host on the log in this directory.
async fn open(dir: &Path) -> (World, Arc<SqliteLog>, Arc<State>) {
    let log = Arc::new(SqliteLog::open(dir, Options::default()).await.unwrap());
    let state = State::open(log.clone(), StateConfig::default()).await.unwrap();
    let mut world = World::over(log.clone(), EndpointConfig::default());
    let (views, methods) = (state.clone(), world.desk.clone());
    world.endpoint = Endpoint::new(log.clone(), views, methods, EndpointConfig::default(), Budget::default());
    (world, log, state)
}

/// Applies what comes until this seq is there.
async fn follow(client: &mut Raw, mirror: &mut Mirror, channel: &str, last: u64) {
    while mirror.applied(channel) < last {
        mirror.action(&client.next().await.expect("an action before the end")["params"]);
    }
}

#[tokio::test]
async fn a_client_resumes_on_a_host_that_was_restarted_and_has_all_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let mut mirror = Mirror::default();
    {
        let (world, log, state) = open(dir.path()).await;
        world.begin().await;
        world.data(A, "before").await;
        let mut client = Raw::new(world.link(65_536, 4).0);
        mirror.greeted(&client.initialize("me", &[A, B, CHAT]).await);
        let last = world.data(A, &"large ".repeat(60_000)).await;
        follow(&mut client, &mut mirror, A, last).await;
        state.close().await.unwrap();
        log.close().await;
    }
    let (world, ..) = open(dir.path()).await;
    world.data(B, "while it was away").await;
    let last = world.data(A, "and this").await;
    let mut client = Raw::new(world.link(65_536, 4).0);
    let result = client.reconnect("me", mirror.seen.try_into().unwrap(), &[A, B, CHAT]).await;
    assert_eq!((&result["type"], &result["missing"]), (&json!("replay"), &json!([])));
    mirror.greeted(&result);
    follow(&mut client, &mut mirror, A, last).await;
    for channel in [A, B, CHAT] {
        assert_eq!(mirror.state(channel), world.state(channel).await, "{channel}");
    }
}

#[tokio::test]
async fn a_channel_that_is_not_there_is_answered_as_missing_and_a_window_has_a_cursor() {
    let dir = tempfile::tempdir().unwrap();
    let (world, ..) = open(dir.path()).await;
    world.begin().await;
    let mut client = Raw::new(world.link(65_536, 4).0);
    client.initialize("me", &[]).await;
    let error = client.call("subscribe", json!({"channel": "ahp-terminal:/none"})).await.unwrap_err();
    assert_eq!(error["code"], -32008, "{error}");
    let result = client.call("subscribe", json!({"channel": CHAT, "view": {"turns": 2}})).await.unwrap();
    let chat = &result["snapshot"]["state"];
    assert_eq!(chat["turns"].as_array().map(Vec::len), Some(2), "{chat}");
    assert!(chat["turnsNextCursor"].is_string(), "{chat}");
}
