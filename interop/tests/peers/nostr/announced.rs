//! Public announcements, as a stranger finds them at a relay.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::Offered;
use super::relays::Local;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_server_is_found_with_its_name_and_what_it_supports() {
    let relay = Local::start().await;
    let ours = Offered::start(&relay.url, "&announce=Cargo%20server&about=Weighs%20texts");
    ours.bridge.says("the server is announced");
    let (mut socket, _) = tokio_tungstenite::connect_async(&relay.url).await.unwrap();
    let filter = json!({"authors": [ours.key], "kinds": [11316, 11317, 10002]});
    socket.send(Message::text(json!(["REQ", "s", filter]).to_string())).await.unwrap();
    let mut events = Vec::new();
    loop {
        let message = tokio::time::timeout(Duration::from_secs(10), socket.next()).await.unwrap().unwrap().unwrap();
        let message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        match message[0].as_str() {
            Some("EVENT") => events.push(message[2].clone()),
            Some("EOSE") => break,
            _ => {}
        }
    }
    let server = events.iter().find(|event| event["kind"] == 11316).expect("the server is announced");
    let content: Value = serde_json::from_str(server["content"].as_str().unwrap()).unwrap();
    assert_eq!(content["serverInfo"]["name"], "cargo");
    let tags = server["tags"].as_array().unwrap();
    for tag in
        [json!(["name", "Cargo server"]), json!(["about", "Weighs texts"]), json!(["support_oversized_transfer"])]
    {
        assert!(tags.contains(&tag), "{tag} is not in {tags:?}");
    }
    let tools = events.iter().find(|event| event["kind"] == 11317).expect("its tools are announced");
    let content: Value = serde_json::from_str(tools["content"].as_str().unwrap()).unwrap();
    assert_eq!(content["tools"][0]["name"], "cargo");
    let relays = events.iter().find(|event| event["kind"] == 10002).expect("the relays are listed");
    assert_eq!(relays["tags"][0][0], "r");
}
