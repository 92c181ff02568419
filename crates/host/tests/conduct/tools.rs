//! Calls: asked about, allowed, denied.

use serde_json::json;

use crate::world::{CHAT, SESSION, World, calls, quick, text};

#[tokio::test]
async fn an_allowed_command_runs_in_the_workspace() {
    let world = World::new(quick()).await;
    std::fs::write(world.path().join("seen.txt"), "x").unwrap();
    world.prompt(CHAT, "t", "/run ls").await;
    let asked = world.asked(1).await;
    assert_eq!((&asked[0]["chat"], &asked[0]["turnId"]), (&json!(CHAT), &json!("t")));
    world.answer(true).await;
    let turns = world.turns(CHAT, 1).await;
    let calls = calls(&turns[0]);
    assert_eq!((&calls[0]["status"], &calls[0]["success"]), (&json!("completed"), &json!(true)));
    assert!(calls[0]["content"][0]["text"].as_str().unwrap().contains("seen.txt"));
    assert!(text(&turns[0]).contains("It is done."));
    world.asked(0).await;
}

#[tokio::test]
async fn a_denied_command_does_not_run() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t", "/edit new.txt text").await;
    world.asked(1).await;
    world.answer(false).await;
    let turns = world.turns(CHAT, 1).await;
    assert_eq!(calls(&turns[0])[0]["status"], "cancelled");
    assert!(!world.path().join("new.txt").exists());
    world.asked(0).await;
}

#[tokio::test]
async fn several_calls_are_asked_about_at_once() {
    let world = World::new(quick()).await;
    world.prompt(CHAT, "t", "/tools 3").await;
    world.asked(3).await;
    world.until(SESSION, |session| session["chats"][0]["status"] == 24).await;
    world.answer(true).await;
    let turns = world.turns(CHAT, 1).await;
    assert!(calls(&turns[0]).iter().all(|call| call["success"] == true), "{turns:#?}");
    assert!(text(&turns[0]).contains("3 of 3 tools"));
}
