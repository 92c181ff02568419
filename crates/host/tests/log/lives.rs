//! Each life of a log begins above all that former lives have handed out, whatever of that it still has.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Log, Seq};

use crate::common::{CHAT, fill, small};

/// The clock of these tests: some time in the year 2027, 2^20 to a second.
const NOW: Seq = 1_800_000_000 << 20;

fn at(clock: Seq) -> Options {
    let options = small();
    options.faults().clock.store(clock, Relaxed);
    options
}

async fn open(dir: &Path, clock: Seq) -> SqliteLog {
    SqliteLog::open(dir, at(clock)).await.unwrap()
}

/// Opens a log, appends to it, and closes it; the seqs.
async fn live(dir: &Path, clock: Seq, entries: u64) -> Vec<Seq> {
    let log = open(dir, clock).await;
    let seqs = fill(&log, CHAT, entries, 10).await;
    log.close().await;
    seqs
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in ["log.db", "log.db-wal"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// A directory with a log, and a backup of it, after which the log has gone on.
struct Scene {
    _dir: tempfile::TempDir,
    data: PathBuf,
    backup: PathBuf,
    kept: Vec<Seq>,
    lost: Vec<Seq>,
}

impl Scene {
    async fn new(later: Seq) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (data, backup) = (dir.path().join("data"), dir.path().join("backup"));
        let kept = live(&data, NOW, 5).await;
        copy(&data, &backup);
        let lost = live(&data, later, 5).await;
        Self { _dir: dir, data, backup, kept, lost }
    }
}

#[tokio::test]
async fn a_life_begins_at_the_clock_and_positions_between_two_lives_are_nobodys() {
    let dir = tempfile::tempdir().unwrap();
    let first = live(dir.path(), NOW, 5).await;
    assert_eq!(first, (NOW..NOW + 5).collect::<Vec<_>>());
    let later = NOW + (60 << 20);
    let log = open(dir.path(), later).await;
    // Nothing was appended since: the end is where it was.
    assert_eq!(log.bounds().await.unwrap().last, first[4]);
    assert_eq!((log.lag(first[4]), log.lag(first[0]), log.lag(0)), (Some(0), Some(4), Some(5)));
    let second = fill(&log, CHAT, 3, 10).await;
    assert_eq!(second[0], later);
    assert_eq!((log.lag(first[4]), log.lag(second[0]), log.lag(second[2])), (Some(3), Some(2), Some(0)));
    for nobodys in [1, NOW - 1, first[4] + 1, later - 1, second[2] + 1] {
        assert_eq!(log.lag(nobodys), None, "{nobodys}");
    }
    assert!(log.verify().await.unwrap().lost.is_empty());
}

#[tokio::test]
async fn a_restored_log_knows_its_own_past_and_nothing_of_what_was_undone() {
    // The clock goes on, stands still or was set back by a day; the backup goes over the newer log, or to a new place.
    let (later, still, back) = (NOW + (99 << 20), NOW + (9 << 20), NOW - (86_400 << 20));
    for (clock, places) in [(later, &[true, false][..]), (back, &[true, false]), (still, &[true])] {
        for &in_place in places {
            let scene = Scene::new(NOW + (9 << 20)).await;
            let place = if in_place { scene.data.clone() } else { scene.data.with_file_name("new") };
            copy(&scene.backup, &place);
            let log = open(&place, clock).await;
            let mut seqs = fill(&log, CHAT, 50, 10).await;
            assert_eq!(log.lag(scene.kept[4]), Some(50));
            for lost in scene.lost.clone() {
                assert_eq!(log.lag(lost), None, "{lost}, clock {clock}, in place: {in_place}");
            }
            seqs.extend(fill(&log, CHAT, 1, 10).await);
            assert!(seqs.is_sorted() && seqs[0] > scene.kept[4]);
            // What is known to be lost is said, for as long as the log lives.
            let lost: Vec<_> = log.verify().await.unwrap().lost.into_iter().map(|gap| (gap.after, gap.lost)).collect();
            let expected = [(scene.kept[4], Some(scene.lost[4]))];
            assert_eq!(lost, if in_place { &expected[..] } else { &[] });
            log.close().await;
        }
    }
}

#[tokio::test]
async fn a_log_without_its_end_is_noticed_before_it_is_opened_and_after() {
    let scene = Scene::new(NOW + (9 << 20)).await;
    let log = SqliteLog::open_for_reading(&scene.data).await.unwrap();
    assert!(log.verify().await.unwrap().is_clean());
    drop(log);
    // As when somebody copies the database and forgets what is beside it, or the disk forgets.
    copy(&scene.backup, &scene.data);
    let log = SqliteLog::open_for_reading(&scene.data).await.unwrap();
    let report = log.verify().await.unwrap();
    assert_eq!((report.is_clean(), report.missing_end), (false, Some(scene.lost[4])));
    for _ in 0..2 {
        // Opened twice, without an append in between.
        let log = open(&scene.data, NOW + (20 << 20)).await;
        let report = log.verify().await.unwrap();
        assert_eq!((report.is_clean(), report.missing_end), (true, None));
        assert_eq!(report.lost.iter().map(|gap| gap.lost).collect::<Vec<_>>(), [Some(scene.lost[4])]);
        log.close().await;
    }
}

#[tokio::test]
async fn what_is_trimmed_or_erased_at_the_end_is_not_taken_for_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path(), NOW).await;
    fill(&log, CHAT, 5, 10).await;
    log.erase(crate::common::SESSION).await.unwrap();
    log.close().await;
    let log = SqliteLog::open_for_reading(dir.path()).await.unwrap();
    assert!(log.verify().await.unwrap().is_clean());
    let log = open(dir.path(), NOW + (1 << 20)).await;
    assert_eq!(log.verify().await.unwrap().lost, []);
    assert_eq!(log.lag(NOW + 4), Some(0));
}

#[tokio::test]
async fn of_very_many_lives_only_the_last_ones_are_known_and_older_positions_are_nobodys() {
    let dir = tempfile::tempdir().unwrap();
    live(dir.path(), NOW, 5).await;
    let disk = rusqlite::Connection::open(dir.path().join("log.db")).unwrap();
    disk.execute_batch("BEGIN").unwrap();
    for n in 0..5_000_u64 {
        let (after, next) = (NOW + 10 + n * 10, NOW + 15 + n * 10);
        disk.execute("INSERT INTO gap VALUES (?1, ?2, 0)", (after, next)).unwrap();
    }
    let last = NOW + 10 + 5_000 * 10;
    disk.execute("INSERT INTO entry SELECT ?1, channel, at, crc, about, body FROM entry LIMIT 1", [last]).unwrap();
    disk.execute_batch("COMMIT").unwrap();
    drop(disk);
    let log = open(dir.path(), NOW + (9 << 20)).await;
    assert_eq!((log.lag(NOW), log.lag(NOW + 15)), (None, None));
    assert_eq!(log.lag(last - 2), Some(2));
    assert!(log.append(Batch::new().entry(CHAT, "x")).await.unwrap()[0] > last);
    let disk = rusqlite::Connection::open(dir.path().join("log.db")).unwrap();
    let count: u64 = disk.query_row("SELECT count(*) FROM gap", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 4_096);
}
