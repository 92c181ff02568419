//! The agent of `examples/own_agent.rs`, behind a chat.

use std::sync::Arc;

use crate::example::UpperCase;
use crate::test_host::{CHAT, TestHost, text};

#[tokio::test]
async fn the_agent_of_the_example_answers_in_upper_case() {
    let host = TestHost::new(Arc::new(UpperCase)).await;
    host.prompt(CHAT, "1", "hello there").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(text(&turns[0]), "HELLO THERE");
}

#[tokio::test]
async fn the_agent_of_the_example_can_be_cancelled_and_answers_again() {
    let host = TestHost::new(Arc::new(UpperCase)).await;
    host.prompt(CHAT, "1", &"word ".repeat(1_000)).await;
    host.until(CHAT, |chat| chat["activeTurn"]["responseParts"][0]["content"].is_string()).await;
    host.cancel(CHAT, "1").await;
    host.turns(CHAT, 1).await;
    host.prompt(CHAT, "2", "again").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!((turns[0]["state"].as_str(), text(&turns[1]).as_str()), (Some("cancelled"), "AGAIN"));
}
