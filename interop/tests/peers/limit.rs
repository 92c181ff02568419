//! Hosts with a limit that they declare nowhere: their stack reads a frame, and answers pings, and then the program ends the
//! connection because of it.

use serde_json::{Value, json};

use super::peer::Package::{NodeWs, PythonWebsockets};
use super::peer::Peer;
use super::program::Bridge;

const INITIALIZE: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersions":["1.0.0"],"clientId":"me"}}"#;
const WELCOME: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":0,"snapshots":[],"capabilities":{"chunking":{"maxIncomingFrameBytes":900000,"maxIncomingMessageBytes":33554432}}}}"#;

/// Connects for the `id`-th time, greets the host, and sends it a request of `len` bytes.
fn ask(id: u64, (client, host): (&mut Peer, &mut Peer), url: &str, len: usize) {
    client.connect(id, url);
    client.send(id, INITIALIZE);
    host.text(id);
    host.send(id, WELCOME);
    client.text(id);
    let text =
        format!(r#"{{"jsonrpc":"2.0","id":2,"method":"resourceWrite","params":{{"data":"{}"}}}}"#, "x".repeat(len));
    client.send(id, &text);
}

/// The segments of the message that a host is sent.
fn segments(id: u64, host: &mut Peer) -> Vec<String> {
    let mut segments: Vec<String> = Vec::new();
    loop {
        let text = host.text(id);
        let segment: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&segment["method"], &segment["params"]["index"]),
            (&json!("ahp/messageSegment"), &json!(segments.len()))
        );
        segments.push(text);
        if segment["params"]["total"] == segments.len() {
            return segments;
        }
    }
}

#[test]
fn a_host_that_closes_at_long_frames_after_it_has_read_them_is_served_within_five_reconnects() {
    for (package, other) in [(NodeWs, PythonWebsockets), (PythonWebsockets, NodeWs)] {
        for code in [None, Some(1011)] {
            // One frame as long as may be, and one message in many. Three closes halve it, and each further one again.
            for (limit, len, closes) in [(300_000, 800_000, 3), (60_000, 3_000_000, 4)] {
                let (mut host, port) =
                    Peer::listening_so(package, &json!({"do": "listen", "limit": limit, "code": code}));
                let bridge = Bridge::open("ws://127.0.0.1:0", &format!("ws://127.0.0.1:{port}?cap=900000"));
                let mut client = Peer::start(other);
                for id in 1..=closes {
                    ask(id, (&mut client, &mut host), &bridge.url, len);
                    let codes = [code.unwrap_or(1014), 1012];
                    assert!(codes.contains(&client.closed(id)), "{package:?} {code:?} {limit}");
                }
                ask(closes + 1, (&mut client, &mut host), &bridge.url, len);
                let longest = segments(closes + 1, &mut host).iter().map(String::len).max();
                assert!(longest <= Some(limit), "{longest:?}");
            }
        }
    }
}
