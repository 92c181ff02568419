//! Child processes as links: all that they write, how they end, and that nothing of them stays.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod talk;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use breakbulk::link::{Child, Exec, ExecConfig, ExecError, Exit};
use breakbulk::{Arrival, Dialect, Driver};
use breakbulk_proto::{Capacity, CloseReason, Event, Input, Ticket, Transmit};
use bytes::Bytes;
use futures_util::SinkExt;
use tracing::field::{Field, Visit};
use tracing::{Metadata, Subscriber, span};

use talk::{LONG, MAX_FRAME, assert_arrived, exchange, frame, machine, next, next_text, request, rest, send};

fn config(command: &[&str]) -> ExecConfig {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    let mut config = ExecConfig::new(command, Capacity::of(u64::MAX), MAX_FRAME);
    config.grace = Duration::from_secs(10);
    config
}

fn shell(script: &str) -> ExecConfig {
    config(&["sh", "-c", script])
}

/// Whether a process is gone, or only waits for somebody to ask how it ended.
fn is_dead(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.trim().is_empty() || rest.trim().starts_with('Z'))
}

async fn assert_dies(pid: &str) {
    let begin = Instant::now();
    while !is_dead(pid) {
        assert!(begin.elapsed() < LONG, "process {pid} lives");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn thirty_megabytes_pass_to_a_child_and_back() {
    let lens = [10, 1_000_000, 30_000_000, 0, 70_000];
    for dialect in [Dialect::Plain, Dialect::Stdio] {
        let link = Exec::spawn(&config(&["cat"])).unwrap();
        let arrived = tokio::time::timeout(LONG, exchange(link, dialect, &lens)).await.unwrap();
        assert_arrived(&arrived, &lens);
    }
}

#[tokio::test]
async fn all_that_a_child_wrote_is_read_before_its_exit_is_told() {
    let script = "head -c 300000 /dev/zero | tr '\\0' x; echo; printf last; exit 3";
    let (frames, code, text) = rest(&mut Exec::spawn(&shell(script)).unwrap()).await;
    let lens: Vec<_> = frames.iter().map(String::len).collect();
    assert_eq!((&lens[..], code, &text[..]), (&[300_000, 4][..], 1011, "sh exited with status 3"));
}

#[tokio::test]
async fn the_close_says_how_the_child_ended() {
    for (script, code, text) in [
        ("exit 0", 1000, "sh exited with status 0"),
        ("exit 255", 1011, "sh exited with status 255"),
        ("kill -9 $$", 1011, "sh was killed by signal 9"),
    ] {
        let closed = next(&mut Exec::spawn(&shell(script)).unwrap()).await.unwrap();
        assert_eq!(closed, Arrival::Exited { code, text: text.to_owned() });
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_started_is_named() {
    let error = Exec::spawn(&config(&["/no/such/program", "--token=s3cret"])).unwrap_err();
    assert!(error.to_string().starts_with("cannot start /no/such/program: "), "{error}");
    assert!(!error.to_string().contains("s3cret"));
    assert!(matches!(Exec::spawn(&config(&[])), Err(ExecError::NoCommand)));
}

#[tokio::test]
async fn a_driver_hears_how_the_child_ended_and_not_that_a_pipe_broke() {
    let link = Exec::spawn(&shell("exec <&-; sleep 0.3; exit 7")).unwrap();
    let mut driver = Driver::new(link, machine(Dialect::Plain));
    driver.handle(Input::send(Ticket(1), request(1, 1_000_000)));
    let closed = tokio::time::timeout(LONG, async {
        loop {
            match driver.next().await {
                Some(Event::Closed(reason)) => return reason,
                Some(_) => {}
                None => panic!("no close"),
            }
        }
    });
    assert!(matches!(closed.await.unwrap(), CloseReason::Peer { code: 1011 }));
}

#[tokio::test]
async fn a_child_that_sees_its_input_end_is_left_to_exit_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bye");
    let script = format!("trap 'exit 9' TERM; cat; sleep 0.2; echo bye >'{}'", file.display());
    let mut link = Exec::spawn(&shell(&script)).unwrap();
    send(&mut link, "hello").await;
    assert_eq!(next_text(&mut link).await, "hello");
    link.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
    tokio::time::timeout(LONG, link.close()).await.unwrap().unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "bye\n");
}

const STUBBORN: &str = "trap '' TERM; (while :; do sleep 0.05; done) & echo $! $$; while :; do sleep 0.05; done";

#[tokio::test]
async fn a_stubborn_child_is_killed_with_its_grandchild_when_the_link_is_closed() {
    let mut config = shell(STUBBORN);
    config.grace = Duration::from_millis(50);
    let mut link = Exec::spawn(&config).unwrap();
    let pids = next_text(&mut link).await;
    tokio::time::timeout(LONG, link.close()).await.unwrap().unwrap();
    // The child is gone when the close is done; its own child has been sent the same signal.
    for pid in pids.split(' ') {
        assert_dies(pid).await;
    }
}

#[tokio::test]
async fn a_stubborn_child_is_killed_with_its_grandchild_when_the_link_is_dropped() {
    let mut config = shell(STUBBORN);
    config.grace = Duration::from_millis(50);
    let mut link = Exec::spawn(&config).unwrap();
    let pids = next_text(&mut link).await;
    drop(link);
    for pid in pids.split(' ') {
        assert_dies(pid).await;
    }
}

#[tokio::test]
async fn a_child_that_reads_nothing_is_ended_all_the_same() {
    let mut config = shell("echo $$; exec sleep 1000");
    config.grace = Duration::from_millis(50);
    let mut link = Exec::spawn(&config).unwrap();
    let pid = next_text(&mut link).await;
    link.feed(frame(Bytes::from(vec![b'x'; 1_000_000]))).await.unwrap();
    tokio::time::timeout(LONG, link.close()).await.unwrap().unwrap();
    assert!(is_dead(&pid));
}

#[tokio::test]
async fn a_grandchild_that_holds_the_output_open_keeps_nobody_waiting() {
    let mut link = Exec::spawn(&shell("sleep 1000 & echo $!; printf end")).unwrap();
    let begin = Instant::now();
    let (frames, code, _) = rest(&mut link).await;
    assert!(begin.elapsed() < LONG / 2);
    assert_eq!((frames.len(), &frames[1][..], code), (2, "end", 1000));
    assert!(!is_dead(&frames[0]));
    tokio::time::timeout(LONG, link.close()).await.unwrap().unwrap();
    assert_dies(&frames[0]).await;
}

#[tokio::test]
async fn a_kept_child_outlives_its_links() {
    let child = Child::spawn(&shell("while read -r line; do echo $$ $line; done")).unwrap();
    let mut answers = Vec::new();
    for text in ["one", "two"] {
        let mut link = child.link().await.unwrap();
        send(&mut link, text).await;
        answers.push(next_text(&mut link).await);
        link.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
        link.close().await.unwrap();
    }
    let words: Vec<_> = answers.iter().map(|answer| answer.split(' ').collect::<Vec<_>>()).collect();
    assert_eq!((words[0][0], words[0][1], words[1][1]), (words[1][0], "one", "two"));
    assert_eq!(child.exit(), None);
    tokio::time::timeout(LONG, child.end()).await.unwrap();
    assert!(is_dead(words[0][0]));
}

#[tokio::test]
async fn half_a_line_for_one_link_does_not_reach_the_next() {
    // The first write is one piece: whoever has its line has half of the next line too.
    let script = "printf 'one\\nhal'; read -r go; printf 'f\\n'; while read -r line; do echo $line; done";
    let child = Child::spawn(&shell(script)).unwrap();
    let mut link = child.link().await.unwrap();
    let first = tokio::time::timeout(Duration::from_secs(5), next_text(&mut link)).await;
    drop(link);
    let mut link = child.link().await.unwrap();
    send(&mut link, "go").await;
    send(&mut link, "two").await;
    assert_eq!(next_text(&mut link).await, "two");
    // If the child was faster than the first link, even its first line was for nobody.
    assert!(first.is_err() || first.unwrap() == "one");
}

#[tokio::test]
async fn half_a_line_from_one_link_is_finished_before_the_next_begins() {
    let child = Child::spawn(&shell("sleep 0.5; while IFS= read -r line; do echo ${#line}; done")).unwrap();
    let mut link = child.link().await.unwrap();
    // More than a pipe holds, so that a part of it waits.
    link.feed(frame(Bytes::from(vec![b'x'; 150_000]))).await.unwrap();
    assert!(futures_util::poll!(link.flush()).is_pending());
    drop(link);
    let mut link = child.link().await.unwrap();
    send(&mut link, "next").await;
    assert_eq!((next_text(&mut link).await, next_text(&mut link).await), ("150000".to_owned(), "4".to_owned()));
}

#[tokio::test]
async fn a_kept_child_that_has_exited_is_started_anew_when_somebody_asks() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let child = Child::spawn(&shell(&format!("echo >> {}; read -r line; exit 4", starts.display()))).unwrap();
    for _ in 0..2 {
        let mut link = child.link().await.unwrap();
        send(&mut link, "go").await;
        let (_, code, text) = rest(&mut link).await;
        assert_eq!((code, &text[..]), (1011, "sh exited with status 4"));
        drop(link);
        assert_eq!(child.exit(), Some(Exit::Status(4)));
    }
    assert_eq!(std::fs::read(starts).unwrap().len(), 2);
}

#[tokio::test]
async fn a_kept_child_that_exits_while_nobody_has_it_is_started_anew() {
    let child = Child::spawn(&shell("read -r line; echo $$; read -r line")).unwrap();
    let mut pids = Vec::new();
    for _ in 0..2 {
        let mut link = child.link().await.unwrap();
        send(&mut link, "who").await;
        pids.push(next_text(&mut link).await);
        send(&mut link, "go").await;
        drop(link);
        let begin = Instant::now();
        while child.exit().is_none() {
            assert!(begin.elapsed() < LONG, "it lives");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert_ne!(pids[0], pids[1]);
}

#[tokio::test]
async fn a_kept_child_that_writes_no_more_is_replaced() {
    let mut config = shell("read -r line; echo $$; exec >&-; sleep 1000");
    config.grace = Duration::from_millis(50);
    let child = Child::spawn(&config).unwrap();
    let mut pids = Vec::new();
    for _ in 0..2 {
        let mut link = child.link().await.unwrap();
        send(&mut link, "who").await;
        let (mut frames, code, text) = rest(&mut link).await;
        assert_eq!((frames.len(), code, &text[..]), (1, 1000, "sh closed its output"));
        pids.append(&mut frames);
    }
    assert_ne!(pids[0], pids[1]);
}

#[tokio::test]
async fn a_kept_child_that_owes_something_is_replaced() {
    watch_log();
    let (_folder, config) = named("debtor", "while read -r line; do echo $$; done");
    let child = Child::spawn(&config).unwrap();
    let mut pids = Vec::new();
    for is_busy in [false, true, false] {
        let mut link = child.link().await.unwrap();
        let lease = link.lease();
        lease.set_busy(true);
        send(&mut link, "who").await;
        pids.push(next_text(&mut link).await);
        lease.set_busy(is_busy);
    }
    assert!(pids[0] == pids[1] && pids[1] != pids[2], "{pids:?}");
    assert!(is_dead(&pids[1]), "two of them at once");
    let warnings: Vec<_> = logged("debtor").into_iter().filter(|line| line.contains("owes")).collect();
    assert_eq!(warnings, ["WARN message=ended: it owes answers to a connection that is over command=\"debtor\""]);
}

#[tokio::test]
async fn a_kept_child_that_cannot_be_started_again_gives_no_link_and_says_why() {
    let (folder, config) = named("once", "read -r line");
    let child = Child::spawn(&config).unwrap();
    drop(folder);
    let mut link = child.link().await.unwrap();
    send(&mut link, "go").await;
    rest(&mut link).await;
    drop(link);
    let error = child.link().await.unwrap_err();
    assert!(matches!(error, ExecError::Start { .. }), "{error}");
}

/// Remembers what is logged: level, target, command and text.
struct Log;

static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "breakbulk::exec"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {field}={value:?}");
            }
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LOGGED.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn watch_log() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| tracing::subscriber::set_global_default(Log).unwrap());
}

