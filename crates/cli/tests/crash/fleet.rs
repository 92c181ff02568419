//! Nodes of a fleet that are killed, stopped and replaced under load. Clients come back by themselves, to whichever node
//! they find; the ledger is compared with the log in NATS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use breakbulk_host::log::jetstream::{JetStreamConfig, JetStreamLog};
use breakbulk_host::log::{Channels, Log};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::chance::Chance;
use crate::follower::Raw;
use crate::host::{HostAccess, TOKEN};
use crate::ledger::Ledger;
use crate::nats::NatsServer;
use crate::reading::Reading;
use crate::writer::{Phase, Place, Work, Writer};

/// How long anything may take. What is measured is printed, and not compared with anything.
const PATIENCE: Duration = Duration::from_secs(60);
const SESSION: &str = "ahp-session:/fleet";

/// A node that runs, or was stopped with SIGSTOP.
struct Node {
    child: Child,
    address: String,
}

impl Node {
    /// Starts a node of the host `main`; returns when clients can connect.
    fn start(dir: &Path, nats: &str, lease: &str) -> Self {
        std::fs::create_dir_all(dir.join("root")).unwrap();
        let said = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("said")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
        command.current_dir(dir).stdin(Stdio::null()).env_clear().env("BREAKBULK_TOKEN", TOKEN);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(["serve", "--log", nats, "--lease", lease, "--listen", "ws://127.0.0.1:0"]);
        command.args(["--root", "root", "--agent", "demo", "--format", "json", "--data", "data"]);
        let mut child = command.stdout(Stdio::piped()).stderr(said).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = || std::fs::read_to_string(dir.join("said")).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no node: {line}{}", said()));
        Self { child, address: ready["ahp"].as_str().unwrap().to_owned() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Whether it says of itself that it owns the host. One that does not answer does not.
    fn owns(&self) -> bool {
        let place = self.address.trim_start_matches("ws://").split('/').next().unwrap();
        let Ok(mut stream) = TcpStream::connect(place) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        answer.contains("\"owner\":\"this node\"")
    }

    /// Waits until the program has ended; whether it ended well.
    fn ended(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("a node does not end");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Nodes of one host, and clients that may go to each of them.
struct Fleet {
    nats: NatsServer,
    dir: tempfile::TempDir,
    lease: &'static str,
    nodes: Vec<Node>,
    access: HostAccess,
    place: Place,
    ledger: Arc<Mutex<Ledger>>,
    phase: watch::Sender<Phase>,
    writers: Vec<Writer>,
}

impl Fleet {
    async fn start(nodes: usize, writers: usize, lease: &'static str) -> Self {
        let nats = NatsServer::start();
        let dir = tempfile::tempdir().unwrap();
        let nodes: Vec<Node> =
            block_in_place(|| (0..nodes).map(|_| Node::start(dir.path(), &nats.url, lease)).collect());
        let access = HostAccess::of_all(nodes.iter().map(|node| node.address.clone()));
        let mut raw = Raw::open(&access).await.unwrap();
        raw.initialize("founder", &[]).await.unwrap();
        raw.call("createSession", json!({"channel": SESSION})).await.unwrap().unwrap();
        let session = raw.subscribe(SESSION).await.unwrap()["state"].take();
        let place = Place {
            session: SESSION.to_owned(),
            chat: session["defaultChat"].as_str().unwrap().to_owned(),
            annotations: session["annotations"]["resource"].as_str().unwrap().to_owned(),
            file: format!("file://{}", dir.path().join("root/f").display()),
        };
        let mut fleet = Self {
            nats,
            dir,
            lease,
            nodes,
            access,
            place,
            ledger: Arc::default(),
            phase: watch::channel(Phase::Rest).0,
            writers: Vec::new(),
        };
        for at in 0..writers {
            let work = [Work::Annotations, Work::Drafts, Work::Prompts][at % 3];
            // One prompter: the next turn begins when the last has ended.
            let work = if work == Work::Prompts && at > 2 { Work::Annotations } else { work };
            let shared = (fleet.ledger.clone(), fleet.phase.subscribe());
            let chance = Chance::new(1).light().split(u64::try_from(at).unwrap());
            let access = fleet.access.beginning_at(at);
            fleet.writers.push(Writer::start(format!("writer-{at}"), work, access, &fleet.place, chance, shared));
        }
        fleet.load().await;
        fleet
    }

    /// Waits until all clients are live and something more was acknowledged to each node's load.
    async fn load(&self) {
        self.phase.send_replace(Phase::Load);
        let live = async {
            for writer in &self.writers {
                writer.until_live(true).await;
            }
        };
        timeout(PATIENCE, live).await.unwrap_or_else(|_| panic!("a client does not come back: {}", self.said()));
        let before = self.count();
        self.acknowledged(before + 100).await;
    }

    fn count(&self) -> usize {
        self.ledger.lock().unwrap().count()
    }

    /// Waits until so much is acknowledged.
    async fn acknowledged(&self, count: usize) {
        let waiting = async {
            while self.count() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("nothing is acknowledged: {}", self.said()));
    }

    /// The node that owns the host.
    async fn owner(&self) -> usize {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(at) = block_in_place(|| self.nodes.iter().position(Node::owns)) {
                return at;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nobody owns the host: {}", self.said());
    }

    /// Starts another node in place of one that is gone.
    fn replace(&mut self, at: usize) {
        self.nodes[at] = block_in_place(|| Node::start(self.dir.path(), &self.nats.url, self.lease));
        self.access.now_at(at, self.nodes[at].address.clone());
    }

    /// From a moment on which nobody serves until the next action is acknowledged.
    async fn pause(&self, begun: Instant) -> Duration {
        let before = self.count();
        // What was on its way is acknowledged in a moment, and is not what is measured.
        self.acknowledged(before + 30).await;
        begun.elapsed()
    }

    /// Ends the load, and compares the ledger with the log.
    async fn judge(&self) -> usize {
        self.phase.send_replace(Phase::Rest);
        let settled = async {
            loop {
                let is_busy = |writer: &Writer| {
                    let page = writer.page.lock().unwrap();
                    page.fault.is_none() && !page.waiting.is_empty()
                };
                if !self.writers.iter().any(is_busy) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, settled).await.unwrap_or_else(|_| panic!("actions wait for ever: {}", self.said()));
        let reading = self.log().await;
        let ledger = self.ledger.lock().unwrap();
        ledger.check(&reading.lines(), 1..=u64::MAX).demand("the log").unwrap_or_else(|error| {
            panic!("{error}: {}", self.said());
        });
        for writer in &self.writers {
            writer.check(&reading).unwrap_or_else(|error| panic!("{error}: {}", self.said()));
        }
        ledger.count()
    }

    /// All entries.
    async fn log(&self) -> Reading {
        let config = JetStreamConfig::new("main".parse().unwrap());
        let log = JetStreamLog::follow(self.nats.connect().await, config).await.unwrap();
        let mut tail = log.tail(0, Channels::All);
        let mut reading = Reading::default();
        loop {
            let entries = tail.ready(1 << 20).await.unwrap();
            let Some(last) = entries.last() else { return reading };
            reading.last = last.seq;
            for entry in &entries {
                reading.add(entry.seq, std::str::from_utf8(&entry.body).unwrap());
            }
        }
    }

    /// What the nodes said, for a test that fails.
    fn said(&self) -> String {
        let text = std::fs::read_to_string(self.dir.path().join("said")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn when_the_owner_is_killed_another_node_serves_and_nothing_is_lost_or_repeated() {
    let mut fleet = Fleet::start(3, 9, "1s").await;
    for round in 1..=4 {
        let owner = fleet.owner().await;
        fleet.nodes[owner].child.kill().unwrap();
        let pause = fleet.pause(Instant::now()).await;
        println!("round {round}: acknowledged again {:.2} s after kill -9, with a lease of 1 s", pause.as_secs_f64());
        assert_ne!(fleet.owner().await, owner);
        fleet.replace(owner);
        fleet.load().await;
    }
    println!("{} acknowledged: 0 lost, 0 repeated, 0 reordered, 0 altered", fleet.judge().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_owner_that_was_stopped_and_wakes_up_acknowledges_nothing() {
    let fleet = Fleet::start(3, 6, "1s").await;
    for round in 1..=3 {
        let old = fleet.owner().await;
        fleet.nodes[old].signal(Signal::STOP);
        let pause = fleet.pause(Instant::now()).await;
        println!("round {round}: acknowledged again {:.2} s after SIGSTOP, with a lease of 1 s", pause.as_secs_f64());
        let new = fleet.owner().await;
        assert_ne!(new, old);
        // It believes that it owns, and has clients with open connections and actions on their way.
        fleet.nodes[old].signal(Signal::CONT);
        fleet.load().await;
        let begun = Instant::now();
        while block_in_place(|| fleet.nodes[old].owns()) {
            assert!(begun.elapsed() < PATIENCE, "it still believes that it owns: {}", fleet.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    println!("{} acknowledged: 0 lost, 0 repeated, 0 reordered, 0 altered", fleet.judge().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_is_told_to_stop_hands_over_at_once() {
    // A node that waited for the lease to end would fail by the patience of this test.
    let mut fleet = Fleet::start(2, 6, "5m").await;
    for round in 1..=4 {
        let owner = fleet.owner().await;
        fleet.nodes[owner].signal(Signal::TERM);
        let pause = fleet.pause(Instant::now()).await;
        println!("round {round}: acknowledged again {:.2} s after SIGTERM, with a lease of 5 min", pause.as_secs_f64());
        assert!(block_in_place(|| fleet.nodes[owner].ended()), "{}", fleet.said());
        fleet.replace(owner);
        fleet.load().await;
    }
    println!("{} acknowledged: 0 lost, 0 repeated, 0 reordered, 0 altered", fleet.judge().await);
}
