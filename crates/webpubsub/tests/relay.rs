//! The relay as clients see it that speak its protocol by hand: limits, recovery, refusals, and the HTTP interface.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[expect(dead_code, reason = "links are for other tests")]
mod common;

use std::time::Duration;

use breakbulk::{Arrival, BoxLink, DialError, Dialer};
use breakbulk_webpubsub::{Claims, RELIABLE, SIMPLE, unix_time};
use futures_util::StreamExt;
use http::HeaderValue;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use common::{Running, receive, send, within};

/// A client that speaks the protocol by hand.
struct Client {
    link: BoxLink,
    /// What the relay said first.
    greeting: Value,
}

impl Client {
    async fn connect(relay: &Running, roles: &[&str]) -> Self {
        Self::dial(relay, RELIABLE, &format!("access_token={}", token(relay, roles))).await.unwrap()
    }

    async fn dial(relay: &Running, protocol: &'static str, query: &str) -> Result<Self, DialError> {
        let mut dialer = Dialer::default();
        dialer.headers.insert("sec-websocket-protocol", HeaderValue::from_static(protocol));
        let url = format!("ws://127.0.0.1:{}/client/hubs/agents?{query}", relay.string.endpoint.port);
        let mut link = within(dialer.dial(&url.parse().unwrap())).await?;
        let greeting = serde_json::from_slice(&receive(&mut link).await).unwrap();
        Ok(Self { link, greeting })
    }

    /// The same client on another WebSocket.
    async fn recover(&self, relay: &Running) -> Self {
        let (id, token) = (self.id(), self.greeting["reconnectionToken"].as_str().unwrap());
        let query = format!("awps_connection_id={id}&awps_reconnection_token={token}");
        Self::dial(relay, RELIABLE, &query).await.unwrap()
    }

    fn id(&self) -> &str {
        self.greeting["connectionId"].as_str().unwrap()
    }

    async fn say(&mut self, request: &Value) {
        send(&mut self.link, request.to_string()).await;
    }

    async fn hear(&mut self) -> Value {
        serde_json::from_slice(&receive(&mut self.link).await).unwrap()
    }

    /// Asks for something, and hears how it went: the name of the error, or "ok".
    async fn ask(&mut self, request: Value) -> String {
        self.say(&request).await;
        let ack = self.hear().await;
        assert_eq!((&ack["type"], &ack["ackId"]), (&json!("ack"), &request["ackId"]), "{ack}");
        if ack["success"] == true { "ok".into() } else { ack["error"]["name"].as_str().unwrap().into() }
    }

    /// The code with which the relay closes.
    async fn closed(&mut self) -> u16 {
        loop {
            match within(self.link.next()).await {
                Some(Ok(Arrival::Closed { code, .. })) => return code,
                Some(Ok(_)) => {}
                other => panic!("no close: {other:?}"),
            }
        }
    }
}

fn token(relay: &Running, roles: &[&str]) -> String {
    let claims = Claims {
        aud: vec!["http://localhost/client/hubs/agents".into()],
        exp: Some(unix_time() + 60),
        sub: Some("ann".into()),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        groups: vec!["own".into()],
        ..Claims::default()
    };
    claims.sign(&relay.string.key)
}

const ALL: [&str; 2] = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"];

fn publish(group: &str, ack: u64, text: &str) -> Value {
    json!({"type": "sendToGroup", "group": group, "ackId": ack, "dataType": "text", "data": text, "noEcho": true})
}

/// The status of a request, and its body.
async fn http(relay: &Running, method: &str, target: &str, authorized: bool) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", relay.string.endpoint.port)).await.unwrap();
    let path = target.split('?').next().unwrap();
    let claims = Claims { aud: vec![format!("http://h{path}")], exp: Some(unix_time() + 60), ..Claims::default() };
    let token = if authorized { claims.sign(&relay.string.key) } else { "no.to.ken".to_owned() };
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\
         Authorization: Bearer {token}\r\n\r\nhi"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test]
async fn a_client_gets_what_its_roles_and_its_token_give_it() {
    let relay = Running::start(|_| {}).await;
    let mut client = Client::connect(&relay, &["webpubsub.joinLeaveGroup.a", "webpubsub.sendToGroup.b"]).await;
    assert_eq!(client.greeting["userId"], "ann");
    assert_eq!(client.ask(json!({"type": "joinGroup", "group": "a", "ackId": 1})).await, "ok");
    assert_eq!(client.ask(json!({"type": "joinGroup", "group": "b", "ackId": 2})).await, "Forbidden");
    assert_eq!(client.ask(publish("b", 3, "x")).await, "ok");
    assert_eq!(client.ask(publish("a", 4, "x")).await, "Forbidden");
    // A number that was refused may be used again; one that was done may not.
    assert_eq!(client.ask(publish("b", 4, "x")).await, "ok");
    assert_eq!(client.ask(publish("b", 4, "x")).await, "Duplicate");
    assert_eq!(client.ask(json!({"type": "event", "event": "e", "ackId": 5, "data": 1})).await, "ok");
    assert_eq!(client.ask(json!({"type": "later", "ackId": 6})).await, "NotSupported");
    client.say(&json!({"type": "invoke", "invocationId": "i", "target": "event", "event": "e"})).await;
    let refused = client.hear().await;
    assert_eq!(
        (&refused["type"], &refused["invocationId"], &refused["success"]),
        (&json!("invokeResponse"), &json!("i"), &json!(false))
    );
    client.say(&json!({"type": "streamData", "streamId": "s", "data": 1})).await;
    let refused = client.hear().await;
    assert_eq!((&refused["type"], &refused["streamId"]), (&json!("streamNack"), &json!("s")));
    client.say(&json!({"type": "ping"})).await;
    assert_eq!(client.hear().await, json!({"type": "pong"}));
    assert_eq!(relay.relay.stats().refused.get("forbidden"), Some(&2));
}

