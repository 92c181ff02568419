//! Retention and erasing: old entries are trimmed, and no client misses anything.

use std::time::Duration;

use breakbulk_host::log::Batch;
use breakbulk_host::maintenance::erase;
use serde_json::json;

use super::test_host::{SESSION, TestHost, state};

#[tokio::test]
async fn who_comes_back_from_before_what_is_kept_gets_a_snapshot() {
    let host = TestHost::with(|config| {
        config.retention.max_age = Some(Duration::ZERO);
        config.retain_every = Duration::from_millis(20);
    })
    .await;
    let (mut client, chat) = host.with_session("c").await;
    let seen = host.log.bounds().await.unwrap().last;
    let name = |n: usize| json!({"type": "session/titleChanged", "title": format!("{n}")});
    for n in 0..5 {
        let params = json!({"channel": SESSION, "clientSeq": n, "action": name(n)});
        client.call("dispatchAction", params).await.unwrap();
    }
    client.call("createChat", json!({"channel": SESSION, "chat": "ahp-chat:/gone"})).await.unwrap();
    client.call("disposeChat", json!({"channel": "ahp-chat:/gone"})).await.unwrap();
    let trimmed = async || {
        let infos = host.log.channels(None).await.unwrap();
        // Of what is closed nothing needs to be kept either.
        infos.iter().all(|info| info.first > info.last || info.last == 0)
    };
    while !trimmed().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut client = host.link();
    let result = client.reconnect("c", seen.try_into().unwrap(), &[SESSION, &chat, "ahp-chat:/gone"]).await;
    assert_eq!(result["type"], "snapshot");
    assert_eq!(result["snapshots"][0]["state"]["title"], "4");
    assert_eq!(result["missing"], json!(["ahp-chat:/gone"]));
    let host = host.again().await;
    let mut client = host.client("c").await;
    assert_eq!(state(&mut client, SESSION).await["title"], "4");
    let gone = client.call("subscribe", json!({"channel": "ahp-chat:/gone"})).await.unwrap_err();
    assert_eq!(gone["code"], -32008);
}

#[tokio::test]
async fn a_session_that_was_erased_while_no_host_ran_is_not_counted() {
    let host = TestHost::new().await;
    let (mut client, _) = host.with_session("c").await;
    client.call("createSession", json!({"channel": "ahp-session:/2"})).await.unwrap();
    host.inner.stop().await;
    assert!(erase(&host.log, SESSION).await.unwrap().unwrap() > 0);
    let last = host.log.bounds().await.unwrap().last;
    let host = host.again().await;
    let mut client = host.client("c").await;
    assert_eq!(state(&mut client, "ahp-root://").await["activeSessions"], 1);
    assert_eq!(host.log.bounds().await.unwrap().last, last, "whoever erased it has said so");
}

#[tokio::test]
async fn a_wrong_count_of_sessions_is_put_right_at_the_start() {
    let host = TestHost::new().await;
    let (_, _) = host.with_session("c").await;
    let body = json!({"channel": "ahp-root://", "action": {"type": "root/activeSessionsChanged", "activeSessions": 7}});
    host.log.append(Batch::new().entry("ahp-root://", body.to_string())).await.unwrap();
    let host = host.again().await;
    let mut client = host.client("d").await;
    assert_eq!(state(&mut client, "ahp-root://").await["activeSessions"], 1);
}
