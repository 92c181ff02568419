//! Trimming, retaining, erasing, verifying, exporting, and logs of other versions.

use std::path::Path;
use std::time::Duration;

use breakbulk_host::log::sqlite::SqliteLog;
use breakbulk_host::log::{
    AppendError, Batch, Channels, DamagedRecord, Log, NewEntry, OpenError, ReadError, RetentionPolicy, Save, WriteError,
};

use crate::common::{CHAT, SESSION, all, arc, body, chat, fill, open, small, texts};

#[tokio::test]
async fn only_what_a_snapshot_stands_for_is_trimmed_and_readers_behind_it_hear_where_the_log_begins() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(&dir).await;
    let seqs = fill(&log, CHAT, 10, 1).await;
    log.append(Batch::new().open("other", None).entry("other", "0")).await.unwrap();
    assert_eq!(log.trim(CHAT, 2).await, Err(WriteError::NoSnapshot { saved: 0 }));
    assert_eq!(log.trim("nobody", 2).await, Err(WriteError::NotOpen(arc("nobody"))));
    log.save(Save::new(CHAT).snapshot(seqs[4], "v", "{}")).await.unwrap();
    assert_eq!(log.trim(CHAT, seqs[6]).await, Err(WriteError::NoSnapshot { saved: seqs[4] }));
    assert_eq!(log.trim(CHAT, seqs[5]).await, Ok(5));
    for _ in 0..2 {
        let first = seqs[4] + 1;
        assert_eq!(all(&log, 0, Channels::All).await, Err(ReadError::Trimmed { first }));
        assert_eq!(all(&log, seqs[3], Channels::only([CHAT])).await, Err(ReadError::Trimmed { first }));
        assert_eq!(log.read(CHAT, seqs[4]..99, 100).await, Err(ReadError::Trimmed { first }));
        assert_eq!(all(&log, first - 1, Channels::All).await.unwrap().len(), 6);
        assert_eq!(log.read(CHAT, first..99, 1_000).await.unwrap().len(), 5);
        // Who follows only other channels has lost nothing.
        assert_eq!(all(&log, 0, Channels::only(["other"])).await.unwrap().len(), 1);
        assert_eq!(log.bounds().await.unwrap().first, first);
        assert_eq!(log.channels(None).await.unwrap()[0].first, first);
        log.close().await;
        log = open(&dir).await;
    }
}

#[tokio::test]
async fn a_seq_is_not_used_again_when_the_last_entries_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let last = fill(&log, CHAT, 10, 1).await[9];
    log.save(Save::new(CHAT).snapshot(last, "v", "{}")).await.unwrap();
    assert_eq!(log.trim(CHAT, last + 1).await, Ok(10));
    log.close().await;
    let log = open(&dir).await;
    assert_eq!(log.bounds().await.unwrap().last, last);
    assert_eq!(log.channels(None).await.unwrap()[0].last, last);
    let later = log.append(Batch::new().entry(CHAT, "x").expect(CHAT, last)).await.unwrap();
    assert!(later[0] > last);
    log.erase(SESSION).await.unwrap();
    log.close().await;
    let log = open(&dir).await;
    assert!(log.append(chat().entry(CHAT, "x")).await.unwrap() > later);
}

#[tokio::test]
async fn retention_by_age_and_size_stops_at_the_saved_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let seqs = fill(&log, CHAT, 100, 10_000).await;
    fill(&log, "unsaved", 100, 10).await;
    log.save(Save::new(CHAT).snapshot(seqs[79], "v", "{}")).await.unwrap();
    assert_eq!(log.retain(RetentionPolicy::default()).await, Ok(0));
    let policy = |max_bytes, max_age| RetentionPolicy { max_bytes, max_age, ..RetentionPolicy::default() };
    assert_eq!(log.retain(policy(Some(100 << 20), Some(Duration::from_secs(3_600)))).await, Ok(0));
    let gone = log.retain(policy(Some(800_000), None)).await.unwrap();
    assert!((20..70).contains(&gone), "{gone} entries went");
    tokio::time::sleep(Duration::from_millis(5)).await;
    let rest = log.retain(policy(None, Some(Duration::from_millis(1)))).await.unwrap();
    assert_eq!(gone + rest, 80);
    assert_eq!(log.read(CHAT, seqs[80]..u64::MAX, 1 << 20).await.unwrap().len(), 20);
    assert_eq!(log.read("unsaved", 0..u64::MAX, 1 << 20).await.unwrap().len(), 100);
}

