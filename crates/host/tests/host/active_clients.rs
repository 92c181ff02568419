//! A client is listed as active in a session as long as it is connected, also over restarts of the host.

use std::time::Duration;

use breakbulk_host::HostConfig;
use serde_json::{Value, json};

use super::client::Raw;
use super::test_host::{SESSION, TestHost, action_of, state};

const GRACE: Duration = Duration::from_millis(700);

fn short(config: &mut HostConfig) {
    config.reconnect_grace = GRACE;
}

async fn become_active(client: &mut Raw, id: &str) {
    let action = json!({"type": "session/activeClientSet", "activeClient": {"clientId": id, "tools": []}});
    let params = json!({"channel": SESSION, "clientSeq": 1, "action": action});
    client.call("dispatchAction", params).await.unwrap();
}

fn active(state: &Value) -> Vec<&str> {
    state["activeClients"].as_array().unwrap().iter().map(|active| active["clientId"].as_str().unwrap()).collect()
}

/// A host that was restarted while these clients were active.
async fn restarted(ids: &[&str]) -> TestHost {
    let host = TestHost::with(short).await;
    let (mut client, _) = host.with_session("maker").await;
    for id in ids {
        let mut client = host.client(id).await;
        become_active(&mut client, id).await;
    }
    assert_eq!(active(&state(&mut client, SESSION).await), ids);
    host.again_with(short).await
}

#[tokio::test]
async fn who_was_active_in_the_last_life_and_does_not_come_back_is_active_no_more() {
    let host = restarted(&["a", "b", "c"]).await;
    let mut b = host.client("b").await;
    assert_eq!(active(&state(&mut b, SESSION).await), ["a", "b", "c"], "they have a while");
    for gone in ["a", "c"] {
        assert_eq!(action_of(&mut b, "session/activeClientRemoved").await["action"]["clientId"], gone);
    }
    let mut other = host.client("d").await;
    assert_eq!(active(&state(&mut other, SESSION).await), ["b"]);
    // It is as one who became active in this life: it is not, when it has gone.
    drop(b);
    assert_eq!(action_of(&mut other, "session/activeClientRemoved").await["action"]["clientId"], "b");
}

#[tokio::test]
async fn who_comes_back_in_time_stays_active() {
    let host = restarted(&["a", "b"]).await;
    let (mut a, mut b) = (host.client("a").await, host.client("b").await);
    state(&mut a, SESSION).await;
    state(&mut b, SESSION).await;
    tokio::time::sleep(2 * GRACE).await;
    assert_eq!(active(&state(&mut a, SESSION).await), ["a", "b"]);
}
