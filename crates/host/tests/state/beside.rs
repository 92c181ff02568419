//! What side chats know of a chat is what it was when they were made, whatever became of it.

use std::sync::Arc;

use ahp_types::state::{MessageKind, ResponsePart, Turn};
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Log, MemoryLog};
use breakbulk_host::test_support::state::{History, State, StateConfig, StateError, entry};
use serde_json::json;

use crate::common::*;

const SIDE: &str = "ahp-chat:/side";
const OTHER: &str = "ahp-chat:/other";

/// Rows of the chat itself begin far above.
const COPIES: std::ops::Range<u64> = 0..1 << 30;

async fn chat_of(turns: &[&str]) -> Arc<dyn Log> {
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
    begin(&*log, CHAT, &chat()).await;
    for id in turns {
        turn(&*log, id, 10).await;
    }
    log
}

async fn aside(log: &dyn Log, side: &str, turn: Option<&str>) {
    log.append(Batch::new().entry(CHAT, entry::side_chat(CHAT, side, turn).unwrap())).await.unwrap();
}

async fn truncate(log: &dyn Log, turn: &str) {
    act(log, CHAT, json!({"type": "chat/truncated", "turnId": turn})).await;
}

async fn known(state: &State, side: &str) -> History {
    state.catch_up().await.unwrap();
    state.history_for_side_chat(CHAT, side).await.unwrap()
}

/// All turns, read one by one.
pub(crate) async fn all(history: &History) -> Vec<Turn> {
    let mut turns = Vec::new();
    while let Some(turn) = history.page(turns.len() as u64, 1).await.unwrap().pop() {
        turns.push(turn);
    }
    assert_eq!(turns.len() as u64, history.len());
    turns
}

async fn ids_of(history: &History) -> Vec<String> {
    all(history).await.into_iter().map(|turn| turn.id).collect()
}

#[tokio::test]
async fn what_comes_later_is_not_known_and_what_is_taken_back_is() {
    let log = chat_of(&["a", "b", "c", "d"]).await;
    aside(&*log, SIDE, Some("b")).await;
    let state = open(&log, eager()).await;
    let early = known(&state, SIDE).await;
    turn(&*log, "e", 10).await;
    assert_eq!(ids_of(&early).await, ["a", "b"]);
    truncate(&*log, "a").await;
    turn(&*log, "b", 20).await;
    act(&*log, CHAT, json!({"type": "chat/truncated"})).await;
    turn(&*log, "z", 10).await;
    // By who has asked before, who asks now, and who was not there.
    for state in [state.clone(), open(&log, StateConfig::default()).await] {
        let late = known(&state, SIDE).await;
        assert_eq!(ids_of(&late).await, ["a", "b"]);
        let ResponsePart::Markdown(said) = &all(&late).await[1].response_parts[0] else { panic!("{late:?}") };
        assert_eq!((said.content.len(), late.is_unfinished()), (10, false));
        assert_eq!(ids(&seen(&state, &*log, CHAT, ALL).await), ["z"]);
    }
    assert_eq!(ids_of(&early).await, ["a", "b"]);
}

#[tokio::test]
async fn a_turn_that_is_not_over_is_known_as_far_as_it_is() {
    let log = chat_of(&["a"]).await;
    act(&*log, CHAT, started("b")).await;
    aside(&*log, OTHER, Some("b")).await;
    let part = json!({"kind": "markdown", "id": "p", "content": "so "});
    act(&*log, CHAT, json!({"type": "chat/responsePart", "turnId": "b", "part": part})).await;
    let more = |text: &str| json!({"type": "chat/delta", "turnId": "b", "partId": "p", "content": text});
    act(&*log, CHAT, more("far")).await;
    aside(&*log, SIDE, Some("b")).await;
    act(&*log, CHAT, more(", so good")).await;
    act(&*log, CHAT, json!({"type": "chat/turnComplete", "turnId": "b", "duration": 5})).await;
    for config in [eager(), StateConfig::default()] {
        let state = open(&log, config).await;
        let side = known(&state, SIDE).await;
        let turns = all(&side).await;
        assert!(side.is_unfinished() && turns.len() == 2);
        assert_eq!((turns[1].message.text.as_str(), &turns[1].message.origin.kind), ("do", &MessageKind::User));
        assert!(matches!(&turns[1].response_parts[..], [ResponsePart::Markdown(said)] if said.content == "so far"));
        let other = known(&state, OTHER).await;
        assert!(other.is_unfinished() && all(&other).await[1].response_parts.is_empty());
    }
}

