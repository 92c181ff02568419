//! What a client asks of the host and the host of a client: subscriptions, calls, actions, requests back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use breakbulk_host::endpoint::{AskError, EndpointConfig};
use serde_json::{Value, json};

use super::client::Raw;
use super::world::{A, B, CHAT, World, soon};

async fn present(world: &World, subscriptions: &[&str]) -> Raw {
    let mut client = Raw::new(world.link(65_536, 4).0);
    client.initialize("me", subscriptions).await;
    client
}

fn dispatch(n: i64, text: &str) -> Value {
    json!({"channel": A, "clientSeq": n, "action": {"type": "terminal/data", "data": text}})
}

#[tokio::test]
async fn a_subscription_begins_with_a_snapshot_and_ends_with_unsubscribe() {
    let world = World::new().await;
    let mut client = present(&world, &[]).await;
    let before = world.data(A, "before").await;
    let result = client.subscribe(A).await;
    assert_eq!(result["snapshot"]["fromSeq"], before);
    assert_eq!(result["snapshot"]["state"], world.state(A).await);
    let after = world.data(A, "after").await;
    assert_eq!(client.action().await.0, after);
    client.notify("unsubscribe", json!({"channel": A}));
    client.call("echo", json!({})).await.unwrap();
    world.data(A, "unheard").await;
    client.subscribe(B).await;
    let heard = world.data(B, "heard").await;
    assert_eq!(client.action().await.0, heard);
    let error = client.call("subscribe", json!({"channel": "ahp-terminal:/none"})).await.unwrap_err();
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!(-32008), &json!("there is no channel \"ahp-terminal:/none\""))
    );
    assert_eq!(client.call("subscribe", json!({})).await.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn a_view_shows_the_last_turns_and_says_that_there_are_more() {
    let world = World::new().await;
    let mut client = present(&world, &[]).await;
    let result = client.call("subscribe", json!({"channel": CHAT, "view": {"turns": 2}})).await.unwrap();
    let state = &result["snapshot"]["state"];
    assert_eq!((state["turns"].as_array().unwrap().len(), &state["turnsNextCursor"]), (2, &json!("2")));
    assert_eq!(client.subscribe(CHAT).await["snapshot"]["state"]["turns"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn channels_that_a_client_may_follow_are_bounded() {
    let world = World::with(EndpointConfig { max_subscriptions: 1, ..EndpointConfig::default() }).await;
    let mut client = present(&world, &[A]).await;
    assert_eq!(client.call("subscribe", json!({"channel": B})).await.unwrap_err()["code"], -32000);
    client.subscribe(A).await;
    let seq = world.data(A, "x").await;
    assert_eq!(client.action().await.0, seq);
}

#[tokio::test(start_paused = true)]
async fn deltas_wait_as_long_as_the_client_allows_and_become_one() {
    let world = World::new().await;
    let mut client = present(&world, &[B]).await;
    let wish = json!({"channel": A, "delivery": {"maxLatencyMs": 200}});
    client.call("subscribe", wish).await.unwrap();
    let start = tokio::time::Instant::now();
    world.data(A, "a").await;
    world.data(A, "b").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let last = world.data(A, "c").await;
    let (seq, params) = client.action().await;
    assert_eq!((seq, &params["action"]["data"]), (last, &json!("abc")));
    let waited = start.elapsed();
    assert!((Duration::from_millis(200)..Duration::from_millis(300)).contains(&waited), "{waited:?}");
    // What may not wait takes along what is before it.
    world.data(A, "d").await;
    world.data(A, "e").await;
    let now = tokio::time::Instant::now();
    let urgent = world.data(B, "now").await;
    let (seq, params) = client.action().await;
    assert_eq!((seq, &params["action"]["data"]), (urgent - 1, &json!("de")));
    assert_eq!(client.action().await.0, urgent);
    assert!(now.elapsed() < Duration::from_millis(100));
}

#[tokio::test]
async fn methods_are_answered_and_what_is_not_offered_is_said_so() {
    let world = World::new().await;
    let mut client = present(&world, &[]).await;
    assert_eq!(client.call("echo", json!({"a": [1]})).await.unwrap(), json!({"a": [1]}));
    assert_eq!(client.call("nothing", json!({})).await.unwrap_err()["code"], -32601);
    assert_eq!(client.call("typed", json!({})).await.unwrap_err()["code"], -32602);
    assert_eq!(client.call("break", json!({})).await.unwrap_err()["code"], -32603);
    let large = json!({"x": "x".repeat(3_000_000)});
    assert_eq!(client.call("echo", large.clone()).await.unwrap(), large);
    client.say(&json!({"jsonrpc": "2.0", "id": "a\"b", "method": "echo"}));
    assert_eq!(client.next().await.unwrap(), json!({"jsonrpc": "2.0", "id": "a\"b", "result": {}}));
}

#[tokio::test]
async fn calls_run_at_the_same_time_are_bounded_and_are_given_up_with_the_link() {
    let world = World::with(EndpointConfig { max_calls: 3, ..EndpointConfig::default() }).await;
    let (link, ended) = world.link(65_536, 4);
    let mut client = Raw::new(link);
    client.initialize("me", &[]).await;
    client.ask("wait", json!({}));
    client.ask("wait", json!({}));
    assert_eq!(client.call("echo", json!({})).await.unwrap(), json!({}));
    client.ask("wait", json!({}));
    assert_eq!(client.call("echo", json!({})).await.unwrap_err()["code"], -32000);
    assert_eq!(client.call("ping", json!({})).await.unwrap(), json!(null));
    world.desk.gate.add_permits(1);
    assert!(client.next().await.is_some());
    drop(client);
    soon(ended).await.unwrap();
    soon(async {
        while world.desk.given_up.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_action_comes_back_with_its_origin_and_a_refused_one_with_the_reason() {
    let world = World::new().await;
    let (mut client, mut other) = (present(&world, &[A]).await, Raw::new(world.link(65_536, 4).0));
    other.initialize("other", &[A]).await;
    client.notify("dispatchAction", dispatch(1, "mine"));
    let (seq, params) = client.action().await;
    assert_eq!(params["origin"], json!({"clientId": "me", "clientSeq": 1}));
    assert_eq!(other.action().await.0, seq);
    let action = json!({"type": "terminal/titleChanged", "title": "x"});
    client.notify("dispatchAction", json!({"channel": A, "clientSeq": 2, "action": action}));
    let (refused, params) = client.action().await;
    assert_eq!((refused, &params["rejectionReason"], &params["action"]), (seq, &json!("only data"), &action));
    assert_eq!(params["origin"], json!({"clientId": "me", "clientSeq": 2}));
    // One that does not fit its type is of an unknown type to the types, and the host's to judge.
    let misfit = json!({"type": "terminal/data", "data": 1});
    client.notify("dispatchAction", json!({"channel": A, "clientSeq": 3, "action": misfit}));
    let (_, params) = client.action().await;
    assert_eq!((&params["rejectionReason"], &params["action"]), (&json!("only data"), &misfit));
    let taken = world.data(A, "next").await;
    assert_eq!((client.action().await.0, other.action().await.0), (taken, taken), "nobody else heard of it");
    assert_eq!(world.endpoint.counts().get("endpoint-actions-refused"), 2);
    assert_eq!(client.call("dispatchAction", dispatch(4, "asked")).await.unwrap(), json!(null));
}

#[tokio::test]
async fn actions_keep_their_order_and_do_not_pass_a_write_that_was_asked_for_before() {
    let world = World::new().await;
    let mut client = present(&world, &[]).await;
    client.notify("dispatchAction", dispatch(1, "first"));
    client.ask("resourceWrite", json!({}));
    client.notify("dispatchAction", dispatch(2, "second"));
    client.notify("dispatchAction", dispatch(3, "third"));
    client.call("echo", json!({})).await.unwrap();
    assert_eq!(*world.desk.done.lock().unwrap(), ["first"]);
    world.desk.gate.add_permits(1);
    client.call("dispatchAction", dispatch(4, "fourth")).await.unwrap();
    assert_eq!(*world.desk.done.lock().unwrap(), ["first", "resourceWrite", "second", "third", "fourth"]);
}

#[tokio::test]
async fn a_cancel_waits_for_no_write_and_for_no_other_channel_but_for_what_came_before_it_on_its_own() {
    let world = World::new().await;
    let mut client = present(&world, &[]).await;
    let cancel = |n: i64, channel: &str| json!({"channel": channel, "clientSeq": n, "action": {"type": "chat/turnCancelled", "turnId": "t"}});
    let write = client.ask("resourceWrite", json!({}));
    client.notify("dispatchAction", dispatch(1, "first"));
    client.notify("dispatchAction", cancel(2, A));
    client.notify("dispatchAction", cancel(3, CHAT));
    // This host refuses cancels, which shows when it has looked at them.
    assert_eq!(client.action().await.1["origin"]["clientSeq"], 3);
    client.call("echo", json!({})).await.unwrap();
    assert!(world.desk.done.lock().unwrap().is_empty());
    world.desk.gate.add_permits(1);
    client.answer(write).await;
    assert_eq!(client.action().await.1["origin"]["clientSeq"], 2);
    assert_eq!(*world.desk.done.lock().unwrap(), ["resourceWrite", "first"]);
}

#[tokio::test]
async fn the_same_number_of_a_client_is_another_action_on_another_connection() {
    let world = World::new().await;
    for _ in 0..2 {
        let mut client = present(&world, &[A]).await;
        client.notify("dispatchAction", dispatch(1, "again "));
        client.action().await;
    }
    assert_eq!(world.state(A).await["content"][0]["value"], "again again ");
}

#[tokio::test]
async fn the_host_asks_the_client_and_hears_its_answer_its_error_or_that_it_is_gone() {
    let world = World::new().await;
    let (link, ended) = world.link(65_536, 4);
    let mut client = Raw::new(link);
    client.initialize("me", &[]).await;
    let id = client.ask("askBack", json!({}));
    let asked = client.next().await.unwrap();
    assert_eq!((&asked["method"], &asked["params"]["uri"]), (&json!("resourceRead"), &json!("client:/x")));
    client.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"data": "x".repeat(200_000)}}));
    assert_eq!(client.answer(id).await["result"]["data"].as_str().unwrap().len(), 200_000);
    client.say(&json!({"jsonrpc": "2.0", "id": 999, "result": {}}));

    let handle = world.endpoint.clients().get(Some(&"someone".into()), "me").unwrap();
    let ask = |handle: breakbulk_host::endpoint::ClientHandle| {
        tokio::spawn(async move { handle.ask("resourceRequest", &json!({})).await })
    };
    let refused = ask(handle.clone());
    let asked = client.next().await.unwrap();
    client.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32009, "message": "no"}}));
    client.call("ping", json!({})).await.unwrap();
    match soon(refused).await.unwrap() {
        Err(AskError::Refused(error)) => assert_eq!((error.code, error.message.as_str()), (-32009, "no")),
        other => panic!("{other:?}"),
    }
    let dropped = ask(handle.clone());
    client.next().await.unwrap();
    drop(client);
    soon(ended).await.unwrap();
    assert_eq!(soon(dropped).await.unwrap(), Err(AskError::Disconnected));
    assert!(handle.is_closed());
    assert_eq!(soon(ask(handle)).await.unwrap(), Err(AskError::Disconnected));
}

