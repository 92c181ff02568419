//! What connections hold is in a budget: exactly, until the last byte is gone.

use std::sync::atomic::Ordering;
use std::time::Duration;

use breakbulk_host::endpoint::{EndReason, EndpointConfig, MemoryConfig};
use serde_json::json;
use tokio::task::JoinSet;

use super::client::Raw;
use super::world::{A, CHAT, World, soon};

/// What each connection may hold beside the shares.
const FLOOR: u64 = 64 << 10;

/// A host that may hold so much on its way out.
async fn world(outgoing_bytes: u64) -> World {
    let memory = MemoryConfig { outgoing_bytes, principal_bytes: outgoing_bytes, ..MemoryConfig::default() };
    World::with(EndpointConfig { memory, ..EndpointConfig::default() }).await
}

/// Waits until something is so.
async fn until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn a_long_request_is_charged_until_its_work_is_done() {
    let world = World::new().await;
    let budget = world.endpoint.budget().clone();
    let mut client = Raw::new(world.link(65_536, 1).0);
    client.initialize("me", &[]).await;
    let id = client.ask("wait", json!({"text": "x".repeat(1_000_000)}));
    let begun = async {
        while world.desk.begun.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = soon(begun) => {}
        answer = client.answer(id) => panic!("{answer}"),
    }
    assert!((1_000_000..1_100_000).contains(&budget.held()), "{}", budget.held());
    world.desk.gate.add_permits(1);
    assert_eq!(client.answer(id).await["result"], json!({}));
    until("nothing is held", || budget.held() == 0).await;
}

#[tokio::test]
async fn a_long_action_that_is_refused_is_charged_until_its_sender_has_it_back() {
    let world = World::new().await;
    let budget = world.endpoint.budget().clone();
    let mut client = Raw::new(world.link(65_536, 1).0);
    client.initialize("me", &[A]).await;
    let action = json!({"type": "terminal/titleChanged", "title": "x".repeat(1_000_000)});
    client.ask("dispatchAction", json!({"channel": A, "clientSeq": 1, "action": action}));
    let mut held = 0;
    let rejected = async {
        loop {
            let message = client.next().await.unwrap();
            if message["method"] == "action" {
                return message;
            }
        }
    };
    tokio::pin!(rejected);
    let message = loop {
        tokio::select! {
            message = &mut rejected => break message,
            () = tokio::time::sleep(Duration::from_millis(1)) => held = budget.held().max(held),
        }
    };
    assert!(message["params"]["rejectionReason"].is_string());
    assert!(held >= 1_000_000, "{held}");
    until("nothing is held", || budget.held() == 0).await;
}

#[tokio::test]
async fn answers_are_charged_until_the_link_has_them_and_wait_for_each_other() {
    let world = world(4_000_000).await;
    let mut clients = Vec::new();
    for n in 0..8 {
        let mut client = Raw::new(world.link(65_536, 1).0);
        client.initialize(&format!("c{n}"), &[]).await;
        let id = client.ask("resourceRead", json!({}));
        // It asks, and does not read.
        client.send_only().await;
        clients.push((client, id));
    }
    until("one has its answer", || world.endpoint.outgoing_bytes() >= 3_000_000).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(world.endpoint.outgoing_bytes() <= 4_000_000 + 8 * FLOOR, "{}", world.endpoint.outgoing_bytes());
    // Beside it, small answers pass.
    let mut other = Raw::new(world.link(65_536, 1).0);
    other.initialize("other", &[A]).await;
    assert_eq!(other.call("echo", json!({"small": "x".repeat(10_000)})).await.unwrap()["small"], "x".repeat(10_000));
    let seq = world.data(A, "small").await;
    assert_eq!(other.action().await.0, seq);
    // And all come, one after the other.
    for (client, id) in &mut clients {
        assert_eq!(client.answer(*id).await["result"].as_str().map(str::len), Some(3_000_000));
    }
    until("nothing is held", || world.endpoint.outgoing_bytes() == 0).await;
}

#[tokio::test]
async fn a_snapshot_is_made_and_charged_once_for_all_who_ask_for_it() {
    let world = world(1_000_000).await;
    world.data(A, &"x".repeat(500_000)).await;
    let mut clients = Vec::new();
    for n in 0..20 {
        let mut client = Raw::new(world.link(65_536, 1).0);
        client.initialize(&format!("c{n}"), &[]).await;
        // Something happens elsewhere meanwhile.
        world.data(super::world::B, "small").await;
        let id = client.ask("subscribe", json!({"channel": A}));
        client.send_only().await;
        clients.push((client, id));
    }
    let bytes = world.endpoint.outgoing_bytes();
    assert!((500_000..600_000 + 20 * FLOOR).contains(&bytes), "{bytes}");
    assert_eq!(world.views.taken.load(Ordering::Relaxed), 1);
    let seq = world.data(A, "more").await;
    for (client, id) in &mut clients {
        let answer = client.answer(*id).await;
        let content = answer["result"]["snapshot"]["state"]["content"].to_string();
        assert!(content.contains(&"x".repeat(500_000)));
        // Each follows from its snapshot on.
        assert_eq!(client.action().await.0, seq);
    }
    until("nothing is held", || world.endpoint.outgoing_bytes() == 0).await;
}

