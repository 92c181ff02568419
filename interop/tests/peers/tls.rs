//! `wss://` with the TLS of other people, which is OpenSSL's in Node and Python: certificates that are trusted, that are not,
//! and that are asked for.

use serde_json::{Value, json};

use super::authority::{Authority, Signed};
use super::peer::Package::{NodeWs, PythonWebsockets};
use super::peer::{Package, Peer};
use super::program::Bridge;
use super::text::text;

const BOTH: [Package; 2] = [NodeWs, PythonWebsockets];
const MB: usize = 1_000_000;
/// The longest frame that the relay takes.
const CAP: u64 = 65_536;

#[test]
fn a_host_on_tls_is_reached_by_who_trusts_its_authority() {
    let authority = Authority::new();
    let tls = authority.sign(&["localhost"]).for_peers(None);
    for package in BOTH {
        let (mut host, port) = Peer::listening_so(package, &json!({"do": "listen", "tls": tls}));
        let url = format!("wss://localhost:{port}");
        let bridge = Bridge::start("ws://127.0.0.1:0", &url, &["--no-auth", "--tls-ca", &authority.file()]);
        let mut client = Peer::start(package);
        client.connect(1, &bridge.url);
        passes(&mut client, &mut host, 5 * MB);
        passes(&mut host, &mut client, 5 * MB);
    }
}

#[test]
fn a_host_whose_authority_or_name_is_not_trusted_is_not_reached_and_the_log_says_why() {
    let authority = Authority::new();
    let tls = authority.sign(&["localhost"]).for_peers(None);
    let cases = [
        ("localhost", None, "no authority that we trust has signed its certificate: name its CA file"),
        ("127.0.0.1", Some(authority.file()), "its certificate is for another name"),
    ];
    for package in BOTH {
        let (_host, port) = Peer::listening_so(package, &json!({"do": "listen", "tls": tls}));
        for (name, ca, why) in &cases {
            let ca: Vec<&str> = ca.iter().flat_map(|file| ["--tls-ca", file.as_str()]).collect();
            is_not_reached(&format!("wss://{name}:{port}"), &ca, why);
        }
    }
}

#[test]
fn this_machines_own_authorities_are_trusted_unless_only_those_built_in_are() {
    let authority = Authority::new();
    let tls = authority.sign(&["localhost"]).for_peers(None);
    let (mut host, port) = Peer::listening_so(NodeWs, &json!({"do": "listen", "tls": tls}));
    let (url, machine) = (format!("wss://localhost:{port}"), authority.file());
    for (id, roots) in (1..).zip(["native", "both"]) {
        let more = ["--no-auth", "--tls-roots", roots];
        let bridge = Bridge::start_in(&[("SSL_CERT_FILE", &machine)], "ws://127.0.0.1:0", &url, &more);
        let mut client = Peer::start(NodeWs);
        client.connect(id, &bridge.url);
        passes_as(id, &mut client, &mut host, 1000);
    }
    let more = ["--no-auth", "--tls-roots", "webpki"];
    let bridge = Bridge::start_in(&[("SSL_CERT_FILE", &machine)], "ws://127.0.0.1:0", &url, &more);
    is_turned_away(&bridge, "no authority that we trust has signed its certificate");
}

#[test]
fn a_certificate_made_at_the_start_is_trusted_by_its_fingerprint_alone() {
    let (mut host, url) = Peer::listening(NodeWs);
    let host_bridge = Bridge::start("wss://127.0.0.1:0", &url, &["--no-auth", "--tls-self-signed"]);
    let said = host_bridge.says("certificate made for this run: ");
    let pin = said.rsplit(' ').next().unwrap();
    let client_bridge = Bridge::start("ws://127.0.0.1:0", &host_bridge.url, &["--no-auth", "--tls-fingerprint", pin]);
    let mut client = Peer::start(NodeWs);
    client.connect(1, &client_bridge.url);
    passes(&mut client, &mut host, 1000);
    let other = format!("sha256:{}", "0f".repeat(32));
    is_not_reached(&host_bridge.url, &["--tls-fingerprint", &other], "it was renewed, or this is another server");
    is_not_reached(&host_bridge.url, &[], "no authority that we trust has signed its certificate");
}

#[test]
fn a_bridge_on_tls_is_reached_by_clients_that_trust_its_authority_and_by_no_others() {
    let authority = Authority::new();
    let Signed { cert, key } = authority.sign(&["localhost", "127.0.0.1"]);
    let (mut host, url) = Peer::listening(NodeWs);
    let bridge = Bridge::start("wss://127.0.0.1:0", &url, &["--no-auth", "--tls-cert", &cert, "--tls-key", &key]);
    for (id, package) in (1..).zip(BOTH) {
        let mut client = Peer::start(package);
        // Each end counts its own connections.
        client.tell(&connect(id, &bridge.url, &json!({"ca": authority.file()})));
        client.hear("open", Some(id));
        for bytes in [100, MB] {
            passes_as(id, &mut client, &mut host, bytes);
            passes_as(id, &mut host, &mut client, bytes);
        }
        client.tell(&connect(9, &bridge.url, &json!({})));
        let why = client.hear("failed", Some(9))["why"].to_string();
        assert!(why.contains("certificate"), "{package:?}: {why}");
    }
}

