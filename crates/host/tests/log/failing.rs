//! When writing fails, the log stops acknowledging, says so, and comes back with everything that it had acknowledged.

use std::sync::atomic::Ordering::Relaxed;

use breakbulk_host::log::sqlite::SqliteLog;
use breakbulk_host::log::{AppendError, Batch, Log, LogHealth, Save, WriteError};

use crate::common::{CHAT, SESSION, body, chat, fill, small, texts, until};

#[tokio::test]
async fn a_batch_whose_commit_failed_is_appended_when_it_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = small();
    let fail = options.faults().fail_before_commit.clone();
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    fill(&log, CHAT, 3, 10).await;
    fail.store(true, Relaxed);
    let batch = Batch::new().entry(CHAT, "again");
    assert_eq!(log.append(batch.clone()).await, Err(AppendError::Unknown));
    until(&log, LogHealth::is_good).await;
    assert_eq!(texts(&log).await.len(), 3);
    assert_eq!(log.append(batch).await, Ok(vec![4]));
    assert_eq!((log.metrics().failures.load(Relaxed), log.metrics().recoveries.load(Relaxed)), (1, 1));
}

#[tokio::test]
async fn a_batch_whose_answer_was_lost_is_in_the_log_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = small();
    let fail = options.faults().fail_after_commit.clone();
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    fill(&log, CHAT, 3, 10).await;
    let mut tail = log.tail(3, breakbulk_host::log::Channels::All);
    fail.store(true, Relaxed);
    let batch = Batch::new().open("b", Some(SESSION)).entry("b", "once");
    assert_eq!(log.append(batch.clone()).await, Err(AppendError::Unknown));
    // Nobody repeats it, and yet it is there for all.
    let page = tail.next(100).await.unwrap();
    assert_eq!((page.len(), page[0].seq, &*page[0].channel), (1, 4, "b"));
    assert_eq!(log.append(batch).await, Ok(vec![4]));
    assert_eq!(texts(&log).await.len(), 4);
}

#[tokio::test]
async fn a_full_store_refuses_whole_batches_and_takes_them_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = small();
    // It is not the disk that is full.
    options.reserve_bytes = 0;
    let most = options.faults().max_pages.clone();
    most.store(100, Relaxed);
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    log.append(chat().entry(CHAT, "1")).await.unwrap();
    let health = log.health();
    let big = Batch::new().entry(CHAT, "2").entry(CHAT, body(0, 1 << 20));
    assert_eq!(log.append(big.clone()).await, Err(AppendError::Full));
    assert!(health.has_changed().unwrap());
    until(&log, LogHealth::is_good).await;
    assert_eq!(log.save(Save::new(CHAT).row(0, body(0, 1 << 20))).await, Err(WriteError::Full));
    until(&log, LogHealth::is_good).await;
    log.append(Batch::new().entry(CHAT, "small")).await.unwrap();
    assert_eq!(texts(&log).await.len(), 2);
    // Room is noticed when the store is opened again, which the next refusal brings about.
    most.store(0, Relaxed);
    let mut seqs = log.append(big.clone()).await;
    for _ in 0..100 {
        if seqs != Err(AppendError::Full) {
            break;
        }
        until(&log, LogHealth::is_good).await;
        seqs = log.append(big.clone()).await;
    }
    seqs.unwrap();
    assert_eq!(texts(&log).await.len(), 4);
    assert!(log.verify().await.unwrap().is_clean());
}

#[tokio::test]
async fn an_erasure_that_a_failure_interrupts_is_finished_by_itself() {
    // A session, and one channel.
    for name in [SESSION, CHAT] {
        let dir = tempfile::tempdir().unwrap();
        let options = small();
        let fail = options.faults().fail_before_commit.clone();
        let log = SqliteLog::open(dir.path(), options).await.unwrap();
        fill(&log, CHAT, 3_000, 10).await;
        log.append(Batch::new().open("kept", None).entry("kept", "kept")).await.unwrap();
        let erase = log.erase(name);
        let failing = async {
            // Between its first step and its last, or before: it is repeated until it is done.
            tokio::time::sleep(std::time::Duration::from_millis(6)).await;
            fail.store(true, Relaxed);
        };
        let (first, ()) = tokio::join!(erase, failing);
        fail.store(false, Relaxed);
        if first.is_err() {
            until(&log, LogHealth::is_good).await;
            log.erase(name).await.unwrap();
        }
        assert_eq!(texts(&log).await.len(), 1);
        log.close().await;
        let log = SqliteLog::open(dir.path(), small()).await.unwrap();
        assert_eq!(texts(&log).await.len(), 1);
        assert_eq!(log.verify().await.unwrap().entries, 1);
    }
}

#[tokio::test]
async fn a_store_that_comes_back_without_what_was_acknowledged_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let options = small();
    let fail = options.faults().fail_before_commit.clone();
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    let seqs = fill(&log, CHAT, 3, 10).await;
    // As a disk does that lost a write which it had confirmed.
    let disk = rusqlite::Connection::open(dir.path().join("log.db")).unwrap();
    disk.execute("DELETE FROM entry WHERE seq = ?1", [i64::try_from(seqs[1]).unwrap()]).unwrap();
    fail.store(true, Relaxed);
    assert_eq!(log.append(Batch::new().entry(CHAT, "x")).await, Err(AppendError::Unknown));
    let health = until(&log, |health| matches!(health, LogHealth::Lost { .. })).await;
    assert_eq!(health, LogHealth::Lost { seq: seqs[1] });
    assert_eq!(log.append(Batch::new().entry(CHAT, "x")).await, Err(AppendError::Unknown));
}
