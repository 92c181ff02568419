//! `kill -9` under load, and a power cut: everything acknowledged is in the log, once, in order.
//!
//! The child is this test program itself, told by its environment to write until it is killed. Each of its tasks appends
//! its next entry when the last one is acknowledged, and says so on standard output: that is the ledger.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{AppendError, Batch, Bytes, Channels, Log, OpenError};

use crate::common::{all, body, small};

const TASKS: u64 = 20;
const DIR: &str = "BREAKBULK_CHILD_DIR";
const NO_SYNC: &str = "BREAKBULK_CHILD_NO_SYNC";
const LONG_WAL: &str = "BREAKBULK_CHILD_LONG_WAL";

/// Not a test of its own: what the child does.
#[test]
fn the_child_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut options = small();
        options.faults().no_sync.store(std::env::var_os(NO_SYNC).is_some(), Relaxed);
        if std::env::var_os(LONG_WAL).is_some() {
            options.wal_bytes = 64 << 20;
        }
        // A task's first entry may come a second time after a crash: it goes on behind its last one.
        let log = SqliteLog::open(&dir, options).await.unwrap();
        let mut ends: HashMap<u64, u64> = HashMap::new();
        for (_, task, n) in entries(&log).await {
            ends.insert(task, n + 1);
        }
        for task in 0..TASKS {
            tokio::spawn(write_on(log.clone(), task, ends.get(&task).copied().unwrap_or(0)));
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}

