//! `/v2` and `/content` of the program, and the client in docs/v2.md.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A host on a free port, until it is dropped. Its root is the directory around its data.
struct Host {
    child: Child,
    ready: Value,
}

impl Host {
    fn start(dir: &Path) -> Self {
        Self::with(dir, &[])
    }

    fn with(dir: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
        command.args(["serve", "--data", "data", "--listen", "ws://127.0.0.1:0", "--format", "json"]);
        command.args(options);
        command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, ready: serde_json::from_str(&line).expect(&line) }
    }

    fn address(&self) -> &str {
        self.ready["v2"].as_str().unwrap()
    }

    /// What it answers to a request: the head and the body.
    fn get(&self, target: &str, lines: &str) -> (String, Vec<u8>) {
        let authority = self.address().strip_prefix("ws://").unwrap().split('/').next().unwrap();
        let mut stream = TcpStream::connect(authority).unwrap();
        let token = self.ready["token"].as_str().unwrap();
        let head = format!("GET {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n");
        write!(stream, "{head}Authorization: Bearer {token}\r\n{lines}\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let body = answer.split_off(end + 4);
        (String::from_utf8(answer).unwrap().to_lowercase(), body)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_file_is_read_by_range_and_has_a_tag() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let content: Vec<u8> = (0..300_000_u32).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
    std::fs::write(root.join("a b.txt"), &content).unwrap();
    let host = Host::start(&root);
    let target = format!("/content/file{}/a%20b.txt", root.display());
    let (head, body) = host.get(&target, "");
    assert!(head.starts_with("http/1.1 200") && head.contains("content-length: 300000"), "{head}");
    assert!(body == content);
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
    let (head, body) = host.get(&target, "Range: bytes=70000-200000\r\n");
    assert!(head.starts_with("http/1.1 206") && head.contains("content-range: bytes 70000-200000/300000"), "{head}");
    assert!(body == content[70_000..=200_000]);
    let (head, body) = host.get(&target, &format!("If-None-Match: {etag}\r\n"));
    assert!(head.starts_with("http/1.1 304") && body.is_empty(), "{head}");
    let (head, _) = host.get(&target, "Range: bytes=300000-\r\n");
    assert!(head.starts_with("http/1.1 416"), "{head}");
    // What is no range of these bytes is the whole or 416, and never anything else.
    let many = format!("bytes={}", "0-0,".repeat(2_000));
    for range in [
        "bytes=18446744073709551615-",
        "bytes=0-18446744073709551616",
        "bytes=-18446744073709551615",
        "bytes=--5",
        "bytes=5",
        "bytes=9-1",
        "bytes=\u{fc}-",
        "octets=0-1",
        &many,
    ] {
        let (head, body) = host.get(&target, &format!("Range: {range}\r\n"));
        let is_whole = body == content && (head.starts_with("http/1.1 200") || head.contains("bytes 0-299999/300000"));
        let is_refused = ["http/1.1 416", "http/1.1 400", "http/1.1 431"].iter().any(|status| head.starts_with(status));
        assert!(is_whole || is_refused, "{}: {head}", &range[..range.len().min(40)]);
    }
    for outside in ["/content/file/etc/passwd", "/content/file/../x", "/content/result/a/b/c", "/content/x"] {
        let (head, _) = host.get(outside, "");
        assert!(head.starts_with("http/1.1 404"), "{outside}: {head}");
    }
}

#[test]
fn a_command_over_max_message_closes_with_1009_and_the_limit_is_told_before() {
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("skipped: node is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let host = Host::with(&root, &["--max-message", "5MB", "--max-frame", "1MB"]);
    let script = "const socket = new WebSocket(process.argv.at(-1));
        socket.onopen = () => socket.send(JSON.stringify({ type: 'hello', protocolVersion: 2 }));
        socket.onmessage = ({ data }) => {
          const event = JSON.parse(data);
          if (event.type === 'client_id') {
            console.log(event.maxCommandBytes);
            socket.send(JSON.stringify({ type: 'send', sessionId: 's', clientMsgId: '1', prompt: 'x'.repeat(4_900_000) }));
          } else {
            console.log(event.type, event.command);
            socket.send(JSON.stringify({ type: 'send', sessionId: 's', clientMsgId: '1', prompt: 'x'.repeat(5_000_000) }));
          }
        };
        socket.onclose = ({ code }) => console.log(code);";
    std::fs::write(root.join("long.mjs"), script).unwrap();
    let mut node = Command::new("node");
    let output =
        node.args(["--experimental-websocket", "long.mjs", host.address()]).current_dir(&root).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "5000000\nerror send\n1009\n");
}

#[test]
fn the_client_of_the_documentation_talks_to_the_demo_agent() {
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("skipped: node is not installed");
        return;
    }
    let text = include_str!("../../../docs/v2.md");
    let script = text.split_once("```js\n").unwrap().1.split_once("```").unwrap().0;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::fs::write(root.join("client.js"), script).unwrap();
    let host = Host::start(&root);
    let mut node = Command::new("node");
    node.args(["--experimental-websocket", "client.js", host.address()]).arg(&root).current_dir(&root);
    let output = node.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("I am the **demo** agent"), "{told} {}", String::from_utf8_lossy(&output.stderr));
}