#[tokio::test]
async fn requests_to_a_client_are_bounded_and_the_rest_wait() {
    let world = World::with(EndpointConfig { max_asks: 2, ..EndpointConfig::default() }).await;
    let mut client = present(&world, &[]).await;
    let handle = world.endpoint.clients().get(Some(&"someone".into()), "me").unwrap();
    for _ in 0..3 {
        let handle = handle.clone();
        tokio::spawn(async move { handle.ask("resourceRead", &json!({})).await });
    }
    let first = client.next().await.unwrap();
    client.next().await.unwrap();
    client.call("echo", json!({})).await.unwrap();
    assert!(client.backlog.is_empty(), "the third waits");
    client.say(&json!({"jsonrpc": "2.0", "id": first["id"], "result": {}}));
    assert_eq!(client.next().await.unwrap()["method"], "resourceRead");
}

#[tokio::test]
async fn the_protocol_version_of_a_client_is_known_when_it_comes_back() {
    let world = World::new().await;
    let mut params = super::client::initialize("me", &[]);
    params["protocolVersions"] = json!(["0.9.0"]);
    Raw::new(world.link(65_536, 4).0).call("initialize", params).await.unwrap();
    for (id, known) in [("me", json!("0.9.0")), ("another", json!("1.0.0"))] {
        let mut client = Raw::new(world.link(65_536, 4).0);
        client.reconnect(id, 0, &[]).await;
        assert_eq!(client.call("whoAmI", json!({})).await.unwrap(), known);
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_is_left_while_its_snapshot_is_made_is_answered_and_not_followed() {
    let world = World::new().await;
    let mut client = present(&world, &[B]).await;
    *world.views.delay.lock().unwrap() = Duration::from_millis(50);
    let id = client.ask("subscribe", json!({"channel": A}));
    client.notify("unsubscribe", json!({"channel": A}));
    assert_eq!(client.answer(id).await["result"]["snapshot"]["resource"], A);
    world.data(A, "unheard").await;
    let heard = world.data(B, "heard").await;
    assert_eq!(client.action().await.0, heard);
}
