//! A result of 10 MB over an in-process `nostr-relay-builder` relay: our link and dialect beside the crate `contextvm-sdk`, in turns.
//!
//! `cargo bench -p breakbulk-interop --bench nostr` prints wall time, events and peak memory of each, and their ratios; then the wall time
//! with 50 ms added to each confirmation of the relay. Each call runs in a process of its own, which has a client and a server; the relay,
//! and the proxy that counts events and delays confirmations, are in the process that starts it.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use breakbulk::external::{Acceptor, Connector, LinkRequest};
use breakbulk::{BoxLink, Dialer, Driver};
use breakbulk_nostr::{NostrAcceptor, NostrAddress, NostrConnector};
use breakbulk_proto::{Budget, BudgetConfig, Event, Input, Limits, LimitsConfig, Ticket, cep22};
use contextvm_sdk::transport::client::{NostrClientTransport, NostrClientTransportConfig};
use contextvm_sdk::transport::server::{NostrServerTransport, NostrServerTransportConfig};
use contextvm_sdk::{EncryptionMode, signer};
use futures_util::{SinkExt, StreamExt};
use nostr_relay_builder::builder::{RateLimit, RelayBuilder};
use nostr_relay_builder::local::LocalRelay;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_tungstenite::tungstenite::Message;

/// The length of the result.
const BYTES: usize = 10_000_000;
/// How often each side runs; medians are printed.
const ROUNDS: usize = 5;
/// What is added to each confirmation in the second part.
const DELAY: Duration = Duration::from_millis(50);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match arguments.iter().position(|argument| argument == "--call") {
        Some(at) => runtime.block_on(call(&arguments[at + 1], &arguments[at + 2])),
        None => runtime.block_on(compare()),
    }
}

/// One figure of a call.
type Figure = fn(&Cost) -> f64;

/// What one call took.
#[derive(Debug, Clone, Copy)]
struct Cost {
    millis: f64,
    events: f64,
    peak: f64,
}

async fn compare() {
    for (delay, rounds) in [(Duration::ZERO, ROUNDS), (DELAY, 1)] {
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (costs, who) in costs.iter_mut().zip(["ours", "theirs"]) {
                costs.push(measure(who, delay).await);
            }
        }
        let median = |costs: &[Cost], of: Figure| {
            let mut values: Vec<f64> = costs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!("{} bytes, {} ms added to each confirmation, medians of {rounds}:", BYTES, delay.as_millis());
        let rows: [(&str, Figure); 3] = [
            ("wall time, ms", |cost| cost.millis),
            ("events", |cost| cost.events),
            ("peak memory, KiB", |cost| cost.peak),
        ];
        for (name, of) in rows {
            let [ours, theirs] = [median(&costs[0], of), median(&costs[1], of)];
            println!("  {name:18} breakbulk {ours:9.0}   contextvm-sdk {theirs:9.0}   ratio {:.2}", ours / theirs);
        }
    }
}

/// Runs one call in a process of its own, over a relay of its own.
async fn measure(who: &str, delay: Duration) -> Cost {
    let limit = RateLimit { max_reqs: 500, notes_per_minute: 1_000_000 };
    let relay = LocalRelay::new(RelayBuilder::default().rate_limit(limit));
    relay.run().await.unwrap();
    let events = Arc::<AtomicU64>::default();
    let proxy = proxy(relay.url().await.to_string(), delay, Arc::clone(&events)).await;
    let program = std::env::current_exe().unwrap();
    let output = tokio::process::Command::new(program)
        .args(["--call", who, &proxy])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .await
        .unwrap();
    relay.shutdown();
    let said: Value = serde_json::from_slice(&output.stdout).expect("the call says what it took");
    Cost {
        millis: said["millis"].as_f64().unwrap(),
        events: events.load(Ordering::Relaxed) as f64,
        peak: said["peak"].as_f64().unwrap(),
    }
}

