//! The crate `contextvm-sdk` 0.2.2.

use std::time::Duration;

use contextvm_sdk::transport::client::{NostrClientTransport, NostrClientTransportConfig};
use contextvm_sdk::transport::server::{NostrServerTransport, NostrServerTransportConfig};
use contextvm_sdk::{EncryptionMode, JsonRpcMessage, signer};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::text::text;
use super::relays::Local;
use super::{Offered, PATIENCE, assert_whole, lengths, through_our_bridge};

/// A client of theirs that has initialized.
struct Client {
    transport: NostrClientTransport,
    messages: UnboundedReceiver<JsonRpcMessage>,
    next: u64,
}

impl Client {
    async fn connect(relay: &str, server: &str, encryption: EncryptionMode) -> Self {
        let config = NostrClientTransportConfig::default()
            .with_relay_urls(vec![relay.into()])
            .with_server_pubkey(server)
            .with_timeout(PATIENCE)
            .with_encryption_mode(encryption);
        let mut transport = NostrClientTransport::new(signer::generate(), config).await.unwrap();
        transport.start().await.unwrap();
        let messages = transport.take_message_receiver().unwrap();
        let mut client = Self { transport, messages, next: 0 };
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        client.request("initialize", params).await;
        client.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        client
    }

    async fn send(&self, message: Value) {
        self.transport.send(&serde_json::from_value(message).unwrap()).await.unwrap();
    }

    async fn request(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        let answer = timeout(PATIENCE, async {
            loop {
                let message = serde_json::to_value(self.messages.recv().await.unwrap()).unwrap();
                if message["id"] == id {
                    return message;
                }
            }
        });
        answer.await.expect("each request has an answer")["result"].take()
    }

    /// Calls a tool, and returns its text.
    async fn call(&mut self, name: &str, arguments: Value, token: Value) -> String {
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": token}});
        self.request("tools/call", params).await["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_client_gets_and_sends_every_length_plain_and_sealed() {
    let relay = Local::start().await;
    let ours = Offered::start(&relay.url, "");
    for encryption in [EncryptionMode::Disabled, EncryptionMode::Required] {
        let mut client = Client::connect(&relay.url, &ours.key, encryption).await;
        for (bytes, token) in lengths().into_iter().zip([json!(7), json!("eight"), json!(9)]) {
            let got = client.call("cargo", json!({"bytes": bytes}), token.clone()).await;
            assert!(got.len() >= bytes && got.contains("積荷を小分けにする 🚢👩🏽‍💻"), "{bytes}");
            let weighed = client.call("weigh", json!({"text": got}), token).await;
            assert_eq!(serde_json::from_str::<Value>(&weighed).unwrap()["bytes"], got.len());
        }
    }
}

/// A server of theirs with the tools of the others.
struct Theirs {
    key: String,
    task: JoinHandle<()>,
}

impl Theirs {
    async fn start(relay: &str, encryption: EncryptionMode) -> Self {
        let keys = signer::generate();
        let key = keys.public_key().to_hex();
        let config = NostrServerTransportConfig::default()
            .with_relay_urls(vec![relay.into()])
            .with_publish_relay_list(false)
            .with_encryption_mode(encryption);
        let mut transport = NostrServerTransport::new(keys, config).await.unwrap();
        transport.start().await.unwrap();
        let mut requests = transport.take_message_receiver().unwrap();
        let task = tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let message = serde_json::to_value(&request.message).unwrap();
                let Some(id) = message.get("id") else { continue };
                let arguments = &message["params"]["arguments"];
                let result = match (message["method"].as_str(), message["params"]["name"].as_str()) {
                    (Some("initialize"), _) => json!({
                        "protocolVersion": "2025-06-18",
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "theirs", "version": "1"},
                    }),
                    (_, Some("cargo")) => content(cargo(arguments["bytes"].as_u64().unwrap())),
                    (_, Some("weigh")) => content(weighed(arguments["text"].as_str().unwrap())),
                    _ => json!({}),
                };
                let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
                let _ = transport.send_response(&request.event_id, serde_json::from_value(answer).unwrap()).await;
            }
        });
        Self { key, task }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn content(text: String) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// The text of `cargo.mjs`.
fn cargo(bytes: u64) -> String {
    const PIECE: &str = "積荷を小分けにする 🚢👩🏽‍💻 \"größe\" \\ \n\t";
    PIECE.repeat(usize::try_from(bytes).unwrap().div_ceil(PIECE.len()))
}

fn weighed(text: &str) -> String {
    use sha2::{Digest, Sha256};
    let hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"bytes": text.len(), "sha256": hash}).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_mcp_client_reaches_its_server_through_our_bridge_plain_and_sealed() {
    for (encryption, option) in
        [(EncryptionMode::Disabled, "&encryption=off"), (EncryptionMode::Optional, "&encryption=required")]
    {
        let relay = Local::start().await;
        let theirs = Theirs::start(&relay.url, encryption).await;
        for bytes in lengths() {
            assert_whole(&through_our_bridge(&relay.url, &theirs.key, option, bytes).await, bytes);
        }
    }
}

/// Neither SDK ever sends `abort`. Ours does, so that a client of ours is told at once; see the tests of the crate for the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_its_clients_with_the_same_token_and_ids_get_their_own_results() {
    let relay = Local::start().await;
    let ours = Offered::start(&relay.url, "");
    let (mut one, mut other) = tokio::join!(
        Client::connect(&relay.url, &ours.key, EncryptionMode::Disabled),
        Client::connect(&relay.url, &ours.key, EncryptionMode::Optional)
    );
    let (one, other) = tokio::join!(
        one.call("cargo", json!({"bytes": 200_000}), json!("same")),
        other.call("cargo", json!({"bytes": 300_000}), json!("same"))
    );
    assert_eq!((one.len() / 100_000, other.len() / 100_000), (2, 3));
}

/// The first message is an upload, so the server has to accept it before its chunks come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_waits_to_be_accepted_has_more_than_21_chunks() {
    let relay = Local::start().await;
    let theirs = Theirs::start(&relay.url, EncryptionMode::Disabled).await;
    let text = text(2_000_000);
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "weigh", "arguments": {"text": text}}});
    let answer = once_through_our_bridge(&relay.url, &theirs.key, &request).await;
    let weight: Value = serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(weight["bytes"], text.len());
}

/// Sends one request through a bridge of ours, without a handshake, and returns the answer.
async fn once_through_our_bridge(relay: &str, server: &str, request: &Value) -> Value {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let mut child = tokio::process::Command::new(super::breakbulk())
        .args(["bridge", "--listen", "stdio:", "--connect", &format!("nostr:{relay}?server={server}&encryption=off")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(format!("{request}\n").as_bytes()).await.unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(Duration::from_secs(60), lines.next_line()).await.expect("there is an answer").unwrap().unwrap();
    serde_json::from_str(&line).unwrap()
}
