//! `breakbulk relay`, and a host and a client that meet through it.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use common::text;

/// A program that prints a line when it is ready. Dropping it kills it.
struct Ready {
    child: Child,
    line: Value,
}

impl Ready {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_breakbulk"))
            .args(args)
            .current_dir(dir)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, line: serde_json::from_str(&line).unwrap() }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_relay_says_where_it_is_and_a_host_and_a_client_meet_through_it() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Ready::start(dir.path(), &["relay", "--listen", "ws://127.0.0.1:0", "--format", "json"]);
    let mut keys: Vec<&String> = relay.line.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["connectionString", "endpoint"]);
    let (string, endpoint) =
        (relay.line["connectionString"].as_str().unwrap(), relay.line["endpoint"].as_str().unwrap());
    let port = endpoint.strip_prefix("http://127.0.0.1:").unwrap();
    assert!(string.starts_with("Endpoint=http://127.0.0.1;AccessKey="), "{string}");
    assert!(string.ends_with(&format!(";Port={port};Version=1.0;")), "{string}");

    let address = format!("webpubsub:{string}?hub=agents");
    let serve = [
        "serve",
        "--listen",
        "ws://127.0.0.1:0",
        "--data",
        "d",
        "--agent",
        "demo",
        "--format",
        "json",
        "--via",
        &address,
    ];
    let _host = Ready::start(dir.path(), &serve);
    let asked = common::breakbulk(dir.path(), &[], &["send", &address, "--method", "ping"]);
    assert_eq!((asked.status.code(), text(&asked.stdout), text(&asked.stderr)), (Some(0), "null\n", ""));
    let nobody = common::breakbulk(dir.path(), &[], &["send", &format!("{address}&host=other"), "--method", "ping"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("no host \"other\" has answered in the hub \"agents\""), "{nobody:?}");
    let key = string.split("AccessKey=").nth(1).unwrap().split(';').next().unwrap();
    assert!(!text(&nobody.stderr).contains(key), "the key is not shown");
}

#[test]
fn a_relay_takes_its_key_from_a_file_or_the_environment_and_refuses_a_short_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("relay.key"), "0123456789abcdef\n").unwrap();
    let args = ["relay", "--listen", "ws://127.0.0.1:0", "--format", "json", "--key-file", "relay.key"];
    let relay = Ready::start(dir.path(), &args);
    assert!(relay.line["connectionString"].as_str().unwrap().contains(";AccessKey=0123456789abcdef;"));
    let variables = [("BREAKBULK_ACCESS_KEY", "short")];
    let refused = common::breakbulk(dir.path(), &variables, &["relay", "--listen", "ws://127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(2));
    let why = "breakbulk: the access key cannot be used: it needs at least 16 visible characters\n";
    assert_eq!(text(&refused.stderr), why);
}