#[tokio::test]
async fn without_a_valid_token_or_a_known_subprotocol_there_is_no_connection() {
    let relay = Running::start(|_| {}).await;
    let mut foreign = Running::start(|_| {}).await;
    foreign.string.endpoint = relay.string.endpoint.clone();
    let ours = format!("access_token={}", token(&relay, &[]));
    for (protocol, query, status) in [
        (RELIABLE, String::new(), 401),
        (RELIABLE, "access_token=x.y.z".into(), 401),
        (RELIABLE, format!("access_token={}", token(&foreign, &[])), 401),
        ("protobuf.webpubsub.azure.v1", ours.clone(), 400),
    ] {
        let refused = Client::dial(&relay, protocol, &query).await.err().unwrap();
        assert!(matches!(refused, DialError::Status { status: found, .. } if found == status), "{query}: {refused}");
    }
    assert!(Client::dial(&relay, SIMPLE, &ours).await.unwrap().greeting["reconnectionToken"].is_null());
}

#[tokio::test]
async fn a_frame_over_the_cap_ends_the_connection_with_the_code_that_was_chosen_and_it_recovers() {
    for code in [1009, 4009] {
        let relay = Running::start(|config| (config.cap, config.oversize_code) = (10_000, code)).await;
        let mut client = Client::connect(&relay, &ALL).await;
        client.say(&publish("own", 1, &"x".repeat(11_000))).await;
        assert_eq!(client.closed().await, code);
        let mut again = client.recover(&relay).await;
        assert_eq!(again.id(), client.id());
        assert_eq!(again.ask(publish("own", 2, "x")).await, "ok");
        assert_eq!(relay.relay.stats().refused.get("frame-too-large"), Some(&1));
    }
}

#[tokio::test]
async fn messages_wait_until_they_are_acknowledged_and_come_again_after_a_recovery() {
    let relay = Running::start(|_| {}).await;
    let (mut sender, mut receiver) = (Client::connect(&relay, &ALL).await, Client::connect(&relay, &ALL).await);
    for number in 1..=3 {
        assert_eq!(sender.ask(publish("own", number, &format!("m{number}"))).await, "ok");
        let message = receiver.hear().await;
        assert_eq!((&message["sequenceId"], &message["data"]), (&json!(number), &json!(format!("m{number}"))));
    }
    receiver.say(&json!({"type": "sequenceAck", "sequenceId": 2})).await;
    receiver.say(&json!({"type": "ping"})).await;
    receiver.hear().await;
    relay.relay.cut(|id| id == receiver.id());
    assert_eq!(sender.ask(publish("own", 4, "m4")).await, "ok");
    let mut again = receiver.recover(&relay).await;
    for number in 3..=4 {
        let message = again.hear().await;
        assert_eq!((&message["sequenceId"], &message["data"]), (&json!(number), &json!(format!("m{number}"))));
    }
    // With another token, or for another connection, there is nothing to recover.
    for query in [
        "awps_connection_id=x&awps_reconnection_token=y".to_owned(),
        format!("awps_connection_id={}&awps_reconnection_token=y", again.id()),
    ] {
        let mut stranger = Client::dial(&relay, RELIABLE, &query).await.unwrap();
        assert_eq!(stranger.greeting["event"], "disconnected");
        assert_eq!(stranger.closed().await, 1008);
    }
}

#[tokio::test]
async fn a_client_for_which_too_much_waits_is_closed_for_good_and_others_are_not() {
    for (messages, bytes) in [(10, 16_000_000), (1_000, 20_000)] {
        let relay = Running::start(|config| (config.queue_messages, config.queue_bytes) = (messages, bytes)).await;
        let (mut sender, mut lazy) = (Client::connect(&relay, &ALL).await, Client::connect(&relay, &ALL).await);
        for number in 0..11 {
            assert_eq!(sender.ask(publish("own", number, &"x".repeat(2_000))).await, "ok");
        }
        assert_eq!(lazy.closed().await, 1008);
        assert_eq!(lazy.recover(&relay).await.closed().await, 1008);
        assert_eq!(relay.relay.stats().closed.get("queue-full"), Some(&1));
        assert_eq!((relay.relay.stats().queued_bytes, relay.relay.stats().connected), (0, 1));
    }
}

