//! Lines that are no messages, through the program: whoever waits hears of it, and what is lost is said.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A server that answers nothing and says what it read, on standard error.
const SILENT: &str = "exec:sh -c 'while read -r line; do echo \"got $line\" >&2; done'";

fn bridge(listen: &str, connect: &str, more: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
    command.args(["bridge", "--listen", listen, "--connect", connect]).args(more);
    command.env("XDG_CONFIG_HOME", "/nowhere/at/all");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn answers(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn a_request_that_is_no_message_is_answered_with_its_id() {
    let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{}}}"#, nested(200));
    for dialect in ["stdio:", "stdio:?dialect=stdio"] {
        for (line, code) in [
            (deep.as_bytes(), -32600),
            (br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"secret":NaN}}"#, -32700),
            (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":[\"secret caf\xe9\"]}", -32700),
            (br#"[{"jsonrpc":"2.0","id":1,"method":"secret"}]"#, -32600),
            (br#"{"id":1,"method":"secret"}"#, -32600),
        ] {
            let output = bridge(dialect, SILENT, &["--max-nesting", "128"], &[line, b"\n"].concat());
            let answers = answers(&output);
            assert_eq!(answers.len(), 1, "{output:?}");
            assert_eq!((&answers[0]["id"], answers[0]["error"]["code"].as_i64()), (&Value::from(1), Some(code)));
            let log = log(&output);
            assert!(log.contains("line 1, of ") && log.contains(&format!("of {} bytes", line.len())), "{log}");
            assert!(!log.contains("secret") && !log.contains("got {"), "{log}");
            assert_eq!(output.status.code(), Some(0), "whoever sent it knows: {log}");
        }
    }
}

#[test]
fn a_byte_order_mark_and_many_levels_pass() {
    let deep = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{}}}"#, nested(5000));
    let input = format!("\u{feff}{{\"jsonrpc\":\"2.0\",\"method\":\"marked\"}}\n{deep}\n");
    let output = bridge("stdio:", SILENT, &[], input.as_bytes());
    let log = log(&output);
    assert!(log.contains(r#"got {"jsonrpc":"2.0","method":"marked"}"#), "{log}");
    assert!(log.contains(r#"got {"jsonrpc":"2.0","method":"m","params":[[["#), "{}", &log[..log.len().min(2000)]);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_is_lost_is_said_by_its_line_and_the_status() {
    for line in [
        &br#"{"jsonrpc":"2.0","method":"secret","params":NaN}"#[..],
        b"{\"jsonrpc\":\"2.0\",\"method\":\"secret\xe9\"}",
        br#"{"jsonrpc":"2.0","method":"secret"#,
        br#"[{"jsonrpc":"2.0","method":"secret"}]"#,
    ] {
        let before = br#"{"jsonrpc":"2.0","method":"before"}"#;
        let output = bridge("stdio:", SILENT, &[], &[before, &b"\n"[..], line, b"\n"].concat());
        let log = log(&output);
        assert!(log.contains("WARN") && log.contains(&format!("line 2, of {} bytes", line.len())), "{log}");
        assert!(!log.contains("secret"), "{log}");
        assert_eq!(output.status.code(), Some(1), "{log}");
    }
}

#[test]
fn a_client_hears_when_the_answer_to_it_is_no_message() {
    let server = r#"exec:sh -c 'read -r line; echo starting; echo "{\"result\":{\"x\":NaN},\"jsonrpc\":\"2.0\",\"id\":1}"; cat >/dev/null'"#;
    let output = bridge("stdio:", server, &[], b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n");
    let answers = answers(&output);
    assert_eq!(answers.len(), 1, "{output:?}");
    assert_eq!((&answers[0]["id"], answers[0]["error"]["code"].as_i64()), (&Value::from(1), Some(-32603)));
    assert_eq!(answers[0]["error"]["data"]["reason"], "line-not-json");
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
}
