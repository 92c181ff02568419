//! Relays that nobody here wrote.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nostr_relay_builder::builder::{RateLimit, RelayBuilder};
use nostr_relay_builder::local::LocalRelay;
use serde_json::Value;

use super::super::program::file;

/// `nostr-relay-builder`, in process. Its own limit of 60 events a minute is raised.
pub(super) struct Local {
    relay: LocalRelay,
    pub(super) url: String,
}

impl Local {
    pub(super) async fn start() -> Self {
        let limit = RateLimit { max_reqs: 500, notes_per_minute: 1_000_000 };
        let relay = LocalRelay::new(RelayBuilder::default().rate_limit(limit));
        relay.run().await.unwrap();
        let url = relay.url().await.to_string();
        Self { relay, url: url.trim_end_matches('/').to_owned() }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.relay.shutdown();
    }
}

/// `@nostr-relay/core` for Node, as a server. It delivers every event to everybody who asked for its kind.
pub(super) struct Server {
    child: Child,
    pub(super) url: String,
}

impl Server {
    pub(super) fn start() -> Self {
        let mut command = Command::new("node");
        let mut child = command.arg(file("node/nostr_relay.mjs")).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = serde_json::from_str::<Value>(&line).unwrap()["port"].clone();
        Self { child, url: format!("ws://127.0.0.1:{port}") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
