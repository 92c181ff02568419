//! No process that the program starts sees its settings, in which a token or a header may stand.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const TOKEN: &str = "0123456789abcdef-secret-token";
/// Has to reach every child: it shows that the list of variables was really written by one.
const HARMLESS: &str = "harmless-value";
/// How long a child may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

fn breakbulk(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
    command.args(args).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("LANG", HARMLESS);
    command.env("BREAKBULK_HEADER", format!("Authorization: Bearer {TOKEN}")).env("BREAKBULK_TOKEN", TOKEN);
    // Any other setting, and a variable that is none.
    command.env("BREAKBULK_CONNECT_TIMEOUT", "9s").env("BREAKBULK_STRANGER", TOKEN);
    command
}

/// A program that writes its environment to a file, and then is another.
fn witness(dir: &Path, name: &str, then: &str) -> (PathBuf, PathBuf) {
    let (script, seen) = (dir.join(name), dir.join(format!("{name}.env")));
    let text = format!(
        "#!/bin/sh\nseen=$(export -p)\nPATH=/usr/local/bin:/usr/bin:/bin\nprintf '%s' \"$seen\" > '{0}.part' && mv '{0}.part' '{0}'\n{then}\n",
        seen.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    (script, seen)
}

/// What a child saw, as soon as it has written it down.
fn assert_nothing_private(seen: &Path, must_have: &str) {
    let begun = Instant::now();
    let text = loop {
        match std::fs::read_to_string(seen) {
            Ok(text) => break text,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{}: {error}", seen.display()),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(text.contains(must_have), "{text}");
    assert!(!text.contains("BREAKBULK") && !text.contains(TOKEN), "{text}");
}

#[test]
fn a_command_of_an_address_sees_none_of_our_settings() {
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in [
        ("bridged", &["bridge", "--listen", "stdio:", "--connect"][..]),
        ("kept", &["bridge", "--keep", "--listen", "stdio:", "--connect"]),
        ("listening", &["bridge", "--connect", "exec:cat", "--listen"]),
        ("sent", &["send", "--method", "ping", "--timeout", "9s"]),
    ] {
        let (script, seen) = witness(dir.path(), name, "");
        let address = format!("exec:'{}'", script.display());
        // What it says does not matter: the command was started.
        drop(breakbulk(dir.path(), &[args, &[&*address]].concat()).output().unwrap());
        assert_nothing_private(&seen, HARMLESS);
    }
}

/// A host on a free port, until it is dropped.
struct Host<'a> {
    dir: &'a Path,
    child: Child,
    url: String,
}

impl<'a> Host<'a> {
    fn start(dir: &'a Path, more: &[&str]) -> Self {
        let args = ["serve", "--data", "data", "--root", "root", "--listen", "ws://127.0.0.1:0", "--format", "json"];
        let mut child = breakbulk(dir, &[&args[..], more].concat()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect(&line);
        Self { dir, child, url: format!("{}&dialect=ahp", ready["ahp"].as_str().unwrap()) }
    }

    fn ask(&self, method: &str, params: &Value) -> Value {
        let params = params.to_string();
        let args = ["send", &*self.url, "--method", method, "--params", &*params];
        let Output { status, stdout, stderr } = breakbulk(self.dir, &args).output().unwrap();
        assert!(status.success(), "{method}: {}", String::from_utf8_lossy(&[stdout, stderr].concat()));
        serde_json::from_slice(&stdout).unwrap()
    }

    /// The state of a channel, as soon as it is as wanted.
    fn state(&self, channel: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let mut answer = self.ask("subscribe", &json!({ "channel": channel }));
            let state = answer["snapshot"]["state"].take();
            if wanted(&state) {
                return state;
            }
            assert!(begun.elapsed() < PATIENCE, "{state}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn terminals_agents_and_git_see_none_of_our_settings() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new("git").args(["init", "--quiet", "root"]).current_dir(dir.path()).status().unwrap();
    assert!(made.success());
    let (shell, terminal_seen) = witness(dir.path(), "shell", "");
    let (git, git_seen) = witness(dir.path(), "git", "exec git \"$@\"");
    let (tool, tool_seen) = witness(dir.path(), "tool", "");
    let host = Host::start(dir.path(), &["--shell", shell.to_str().unwrap(), "--git", git.to_str().unwrap()]);

    let claim = json!({"kind": "client", "clientId": "breakbulk-send"});
    host.ask("createTerminal", &json!({"channel": "ahp-terminal:/1", "claim": claim}));
    assert_nothing_private(&terminal_seen, HARMLESS);

    host.ask("createSession", &json!({"channel": "ahp-session:/1"}));
    let session = host.state("ahp-session:/1", |state| state["defaultChat"].is_string());
    let chat = session["defaultChat"].as_str().unwrap();
    let dispatch = |action: Value| {
        host.ask("dispatchAction", &json!({"channel": chat, "clientSeq": 1, "action": action}));
    };
    let message = json!({"text": format!("/run '{}'", tool.display()), "origin": {"kind": "user"}});
    dispatch(
        json!({"type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00.000Z", "message": message}),
    );
    let pending = |state: &Value| state.to_string().contains("pending-confirmation");
    let state = host.state(chat, pending);
    let parts = state["activeTurn"]["responseParts"].as_array().unwrap();
    let call = parts.iter().find_map(|part| part["toolCall"]["toolCallId"].as_str()).expect("a call that waits");
    dispatch(json!({"type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": call, "approved": true,
        "confirmed": "user-action"}));
    assert_nothing_private(&tool_seen, HARMLESS);
    // After the turn the host looks for changes.
    assert_nothing_private(&git_seen, "GIT_DIR");
}
