//! Tool calls: the agent asks for permission, and the user allows or denies.

use serde_json::json;

use crate::test_host::{CHAT, SESSION, TestHost, calls, quick, text};

#[tokio::test]
async fn an_allowed_command_runs_in_the_workspace() {
    let host = TestHost::new(quick()).await;
    std::fs::write(host.path().join("seen.txt"), "x").unwrap();
    host.prompt(CHAT, "t", "/run ls").await;
    let asked = host.asked(1).await;
    assert_eq!((&asked[0]["chat"], &asked[0]["turnId"]), (&json!(CHAT), &json!("t")));
    host.answer(true).await;
    let turns = host.turns(CHAT, 1).await;
    let calls = calls(&turns[0]);
    assert_eq!((&calls[0]["status"], &calls[0]["success"]), (&json!("completed"), &json!(true)));
    assert!(calls[0]["content"][0]["text"].as_str().unwrap().contains("seen.txt"));
    assert!(text(&turns[0]).contains("It is done."));
    host.asked(0).await;
}

#[tokio::test]
async fn a_denied_command_does_not_run() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "/edit new.txt text").await;
    host.asked(1).await;
    host.answer(false).await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(calls(&turns[0])[0]["status"], "cancelled");
    assert!(!host.path().join("new.txt").exists());
    host.asked(0).await;
}

#[tokio::test]
async fn several_calls_are_asked_about_at_once() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "/tools 3").await;
    host.asked(3).await;
    host.until(SESSION, |session| session["chats"][0]["status"] == 24).await;
    host.answer(true).await;
    let turns = host.turns(CHAT, 1).await;
    assert!(calls(&turns[0]).iter().all(|call| call["success"] == true), "{turns:#?}");
    assert!(text(&turns[0]).contains("3 of 3 tools"));
}
