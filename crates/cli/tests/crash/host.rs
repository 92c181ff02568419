//! The real program: a host that is started and killed, and its log when it is dead.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use breakbulk::client::ConnectError;
use breakbulk::dial::ProxyChoice;
use breakbulk::{BoxLink, Dialer, Route};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Limits};
use serde_json::Value;

use crate::reading::Reading;

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Where a host lives: its data and its root.
#[derive(Debug)]
pub(crate) struct Home {
    dir: tempfile::TempDir,
    /// Where its clients go.
    access: HostAccess,
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("root")).unwrap();
        Self { dir, access: HostAccess::of_all([String::new()]) }
    }

    /// Starts a host; returns when clients can connect.
    pub(crate) fn start(&self, more: &[&str]) -> Host {
        let args = ["serve", "--data", "data", "--listen", "ws://127.0.0.1:0", "--root", "root", "--format", "json"];
        let said = std::fs::File::create(self.dir.path().join("said")).unwrap();
        let mut command = self.command();
        let mut child = command.args(args).args(more).stdout(Stdio::piped()).stderr(said).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let host = Host(child);
        let said = || std::fs::read_to_string(self.dir.path().join("said")).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no host: {line}{}", said()));
        self.access.now_at(0, ready["ahp"].as_str().unwrap().to_owned());
        host
    }

    /// What is in the log.
    pub(crate) fn export(&self) -> Reading {
        let output = self.command().args(["log", "export", "--data", "data"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Reading::of_export(std::str::from_utf8(&output.stdout).unwrap())
    }

    /// What `breakbulk log verify` says; an error if anything is damaged.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let output = self.command().args(["log", "verify", "--data", "data"]).output().unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(said(&output.stdout) + &said(&output.stderr)) }
    }

    /// How to reach whichever host lives.
    pub(crate) fn access(&self, cap: Option<u64>) -> HostAccess {
        HostAccess { cap, ..self.access.clone() }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_breakbulk")));
        command.current_dir(self.dir.path()).stdin(Stdio::null()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("BREAKBULK_TOKEN", TOKEN);
        command
    }
}

/// A host that runs.
pub(crate) struct Host(Child);

impl Host {
    /// `kill -9`. Returns when it is dead.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}

/// How to reach whichever host lives, through a cap or without one.
#[derive(Debug, Clone)]
pub(crate) struct HostAccess {
    /// Of each node, the address of the one that lives, or lived last.
    addresses: Arc<Mutex<Vec<String>>>,
    /// Which one is tried next.
    next: Arc<AtomicUsize>,
    cap: Option<u64>,
}

impl HostAccess {
    /// To any of these nodes.
    pub(crate) fn of_all(addresses: impl IntoIterator<Item = String>) -> Self {
        Self { addresses: Arc::new(Mutex::new(addresses.into_iter().collect())), next: Arc::default(), cap: None }
    }

    /// For another client, which begins with this node.
    pub(crate) fn beginning_at(&self, at: usize) -> Self {
        Self { next: Arc::new(AtomicUsize::new(at)), ..self.clone() }
    }

    /// From now on the node is at this address.
    pub(crate) fn now_at(&self, at: usize, address: String) {
        self.addresses.lock().unwrap()[at] = address;
    }

    /// What a client takes there.
    pub(crate) fn limits(&self) -> Limits {
        self.route("ws://127.0.0.1:1/ahp").setup.limits
    }

    pub(crate) async fn open(&self) -> Result<BoxLink, ConnectError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let address = {
            let addresses = self.addresses.lock().unwrap();
            addresses[next % addresses.len()].clone()
        };
        let route = self.route(&address);
        let mut dialer = Dialer { token: Some(TOKEN.parse().unwrap()), proxy: ProxyChoice::Never, ..Dialer::default() };
        dialer.link.max_frame_bytes = route.max_frame_bytes();
        if self.addresses.lock().unwrap().len() > 1 {
            // One that was stopped takes connections and does not answer. Another one does.
            dialer.timeout = Duration::from_secs(3);
        }
        // The host may be dead, or just about to be born.
        dialer.dial(&route.address).await.map_err(ConnectError::again)
    }

    fn route(&self, address: &str) -> Route {
        let cap = self.cap.map_or_else(String::new, |cap| format!("&cap={cap}"));
        let address = format!("{address}?dialect=ahp{cap}").parse().unwrap();
        Route::prove(address, Role::Client, Limits::default(), &BudgetConfig::default()).unwrap()
    }
}
