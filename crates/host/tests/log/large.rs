//! Large batches are written in pieces, so that nobody waits for all of one; and are as whole as others.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use breakbulk_host::log::sqlite::SqliteLog;
use breakbulk_host::log::{AppendError, Batch, Channels, Log, LogHealth, Save};

use crate::common::{CHAT, SESSION, all, body, chat, join, open, small, texts, until};

const LONG: usize = 5 << 20;

/// Rows in the table of pieces.
fn pieces(dir: &Path) -> u64 {
    let disk = rusqlite::Connection::open(dir.join("log.db")).unwrap();
    disk.query_row("SELECT count(*) FROM piece WHERE id >= 0", [], |row| row.get(0)).unwrap()
}

/// A batch with long bodies, short ones, and a long one that is a delta.
fn mixed() -> Batch {
    let delta = breakbulk_host::log::NewEntry::new(CHAT, body(4, 100_000)).part("p");
    chat().entry(CHAT, body(1, LONG)).entry(CHAT, body(2, 10)).entry(CHAT, body(3, 200_000)).push(delta)
}

#[tokio::test]
async fn a_large_batch_is_whole_after_a_reopen_and_leaves_nothing_when_it_is_trimmed_or_erased() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let batch = mixed();
    let seqs = log.append(batch.clone()).await.unwrap();
    assert!(pieces(dir.path()) > 8);
    let written: Vec<_> = batch.entries.iter().map(|entry| entry.body.clone()).collect();
    let read =
        |texts: Vec<(u64, breakbulk_host::log::Bytes)>| texts.into_iter().map(|(_, body)| body).collect::<Vec<_>>();
    assert_eq!(read(texts(&log).await), written);
    log.close().await;
    let log = open(&dir).await;
    assert_eq!(read(texts(&log).await), written);
    assert_eq!(log.append(batch).await, Ok(seqs.clone()));
    let report = log.verify().await.unwrap();
    assert!(report.is_clean() && report.entries == 4, "{report:?}");
    let bytes: usize = written.iter().map(|body| body.len()).sum();
    assert_eq!(log.usage().await.unwrap()[0].bytes, bytes as u64);
    // The first one is trimmed, the others are erased.
    log.save(Save::new(CHAT).snapshot(seqs[0], "v", "{}")).await.unwrap();
    let before = pieces(dir.path());
    assert_eq!(log.trim(CHAT, seqs[0] + 1).await, Ok(1));
    assert_eq!(pieces(dir.path()), before - 11);
    assert_eq!(log.erase(SESSION).await, Ok(3));
    assert_eq!(pieces(dir.path()), 0);
}

#[tokio::test]
async fn a_damaged_piece_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let seqs = log.append(mixed()).await.unwrap();
    log.close().await;
    let disk = rusqlite::Connection::open(dir.path().join("log.db")).unwrap();
    disk.execute("DELETE FROM piece WHERE id = (SELECT max(id) - 2 FROM piece WHERE id < (1 << 17))", []).unwrap();
    drop(disk);
    let log = open(&dir).await;
    let damaged = breakbulk_host::log::DamagedRecord::Entry { seq: seqs[0] };
    assert_eq!(log.verify().await.unwrap().damaged, [damaged]);
}

#[tokio::test]
async fn a_small_batch_passes_large_ones_that_came_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    log.append(chat().open("other", None)).await.unwrap();
    let large = |n| Batch::new().from_source("bulk").entry(CHAT, body(n, LONG));
    let mut batches: Vec<_> = (0..20).map(large).collect();
    batches.push(Batch::new().from_source("person").entry("other", "small"));
    let appends = batches.into_iter().map(|batch| log.append(batch)).collect();
    let seqs: Vec<_> = join(appends).await.into_iter().map(|seqs| seqs.unwrap()[0]).collect();
    assert!(seqs[..20].is_sorted(), "{seqs:?}");
    assert!(seqs[20] < seqs[19], "{seqs:?}");
}

#[tokio::test]
async fn a_large_batch_that_is_refused_or_cut_off_leaves_no_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let options = small();
    let fail = options.faults().fail_before_commit.clone();
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    log.append(chat()).await.unwrap();
    let wrong = Batch::new().entry(CHAT, body(1, LONG)).expect(CHAT, 99);
    assert!(matches!(log.append(wrong).await, Err(AppendError::Conflict { .. })));
    // Somebody else is faster while it is written.
    let late = Batch::new().from_source("bulk").entry(CHAT, body(1, 8 * LONG)).expect(CHAT, 0);
    let (late, quick) = tokio::join!(log.append(late), async {
        while pieces(dir.path()) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        log.append(Batch::new().from_source("person").entry(CHAT, "quick")).await
    });
    assert!(quick.is_ok() && matches!(late, Err(AppendError::Conflict { .. })), "{late:?}");
    assert_eq!(pieces(dir.path()), 0);
    // The store fails while it is written: it comes again, and is there once.
    let again = Batch::new().entry(CHAT, body(2, LONG));
    fail.store(true, Relaxed);
    assert_eq!(log.append(again.clone()).await, Err(AppendError::Unknown));
    until(&log, LogHealth::is_good).await;
    let seqs = log.append(again.clone()).await.unwrap();
    assert_eq!(log.append(again).await, Ok(seqs));
    assert_eq!((texts(&log).await.len(), pieces(dir.path())), (2, 11));
    log.close().await;
    // As after a crash in the middle.
    let disk = rusqlite::Connection::open(dir.path().join("log.db")).unwrap();
    disk.execute("INSERT INTO piece VALUES (9 << 16, x'00'), ((9 << 16) + 1, x'00')", []).unwrap();
    drop(disk);
    let log = open(&dir).await;
    assert_eq!(pieces(dir.path()), 11);
    assert!(log.verify().await.unwrap().is_clean());
}

#[tokio::test]
async fn a_session_that_is_erased_while_a_large_batch_is_written_for_it_is_nowhere_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    log.append(chat().open("kept", None).entry("kept", "kept")).await.unwrap();
    let secret = Batch::new().entry(CHAT, "XYZZY".repeat(8 << 20));
    let (late, erased) = tokio::join!(log.append(secret), async {
        while pieces(dir.path()) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        log.erase(SESSION).await
    });
    assert!(matches!(late, Err(AppendError::NotOpen(_))) && erased.is_ok(), "{late:?} {erased:?}");
    for name in ["log.db", "log.db-wal"] {
        let bytes = std::fs::read(dir.path().join(name)).unwrap();
        assert!(!bytes.windows(10).any(|ten| ten == b"XYZZYXYZZY"), "{name}");
    }
    assert_eq!(all(&log, 0, Channels::All).await.unwrap().len(), 1);
}