/// What was logged about a command.
fn logged(command: &str) -> Vec<String> {
    LOGGED.lock().unwrap().iter().filter(|line| line.contains(command)).cloned().collect()
}

/// A shell under another name, by which it is found in the log.
fn named(name: &str, script: &str) -> (tempfile::TempDir, ExecConfig) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let config = config(&[program.to_str().unwrap(), "-c", script]);
    (folder, config)
}

#[tokio::test]
async fn standard_error_goes_to_the_log_line_by_line() {
    watch_log();
    let script = "echo one >&2; echo >&2; head -c 9000 /dev/zero | tr '\\0' y >&2; echo >&2; printf three >&2; exit 5";
    let (_folder, config) = named("noisy", script);
    let mut link = Exec::spawn(&config).unwrap();
    assert_eq!(rest(&mut link).await.2, "noisy exited with status 5");
    let want: Vec<String> = vec![
        "INFO message=one command=\"noisy\"".to_owned(),
        format!("INFO message={}… command=\"noisy\"", "y".repeat(4096)),
        "INFO message=three command=\"noisy\"".to_owned(),
        "WARN message=exited with status 5 command=\"noisy\"".to_owned(),
    ];
    let begin = Instant::now();
    while logged("noisy").len() < want.len() && begin.elapsed() < LONG {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut logged = logged("noisy");
    // How it ended may be known before its last words are.
    logged.sort_by_key(|line| line.starts_with("WARN"));
    assert_eq!(logged, want);
}

#[tokio::test]
async fn links_are_taken_one_after_the_other() {
    watch_log();
    let (_folder, config) = named("shared", "cat");
    let child = Arc::new(Child::spawn(&config).unwrap());
    let link = child.link().await.unwrap();
    assert_eq!(logged("shared"), [""; 0]);
    let second = tokio::spawn({
        let child = Arc::clone(&child);
        async move { child.link().await.map(drop) }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!second.is_finished());
    let want = "INFO message=a connection waits until the one before is done with the command command=\"shared\"";
    assert_eq!(logged("shared"), [want]);
    drop(link);
    tokio::time::timeout(LONG, second).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn an_end_that_is_told_can_be_asked_for_again() {
    let mut link = Exec::spawn(&shell("exit 3")).unwrap();
    for _ in 0..2 {
        link.close().await.unwrap();
    }
    let mut driver = Driver::new(Exec::spawn(&shell("read line; exit 3")).unwrap(), machine(Dialect::Plain));
    driver.handle(Input::send(Ticket(1), request(1, 10)));
    let mut ends = 0;
    while let Some(event) = driver.next().await {
        ends += usize::from(matches!(event, Event::Closed(CloseReason::Peer { code: 1011 })));
    }
    assert_eq!((ends, driver.next().await.is_none()), (1, true));
}
