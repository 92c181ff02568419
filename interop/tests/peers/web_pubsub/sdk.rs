//! The official client and service SDKs for Node and Python against our relay. Their scripts check what they see; this side cuts
//! connections when a script asks for it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::relay::Running;
use crate::peer::{node, python};
use crate::program::file;

const KEEP: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_for_node_connect_send_recover_and_are_refused_as_with_the_service() {
    run(node(), "node/web_pubsub.mjs", "all", KEEP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_for_node_whose_recovery_fails_connects_again_and_is_in_its_groups() {
    run(node(), "node/web_pubsub.mjs", "forgotten", Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_for_python_connect_send_recover_and_are_refused_as_with_the_service() {
    run(python(), "python/web_pubsub.py", "all", KEEP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_for_python_whose_recovery_fails_connects_again_and_is_in_its_groups() {
    run(python(), "python/web_pubsub.py", "forgotten", Duration::ZERO).await;
}

/// Runs a script. It prints `cut` to have all connections cut, and waits for a line; any other line is for people.
async fn run(mut command: Command, script: &str, part: &str, keep: Duration) {
    let running = Running::start(keep).await;
    let relay = running.relay.clone();
    command.arg(file(script)).arg(part).env("CONNECTION_STRING", &running.connection_string);
    let ended = tokio::task::spawn_blocking(move || {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut commands, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            println!("{line}");
            if line == "cut" {
                relay.cut(|_| true);
                writeln!(commands, "done").unwrap();
            }
        }
        child.wait().unwrap()
    });
    let status = tokio::time::timeout(Duration::from_secs(120), ended).await.expect("the script ends").unwrap();
    assert!(status.success(), "{script} {part}: {status}");
    let stats = running.relay.stats();
    assert!(stats.largest_frame <= 1_000_000, "{stats:?}");
}
