//! A full disk is no trap: the log opens, is read, erased from and made smaller, and takes everything again when it can.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{AppendError, Batch, Channels, Log, LogHealth};

use crate::common::{all, body, until};

/// A disk of so many bytes, for as long as this lives.
struct Disk(tempfile::TempDir);

impl Disk {
    /// None where nothing may be mounted.
    fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(dir.path());
        mount.output().is_ok_and(|output| output.status.success()).then_some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all that is left, as others do on a disk that is shared.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.path().join("others")).unwrap();
        for len in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; len]).is_ok() {}
        }
    }

    fn clear(&self) {
        std::fs::remove_file(self.path().join("others")).unwrap();
    }

    /// Waits until the log has made its reserve, which it does soon after it was opened for the first time.
    async fn reserve(&self) {
        let is_made = || {
            let log = rusqlite::Connection::open(self.log().join("log.db")).unwrap();
            let rows = "SELECT coalesce(sum(length(body)), 0) FROM piece WHERE id < 0";
            log.query_row(rows, [], |row| row.get::<_, u64>(0)).unwrap() == Options::default().reserve_bytes
        };
        for _ in 0..1_000 {
            if is_made() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the log has made no reserve");
    }

    fn log(&self) -> std::path::PathBuf {
        self.path().join("data")
    }
}

