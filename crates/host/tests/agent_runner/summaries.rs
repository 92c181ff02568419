//! Summaries: a session lists its chats, and the catalogue lists the sessions.

use serde_json::{Value, json};

use crate::test_host::{CHAT, OTHER, SESSION, TestHost, quick};

const IDLE: u32 = 1;
const ERROR: u32 = 2;
const INPUT_NEEDED: u32 = 24;

/// The session's list and the catalogue agree with the chats.
async fn agree(host: &TestHost) {
    let session = host.see(SESSION).await;
    let listed = host.listed().await;
    for (at, chat) in session["chats"].as_array().unwrap().iter().enumerate() {
        let state = host.see(chat["resource"].as_str().unwrap()).await;
        assert_eq!((&chat["status"], &chat["modifiedAt"]), (&state["status"], &state["modifiedAt"]), "{chat}");
        let compact = &listed["chats"][at];
        let same = |name: &str| compact[name] == chat[name];
        assert!(same("status") && same("title") && same("resource"), "{compact} {chat}");
    }
    assert_eq!(listed["title"], session["title"]);
}

#[tokio::test]
async fn lists_show_what_a_chat_is_doing() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t", "/run true").await;
    let of = |status: u32| move |listed: &Value| listed["chats"][0]["status"] == status && listed["status"] == status;
    host.until_listed(of(INPUT_NEEDED)).await;
    assert_eq!(host.see(SESSION).await["chats"][0]["status"], INPUT_NEEDED);
    host.answer(true).await;
    let listed = host.until_listed(of(IDLE)).await;
    agree(&host).await;
    assert!(listed["modifiedAt"].as_str().unwrap() >= "2026-01-01T00:00:00.000Z", "{listed}");
    host.prompt(CHAT, "t2", "/fail").await;
    host.until_listed(of(ERROR)).await;
    agree(&host).await;
    let notices = host.entries("ahp-root://").await;
    let notices = notices.iter().filter(|entry| entry["method"] == "root/sessionSummaryChanged").count();
    assert!(notices <= 10, "{notices} for two turns");
}

#[tokio::test]
async fn a_chat_that_needs_somebody_speaks_for_its_session() {
    let host = TestHost::new(quick()).await;
    host.prompt(OTHER, "t", "/run true").await;
    host.until_listed(|listed| listed["status"] == INPUT_NEEDED).await;
    host.prompt(CHAT, "t", "hello").await;
    host.turns(CHAT, 1).await;
    host.until(SESSION, |session| session["chats"][0]["status"] == IDLE).await;
    let listed = host.listed().await;
    assert_eq!((&listed["status"], &listed["chats"][1]["status"]), (&json!(INPUT_NEEDED), &json!(INPUT_NEEDED)));
    host.cancel(OTHER, "t").await;
    host.until_listed(|listed| listed["status"] == IDLE).await;
    agree(&host).await;
}

#[tokio::test]
async fn the_first_prompt_gives_chat_and_session_their_title() {
    let host = TestHost::new(quick()).await;
    host.prompt(CHAT, "t1", "\n Why is the sky blue? \nAnd so on.").await;
    host.turns(CHAT, 1).await;
    let listed = host.until_listed(|listed| listed["title"] == "Why is the sky blue?").await;
    assert_eq!(listed["chats"][0]["title"], "Why is the sky blue?");
    assert_eq!(host.see(SESSION).await["title"], "Why is the sky blue?");
    host.prompt(OTHER, "t", "Something else").await;
    host.until_listed(|listed| listed["chats"][1]["title"] == "Something else").await;
    host.prompt(CHAT, "t2", "A second prompt").await;
    host.turns(CHAT, 2).await;
    let session = host.until(SESSION, |session| session["chats"][0]["status"] == IDLE).await;
    assert_eq!((&session["title"], &session["chats"][0]["title"]), (&json!("Why is the sky blue?"), &session["title"]));
}

#[tokio::test]
async fn what_a_client_marks_in_a_chat_is_shown() {
    let host = TestHost::new(quick()).await;
    host.act(CHAT, json!({"type": "chat/isReadChanged", "isRead": true})).await;
    host.until(SESSION, |session| session["chats"][0]["status"] == IDLE | 32).await;
    host.until_listed(|listed| listed["chats"][0]["status"] == IDLE | 32).await;
    host.prompt(CHAT, "t", "/run true").await;
    // A new turn is not read.
    host.until_listed(|listed| listed["chats"][0]["status"] == INPUT_NEEDED).await;
    host.act(CHAT, json!({"type": "chat/isArchivedChanged", "isArchived": true})).await;
    host.until_listed(|listed| listed["chats"][0]["status"] == INPUT_NEEDED | 64).await;
    agree(&host).await;
}