#[tokio::test]
async fn a_batch_is_known_for_as_long_as_the_policy_says() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let batch = chat().entry(CHAT, "x");
    let seqs = log.append(batch.clone()).await.unwrap();
    log.retain(RetentionPolicy::default()).await.unwrap();
    assert_eq!(log.append(batch.clone()).await.unwrap(), seqs);
    tokio::time::sleep(Duration::from_millis(5)).await;
    log.retain(RetentionPolicy { ids_for: Duration::ZERO, ..RetentionPolicy::default() }).await.unwrap();
    assert_ne!(log.append(batch).await.unwrap(), seqs);
}

#[tokio::test]
async fn an_erased_session_is_nowhere_in_the_files_and_others_are_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let secret = |n: u64, len: usize| format!(r#"{{"n":{n},"text":"XYZZY{}"}}"#, "PLUGH".repeat(len));
    let mut batch = Batch::new().open("root", None).open("xyzzy-chat", Some("xyzzy")).open("keep", Some("kept"));
    for n in 0..200 {
        batch = batch.entry("xyzzy-chat", secret(n, usize::try_from(n * 20).unwrap())).entry("keep", body(n, 50));
    }
    log.append(batch.push(NewEntry::new("root", secret(0, 1)).about("xyzzy")).entry("root", "kept")).await.unwrap();
    let last = log.append(Batch::new().open("xyzzy-term", Some("xyzzy")).entry("xyzzy-term", "1")).await.unwrap()[0];
    let save = Save::new("xyzzy-chat").snapshot(last, "v", secret(1, 2_000));
    log.save((0..300).fold(save, |save, n| save.row(n, secret(n, 300)))).await.unwrap();
    log.save(Save::new("xyzzy-term").snapshot(last, "v", "{}")).await.unwrap();
    log.trim("xyzzy-chat", last / 2).await.unwrap();
    assert!(traces(dir.path()) > 0);
    assert!(log.erase("xyzzy").await.unwrap() > 100);
    assert_eq!(traces(dir.path()), 0);
    // In memory neither, and nothing can be appended by somebody who has not heard.
    let left = all(&log, 0, Channels::All).await.unwrap();
    assert_eq!(left.len(), 201);
    assert_eq!(log.append(Batch::new().entry("xyzzy-chat", "1")).await, Err(AppendError::NotOpen(arc("xyzzy-chat"))));
    assert_eq!(log.read("xyzzy-chat", 0..99, 99).await, Ok(vec![]));
    assert_eq!(log.rows("xyzzy-chat", 0..99, 99).await.unwrap().total, 0);
    assert_eq!(log.snapshot("xyzzy-chat").await, Ok(None));
    assert_eq!(log.channels(Some("xyzzy")).await, Ok(vec![]));
    log.close().await;
    let log = open(&dir).await;
    assert_eq!(all(&log, 0, Channels::All).await.unwrap(), left);
    assert_eq!(traces(dir.path()), 0);
    assert!(log.verify().await.unwrap().is_clean());
    log.compact().await.unwrap();
    assert_eq!(all(&log, 0, Channels::All).await.unwrap(), left);
}

/// How often the secret's words are in any file.
fn traces(dir: &Path) -> usize {
    let files = std::fs::read_dir(dir).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let words: [&[u8]; 3] = [b"XYZZY", b"PLUGH", b"xyzzy"];
    files.map(|bytes| bytes.windows(5).filter(|five| words.contains(five)).count()).sum()
}

