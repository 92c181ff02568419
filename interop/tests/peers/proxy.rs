//! An HTTP proxy that nobody here wrote, on the way of a bridge to its host.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::authority::Authority;
use super::peer::Package::{NodeWs, PythonWebsockets};
use super::peer::{Peer, python};
use super::program::{Bridge, file};
use super::tls::{pass_capped, passes};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);
const MB: usize = 1_000_000;
/// A name that only the proxy knows: it leads to this machine, which by its own names is never reached through a proxy.
const NAME: &str = "host.test";

#[test]
fn a_host_on_tls_is_reached_through_a_proxy_in_frames_of_64_kib() {
    let proxy = Proxy::start(None);
    let authority = Authority::new();
    let tls = authority.sign(&[NAME]).for_peers(None);
    let (mut host, url) = Peer::listening(NodeWs);
    let host_bridge = Bridge::open("ws://127.0.0.1:0?cap=65536", &url);
    let deed = json!({"do": "relay", "to": host_bridge.url, "max_size": 65_536, "tls": tls});
    let (mut relay, port) = Peer::listening_so(PythonWebsockets, &deed);
    let (variables, ca) = ([("HTTPS_PROXY", &*proxy.url)], authority.file());
    let connect = format!("wss://{NAME}:{port}?cap=65536");
    let client_bridge = Bridge::start_in(&variables, "ws://127.0.0.1:0", &connect, &["--no-auth", "--tls-ca", &ca]);
    let mut client = Peer::start(NodeWs);
    client.connect(1, &client_bridge.url);
    pass_capped(&mut client, &mut host, &mut relay);
    assert_eq!(proxy.asked(), json!({"event": "asked", "method": "CONNECT", "host": NAME, "port": port}));
}

#[test]
fn a_host_without_tls_is_reached_through_a_proxy_by_a_tunnel_too() {
    let proxy = Proxy::start(None);
    let (mut host, port) = Peer::listening_so(PythonWebsockets, &json!({"do": "listen"}));
    for (n, variable) in (1..).zip(["http_proxy", "ALL_PROXY"]) {
        let variables = [(variable, &*proxy.url)];
        let url = format!("ws://{NAME}:{port}");
        let bridge = Bridge::start_in(&variables, "ws://127.0.0.1:0", &url, &["--no-auth"]);
        let mut client = Peer::start(NodeWs);
        client.connect(1, &bridge.url);
        host.hear("open", Some(n));
        assert_eq!(proxy.asked()["method"], "CONNECT", "{variable}");
    }
}

#[test]
fn a_host_that_no_proxy_names_and_one_of_this_machine_are_reached_without_the_proxy() {
    let proxy = Proxy::start(None);
    let (mut host, port) = Peer::listening_so(PythonWebsockets, &json!({"do": "listen"}));
    let variables = [("http_proxy", &*proxy.url), ("NO_PROXY", "example.com,.test")];
    let bridge = Bridge::start_in(&variables, "ws://127.0.0.1:0", &format!("ws://{NAME}:{port}"), &["--no-auth"]);
    let mut client = Peer::start(NodeWs);
    client.connect(1, &bridge.url);
    assert_eq!(client.closed(1), 1014, "only the proxy knows the name");
    println!("{}", bridge.says("host.test cannot be resolved"));
    let variables = [("http_proxy", &*proxy.url)];
    let url = format!("ws://127.0.0.1:{port}");
    let bridge = Bridge::start_in(&variables, "ws://127.0.0.1:0", &url, &["--no-auth"]);
    client.connect(2, &bridge.url);
    host.hear("open", Some(1));
    let url = format!("ws://{NAME}:{port}");
    let bridge = Bridge::start_in(&variables, "ws://127.0.0.1:0", &url, &["--no-auth", "--proxy", "none"]);
    client.connect(3, &bridge.url);
    assert_eq!(client.closed(3), 1014, "it is not asked for the name");
    proxy.assert_idle();
}

#[test]
fn a_proxy_that_wants_a_password_gets_it_or_the_log_says_so_without_the_password() {
    let proxy = Proxy::start(Some("me:secret"));
    let (mut host, port) = Peer::listening_so(PythonWebsockets, &json!({"do": "listen"}));
    let url = format!("ws://{NAME}:{port}");
    let with = |login: &str| proxy.url.replace("http://", &format!("http://{login}@"));
    let mut client = Peer::start(NodeWs);
    for (id, named) in [(1, proxy.url.clone()), (2, with("me:wrong-word"))] {
        let bridge = Bridge::start_in(&[("http_proxy", &named)], "ws://127.0.0.1:0", &url, &["--no-auth"]);
        client.connect(id, &bridge.url);
        assert_eq!(client.closed(id), 1014);
        let line = bridge.says("status 407");
        println!("{line}");
        assert!(line.contains(&format!("proxy {}", proxy.url.trim_start_matches("http://"))), "{line}");
        assert!(line.contains("name and password"), "{line}");
        assert!(!bridge.log().contains("wrong-word"), "{line}");
    }
    let bridge = Bridge::start_in(&[("http_proxy", &with("me:secret"))], "ws://127.0.0.1:0", &url, &["--no-auth"]);
    let mut client = Peer::start(NodeWs);
    client.connect(1, &bridge.url);
    passes(&mut client, &mut host, MB);
    passes(&mut host, &mut client, MB);
    assert!(!bridge.log().contains("secret"));
}

#[test]
fn a_proxy_that_cannot_reach_the_host_is_named_in_the_log() {
    let proxy = Proxy::start(None);
    // A port that was ours a moment ago, and is nobody's now.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let url = format!("ws://{NAME}:{port}");
    let bridge = Bridge::start_in(&[("http_proxy", &proxy.url)], "ws://127.0.0.1:0", &url, &["--no-auth"]);
    let mut client = Peer::start(NodeWs);
    client.connect(1, &bridge.url);
    assert_eq!(client.closed(1), 1014);
    println!("{}", bridge.says(&format!("proxy {}", proxy.url.trim_start_matches("http://"))));
}

/// A proxy on loopback. Dropping it ends it.
struct Proxy {
    child: Child,
    /// It ends when this does, together with processes of its own.
    stdin: Option<ChildStdin>,
    events: Receiver<Value>,
    url: String,
}

impl Proxy {
    /// Starts one, which wants this name and password.
    fn start(login: Option<&str>) -> Self {
        let mut command = python();
        command.arg(file("python/http_proxy.py")).args(login).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let (tx, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = tx.send(serde_json::from_str(&line).unwrap());
            }
        });
        let mut proxy = Self { child, stdin, events, url: String::new() };
        let listening = proxy.events.recv_timeout(PATIENCE).expect("the proxy listens");
        proxy.url = format!("http://127.0.0.1:{}", listening["port"]);
        proxy
    }

    /// What it is asked for next.
    fn asked(&self) -> Value {
        self.events.recv_timeout(PATIENCE).expect("the proxy is asked")
    }

    /// Asserts that it was asked for nothing more.
    fn assert_idle(&self) {
        assert_eq!(self.events.try_recv().ok(), None);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
