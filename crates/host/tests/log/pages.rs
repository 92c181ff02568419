//! Pages of the file that SQLite cannot read: everything else is read, and the log is written on.

use std::collections::BTreeSet;
use std::path::Path;

use breakbulk_host::log::sqlite::SqliteLog;
use breakbulk_host::log::{Batch, Channels, Log, OpenError, ReadError, Save, Seq};

use crate::common::{body, small};

const PAGE: usize = 4_096;
const CHANNELS: [&str; 3] = ["ahp-chat:/0", "ahp-chat:/1", "ahp-chat:/2"];
const COUNT: u64 = 150;

/// The file of a log of three sessions, whose bodies have the numbers of their seqs.
async fn file() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let log = SqliteLog::open(dir.path(), small()).await.unwrap();
    let sessions = ["ahp-session:/0", "ahp-session:/1", "ahp-session:/2"];
    let mut batch = Batch::new();
    for (channel, session) in CHANNELS.into_iter().zip(sessions) {
        batch = batch.open(channel, Some(session));
    }
    for (n, channel) in (1..=COUNT).zip(CHANNELS.into_iter().cycle()) {
        batch = batch.entry(channel, body(n, 300));
    }
    log.append(batch).await.unwrap();
    log.save(Save::new(CHANNELS[0]).snapshot(COUNT, "v", "{}").row(0, "{}")).await.unwrap();
    log.compact().await.unwrap();
    log.close().await;
    std::fs::read(dir.path().join("log.db")).unwrap()
}

