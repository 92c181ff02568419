//! Who is active in a session is active for as long as they are here, over the lives of a host.

use std::time::Duration;

use breakbulk_host::HostConfig;
use serde_json::{Value, json};

use super::client::Raw;
use super::world::{House, SESSION, action_of, state};

const GRACE: Duration = Duration::from_millis(700);

fn short(config: &mut HostConfig) {
    config.files.watch_grace = GRACE;
}

async fn become_active(client: &mut Raw, id: &str) {
    let action = json!({"type": "session/activeClientSet", "activeClient": {"clientId": id, "tools": []}});
    let params = json!({"channel": SESSION, "clientSeq": 1, "action": action});
    client.call("dispatchAction", params).await.unwrap();
}

fn active(state: &Value) -> Vec<&str> {
    state["activeClients"].as_array().unwrap().iter().map(|active| active["clientId"].as_str().unwrap()).collect()
}

/// A host that was restarted while these were active.
async fn restarted(ids: &[&str]) -> House {
    let house = House::with(short).await;
    let (mut client, _) = house.with_session("maker").await;
    for id in ids {
        let mut client = house.client(id).await;
        become_active(&mut client, id).await;
    }
    assert_eq!(active(&state(&mut client, SESSION).await), ids);
    house.again_with(short).await
}

#[tokio::test]
async fn who_was_active_in_the_last_life_and_does_not_come_back_is_active_no_more() {
    let house = restarted(&["a", "b", "c"]).await;
    let mut b = house.client("b").await;
    assert_eq!(active(&state(&mut b, SESSION).await), ["a", "b", "c"], "they have a while");
    for gone in ["a", "c"] {
        assert_eq!(action_of(&mut b, "session/activeClientRemoved").await["action"]["clientId"], gone);
    }
    let mut other = house.client("d").await;
    assert_eq!(active(&state(&mut other, SESSION).await), ["b"]);
    // It is as one who became active in this life: it is not, when it has gone.
    drop(b);
    assert_eq!(action_of(&mut other, "session/activeClientRemoved").await["action"]["clientId"], "b");
}

#[tokio::test]
async fn who_comes_back_in_time_stays_active() {
    let house = restarted(&["a", "b"]).await;
    let (mut a, mut b) = (house.client("a").await, house.client("b").await);
    state(&mut a, SESSION).await;
    state(&mut b, SESSION).await;
    tokio::time::sleep(2 * GRACE).await;
    assert_eq!(active(&state(&mut a, SESSION).await), ["a", "b"]);
}
