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
        let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
        command.args(["serve", "--data", "data", "--listen", "ws://127.0.0.1:0", "--format", "json"]);
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
    for outside in ["/content/file/etc/passwd", "/content/file/../x", "/content/result/a/b/c", "/content/x"] {
        let (head, _) = host.get(outside, "");
        assert!(head.starts_with("http/1.1 404"), "{outside}: {head}");
    }
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
