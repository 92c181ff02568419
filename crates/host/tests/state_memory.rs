//! A long chat costs no memory in proportion to its past, and a window of it is all that is read.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "state/common.rs"]
#[expect(dead_code, reason = "shared with tests that use the rest")]
mod common;

use std::sync::Arc;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Log, Seq};
use breakbulk_host::test_support::state::{StateConfig, entry};

use crate::common::*;

const TURNS: usize = 10_000;
const TURN_BYTES: usize = 10_000;

/// What the process may grow by while nine tenths of the chat, 90 MB, go through it: page caches, buffers, and what each
/// thread keeps of freed memory.
const ROOM: usize = 40 << 20;

/// Memory of this process, all threads, that is really there.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Appends these turns, a hundred at a time, so that each batch is about a megabyte.
async fn append(log: &dyn Log, turns: std::ops::Range<usize>) -> Seq {
    let (text, mut last) = ("x".repeat(TURN_BYTES), 0);
    for first in turns.clone().step_by(100) {
        let mut batch = Batch::new();
        for n in first..(first + 100).min(turns.end) {
            for action in turn_actions(&format!("turn {n}"), &text) {
                let action = serde_json::from_value(action).unwrap();
                batch = batch.entry(CHAT, entry::action(CHAT, &action, None).unwrap());
            }
        }
        last = *log.append(batch).await.unwrap().last().unwrap();
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_of_100_mb_is_followed_and_windowed_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let log: Arc<dyn Log> = Arc::new(SqliteLog::open(dir.path(), Options::default()).await.unwrap());
    begin(&*log, CHAT, &chat()).await;
    let state = open(&log, StateConfig::default()).await;
    let mut seq = append(&*log, 0..TURNS / 10).await;
    state.reached(seq).await.unwrap();
    let before = resident();
    for tenth in 1..10 {
        seq = append(&*log, tenth * TURNS / 10..(tenth + 1) * TURNS / 10).await;
        // On a busy machine a follower is behind, and what it is behind by is in memory.
        state.reached(seq).await.unwrap();
    }
    state.save(CHAT).await.unwrap();
    let grown = resident().saturating_sub(before);
    assert!(grown < ROOM, "{grown} bytes for a chat that nobody reads");
    assert!(state.weight() < 1 << 20, "{}", state.weight());

    let is_window = |len: usize| len > 50 * TURN_BYTES && len < 51 * TURN_BYTES + 50_000;
    assert!(is_window(state.snapshot(CHAT, last(50), seq).await.unwrap().body.len()));
    state.close().await.unwrap();
    let restarted = open(&log, StateConfig::default()).await;
    assert!(is_window(restarted.snapshot(CHAT, last(50), 0).await.unwrap().body.len()));
    let whole = restarted.size_of(CHAT, ALL).await.unwrap();
    println!("a chat of {whole} bytes: resident memory grew by {grown} bytes");
    assert!(whole > (TURNS * TURN_BYTES) as u64);
}