#[tokio::test]
async fn a_chat_that_is_no_more_is_still_known_and_so_it_is_when_another_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let log: Arc<dyn Log> = Arc::new(SqliteLog::open(dir.path(), Options::default()).await.unwrap());
    begin(&*log, CHAT, &chat()).await;
    turn(&*log, "a", 10).await;
    act(&*log, CHAT, started("b")).await;
    aside(&*log, SIDE, Some("b")).await;
    log.append(Batch::new().entry(CHAT, entry::closed(CHAT).unwrap())).await.unwrap();
    let state = open(&log, eager()).await;
    assert_eq!(ids_of(&known(&state, SIDE).await).await, ["a", "b"]);
    state.save(CHAT).await.unwrap();
    drop(state);
    let saved = log.snapshot(CHAT).await.unwrap().unwrap().seq;
    log.trim(CHAT, saved + 1).await.unwrap();
    begin(&*log, CHAT, &chat()).await;
    turn(&*log, "c", 10).await;
    aside(&*log, OTHER, Some("c")).await;
    let state = open(&log, eager()).await;
    assert_eq!(ids_of(&known(&state, SIDE).await).await, ["a", "b"]);
    assert_eq!(ids_of(&known(&state, OTHER).await).await, ["c"]);
    assert!(log.verify().await.unwrap().damaged.is_empty());
}

#[tokio::test]
async fn nothing_is_copied_before_the_chat_loses_it_and_nothing_stays_after_the_side_chats() {
    let log = chat_of(&["a", "b", "c", "d"]).await;
    let state = open(&log, StateConfig::default()).await;
    let copies = async || {
        state.catch_up().await.unwrap();
        state.save(CHAT).await.unwrap();
        let rows = log.rows(CHAT, COPIES, usize::MAX).await.unwrap().rows;
        rows.iter().filter(|(_, row)| !row.is_empty()).count()
    };
    aside(&*log, SIDE, Some("d")).await;
    aside(&*log, OTHER, Some("c")).await;
    assert_eq!(copies().await, 0);
    // Both know the third, which is copied once; nobody else does.
    truncate(&*log, "b").await;
    assert_eq!(copies().await, 2);
    aside(&*log, SIDE, None).await;
    assert_eq!((copies().await, known(&state, SIDE).await.len()), (1, 0));
    assert_eq!(ids_of(&known(&state, OTHER).await).await, ["a", "b", "c"]);
    aside(&*log, OTHER, None).await;
    truncate(&*log, "a").await;
    assert_eq!(copies().await, 0);
    assert_eq!(ids(&seen(&state, &*log, CHAT, ALL).await), ["a"]);
}

#[tokio::test]
async fn what_is_large_comes_by_reference_from_turns_that_the_chat_has_no_more() {
    let log = chat_of(&["a"]).await;
    turn(&*log, "b", 300_000).await;
    act(&*log, CHAT, started("c")).await;
    let part = json!({"kind": "markdown", "id": "p", "content": "y".repeat(200_000)});
    act(&*log, CHAT, json!({"type": "chat/responsePart", "turnId": "c", "part": part})).await;
    aside(&*log, SIDE, Some("c")).await;
    truncate(&*log, "a").await;
    turn(&*log, "b", 100).await;
    let state = open(&log, eager()).await;
    let side = known(&state, SIDE).await;
    for (at, text) in [(1, "x".repeat(300_000)), (2, "y".repeat(200_000))] {
        let page = side.page(at, 10_000).await.unwrap();
        let ResponsePart::ContentRef(by) = &page[0].response_parts[0] else { panic!("{page:?}") };
        assert_eq!(side.content(&by.uri).await.unwrap().data, text);
        // The chat itself has something else there.
        assert_eq!(state.content(&by.uri).await, Err(StateError::NotFound));
    }
}

#[tokio::test]
async fn a_side_chat_about_no_turn_knows_nothing() {
    let log = chat_of(&["a"]).await;
    aside(&*log, SIDE, Some("nobody")).await;
    let state = open(&log, StateConfig::default()).await;
    assert!(known(&state, SIDE).await.is_empty() && known(&state, OTHER).await.is_empty());
    assert!(state.history_for_side_chat("ahp-chat:/none", SIDE).await.unwrap().is_empty());
}
