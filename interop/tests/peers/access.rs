//! Admission at a bridge, with other people's clients: who is refused, and with which status.

use serde_json::{Value, json};

use super::peer::Package::{NodeWs, PythonWebsockets};
use super::peer::Peer;
use super::program::Bridge;

const TOKEN: &str = "sixteen-or-more-bytes-of-secret";

#[test]
fn who_has_no_token_or_comes_from_elsewhere_is_refused_with_a_status() {
    let (_host, url) = Peer::listening(NodeWs);
    let bridge = Bridge::start("ws://127.0.0.1:0", &url, &["--token", TOKEN]);
    let with_token = format!("{}/?token={TOKEN}", bridge.url);
    let port = bridge.url.rsplit(':').next().unwrap();
    let bearer = format!("Bearer {TOKEN}");
    for package in [NodeWs, PythonWebsockets] {
        let mut client = Peer::start(package);
        let cases = [
            (json!({"url": bridge.url}), Some(401)),
            (json!({"url": format!("{}/?token=wrong", bridge.url)}), Some(401)),
            (json!({"url": bridge.url, "headers": {"Authorization": "Bearer wrong"}}), Some(401)),
            (json!({"url": with_token, "origin": "https://elsewhere.example"}), Some(403)),
            (json!({"url": with_token, "headers": {"Host": format!("elsewhere.example:{port}")}}), Some(421)),
            (json!({"url": with_token}), None),
            (json!({"url": bridge.url, "headers": {"Authorization": bearer}}), None),
            (json!({"url": with_token, "origin": format!("http://127.0.0.1:{port}")}), None),
        ];
        for (id, (how, status)) in (1..).zip(cases) {
            // The Python package always writes a `Host` of its own, and a second one is refused as a trick.
            let mut deed = json!({"do": "connect", "id": id});
            deed.as_object_mut().unwrap().extend(how.as_object().unwrap().clone());
            client.tell(&deed);
            match status {
                Some(status) => assert_eq!(client.hear("refused", Some(id))["status"], Value::from(status), "{how}"),
                None => assert_eq!(client.hear("open", Some(id))["id"], id, "{how}"),
            }
        }
    }
}
