//! How fast the log is, as ratios: one durable append against the disk's own sync, many against one, replay against
//! reading the rows.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "../../proto/benches/common/table.rs"]
mod table;

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Bytes, Channels, Log};
use rusqlite::{Connection, OpenFlags};
use tokio::runtime::Runtime;

const CHAT: &str = "ahp-chat:/1";
/// A delta of an agent's answer, about.
const SMALL: usize = 300;
/// What the host asks for at once when it replays.
const PAGE: usize = 1 << 20;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    table::head("The durable log");
    alone(&runtime, SMALL);
    alone(&runtime, 65_536);
    together(&runtime);
    beside(&runtime, "eight sources of 16 KiB each", 8, 1, 16 << 10);
    beside(&runtime, "forty batches of 30 MB", 1, 40, 30_000_000);
    replay(&runtime);
}

/// One append at a time, over one write and `fdatasync` of the same bytes.
///
/// What it is measured by is a plain file to which they are appended, as a plain log would. A second file, whose length
/// is fixed so that its sync has only the bytes themselves to write, shows what the disk could do at best.
fn alone(runtime: &Runtime, len: usize) {
    let dir = tempfile::tempdir().unwrap();
    let (log, body) = (open(runtime, dir.path()), body(len));
    let (mut grows, mut fixed) = (plain(dir.path(), "grows", 0), plain(dir.path(), "fixed", 16 << 20));
    let mut times = Vec::new();
    for round in 0..rounds() * 20 {
        let append = time(|| drop(runtime.block_on(log.append(Batch::new().entry(CHAT, body.clone()))).unwrap()));
        let grow = time(|| sync(&mut grows, &body));
        if round % 50 == 0 {
            fixed.seek(SeekFrom::Start(0)).unwrap();
        }
        times.push([append, grow, time(|| sync(&mut fixed, &body))]);
    }
    let of = |at: usize| median(times.iter().map(|times| times[at]).collect());
    let [append, grow, fix] = [of(0), of(1), of(2)];
    let row = |what: &str, value: f64| table::row(&format!("{len} B: {what}"), value, ..);
    row("µs for fdatasync of a plain file that grows by them", grow * 1e6);
    row("µs for fdatasync of a plain file overwritten in place", fix * 1e6);
    row("µs for one durable append, alone", append * 1e6);
    table::row(&format!("{len} B: one append, alone, over appending to a plain file"), append / grow, ..=1.5);
    row("one append, alone, over overwriting a plain file in place", append / fix);
}

/// A thousand callers, each with one append in flight, over one caller.
fn together(runtime: &Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let (log, body) = (open(runtime, dir.path()), body(SMALL));
    let mut rates = Vec::new();
    for _ in 0..rounds().min(7) {
        let one = rate(50, || {
            for _ in 0..50 {
                runtime.block_on(log.append(Batch::new().entry(CHAT, body.clone()))).unwrap();
            }
        });
        let many = rate(20_000, || runtime.block_on(callers(&log, &body, 1_000, 20)));
        rates.push((one, many));
    }
    let (one, many) =
        (median(rates.iter().map(|rate| rate.0).collect()), median(rates.iter().map(|rate| rate.1).collect()));
    table::row("appends in a second, one at a time", one, ..);
    table::row("appends in a second, 1,000 in flight", many, ..);
    table::row("1,000 in flight: times the rate of one at a time", many / one, 20.0..);
}

