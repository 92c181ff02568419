//! The embedded log does what its laws say: appends, tails, reads, merges, fences.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::common::{CHAT, all, arc, body, chat, fill, join, open, small, texts, until};
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{
    AppendError, Batch, Bytes, Channels, Log, LogHealth, NewEntry, OpenError, ReadError, Save, WriteError,
};

#[tokio::test]
async fn what_was_appended_is_there_after_a_reopen_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let first = log.append(chat().entry(CHAT, "1").entry(CHAT, "2")).await.unwrap();
    let second = log.append(Batch::new().entry(CHAT, "3")).await.unwrap();
    assert!(first[0] < first[1] && first[1] < second[0]);
    let before = texts(&log).await;
    log.close().await;
    let log = open(&dir).await;
    assert_eq!(texts(&log).await, before);
    let third = log.append(Batch::new().entry(CHAT, "4")).await.unwrap();
    assert!(third > second);
    assert_eq!(log.bounds().await.unwrap().last, third[0]);
}

#[tokio::test]
async fn a_batch_that_comes_again_has_the_seqs_that_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let batch = chat().entry(CHAT, "1").entry(CHAT, "2");
    let (a, b) = tokio::join!(log.append(batch.clone()), log.append(batch.clone()));
    assert_eq!(a, b);
    log.close().await;
    let log = open(&dir).await;
    assert_eq!(log.append(batch).await, a);
    assert_eq!(texts(&log).await.len(), 2);
    assert_eq!(log.metrics().repeated.load(Relaxed), 1);
}

#[tokio::test]
async fn a_batch_with_a_wrong_expectation_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let seqs = log.append(chat().entry(CHAT, "1").expect(CHAT, 0)).await.unwrap();
    let refused = log.append(Batch::new().open("b", None).entry("b", "x").entry(CHAT, "2").expect(CHAT, 0)).await;
    assert_eq!(refused, Err(AppendError::Conflict { channel: arc(CHAT), expected: 0, last: seqs[0] }));
    assert_eq!(log.append(Batch::new().entry("b", "x")).await, Err(AppendError::NotOpen(arc("b"))));
    assert_eq!(log.append(Batch::new().open(CHAT, None)).await, Err(AppendError::OtherSession(arc(CHAT))));
    log.append(Batch::new().entry(CHAT, "3").expect(CHAT, seqs[0])).await.unwrap();
    assert_eq!(texts(&log).await.len(), 2);
}

#[tokio::test]
async fn of_many_who_expect_the_same_end_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    log.append(chat()).await.unwrap();
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let log = log.clone();
            tokio::spawn(async move { log.append(Batch::new().entry(CHAT, body(n, 1)).expect(CHAT, 0)).await })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => won += 1,
            Err(error) => assert!(matches!(error, AppendError::Conflict { last: 1, .. }), "{error}"),
        }
    }
    assert_eq!(won, 1);
}

#[tokio::test]
async fn deltas_that_wait_together_become_one_entry_and_share_its_seq() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = small();
    options.merge = Some(Arc::new(|deltas: &[Bytes]| Some(Bytes::from(deltas.concat()))));
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    log.append(chat()).await.unwrap();
    let delta = |text: String| NewEntry::new(CHAT, text).part("turn 1");
    let tasks: Vec<_> = (0..500).map(|n| log.append(Batch::new().push(delta(format!("[{n}]"))))).collect();
    // Polled in order, so queued in order.
    let mut seqs = Vec::new();
    for answer in join(tasks).await {
        seqs.extend(answer.unwrap());
    }
    assert!(seqs.is_sorted());
    let entries = texts(&log).await;
    assert!(entries.len() < 100, "{} entries", entries.len());
    let whole: Vec<u8> = entries.iter().flat_map(|(_, body)| body.to_vec()).collect();
    assert_eq!(whole, (0..500).map(|n| format!("[{n}]")).collect::<String>().into_bytes());
    // Every delta has the seq of the entry that it is in.
    for (n, seq) in seqs.iter().enumerate() {
        let (_, body) = entries.iter().find(|(found, _)| found == seq).unwrap();
        assert!(String::from_utf8_lossy(body).contains(&format!("[{n}]")));
    }
    assert_eq!(log.metrics().merged.load(Relaxed), 500 - entries.len() as u64);
}

#[tokio::test]
async fn deltas_of_other_parts_or_around_another_entry_do_not_merge() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = small();
    options.merge = Some(Arc::new(|deltas: &[Bytes]| Some(Bytes::from(deltas.concat()))));
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    let delta = |part: &str, text: &'static str| NewEntry::new(CHAT, text).part(part);
    let batch = chat().push(delta("a", "1")).push(delta("a", "2")).push(delta("b", "3")).entry(CHAT, "4");
    let seqs = log.append(batch.push(delta("b", "5")).push(delta("b", "6"))).await.unwrap();
    assert_eq!(seqs, [1, 1, 2, 3, 4, 4]);
    let bodies: Vec<_> = texts(&log).await.into_iter().map(|(_, body)| body).collect();
    assert_eq!(bodies, ["12", "3", "4", "56"]);
}

