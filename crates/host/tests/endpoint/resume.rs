//! Coming back: replay, snapshots, snapshots in part, or nothing; and nothing lost or twice wherever the link breaks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use breakbulk_host::endpoint::{EndReason, EndpointConfig};
use breakbulk_host::log::{Batch, Save};
use breakbulk_proto::ahp::{Delivery, Negotiated};
use breakbulk_proto::{BudgetConfig, Limits, LimitsConfig};
use serde_json::{Value, json};

use super::client::{Mirror, Raw};
use super::world::{A, B, CHAT, World, soon};

fn limits(message: u64) -> Limits {
    let config = LimitsConfig { max_frame_bytes: 4096, max_message_bytes: message, ..LimitsConfig::default() };
    Limits::prove(config, &BudgetConfig::default()).unwrap()
}

/// What a client of this limit gets that has seen `seen`.
async fn resume(world: &World, limit: u64, seen: i64, channels: &[&str]) -> Value {
    let mut client = Raw::with(world.link(4096, 4).0, &Negotiated::default(), Delivery::Settled, limits(limit));
    client.reconnect("me", seen, channels).await
}

#[tokio::test]
async fn what_was_missed_is_replayed_and_goes_on_live() {
    let world = World::new().await;
    let first = world.data(A, "one").await;
    let seqs = [world.data(A, "two").await, world.data(B, "not followed").await, world.data(A, "three").await];
    let mut client = Raw::new(world.link(65_536, 4).0);
    let result = client.reconnect("me", first.try_into().unwrap(), &[A, "ahp-terminal:/gone"]).await;
    assert_eq!((&result["type"], &result["missing"]), (&json!("replay"), &json!(["ahp-terminal:/gone"])));
    let replayed: Vec<_> = result["actions"].as_array().unwrap().iter().map(|action| &action["serverSeq"]).collect();
    assert_eq!(replayed, [&json!(seqs[0]), &json!(seqs[2])]);
    let live = world.data(A, "four").await;
    assert_eq!(client.action().await.0, live);
}

#[tokio::test]
async fn a_replay_is_at_most_half_of_what_the_client_takes_and_a_count() {
    let world = World::new().await;
    let before: i64 = world.data(A, "one").await.try_into().unwrap();
    world.data(A, &"x".repeat(30_000)).await;
    assert_eq!(resume(&world, 80_000, before, &[A]).await["type"], "replay");
    assert_eq!(resume(&world, 60_000, before, &[A]).await["type"], "snapshot");
    let world = World::with(EndpointConfig { max_replay: 3, ..EndpointConfig::default() }).await;
    let before: i64 = world.data(A, "one").await.try_into().unwrap();
    for (n, kind) in ["replay", "replay", "replay", "snapshot"].into_iter().enumerate() {
        world.data(A, &n.to_string()).await;
        assert_eq!(resume(&world, 80_000, before, &[A]).await["type"], kind, "{n}");
    }
    assert_eq!(
        (world.endpoint.counts().get("endpoint-replay"), world.endpoint.counts().get("endpoint-snapshots")),
        (3, 1)
    );
}

#[tokio::test]
async fn a_seq_from_the_future_or_before_everything_gets_a_snapshot() {
    let world = World::new().await;
    let last: i64 = world.data(A, "one").await.try_into().unwrap();
    assert_eq!(resume(&world, 80_000, last, &[A]).await, json!({"type": "replay", "actions": [], "missing": []}));
    for seen in [last + 1, i64::MAX, -1] {
        let result = resume(&world, 80_000, seen, &[A]).await;
        assert_eq!((&result["type"], &result["snapshots"][0]["fromSeq"]), (&json!("snapshot"), &json!(last)), "{seen}");
    }
}

#[tokio::test]
async fn what_was_trimmed_is_replaced_by_a_snapshot() {
    let world = World::new().await;
    let first: i64 = world.data(A, "one").await.try_into().unwrap();
    let second = world.data(A, "two").await;
    world.log.save(Save::new(A).snapshot(second, "test", "{}")).await.unwrap();
    assert_eq!(resume(&world, 80_000, first, &[A]).await["type"], "replay");
    world.log.trim(A, second + 1).await.unwrap();
    assert_eq!(resume(&world, 80_000, first, &[A]).await["type"], "snapshot");
}

#[tokio::test]
async fn snapshots_that_are_too_much_are_cut_to_their_last_turns_and_then_named_as_missing() {
    let world = World::with(EndpointConfig { window_turns: 1, ..EndpointConfig::default() }).await;
    world.data(A, &"x".repeat(30_000)).await;
    let shown = |result: &Value| -> Vec<_> {
        let turns = |snapshot: &Value| snapshot["state"]["turns"].as_array().map(|turns| turns.len());
        result["snapshots"].as_array().unwrap().iter().map(turns).collect()
    };
    let whole = resume(&world, 100_000, -1, &[CHAT, A]).await;
    assert_eq!((shown(&whole), &whole["missing"]), (vec![Some(4), None], &json!([])));
    let cut = resume(&world, 60_000, -1, &[CHAT, A]).await;
    assert_eq!((shown(&cut), &cut["missing"]), (vec![Some(1), None], &json!([])));
    assert!(cut["snapshots"][0]["state"]["turnsNextCursor"].is_string());
    let left_out = resume(&world, 20_000, -1, &[CHAT, A, "ahp-chat:/none"]).await;
    assert_eq!((shown(&left_out), &left_out["missing"]), (vec![Some(1)], &json!(["ahp-chat:/none", A])));
    assert_eq!(world.endpoint.counts().get("endpoint-left-out"), 1);
}

