//! The real program, and what the system says of its memory.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use breakbulk::dial::ProxyChoice;
use breakbulk::{BoxLink, Dialer};
use serde_json::Value;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const MB: u64 = 1_000_000;

/// A host that runs until it is dropped.
pub(crate) struct Host {
    dir: tempfile::TempDir,
    child: Child,
    address: String,
}

impl Host {
    /// Starts a host with this budget; returns when clients can connect.
    pub(crate) fn start(memory: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("root")).unwrap();
        let args = ["serve", "--data", "data", "--listen", "ws://127.0.0.1:0", "--root", "root", "--format", "json"];
        let said = std::fs::File::create(dir.path().join("said")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
        command.args(args).args(["--memory", memory]).current_dir(dir.path()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("BREAKBULK_TOKEN", TOKEN);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = || std::fs::read_to_string(dir.path().join("said")).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no host: {line}{}", said()));
        let address = ready["ahp"].as_str().unwrap().to_owned();
        Self { dir, child, address }
    }

    /// A link to it.
    pub(crate) async fn dial(&self) -> BoxLink {
        let mut dialer = Dialer { token: Some(TOKEN.parse().unwrap()), proxy: ProxyChoice::Never, ..Dialer::default() };
        dialer.link.max_frame_bytes = 256 << 20;
        dialer.dial(&self.address.parse().unwrap()).await.unwrap()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// The most memory that it has had so far, in megabytes.
    pub(crate) fn peak_mb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kilobytes * 1024 / MB
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
