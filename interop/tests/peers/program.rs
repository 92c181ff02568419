//! The `breakbulk` program, built once, and bridges that run it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Names a program that is already built, to test that one.
const BUILT: &str = "BREAKBULK_PROGRAM";
/// How long a bridge may take to listen, or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the program is. Builds it the first time.
pub(crate) fn breakbulk() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| match std::env::var(BUILT) {
        Ok(path) => path,
        Err(_) => build().to_str().unwrap().to_owned(),
    });
    &PROGRAM
}

/// A file of the peers, such as `node/ws_peer.mjs`.
pub(crate) fn file(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).to_str().unwrap().to_owned()
}

/// The program with nothing in its environment that could change what it does.
pub(crate) fn command() -> Command {
    let mut command = Command::new(breakbulk());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command
}

/// Asks cargo for the program as the tests of the workspace use it: when those were built, this builds nothing.
fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo told these tests about themselves would make some build scripts run again.
    let about_us = |key: &str| key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_");
    std::env::vars_os().filter_map(|(key, _)| key.into_string().ok()).filter(|key| about_us(key)).for_each(|key| {
        command.env_remove(key);
    });
    let output = command
        .args(["test", "--workspace", "--no-run", "--test", "cli", "--message-format", "json-render-diagnostics"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "the program was not built");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut built = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_program = |line: &Value| line["target"]["name"] == "breakbulk" && line["executable"].is_string();
    let line = built.find(is_program).expect("cargo names the program");
    line["executable"].as_str().unwrap().into()
}

/// A bridge that listens on a WebSocket. Dropping it kills the process.
pub(crate) struct Bridge {
    child: Child,
    /// Where it listens, such as `ws://127.0.0.1:40000`.
    pub(crate) url: String,
    log: Arc<Mutex<String>>,
}

impl Bridge {
    /// Starts one that lets everyone in, and waits until it listens.
    pub(crate) fn open(listen: &str, connect: &str) -> Self {
        Self::start(listen, connect, &["--no-auth"])
    }

    /// Starts one, and waits until it listens.
    pub(crate) fn start(listen: &str, connect: &str, more: &[&str]) -> Self {
        Self::start_in(&[], listen, connect, more)
    }

    /// Starts one in an environment with these variables, and waits until it listens.
    pub(crate) fn start_in(variables: &[(&str, &str)], listen: &str, connect: &str, more: &[&str]) -> Self {
        let mut child = command()
            .envs(variables.iter().copied())
            // The relay between two bridges has a port of its own.
            .args(["bridge", "--listen", listen, "--connect", connect, "--allow-host", "127.0.0.1"])
            .args(more)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (listening, heard) = mpsc::channel();
        let log = Arc::<Mutex<String>>::default();
        let (stderr, kept) = (child.stderr.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || read_log(stderr, &kept, &listening));
        let mut bridge = Self { child, url: String::new(), log };
        bridge.url = heard.recv_timeout(PATIENCE).expect("the bridge listens");
        bridge
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it has logged this; gives the line.
    pub(crate) fn says(&self, words: &str) -> String {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(line) = self.log().lines().find(|line| line.contains(words)) {
                return line.to_owned();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the bridge does not say {words:?}");
    }

    /// Sends it a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// How it ends.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the bridge does not end: {}", self.log());
    }

    /// The most memory that it has had so far, in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("-- the bridge on {} said:\n{}", self.url, self.log());
        }
    }
}

fn read_log(stderr: ChildStderr, log: &Mutex<String>, listening: &Sender<String>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if let Some(url) = line.strip_prefix("breakbulk: listening on ") {
            let _ = listening.send(url.to_owned());
        }
        let mut log = log.lock().unwrap();
        log.push_str(&line);
        log.push('\n');
    }
}