/// Passes everything on, counts events, and delays confirmations. They do not delay each other.
async fn proxy(relay: String, delay: Duration, events: Arc<AtomicU64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (relay, events) = (relay.clone(), Arc::clone(&events));
            tokio::spawn(async move {
                let Ok(near) = tokio_tungstenite::accept_async(socket).await else { return };
                let (far, _) = tokio_tungstenite::connect_async(relay).await.unwrap();
                let ((mut to_client, mut from_client), (mut to_relay, mut from_relay)) = (near.split(), far.split());
                let (out, mut queued) = mpsc::unbounded_channel();
                tokio::spawn(async move {
                    while let Some(message) = queued.recv().await {
                        let _ = to_client.send(message).await;
                    }
                });
                tokio::spawn(async move {
                    while let Some(Ok(message)) = from_relay.next().await {
                        let is_confirmation = message.to_text().is_ok_and(|text| text.starts_with(r#"["OK""#));
                        if !is_confirmation || delay.is_zero() {
                            let _ = out.send(message);
                            continue;
                        }
                        let out = out.clone();
                        tokio::spawn(async move {
                            sleep(delay).await;
                            let _ = out.send(message);
                        });
                    }
                });
                while let Some(Ok(message)) = from_client.next().await {
                    if message.to_text().is_ok_and(|text| text.starts_with(r#"["EVENT""#)) {
                        events.fetch_add(1, Ordering::Relaxed);
                    }
                    if matches!(message, Message::Close(_)) || to_relay.send(message).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// Makes one call, and prints what it took.
async fn call(who: &str, relay: &str) {
    let (millis, len) = if who == "ours" { ours(relay).await } else { theirs(relay).await };
    assert!(len == BYTES, "{len} bytes came");
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0);
    println!("{}", json!({"millis": millis, "peak": peak}));
}

fn request() -> Value {
    let params = json!({"name": "get", "arguments": {}, "_meta": {"progressToken": "bench"}});
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
}

/// The answer to the handshake, and the large result.
fn answer(message: &Value, id: &Value) -> Value {
    let result = match message["method"].as_str() {
        Some("initialize") => {
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}})
        }
        _ => json!({"content": [{"type": "text", "text": "x".repeat(BYTES)}]}),
    };
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn initialize() -> Value {
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

fn text_len(answer: &Value) -> usize {
    answer["result"]["content"][0]["text"].as_str().unwrap().len()
}

fn driver(link: BoxLink) -> Driver<BoxLink, cep22::Connection> {
    let limits = Limits::prove(LimitsConfig::default(), &BudgetConfig::default()).unwrap();
    let config = cep22::Config { limits, acks: true, inject_tokens: true, ..cep22::Config::default() };
    Driver::new(link, cep22::Connection::new(config, Budget::default().account(Some("bench"))))
}

async fn next(driver: &mut Driver<BoxLink, cep22::Connection>) -> Option<Value> {
    loop {
        match driver.next().await? {
            Event::Message { message, .. } => return serde_json::from_slice(&message.to_bytes()).ok(),
            Event::SendFailed { error, .. } => panic!("{error}"),
            Event::ReceiveFailed { violation, .. } => panic!("{violation}"),
            _ => {}
        }
    }
}

async fn ours(relay: &str) -> (f64, usize) {
    let dir = tempfile::tempdir().unwrap();
    let option = |name: &str, value: &str| {
        vec![(name.to_owned(), value.to_owned()), ("encryption".to_owned(), "off".to_owned())]
    };
    let address = NostrAddress::parse(relay, &option("key", dir.path().join("key").to_str().unwrap())).unwrap();
    let (mut acceptor, notes) = NostrAcceptor::new(address, Dialer::default(), 60_000).await.unwrap();
    let key = notes.iter().find_map(|note| note.split_once("?server=")).unwrap().1.to_owned();
    tokio::spawn(async move {
        while let Some(peer) = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await {
            tokio::spawn(async move {
                let mut driver = driver(peer.link);
                while let Some(message) = next(&mut driver).await {
                    let Some(id) = message.get("id") else { continue };
                    driver.handle(Input::send(Ticket(1), answer(&message, id).to_string()));
                }
            });
        }
    });
    let address = NostrAddress::parse(relay, &option("server", &key)).unwrap();
    let connector = NostrConnector::new(address, Dialer::default()).unwrap();
    let mut client = driver(connector.connect(LinkRequest::new(60_000, 4 << 20)).await.unwrap());
    client.handle(Input::send(Ticket(1), initialize().to_string()));
    next(&mut client).await.unwrap();
    let begin = Instant::now();
    client.handle(Input::send(Ticket(2), request().to_string()));
    let answer = next(&mut client).await.unwrap();
    (begin.elapsed().as_secs_f64() * 1000.0, text_len(&answer))
}

async fn theirs(relay: &str) -> (f64, usize) {
    let keys = signer::generate();
    let key = keys.public_key().to_hex();
    let config = NostrServerTransportConfig::default()
        .with_relay_urls(vec![relay.into()])
        .with_publish_relay_list(false)
        .with_encryption_mode(EncryptionMode::Disabled);
    let mut server = NostrServerTransport::new(keys, config).await.unwrap();
    server.start().await.unwrap();
    let mut requests = server.take_message_receiver().unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            let message = serde_json::to_value(&request.message).unwrap();
            let Some(id) = message.get("id") else { continue };
            let answer = serde_json::from_value(answer(&message, id)).unwrap();
            server.send_response(&request.event_id, answer).await.unwrap();
        }
    });
    let config = NostrClientTransportConfig::default()
        .with_relay_urls(vec![relay.into()])
        .with_server_pubkey(key)
        .with_timeout(Duration::from_secs(300))
        .with_encryption_mode(EncryptionMode::Disabled);
    let mut client = NostrClientTransport::new(signer::generate(), config).await.unwrap();
    client.start().await.unwrap();
    let mut messages = client.take_message_receiver().unwrap();
    client.send(&serde_json::from_value(initialize()).unwrap()).await.unwrap();
    messages.recv().await.unwrap();
    let begin = Instant::now();
    client.send(&serde_json::from_value(request()).unwrap()).await.unwrap();
    loop {
        let message = serde_json::to_value(messages.recv().await.unwrap()).unwrap();
        // Progress comes before it.
        if message["id"] == 2 {
            return (begin.elapsed().as_secs_f64() * 1000.0, text_len(&message));
        }
    }
}
