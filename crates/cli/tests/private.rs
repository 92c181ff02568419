//! Private links of the program: through a relay, over sockets, and over pipes; and what it says to who has no pairing code.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use common::text;

const PROGRAM: &str = env!("CARGO_BIN_EXE_breakbulk");

/// A program that runs until this is dropped.
struct Running(Child);

impl Running {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(args).current_dir(dir).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// The line on standard output that says that it is ready.
    fn ready(&mut self) -> Value {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// The next lines on standard error, up to one with these words.
    fn says(&mut self, words: &str) -> String {
        let (stderr, mut said) = (self.0.stderr.as_mut().unwrap(), Vec::new());
        let mut byte = [0];
        while !String::from_utf8_lossy(&said).lines().any(|line| line.contains(words)) || said.last() != Some(&b'\n') {
            assert!(stderr.read(&mut byte).unwrap() > 0, "it has ended: {}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
        String::from_utf8(said).unwrap()
    }

    /// Kills it; what was on standard error until then.
    fn end(mut self) -> String {
        self.0.kill().unwrap();
        let mut rest = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that answers each request.
fn server(dir: &Path) {
    let script = "#!/bin/sh\nwhile read -r line; do\n  id=$(printf '%s' \"$line\" | sed 's/.*\"id\": *\\([0-9]*\\).*/\\1/')\n  \
                  echo \"{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":$id,\\\"result\\\":\\\"hello\\\"}\"\ndone\n";
    let path = dir.join("server.sh");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn send(dir: &Path, address: &str) -> (Option<i32>, String, String) {
    let path = std::env::var("PATH").unwrap();
    let args = ["send", address, "--method", "greet", "--timeout", "30s"];
    let output = common::breakbulk(dir, &[("PATH", &path)], &args);
    (output.status.code(), text(&output.stdout).trim().to_owned(), text(&output.stderr).to_owned())
}

fn answered() -> (Option<i32>, String, String) {
    (Some(0), "\"hello\"".to_owned(), String::new())
}

#[test]
fn a_host_behind_a_relay_is_reached_with_its_pairing_code_and_by_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut relay = Running::start(dir, &["relay", "--listen", "ws://127.0.0.1:0", "--format", "json"]);
    let hub = format!("webpubsub:{}?hub=agents", relay.ready()["connectionString"].as_str().unwrap());
    let via = format!("{hub}&private=host.key");
    let serve = ["serve", "--listen", "ws://127.0.0.1:0", "--data", "d", "--agent", "demo", "--log-level", "trace"];
    let mut host = Running::start(dir, &[&serve[..], &["--format", "json", "--via", &via]].concat());
    let ready = host.ready();
    let code = ready["pairingCodes"][0].as_str().unwrap().to_owned();
    assert_eq!(ready["pairingCodes"].as_array().unwrap().len(), 1);
    assert_eq!(std::fs::read_to_string(dir.join("host.key.pair")).unwrap().trim(), code);
    let ping = |address: &str| {
        let output = common::breakbulk(dir, &[], &["send", address, "--method", "ping", "--log-level", "trace"]);
        (output.status.code(), text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let mut said = String::new();
    for private in ["host.key.pair", "host.key", &code] {
        let (status, answer, errors) = ping(&format!("{hub}&private={private}"));
        assert_eq!((status, answer.as_str()), (Some(0), "null\n"), "{errors}");
        said.push_str(&errors);
    }
    let (status, _, plain) = ping(&hub);
    assert_eq!(status, Some(4));
    assert!(plain.contains("private link refused: not-private"), "{plain}");
    let other = breakbulk::private::HostKey::generate().unwrap().pairing_code().reveal();
    let (status, _, wrong) = ping(&format!("{hub}&private={other}"));
    assert_eq!(status, Some(1));
    assert!(wrong.contains("wrong-pairing-code"), "{wrong}");
    let (status, _, missing) = ping(&format!("{hub}&private=missing.pair"));
    assert_eq!(status, Some(1));
    assert!(missing.contains("missing.pair") && !dir.join("missing.pair").exists(), "{missing}");
    said.push_str(&host.end());
    assert!(said.contains("wrong-pairing-code") && said.contains("not-private"), "the host logs both: {said}");
    for secret in [&code[6..], &code[20..60], std::fs::read_to_string(dir.join("host.key")).unwrap().trim()] {
        assert!(!said.contains(secret), "no log shows keys or codes");
    }
}

#[test]
fn a_socket_and_a_pipe_can_be_private() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    server(dir);
    let bridge = ["bridge", "--connect", "exec:./server.sh", "--no-auth", "--listen"];
    for (listen, connect) in [("ws://127.0.0.1:0/?private=ws.key", ""), ("unix:s?private=unix.key", "unix:s")] {
        let mut running = Running::start(dir, &[&bridge[..], &[listen]].concat());
        let said = running.says("pairing code");
        let code = said.split("pairing code ").nth(1).unwrap().split_whitespace().next().unwrap();
        let url = said.lines().find_map(|line| line.split("listening on ").nth(1)).unwrap();
        let url = if connect.is_empty() { url } else { connect };
        assert_eq!(send(dir, &format!("{url}?private={code}")), answered());
        assert_ne!(send(dir, url).0, Some(0));
        // A code that is known already is not shown again.
        drop(running);
        let mut again = Running::start(dir, &[&bridge[..], &[listen]].concat());
        let said = again.says("pairing code");
        assert!(said.contains(".key.pair") && !said.contains(code), "{said}");
    }
    let listen = "bridge --listen 'stdio:?private=pipe.key' --connect exec:./server.sh";
    // The key is made when the first one listens.
    let first = send(dir, &format!("exec:{PROGRAM} {listen}"));
    assert!(first.2.contains("private link refused: not-private") || first.0 != Some(0), "{first:?}");
    let (status, answer, _) = send(dir, &format!("exec:?private=pipe.key.pair {PROGRAM} {listen}"));
    assert_eq!((status, answer.as_str()), (Some(0), "\"hello\""));
}

#[test]
fn what_private_cannot_do_is_refused_before_anything_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let code = breakbulk::private::HostKey::generate().unwrap().pairing_code().reveal();
    for (args, want) in [
        (vec!["--listen", "stdio:", "--connect", "nostr:wss://127.0.0.1:1?private=k"], "private= is not for nostr:"),
        (
            vec!["--listen", "stdio:", "--keep", "--connect", "exec:?private=k true"],
            "--keep cannot be used with private=",
        ),
        (vec!["--connect", "exec:true", "--listen", &format!("unix:s?private={code}")], "it needs a key file"),
        (vec!["--connect", "exec:true", "--listen", "unix:s?private=pair1-xyz"], "incomplete or mistyped"),
    ] {
        let output = common::breakbulk(dir.path(), &[], &[&["bridge"][..], &args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = text(&output.stderr);
        assert!(said.contains(want) && !said.contains(&code), "{said}");
        assert!(!dir.path().join("s").exists());
    }
}
