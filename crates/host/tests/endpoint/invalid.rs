//! What is no JSON-RPC, or cannot be taken, is answered by name; where no answer is possible, the close says why.

use std::future::poll_fn;
use std::pin::Pin;

use breakbulk::link::InProcessLink;
use breakbulk::{Arrival, Link as _};
use breakbulk_host::endpoint::{EndReason, EndpointConfig};
use breakbulk_proto::Transmit;
use futures_core::Stream as _;
use futures_sink::Sink as _;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::client::initialize;
use super::world::{A, B, World, soon};

/// A client that says whatever it likes, frame by frame.
struct Bare {
    link: InProcessLink,
    ended: JoinHandle<EndReason>,
}

impl Bare {
    fn new(world: &World) -> Self {
        let (link, ended) = world.link(1 << 20, 16);
        assert!(link.capacity().cap > 0);
        Self { link, ended }
    }

    async fn present(world: &World) -> Self {
        let mut bare = Self::new(world);
        bare.say(&json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": initialize("me", &[A])}))
            .await;
        assert!(bare.next().await.unwrap()["result"].is_object());
        bare
    }

    async fn say(&mut self, message: &Value) {
        let frame =
            Transmit::Frame { tag: Default::default(), bytes: message.to_string().into(), meta: Default::default() };
        poll_fn(|cx| Pin::new(&mut self.link).poll_ready(cx)).await.unwrap();
        Pin::new(&mut self.link).start_send(frame).unwrap();
        poll_fn(|cx| Pin::new(&mut self.link).poll_flush(cx)).await.unwrap();
    }

    /// The next message; or how the host has closed.
    async fn next(&mut self) -> Result<Value, (u16, String)> {
        let arrival = soon(poll_fn(|cx| Pin::new(&mut self.link).poll_next(cx))).await;
        match arrival.expect("a message or a close").unwrap() {
            Arrival::Frame { bytes, .. } => Ok(serde_json::from_slice(&bytes).unwrap()),
            Arrival::Closed { code, text } => Err((code, text)),
            other => panic!("{other:?}"),
        }
    }
}

fn error(answer: &Value) -> (i64, &str) {
    (answer["error"]["code"].as_i64().unwrap(), answer["error"]["message"].as_str().unwrap())
}

#[tokio::test]
async fn a_request_whose_id_cannot_be_answered_is_closed_by_name() {
    let world = World::new().await;
    for id in [json!(null), json!(true), json!([1]), json!({"a": 1})] {
        let mut client = Bare::present(&world).await;
        client.say(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"})).await;
        let closed = client.next().await.unwrap_err();
        assert_eq!(closed, (4400, "the id of a request must be a string or a number".to_owned()), "{id}");
        let end = soon(client.ended).await.unwrap();
        assert_eq!(end.name(), "endpoint-invalid-message");
    }
}

#[tokio::test]
async fn many_write_a_null_id_into_a_notification_and_it_is_taken() {
    let world = World::new().await;
    let mut client = Bare::present(&world).await;
    let params = json!({"channel": A, "clientSeq": 1.0, "action": {"type": "terminal/data", "data": "x"}});
    client.say(&json!({"jsonrpc": "2.0", "id": null, "method": "dispatchAction", "params": params})).await;
    assert_eq!(client.next().await.unwrap()["params"]["origin"], json!({"clientId": "me", "clientSeq": 1}));
}

#[tokio::test]
async fn a_message_that_is_no_request_is_answered_where_it_has_an_id() {
    let world = World::new().await;
    for (message, why) in [
        (json!({"jsonrpc": "2.0", "method": 5}), "method must be a string"),
        (json!({"jsonrpc": "2.0", "method": null, "result": 1}), "method must be a string"),
        (json!({"jsonrpc": "2.0"}), "a message needs a method, a result or an error"),
    ] {
        let mut client = Bare::present(&world).await;
        let mut named = message.clone();
        named["id"] = json!(7);
        client.say(&named).await;
        let answer = client.next().await.unwrap();
        assert_eq!((&answer["id"], error(&answer)), (&json!(7), (-32600, why)));
        client.say(&message).await;
        assert_eq!(client.next().await.unwrap_err(), (4400, why.to_owned()));
    }
}

#[tokio::test]
async fn an_action_without_a_readable_origin_is_never_passed_over_in_silence() {
    let world = World::new().await;
    let action = json!({"type": "terminal/data", "data": "x"});
    for (params, why) in [
        (
            json!({"channel": A, "clientSeq": "1", "action": action}),
            r#"the field "clientSeq" must be an integer of 64 bits"#,
        ),
        (
            json!({"channel": A, "clientSeq": 1.5, "action": action}),
            r#"the field "clientSeq" must be an integer of 64 bits"#,
        ),
        (json!({"channel": A, "action": action}), r#"the field "clientSeq" is missing"#),
        (json!({"channel": 1, "clientSeq": 1, "action": action}), r#"the field "channel" must be a string"#),
        (json!({"channel": A, "clientSeq": 1}), r#"the field "action" is missing"#),
    ] {
        let mut client = Bare::present(&world).await;
        client.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "dispatchAction", "params": params})).await;
        let answer = client.next().await.unwrap();
        assert_eq!(error(&answer), (-32602, &*format!("invalid params: {why}")));
        client.say(&json!({"jsonrpc": "2.0", "method": "dispatchAction", "params": params})).await;
        assert_eq!(client.next().await.unwrap_err(), (4400, format!("dispatchAction: invalid params: {why}")));
    }
    assert!(world.desk.done.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_missing_field_of_params_is_named() {
    let world = World::new().await;
    let mut client = Bare::present(&world).await;
    client.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": {"chanel": A}})).await;
    let answer = client.next().await.unwrap();
    assert_eq!(error(&answer), (-32602, r#"invalid params: the field "channel" is missing"#));
}

#[tokio::test]
async fn frames_that_no_answer_fits_are_refused_by_name() {
    let world = World::new().await;
    let with = |bytes: u64| json!({"chunking": {"maxIncomingFrameBytes": bytes, "maxIncomingMessageBytes": 1_000_000}});
    let why = "maxIncomingFrameBytes is 10, and must be 256 at least";
    let mut client = Bare::new(&world);
    let mut params = initialize("me", &[]);
    params["capabilities"] = with(10);
    client.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})).await;
    let answer = client.next().await.unwrap();
    assert_eq!(error(&answer), (-32602, why));
    // The same client may try again.
    params["capabilities"] = with(256);
    client.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": params})).await;
    let first = client.next().await.unwrap();
    assert_eq!(first["method"], "ahp/messageSegment", "the answer comes in segments: {first}");

    let mut client = Bare::new(&world);
    let params = json!({"channel": "ahp-root://", "clientId": "me", "lastSeenServerSeq": 0, "subscriptions": [],
        "capabilities": with(10)});
    client.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "reconnect", "params": params})).await;
    assert_eq!(client.next().await.unwrap_err(), (4400, why.to_owned()));
}

