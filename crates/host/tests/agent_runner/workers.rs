//! Sub-agents; agents that end in the middle of a turn, or hang.

use breakbulk_host::log::MemoryLog;
use breakbulk_lifecycle::{Ending, Event, Outcome, ToolResult};
use serde_json::json;

use crate::scripted_agent::{AgentCall, begun, call, ended, say, says, scripted_agent};
use crate::test_host::{CHAT, SESSION, TestHost, text};

#[tokio::test]
async fn a_sub_agent_is_watched_in_a_chat_of_its_own() {
    let (host, _hand, events, turn) = TestHost::at_work(MemoryLog::new()).await;
    say(&events, [begun(&turn)]).await;
    say(&events, call("m", "tool")).await;
    let begins = Event::AgentStarted { tool: "tool".into(), name: "explorer".into(), task: "look around".into() };
    say(&events, [Event::ToolStarted { tool: "tool".into() }, begins]).await;
    say(&events, says("n", Some("tool"), "I look")).await;
    let session = host.until(SESSION, |session| session["chats"].as_array().unwrap().len() == 3).await;
    let listed = &session["chats"][2];
    let worker = listed["resource"].as_str().unwrap();
    assert_eq!(listed["origin"], json!({"kind": "tool", "chat": CHAT, "toolCallId": "tool"}));
    assert_eq!((&listed["interactivity"], &listed["title"]), (&json!("read-only"), &json!("explorer")));
    host.until_listed(|listed| listed["chats"][2]["status"] == 8).await;
    let state = host.until(worker, |chat| chat["activeTurn"]["responseParts"][0]["content"] == "I look").await;
    assert_eq!(state["activeTurn"]["message"]["text"], "look around");
    let done = Event::ToolEnded { tool: "tool".into(), ending: Ending::Done(ToolResult::text("Done", "found")) };
    say(&events, [Event::AgentEnded { tool: "tool".into(), outcome: Outcome::Complete }, done, ended(&turn)]).await;
    let turns = host.turns(worker, 1).await;
    assert_eq!((&turns[0]["state"], text(&turns[0]).as_str()), (&json!("complete"), "I look"));
    host.turns(CHAT, 1).await;
    host.until_listed(|listed| listed["chats"][2]["status"] == 1 && listed["chats"][0]["status"] == 1).await;
}

#[tokio::test]
async fn an_agent_that_ends_fails_its_turn_and_begins_anew_with_what_it_remembers() {
    let (agent, mut control) = scripted_agent();
    let host = TestHost::new(agent).await;
    host.prompt(CHAT, "t1", "go").await;
    let (start, events) = control.started().await;
    assert_eq!((start.history.len(), start.token), (0, None));
    assert_eq!((start.session.as_str(), start.chat.as_str()), (SESSION, CHAT));
    assert_eq!(start.directories, [host.path().to_path_buf()]);
    control.sent().await;
    say(&events, [Event::Resumable { token: "token".to_owned() }]).await;
    // Nothing was said of the turn yet.
    drop(events);
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(turns[0]["responseParts"][0]["error"]["errorType"], "agentEnded");
    host.prompt(CHAT, "t2", "again").await;
    let (start, events) = control.started().await;
    assert_eq!((start.history.len(), start.token.as_deref()), (1, Some("token")));
    let turn = control.sent().await;
    say(&events, [begun(&turn)]).await;
    say(&events, says("m", None, "back")).await;
    say(&events, [ended(&turn)]).await;
    assert_eq!(text(&host.turns(CHAT, 2).await[1]), "back");
    let session = host.see(SESSION).await;
    assert_eq!(
        session["_meta"],
        json!({"git": "kept", "breakbulk": {"resume": {CHAT: {"token": "token", "turn": "t1"}}}})
    );
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_takes_no_calls_is_dropped_and_its_turn_fails() {
    let (agent, mut control) = scripted_agent();
    let host = TestHost::new(agent).await;
    control.hang();
    host.prompt(CHAT, "t", "go").await;
    control.started().await;
    tokio::time::sleep(std::time::Duration::from_secs(40)).await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(turns[0]["responseParts"][0]["error"]["errorType"], "agentUnavailable");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_agent_that_does_not_end_is_dropped_when_its_time_is_up() {
    let (host, mut control, events, turn) = TestHost::at_work(MemoryLog::new()).await;
    say(&events, [begun(&turn)]).await;
    host.cancel(CHAT, "t").await;
    assert!(matches!(control.next_call().await, AgentCall::Cancel(of) if of == turn));
    host.prompt(CHAT, "t2", "next").await;
    let (_, events) = control.started().await;
    let turn = control.sent().await;
    assert_eq!(turn.as_str(), "t2");
    say(&events, [begun(&turn), ended(&turn)]).await;
    assert_eq!(host.turns(CHAT, 2).await[1]["state"], "complete");
}