async fn write_on(log: SqliteLog, task: u64, from: u64) {
    let channel = format!("channel-{}", task % 5);
    for n in from.. {
        let text = format!(r#"{{"task":{task},"n":{n},"text":"{}"}}"#, body(n, (n % 7 * 300) as usize).len());
        let batch = Batch::new().open(&*channel, Some("s")).entry(&*channel, text);
        let seqs = loop {
            match log.append(batch.clone()).await {
                Ok(seqs) => break seqs,
                Err(error @ (AppendError::Unknown | AppendError::Full)) => {
                    say(&format!("refused {error}"));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        say(&format!("ack {} {task} {n}", seqs[0]));
    }
}

/// One line, in one piece.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// What a log has of all tasks: seq, task, n.
async fn entries(log: &SqliteLog) -> Vec<(u64, u64, u64)> {
    let entries = all(log, 0, Channels::All).await.unwrap();
    entries.into_iter().map(|entry| numbers(&entry.body, entry.seq)).collect()
}

fn numbers(body: &Bytes, seq: u64) -> (u64, u64, u64) {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap();
    (seq, value["task"].as_u64().unwrap(), value["n"].as_u64().unwrap())
}

/// A child that writes, and what it says.
struct Writing {
    child: Child,
    lines: BufReader<ChildStdout>,
    acked: Vec<(u64, u64, u64)>,
}

impl Writing {
    fn start(dir: &Path, set: &[(&str, &Path)]) -> Self {
        // A write past a limit is to fail, not to kill: the shell ignores the signal, and so will its successor.
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap "" XFSZ; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "crash::the_child_writes_until_it_is_killed", "--nocapture", "--test-threads=1"]);
        command.env(DIR, dir).envs(set.iter().map(|(name, value)| (name, value.as_os_str())));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines, acked: Vec::new() }
    }

    /// Reads on until there are so many more acknowledgements; whether anything was refused meanwhile.
    fn wait(&mut self, more: usize) -> usize {
        let (begun, until, mut refused) = (Instant::now(), self.acked.len() + more, 0);
        while self.acked.len() < until {
            refused += usize::from(self.line().expect("the child lives").starts_with("refused"));
            assert!(begun.elapsed() < Duration::from_secs(20), "the child writes on");
        }
        refused
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        // A line without its end was cut by the kill: it was never said.
        if self.lines.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
            return None;
        }
        if let Some(ack) = line.split("ack ").nth(1) {
            let mut numbers = ack.split_whitespace().map(|number| number.parse().unwrap());
            let mut next = || numbers.next().unwrap();
            self.acked.push((next(), next(), next()));
        }
        Some(line)
    }

    /// Kills it, reads what it had said, and returns the ledger.
    fn kill(mut self) -> Vec<(u64, u64, u64)> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        while self.line().is_some() {}
        std::mem::take(&mut self.acked)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What is wrong with a log, by the ledger: acknowledged but missing, appended twice, out of order.
async fn audit(dir: &Path, acked: &[(u64, u64, u64)]) -> Result<usize, String> {
    // Who only looks sees the same as who opens it next.
    let seen = match SqliteLog::open_for_reading(dir).await {
        Ok(log) => Some(entries(&log).await),
        Err(OpenError::Missing(_)) => None,
        Err(error) => return Err(error.to_string()),
    };
    let log = SqliteLog::open(dir, Options::default()).await.map_err(|error| error.to_string())?;
    let found = entries(&log).await;
    if seen.is_some_and(|seen| seen != found) {
        return Err("a reader saw something else".into());
    }
    let report = log.verify().await.unwrap();
    log.close().await;
    if !report.is_clean() {
        return Err(format!("{report:?}"));
    }
    let kept: std::collections::HashSet<_> = found.iter().collect();
    let lost = acked.iter().filter(|line| !kept.contains(line)).count();
    if lost > 0 {
        return Err(format!("{lost} of {} acknowledged are lost", acked.len()));
    }
    let mut next: HashMap<u64, u64> = HashMap::new();
    for (seq, task, n) in &found {
        let expected = next.entry(*task).or_insert(0);
        if n != expected {
            return Err(format!("at {seq} task {task} has {n} in place of {expected}"));
        }
        *expected += 1;
    }
    Ok(found.len())
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_repeated_or_reordered_by_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acked = Vec::new();
    for round in 0..6 {
        let mut child = Writing::start(dir.path(), &[]);
        child.wait(100 + round * 57);
        acked.extend(child.kill());
        let kept = audit(dir.path(), &acked).await.unwrap();
        assert!(kept >= acked.len());
    }
    println!("{} acknowledged in 6 rounds: none lost, repeated or reordered", acked.len());
}

#[cfg(target_os = "linux")]
mod power {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    use super::*;

    /// A disk that keeps only what was synced.
    struct Disk {
        home: tempfile::TempDir,
    }

    impl Disk {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/log/shim.c");
            let mut compile = Command::new("cc");
            compile.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"]).arg(home.path().join("shim.so"));
            assert!(compile.arg(source).arg("-ldl").status().unwrap().success());
            for name in ["from", "shadow"] {
                std::fs::create_dir(home.path().join(name)).unwrap();
            }
            Self { home }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.home.path().join(name)
        }

        fn start(&self, more: &[(&str, &Path)]) -> Writing {
            let (shim, from, shadow) = (self.at("shim.so"), self.at("from"), self.at("shadow"));
            let fail = self.at("fail");
            let mut set: Vec<(&str, &Path)> = vec![("LD_PRELOAD", &shim), ("BREAKBULK_FROM", &from)];
            set.extend([("BREAKBULK_SHADOW", &*shadow), ("BREAKBULK_FAIL", &*fail)]);
            set.extend(more);
            Writing::start(&from, &set)
        }

        /// What a power cut leaves: the bytes that were synced, under names that were.
        fn cut(&self) -> PathBuf {
            let left = self.at("left");
            std::fs::create_dir(&left).unwrap();
            for name in ["log.db", "log.db-wal"] {
                if self.at("shadow").join(format!("{name}.kept")).exists() {
                    drop(std::fs::copy(self.at("shadow").join(name), left.join(name)));
                }
            }
            left
        }
    }

    #[tokio::test]
    async fn nothing_acknowledged_is_lost_by_a_power_cut() {
        let disk = Disk::new();
        let mut child = disk.start(&[]);
        child.wait(2_000);
        let acked = child.kill();
        let kept = audit(&disk.cut(), &acked).await.unwrap();
        println!("{} acknowledged before the power cut, {kept} kept", acked.len());
    }

    #[tokio::test]
    async fn a_log_that_does_not_sync_loses_what_it_acknowledged() {
        let disk = Disk::new();
        let mut child = disk.start(&[(NO_SYNC, Path::new("1"))]);
        child.wait(2_000);
        let acked = child.kill();
        let error = audit(&disk.cut(), &acked).await.expect_err("the audit notices");
        assert!(error.contains("acknowledged are lost"), "{error}");
        // The files themselves are as good as ever: only the power cut tells.
        audit(&disk.at("from"), &acked).await.unwrap();
    }

    #[tokio::test]
    async fn nothing_acknowledged_is_lost_when_syncs_fail_before_a_power_cut() {
        let disk = Disk::new();
        // So long that no checkpoint repairs by chance what a failed sync left undone.
        let mut child = disk.start(&[(LONG_WAL, Path::new("1"))]);
        let mut refused = 0;
        child.wait(300);
        for _ in 0..5 {
            std::fs::write(disk.at("fail"), "").unwrap();
            refused += child.wait(200);
        }
        let acked = child.kill();
        assert!(refused > 0, "a failed sync is told to those who wait for it");
        let kept = audit(&disk.cut(), &acked).await.unwrap();
        println!("{} acknowledged around 5 failed syncs, {refused} refused, {kept} kept", acked.len());
    }

    #[tokio::test]
    async fn a_disk_without_room_stops_acknowledgements_until_there_is_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Writing::start(dir.path(), &[]);
        child.wait(100);
        let pid = Pid::from_child(&child.child);
        let limit = |bytes| Rlimit { current: bytes, maximum: None };
        prlimit(Some(pid), Resource::Fsize, limit(Some(64 << 10))).unwrap();
        while !child.line().expect("the child lives").starts_with("refused") {}
        // What was under way is answered; from then on everything is refused.
        let before = child.acked.len();
        for _ in 0..50 {
            child.line().expect("the child lives");
        }
        assert!(child.acked.len() <= before + 20, "{} acknowledged without room", child.acked.len() - before);
        prlimit(Some(pid), Resource::Fsize, limit(None)).unwrap();
        child.wait(300);
        let acked = child.kill();
        audit(dir.path(), &acked).await.unwrap();
    }
}
