//! Real NATS servers, each in a directory of its own. `cargo xtask test` installs them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server, which ends with this.
pub(crate) struct NatsServer {
    child: Child,
    pub(crate) url: String,
    dir: tempfile::TempDir,
}

impl NatsServer {
    /// Starts a server of its own on a free port of this machine.
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// The same with more in its configuration.
    pub(crate) fn with(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store").display().to_string();
        let config = format!("jetstream {{ store_dir: {store:?}, sync_interval: always }}\n{more}\n");
        Self::run(dir, &config)
    }

    /// A server without JetStream.
    pub(crate) fn without_jetstream() -> Self {
        Self::run(tempfile::tempdir().unwrap(), "")
    }

    fn run(dir: tempfile::TempDir, config: &str) -> Self {
        std::fs::write(dir.path().join("nats.conf"), config).unwrap();
        let (child, url) = run(dir.path(), "-1");
        Self { child, url, dir }
    }

    /// Where it stores.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Kills it, and starts it again on the same port with the same files.
    pub(crate) fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let port = self.url.rsplit(':').next().unwrap().to_owned();
        (self.child, self.url) = run(self.dir.path(), &port);
    }

    /// A connection to it.
    pub(crate) async fn connect(&self) -> async_nats::Client {
        async_nats::connect(&self.url).await.unwrap()
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts a server in a directory, and waits until it says where it listens.
fn run(dir: &Path, port: &str) -> (Child, String) {
    let config = dir.join("nats.conf");
    let mut command = Command::new(program());
    command.args(["-a", "127.0.0.1", "-p", port, "-c"]).arg(&config).arg("--ports_file_dir").arg(dir);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ports = dir.join(format!("nats-server_{}.ports", child.id()));
    for _ in 0..600 {
        let url = std::fs::read(&ports).ok().and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
        if let Some(url) = url.and_then(|ports| Some(ports["nats"][0].as_str()?.to_owned())) {
            return (child, url);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(child.kill());
    drop(child.wait());
    panic!("nats-server did not start in {}", dir.display());
}

fn program() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/interop-venv/bin/nats-server");
    if installed.exists() { installed } else { "nats-server".into() }
}
