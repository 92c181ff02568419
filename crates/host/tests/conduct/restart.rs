//! A host that ends, in order or not, leaves no turn open for ever.

use std::time::Duration;

use breakbulk_host::log::MemoryLog;
use serde_json::{Value, json};

use crate::puppet::{Told, begun, say, says};
use crate::world::{CHAT, SESSION, World, calls, quick, slow, started, text};

fn error_of(turn: &Value) -> &Value {
    &turn["responseParts"].as_array().unwrap().last().unwrap()["error"]["errorType"]
}

#[tokio::test]
async fn a_turn_that_the_last_life_left_open_is_ended() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t", "/run true").await;
    world.asked(1).await;
    world.until_listed(|listed| listed["status"] == 24).await;
    let world = world.crash(quick()).await;
    // All of it before anybody can ask.
    let chat = world.see(CHAT).await;
    assert_eq!((&chat["activeTurn"], &chat["turns"][0]["state"]), (&Value::Null, &json!("error")));
    assert_eq!(error_of(&chat["turns"][0]), "hostRestarted");
    assert_eq!(calls(&chat["turns"][0])[0]["status"], "cancelled");
    assert!(world.see(SESSION).await["inputNeeded"].is_null());
    let listed = world.listed().await;
    assert_eq!((&listed["status"], &listed["chats"][0]["status"]), (&json!(2), &json!(2)));
    world.prompt(CHAT, "t2", "hello").await;
    assert_eq!(world.turns(CHAT, 2).await[1]["state"], "complete");
}

#[tokio::test]
async fn a_turn_of_which_no_list_has_heard_is_found_and_ended_too() {
    let world = World::new(quick()).await;
    // The host is gone before it has heard of it.
    let world = {
        world.host.stop().await;
        world.prompt(CHAT, "t", "hello").await;
        world.crash(quick()).await
    };
    assert_eq!(error_of(&world.see(CHAT).await["turns"][0]), "hostRestarted");
}

#[tokio::test]
async fn a_turn_that_was_overlooked_is_ended_when_somebody_comes_back_to_its_chat() {
    let world = World::new(quick()).await;
    world.host.stop().await;
    world.prompt(CHAT, "t", "hello").await;
    let other = json!({"channel": SESSION, "action": {"type": "session/activityChanged"}}).to_string();
    let mut batch = breakbulk_host::log::Batch::new();
    for _ in 0..11_000 {
        batch = batch.entry(SESSION, other.clone());
    }
    world.log.append(batch).await.unwrap();
    let world = world.crash(quick()).await;
    assert_eq!(world.see(CHAT).await["activeTurn"]["id"], "t");
    world.queue(CHAT, "q", "are you there?").await;
    let turns = world.turns(CHAT, 2).await;
    assert_eq!(error_of(&turns[0]), "hostRestarted");
    assert!(text(&turns[1]).contains("are you there?"));
}

#[tokio::test]
async fn a_host_that_stops_ends_agents_and_says_so_in_their_turns() {
    let world = World::new(slow()).await;
    world.prompt(CHAT, "t", "/slow /think").await;
    world
        .until(CHAT, |chat| chat["activeTurn"]["responseParts"][0]["content"].as_str().is_some_and(|s| !s.is_empty()))
        .await;
    tokio::time::timeout(Duration::from_secs(10), world.host.stop()).await.expect("it stops");
    let chat = world.see(CHAT).await;
    assert_eq!(error_of(&chat["turns"][0]), "hostStopped");
    let last = world.log.bounds().await.unwrap().last;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.log.bounds().await.unwrap().last, last, "nothing is logged after it");
}

#[tokio::test(start_paused = true)]
async fn a_host_stops_although_an_agent_does_not() {
    let (world, hand, events, turn) = World::at_work(MemoryLog::new()).await;
    say(&events, [begun(&turn)]).await;
    say(&events, says("m", None, "hm")).await;
    world.until(CHAT, |chat| chat["activeTurn"]["responseParts"][0]["content"] == "hm").await;
    hand.stick();
    tokio::time::timeout(Duration::from_secs(10), world.host.stop()).await.expect("it stops");
    assert!(events.send(begun(&turn)).await.is_err(), "nobody listens");
    assert_eq!(error_of(&world.see(CHAT).await["turns"][0]), "hostStopped");
}

#[tokio::test]
async fn an_agent_is_disposed_of_when_its_host_stops() {
    let (world, mut hand, _events, _turn) = World::at_work(MemoryLog::new()).await;
    world.host.stop().await;
    assert!(matches!(hand.told().await, Told::Disposed));
    // Prompts that come too late wait for the next life.
    world.append(CHAT, json!({"channel": CHAT, "action": started("t2", "late")}).to_string()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.see(CHAT).await["activeTurn"]["id"], "t2");
}
