//! How the program ends: nothing that was begun is lost without a word, and nobody is left behind.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
/// Answers each line at once. Its requests all have the id 1.
const SERVER: &str = r#"exec:sh -c 'while read -r line; do echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}"; done'"#;

fn breakbulk(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_CONFIG_HOME", "/nowhere/at/all");
    command
}

/// A bridge from standard input to a command, with this input.
fn bridge(connect: &str, input: &str) -> Output {
    let mut child = breakbulk(&["bridge", "--listen", "stdio:", "--connect", connect]).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// What a file says, as soon as it says something.
fn wait_for(path: &Path) -> String {
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Waits until a process is gone, or is only waited for by whoever reaps orphans here.
fn wait_until_gone(pid: &str) {
    let is_there = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    };
    while is_there() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A command whose own child says its number in a file; neither ends by itself, nor when it is asked to.
fn stubborn(path: &Path) -> String {
    let script = format!(r#"trap "" TERM HUP INT; sh -c "echo \$\$ > {}; exec sleep 1000"; true"#, path.display());
    format!("exec:sh -c '{script}'")
}

#[test]
fn a_bridge_serves_on_when_nobody_reads_its_log() {
    let args = ["bridge", "--listen", "ws://127.0.0.1:0", "--connect", SERVER, "--no-auth"];
    let mut child = breakbulk(&args).spawn().unwrap();
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("breakbulk: listening on ").expect(&line);
    drop(errors);
    for _ in 0..2 {
        let sent = breakbulk(&["send", url, "--method", "m"]).output().unwrap();
        assert!(sent.status.success(), "{sent:?}");
    }
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_answer_arrives_when_nobody_reads_the_log() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = breakbulk(&["bridge", "--listen", "stdio:", "--connect", SERVER]);
    let mut child = command.stderr(writer).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{REQUEST}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), format!("{ANSWER}\n").into_bytes()));
}

#[test]
fn a_child_reads_all_that_was_sent_before_the_end_of_input_in_its_own_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("count");
    let script = format!("n=0; while read -r line; do n=$((n + 1)); sleep 0.5; done; echo $n > {}", path.display());
    let input = "{\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n".repeat(8);
    let output = bridge(&format!("exec:sh -c '{script}'"), &input);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(wait_for(&path), "8");
}

#[test]
fn what_was_cancelled_is_not_waited_for() {
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    let output = bridge("exec:sh -c 'cat > /dev/null'", &format!("{REQUEST}\n{cancel}\n"));
    assert_eq!((output.status.code(), output.stdout), (Some(0), Vec::new()));
}

#[test]
fn answers_that_never_came_are_a_failure() {
    let output = bridge("exec:sh -c 'read -r line'", &format!("{REQUEST}\n"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    // Who asked hears of it, since the end of a pipe says nothing.
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&1.into(), &"host-ended".into()));
    assert!(errors.contains("the host has not answered all that it was asked"), "{errors}");
    assert!(errors.ends_with("1 answer was lost: see the warning above\n"), "{errors}");
}

#[test]
fn how_a_command_ended_is_said_in_words_and_not_by_a_close_code() {
    let sent = breakbulk(&["send", "exec:sh -c 'exit 3'", "--method", "m"]).output().unwrap();
    let errors = String::from_utf8_lossy(&sent.stderr);
    assert_eq!(sent.status.code(), Some(4), "{errors}");
    assert!(errors.ends_with("disconnected: sh exited with status 3 [close-peer]\n"), "{errors}");
    let bridged = bridge("exec:sh -c 'read -r line; exit 3'", &format!("{REQUEST}\n"));
    let errors = String::from_utf8_lossy(&bridged.stderr);
    assert_eq!(bridged.status.code(), Some(4), "{errors}");
    assert!(errors.contains("ended: sh exited with status 3"), "{errors}");
    assert!(errors.ends_with("disconnected: sh exited with status 3 [close-peer]\n"), "{errors}");
    assert!(!errors.contains("code 1011"), "{errors}");
}

#[test]
fn a_request_that_is_given_up_leaves_no_process_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pid");
    let output = breakbulk(&["send", &stubborn(&path), "--method", "m", "--timeout", "1s"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
    wait_until_gone(&wait_for(&path));
}

#[test]
fn signals_leave_no_process_behind() {
    let dir = tempfile::tempdir().unwrap();
    for (n, (args, signals, status)) in [
        (&["send", "--method", "m"][..], &["TERM"][..], 143),
        (&["send", "--method", "m"], &["INT"], 130),
        (&["send", "--method", "m"], &["INT", "INT"], 130),
        (&["bridge", "--listen", "stdio:", "--connect"], &["HUP"], 0),
        (&["bridge", "--listen", "stdio:", "--connect"], &["TERM", "TERM"], 130),
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(n.to_string());
        let mut child = breakbulk(&[args, &[&stubborn(&path)]].concat()).spawn().unwrap();
        let pid = wait_for(&path);
        for name in signals {
            signal(&child, name);
            // Two that come at once are one.
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(child.wait().unwrap().code(), Some(status), "{args:?} {signals:?}");
        wait_until_gone(&pid);
    }
}

#[test]
fn a_tap_ends_when_nobody_reads_what_it_prints() {
    let args = ["tap", SERVER, "--listen", "ws://127.0.0.1:0"];
    let mut child = breakbulk(&args).env("BREAKBULK_NO_AUTH", "true").spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("breakbulk: listening on ").expect(&line).to_owned();
    // Whether it is answered before the tap has ended, is chance.
    breakbulk(&["send", &url, "--method", "m"]).output().unwrap();
    errors.read_to_string(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{line}");
}
