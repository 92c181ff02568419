//! A turn can be cancelled after any event, by a client or by the host.

use std::time::Duration;

use ahp_types::state::{SessionStatus, TurnState};
use breakbulk_host::agent::demo::DemoConfig;
use breakbulk_host::agent::{AgentError, EventsConfig};
use breakbulk_lifecycle::{Answer, Event, Outcome};
use tempfile::tempdir;

use crate::test_agent::{Reply, Stage, prompt};

/// Scripts that together have every kind of open block and call.
const PROMPTS: [&str; 4] = ["/think", "/fail", "/big 1KB", "/tools 2"];

#[tokio::test]
async fn a_client_may_cancel_after_any_event() {
    let directory = tempdir().unwrap();
    for text in PROMPTS {
        for cut in 0.. {
            let mut stage = Stage::new(directory.path()).await;
            stage.send(text).await;
            if !advance(&mut stage, cut).await {
                break;
            }
            stage.cancel().await;
            let actions = stage.screen.actions.len();
            while stage.next(&Reply::Nothing).await {}
            assert_eq!(stage.screen.actions.len(), actions, "nothing is said after the cancel");
            let turn = stage.screen.last_turn();
            assert_eq!(turn.state, TurnState::Cancelled, "{text} {cut}");
            assert!(stage.screen.asked().is_empty());
            assert_eq!(stage.screen.chat().status & 31, SessionStatus::Idle.bits());
        }
    }
}

#[tokio::test]
async fn the_host_may_cancel_after_any_event() {
    let directory = tempdir().unwrap();
    for text in PROMPTS {
        for cut in (0..).step_by(3) {
            let mut stage = Stage::new(directory.path()).await;
            stage.send(text).await;
            if !advance(&mut stage, cut).await {
                break;
            }
            let turn = stage.screen.chat().active_turn.as_ref().unwrap().id.clone();
            stage.conversation.cancel(turn.as_str().into()).await.unwrap();
            while stage.next(&Reply::Nothing).await {}
            let state = stage.screen.last_turn().state;
            // It may have said its last word before it heard of it.
            let is_over =
                matches!(stage.events.last(), Some(Event::TurnEnded { outcome, .. }) if *outcome != Outcome::Cancelled);
            assert!(state == TurnState::Cancelled || is_over, "{text} {cut}");
            assert!(stage.screen.asked().is_empty());
        }
    }
}

/// Takes so many events; false if the turn was over before.
async fn advance(stage: &mut Stage, count: usize) -> bool {
    // The first event is the token, which is said before any turn.
    for _ in 0..=count {
        if !stage.next(&Reply::Allow).await {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn after_a_cancel_the_next_turn_is_answered() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.send("/slow hello").await;
    assert!(advance(&mut stage, 10).await);
    stage.cancel().await;
    while stage.next(&Reply::Nothing).await {}
    stage.play("hello", &Reply::Nothing).await;
    assert_eq!(stage.screen.last_turn().state, TurnState::Complete);
    assert_eq!(stage.screen.chat().turns.len(), 2);
}

#[tokio::test]
async fn a_turn_that_begins_before_the_cancelled_one_has_ended_is_told_when_the_agent_is_free() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.send("/think").await;
    assert!(advance(&mut stage, 10).await);
    stage.cancel().await;
    stage.send("hello").await;
    while stage.next(&Reply::Nothing).await {}
    assert_eq!(stage.screen.chat().turns.len(), 1, "only the agent's end of the cancelled turn was heard");
    while stage.next(&Reply::Nothing).await {}
    let turns = &stage.screen.chat().turns;
    assert_eq!((turns[0].state, turns[1].state), (TurnState::Cancelled, TurnState::Complete));
    assert!(turns[1].response_parts.len() == 2, "{turns:?}");
}

#[tokio::test]
async fn an_agent_whose_queue_is_full_still_takes_what_it_is_told() {
    let directory = tempdir().unwrap();
    let events = EventsConfig { max_events: 1, ..EventsConfig::default() };
    let config = DemoConfig { events, ..DemoConfig::default() };
    let stage = Stage::with(directory.path(), config).await;
    let told = async {
        stage.conversation.send(prompt("t", "/think")).await.unwrap();
        stage.conversation.cancel("t".into()).await.unwrap();
        assert_eq!(stage.conversation.send(prompt("u", "hello")).await, Err(AgentError::Busy));
        stage.conversation.dispose().await;
    };
    tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
}

#[tokio::test]
async fn one_turn_at_a_time_and_only_what_is_asked_can_be_answered() {
    let directory = tempdir().unwrap();
    let stage = Stage::new(directory.path()).await;
    assert_eq!(stage.conversation.answer("x".into(), Answer::yes()).await, Err(AgentError::NotAsked));
    assert_eq!(stage.conversation.cancel("t".into()).await, Ok(()));
    stage.conversation.send(prompt("t", "/run true")).await.unwrap();
    assert_eq!(stage.conversation.send(prompt("u", "hello")).await, Err(AgentError::Busy));
    assert_eq!(AgentError::Busy.code(), -32004);
}

#[tokio::test]
async fn a_disposed_conversation_ends_its_turn_and_its_stream() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.send("/run true").await;
    assert!(advance(&mut stage, 5).await);
    tokio::time::timeout(Duration::from_secs(20), stage.conversation.dispose()).await.unwrap();
    while stage.next(&Reply::Nothing).await {}
    assert_eq!(stage.screen.last_turn().state, TurnState::Cancelled);
    assert!(stage.stream.next().await.is_none());
    assert_eq!(stage.conversation.send(prompt("t", "hello")).await, Err(AgentError::Ended));
}

#[tokio::test]
async fn an_agent_that_dies_in_the_middle_of_a_turn_has_failed_it() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.send("/run true").await;
    assert!(advance(&mut stage, 5).await);
    let Stage { conversation, mut stream, .. } = stage;
    drop(conversation);
    let mut last = None;
    while let Some(event) = stream.next().await {
        last = Some(event.into_event());
    }
    assert!(
        matches!(&last, Some(Event::TurnEnded { outcome: Outcome::Failed(failure), .. }) if failure.kind == "agentEnded"),
        "{last:?}"
    );
}