#[tokio::test]
async fn a_tail_waits_for_what_is_not_durable_yet_and_passes_over_other_channels() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let mut tail = log.tail(0, Channels::only([CHAT]));
    log.append(chat().open("other", None).entry("other", "0")).await.unwrap();
    assert_eq!(tail.ready(100).await, Ok(vec![]));
    let waiting = tokio::spawn(async move { (tail.next(100).await.unwrap(), tail) });
    let seqs = log.append(Batch::new().entry("other", "1").entry(CHAT, "2")).await.unwrap();
    let (page, tail) = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert_eq!((page.len(), page[0].seq, &page[0].body[..]), (1, seqs[1], &b"2"[..]));
    assert_eq!(tail.position(), seqs[1]);
}

#[tokio::test]
async fn a_tail_far_behind_reads_bounded_pages_from_the_file_and_then_joins_the_shared_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = small();
    options.recent_bytes = 10_000;
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    fill(&log, CHAT, 1_000, 100).await;
    let (mut tail, mut seen, mut largest) = (log.tail(0, Channels::All), Vec::new(), 0);
    while seen.len() < 1_000 {
        let page = tail.next(2_000).await.unwrap();
        largest = largest.max(page.iter().map(|entry| entry.body.len()).sum());
        seen.extend(page.into_iter().map(|entry| entry.seq));
    }
    assert!(largest <= 2_000);
    assert!(seen.is_sorted() && seen.windows(2).all(|two| two[0] < two[1]));
    assert!(log.metrics().pages_read.load(Relaxed) > 40);
    assert!(log.metrics().pages_shared.load(Relaxed) > 0);
    assert!(log.metrics().recent_bytes.load(Relaxed) <= 10_000);
}

#[tokio::test]
async fn readers_of_the_newest_entries_share_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    log.append(chat().entry(CHAT, body(1, 1 << 20))).await.unwrap();
    let mut pointers = Vec::new();
    for _ in 0..3 {
        pointers.push(log.tail(0, Channels::All).next(1).await.unwrap()[0].body.as_ptr());
    }
    assert!(pointers.windows(2).all(|two| two[0] == two[1]));
}

#[tokio::test]
async fn a_channel_is_read_in_bounded_pages() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let seqs =
        log.append(chat().open("b", None).entry(CHAT, "11").entry("b", "0").entry(CHAT, "22").entry(CHAT, "33")).await;
    let seqs = seqs.unwrap();
    let page = log.read(CHAT, 0..u64::MAX, 4).await.unwrap();
    assert_eq!(page.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [seqs[0], seqs[2]]);
    let rest = log.read(CHAT, seqs[2] + 1..u64::MAX, 1).await.unwrap();
    assert_eq!((rest.len(), rest[0].seq), (1, seqs[3]));
    assert_eq!(log.read(CHAT, seqs[0]..seqs[2], 100).await.unwrap().len(), 1);
    assert_eq!(log.read("nobody", 0..100, 100).await, Ok(vec![]));
}

#[tokio::test]
async fn a_snapshot_and_its_rows_come_back_as_they_were_saved() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let last = fill(&log, CHAT, 10, 1).await[9];
    let save = (0..100).fold(Save::new(CHAT).snapshot(last, "v1", "{}"), |save, n| save.row(n, body(n, 10)));
    log.save(save.clone()).await.unwrap();
    log.save(save).await.unwrap();
    log.close().await;
    let log = open(&dir).await;
    let snapshot = log.snapshot(CHAT).await.unwrap().unwrap();
    assert_eq!((snapshot.seq, &*snapshot.version, &snapshot.body[..]), (last, "v1", &b"{}"[..]));
    let rows = log.rows(CHAT, 90..1_000, 1 << 20).await.unwrap();
    assert_eq!((rows.total, rows.rows.len(), rows.rows[0].0), (100, 10, 90));
    assert_eq!(rows.rows[0].1, body(90, 10));
    log.save(Save::new(CHAT).cut_rows(50).row(50, "new")).await.unwrap();
    let rows = log.rows(CHAT, 49..1_000, 1).await.unwrap();
    assert_eq!((rows.total, rows.rows.len()), (51, 1));
    assert_eq!(log.save(Save::new(CHAT).snapshot(last - 1, "v", "")).await, Err(WriteError::Older { saved: last }));
    assert_eq!(log.save(Save::new(CHAT).snapshot(99, "v", "")).await, Err(WriteError::Future { seq: 99 }));
    assert_eq!(log.save(Save::new("b")).await, Err(WriteError::NotOpen(arc("b"))));
}

