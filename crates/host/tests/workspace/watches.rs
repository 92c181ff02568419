//! Watches: changes arrive while somebody follows, and a watch ends when nobody does.

use std::time::Duration;

use serde_json::{Value, json};

use super::test_host::{Client, ROOT, TestHost, soon};

const CHANGED: &str = "resourceWatch/changed";

/// Longer than changes are gathered.
const A_WHILE: Duration = Duration::from_millis(1500);

async fn watch(host: &TestHost, client: &mut Client) -> String {
    let params = json!({"channel": ROOT, "uri": host.uri(""), "recursive": true});
    let result = client.call("createResourceWatch", params).await.unwrap();
    result["channel"].as_str().unwrap().to_owned()
}

/// The URIs of the next changes.
async fn changed(client: &mut Client, channel: &str) -> Vec<Value> {
    let envelope = client.action(CHANGED).await;
    assert_eq!(envelope["channel"], channel);
    envelope["action"]["changes"]["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn changes_arrive_until_the_last_follower_unsubscribes() {
    let host = TestHost::with(|config| config.files.max_watches = 1).await;
    let (mut one, mut two) = (host.client("1").await, host.client("2").await);
    let channel = watch(&host, &mut one).await;
    let state = one.subscribe(&channel).await;
    assert_eq!((&state["root"], &state["recursive"]), (&json!(host.uri("")), &json!(true)));
    two.subscribe(&channel).await;
    host.write("a", "");
    assert_eq!(changed(&mut one, &channel).await, [json!({"uri": host.uri("a"), "type": "added"})]);
    changed(&mut two, &channel).await;
    one.unsubscribe(&channel).await;
    host.write("b", "");
    assert_eq!(changed(&mut two, &channel).await, [json!({"uri": host.uri("b"), "type": "added"})]);
    let params = json!({"channel": ROOT, "uri": host.uri("")});
    assert_eq!(two.fails("createResourceWatch", params).await, -32602, "there may be one, and there is");
    two.unsubscribe(&channel).await;
    // It is given back at once; a little later, since it ends on its own.
    soon(async {
        while two.call("createResourceWatch", json!({"channel": ROOT, "uri": host.uri("")})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    host.write("c", "");
    assert!(one.stays_silent(CHANGED, A_WHILE).await && two.stays_silent(CHANGED, Duration::ZERO).await);
    assert!(!host.logged(&channel).await.contains(&host.uri("c")));
    // Nobody follows it ever again, so nothing of it is kept.
    soon(async {
        while host.log.channels(None).await.unwrap().iter().any(|info| *info.channel == *channel) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_comes_back_in_time_misses_nothing() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    let channel = watch(&host, &mut client).await;
    client.subscribe(&channel).await;
    client.leave().await;
    host.write("while-away", "");
    let mut client = host.link();
    let params = json!({"channel": ROOT, "clientId": "c", "lastSeenServerSeq": 1, "subscriptions": [channel.clone()]});
    let result = client.call("reconnect", params).await.unwrap();
    let replayed = result["actions"].to_string();
    if !replayed.contains("while-away") {
        assert_eq!(changed(&mut client, &channel).await, [json!({"uri": host.uri("while-away"), "type": "added"})]);
    }
}

#[tokio::test]
async fn a_client_that_does_not_come_back_loses_its_watch() {
    let host = TestHost::with(|config| {
        config.files.max_watches = 1;
        config.reconnect_grace = Duration::from_millis(20);
    })
    .await;
    let mut client = host.client("c").await;
    let channel = watch(&host, &mut client).await;
    client.subscribe(&channel).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    host.write("a", "");
    changed(&mut client, &channel).await;
    drop(client);
    let mut other = host.client("other").await;
    soon(async {
        while other.call("createResourceWatch", json!({"channel": ROOT, "uri": host.uri("")})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_watch_that_nobody_ever_follows_ends() {
    let host = TestHost::with(|config| {
        config.files.max_watches = 1;
        config.reconnect_grace = Duration::from_millis(20);
    })
    .await;
    let mut client = host.client("c").await;
    watch(&host, &mut client).await;
    soon(async {
        while client.call("createResourceWatch", json!({"channel": ROOT, "uri": host.uri("")})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_watches_of_an_earlier_run_are_erased() {
    let mut host = TestHost::new().await;
    let channel = {
        let mut client = host.client("c").await;
        let channel = watch(&host, &mut client).await;
        client.subscribe(&channel).await;
        channel
    };
    host.restart().await;
    assert_eq!(host.channels("ahp-resource-watch:").await, [""; 0]);
    let mut client = host.client("c").await;
    assert_eq!(client.fails("subscribe", json!({"channel": channel})).await, -32008);
}

#[tokio::test]
async fn what_is_outside_or_not_there_is_not_watched() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    for (uri, code) in [("file:///etc", -32009), (&*host.uri("nowhere"), -32008), ("virtual://x/y", -32008)] {
        assert_eq!(client.fails("createResourceWatch", json!({"channel": ROOT, "uri": uri})).await, code, "{uri}");
    }
}