#[tokio::test]
async fn a_damaged_entry_is_named_and_everything_before_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let seqs = fill(&log, CHAT, 100, 50).await;
    log.save(Save::new(CHAT).snapshot(1, "v", "SNAPSHOT").row(7, "THE ROW")).await.unwrap();
    assert!(log.verify().await.unwrap().is_clean());
    log.compact().await.unwrap();
    log.close().await;
    for (from, to) in [(r#"{"n":60,"#, r#"{"n":66,"#), ("SNAPSHOT", "SNAPSHUT"), ("THE ROW", "THE RAW")] {
        damage(&dir.path().join("log.db"), from, to);
    }
    let log = open(&dir).await;
    let damaged = DamagedRecord::Entry { seq: seqs[60] };
    let mut tail = log.tail(0, Channels::All);
    let mut served = Vec::new();
    let error = loop {
        match tail.next(1_000).await {
            Ok(page) => served.extend(page.into_iter().map(|entry| entry.seq)),
            Err(error) => break error,
        }
    };
    assert_eq!(error, ReadError::Damaged(damaged.clone()));
    assert_eq!(served, seqs[..60]);
    assert_eq!(tail.next(1).await, Err(error.clone()));
    tail.seek(seqs[60]);
    assert_eq!(tail.next(1).await.unwrap()[0].seq, seqs[61]);
    assert_eq!(log.read(CHAT, seqs[60]..99, 99).await, Err(error));
    let (row, snapshot) =
        (DamagedRecord::Row { channel: arc(CHAT), index: 7 }, DamagedRecord::Snapshot { channel: arc(CHAT) });
    assert_eq!(log.rows(CHAT, 0..10, 99).await, Err(ReadError::Damaged(row.clone())));
    assert_eq!(log.snapshot(CHAT).await, Err(ReadError::Damaged(snapshot.clone())));
    let report = log.verify().await.unwrap();
    assert_eq!((report.damaged, report.entries), (vec![damaged, snapshot, row], 99));
}

#[tokio::test]
async fn a_broken_page_is_reported_with_the_seqs_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    fill(&log, CHAT, 1_000, 500).await;
    log.compact().await.unwrap();
    log.close().await;
    let (file, mut bytes) = (dir.path().join("log.db"), std::fs::read(dir.path().join("log.db")).unwrap());
    let at = bytes.windows(9).position(|nine| nine == br#"{"n":600,"#).unwrap() / 4_096 * 4_096;
    bytes[at..at + 4_096].fill(0x77);
    std::fs::write(file, bytes).unwrap();
    let log = open(&dir).await;
    let mut tail = log.tail(0, Channels::All);
    let error = loop {
        if let Err(error) = tail.next(10_000).await {
            break error;
        }
    };
    let ReadError::Damaged(DamagedRecord::Entries { first, last }) = error else { panic!("{error}") };
    assert_eq!(first, tail.position() + 1);
    assert!(first <= 601 && last >= 601 && last - first < 10, "{first} to {last}");
    tail.seek(last);
    assert_eq!(tail.next(1).await.unwrap()[0].seq, last + 1);
    let report = log.verify().await.unwrap();
    assert!(!report.faults.is_empty() && report.entries == 1_000 - (last + 1 - first));
}