/// Another program, which goes on writing to a full disk and takes what it can, until this is dropped.
struct Greedy {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Greedy {
    /// Returns when the disk is full.
    fn start(disk: &Disk) -> Self {
        disk.fill();
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, path) = (Arc::clone(&is_over), disk.path().join("others"));
        let thread = std::thread::spawn(move || {
            let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
            while !over.load(Ordering::Relaxed) {
                if file.write_all(&[1; 4096]).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Greedy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.path()).status());
    }
}

#[tokio::test]
async fn a_log_on_a_full_disk_opens_is_read_erased_from_and_made_smaller() {
    let Some(disk) = Disk::new("96m") else {
        println!("skipped: no file system can be mounted here; run it as root");
        return;
    };
    let log = SqliteLog::open(disk.log(), Options::default()).await.unwrap();
    let mut appended = 0;
    disk.reserve().await;
    for session in ["one", "two"] {
        let channel = format!("{session}-chat");
        log.append(Batch::new().open(&*channel, Some(session))).await.unwrap();
        for n in 0..if session == "one" { 30 } else { 1_000 } {
            match log.append(Batch::new().entry(&*channel, body(n, 1 << 20))).await {
                Ok(_) => appended += 1,
                Err(error) => {
                    assert_eq!(error, AppendError::Full);
                    break;
                }
            }
        }
    }
    disk.fill();
    log.close().await;
    // The disk is as full as it gets. Nothing that was acknowledged is missing, and little is still taken.
    let log = SqliteLog::open(disk.log(), Options::default()).await.unwrap();
    assert_eq!(*log.health().borrow(), LogHealth::Full);
    let read = all(&log, 0, Channels::All).await.unwrap();
    assert_eq!(read.len(), appended);
    assert_eq!(log.append(Batch::new().entry("one-chat", body(0, 1 << 20))).await, Err(AppendError::Full));
    log.append(Batch::new().entry("one-chat", "small")).await.unwrap();
    // What makes room works.
    let before = std::fs::metadata(disk.log().join("log.db")).unwrap().len();
    assert_eq!(log.erase("one").await, Ok(31));
    log.compact().await.unwrap();
    let after = std::fs::metadata(disk.log().join("log.db")).unwrap().len();
    assert!(after + (20 << 20) <= before, "{before} {after}");
    // That was enough: it takes everything again.
    let good = tokio::time::timeout(Duration::from_secs(60), until(&log, LogHealth::is_good)).await;
    assert!(good.is_ok(), "{:?}", *log.health().borrow());
    log.append(Batch::new().entry("two-chat", body(0, 1 << 20))).await.unwrap();
    assert!(log.verify().await.unwrap().is_clean());
    disk.clear();
}

#[tokio::test]
async fn a_log_that_took_all_that_a_full_disk_lets_it_take_still_opens_and_is_erased_from() {
    let Some(disk) = Disk::new("64m") else {
        println!("skipped: no file system can be mounted here; run it as root");
        return;
    };
    let log = SqliteLog::open(disk.log(), Options::default()).await.unwrap();
    for session in ["one", "two"] {
        log.append(Batch::new().open(format!("{session}-chat"), Some(session))).await.unwrap();
        for n in 0..4 {
            log.append(Batch::new().entry(format!("{session}-chat"), body(n, 1 << 20))).await.unwrap();
        }
    }
    disk.reserve().await;
    disk.fill();
    // Too large for what is left, then small ones until no more are taken.
    let mut appended = 8;
    assert_eq!(log.append(Batch::new().entry("one-chat", body(0, 30 << 20))).await, Err(AppendError::Full));
    for n in 0..10_000 {
        match log.append(Batch::new().entry("two-chat", body(n, 20_000))).await {
            Ok(_) => appended += 1,
            Err(AppendError::Full) if appended > 8 => break,
            Err(error) => assert_eq!(error, AppendError::Full),
        }
    }
    // As when the host is killed: nothing is moved out of the write-ahead log. Other programs take what is left.
    log.close().await;
    disk.fill();
    let log = SqliteLog::open(disk.log(), Options::default()).await.unwrap();
    assert_eq!(all(&log, 0, Channels::All).await.unwrap().len(), appended);
    log.append(Batch::new().entry("one-chat", "small")).await.unwrap();
    assert_eq!(log.erase("one").await, Ok(5));
    log.compact().await.unwrap();
    assert!(log.verify().await.unwrap().is_clean());
    disk.clear();
}

#[tokio::test]
async fn a_log_is_compacted_in_place_with_hardly_any_room_beside_it() {
    let Some(disk) = Disk::new("64m") else {
        println!("skipped: no file system can be mounted here; run it as root");
        return;
    };
    let mut options = Options::default();
    options.reserve_bytes = 0;
    let log = SqliteLog::open(disk.log(), options.clone()).await.unwrap();
    log.append(Batch::new().open("gone", Some("gone")).open("kept", None)).await.unwrap();
    for n in 0..20 {
        log.append(Batch::new().entry("gone", body(n, 1 << 20)).entry("kept", body(n, 1 << 19))).await.unwrap();
    }
    log.erase("gone").await.unwrap();
    disk.fill();
    let before = std::fs::metadata(disk.log().join("log.db")).unwrap().len();
    log.compact().await.unwrap();
    let after = std::fs::metadata(disk.log().join("log.db")).unwrap().len();
    assert!(after + (18 << 20) < before, "{before} {after}");
    assert!(log.verify().await.unwrap().is_clean());
    assert_eq!(all(&log, 0, Channels::All).await.unwrap().len(), 20);
}

#[tokio::test]
async fn a_log_keeps_its_reserve_though_another_program_goes_on_writing() {
    let Some(disk) = Disk::new("96m") else {
        println!("skipped: no file system can be mounted here; run it as root");
        return;
    };
    let log = SqliteLog::open(disk.log(), Options::default()).await.unwrap();
    let mut appended = 0;
    for session in ["one", "two"] {
        log.append(Batch::new().open(format!("{session}-chat"), Some(session))).await.unwrap();
        for n in 0..10 {
            log.append(Batch::new().entry(format!("{session}-chat"), body(n, 1 << 20))).await.unwrap();
            appended += 1;
        }
    }
    disk.reserve().await;
    let greedy = Greedy::start(&disk);
    for n in 0..100 {
        match log.append(Batch::new().entry("one-chat", body(n, 1 << 20))).await {
            Ok(_) => appended += 1,
            Err(error) => {
                assert_eq!(error, AppendError::Full);
                break;
            }
        }
    }
    // It goes on with little, at once and after a start.
    let full = tokio::time::timeout(Duration::from_secs(60), until(&log, |health| *health == LogHealth::Full)).await;
    assert!(full.is_ok(), "{:?}", *log.health().borrow());
    small(&log, "two-chat").await;
    log.close().await;
    let log = SqliteLog::open(disk.log(), Options::default()).await.unwrap();
    small(&log, "two-chat").await;
    assert_eq!(all(&log, 0, Channels::All).await.unwrap().len(), appended + 2);
    // What makes room works, however often, and the space that it gives back may go to others.
    assert!(log.erase("one").await.unwrap() >= 10);
    small(&log, "two-chat").await;
    log.compact().await.unwrap();
    small(&log, "two-chat").await;
    log.close().await;
    let log = SqliteLog::open(disk.log(), Options::default()).await.unwrap();
    small(&log, "two-chat").await;
    assert!(log.verify().await.unwrap().is_clean());
    drop(greedy);
    disk.clear();
    let good = tokio::time::timeout(Duration::from_secs(60), until(&log, LogHealth::is_good)).await;
    assert!(good.is_ok(), "{:?}", *log.health().borrow());
    log.append(Batch::new().entry("two-chat", body(0, 1 << 20))).await.unwrap();
}

/// Appends something small, which a full disk has room for.
async fn small(log: &SqliteLog, channel: &str) {
    let appended = tokio::time::timeout(Duration::from_secs(20), async {
        while let Err(error) = log.append(Batch::new().entry(channel, "small")).await {
            // While it finds out that the disk is full.
            assert_eq!(error, AppendError::Full);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(appended.await.is_ok(), "{:?}", *log.health().borrow());
}