async fn callers(log: &SqliteLog, body: &Bytes, callers: usize, each: usize) {
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (log, body) = (log.clone(), body.clone());
            tokio::spawn(async move {
                for _ in 0..each {
                    log.append(Batch::new().entry(CHAT, body.clone())).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// A small append now and then, while others append all the time: what most of them wait for, over a sync of a plain file
/// on the same disk at the same time. How many syncs of the log each waits for is counted, too.
fn beside(runtime: &Runtime, load: &str, sources: usize, each: usize, len: usize) {
    let dir = tempfile::tempdir().unwrap();
    let (log, small, bulk) = (open(runtime, dir.path()), body(SMALL), body(len));
    let mut file = plain(dir.path(), "fixed", 16 << 20);
    let tasks: Vec<_> = (0..sources)
        .flat_map(|source| std::iter::repeat_n(source, each))
        .map(|source| {
            let (log, bulk) = (log.clone(), bulk.clone());
            runtime.spawn(async move {
                let (source, channel) = (format!("bulk-{source}"), format!("ahp-terminal:/{source}"));
                loop {
                    let batch = Batch::new().from_source(&*source).open(&*channel, None);
                    log.append(batch.entry(&*channel, bulk.clone())).await.unwrap();
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let mut times: Vec<[f64; 2]> = (0..rounds() * 10)
        .map(|round| {
            if round % 50 == 0 {
                file.seek(SeekFrom::Start(0)).unwrap();
            }
            let alone = time(|| sync(&mut file, &small));
            let batch = Batch::new().from_source("person").entry(CHAT, small.clone());
            let waited = time(|| drop(runtime.block_on(log.append(batch)).unwrap()));
            std::thread::sleep(Duration::from_millis(5));
            [waited, alone]
        })
        .collect();
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    let alone = median(times.iter().map(|times| times[1]).collect());
    times.sort_by(|a, b| f64::total_cmp(&a[0], &b[0]));
    let most = times[times.len() * 99 / 100][0];
    let counts = log.metrics().small_append_syncs.counts();
    let syncs = counts.iter().rposition(|count| *count > 0).map_or(0.0, |bucket| 2_f64.powi(bucket as i32) - 1.0);
    table::row(&format!("ms for one append beside {load}, median"), times[times.len() / 2][0] * 1e3, ..);
    table::row(&format!("ms for one append beside {load}, 99 of 100"), most * 1e3, ..);
    table::row(&format!("ms for fdatasync of a plain file beside {load}, median"), alone * 1e3, ..);
    table::row(&format!("one append beside {load}, 99 of 100, over fdatasync of a plain file"), most / alone, ..=20.0);
    table::row(&format!("syncs for which a small append beside {load} waited, at most"), syncs, ..=7.0);
}

/// A tail that replays 10,000 entries from the file, and a channel read from its beginning, over reading those rows from
/// the table.
fn replay(runtime: &Runtime) {
    const ENTRIES: u64 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let log = open(runtime, dir.path());
    for _ in 0..100 {
        let batch = (0..ENTRIES / 100).fold(Batch::new(), |batch, _| batch.entry(CHAT, body(SMALL)));
        runtime.block_on(log.append(batch)).unwrap();
    }
    runtime.block_on(log.close());
    let log = open(runtime, dir.path());
    let rows = Connection::open_with_flags(dir.path().join("log.db"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let times: Vec<[f64; 3]> = (0..rounds())
        .map(|_| {
            let tail = time(|| assert_eq!(runtime.block_on(follow(&log)), ENTRIES));
            let read = time(|| assert_eq!(runtime.block_on(channel(&log)), ENTRIES));
            [tail, read, time(|| assert_eq!(plain_rows(&rows), ENTRIES))]
        })
        .collect();
    let of = |at: usize| median(times.iter().map(|times| times[at]).collect());
    table::row("10,000 entries: ms to read the rows", of(2) * 1e3, ..);
    table::row("10,000 entries: a tail's replay over reading the rows", of(0) / of(2), ..=2.0);
    table::row("10,000 entries: a channel's replay over reading the rows", of(1) / of(2), ..=2.0);
}

async fn follow(log: &SqliteLog) -> u64 {
    let (mut tail, mut count) = (log.tail(0, Channels::All), 0);
    loop {
        let page = tail.ready(PAGE).await.unwrap();
        if page.is_empty() {
            return count;
        }
        count += page.len() as u64;
    }
}

async fn channel(log: &SqliteLog) -> u64 {
    let (mut from, mut count) = (0, 0);
    loop {
        let page = log.read(CHAT, from..u64::MAX >> 1, PAGE).await.unwrap();
        let Some(last) = page.last() else { return count };
        from = last.seq + 1;
        count += page.len() as u64;
    }
}

/// What cannot be avoided: each row's columns, and its body in memory of our own.
fn plain_rows(connection: &Connection) -> u64 {
    let mut query = connection.prepare_cached("SELECT seq, channel, body FROM entry ORDER BY seq").unwrap();
    let mut rows = query.query([]).unwrap();
    let mut count = 0;
    while let Some(row) = rows.next().unwrap() {
        let (seq, channel): (u64, i64) = (row.get(0).unwrap(), row.get(1).unwrap());
        let body = Bytes::copy_from_slice(row.get_ref(2).unwrap().as_blob().unwrap());
        std::hint::black_box((seq, channel, body));
        count += 1;
    }
    count
}

fn open(runtime: &Runtime, dir: &Path) -> SqliteLog {
    let log = runtime.block_on(SqliteLog::open(dir, Options::default())).unwrap();
    runtime.block_on(log.append(Batch::new().open(CHAT, None))).unwrap();
    log
}

fn plain(dir: &Path, name: &str, len: usize) -> File {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(dir.join(name)).unwrap();
    file.write_all(&vec![0; len]).unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

fn sync(file: &mut File, bytes: &[u8]) {
    file.write_all(bytes).unwrap();
    file.sync_data().unwrap();
}

fn body(len: usize) -> Bytes {
    // As the host writes it: the log finds the kind of an entry in the front of its body.
    let (front, back) = (format!(r#"{{"channel":"{CHAT}","action":{{"type":"chat/delta","content":""#), r#""}}"#);
    Bytes::from(format!("{front}{}{back}", "x".repeat(len - front.len() - back.len())))
}

fn time(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

fn rate(count: usize, work: impl FnOnce()) -> f64 {
    count as f64 / time(work)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn rounds() -> usize {
    std::env::var("BREAKBULK_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(21)
}