#[test]
fn a_host_that_asks_for_a_certificate_gets_it_or_the_log_says_that_it_wanted_one() {
    let authority = Authority::new();
    let Signed { cert, key } = authority.sign(&["client"]);
    let tls = authority.sign(&["localhost"]).for_peers(Some(&authority));
    for package in BOTH {
        let (mut host, port) = Peer::listening_so(package, &json!({"do": "listen", "tls": tls}));
        let (url, ca) = (format!("wss://localhost:{port}"), authority.file());
        let shown = ["--no-auth", "--tls-ca", &ca, "--tls-client-cert", &cert, "--tls-client-key", &key];
        let bridge = Bridge::start("ws://127.0.0.1:0", &url, &shown);
        let mut client = Peer::start(package);
        client.connect(1, &bridge.url);
        passes(&mut client, &mut host, 1000);
        is_not_reached(&url, &["--tls-ca", &ca], "it requires a client certificate that it trusts");
        let stranger = Authority::new();
        let Signed { cert, key } = stranger.sign(&["client"]);
        let strangers = ["--tls-ca", &ca, "--tls-client-cert", &cert, "--tls-client-key", &key];
        // Node says nothing: it ends the connection when TLS stands.
        is_not_reached(&url, &strangers, "requires a client certificate that it trusts");
    }
}

#[test]
fn a_bridge_that_asks_for_a_certificate_lets_in_who_has_one_and_nobody_else() {
    let authority = Authority::new();
    let Signed { cert, key } = authority.sign(&["localhost", "127.0.0.1"]);
    let (mut host, url) = Peer::listening(PythonWebsockets);
    let ca = authority.file();
    let asking = ["--no-auth", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let bridge = Bridge::start("wss://127.0.0.1:0", &url, &asking);
    let known = authority.sign(&["client"]).for_peers(Some(&authority));
    for (id, package) in (1..).zip(BOTH) {
        let mut client = Peer::start(package);
        client.tell(&connect(id, &bridge.url, &known));
        client.hear("open", Some(id));
        passes_as(id, &mut client, &mut host, 1000);
        client.tell(&connect(9, &bridge.url, &json!({"ca": ca})));
        // In TLS 1.3 a client thinks that it is in until the server has looked.
        client.hear("failed", Some(9));
    }
}

#[test]
fn five_megabytes_pass_both_ways_through_a_relay_on_tls_that_takes_64_kib() {
    let authority = Authority::new();
    let tls = authority.sign(&["localhost"]).for_peers(None);
    let (mut host, url) = Peer::listening(NodeWs);
    let host_bridge = Bridge::open(&format!("ws://127.0.0.1:0?cap={CAP}"), &url);
    let deed = json!({"do": "relay", "to": host_bridge.url, "max_size": CAP, "tls": tls});
    let (mut relay, port) = Peer::listening_so(PythonWebsockets, &deed);
    let connect = format!("wss://localhost:{port}?cap={CAP}");
    let client_bridge = Bridge::start("ws://127.0.0.1:0", &connect, &["--no-auth", "--tls-ca", &authority.file()]);
    let mut client = Peer::start(PythonWebsockets);
    client.connect(1, &client_bridge.url);
    pass_capped(&mut client, &mut host, &mut relay);
}

/// Sees five megabytes go each way, and that a relay between the two carried them in many frames, none of which was too long.
pub(crate) fn pass_capped(client: &mut Peer, host: &mut Peer, relay: &mut Peer) {
    introduce(client, host);
    passes(client, host, 5 * MB);
    passes(host, client, 5 * MB);
    client.close(1, 1000, "done");
    let relayed = relay.hear("relayed", None);
    println!("{relayed}");
    for way in 0..2 {
        assert!(relayed["longest"][way].as_u64().unwrap() <= CAP, "{relayed}");
        assert!(relayed["frames"][way].as_u64().unwrap() > 5 * MB as u64 / CAP, "{relayed}");
    }
}

/// Lets bridges see each other in the handshake of a client and a host.
pub(crate) fn introduce(client: &mut Peer, host: &mut Peer) {
    let params = json!({"channel": "ahp-root://", "protocolVersions": ["1.0.0"], "clientId": "one"});
    client.send(1, &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string());
    assert!(host.text(1).contains("initialize"));
    let result = json!({"protocolVersion": "1.0.0", "serverSeq": 0, "snapshots": []});
    host.send(1, &json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string());
    assert!(client.text(1).contains("protocolVersion"));
}

/// Sees a message of about so many bytes go from one to the other on their first connections.
pub(crate) fn passes(from: &mut Peer, to: &mut Peer, bytes: usize) {
    passes_as(1, from, to, bytes);
}

fn passes_as(id: u64, from: &mut Peer, to: &mut Peer, bytes: usize) {
    let params = json!({"channel": "ahp-root://", "text": text(bytes)});
    let message = json!({"jsonrpc": "2.0", "method": "hello", "params": params}).to_string();
    from.send(id, &message);
    assert!(to.text(id) == message, "{bytes} bytes, and not one of them changed");
}

fn connect(id: u64, url: &str, tls: &Value) -> Value {
    json!({"do": "connect", "id": id, "url": url, "tls": tls})
}

/// A client of a bridge to this host is told 1014, and the bridge says why, in one line.
fn is_not_reached(url: &str, more: &[&str], why: &str) {
    is_turned_away(&Bridge::start("ws://127.0.0.1:0", url, &[&["--no-auth"], more].concat()), why);
}

fn is_turned_away(bridge: &Bridge, why: &str) {
    let mut client = Peer::start(NodeWs);
    client.connect(1, &bridge.url);
    assert_eq!(client.closed(1), 1014);
    println!("{}", bridge.says(why));
}
