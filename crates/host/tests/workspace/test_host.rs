//! A host over a directory and a log in memory, and a client in a few lines.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use breakbulk::link::{self, InProcessLink};
use breakbulk::{AnyMachine, Dialect, Driver, Setup};
use breakbulk_host::endpoint::EndReason;
use breakbulk_host::log::{Batch, Log, MemoryLog};
use breakbulk_host::test_support::files::uri_of;
use breakbulk_host::{Host, HostConfig};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Capacity, Event, Input, Limits, Ticket};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) const ROOT: &str = "ahp-root://";
pub(crate) const SESSION: &str = "ahp-session:/1";
pub(crate) const CHAT: &str = "ahp-chat:/1";
pub(crate) const CHANGES: &str = "ahp-session:/1/changes/uncommitted";

pub(crate) struct TestHost {
    pub(crate) dir: TempDir,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) inner: Host,
    config: HostConfig,
}

impl TestHost {
    /// A host over an empty directory.
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut HostConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = HostConfig::new([dir.path()]);
        config.terminals.command = vec!["/bin/sh".into()];
        config.terminals.env = vec![("PS1".into(), "> ".into())];
        change(&mut config);
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
        let host = start(&log, &config).await;
        Self { dir, log, inner: host, config }
    }

    /// Ends the host and begins another on the same log.
    pub(crate) async fn restart(&mut self) {
        self.inner.stop().await;
        self.inner = start(&self.log, &self.config).await;
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn uri(&self, name: &str) -> String {
        uri_of(&self.path(name))
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn git(&self, arguments: &[&str]) {
        git(self.dir.path(), arguments);
    }

    /// A session in the root directory, with one chat.
    pub(crate) async fn session(&self, active_clients: Value) {
        let summary = json!({"resource": CHAT, "title": "t", "status": 1, "modifiedAt": "2026-01-01T00:00:00.000Z"});
        let session = json!({
            "provider": "demo", "title": "t", "status": 1, "lifecycle": "ready", "activeClients": active_clients,
            "chats": [summary], "defaultChat": CHAT, "workingDirectories": [uri_of(self.dir.path())]
        });
        let mut chat = summary;
        chat["turns"] = json!([]);
        let batch = Batch::new().open(SESSION, Some(SESSION)).open(CHAT, Some(SESSION));
        let batch =
            batch.entry(SESSION, initial(SESSION, "session", &session)).entry(CHAT, initial(CHAT, "chat", &chat));
        self.log.append(batch).await.unwrap();
    }

    /// Logs an action, as if the host had done it.
    pub(crate) async fn act(&self, channel: &str, action: Value) {
        let body = json!({"channel": channel, "action": action}).to_string();
        self.log.append(Batch::new().entry(channel, body)).await.unwrap();
    }

    /// The channels in the log whose URIs begin so.
    pub(crate) async fn channels(&self, start: &str) -> Vec<String> {
        let all = self.log.channels(None).await.unwrap();
        all.into_iter().map(|info| info.channel.to_string()).filter(|channel| channel.starts_with(start)).collect()
    }

    /// A client that has initialized.
    pub(crate) async fn client(&self, id: &str) -> Client {
        let mut client = self.link();
        let params = json!({"channel": ROOT, "clientId": id, "protocolVersions": ["1.0.0"]});
        client.call("initialize", params).await.unwrap();
        client
    }

    /// A client that has not initialized yet.
    pub(crate) fn link(&self) -> Client {
        let (near, far) = link::pair(&Capacity::of(1 << 20), 16);
        let endpoint = self.inner.endpoint().clone();
        let served = tokio::spawn(async move { endpoint.serve(far, Some("someone".into())).await });
        let setup = Setup::new(Dialect::Ahp, Role::Client, Limits::default());
        let machine = setup.machine(Budget::default().account(Some("host"))).unwrap();
        let (says, said) = mpsc::unbounded_channel();
        let (hears, heard) = mpsc::unbounded_channel();
        tokio::spawn(talk(Driver::new(near, machine), said, hears));
        Client { says, heard, ids: 0, backlog: VecDeque::new(), served }
    }

    /// Everything in the log, as text.
    pub(crate) async fn logged(&self, channel: &str) -> String {
        let entries = self.log.read(channel, 1..1 << 60, 1 << 30).await.unwrap();
        entries.iter().map(|entry| String::from_utf8_lossy(&entry.body).into_owned() + "\n").collect()
    }
}

async fn start(log: &Arc<dyn Log>, config: &HostConfig) -> Host {
    Host::start(log.clone(), Vec::new(), config.clone(), Budget::default()).await.unwrap()
}

fn initial(channel: &str, kind: &str, state: &Value) -> String {
    json!({"channel": channel, "initial": {"kind": kind, "state": state}}).to_string()
}

pub(crate) fn git(dir: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(dir).args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let done = command.args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// How long anything may take.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it happens soon")
}

/// Carries messages until the client is dropped or the link ends.
async fn talk(
    mut driver: Driver<InProcessLink, AnyMachine>,
    mut said: mpsc::UnboundedReceiver<String>,
    hears: mpsc::UnboundedSender<Value>,
) {
    let mut ticket = 0;
    loop {
        tokio::select! {
            event = driver.next() => match event {
                Some(Event::Message { message, .. }) => drop(hears.send(serde_json::from_slice(&message.to_bytes()).unwrap())),
                Some(Event::Closed(_)) | None => return,
                Some(_) => {}
            },
            message = said.recv() => match message {
                Some(message) => driver.handle(Input::send(Ticket(ticket), message)),
                None => return,
            }
        }
        ticket += 1;
    }
}

/// One connection of a client. Dropping it cuts its link.
pub(crate) struct Client {
    says: mpsc::UnboundedSender<String>,
    heard: mpsc::UnboundedReceiver<Value>,
    ids: u64,
    /// Messages that came while the test waited for another one.
    backlog: VecDeque<Value>,
    pub(crate) served: JoinHandle<EndReason>,
}

impl Client {
    /// Sends a request; returns its id.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.ids += 1;
        let id = self.ids;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub(crate) fn say(&mut self, message: &Value) {
        self.says.send(message.to_string()).unwrap();
    }

    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.ask(method, params);
        self.answer(id).await
    }

    /// The error code of a call that fails.
    pub(crate) async fn fails(&mut self, method: &str, params: Value) -> i64 {
        let error = self.call(method, params.clone()).await.expect_err(&format!("{method} {params}"));
        error["code"].as_i64().unwrap()
    }

    /// The answer to a request; other messages are kept.
    pub(crate) async fn answer(&mut self, id: u64) -> Result<Value, Value> {
        let answer = |message: &Value| message.get("method").is_none() && message["id"] == json!(id);
        let mut answer = self.find(answer).await;
        answer.get_mut("result").map(Value::take).ok_or_else(|| answer["error"].clone())
    }

    pub(crate) async fn subscribe(&mut self, channel: &str) -> Value {
        let result = self.call("subscribe", json!({"channel": channel})).await.unwrap();
        result["snapshot"]["state"].clone()
    }

    pub(crate) async fn unsubscribe(&mut self, channel: &str) {
        self.call("unsubscribe", json!({"channel": channel})).await.unwrap();
    }

    pub(crate) fn dispatch(&mut self, channel: &str, seq: i64, action: Value) {
        let params = json!({"channel": channel, "clientSeq": seq, "action": action});
        self.say(&json!({"jsonrpc": "2.0", "method": "dispatchAction", "params": params}));
    }

    /// The next envelope with an action of this type.
    pub(crate) async fn action(&mut self, kind: &str) -> Value {
        let message = self.find(|message| message["params"]["action"]["type"] == kind).await;
        message["params"].clone()
    }

    /// The next request of the host.
    pub(crate) async fn asked(&mut self) -> Value {
        self.find(|message| message.get("id").is_some() && message.get("method").is_some()).await
    }

    /// The next message that matches; others are kept.
    pub(crate) async fn find(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.backlog.iter().position(&is_it) {
            return self.backlog.remove(at).unwrap();
        }
        loop {
            let message = soon(self.heard.recv()).await.expect("it comes before the end");
            if is_it(&message) {
                return message;
            }
            self.backlog.push_back(message);
        }
    }

    /// The output of a terminal until it contains this text.
    pub(crate) async fn output(&mut self, wanted: &str) -> String {
        let mut text = String::new();
        while !text.contains(wanted) {
            text += self.action("terminal/data").await["action"]["data"].as_str().unwrap();
        }
        text
    }

    /// Whether no message that matches comes for a while.
    pub(crate) async fn stays_silent(&mut self, kind: &str, time: Duration) -> bool {
        tokio::time::timeout(time, self.action(kind)).await.is_err()
    }

    /// Cuts the link, and waits until the host has noticed.
    pub(crate) async fn leave(self) {
        let Self { says, heard, served, .. } = self;
        drop((says, heard));
        soon(served).await.unwrap();
    }
}
