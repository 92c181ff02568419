//! Deeply nested messages: every client can read what the host accepts, and the host names the limit when it refuses.

use std::sync::Arc;

use breakbulk::gateway::{Endpoint, Gateway};
use breakbulk::link;
use breakbulk::{Dialect, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Capacity, Limits, LimitsConfig};
use serde_json::{Value, json};

use super::client::Raw;
use super::test_host::{SESSION, TestHost, action_of, prompt};

/// A prompt of this depth, nested in the metadata that an application may add to a message.
fn deep(turn: &str, depth: usize) -> Value {
    // An action, its message and what is added to that are three.
    let nested = (3..depth).fold(json!({}), |inner, _| json!({ "a": inner }));
    let mut action = prompt(turn, "hello");
    action["message"]["_meta"] = nested;
    assert_eq!(depth_of(&action), depth);
    action
}

fn depth_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

/// A client behind two bridges with a depth limit of 128, like the official clients.
fn behind_bridges(host: &TestHost) -> Raw {
    let config = LimitsConfig { max_frame_bytes: 65_536, max_depth: 128, ..LimitsConfig::default() };
    let limits = Limits::prove(config, &BudgetConfig::default()).unwrap();
    let setup = |dialect, role| Setup::new(dialect, role, limits);
    let client_bridge =
        Gateway::new(setup(Dialect::Plain, Role::Server), setup(Dialect::Ahp, Role::Client), BudgetConfig::default())
            .unwrap();
    let host_bridge =
        Gateway::new(setup(Dialect::Ahp, Role::Server), setup(Dialect::Plain, Role::Client), BudgetConfig::default())
            .unwrap();
    let any = Capacity::of(u64::MAX);
    let (client, downstream) = link::pair(&any, 4);
    let (left, right) = link::pair(&Capacity::of(65_536), 4);
    let (upstream, host_side) = link::pair(&any, 4);
    for (gateway, downstream, upstream) in [(client_bridge, downstream, left), (host_bridge, right, upstream)] {
        let gateway = Arc::new(gateway);
        tokio::spawn(async move {
            let ends = (Endpoint::new(downstream, "downstream"), Endpoint::new(upstream, "upstream"));
            gateway.join(ends.0, ends.1, Some("someone"), std::future::pending(), None).await
        });
    }
    let endpoint = host.inner.endpoint().clone();
    tokio::spawn(async move { endpoint.serve(host_side, Some("someone".into())).await });
    Raw::plain(client)
}

#[tokio::test]
async fn an_action_as_deep_as_the_host_takes_is_read_by_everybody_in_snapshots_too() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    client.subscribe(&chat).await;
    let action = deep("t1", 64);
    client.notify("dispatchAction", json!({"channel": chat, "clientSeq": 1, "action": action}));
    assert_eq!(action_of(&mut client, "chat/turnStarted").await["action"], action);
    let mut other = behind_bridges(&host);
    other.initialize("d", &["ahp-root://"]).await;
    let snapshot = other.subscribe(&chat).await;
    let depth = depth_of(&snapshot);
    assert!(depth > 64 && depth < 100, "{depth}");
    let result = behind_bridges(&host).initialize("e", &[SESSION, &chat]).await;
    assert!(depth_of(&result) > 64 && depth_of(&result) < 100, "{}", depth_of(&result));
}

#[tokio::test]
async fn a_deeper_action_is_refused_by_name_and_its_client_can_read_that() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    client.subscribe(&chat).await;
    let before = host.log.bounds().await.unwrap().last;
    for depth in [65, 120, 126] {
        client.notify("dispatchAction", json!({"channel": chat, "clientSeq": 1, "action": deep("t1", depth)}));
        let refused = action_of(&mut client, "chat/turnStarted").await;
        let reason = format!("the action is nested {depth} levels deep, the limit is 64");
        assert_eq!((&refused["rejectionReason"], &refused["origin"]["clientSeq"]), (&json!(reason), &json!(1)));
        assert_eq!((depth_of(&refused["action"]), &refused["action"]["turnId"]), (64, &json!("t1")));
    }
    let params = json!({"channel": chat, "clientSeq": 2, "action": deep("t1", 65)});
    let error = client.call("dispatchAction", params).await.unwrap_err();
    let reason = json!("the action is nested 65 levels deep, the limit is 64");
    assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &reason));
    assert_eq!(host.log.bounds().await.unwrap().last, before);
}

#[tokio::test]
async fn a_request_that_is_nested_too_deep_is_refused_by_name() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    let config = (2..100).fold(json!({}), |inner, _| json!({ "a": inner }));
    let error = client.call("createSession", json!({"channel": SESSION, "config": config})).await.unwrap_err();
    assert_eq!(error["code"], -32602);
    assert_eq!(error["message"], "invalid params: nested 100 levels deep, the limit is 64");
    client.call("createSession", json!({"channel": SESSION})).await.unwrap();
}
