//! The official ContextVM SDKs, for Node and in Rust, as clients and servers over relays that nobody here wrote.

mod announced;
mod node;
mod relays;
mod rust;

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::program::{Bridge, breakbulk, file};

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// The lengths that pass: the long one only when asked for, because the npm SDK takes 18 s for it.
fn lengths() -> Vec<usize> {
    let mut lengths = vec![100_000, 1_000_000];
    if std::env::var_os("BREAKBULK_INTEROP_LONG").is_some() {
        lengths.push(10_000_000);
    }
    lengths
}

/// A bridge that offers the MCP server of the TypeScript SDK. Starting it blocks the thread, so a relay in this process needs another.
struct Offered {
    bridge: Bridge,
    key: String,
    _dir: TempDir,
}

impl Offered {
    fn start(relays: &str, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("nostr:{relays}?key={}{options}", dir.path().join("key").to_str().unwrap());
        let bridge = Bridge::start(&listen, &format!("exec:node '{}'", file("node/mcp_server.mjs")), &[]);
        let key = bridge.url.split_once("?server=").expect("the bridge names its key").1.to_owned();
        Self { bridge, key, _dir: dir }
    }
}

/// What an MCP client on the TypeScript SDK gets that has our bridge as its server, and never heard of tokens.
async fn through_our_bridge(relays: &str, server: &str, options: &str, bytes: usize) -> Value {
    let connect = format!("nostr:{relays}?server={server}{options}");
    let how = json!({"bytes": bytes, "maxBufferSize": 64 << 20}).to_string();
    let args =
        [file("node/mcp_client.mjs"), how, breakbulk().into(), "bridge".into(), "--listen".into(), "stdio:".into()];
    said(Command::new("node").args(args).args(["--connect", &connect])).await
}

/// Runs a client, and returns what it says.
async fn said(command: &mut Command) -> Value {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("the client ends").unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// The text came whole both ways.
#[track_caller]
fn assert_whole(said: &Value, bytes: usize) {
    assert!(said["got"]["bytes"].as_u64().unwrap_or(0) >= bytes as u64, "{said}");
    assert_eq!(said["got"], said["want"], "what came");
    assert_eq!(said["there"], said["want"], "what was sent");
}
