//! Turns: a prompt is answered, cancelled, fails; and what waits comes after.

use serde_json::{Value, json};

use crate::world::{CHAT, OTHER, SESSION, World, calls, message, quick, slow, started, text};

#[tokio::test]
async fn a_prompt_is_answered_in_pieces_and_the_turn_is_complete() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t", "hello there").await;
    let turns = world.turns(CHAT, 1).await;
    assert_eq!((&turns[0]["id"], &turns[0]["state"]), (&json!("t"), &json!("complete")));
    assert!(text(&turns[0]).contains("> hello there"), "{}", text(&turns[0]));
    assert!(turns[0]["usage"]["outputTokens"].as_u64().unwrap() > 0);
    let entries = world.entries(CHAT).await;
    let deltas = entries.iter().filter(|entry| entry["action"]["type"] == "chat/delta").count();
    assert!(deltas > 5, "{deltas}");
    assert!(entries.iter().all(|entry| entry["channel"] == CHAT));
}

#[tokio::test]
async fn a_turn_that_the_host_itself_has_logged_is_answered_too() {
    let world = World::new(quick()).await;
    let body = json!({"channel": CHAT, "action": started("t", "from createChat")});
    world.append(CHAT, body.to_string()).await;
    let turns = world.turns(CHAT, 1).await;
    assert!(text(&turns[0]).contains("from createChat"));
}

#[tokio::test]
async fn two_chats_are_answered_at_once() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t", "/run true").await;
    world.asked(1).await;
    // The first one waits for somebody, and the second is not held up.
    world.prompt(OTHER, "t", "hello").await;
    let turns = world.turns(OTHER, 1).await;
    assert_eq!(turns[0]["state"], "complete");
    world.answer(true).await;
    assert_eq!(world.turns(CHAT, 1).await[0]["state"], "complete");
}

#[tokio::test]
async fn a_cancelled_turn_ends_and_the_next_prompt_is_answered() {
    let world = World::new(slow()).await;
    world.prompt(CHAT, "t1", "/slow /think").await;
    world
        .until(CHAT, |chat| chat["activeTurn"]["responseParts"].as_array().is_some_and(|parts| !parts.is_empty()))
        .await;
    world.cancel(CHAT, "t1").await;
    world.prompt(CHAT, "t2", "/big 10").await;
    let turns = world.turns(CHAT, 2).await;
    assert_eq!((&turns[0]["state"], &turns[1]["state"]), (&json!("cancelled"), &json!("complete")));
    // Nothing of the first turn is heard in the second.
    assert!(text(&turns[1]).contains("10 bytes"), "{}", text(&turns[1]));
}

#[tokio::test]
async fn a_turn_that_is_cancelled_before_the_agent_hears_of_it_is_no_turn_to_it() {
    let world = World::new(quick()).await;
    for round in 0..20 {
        let turn = format!("t{round}");
        world.prompt(CHAT, &turn, "hello").await;
        world.cancel(CHAT, &turn).await;
    }
    world.prompt(CHAT, "last", "and now").await;
    let turns = world.turns(CHAT, 21).await;
    assert_eq!(turns[20]["state"], "complete");
    assert!(text(&turns[20]).contains("> and now"));
}

#[tokio::test]
async fn a_failing_turn_says_so_and_the_next_one_works() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t1", "/fail").await;
    let turns = world.turns(CHAT, 1).await;
    assert_eq!(turns[0]["state"], "error");
    let last = turns[0]["responseParts"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["kind"], &last["error"]["errorType"]), (&json!("error"), &json!("demo")));
    world.prompt(CHAT, "t2", "hello").await;
    assert_eq!(world.turns(CHAT, 2).await[1]["state"], "complete");
}

#[tokio::test]
async fn a_result_of_five_megabytes_arrives_whole() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t", "/big 5MB").await;
    let turns = world.turns(CHAT, 1).await;
    let calls = calls(&turns[0]);
    assert_eq!(calls[0]["status"], "completed");
    assert_eq!(calls[0]["content"][0]["text"].as_str().unwrap().len(), 5_000_000);
}

#[tokio::test]
async fn a_queued_message_begins_when_the_turn_before_it_has_ended() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t", "/run true").await;
    world.asked(1).await;
    world.queue(CHAT, "q1", "first in the queue").await;
    world.queue(CHAT, "q2", "second in the queue").await;
    world.answer(true).await;
    let turns = world.turns(CHAT, 3).await;
    assert!(text(&turns[1]).contains("first in the queue") && text(&turns[2]).contains("second in the queue"));
    let chat = world.see(CHAT).await;
    assert!(chat["queuedMessages"].is_null(), "{chat}");
    let entries = world.entries(CHAT).await;
    let begun: Vec<&Value> = entries.iter().filter(|entry| entry["action"]["type"] == "chat/turnStarted").collect();
    let from: Vec<&Value> = begun.iter().map(|entry| &entry["action"]["queuedMessageId"]).collect();
    assert_eq!(from, [&Value::Null, &json!("q1"), &json!("q2")]);
}

#[tokio::test]
async fn a_message_that_is_queued_in_an_idle_chat_begins_at_once() {
    let world = World::new(quick()).await;
    world.queue(CHAT, "q", "nobody was waiting").await;
    assert!(text(&world.turns(CHAT, 1).await[0]).contains("nobody was waiting"));
}

#[tokio::test]
async fn what_was_to_steer_a_turn_is_said_after_it() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t", "/run true").await;
    world.asked(1).await;
    world.queue(CHAT, "q", "the queue").await;
    let steer =
        json!({"type": "chat/pendingMessageSet", "kind": "steering", "id": "s", "message": message("to the left")});
    world.act(CHAT, steer).await;
    world.answer(true).await;
    let turns = world.turns(CHAT, 3).await;
    assert!(text(&turns[1]).contains("to the left") && text(&turns[2]).contains("the queue"));
    assert!(world.see(CHAT).await["steeringMessage"].is_null());
}

#[tokio::test]
async fn the_queue_waits_when_somebody_has_stopped_the_turn() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t1", "/run true").await;
    world.asked(1).await;
    world.queue(CHAT, "q", "later").await;
    world.cancel(CHAT, "t1").await;
    world.asked(0).await;
    world.until(SESSION, |session| session["chats"][0]["status"] == 1).await;
    assert_eq!(world.turns(CHAT, 1).await[0]["state"], "cancelled");
    assert_eq!(world.see(CHAT).await["queuedMessages"][0]["id"], "q");
    world.prompt(CHAT, "t2", "hello").await;
    assert!(text(&world.turns(CHAT, 3).await[2]).contains("later"));
}

#[tokio::test]
async fn turns_that_are_taken_back_stop_the_one_that_runs() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t1", "/run true").await;
    world.asked(1).await;
    world.act(CHAT, json!({"type": "chat/truncated"})).await;
    world.asked(0).await;
    world.prompt(CHAT, "t2", "hello").await;
    assert_eq!(world.turns(CHAT, 1).await[0]["id"], "t2");
}

#[tokio::test]
async fn a_chat_without_a_place_to_work_in_says_so() {
    let world = World::new(quick()).await;
    std::fs::remove_dir(world.path()).unwrap();
    world.prompt(CHAT, "t", "hello").await;
    let turns = world.turns(CHAT, 1).await;
    let last = turns[0]["responseParts"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["error"]["errorType"], "workingDirectory");
}