#[tokio::test]
async fn what_would_take_more_memory_than_all_may_is_refused_and_can_be_sent_again() {
    let relay = Running::start(|config| config.total_bytes = 100_000).await;
    let (mut sender, mut receiver) = (Client::connect(&relay, &ALL).await, Client::connect(&relay, &ALL).await);
    let text = "x".repeat(60_000);
    assert_eq!(sender.ask(publish("own", 1, &text)).await, "ok");
    assert_eq!(sender.ask(publish("own", 2, &text)).await, "InternalServerError");
    receiver.hear().await;
    receiver.say(&json!({"type": "sequenceAck", "sequenceId": 1})).await;
    receiver.say(&json!({"type": "ping"})).await;
    receiver.hear().await;
    assert_eq!(sender.ask(publish("own", 2, &text)).await, "ok");
}

#[tokio::test]
async fn what_is_no_request_ends_the_client() {
    let relay = Running::start(|_| {}).await;
    for frame in ["", "[]", "{\"type\":1}", r#"{"type":"joinGroup"}"#, "{\"type\":\"ping\"}}"] {
        let mut client = Client::connect(&relay, &ALL).await;
        send(&mut client.link, frame.to_owned()).await;
        assert_eq!(client.closed().await, 1008, "{frame}");
    }
    assert_eq!(relay.relay.stats().clients, 0);
}

#[tokio::test]
async fn clients_that_are_lost_are_forgotten_after_a_while_and_too_many_are_sent_away() {
    let relay = Running::start(|config| {
        (config.keep, config.max_clients, config.max_connections) = (Duration::from_millis(200), 2, 2);
    })
    .await;
    let (one, _two) = (Client::connect(&relay, &ALL).await, Client::connect(&relay, &ALL).await);
    let mut third = Client::dial(&relay, RELIABLE, &format!("access_token={}", token(&relay, &[]))).await.unwrap();
    assert_eq!(third.closed().await, 1013);
    drop(one);
    let forgotten = async {
        while relay.relay.stats().clients > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(forgotten).await;
    Client::connect(&relay, &ALL).await;
    assert_eq!(relay.relay.stats().groups, 1);
}

#[tokio::test]
async fn the_http_interface_needs_a_token_of_the_key_and_a_version() {
    let relay = Running::start(|_| {}).await;
    let mut client = Client::connect(&relay, &[]).await;
    let version = "api-version=2024-12-01";
    assert_eq!(http(&relay, "GET", "/healthz", false).await, (200, "ok\n".into()));
    let (status, metrics) = http(&relay, "GET", "/metrics", false).await;
    assert!(status == 200 && metrics.contains("breakbulk_relay_connected 1\n"), "{metrics}");
    for (method, target, authorized, status) in [
        ("POST", format!("/api/hubs/agents/:send?{version}"), false, 401),
        ("POST", "/api/hubs/agents/:send".into(), true, 400),
        ("POST", "/api/hubs/agents/:send?api-version=1999-01-01".into(), true, 400),
        ("POST", format!("/api/hubs/agents/:send?{version}&filter=x"), true, 501),
        ("POST", format!("/api/hubs/agents/:sing?{version}"), true, 404),
        ("POST", format!("/api/hubs/1agents/:send?{version}"), true, 400),
        ("PUT", format!("/api/hubs/agents/groups/g/connections/nobody?{version}"), true, 404),
        ("GET", "/elsewhere".into(), true, 404),
        ("POST", format!("/api/hubs/agents/:send?{version}&excluded={}", client.id()), true, 202),
        ("POST", format!("/api/hubs/agents/groups/own/:send?{version}"), true, 202),
    ] {
        assert_eq!(http(&relay, method, &target, authorized).await.0, status, "{method} {target}");
    }
    let message = client.hear().await;
    assert_eq!((&message["from"], &message["group"], &message["data"]), (&json!("group"), &json!("own"), &json!("hi")));
    let (_, listed) = http(&relay, "GET", &format!("/api/hubs/agents/groups/own/connections?{version}"), true).await;
    assert!(listed.contains(client.id()), "{listed}");
    let target = format!("/api/hubs/agents/:generateToken?{version}&userId=bob&role=r&group=g&minutesToExpire=1");
    let (_, made) = http(&relay, "POST", &target, true).await;
    let made: Value = serde_json::from_str(&made).unwrap();
    let bob = Client::dial(&relay, RELIABLE, &format!("access_token={}", made["token"].as_str().unwrap())).await;
    assert_eq!(bob.unwrap().greeting["userId"], "bob");
    let target = format!("/api/hubs/agents/connections/{}?{version}&reason=enough", client.id());
    assert_eq!(http(&relay, "DELETE", &target, true).await.0, 204);
    assert_eq!(client.hear().await, json!({"type": "system", "event": "disconnected", "message": "enough"}));
}
