//! The endpoint on the real state and the real log: what a client has is what the host has, before and after a restart.

use std::path::Path;
use std::sync::Arc;

use breakbulk_host::endpoint::EndpointConfig;
use breakbulk_host::log::Log;
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::test_support::new_endpoint;
use breakbulk_host::test_support::state::{State, StateConfig};
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
    world.endpoint = new_endpoint(log.clone(), views, methods, EndpointConfig::default(), Budget::default());
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

/// Copies the log of a directory as a backup does, with all that was acknowledged and nothing beside the database.
fn back_up(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in ["log.db", "log.db-wal"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[tokio::test]
async fn a_client_that_saw_more_than_a_restored_backup_has_gets_a_snapshot_when_the_host_has_passed_its_seq() {
    // Where the backup goes: over the newer files, or into an empty directory.
    for is_empty in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut data, backup) = (dir.path().join("data"), dir.path().join("backup"));
        let mut mirror = Mirror::default();
        {
            let (world, log, state) = open(&data).await;
            world.begin().await;
            world.data(A, "in the backup").await;
            state.close().await.unwrap();
            log.close().await;
        }
        back_up(&data, &backup);
        {
            let (world, log, state) = open(&data).await;
            let mut client = Raw::new(world.link(65_536, 4).0);
            mirror.greeted(&client.initialize("me", &[A, B]).await);
            world.data(B, "lost, too").await;
            let last = world.data(A, "lost with the restore").await;
            follow(&mut client, &mut mirror, A, last).await;
            state.close().await.unwrap();
            log.close().await;
        }
        if is_empty {
            data = dir.path().join("another");
        }
        back_up(&backup, &data);
        let (world, log, _state) = open(&data).await;
        // The restored host goes on and on, past all that the client has seen.
        for n in 0..20 {
            world.data(A, &format!("after the restore {n}")).await;
        }
        assert!(log.bounds().await.unwrap().last > mirror.seen);
        let mut client = Raw::new(world.link(65_536, 4).0);
        let result = client.reconnect("me", mirror.seen.try_into().unwrap(), &[A, B]).await;
        assert_eq!(result["type"], "snapshot", "into an empty directory: {is_empty}");
        mirror.greeted(&result);
        let last = world.data(A, "live").await;
        follow(&mut client, &mut mirror, A, last).await;
        for channel in [A, B] {
            assert_eq!(mirror.state(channel), world.state(channel).await, "{channel}");
        }
    }
}

#[tokio::test]
async fn a_client_that_is_a_start_of_the_host_behind_is_not_taken_for_one_that_is_too_far_behind() {
    let dir = tempfile::tempdir().unwrap();
    let seen = {
        let (world, log, state) = open(dir.path()).await;
        world.begin().await;
        let seen = world.data(A, "before").await;
        state.close().await.unwrap();
        log.close().await;
        seen
    };
    let (world, log, _state) = open(dir.path()).await;
    let last = world.data(A, "after").await;
    assert!(last - seen > 1_000);
    assert_eq!((log.lag(seen), log.lag(last), log.lag(seen + 1)), (Some(1), Some(0), None));
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
