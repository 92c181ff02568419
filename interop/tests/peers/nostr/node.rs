//! `@contextvm/sdk` 0.11.14 for Node. Its defects that a peer meets each have a test that names them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tokio::process::Command;

use super::super::program::file;
use super::relays::{Local, Server};
use super::{Offered, assert_whole, lengths, said, through_our_bridge};

/// Its client calls a server that we offer.
async fn client(relay: &str, server: &str, how: Value) -> Value {
    said(Command::new("node").args([&file("node/contextvm.mjs"), "client", relay, server, &how.to_string()])).await
}

/// A server of its own.
struct Theirs {
    child: Child,
    key: String,
}

impl Theirs {
    fn start(relay: &str, how: &Value) -> Self {
        let mut command = std::process::Command::new("node");
        command.args([&file("node/contextvm.mjs"), "server", relay, &how.to_string()]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let key = serde_json::from_str::<Value>(&line).unwrap()["server"].as_str().unwrap().to_owned();
        Self { child, key }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_client_gets_and_sends_every_length_with_numeric_and_string_tokens() {
    for (relay, _alive) in [relay(true).await, relay(false).await] {
        let ours = Offered::start(&relay, "");
        for bytes in lengths() {
            let how = json!({"bytes": bytes, "progress": true, "encryption": "disabled"});
            assert_whole(&client(&relay, &ours.key, how).await, bytes);
            let how = json!({"bytes": bytes, "token": "größe-🚢", "encryption": "disabled"});
            assert_whole(&client(&relay, &ours.key, how).await, bytes);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_client_gets_sealed_results_of_every_length() {
    let relay = Local::start().await;
    let ours = Offered::start(&relay.url, "&encryption=required");
    for bytes in lengths() {
        let how = json!({"bytes": bytes, "progress": true, "down": true, "encryption": "required"});
        assert_whole(&client(&relay.url, &ours.key, how).await, bytes);
    }
}

/// It measures a message by sealing it whole, and NIP-44 takes no more than 65,535 bytes: so it cannot begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defect_it_cannot_send_a_large_message_sealed_and_its_caller_is_told_so() {
    let relay = Local::start().await;
    let ours = Offered::start(&relay.url, "");
    let how = json!({"bytes": 100_000, "progress": true, "encryption": "required"});
    let said = client(&relay.url, &ours.key, how).await;
    assert!(said["failed"].is_string(), "the defect is gone: {said}");
    // What is small still passes, and so does what comes back.
    let how = json!({"bytes": 10_000, "progress": true, "encryption": "required"});
    assert_whole(&client(&relay.url, &ours.key, how).await, 10_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_initialize_first_is_served_and_stops_nobody() {
    let relay = Local::start().await;
    let ours = Offered::start(&relay.url, "");
    let stateless = json!({"bytes": 100_000, "progress": true, "stateless": true, "encryption": "disabled"});
    let usual = json!({"bytes": 100_000, "progress": true, "encryption": "disabled"});
    let calls = tokio::join!(client(&relay.url, &ours.key, stateless), client(&relay.url, &ours.key, usual.clone()));
    assert_whole(&calls.0, 100_000);
    assert_whole(&calls.1, 100_000);
    assert_whole(&client(&relay.url, &ours.key, usual).await, 100_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_its_clients_with_the_same_token_get_their_own_results() {
    let relay = Local::start().await;
    let ours = Offered::start(&relay.url, "");
    let how = |bytes| json!({"bytes": bytes, "token": "same", "encryption": "disabled"});
    let calls = tokio::join!(client(&relay.url, &ours.key, how(300_000)), client(&relay.url, &ours.key, how(400_000)));
    assert_whole(&calls.0, 300_000);
    assert_whole(&calls.1, 400_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_mcp_client_reaches_its_server_through_our_bridge() {
    for (relay, _alive) in [relay(true).await, relay(false).await] {
        let theirs = Theirs::start(&relay, &json!({"encryption": "disabled"}));
        for bytes in lengths() {
            assert_whole(&through_our_bridge(&relay, &theirs.key, "&encryption=off", bytes).await, bytes);
        }
    }
}

/// It keeps tokens of all its clients in one table. Ours are random, so nobody gets what is for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defect_its_server_mixes_up_clients_with_the_same_token_and_ours_never_have_the_same() {
    let relay = Local::start().await;
    let theirs = Theirs::start(&relay.url, &json!({"encryption": "disabled"}));
    let off = "&encryption=off";
    let calls = tokio::join!(
        through_our_bridge(&relay.url, &theirs.key, off, 300_000),
        through_our_bridge(&relay.url, &theirs.key, off, 400_000)
    );
    assert_whole(&calls.0, 300_000);
    assert_whole(&calls.1, 400_000);
}

/// The same defect as that of its client: a large result is never sent, and what is small passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defect_its_server_answers_small_calls_sealed_and_large_ones_never() {
    let relay = Local::start().await;
    let theirs = Theirs::start(&relay.url, &json!({}));
    assert_whole(&through_our_bridge(&relay.url, &theirs.key, "", 10_000).await, 10_000);
}

/// One of the two relays, and what keeps it alive.
async fn relay(is_local: bool) -> (String, Box<dyn std::any::Any>) {
    if is_local {
        let relay = Local::start().await;
        (relay.url.clone(), Box::new(relay))
    } else {
        let relay = Server::start();
        (relay.url.clone(), Box::new(relay))
    }
}
