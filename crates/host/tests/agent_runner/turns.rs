//! Turns: prompts are answered, cancelled, or fail; then queued messages follow.

use serde_json::{Value, json};

use crate::test_host::{CHAT, OTHER, SESSION, TestHost, calls, message, quick, slow, started, text};

#[tokio::test]
async fn a_prompt_is_answered_in_pieces_and_the_turn_is_complete() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "hello there").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!((&turns[0]["id"], &turns[0]["state"]), (&json!("t"), &json!("complete")));
    assert!(text(&turns[0]).contains("> hello there"), "{}", text(&turns[0]));
    assert!(turns[0]["usage"]["outputTokens"].as_u64().unwrap() > 0);
    let entries = host.entries(CHAT).await;
    let deltas = entries.iter().filter(|entry| entry["action"]["type"] == "chat/delta").count();
    assert!(deltas > 5, "{deltas}");
    assert!(entries.iter().all(|entry| entry["channel"] == CHAT));
}

#[tokio::test]
async fn a_turn_that_the_host_itself_has_logged_is_answered_too() {
    let host = TestHost::new(quick()).await;
    let body = json!({"channel": CHAT, "action": started("t", "from createChat")});
    host.append(CHAT, body.to_string()).await;
    let turns = host.turns(CHAT, 1).await;
    assert!(text(&turns[0]).contains("from createChat"));
}

#[tokio::test]
async fn two_chats_are_answered_at_once() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "/run true").await;
    host.asked(1).await;
    // The first one waits for somebody, and the second is not held up.
    host.prompt(OTHER, "t", "hello").await;
    let turns = host.turns(OTHER, 1).await;
    assert_eq!(turns[0]["state"], "complete");
    host.answer(true).await;
    assert_eq!(host.turns(CHAT, 1).await[0]["state"], "complete");
}

#[tokio::test]
async fn a_cancelled_turn_ends_and_the_next_prompt_is_answered() {
    let host = TestHost::new(slow()).await;
    host.prompt(CHAT, "t1", "/slow /think").await;
    host.until(CHAT, |chat| chat["activeTurn"]["responseParts"].as_array().is_some_and(|parts| !parts.is_empty()))
        .await;
    host.cancel(CHAT, "t1").await;
    host.prompt(CHAT, "t2", "/big 10").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!((&turns[0]["state"], &turns[1]["state"]), (&json!("cancelled"), &json!("complete")));
    // Nothing of the first turn is heard in the second.
    assert!(text(&turns[1]).contains("10 bytes"), "{}", text(&turns[1]));
}

#[tokio::test]
async fn a_turn_that_is_cancelled_before_the_agent_hears_of_it_is_no_turn_to_it() {
    let host = TestHost::new(quick()).await;
    for round in 0..20 {
        let turn = format!("t{round}");
        host.prompt(CHAT, &turn, "hello").await;
        host.cancel(CHAT, &turn).await;
    }
    host.prompt(CHAT, "last", "and now").await;
    let turns = host.turns(CHAT, 21).await;
    assert_eq!(turns[20]["state"], "complete");
    assert!(text(&turns[20]).contains("> and now"));
}

#[tokio::test]
async fn a_failing_turn_says_so_and_the_next_one_works() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t1", "/fail").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(turns[0]["state"], "error");
    let last = turns[0]["responseParts"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["kind"], &last["error"]["errorType"]), (&json!("error"), &json!("demo")));
    host.prompt(CHAT, "t2", "hello").await;
    assert_eq!(host.turns(CHAT, 2).await[1]["state"], "complete");
}

#[tokio::test]
async fn a_result_of_five_megabytes_arrives_whole() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "/big 5MB").await;
    let turns = host.turns(CHAT, 1).await;
    let calls = calls(&turns[0]);
    assert_eq!(calls[0]["status"], "completed");
    assert_eq!(calls[0]["content"][0]["text"].as_str().unwrap().len(), 5_000_000);
}

#[tokio::test]
async fn a_queued_message_begins_when_the_turn_before_it_has_ended() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "/run true").await;
    host.asked(1).await;
    host.queue(CHAT, "q1", "first in the queue").await;
    host.queue(CHAT, "q2", "second in the queue").await;
    host.answer(true).await;
    let turns = host.turns(CHAT, 3).await;
    assert!(text(&turns[1]).contains("first in the queue") && text(&turns[2]).contains("second in the queue"));
    let chat = host.see(CHAT).await;
    assert!(chat["queuedMessages"].is_null(), "{chat}");
    let entries = host.entries(CHAT).await;
    let begun: Vec<&Value> = entries.iter().filter(|entry| entry["action"]["type"] == "chat/turnStarted").collect();
    let from: Vec<&Value> = begun.iter().map(|entry| &entry["action"]["queuedMessageId"]).collect();
    assert_eq!(from, [&Value::Null, &json!("q1"), &json!("q2")]);
}

#[tokio::test]
async fn a_message_that_is_queued_in_an_idle_chat_begins_at_once() {
    let host = TestHost::new(quick()).await;
    host.queue(CHAT, "q", "nobody was waiting").await;
    assert!(text(&host.turns(CHAT, 1).await[0]).contains("nobody was waiting"));
}

#[tokio::test]
async fn what_was_to_steer_a_turn_is_said_after_it() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "/run true").await;
    host.asked(1).await;
    host.queue(CHAT, "q", "the queue").await;
    let steer =
        json!({"type": "chat/pendingMessageSet", "kind": "steering", "id": "s", "message": message("to the left")});
    host.act(CHAT, steer).await;
    host.answer(true).await;
    let turns = host.turns(CHAT, 3).await;
    assert!(text(&turns[1]).contains("to the left") && text(&turns[2]).contains("the queue"));
    assert!(host.see(CHAT).await["steeringMessage"].is_null());
}

#[tokio::test]
async fn the_queue_waits_when_somebody_has_stopped_the_turn() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t1", "/run true").await;
    host.asked(1).await;
    host.queue(CHAT, "q", "later").await;
    host.cancel(CHAT, "t1").await;
    host.asked(0).await;
    host.until(SESSION, |session| session["chats"][0]["status"] == 1).await;
    assert_eq!(host.turns(CHAT, 1).await[0]["state"], "cancelled");
    assert_eq!(host.see(CHAT).await["queuedMessages"][0]["id"], "q");
    host.prompt(CHAT, "t2", "hello").await;
    assert!(text(&host.turns(CHAT, 3).await[2]).contains("later"));
}

#[tokio::test]
async fn turns_that_are_taken_back_stop_the_one_that_runs() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t1", "/run true").await;
    host.asked(1).await;
    host.act(CHAT, json!({"type": "chat/truncated"})).await;
    host.asked(0).await;
    host.prompt(CHAT, "t2", "hello").await;
    assert_eq!(host.turns(CHAT, 1).await[0]["id"], "t2");
}

#[tokio::test]
async fn a_chat_without_a_place_to_work_in_says_so() {
    let host = TestHost::new(quick()).await;
    std::fs::remove_dir(host.path()).unwrap();
    host.prompt(CHAT, "t", "hello").await;
    let turns = host.turns(CHAT, 1).await;
    let last = turns[0]["responseParts"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["error"]["errorType"], "workingDirectory");
}
