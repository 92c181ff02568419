//! An agent that speaks ACP, from a client's prompt to the program and back.

mod fake;

use std::sync::Arc;

use breakbulk_host::agent::acp::Acp;
use serde_json::{Value, json};

use self::fake::Fake;
use crate::test_host::{CHAT, TestHost, calls, text};

async fn host(fake: &Fake) -> TestHost {
    TestHost::new(Arc::new(Acp::new(fake.config()))).await
}

/// The error with which a turn ended.
fn failure(turn: &Value) -> (&str, &str) {
    let parts = turn["responseParts"].as_array().unwrap();
    let error = &parts.iter().find(|part| part["kind"] == "error").unwrap()["error"];
    (error["errorType"].as_str().unwrap(), error["message"].as_str().unwrap())
}

#[tokio::test]
async fn an_answer_streams_and_the_next_prompt_goes_to_the_same_program() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    host.prompt(CHAT, "2", "say two").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!((text(&turns[0]).as_str(), text(&turns[1]).as_str()), ("one", "two"));
    assert_eq!((fake.starts(), fake.prompts()), (1, vec!["say one".to_owned(), "say two".to_owned()]));
}

#[tokio::test]
async fn a_permission_is_asked_with_the_options_of_the_agent() {
    let fake = Fake::new();
    let host = host(&fake).await;
    for (turn, approved, status) in [("1", true, "completed"), ("2", false, "cancelled")] {
        host.prompt(CHAT, turn, "tool").await;
        let asked = host.asked(1).await;
        let options = asked[0]["toolCall"]["options"].as_array().unwrap();
        assert!(options.iter().any(|option| option["id"] == "always:all"), "{options:?}");
        host.answer(approved).await;
        let turns = host.turns(CHAT, turn.parse().unwrap()).await;
        let calls = calls(turns.last().unwrap());
        assert_eq!(calls[0]["status"], status, "{calls:?}");
    }
    assert_eq!(fake.answers(), ["yes", "no"]);
}

#[tokio::test]
async fn files_and_terminals_of_the_agent_are_those_of_the_host() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "file").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(text(&turns[0]), "written by the agent; outside: refused");
    assert_eq!(std::fs::read_to_string(host.path().join("made/agent.txt")).unwrap(), "written by the agent");
    host.prompt(CHAT, "2", "run").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!(text(&turns[1]), "from a terminal, exit 7");
}

#[tokio::test]
async fn a_cancel_reaches_the_agent_and_its_answer_ends_the_turn() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "hang").await;
    host.until(CHAT, |state| state["activeTurn"].to_string().contains("waiting")).await;
    host.cancel(CHAT, "1").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(turns[0]["state"], "cancelled");
    host.prompt(CHAT, "2", "say on").await;
    assert_eq!(text(&host.turns(CHAT, 2).await[1]), "on");
    assert_eq!(fake.starts(), 1);
}

#[tokio::test]
async fn an_agent_that_dies_ends_its_turn_by_name_and_the_next_prompt_resumes() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    host.prompt(CHAT, "2", "die").await;
    let turns = host.turns(CHAT, 2).await;
    let (kind, message) = failure(&turns[1]);
    assert_eq!(kind, "agentExited");
    assert!(message.contains("status 3") && message.contains("I am dying"), "{message}");
    host.prompt(CHAT, "3", "say three").await;
    assert_eq!(text(&host.turns(CHAT, 3).await[2]), "three");
    assert_eq!(fake.starts(), 2);
    assert_eq!(fake.loaded(), ["s-1"], "it goes on with its own memory");
    assert_eq!(fake.prompts(), ["say one", "die", "say three"], "no prompt runs twice");
}

#[tokio::test]
async fn an_agent_without_a_memory_is_told_the_history() {
    let fake = Fake::forgetful();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    let host = host.crash(Arc::new(Acp::new(fake.config()))).await;
    host.prompt(CHAT, "2", "say two").await;
    assert_eq!(text(&host.turns(CHAT, 2).await[1]), "two");
    let prompts = fake.prompts();
    assert!(prompts[1].contains("say one") && prompts[1].ends_with("say two"), "{prompts:?}");
}

#[tokio::test]
async fn garbage_is_skipped_and_a_program_that_is_no_agent_is_an_error() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "garbage").await;
    assert_eq!(text(&host.turns(CHAT, 1).await[0]), "still here");

    let mut config = fake.config();
    config.command = ["sh", "-c", "echo no agent >&2; exit 4"].map(Into::into).to_vec();
    let host = TestHost::new(Arc::new(Acp::new(config))).await;
    host.prompt(CHAT, "1", "say one").await;
    let turns = host.turns(CHAT, 1).await;
    let (_, message) = failure(&turns[0]);
    assert!(message.contains("status 4") && message.contains("no agent"), "{message}");
}

#[tokio::test]
async fn the_mode_and_the_model_of_a_session_reach_the_agent() {
    let fake = Fake::new();
    let mut config = fake.config();
    (config.mode, config.model) = (Some("code".to_owned()), Some("large".to_owned()));
    let host = TestHost::new(Arc::new(Acp::new(config))).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    assert_eq!(fake.told("session/set_mode")[0]["modeId"], json!("code"));
    assert_eq!(fake.told("session/set_config_option")[0]["value"], json!("large"));
}