/// The numbers of the bodies in some bytes.
fn numbers(bytes: &[u8]) -> BTreeSet<Seq> {
    let text = String::from_utf8_lossy(bytes);
    text.split(r#"{"n":"#).skip(1).filter_map(|rest| rest.split(',').next()?.parse().ok()).collect()
}

/// Puts the file into a directory, with a page of zeros.
fn write(dir: &Path, file: &[u8], page: usize) {
    let mut bytes = file.to_vec();
    bytes[page * PAGE..(page + 1) * PAGE].fill(0);
    std::fs::write(dir.join("log.db"), bytes).unwrap();
}

/// The numbers of all entries that can be followed, and the seqs that were named as damaged.
async fn follow(log: &dyn Log) -> (BTreeSet<Seq>, BTreeSet<Seq>) {
    let (mut tail, mut found, mut damaged) = (log.tail(0, Channels::All), BTreeSet::new(), BTreeSet::new());
    loop {
        match tail.ready(2_000).await {
            Ok(page) if page.is_empty() => return (found, damaged),
            Ok(page) => found.extend(page.iter().flat_map(|entry| numbers(&entry.body))),
            Err(ReadError::Damaged(record)) => {
                let end = record.end().expect("an entry");
                assert!(end > tail.position(), "{record} at {}", tail.position());
                damaged.extend(tail.position() + 1..=end);
                tail.seek(end);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The numbers of a channel's entries that can be read, and the seqs that were named as damaged.
async fn read(log: &dyn Log, channel: &str) -> (BTreeSet<Seq>, BTreeSet<Seq>) {
    let (mut from, mut found, mut damaged) = (0, BTreeSet::new(), BTreeSet::new());
    loop {
        from = match log.read(channel, from..1 << 50, 2_000).await {
            Ok(page) => {
                found.extend(page.iter().flat_map(|entry| numbers(&entry.body)));
                let Some(last) = page.last() else { return (found, damaged) };
                last.seq + 1
            }
            Err(ReadError::Damaged(record)) => {
                let end = record.end().expect("an entry");
                damaged.insert(end);
                end + 1
            }
            Err(error) => panic!("{error}"),
        };
    }
}

#[tokio::test]
async fn an_unreadable_page_of_entries_costs_only_the_entries_on_it() {
    let (file, all) = (file().await, (1..=COUNT).collect::<BTreeSet<_>>());
    assert_eq!(numbers(&file), all);
    let pages: Vec<_> = file.chunks(PAGE).map(numbers).enumerate().filter(|(_, lost)| !lost.is_empty()).collect();
    assert!(pages.len() > 10, "{} pages", pages.len());
    for (page, lost) in pages {
        let whole: BTreeSet<_> = all.difference(&lost).copied().collect();
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &file, page);

        let log = SqliteLog::open_for_reading(dir.path()).await.unwrap();
        let mut export = Vec::new();
        let damaged = log.export(Channels::All, &mut export).await.unwrap();
        assert!(!damaged.is_empty(), "page {page}");
        assert_eq!(numbers(&export), whole, "page {page}");
        let report = log.verify().await.unwrap();
        assert_eq!((report.entries, report.damaged.is_empty()), (whole.len() as u64, false), "page {page}");
        drop(log);

        let log = SqliteLog::open(dir.path(), small()).await.unwrap();
        let (found, damaged) = follow(&log).await;
        assert_eq!((&found, damaged.is_superset(&lost)), (&whole, true), "page {page}: {damaged:?}");
        assert!(damaged.is_disjoint(&whole), "page {page}: {damaged:?}");
        for (n, channel) in CHANNELS.iter().enumerate() {
            let of_channel = |seqs: &BTreeSet<Seq>| -> BTreeSet<Seq> {
                seqs.iter().copied().filter(|seq| (seq - 1) % 3 == n as u64).collect()
            };
            assert_eq!(read(&log, channel).await, (of_channel(&whole), of_channel(&lost)), "page {page}, {channel}");
        }
        assert!(log.metrics().damaged.load(std::sync::atomic::Ordering::Relaxed) > 0);
        let new = log.append(Batch::new().entry(CHANNELS[1], body(1_000, 10))).await.unwrap();
        assert!(new[0] > COUNT, "page {page}: {new:?}");
        log.close().await;
        let log = SqliteLog::open(dir.path(), small()).await.unwrap();
        assert!(follow(&log).await.0.contains(&1_000), "page {page}");
    }
}

#[tokio::test]
async fn a_session_with_entries_on_an_unreadable_page_is_erased_and_the_log_is_whole_after_all_are() {
    let file = file().await;
    let page = file.chunks(PAGE).position(|page| numbers(page).contains(&(COUNT / 2))).unwrap();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &file, page);
    let log = SqliteLog::open(dir.path(), small()).await.unwrap();
    log.erase("ahp-session:/1").await.unwrap();
    let (found, damaged) = follow(&log).await;
    assert!(found.iter().all(|n| n % 3 != 2) && found.len() > 80, "{found:?}");
    assert!(!damaged.is_empty());
    log.append(Batch::new().entry(CHANNELS[0], body(1_000, 10))).await.unwrap();
    assert!(log.erase("ahp-session:/0").await.unwrap() > 0);
    assert!(log.erase("ahp-session:/2").await.unwrap() > 0);
    log.compact().await.unwrap();
    assert!(log.verify().await.unwrap().is_clean());
    // The damaged file is kept for its owner.
    let kept = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(kept.filter(|name| name.starts_with("log.db.damaged-")).count(), 1);
}

#[tokio::test]
async fn a_log_with_any_unreadable_page_opens_or_says_what_to_do() {
    let file = file().await;
    let mut refused = 0;
    for page in 1..file.len() / PAGE {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &file, page);
        match SqliteLog::open(dir.path(), small()).await {
            Ok(log) => {
                log.append(Batch::new().entry(CHANNELS[1], body(1_000, 10))).await.unwrap();
                log.close().await;
            }
            Err(error @ OpenError::Damaged { .. }) => {
                refused += 1;
                assert!(error.to_string().contains("restore a backup"), "{error}");
            }
            Err(error) => panic!("page {page}: {error}"),
        }
    }
    assert!(refused < 15, "{refused} of {} pages", file.len() / PAGE);
}
