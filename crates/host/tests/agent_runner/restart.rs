//! Turns that a stopped or crashed host left open are ended.

use std::time::Duration;

use breakbulk_host::log::MemoryLog;
use serde_json::{Value, json};

use crate::scripted_agent::{AgentCall, begun, say, says};
use crate::test_host::{CHAT, SESSION, TestHost, calls, quick, slow, started, text};

fn error_of(turn: &Value) -> &Value {
    &turn["responseParts"].as_array().unwrap().last().unwrap()["error"]["errorType"]
}

#[tokio::test]
async fn a_turn_that_the_last_life_left_open_is_ended() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "/run true").await;
    host.asked(1).await;
    host.until_listed(|listed| listed["status"] == 24).await;
    let host = host.crash(quick()).await;
    // All of it before anybody can ask.
    let chat = host.see(CHAT).await;
    assert_eq!((&chat["activeTurn"], &chat["turns"][0]["state"]), (&Value::Null, &json!("error")));
    assert_eq!(error_of(&chat["turns"][0]), "hostRestarted");
    assert_eq!(calls(&chat["turns"][0])[0]["status"], "cancelled");
    assert!(host.see(SESSION).await["inputNeeded"].is_null());
    let listed = host.listed().await;
    assert_eq!((&listed["status"], &listed["chats"][0]["status"]), (&json!(2), &json!(2)));
    host.prompt(CHAT, "t2", "hello").await;
    assert_eq!(host.turns(CHAT, 2).await[1]["state"], "complete");
}

#[tokio::test]
async fn a_turn_of_which_no_list_has_heard_is_found_and_ended_too() {
    let host = TestHost::new(quick()).await;
    // The host is gone before it has heard of it.
    let host = {
        host.inner.stop().await;
        host.prompt(CHAT, "t", "hello").await;
        host.crash(quick()).await
    };
    assert_eq!(error_of(&host.see(CHAT).await["turns"][0]), "hostRestarted");
}

#[tokio::test]
async fn a_turn_that_was_overlooked_is_ended_when_somebody_comes_back_to_its_chat() {
    let host = TestHost::new(quick()).await;
    host.inner.stop().await;
    host.prompt(CHAT, "t", "hello").await;
    let other = json!({"channel": SESSION, "action": {"type": "session/activityChanged"}}).to_string();
    let mut batch = breakbulk_host::log::Batch::new();
    for _ in 0..11_000 {
        batch = batch.entry(SESSION, other.clone());
    }
    host.log.append(batch).await.unwrap();
    let host = host.crash(quick()).await;
    assert_eq!(host.see(CHAT).await["activeTurn"]["id"], "t");
    host.queue(CHAT, "q", "are you there?").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!(error_of(&turns[0]), "hostRestarted");
    assert!(text(&turns[1]).contains("are you there?"));
}

#[tokio::test]
async fn a_host_that_stops_ends_agents_and_says_so_in_their_turns() {
    let host = TestHost::new(slow()).await;
    host.prompt(CHAT, "t", "/slow /think").await;
    host.until(CHAT, |chat| chat["activeTurn"]["responseParts"][0]["content"].as_str().is_some_and(|s| !s.is_empty()))
        .await;
    tokio::time::timeout(Duration::from_secs(10), host.inner.stop()).await.expect("it stops");
    let chat = host.see(CHAT).await;
    assert_eq!(error_of(&chat["turns"][0]), "hostStopped");
    let last = host.log.bounds().await.unwrap().last;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(host.log.bounds().await.unwrap().last, last, "nothing is logged after it");
}

#[tokio::test(start_paused = true)]
async fn a_host_stops_although_an_agent_does_not() {
    let (host, control, events, turn) = TestHost::at_work(MemoryLog::new()).await;
    say(&events, [begun(&turn)]).await;
    say(&events, says("m", None, "hm")).await;
    host.until(CHAT, |chat| chat["activeTurn"]["responseParts"][0]["content"] == "hm").await;
    control.hang();
    tokio::time::timeout(Duration::from_secs(10), host.inner.stop()).await.expect("it stops");
    assert!(events.send(begun(&turn)).await.is_err(), "nobody listens");
    assert_eq!(error_of(&host.see(CHAT).await["turns"][0]), "hostStopped");
}

#[tokio::test]
async fn an_agent_is_disposed_of_when_its_host_stops() {
    let (host, mut control, _events, _turn) = TestHost::at_work(MemoryLog::new()).await;
    host.inner.stop().await;
    assert!(matches!(control.next_call().await, AgentCall::Disposed));
    // Prompts that come too late wait for the next life.
    host.append(CHAT, json!({"channel": CHAT, "action": started("t2", "late")}).to_string()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(host.see(CHAT).await["activeTurn"]["id"], "t2");
}
