//! Sub-agents, agents that end or hang, and what an agent remembers.

use ahp_types::state::SnapshotState;
use breakbulk_host::agent::Memory;
use breakbulk_host::log::Batch;
use breakbulk_host::state::entry;
use breakbulk_lifecycle::{Ending, Event, Outcome, ToolResult};
use serde_json::{Value, json};

use crate::puppet::{Told, begun, call, ended, puppet, say, says};
use crate::world::{CHAT, OTHER, SESSION, World, summary, text};

#[tokio::test]
async fn a_sub_agent_is_watched_in_a_chat_of_its_own() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    world.prompt(CHAT, "t", "go").await;
    let (_, events) = hand.started().await;
    let turn = hand.sent().await;
    say(&events, [begun(&turn)]).await;
    say(&events, call("m", "tool")).await;
    let begins = Event::AgentStarted { tool: "tool".into(), name: "explorer".into(), task: "look around".into() };
    say(&events, [Event::ToolStarted { tool: "tool".into() }, begins]).await;
    say(&events, says("n", Some("tool"), "I look")).await;
    let session = world.until(SESSION, |session| session["chats"].as_array().unwrap().len() == 3).await;
    let listed = &session["chats"][2];
    let worker = listed["resource"].as_str().unwrap();
    assert_eq!(listed["origin"], json!({"kind": "tool", "chat": CHAT, "toolCallId": "tool"}));
    assert_eq!((&listed["interactivity"], &listed["title"]), (&json!("read-only"), &json!("explorer")));
    world.until_listed(|listed| listed["chats"][2]["status"] == 8).await;
    let state = world.until(worker, |chat| chat["activeTurn"]["responseParts"][0]["content"] == "I look").await;
    assert_eq!(state["activeTurn"]["message"]["text"], "look around");
    let done = Event::ToolEnded { tool: "tool".into(), ending: Ending::Done(ToolResult::text("Done", "found")) };
    say(&events, [Event::AgentEnded { tool: "tool".into(), outcome: Outcome::Complete }, done, ended(&turn)]).await;
    let turns = world.turns(worker, 1).await;
    assert_eq!((&turns[0]["state"], text(&turns[0]).as_str()), (&json!("complete"), "I look"));
    world.turns(CHAT, 1).await;
    world.until_listed(|listed| listed["chats"][2]["status"] == 1 && listed["chats"][0]["status"] == 1).await;
}

#[tokio::test]
async fn an_agent_that_ends_fails_its_turn_and_begins_anew_with_what_it_remembers() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    world.prompt(CHAT, "t1", "go").await;
    let (start, events) = hand.started().await;
    assert_eq!(start.memory, Memory::None);
    assert_eq!((start.session.as_str(), start.chat.as_str()), (SESSION, CHAT));
    assert_eq!(start.directories, [world.path().to_path_buf()]);
    hand.sent().await;
    say(&events, [Event::Resumable { token: "token".to_owned() }]).await;
    // Nothing was said of the turn yet.
    drop(events);
    let turns = world.turns(CHAT, 1).await;
    assert_eq!(turns[0]["responseParts"][0]["error"]["errorType"], "agentEnded");
    world.prompt(CHAT, "t2", "again").await;
    let (start, events) = hand.started().await;
    assert_eq!(start.memory, Memory::Resume("token".to_owned()));
    let turn = hand.sent().await;
    say(&events, [begun(&turn)]).await;
    say(&events, says("m", None, "back")).await;
    say(&events, [ended(&turn)]).await;
    assert_eq!(text(&world.turns(CHAT, 2).await[1]), "back");
    let session = world.see(SESSION).await;
    assert_eq!(session["_meta"], json!({"git": "kept", "breakbulk": {"resume": {CHAT: "token"}}}));
}

#[tokio::test]
async fn a_token_outlives_the_host_and_a_fork_begins_with_that_of_its_source() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    world.prompt(CHAT, "t1", "go").await;
    let (_, events) = hand.started().await;
    let turn = hand.sent().await;
    say(&events, [begun(&turn), Event::Resumable { token: "abc".to_owned() }, ended(&turn)]).await;
    world.turns(CHAT, 1).await;
    let (agent, mut hand) = puppet();
    let world = world.crash(agent).await;
    world.prompt(CHAT, "t2", "go on").await;
    let (start, _events) = hand.started().await;
    assert_eq!(start.memory, Memory::Resume("abc".to_owned()));
    hand.sent().await;

    let fork = "ahp-chat:/fork";
    let mut added: Value = summary(fork);
    added["origin"] = json!({"kind": "fork", "chat": CHAT, "turnId": "t1"});
    world.act(SESSION, json!({"type": "session/chatAdded", "summary": added})).await;
    added["turns"] = json!([]);
    let state = SnapshotState::Chat(serde_json::from_value(added).unwrap());
    let batch = Batch::new().open(fork, Some(SESSION)).entry(fork, entry::initial(fork, &state).unwrap());
    world.log.append(batch).await.unwrap();
    world.prompt(fork, "t", "another way").await;
    let (start, _fork_events) = hand.started().await;
    assert_eq!(start.memory, Memory::Fork("abc".to_owned()));
    hand.sent().await;
    // A chat that comes from nowhere remembers nothing; one whose turns were all taken back neither.
    world.prompt(OTHER, "t", "new").await;
    let (start, _other_events) = hand.started().await;
    assert_eq!(start.memory, Memory::None);
    hand.sent().await;
    world.act(CHAT, json!({"type": "chat/truncated"})).await;
    assert!(matches!(hand.told().await, Told::Cancel(turn) if turn.as_str() == "t2"));
    world.prompt(CHAT, "t3", "anew").await;
    assert_eq!(hand.started().await.0.memory, Memory::None);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_takes_no_calls_is_dropped_and_its_turn_fails() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    hand.stick();
    world.prompt(CHAT, "t", "go").await;
    hand.started().await;
    tokio::time::sleep(std::time::Duration::from_secs(40)).await;
    let turns = world.turns(CHAT, 1).await;
    assert_eq!(turns[0]["responseParts"][0]["error"]["errorType"], "agentUnavailable");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_agent_that_does_not_end_is_dropped_when_its_time_is_up() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    world.prompt(CHAT, "t1", "go").await;
    let (_, events) = hand.started().await;
    let turn = hand.sent().await;
    say(&events, [begun(&turn)]).await;
    world.cancel(CHAT, "t1").await;
    assert!(matches!(hand.told().await, Told::Cancel(of) if of == turn));
    world.prompt(CHAT, "t2", "next").await;
    let (_, events) = hand.started().await;
    let turn = hand.sent().await;
    assert_eq!(turn.as_str(), "t2");
    say(&events, [begun(&turn), ended(&turn)]).await;
    assert_eq!(world.turns(CHAT, 2).await[1]["state"], "complete");
}
