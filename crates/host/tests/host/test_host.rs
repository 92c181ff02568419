//! A host with the demo agent, in memory or on a disk, and clients of it.

use std::sync::Arc;
use std::time::Duration;

use ahp::reducers::{apply_action_to_chat, apply_action_to_root, apply_action_to_session};
use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;
use breakbulk::link;
use breakbulk_host::agent::Agent;
use breakbulk_host::agent::demo::{Demo, DemoConfig};
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Log, MemoryLog};
use breakbulk_host::test_support::files::uri_of;
use breakbulk_host::{Host, HostConfig};
use breakbulk_proto::{Budget, Capacity};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::Raw;

/// The name of the session that the tests use.
pub(crate) const SESSION: &str = "ahp-session:/1";

pub(crate) struct TestHost {
    pub(crate) inner: Host,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) root: TempDir,
}

impl TestHost {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    /// A host with other limits.
    pub(crate) async fn with(change: impl FnOnce(&mut HostConfig)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
        let mut config = HostConfig::new([root.path()]);
        change(&mut config);
        let host = start(log.clone(), config).await;
        Self { inner: host, log, root }
    }

    /// A host with a log that a test can make fail.
    pub(crate) async fn on_memory() -> (Self, MemoryLog) {
        let (root, log) = (tempfile::tempdir().unwrap(), MemoryLog::new());
        let shared: Arc<dyn Log> = Arc::new(log.clone());
        let host = start(shared.clone(), HostConfig::new([root.path()])).await;
        (Self { inner: host, log: shared, root }, log)
    }

    /// A host with a log on disk.
    pub(crate) async fn on_disk() -> Self {
        let root = tempfile::tempdir().unwrap();
        let log = SqliteLog::open(root.path().join("data"), Options::default()).await.unwrap();
        let log: Arc<dyn Log> = Arc::new(log);
        let host = start(log.clone(), HostConfig::new([root.path()])).await;
        Self { inner: host, log, root }
    }

    /// Stops the host and starts a new one on the same log.
    pub(crate) async fn again(self) -> Self {
        self.again_with(|_| ()).await
    }

    /// The same, with other limits.
    pub(crate) async fn again_with(self, change: impl FnOnce(&mut HostConfig)) -> Self {
        self.inner.stop().await;
        let mut config = HostConfig::new([self.root.path()]);
        change(&mut config);
        let host = start(self.log.clone(), config).await;
        Self { inner: host, ..self }
    }

    /// A client that has initialized and follows the root channel.
    pub(crate) async fn client(&self, id: &str) -> Raw {
        let mut client = self.link();
        client.initialize(id, &["ahp-root://"]).await;
        client
    }

    /// A client that has not initialized yet.
    pub(crate) fn link(&self) -> Raw {
        let (near, far) = link::pair(&Capacity::of(1 << 20), 64);
        let endpoint = self.inner.endpoint().clone();
        tokio::spawn(async move { endpoint.serve(far, Some("someone".into())).await });
        Raw::new(near)
    }

    /// A client that has made a session and follows it; and the name of its chat.
    pub(crate) async fn with_session(&self, id: &str) -> (Raw, String) {
        let mut client = self.client(id).await;
        client.call("createSession", json!({"channel": SESSION})).await.unwrap();
        let state = client.subscribe(SESSION).await["snapshot"]["state"].clone();
        (client, state["defaultChat"].as_str().unwrap().to_owned())
    }

    /// The URI of the root directory.
    pub(crate) fn uri(&self) -> String {
        uri_of(self.root.path())
    }

    /// The URI of a path inside of the root directory.
    pub(crate) fn path(&self, path: &str) -> String {
        uri_of(&self.root.path().join(path))
    }
}

async fn start(log: Arc<dyn Log>, config: HostConfig) -> Host {
    let pace = DemoConfig { pace: Duration::ZERO, slow_pace: Duration::from_millis(5), ..DemoConfig::default() };
    let demo: Arc<dyn Agent> = Arc::new(Demo::new(pace));
    Host::start(log, vec![demo], config, Budget::default()).await.unwrap()
}

/// The current state of a channel.
pub(crate) async fn state(client: &mut Raw, channel: &str) -> Value {
    client.subscribe(channel).await["snapshot"]["state"].clone()
}

/// The next message that is an action of this type.
pub(crate) async fn action_of(client: &mut Raw, kind: &str) -> Value {
    loop {
        let message = client.next().await.expect("an action before the end");
        if message["params"]["action"]["type"] == kind {
            return message["params"].clone();
        }
    }
}

/// The message of a prompt.
pub(crate) fn prompt(turn: &str, text: &str) -> Value {
    json!({
        "type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00.000Z",
        "message": {"text": text, "origin": {"kind": "user"}}
    })
}

/// A state from its JSON, by the kind of its channel.
pub(crate) fn decode(channel: &str, state: Value) -> SnapshotState {
    match channel.split(':').next() {
        Some("ahp-chat") => SnapshotState::Chat(serde_json::from_value(state).unwrap()),
        Some("ahp-session") => SnapshotState::Session(serde_json::from_value(state).unwrap()),
        _ => SnapshotState::Root(serde_json::from_value(state).unwrap()),
    }
}

/// Applies an action with the official reducers.
pub(crate) fn reduce(state: &mut SnapshotState, action: &StateAction) {
    match state {
        SnapshotState::Chat(state) => drop(apply_action_to_chat(state, action)),
        SnapshotState::Session(state) => drop(apply_action_to_session(state, action)),
        SnapshotState::Root(state) => drop(apply_action_to_root(state, action)),
        _ => panic!("no channel of these tests"),
    }
}

/// The output of a future, which has to complete within a minute.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it happens within a minute")
}
