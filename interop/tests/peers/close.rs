//! Close codes through a bridge, as the `ws` package of Node and the `websockets` package of Python see them.

use serde_json::json;

use super::peer::Package::{NodeWs, PythonWebsockets};
use super::peer::{Package, Peer};
use super::program::Bridge;

/// All that an application may close with and that has a meaning of its own.
const CODES: [u16; 11] = [1000, 1001, 1008, 1009, 1011, 1012, 1013, 3000, 4000, 4400, 4999];

const PAIRS: [(Package, Package); 2] = [(NodeWs, PythonWebsockets), (PythonWebsockets, NodeWs)];

/// A client and a host with a bridge between them.
struct Joined {
    client: Peer,
    bridge: Bridge,
    host: Peer,
    /// The connection that is open, by its number on both sides.
    id: u64,
}

impl Joined {
    fn new((client, host): (Package, Package)) -> Self {
        let (host, url) = Peer::listening(host);
        let bridge = Bridge::open("ws://127.0.0.1:0", &url);
        Self { client: Peer::start(client), bridge, host, id: 0 }
    }

    /// Connects once more, and sees a message go each way.
    fn connect(&mut self) -> u64 {
        self.id += 1;
        self.client.connect(self.id, &self.bridge.url);
        self.host.hear("open", Some(self.id));
        exchange(self.id, &mut self.client, &mut self.host);
        exchange(self.id, &mut self.host, &mut self.client);
        self.id
    }
}

/// Sees a message go from one to the other.
fn exchange(id: u64, from: &mut Peer, to: &mut Peer) {
    let text = r#"{ "jsonrpc": "2.0", "method": "hello", "params": {"n": 1.0} }"#;
    from.tell(&json!({"do": "send", "id": id, "text": text}));
    assert_eq!(to.hear("message", Some(id))["text"], text, "not a byte is changed");
}

#[test]
fn a_hosts_close_code_reaches_the_client() {
    for pair in PAIRS {
        let mut joined = Joined::new(pair);
        for code in CODES {
            let id = joined.connect();
            joined.host.close(id, code, "done");
            assert_eq!(joined.client.closed(id), u64::from(code), "{pair:?}");
            assert_eq!(joined.host.closed(id), u64::from(code), "its close is answered with its code");
        }
    }
}

#[test]
fn a_clients_close_code_reaches_the_host() {
    for pair in PAIRS {
        let mut joined = Joined::new(pair);
        for code in CODES {
            let id = joined.connect();
            joined.client.close(id, code, "done");
            assert_eq!(joined.host.closed(id), u64::from(code), "{pair:?}");
            assert_eq!(joined.client.closed(id), u64::from(code), "its close is answered with its code");
        }
    }
}

#[test]
fn a_host_that_is_gone_without_a_word_is_1014_to_the_client() {
    for pair in PAIRS {
        let mut joined = Joined::new(pair);
        let id = joined.connect();
        joined.host.tell(&json!({"do": "cut", "id": id}));
        assert_eq!(joined.client.closed(id), 1014, "{pair:?}");
    }
}

#[test]
fn a_client_that_is_gone_without_a_word_is_1001_to_the_host() {
    for pair in PAIRS {
        let mut joined = Joined::new(pair);
        let id = joined.connect();
        joined.client.tell(&json!({"do": "cut", "id": id}));
        assert_eq!(joined.host.closed(id), 1001, "{pair:?}");
    }
}

#[test]
fn a_host_that_cannot_be_reached_is_1014_to_the_client() {
    // A port that was ours a moment ago, and is nobody's now.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let bridge = Bridge::open("ws://127.0.0.1:0", &format!("ws://127.0.0.1:{port}"));
    for package in [NodeWs, PythonWebsockets] {
        let mut client = Peer::start(package);
        client.connect(1, &bridge.url);
        assert_eq!(client.closed(1), 1014, "{package:?}");
    }
}

#[test]
fn codes_pass_two_bridges_and_the_capped_link_between_them() {
    let (mut host, url) = Peer::listening(NodeWs);
    let host_bridge = Bridge::open("ws://127.0.0.1:0?cap=900000", &url);
    let client_bridge = Bridge::open("ws://127.0.0.1:0", &format!("{}?cap=900000", host_bridge.url));
    let mut client = Peer::start(PythonWebsockets);
    for (id, code) in (1..).zip(CODES) {
        client.connect(id, &client_bridge.url);
        exchange(id, &mut client, &mut host);
        if id % 2 == 0 {
            host.close(id, code, "done");
        } else {
            client.close(id, code, "done");
        }
        assert_eq!((client.closed(id), host.closed(id)), (u64::from(code), u64::from(code)));
    }
}

#[test]
fn a_bridge_that_is_told_to_stop_tells_both_sides_1012_and_ends_well() {
    for pair in PAIRS {
        let mut joined = Joined::new(pair);
        let id = joined.connect();
        joined.bridge.signal("TERM");
        assert_eq!((joined.client.closed(id), joined.host.closed(id)), (1012, 1012), "{pair:?}");
        assert_eq!(joined.bridge.wait().code(), Some(0));
    }
}

#[test]
fn a_bridge_that_is_killed_leaves_both_sides_with_1006() {
    for pair in PAIRS {
        let mut joined = Joined::new(pair);
        let id = joined.connect();
        joined.bridge.signal("KILL");
        assert_eq!((joined.client.closed(id), joined.host.closed(id)), (1006, 1006), "{pair:?}");
    }
}

#[test]
fn a_killed_bridge_behind_another_is_1014_to_the_client_and_a_new_one_serves_again() {
    let (mut host, url) = Peer::listening(NodeWs);
    let mut host_bridge = Bridge::open("ws://127.0.0.1:0?cap=900000", &url);
    let client_bridge = Bridge::open("ws://127.0.0.1:0", &format!("{}?cap=900000", host_bridge.url));
    let mut client = Peer::start(NodeWs);
    client.connect(1, &client_bridge.url);
    exchange(1, &mut client, &mut host);
    host_bridge.signal("KILL");
    assert_eq!((client.closed(1), host.closed(1)), (1014, 1006));
    host_bridge.wait();
    let host_bridge = Bridge::open(&format!("{}?cap=900000", host_bridge.url), &url);
    client.connect(2, &client_bridge.url);
    exchange(2, &mut client, &mut host);
    assert!(client_bridge.log().contains("1006"), "the log says what happened");
    drop(host_bridge);
}