#[tokio::test]
async fn a_client_with_more_than_all_memory_gets_it_when_nobody_else_holds_any() {
    let world = world(100_000).await;
    for channel in [A, super::world::B] {
        world.data(channel, &"x".repeat(300_000)).await;
    }
    let mut client = Raw::new(world.link(65_536, 1).0);
    let result = client.initialize("me", &[A, super::world::B, CHAT]).await;
    assert_eq!(result["snapshots"].as_array().unwrap().len(), 3);
    until("nothing is held", || world.endpoint.outgoing_bytes() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn who_takes_nothing_is_closed_while_others_wait_for_the_memory() {
    let world = world(4_000_000).await;
    let (link, ended) = world.link(65_536, 1);
    let mut stuck = Raw::new(link);
    stuck.initialize("stuck", &[]).await;
    stuck.ask("resourceRead", json!({}));
    stuck.send_only().await;
    until("it has its answer", || world.endpoint.outgoing_bytes() >= 3_000_000).await;
    let start = tokio::time::Instant::now();
    let mut other = Raw::new(world.link(65_536, 1).0);
    other.initialize("other", &[]).await;
    assert_eq!(other.call("resourceRead", json!({})).await.unwrap().as_str().map(str::len), Some(3_000_000));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let end = soon(ended).await.unwrap();
    assert!(matches!(end, EndReason::Stalled { bytes: 3_000_000.., .. }), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_memory_in_vain_is_told_so_by_name() {
    let memory = MemoryConfig {
        outgoing_bytes: 4_000_000,
        wait: Duration::from_secs(2),
        patience: Duration::from_secs(10),
        ..MemoryConfig::default()
    };
    let world = World::with(EndpointConfig { memory, ..EndpointConfig::default() }).await;
    world.data(A, &"x".repeat(3_000_000)).await;
    let mut stuck = Raw::new(world.link(65_536, 1).0);
    stuck.initialize("stuck", &[]).await;
    stuck.ask("resourceRead", json!({}));
    stuck.send_only().await;
    until("it has its answer", || world.endpoint.outgoing_bytes() >= 3_000_000).await;
    let mut other = Raw::new(world.link(65_536, 1).0);
    other.initialize("other", &[]).await;
    for (method, params) in [("resourceRead", json!({})), ("subscribe", json!({"channel": A}))] {
        let error = other.call(method, params).await.unwrap_err();
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32000), &json!("noMemory")), "{error}");
    }
    assert_eq!(other.call("echo", json!({})).await.unwrap(), json!({}), "and the connection lives");
    // A handshake that finds none ends with 1013.
    let (link, ended) = world.link(65_536, 1);
    let mut late = Raw::new(link);
    late.ask(
        "initialize",
        json!({"channel": "ahp-root://", "clientId": "late", "protocolVersions": ["1.0.0"],
        "initialSubscriptions": [A]}),
    );
    assert_eq!(late.code().await, 1013);
    let end = soon(ended).await.unwrap();
    assert!(matches!(&end, EndReason::NoMemory(no) if no.bytes >= 3_000_000), "{end:?}");
}

#[tokio::test]
async fn a_long_action_waits_for_memory_and_nothing_behind_it_is_lost() {
    let world = world(4_000_000).await;
    let mut stuck = Raw::new(world.link(65_536, 1).0);
    stuck.initialize("stuck", &[]).await;
    let id = stuck.ask("resourceRead", json!({}));
    stuck.send_only().await;
    until("it has its answer", || world.endpoint.outgoing_bytes() >= 3_000_000).await;
    let mut others = Vec::new();
    for n in 0..3 {
        let mut other = Raw::new(world.link(65_536, 1).0);
        other.initialize(&format!("c{n}"), &[A]).await;
        others.push(other);
    }
    let mut seqs = vec![world.data(A, "before").await];
    seqs.push(world.data(A, &"x".repeat(1_000_000)).await);
    seqs.push(world.data(A, "between").await);
    seqs.push(world.data(A, &"y".repeat(1_000_000)).await);
    seqs.push(world.data(A, "after").await);
    for other in &mut others {
        assert_eq!(other.action().await.0, seqs[0]);
    }
    assert!(world.endpoint.outgoing_bytes() <= 4_000_000 + 4 * FLOOR, "{}", world.endpoint.outgoing_bytes());
    // The memory comes free, and all get all of it in order.
    assert_eq!(stuck.answer(id).await["result"].as_str().map(str::len), Some(3_000_000));
    let mut reading = JoinSet::new();
    for mut other in others {
        let seqs = seqs.clone();
        reading.spawn(async move {
            for seq in &seqs[1..] {
                assert_eq!(other.action().await.0, *seq);
            }
            other
        });
    }
    let others = reading.join_all().await;
    assert_eq!(others.len(), 3);
    until("nothing is held", || world.endpoint.outgoing_bytes() == 0).await;
}
