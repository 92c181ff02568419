//! What the state answers, in quiet times.

use std::sync::Arc;

use ahp_types::notifications::{SessionAddedParams, SessionRemovedParams, SessionSummaryChangedParams};
use ahp_types::state::SnapshotState;
use breakbulk_host::log::{Batch, Log, MemoryLog};
use breakbulk_host::test_support::state::entry::{self, CatalogueNotification};
use breakbulk_host::test_support::state::{StateConfig, StateError};
use serde_json::json;

use crate::common::*;

fn memory() -> Arc<dyn Log> {
    Arc::new(MemoryLog::new())
}

/// A chat with these completed turns.
async fn chat_of(turns: &[&str]) -> Arc<dyn Log> {
    let log = memory();
    begin(&*log, CHAT, &chat()).await;
    for id in turns {
        turn(&*log, id, 10).await;
    }
    log
}

#[tokio::test]
async fn a_snapshot_has_all_turns_unless_fewer_are_wanted() {
    let log = chat_of(&["a", "b", "c"]).await;
    let state = open(&log, StateConfig::default()).await;
    let whole = seen(&state, &*log, CHAT, ALL).await;
    assert_eq!((ids(&whole), whole.get("turnsNextCursor")), (vec!["a", "b", "c"], None));
    let windowed = seen(&state, &*log, CHAT, last(2)).await;
    assert_eq!(ids(&windowed), ["b", "c"]);
    assert!(windowed["turnsNextCursor"].is_string());
    assert_eq!(windowed["_meta"], whole["_meta"]);
    let exact = seen(&state, &*log, CHAT, last(3)).await;
    assert_eq!(exact, whole);
    assert_eq!(ids(&seen(&state, &*log, CHAT, last(0)).await), ["c"]);
}

#[tokio::test]
async fn older_turns_come_page_by_page_and_the_last_page_has_no_cursor() {
    let log = chat_of(&["a", "b", "c", "d", "e"]).await;
    let state = open(&log, eager()).await;
    let windowed = seen(&state, &*log, CHAT, last(1)).await;
    let first = state.fetch_turns(CHAT, windowed["turnsNextCursor"].as_str(), usize::MAX).await.unwrap().unwrap();
    let action: serde_json::Value = serde_json::from_slice(&first.action.to_bytes()).unwrap();
    assert_eq!((&action["type"], ids(&action)), (&json!("chat/turnsLoaded"), vec!["c", "d"]));
    let second = state.fetch_turns(CHAT, action["turnsNextCursor"].as_str(), usize::MAX).await.unwrap().unwrap();
    let action: serde_json::Value = serde_json::from_slice(&second.action.to_bytes()).unwrap();
    assert_eq!((ids(&action), action.get("turnsNextCursor")), (vec!["a", "b"], None));
    assert!(state.fetch_turns(CHAT, Some("before-80000000"), usize::MAX).await.unwrap().is_none());
    assert!(state.fetch_turns(CHAT, None, usize::MAX).await.unwrap().is_none());
    for wrong in ["", "before-", "before-0", "before-ffffffffff", "3"] {
        assert_eq!(state.fetch_turns(CHAT, Some(wrong), usize::MAX).await.unwrap_err(), StateError::Cursor);
    }
}