#[tokio::test]
async fn a_second_writer_is_refused_and_a_reader_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    fill(&log, CHAT, 3, 1).await;
    let second = SqliteLog::open(dir.path(), Options::default()).await;
    let error = second.err().unwrap();
    assert!(matches!(error, OpenError::InUse(_)));
    assert!(error.to_string().ends_with("is in use by another writer"), "{error}");
    let reader = SqliteLog::open_for_reading(dir.path()).await.unwrap();
    assert_eq!(texts(&reader).await, texts(&log).await);
    assert_eq!(reader.append(Batch::new().entry(CHAT, "x")).await, Err(AppendError::Closed));
    assert_eq!(reader.save(Save::new(CHAT)).await, Err(WriteError::Closed));
    drop(reader);
    log.close().await;
    let reader = SqliteLog::open_for_reading(dir.path()).await.unwrap();
    assert_eq!(texts(&reader).await.len(), 3);
}

#[tokio::test]
async fn a_merge_that_panics_ends_the_log_and_leaves_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = small();
    options.merge = Some(Arc::new(|_: &[Bytes]| -> Option<Bytes> { panic!("a bug in the host") }));
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    let delta = |text: &'static str| NewEntry::new(CHAT, text).part("p");
    assert_eq!(log.append(chat().push(delta("1")).push(delta("2"))).await, Err(AppendError::Unknown));
    until(&log, |health| *health == LogHealth::Closed).await;
    assert_eq!(log.append(chat()).await, Err(AppendError::Closed));
    assert_eq!(texts(&open(&dir).await).await, []);
}

#[cfg(unix)]
#[tokio::test]
async fn the_files_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let log = SqliteLog::open(dir.path().join("a/b"), small()).await.unwrap();
    fill(&log, CHAT, 3, 1).await;
    for file in std::fs::read_dir(dir.path().join("a/b")).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", file.path());
    }
}

#[tokio::test]
async fn an_older_writer_is_fenced_when_a_later_one_took_over() {
    let dir = tempfile::tempdir().unwrap();
    let older = open(&dir).await;
    fill(&older, CHAT, 1, 1).await;
    // As on a file system whose locks got lost.
    std::fs::remove_file(dir.path().join("log.lock")).unwrap();
    let later = open(&dir).await;
    assert_eq!(older.append(Batch::new().entry(CHAT, "x")).await, Err(AppendError::Fenced));
    assert_eq!(older.append(Batch::new().entry(CHAT, "x")).await, Err(AppendError::Fenced));
    assert_eq!(*older.health().borrow(), LogHealth::Fenced);
    later.append(Batch::new().entry(CHAT, "y")).await.unwrap();
    assert_eq!(texts(&later).await.len(), 2);
}

#[tokio::test]
async fn a_closed_log_refuses_and_its_last_handle_frees_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    log.close().await;
    assert_eq!(log.append(chat()).await, Err(AppendError::Closed));
    let log = open(&dir).await;
    drop(log);
    for _ in 0..500 {
        match SqliteLog::open(dir.path(), small()).await {
            Ok(_) => return,
            Err(OpenError::InUse(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("still locked");
}

#[tokio::test]
async fn a_batch_over_the_limit_is_refused_and_one_over_the_queue_waits_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = small();
    (options.max_batch_bytes, options.max_queued_bytes) = (100_000, 1_000);
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    let over = log.append(chat().entry(CHAT, body(0, 100_000))).await;
    assert!(matches!(over, Err(AppendError::TooLarge { limit: 100_000, .. })));
    let all = join((0..10).map(|n| log.append(chat().entry(CHAT, body(n, 50_000)))).collect()).await;
    assert!(all.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_tail_from_before_the_window_survives_a_failure_of_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let options = small();
    let fail = options.faults().fail_before_commit.clone();
    let log = SqliteLog::open(dir.path(), options).await.unwrap();
    fill(&log, CHAT, 10, 1).await;
    fail.store(true, Relaxed);
    assert_eq!(log.append(Batch::new().entry(CHAT, "x")).await, Err(AppendError::Unknown));
    until(&log, LogHealth::is_good).await;
    let seqs = log.append(Batch::new().entry(CHAT, "y")).await.unwrap();
    let entries = all(&log, 0, Channels::All).await.unwrap();
    assert_eq!((entries.len(), entries[10].seq), (11, seqs[0]));
    assert!(matches!(log.read(CHAT, 0..5, 100).await, Ok(page) if page.len() == 4));
    assert_ne!(log.read(CHAT, 0..5, 100).await, Err(ReadError::Closed));
}
