//! A damaged, trimmed or foreign past is handled as documented.

use std::sync::Arc;

use breakbulk_host::log::{DamagedRecord, Log, MemoryLog, Options, Save, SqliteLog};
use breakbulk_host::state::{StateConfig, StateError};
use rusqlite::Connection;
use serde_json::json;

use crate::common::*;

/// A chat and a terminal in a file.
async fn written(dir: &tempfile::TempDir) -> Arc<dyn Log> {
    let log: Arc<dyn Log> = Arc::new(SqliteLog::open(dir.path(), Options::default()).await.unwrap());
    begin(&*log, TERMINAL, &terminal()).await;
    begin(&*log, CHAT, &chat()).await;
    for id in ["a", "b", "c"] {
        turn(&*log, id, 10).await;
    }
    act(&*log, TERMINAL, json!({"type": "terminal/data", "data": "hello"})).await;
    log
}

/// Closes the log, changes its file, and opens it again.
async fn damage(dir: &tempfile::TempDir, log: Arc<dyn Log>, sql: &str) -> Arc<dyn Log> {
    drop(log);
    let file = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "db")).unwrap();
    for _ in 0..100 {
        let changed = Connection::open(&file).and_then(|file| file.execute(sql, []));
        if changed.is_ok_and(|changed| changed > 0)
            && let Ok(log) = SqliteLog::open(dir.path(), Options::default()).await
        {
            return Arc::new(log);
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the file cannot be changed");
}

#[tokio::test]
async fn a_channel_with_a_damaged_entry_is_answered_for_as_it_was_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(&dir).await;
    let entries = log.read(CHAT, 1..1_000, 1 << 20).await.unwrap();
    // The second turn's end.
    let bad = entries[6].seq;
    let log = damage(&dir, log, &format!("UPDATE entry SET crc = crc + 1 WHERE seq = {bad}")).await;
    let state = open(&log, StateConfig::default()).await;
    let shot = state.snapshot(CHAT, ALL, 0).await.unwrap();
    assert_eq!(shot.from_seq, entries[5].seq);
    let chat = json_of(&shot);
    assert_eq!((ids(&chat), &chat["activeTurn"]["id"]), (vec!["a"], &json!("b")));
    let refused = state.read(CHAT, |_, _| ()).await.unwrap_err();
    assert_eq!(refused, StateError::Damaged(DamagedRecord::Entry { seq: bad }));
    assert_eq!(seen(&state, &*log, TERMINAL, ALL).await["content"][0]["value"], json!("hello"));
    let seq = act(&*log, TERMINAL, json!({"type": "terminal/data", "data": "!"})).await;
    state.reached(seq).await.unwrap();
    assert_eq!(seen(&state, &*log, TERMINAL, ALL).await["content"][0]["value"], json!("hello!"));
}

#[tokio::test]
async fn a_damaged_snapshot_is_passed_over_while_the_entries_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(&dir).await;
    let state = open(&log, StateConfig::default()).await;
    let whole = seen(&state, &*log, CHAT, ALL).await;
    state.close().await.unwrap();
    drop(state);
    let log = damage(&dir, log, "UPDATE snapshot SET crc = crc + 1").await;
    let state = open(&log, StateConfig::default()).await;
    assert_eq!(seen(&state, &*log, CHAT, ALL).await, whole);
}

#[tokio::test]
async fn a_damaged_row_fails_what_needs_that_turn_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(&dir).await;
    let state = open(&log, StateConfig::default()).await;
    seen(&state, &*log, CHAT, ALL).await;
    state.close().await.unwrap();
    drop(state);
    let log = damage(&dir, log, "UPDATE part SET crc = crc + 1 WHERE id = (SELECT min(id) FROM part)").await;
    let state = open(&log, StateConfig::default()).await;
    assert_eq!(ids(&seen(&state, &*log, CHAT, last(2)).await), ["b", "c"]);
    let failed = state.snapshot(CHAT, ALL, 0).await.unwrap_err();
    assert!(matches!(failed, StateError::Damaged(DamagedRecord::Row { .. })), "{failed}");
}

#[tokio::test]
async fn a_snapshot_of_other_reducers_is_used_only_where_its_past_is_trimmed() {
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
    begin(&*log, TERMINAL, &terminal()).await;
    let seq = act(&*log, TERMINAL, json!({"type": "terminal/data", "data": "right"})).await;
    let mut other = serde_json::to_value(terminal()).unwrap();
    other["title"] = json!("other");
    let body = json!({"kind": "terminal", "state": other}).to_string();
    log.save(Save::new(TERMINAL).snapshot(seq, "ahp 0.9.0", body)).await.unwrap();
    let state = open(&log, StateConfig::default()).await;
    assert_eq!(seen(&state, &*log, TERMINAL, ALL).await["title"], json!("sh"));
    log.trim(TERMINAL, seq + 1).await.unwrap();
    let state = open(&log, StateConfig::default()).await;
    assert_eq!(seen(&state, &*log, TERMINAL, ALL).await["title"], json!("other"));
}

#[tokio::test]
async fn a_follower_that_trimming_overtook_goes_on_from_snapshots() {
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
    begin(&*log, TERMINAL, &terminal()).await;
    // Nothing runs between these: the follower has not seen any of it when it is gone.
    let state = open(&log, StateConfig::default()).await;
    let one = act(&*log, TERMINAL, json!({"type": "terminal/data", "data": "one"})).await;
    let body = json!({"kind": "terminal", "state": terminal()}).to_string();
    log.save(Save::new(TERMINAL).snapshot(one, "ahp 1.0.0", body)).await.unwrap();
    log.trim(TERMINAL, one + 1).await.unwrap();
    let two = act(&*log, TERMINAL, json!({"type": "terminal/data", "data": "two"})).await;
    let shot = state.snapshot(TERMINAL, ALL, two).await.unwrap();
    assert_eq!(json_of(&shot)["content"][0]["value"], json!("two"));
}
