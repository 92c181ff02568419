//! The laptop is closed in the middle of an answer: the client of docs/v2.md comes back to the program, and has the whole
//! message, once, still streaming. Its connection is cut, its process is killed, and the host is killed.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A host, until it is killed.
struct Host(Child);

impl Host {
    /// A host on a free port, and its address.
    fn start(dir: &Path) -> (Self, SocketAddr) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
        command.args([
            "serve",
            "--agent",
            "demo",
            "--data",
            "data",
            "--listen",
            "ws://127.0.0.1:0",
            "--format",
            "json",
        ]);
        // Pieces of an answer come slowly enough to be cut between.
        command.args(["--demo-pace", "60ms", "--allow-host", "127.0.0.1"]);
        command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("BREAKBULK_TOKEN", TOKEN);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).expect(&line);
        let address = ready["v2"].as_str().unwrap().strip_prefix("ws://").unwrap();
        (Self(child), address.split('/').next().unwrap().parse().unwrap())
    }
}

impl Drop for Host {
    /// With SIGKILL: it can say nothing to anybody.
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What is between the client and the host: the host may be another one later, and connections can be cut.
struct Network {
    address: SocketAddr,
    host: Arc<Mutex<SocketAddr>>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Network {
    fn to(host: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (host, sockets) = (Arc::new(Mutex::new(host)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (to, open) = (Arc::clone(&host), Arc::clone(&sockets));
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                // While there is no host, nobody is let in.
                let Ok(far) = TcpStream::connect(*to.lock().unwrap()) else { continue };
                for (mut from, mut to) in [(&near, &far), (&far, &near)].map(|(a, b)| (copy(a), copy(b))) {
                    open.lock().unwrap().push(copy(&from));
                    std::thread::spawn(move || {
                        drop(std::io::copy(&mut from, &mut to));
                        drop(to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        Self { address, host, sockets }
    }

    /// Cuts all connections.
    fn cut(&self) {
        for socket in self.sockets.lock().unwrap().drain(..) {
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

fn copy(socket: &TcpStream) -> TcpStream {
    socket.try_clone().unwrap()
}

/// The client of docs/v2.md, with what a test changes in it.
fn script(dir: &Path, name: &str, changes: &[(&str, String)]) -> PathBuf {
    let text = include_str!("../../../docs/v2.md");
    let mut script = text.split_once("```js\n").unwrap().1.split_once("```").unwrap().0.to_owned();
    for (from, to) in changes {
        assert!(script.contains(from), "docs/v2.md has no {from}");
        script = script.replace(from, to);
    }
    let path = dir.join(name);
    std::fs::write(&path, script).unwrap();
    path
}

/// A run of the client, which ends when the turn is over.
struct Client {
    process: Child,
    output: ChildStdout,
    text: String,
}

impl Client {
    fn start(script: &Path, network: &Network, root: &Path) -> Self {
        let address = format!("ws://{}/v2?token={TOKEN}", network.address);
        let mut node = Command::new("node");
        node.arg("--experimental-websocket").arg(script).arg(address).arg(root);
        node.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = node.spawn().unwrap();
        let output = process.stdout.take().unwrap();
        Self { process, output, text: String::new() }
    }

    /// Reads until it has written this much.
    fn read(&mut self, bytes: usize) {
        let mut buffer = [0; 256];
        while self.text.len() < bytes {
            let read = self.output.read(&mut buffer).unwrap();
            assert!(read > 0, "the answer ended with {:?}", self.text);
            self.text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
    }

    /// All that it has written when it has ended by itself.
    fn end(mut self) -> String {
        self.output.read_to_string(&mut self.text).unwrap();
        let output = self.process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.text
    }

    /// Kills it; returns what it wrote to its standard error.
    fn kill(mut self) -> String {
        self.process.kill().unwrap();
        let output = self.process.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Where a test runs; `None` without node.
struct Place {
    _dir: tempfile::TempDir,
    root: PathBuf,
    host: Host,
    network: Network,
    /// What the agent answers.
    answer: String,
}

impl Place {
    fn new() -> Option<Self> {
        if Command::new("node").arg("--version").output().is_err() {
            eprintln!("skipped: node is not installed");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (host, address) = Host::start(&root);
        let network = Network::to(address);
        let client = script(&root, "client.mjs", &[]);
        let answer = Client::start(&client, &network, &root).end();
        assert!(answer.contains("I am the **demo** agent"), "{answer}");
        Some(Self { _dir: dir, root, host, network, answer })
    }

    fn client(&self) -> Client {
        let tells =
            ("sessionId = event.sessionId;", "sessionId = event.sessionId; console.error(sessionId);".to_owned());
        Client::start(&script(&self.root, "client.mjs", &[tells]), &self.network, &self.root)
    }
}

#[test]
fn a_client_whose_connection_is_cut_in_the_middle_of_an_answer_has_all_of_it_once() {
    let Some(place) = Place::new() else { return };
    let mut client = place.client();
    for part in [4, 2] {
        client.read(place.answer.len() / part);
        place.network.cut();
    }
    assert_eq!(client.end(), place.answer);
}

#[test]
fn a_client_that_was_killed_in_the_middle_of_an_answer_has_all_of_it_once_when_it_is_started_again() {
    let Some(place) = Place::new() else { return };
    let mut client = place.client();
    client.read(place.answer.len() / 4);
    let told = client.kill();
    let session = told.lines().find(|line| line.starts_with("ahp-session:")).unwrap();
    // It has nothing but the name of the session, so it is told all that there is of the message, and then the rest.
    let knows = ("clientId, sessionId,", format!("clientId = 'back', sessionId = '{}',", session));
    let takes = ("{ type, blockType, delta }", "{ type, blockType, delta, blocks }".to_owned());
    let writes = "if (type === 'message_snapshot') process.stdout.write(blocks.map((block) => block.blockType === 'text' ? block.content ?? '' : '').join(''));";
    let shows = ("    if (type === 'block_delta'", format!("    {writes}\n    if (type === 'block_delta'"));
    let again = script(&place.root, "again.mjs", &[knows, takes, shows]);
    assert_eq!(Client::start(&again, &place.network, &place.root).end(), place.answer);
}

#[test]
fn a_client_whose_host_is_killed_in_the_middle_of_an_answer_keeps_what_it_has_and_learns_that_the_turn_is_over() {
    let Some(mut place) = Place::new() else { return };
    let mut client = place.client();
    client.read(place.answer.len() / 4);
    drop(place.host);
    let (host, address) = Host::start(&place.root);
    *place.network.host.lock().unwrap() = address;
    place.host = host;
    let text = client.end();
    assert!(place.answer.starts_with(&text) && text.len() >= place.answer.len() / 4, "{text:?}");
    drop(place.network);
}