#[tokio::test]
async fn more_initial_subscriptions_than_a_client_may_follow_are_refused_by_name() {
    let world = World::with(EndpointConfig { max_subscriptions: 1, ..EndpointConfig::default() }).await;
    let mut client = Bare::new(&world);
    let ask = |channels: &[&str]| json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize("me", channels)});
    client.say(&ask(&[A, B])).await;
    let answer = client.next().await.unwrap();
    assert_eq!(error(&answer), (-32602, "initialSubscriptions names 2 channels, and a client may follow 1 at most"));
    client.say(&ask(&[A, A])).await;
    assert_eq!(client.next().await.unwrap()["result"]["snapshots"][0]["resource"], A);
}

#[tokio::test]
async fn what_a_client_says_of_itself_is_short() {
    let world = World::new().await;
    let mut client = Bare::new(&world);
    for (field, value) in [
        ("clientId", json!("x".repeat(257))),
        ("clientInfo", json!({"name": "x".repeat(257)})),
        ("locale", json!("x".repeat(257))),
    ] {
        let mut params = initialize("me", &[]);
        params[field] = value;
        client.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})).await;
        let answer = client.next().await.unwrap();
        assert_eq!(error(&answer), (-32602, &*format!("{field} has 257 bytes, the limit is 256")));
    }
}
