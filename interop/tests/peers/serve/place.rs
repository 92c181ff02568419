//! A place with a host in it: a git work tree, the host's data, and `breakbulk serve`.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::command;

/// The token of every host here, so that one is called the same after it was killed.
pub(crate) const TOKEN: &str = "interop-0123456789abcdef";

/// A host and what it works on. Dropping it kills the host.
pub(crate) struct Place {
    dir: TempDir,
    more: Vec<String>,
    child: Child,
    /// Such as `127.0.0.1:40000`.
    pub(crate) authority: String,
    log: Arc<Mutex<String>>,
}

impl Place {
    /// A work tree with one commit, and a host that listens on a free port, with a query such as `?cap=65536`.
    pub(crate) fn new(query: &str, more: &[&str]) -> Self {
        Self::prepared(query, more, |_| {})
    }

    /// The same, with more in the directory in which the host starts.
    pub(crate) fn prepared(query: &str, more: &[&str], prepare: impl FnOnce(&std::path::Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir(&work).unwrap();
        prepare(dir.path());
        std::fs::write(work.join("AGENTS.md"), "# How to work here\n").unwrap();
        std::fs::write(work.join("a.txt"), "old\n").unwrap();
        git(&work, &["init", "-q"]);
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-q", "-m", "first"]);
        let log = Arc::<Mutex<String>>::default();
        let more = more.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let (child, authority) = start(&dir, &format!("ws://127.0.0.1:0{query}"), &more, &log);
        Self { dir, more, child, authority, log }
    }

    /// Where clients connect.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}{}", self.authority, path())
    }

    /// A file of the work tree.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    /// The same, as clients name it.
    pub(crate) fn uri(&self, name: &str) -> String {
        format!("file://{}", self.file(name).canonicalize().unwrap_or_else(|_| self.file(name)).to_str().unwrap())
    }

    /// The host's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Begins again with the same data, on the same port.
    pub(crate) fn again(&mut self, query: &str) {
        let listen = format!("ws://{}{query}", self.authority);
        let (child, authority) = start(&self.dir, &listen, &self.more, &self.log);
        assert_eq!(authority, self.authority);
        self.child = child;
    }

    /// What the host has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("-- the host on {} said:\n{}", self.authority, self.log());
        }
    }
}

/// What follows the authority in a host's URL.
pub(crate) fn path() -> String {
    format!("/ahp?token={TOKEN}")
}

fn git(work: &std::path::Path, args: &[&str]) {
    let who = ["-c", "user.name=n", "-c", "user.email=e@example", "-c", "commit.gpgsign=false"];
    let mut git = Command::new("git");
    let status = git.args(who).args(args).current_dir(work).env("GIT_CONFIG_GLOBAL", "/dev/null").status().unwrap();
    assert!(status.success());
}

fn start(dir: &TempDir, listen: &str, more: &[String], log: &Arc<Mutex<String>>) -> (Child, String) {
    let mut child = command()
        .args(["serve", "--data", "data", "--root", "work", "--format", "json", "--listen", listen])
        // The relay between a client and the host has a port of its own.
        .args(["--allow-host", "127.0.0.1", "--shell", "/bin/sh", "--demo-pace", "2ms"])
        .args(more)
        .env("BREAKBULK_TOKEN", TOKEN)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (stderr, kept) = (child.stderr.take().unwrap(), Arc::clone(log));
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            kept.lock().unwrap().extend([line.as_str(), "\n"]);
        }
    });
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}: {}", log.lock().unwrap()));
    let url = ready["ahp"].as_str().unwrap();
    (child, url.strip_prefix("ws://").unwrap().split('/').next().unwrap().to_owned())
}
