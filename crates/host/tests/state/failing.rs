//! A damaged, trimmed or foreign past is handled as documented.

use std::sync::Arc;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Log, MemoryLog, Save};
use breakbulk_host::test_support::state::StateConfig;
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
async fn a_damaged_entry_is_passed_over_and_shown_in_its_chat_which_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(&dir).await;
    let entries = log.read(CHAT, 1..1 << 62, 1 << 20).await.unwrap();
    // The second turn's end.
    let bad = entries[6].seq;
    let log = damage(&dir, log, &format!("UPDATE entry SET crc = crc + 1 WHERE seq = {bad}")).await;
    let state = open(&log, StateConfig::default()).await;
    let snapshot = state.snapshot(CHAT, ALL, 0).await.unwrap();
    assert!(snapshot.from_seq >= entries[9].seq);
    let chat = json_of(&snapshot);
    assert_eq!(ids(&chat), ["a", "b", "c"]);
    let parts = chat["turns"][1]["responseParts"].as_array().unwrap();
    assert_eq!(
        (parts.len(), &parts[0]["content"], &parts[1]["kind"]),
        (2, &json!("x".repeat(10)), &json!("systemNotification"))
    );
    let told = parts[1]["content"].as_str().unwrap();
    assert!(told.contains(&format!("the host's log is damaged at entry {bad}")), "{told}");
    // It takes actions, and keeps what it shows when it is saved and loaded again.
    assert_eq!(state.read(CHAT, |_, seq| seq).await, Ok(entries[9].seq));
    turn(&*log, "d", 10).await;
    let shown = seen(&state, &*log, CHAT, ALL).await;
    assert_eq!(ids(&shown), ["a", "b", "c", "d"]);
    state.save(CHAT).await.unwrap();
    let again = open(&log, StateConfig::default()).await;
    assert_eq!(seen(&again, &*log, CHAT, ALL).await, shown);
    assert_eq!(log.metrics().damaged.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(seen(&state, &*log, TERMINAL, ALL).await["content"][0]["value"], json!("hello"));
    let seq = act(&*log, TERMINAL, json!({"type": "terminal/data", "data": "!"})).await;
    state.reached(seq).await.unwrap();
    assert_eq!(seen(&state, &*log, TERMINAL, ALL).await["content"][0]["value"], json!("hello!"));
}

#[tokio::test]
async fn a_damaged_entry_between_two_turns_is_a_turn_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(&dir).await;
    let entries = log.read(CHAT, 1..1 << 62, 1 << 20).await.unwrap();
    // The second turn's beginning: without it, the rest of that turn has no meaning.
    let bad = entries[4].seq;
    let log = damage(&dir, log, &format!("UPDATE entry SET crc = crc + 1 WHERE seq = {bad}")).await;
    let state = open(&log, StateConfig::default()).await;
    let chat = seen(&state, &*log, CHAT, ALL).await;
    assert_eq!(ids(&chat), ["a".to_owned(), format!("damaged-{bad}"), "c".to_owned()]);
    assert_eq!(chat["turns"][1]["message"]["origin"]["kind"], "systemNotification");
}

#[tokio::test]
async fn a_channel_whose_beginning_is_damaged_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(&dir).await;
    let bad = log.read(CHAT, 1..1 << 62, 1).await.unwrap()[0].seq;
    let log = damage(&dir, log, &format!("UPDATE entry SET crc = crc + 1 WHERE seq = {bad}")).await;
    let state = open(&log, StateConfig::default()).await;
    assert!(state.snapshot(CHAT, ALL, 0).await.is_err());
    assert_eq!(seen(&state, &*log, TERMINAL, ALL).await["content"][0]["value"], json!("hello"));
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
async fn in_place_of_a_damaged_row_is_a_turn_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(&dir).await;
    let state = open(&log, StateConfig::default()).await;
    seen(&state, &*log, CHAT, ALL).await;
    state.close().await.unwrap();
    drop(state);
    let log = damage(&dir, log, "UPDATE part SET crc = crc + 1 WHERE id = (SELECT min(id) FROM part)").await;
    let state = open(&log, StateConfig::default()).await;
    assert_eq!(ids(&seen(&state, &*log, CHAT, last(2)).await), ["b", "c"]);
    let chat = seen(&state, &*log, CHAT, ALL).await;
    let shown = ids(&chat);
    assert!(shown[0].starts_with("damaged-row-") && shown[1..] == ["b", "c"], "{shown:?}");
    let told = chat["turns"][0]["message"]["text"].as_str().unwrap();
    assert!(told.contains("its record in the host's log is damaged"), "{told}");
    // What does not fit whole is measured without it, about.
    assert!(state.size_of(CHAT, ALL).await.unwrap() > 100);
    turn(&*log, "d", 10).await;
    assert_eq!(ids(&seen(&state, &*log, CHAT, ALL).await)[1..], ["b", "c", "d"]);
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
    let snapshot = state.snapshot(TERMINAL, ALL, two).await.unwrap();
    assert_eq!(json_of(&snapshot)["content"][0]["value"], json!("two"));
}