fn damage(file: &Path, from: &str, to: &str) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect("there");
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_log_of_version_1_opens_with_all_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/log/fixtures/version-1.db");
    std::fs::copy(fixture, dir.path().join("log.db")).unwrap();
    assert!(matches!(SqliteLog::open_for_reading(dir.path()).await, Err(OpenError::Store { .. })));
    let log = open(&dir).await;
    let entries = texts(&log).await;
    assert_eq!(entries.len(), 4);
    assert_eq!(entries[0], (1, r#"{"type":"session/ready"}"#.into()));
    assert_eq!(entries[3], (7, r#"{"type":"chat/delta","content":"hello"}"#.into()));
    assert!(log.verify().await.unwrap().is_clean());
    let snapshot = log.snapshot(CHAT).await.unwrap().unwrap();
    assert_eq!((snapshot.seq, &*snapshot.version), (5, "1.0.0"));
    assert_eq!(log.rows(CHAT, 0..9, 99).await.unwrap().rows, [(0, r#"{"id":"turn-1"}"#.into())]);
    let known = Batch::with_id(breakbulk_host::log::BatchId::from_bytes([0x11; 16])).entry(CHAT, "again");
    assert_eq!(log.append(known).await, Ok(vec![7]));
    let new = log.append(Batch::new().entry(CHAT, "new").expect(CHAT, 7)).await.unwrap();
    assert!(new[0] > 7);
    log.close().await;
    assert_eq!(texts(&open(&dir).await).await.len(), 5);
}

#[tokio::test]
async fn a_log_of_a_later_version_and_a_file_that_is_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir).await.close().await;
    let file = dir.path().join("log.db");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(dir.path().join("log.db-wal")).unwrap();
    // The version is at byte 60 of the header.
    let mut later = bytes.clone();
    later[60..64].copy_from_slice(&99_u32.to_be_bytes());
    std::fs::write(&file, later).unwrap();
    let error = SqliteLog::open(dir.path(), small()).await.err().unwrap();
    assert!(error.to_string().contains("has version 99, and this program knows versions up to 3"), "{error}");
    std::fs::write(&file, "Dear diary, ".repeat(1_000)).unwrap();
    assert!(matches!(SqliteLog::open(dir.path(), small()).await, Err(OpenError::NotALog(_))));
    let missing = SqliteLog::open_for_reading(dir.path().join("nowhere")).await;
    assert!(matches!(missing, Err(OpenError::Missing(_))));
}

#[tokio::test]
async fn an_export_has_one_json_line_for_everything_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    let batch = chat().open("other", None).entry(CHAT, "{\n\"a\": 1}").entry("other", "not json").entry(CHAT, "2");
    let last = log.append(batch).await.unwrap()[2];
    log.save(Save::new(CHAT).snapshot(1, "v", "[]").row(0, "{}")).await.unwrap();
    // As the host numbers and writes them: from the middle on, and with a header, here one that looks like JSON.
    let rows = Save::new("other").row(1 << 31, "{\0\0\0\0\0\0\0{\"id\":1}").row((1 << 31) + 1, "neither");
    log.save(rows).await.unwrap();
    let counts = log.usage().await.unwrap().into_iter().map(|usage| (usage.entries, usage.rows));
    assert_eq!(counts.collect::<Vec<_>>(), [(2, 1), (1, 2)]);
    log.trim(CHAT, 2).await.unwrap();
    let mut text = Vec::new();
    log.export(Channels::All, &mut text).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    let at = |line: &str| {
        line.find(r#""at":"#).map_or_else(|| line.to_owned(), |at| format!("{}…{}", &line[..at], &line[at + 18..]))
    };
    let lines: Vec<String> = text.lines().map(at).collect();
    assert_eq!(
        lines,
        [
            r#"{"log":"breakbulk","version":3,"first":2,"last":3}"#,
            r#"{"channel":"ahp-chat:/1","session":"ahp-session:/1","first":2,"last":3,"snapshot":{"seq":1,"version":"v","body":[]}}"#,
            r#"{"channel":"ahp-chat:/1","row":0,"body":{}}"#,
            r#"{"channel":"other","session":null,"first":1,"last":2}"#,
            r#"{"channel":"other","row":2147483648,"body":{"id":1}}"#,
            r#"{"channel":"other","row":2147483649,"body":{"invalid":"neither"}}"#,
            r#"{"seq":2,…,"channel":"other","body":{"invalid":"not json"}}"#,
            r#"{"seq":3,…,"channel":"ahp-chat:/1","body":2}"#,
        ]
    );
    assert_eq!(last, 3);
}