#[tokio::test]
async fn a_truncated_chat_ends_with_the_turn_that_is_kept_and_a_resumed_one_is_active_again() {
    let log = chat_of(&["a", "b", "c"]).await;
    let state = open(&log, eager()).await;
    act(&*log, CHAT, json!({"type": "chat/truncated", "turnId": "a"})).await;
    act(&*log, CHAT, started("d")).await;
    act(&*log, CHAT, errored("d", true)).await;
    assert_eq!(ids(&seen(&state, &*log, CHAT, ALL).await), ["a", "d"]);
    assert_eq!(state.resumable(CHAT).await.unwrap(), Some("d".into()));
    act(&*log, CHAT, json!({"type": "chat/turnResume", "turnId": "d"})).await;
    let resumed = seen(&state, &*log, CHAT, ALL).await;
    assert_eq!((ids(&resumed), &resumed["activeTurn"]["id"]), (vec!["a"], &json!("d")));
    assert_eq!(state.resumable(CHAT).await.unwrap(), None);
    assert_eq!(state.history_through(CHAT, "a").await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn loaded_turns_are_before_the_others_and_a_cursor_from_outside_is_passed_on() {
    let log = chat_of(&["c", "d"]).await;
    let state = open(&log, eager()).await;
    let whole = seen(&state, &*log, CHAT, ALL).await;
    let older = |id: &str| {
        let mut turn = whole["turns"][0].clone();
        turn["id"] = json!(id);
        turn
    };
    let loaded =
        json!({"type": "chat/turnsLoaded", "turns": [older("a"), older("b"), older("c")], "turnsNextCursor": "x"});
    act(&*log, CHAT, loaded).await;
    let whole = seen(&state, &*log, CHAT, ALL).await;
    assert_eq!((ids(&whole), &whole["turnsNextCursor"]), (vec!["a", "b", "c", "d"], &json!("x")));
    let windowed = seen(&state, &*log, CHAT, last(3)).await;
    assert_ne!(windowed["turnsNextCursor"], json!("x"));
    let page = state.fetch_turns(CHAT, windowed["turnsNextCursor"].as_str(), usize::MAX).await.unwrap().unwrap();
    let action: serde_json::Value = serde_json::from_slice(&page.action.to_bytes()).unwrap();
    assert_eq!((ids(&action), &action["turnsNextCursor"]), (vec!["a"], &json!("x")));
}

#[tokio::test]
async fn a_check_is_told_the_seq_of_the_channels_last_entry() {
    let log = chat_of(&["a"]).await;
    begin(&*log, TERMINAL, &terminal()).await;
    let state = open(&log, StateConfig::default()).await;
    let expected = state.read(CHAT, |_, seq| seq).await.unwrap();
    let batch = || Batch::new().expect(CHAT, expected).entry(CHAT, "{}");
    let seq = log.append(batch()).await.unwrap()[0];
    state.reached(seq).await.unwrap();
    assert_eq!(state.read(CHAT, |_, seq| seq).await.unwrap(), seq);
    assert!(log.append(batch()).await.is_err());
    let is_chat = state.read(CHAT, |state, _| matches!(state, SnapshotState::Chat(_))).await.unwrap();
    assert!(is_chat);
    assert_eq!(state.read("ahp-chat:/2", |_, _| ()).await.unwrap_err(), StateError::NotFound);
    assert_eq!(state.fetch_turns(TERMINAL, None, usize::MAX).await.unwrap_err(), StateError::NotAChat);
}

#[tokio::test]
async fn what_means_nothing_changes_nothing() {
    let log = chat_of(&["a"]).await;
    let state = open(&log, StateConfig::default()).await;
    let before = seen(&state, &*log, CHAT, ALL).await;
    let refused = json!({"channel": CHAT, "action": started("b"), "rejectionReason": "no"});
    for body in [
        "{}".to_owned(),
        "[]".into(),
        "{".into(),
        r#"{"method":"later/thing","params":{}}"#.into(),
        refused.to_string(),
    ] {
        log.append(Batch::new().entry(CHAT, body)).await.unwrap();
    }
    act(&*log, CHAT, json!({"type": "later/action"})).await;
    act(&*log, CHAT, json!({"type": "terminal/data", "data": "x"})).await;
    log.append(Batch::new().open("ahp-chat:/2", None).entry("ahp-chat:/2", "{}")).await.unwrap();
    assert_eq!(seen(&state, &*log, CHAT, ALL).await, before);
    let nothing = state.snapshot("ahp-chat:/2", ALL, 0).await.unwrap_err();
    assert_eq!((nothing.code(), nothing), (-32008, StateError::NotFound));
}

#[tokio::test]
async fn sessions_are_listed_the_most_recently_modified_first() {
    let log = memory();
    let state = open(&log, eager()).await;
    let mut batch = Batch::new().open(ROOT, None);
    for n in 1..=5 {
        let summary = summary(&format!("ahp-session:/{n}"), &format!("2026-01-0{n}T00:00:00.000Z"));
        let added = CatalogueNotification::Added(Box::new(SessionAddedParams { channel: ROOT.into(), summary }));
        batch = batch.entry(ROOT, entry::catalogue(&added).unwrap());
    }
    let removed =
        CatalogueNotification::Removed(SessionRemovedParams { channel: ROOT.into(), session: "ahp-session:/4".into() });
    let changes = serde_json::from_value(json!({"title": "New", "modifiedAt": "2026-02-01T00:00:00.000Z"})).unwrap();
    let changed = SessionSummaryChangedParams { channel: ROOT.into(), session: "ahp-session:/2".into(), changes };
    batch = batch.entry(ROOT, entry::catalogue(&removed).unwrap());
    batch = batch.entry(ROOT, entry::catalogue(&CatalogueNotification::Changed(Box::new(changed))).unwrap());
    let end = *log.append(batch).await.unwrap().last().unwrap();
    for state in [state, open(&log, eager()).await] {
        state.reached(end).await.unwrap();
        let names = |page: &ahp_types::commands::ListSessionsResult| {
            page.items.iter().map(|item| item.resource.clone()).collect::<Vec<_>>()
        };
        let all = state.sessions(&list(None, None)).await.unwrap();
        assert_eq!(names(&all), ["ahp-session:/2", "ahp-session:/5", "ahp-session:/3", "ahp-session:/1"]);
        assert_eq!((all.next_cursor, all.items[0].title.as_str()), (None, "New"));
        let first = state.sessions(&list(Some(3), None)).await.unwrap();
        let second = state.sessions(&list(Some(3), first.next_cursor.clone())).await.unwrap();
        assert_eq!((names(&first).len(), names(&second), second.next_cursor), (3, vec!["ahp-session:/1".into()], None));
        assert_eq!(state.sessions(&list(None, Some("7".into()))).await.unwrap_err(), StateError::Cursor);
        assert_eq!(state.session("ahp-session:/4").await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_closed_state_has_saved_everything_and_the_next_one_reads_no_entries() {
    let log = chat_of(&["a", "b"]).await;
    begin(&*log, SESSION, &session()).await;
    let state = open(&log, StateConfig::default()).await;
    act(&*log, SESSION, json!({"type": "session/titleChanged", "title": "New"})).await;
    let (whole, title) = (seen(&state, &*log, CHAT, ALL).await, seen(&state, &*log, SESSION, ALL).await);
    state.close().await.unwrap();
    for info in log.channels(None).await.unwrap() {
        assert_eq!(info.snapshot, Some(info.last));
        log.trim(&info.channel, info.last + 1).await.unwrap();
    }
    let state = open(&log, StateConfig::default()).await;
    assert_eq!(seen(&state, &*log, CHAT, ALL).await, whole);
    assert_eq!(seen(&state, &*log, SESSION, ALL).await, title);
}

#[tokio::test]
async fn channels_that_nobody_uses_are_forgotten_when_memory_is_short() {
    let log = memory();
    let config = StateConfig { max_bytes: 300_000, ..StateConfig::default() };
    let state = open(&log, config).await;
    for n in 0..20 {
        let channel = format!("ahp-terminal:/{n}");
        begin(&*log, &channel, &terminal()).await;
        let seq = act(&*log, &channel, json!({"type": "terminal/data", "data": "x".repeat(50_000)})).await;
        state.reached(seq).await.unwrap();
    }
    let short = async {
        while state.weight() > config.max_bytes {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), short).await.unwrap();
    for n in 0..20 {
        let terminal = seen(&state, &*log, &format!("ahp-terminal:/{n}"), ALL).await;
        assert_eq!(terminal["content"][0]["value"].as_str().unwrap().len(), 50_000);
    }
}

#[tokio::test]
async fn an_erased_session_is_gone_from_memory_too() {
    let log = chat_of(&["a"]).await;
    let state = open(&log, StateConfig::default()).await;
    seen(&state, &*log, CHAT, ALL).await;
    state.forget(SESSION).await.unwrap();
    log.erase(SESSION).await.unwrap();
    assert_eq!(state.snapshot(CHAT, ALL, 0).await.unwrap_err(), StateError::NotFound);
}
