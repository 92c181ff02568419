//! What the program has sent by reference can be read after it was killed.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use breakbulk::{AnyMachine, BoxLink, Dialect, Dialer, Driver, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Event, Input, Limits, Ticket};
use serde_json::{Value, json};

const SESSION: &str = "ahp-session:/1";
const CAP: &str = "65536";

/// The program, until it is dropped: then it is killed.
struct Host {
    child: Child,
    url: String,
}

impl Host {
    fn start(dir: &Path) -> Self {
        let args = ["serve", "--data", "data", "--listen", "ws://127.0.0.1:0", "--cap", CAP, "--format", "json"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
        command.args(args).current_dir(dir).env_clear().stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect(&line);
        Self { child, url: ready["ahp"].as_str().unwrap().to_owned() }
    }

    async fn client(&self, dialect: Dialect, id: &str, channels: &[&str]) -> Client {
        let address = format!("{}&cap={CAP}", self.url).parse().unwrap();
        let link = Dialer::default().dial(&address).await.unwrap();
        let setup = Setup::new(dialect, Role::Client, Limits::default());
        let machine = setup.machine(Budget::default().account(Some("host"))).unwrap();
        let mut client = Client { driver: Driver::new(link, machine), ids: 0 };
        let hello = json!({"channel": "ahp-root://", "clientId": id, "protocolVersions": ["1.0.0"],
            "initialSubscriptions": channels});
        client.call("initialize", hello).await.unwrap();
        client
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct Client {
    driver: Driver<BoxLink, AnyMachine>,
    ids: u64,
}

impl Client {
    async fn next(&mut self) -> Value {
        loop {
            let event = tokio::time::timeout(Duration::from_secs(60), self.driver.next()).await.expect("in a minute");
            match event {
                Some(Event::Message { message, .. }) => return serde_json::from_slice(&message.to_bytes()).unwrap(),
                Some(Event::Closed(reason)) => panic!("{reason}"),
                other => assert!(other.is_some(), "a message before the end"),
            }
        }
    }

    /// Asks, and passes over everything but the answer.
    async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.ids += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params});
        self.driver.handle(Input::send(Ticket(self.ids), message.to_string()));
        loop {
            let mut answer = self.next().await;
            if answer.get("method").is_none() && answer["id"] == json!(self.ids) {
                return answer.get_mut("result").map(Value::take).ok_or_else(|| answer["error"].clone());
            }
        }
    }

    async fn action(&mut self, kind: &str) -> Value {
        loop {
            let message = self.next().await;
            if message["params"]["action"]["type"] == kind {
                return message["params"]["action"].clone();
            }
        }
    }
}

#[tokio::test]
async fn what_was_sent_by_reference_can_be_read_after_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(dir.path());
    let mut large = host.client(Dialect::Ahp, "large", &[]).await;
    large.call("createSession", json!({"channel": SESSION})).await.unwrap();
    let session = large.call("subscribe", json!({"channel": SESSION})).await.unwrap();
    let chat = session["snapshot"]["state"]["defaultChat"].as_str().unwrap().to_owned();
    let mut plain = host.client(Dialect::Plain, "plain", &[&chat]).await;
    let message = json!({"text": "/big 5MB", "origin": {"kind": "user"}});
    let action = json!({"type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00.000Z",
        "message": message});
    let params = json!({"channel": chat, "clientSeq": 1, "action": action});
    large.call("dispatchAction", params).await.unwrap();
    let completed = plain.action("chat/toolCallComplete").await;
    let reference = &completed["result"]["content"][0];
    assert_eq!(reference["type"], "resource", "{reference:.300}");
    let params = json!({"channel": chat, "uri": reference["uri"]});
    // The turn may not be over, and nothing of it saved.
    drop(host);

    let host = Host::start(dir.path());
    let mut large = host.client(Dialect::Ahp, "large", &[]).await;
    let content = large.call("resourceRead", params.clone()).await.unwrap();
    assert_eq!(reference["sizeHint"], json!(content["data"].as_str().unwrap().len()));
    let mut plain = host.client(Dialect::Plain, "plain", &[]).await;
    let error = plain.call("resourceRead", params.clone()).await.unwrap_err();
    assert_eq!(error["data"]["reason"], "messageTooLarge", "{error}");
    large.call("disposeSession", json!({"channel": SESSION})).await.unwrap();
    assert_eq!(large.call("resourceRead", params).await.unwrap_err()["code"], -32008);
}
