//! WebSocket peers in other languages: processes that do what they are told, and tell what happens.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::program::file;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a peer is written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Package {
    /// The `ws` package of Node.
    NodeWs,
    /// The `websockets` package of Python.
    PythonWebsockets,
}

/// A process that listens, or connects, or both. Dropping it kills the process.
pub(crate) struct Peer {
    child: Child,
    commands: ChildStdin,
    events: Receiver<Value>,
    /// What came while something else was waited for.
    waiting: Vec<Value>,
}

impl Peer {
    pub(crate) fn start(package: Package) -> Self {
        let mut child = package.command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (tx, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = tx.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, commands, events, waiting: Vec::new() }
    }

    /// Starts one that listens; gives its URL, too.
    pub(crate) fn listening(package: Package) -> (Self, String) {
        let (peer, port) = Self::listening_so(package, &json!({"do": "listen"}));
        (peer, format!("ws://127.0.0.1:{port}"))
    }

    /// Starts one that does this, which is a way to listen; gives its port, too.
    pub(crate) fn listening_so(package: Package, deed: &Value) -> (Self, u64) {
        let mut peer = Self::start(package);
        peer.tell(deed);
        let port = peer.hear("listening", None)["port"].as_u64().unwrap();
        (peer, port)
    }

    /// Tells it to do something.
    pub(crate) fn tell(&mut self, deed: &Value) {
        writeln!(self.commands, "{deed}").unwrap();
    }

    /// Connects it, under an id; waits until it is in.
    pub(crate) fn connect(&mut self, id: u64, url: &str) {
        self.tell(&json!({"do": "connect", "id": id, "url": url}));
        self.hear("open", Some(id));
    }

    /// Sends a text.
    pub(crate) fn send(&mut self, id: u64, text: &str) {
        self.tell(&json!({"do": "send", "id": id, "text": text}));
    }

    /// The next text that comes.
    pub(crate) fn text(&mut self, id: u64) -> String {
        match self.hear("message", Some(id))["text"].take() {
            Value::String(text) => text,
            other => panic!("no text: {other}"),
        }
    }

    /// Closes a connection.
    pub(crate) fn close(&mut self, id: u64, code: u16, reason: &str) {
        self.tell(&json!({"do": "close", "id": id, "code": code, "reason": reason}));
    }

    /// Waits for an event on the connection `id`.
    pub(crate) fn hear(&mut self, name: &str, id: Option<u64>) -> Value {
        let is_it = |event: &Value| event["event"] == name && id.is_none_or(|id| event["id"] == id);
        if let Some(at) = self.waiting.iter().position(is_it) {
            return self.waiting.remove(at);
        }
        let begin = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            match self.events.recv_timeout(left) {
                Ok(event) if is_it(&event) => return event,
                Ok(event) => self.waiting.push(event),
                Err(_) => panic!("no {name:?} on {id:?}, but {:?}", self.waiting),
            }
        }
    }

    /// The code with which a connection has ended.
    pub(crate) fn closed(&mut self, id: u64) -> u64 {
        self.hear("closed", Some(id))["code"].as_u64().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Package {
    fn command(self) -> Command {
        let (mut command, script) = match self {
            Self::NodeWs => (node(), file("node/ws_peer.mjs")),
            Self::PythonWebsockets => (python(), file("python/ws_peer.py")),
        };
        command.arg(script);
        command
    }
}

/// Node, with the packages in place.
pub(crate) fn node() -> Command {
    assert_installed(&file("node/node_modules"));
    Command::new("node")
}

/// Where Python is, with the packages in place.
pub(crate) fn python_path() -> String {
    let python = file("../target/interop-venv/bin/python");
    assert_installed(&python);
    python
}

/// Python, with the packages in place.
pub(crate) fn python() -> Command {
    let mut command = Command::new(python_path());
    // It leaves nothing beside the scripts.
    command.arg("-B");
    command
}

fn assert_installed(path: &str) {
    assert!(Path::new(path).exists(), "{path} is missing: `cargo xtask interop` installs it");
}