#[tokio::test]
async fn notifications_of_the_catalogue_follow_a_replay_in_their_order() {
    let world = World::new().await;
    const ROOT: &str = "ahp-terminal:/root";
    let body = |n: u32| json!({"method": "root/sessionRemoved", "params": {"channel": ROOT, "session": n}}).to_string();
    let initial = super::world::initial(ROOT, "terminal", &super::world::terminal());
    let seqs = world.log.append(Batch::new().open(ROOT, None).entry(ROOT, initial).entry(ROOT, body(1))).await.unwrap();
    world.data(A, "x").await;
    world.log.append(Batch::new().entry(ROOT, body(2))).await.unwrap();
    let mut client = Raw::new(world.link(65_536, 4).0);
    let result = client.reconnect("me", seqs[0].try_into().unwrap(), &[ROOT, A]).await;
    assert_eq!(result["actions"].as_array().unwrap().len(), 1);
    world.log.append(Batch::new().entry(ROOT, body(3))).await.unwrap();
    for n in 1..=3 {
        let notice = client.next().await.unwrap();
        assert_eq!((&notice["method"], &notice["params"]["session"]), (&json!("root/sessionRemoved"), &json!(n)));
    }
}

/// Breaks the link after `frames` frames of the host's answer and stream; comes back until nothing is missing. Returns
/// whether the link broke before all was there.
async fn survives(frames: usize, delivery: Delivery) -> bool {
    let world = World::new().await;
    let memory = Negotiated::default();
    let mut mirror = Mirror::default();
    let connect = || Raw::with(world.link(4096, 2).0, &memory, delivery, limits(1 << 20));
    let mut client = connect();
    mirror.greeted(&client.initialize("me", &[A, B]).await);
    client.frames.store(frames, Ordering::Relaxed);
    world.data(A, "before").await;
    world.data(A, &"large ".repeat(6000)).await;
    world.data(B, "passes").await;
    let last = world.data(A, "after").await;
    let mut broke = false;
    while mirror.applied(A) < last {
        match client.next().await {
            Some(message) => mirror.action(&message["params"]),
            None => {
                assert!(!std::mem::replace(&mut broke, true), "it breaks once");
                let seen = match delivery {
                    Delivery::Settled => client.cursor().unwrap_or(0).max(mirror.base),
                    Delivery::StartOrder => mirror.seen,
                };
                client = connect();
                mirror.greeted(&client.reconnect("me", seen.try_into().unwrap(), &[A, B]).await);
            }
        }
    }
    for channel in [A, B] {
        assert_eq!(mirror.state(channel), world.state(channel).await, "{frames} {delivery:?}");
    }
    broke
}

#[tokio::test]
async fn a_link_that_breaks_at_any_segment_of_a_large_action_loses_nothing_and_repeats_nothing() {
    for delivery in [Delivery::StartOrder, Delivery::Settled] {
        let mut cuts = 0;
        while survives(cuts, delivery).await {
            cuts += 1;
        }
        assert!(cuts > 12, "{cuts} frames for 36,000 bytes in frames of 4,096");
    }
}

#[tokio::test]
async fn a_channel_that_begins_anew_is_shown_and_not_replayed() {
    let world = World::new().await;
    let first: i64 = world.data(A, "old").await.try_into().unwrap();
    let (link, ended) = world.link(65_536, 4);
    let mut client = Raw::new(link);
    client.initialize("me", &[A]).await;
    let anew = super::world::initial(A, "terminal", &super::world::terminal());
    world.log.append(Batch::new().entry(A, anew)).await.unwrap();
    assert_eq!(client.code().await, 1012);
    assert_eq!(ended.await.unwrap(), EndReason::Reset);
    let result = resume(&world, 80_000, first, &[A]).await;
    assert_eq!((&result["type"], &result["snapshots"][0]["state"]["content"]), (&json!("snapshot"), &json!([])));
}

#[tokio::test]
async fn what_is_under_way_on_an_older_link_is_done_before_a_newer_one_is_told_what_was_missed() {
    for is_gone in [false, true] {
        let world = World::new().await;
        let mut older = Raw::new(world.link(65_536, 4).0);
        let seen = older.initialize("me", &[A]).await["serverSeq"].as_i64().unwrap();
        let action = json!({"type": "terminal/data", "data": "slow"});
        older.notify("dispatchAction", json!({"channel": A, "clientSeq": 7, "action": action}));
        while world.desk.begun.load(Ordering::Relaxed) == 0 {
            older.call("ping", json!({"channel": "ahp-root://"})).await.unwrap();
        }
        let kept = (!is_gone).then_some(older);
        let mut newer = Raw::new(world.link(65_536, 4).0);
        let resumed = tokio::spawn(async move { newer.reconnect("me", seen, &[A]).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.desk.gate.add_permits(1);
        let resumed = soon(resumed).await.unwrap();
        assert_eq!(resumed["actions"][0]["origin"]["clientSeq"], 7, "gone: {is_gone}");
        drop(kept);
    }
}
