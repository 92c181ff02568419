//! A node of a fleet as a program: what it says when it cannot start, what others see of it, and what `breakbulk log` does
//! with a log in NATS.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../host/tests/nats/mod.rs"]
mod nats;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use breakbulk_host::log::jetstream::{JetStreamConfig, JetStreamLog};
use breakbulk_host::log::{Batch, Log, Save};
use common::{breakbulk, text};
use serde_json::Value;

use crate::nats::NatsServer;

const TOKEN: (&str, &str) = ("BREAKBULK_TOKEN", "0123456789abcdef0123456789abcdef");

/// A node that runs until this is dropped.
struct Node {
    child: Child,
    ready: Value,
}

impl Node {
    fn start(dir: &Path, nats: &str, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
        command.current_dir(dir).stdin(Stdio::null()).env_clear().envs([TOKEN]);
        command.args(["serve", "--log", nats, "--listen", "ws://127.0.0.1:0", "--agent", "demo", "--format", "json"]);
        let mut child = command.args(more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, ready: serde_json::from_str(&line).unwrap() }
    }

    /// Host and port.
    fn place(&self) -> &str {
        self.ready["ahp"].as_str().unwrap().trim_start_matches("ws://").split('/').next().unwrap()
    }

    fn stop(mut self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM)
            .unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What a node says that cannot start, and its exit status.
fn refused(nats: &str, variables: &[(&str, &str)]) -> (String, Option<i32>) {
    let dir = tempfile::tempdir().unwrap();
    let args = ["serve", "--log", nats, "--listen", "ws://127.0.0.1:0", "--agent", "demo"];
    let output = breakbulk(dir.path(), variables, &args);
    (text(&output.stderr).lines().last().unwrap_or_default().to_owned(), output.status.code())
}

#[test]
fn a_node_needs_the_token_that_all_nodes_have() {
    let (said, status) = refused("nats://127.0.0.1:4222", &[]);
    let want = "log is \"nats://127.0.0.1:4222\" (flag --log): a token is needed, the same on each node: set BREAKBULK_TOKEN, \
                token in the file or --token";
    assert!(said.ends_with(want), "{said}");
    assert_eq!(status, Some(2));
}

#[test]
fn without_a_nats_server_a_node_says_so_and_shows_no_password() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (said, status) = refused(&format!("nats://me:s3cret@127.0.0.1:{port}"), &[TOKEN]);
    assert!(said.contains(&format!("no NATS server answers at nats://me:***@127.0.0.1:{port}: ")), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    assert_eq!(status, Some(1));
}

#[test]
fn a_node_says_that_jetstream_is_not_enabled() {
    let server = NatsServer::without_jetstream();
    let (said, _) = refused(&server.url, &[TOKEN]);
    assert!(said.contains("JetStream is not enabled on the NATS server"), "{said}");
}

#[test]
fn a_node_says_that_its_password_is_wrong() {
    let server = NatsServer::with("authorization { user: me, password: right }");
    let (said, _) = refused(&server.url.replace("nats://", "nats://me:wrong@"), &[TOKEN]);
    assert!(said.contains("refuses the token, the password or the credentials of this node"), "{said}");
    let dir = tempfile::tempdir().unwrap();
    Node::start(dir.path(), &server.url.replace("nats://", "nats://me:right@"), &[]).stop();
}

#[test]
fn a_node_with_the_permissions_of_the_guide_serves_its_host_and_no_other() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fleet.md")).unwrap();
    let permissions = guide.split("```\npublish = [").nth(1).unwrap().split("```").next().unwrap();
    let permissions = format!("publish = [{permissions}");
    let users = format!(
        "authorization {{ users: [ {{ user: node, password: pw, permissions: {{ {permissions} }} }}, \
         {{ user: root, password: pw }} ] }}"
    );
    let server = NatsServer::with(&users);
    let (mine, all) = (server.url.replace("//", "//node:pw@"), server.url.replace("//", "//root:pw@"));
    let dir = tempfile::tempdir().unwrap();
    // The bucket and the streams may be made by somebody who may more.
    let one = Node::start(dir.path(), &mine, &[]);
    let two = Node::start(dir.path(), &mine, &[]);
    one.stop();
    let status = || {
        let output = breakbulk(dir.path(), &[], &["fleet", "status", "--log", &all, "--format", "json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    // The other one looks at the lease in a moment.
    let took_over = (0..60).any(|_| status()[0]["epoch"] == 2);
    assert!(took_over, "{}", status());
    two.stop();
    let (said, _) = {
        let args = ["serve", "--log", &mine, "--host", "other", "--listen", "ws://127.0.0.1:0", "--agent", "demo"];
        let output = breakbulk(dir.path(), &[TOKEN], &args);
        (text(&output.stderr).lines().last().unwrap_or_default().to_owned(), output.status.code())
    };
    assert!(said.to_lowercase().contains("permissions violation"), "{said}");
}

#[test]
fn the_status_has_hosts_owners_and_nodes() {
    let server = NatsServer::start();
    let dir = tempfile::tempdir().unwrap();
    let empty = breakbulk(dir.path(), &[], &["fleet", "status", "--log", &server.url]);
    assert_eq!(text(&empty.stdout), "no node has served a host yet\n");
    let one = Node::start(dir.path(), &server.url, &["--host", "alpha"]);
    let two = Node::start(dir.path(), &server.url, &["--host", "alpha"]);
    let beta = Node::start(dir.path(), &server.url, &["--host", "beta"]);
    let output = breakbulk(dir.path(), &[], &["fleet", "status", "--log", &server.url, "--format", "json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = status.as_array().unwrap().iter().map(|host| host["host"].as_str().unwrap()).collect();
    assert_eq!(names, ["alpha", "beta"]);
    assert_eq!(status[0]["owner"]["address"], format!("ws://{}", one.place()));
    assert_eq!((status[0]["epoch"].as_u64(), status[0]["leaseMs"].as_u64()), (Some(1), Some(3_000)));
    assert!(status[0]["bytes"].as_u64().unwrap() > 0 && status[0]["messages"].as_u64().unwrap() > 0, "{status}");
    let nodes = status[0]["nodes"].as_array().unwrap();
    let epoch_at = |place: &str| {
        let node = nodes.iter().find(|node| node["address"] == format!("ws://{place}")).unwrap();
        node["epoch"].as_u64()
    };
    assert_eq!((epoch_at(one.place()), epoch_at(two.place())), (Some(1), None));
    let output = breakbulk(dir.path(), &[], &["fleet", "status", "--log", &server.url]);
    let said = text(&output.stdout);
    assert!(said.contains("host alpha: owned by ") && said.contains("carries 0 connections"), "{said}");
    drop(beta);
}

#[test]
fn log_commands_do_with_nats_what_they_do_with_a_file() {
    let server = NatsServer::start();
    let dir = tempfile::tempdir().unwrap();
    let log = |args: &[&str]| {
        let args: Vec<&str> =
            ["log"].iter().chain(args).copied().chain(["--log", &server.url, "--host", "alpha"]).collect();
        breakbulk(dir.path(), &[], &args)
    };
    let missing = log(&["list"]);
    assert!(text(&missing.stderr).contains("no log of the host alpha"), "{}", text(&missing.stderr));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let seqs = runtime.block_on(async {
        let log =
            JetStreamLog::open(server.connect().await, JetStreamConfig::new("alpha".parse().unwrap())).await.unwrap();
        log.append(Batch::new().open("ahp-root://", None).entry("ahp-root://", "{\"a\":1}")).await.unwrap();
        let batch =
            Batch::new().open("ahp-chat:/1", Some("ahp-session:/1")).open("ahp-session:/1", Some("ahp-session:/1"));
        let seqs = log.append(batch.entry("ahp-chat:/1", "{\"n\":1}").entry("ahp-chat:/1", "{\"n\":2}")).await.unwrap();
        log.save(Save::new("ahp-chat:/1").snapshot(seqs[1], "1", "{}").row(0, "{\"row\":0}")).await.unwrap();
        log.close().await;
        seqs
    });
    let list: Value = serde_json::from_slice(&log(&["list", "--json"]).stdout).unwrap();
    let chat = list.as_array().unwrap().iter().find(|channel| channel["channel"] == "ahp-chat:/1").unwrap();
    let number = |key: &str| chat[key].as_u64().unwrap();
    assert_eq!((number("entries"), number("bytes"), number("rows")), (2, 14, 1));
    assert_eq!((number("first"), number("last"), number("snapshot")), (seqs[0], seqs[1], seqs[1]));
    let shown = log(&["show", "ahp-chat:/1", "--json"]);
    let shown: Vec<Value> = text(&shown.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((shown.len(), &shown[1]["body"]["n"]), (2, &Value::from(2)));
    let verified = log(&["verify"]);
    assert!(text(&verified.stdout).starts_with("3 entries, 1 rows, 1 snapshots"), "{}", text(&verified.stdout));
    let exported = log(&["export"]);
    let lines: Vec<Value> = text(&exported.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let bodies: Vec<&Value> = lines.iter().filter(|line| line["seq"].is_u64()).map(|line| &line["body"]).collect();
    assert_eq!(bodies.len(), 3);
    assert!(lines.iter().any(|line| line["row"] == 0 && line["body"]["row"] == 0), "{lines:?}");
    let compacted = log(&["compact"]);
    assert!(text(&compacted.stderr).contains("a log in NATS is not compacted"), "{}", text(&compacted.stderr));
    let erased = log(&["erase", "ahp-session:/1", "--yes"]);
    assert!(text(&erased.stdout).contains("ahp-session:/1 is gone, with 2 entries"), "{}", text(&erased.stderr));
    assert!(!text(&log(&["export"]).stdout).contains("ahp-chat:/1"));
}

#[test]
fn nothing_is_erased_while_a_node_serves_the_host() {
    let server = NatsServer::start();
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &server.url, &["--lease", "1s"]);
    let args = ["log", "erase", "ahp-session:/1", "--yes", "--log", &server.url];
    let erased = breakbulk(dir.path(), &[], &args);
    let want = format!("the host main is served by the node at ws://{}: stop all of its nodes first", node.place());
    assert!(text(&erased.stderr).contains(&want), "{}", text(&erased.stderr));
    node.stop();
    let erased = breakbulk(dir.path(), &[], &args);
    assert!(text(&erased.stderr).contains("has no session or channel"), "{}", text(&erased.stderr));
    // The lease was given back.
    Node::start(dir.path(), &server.url, &[]).stop();
}
