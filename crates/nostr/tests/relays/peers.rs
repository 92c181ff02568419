//! Many clients of one server: each has a session and room of its own.

use std::time::Duration;

use serde_json::json;

use super::relay::{Manner, Relay};
use super::world::{Client, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_with_the_same_ids_and_tokens_get_their_own_answers_at_the_same_time() {
    let relay = Relay::start(Manner::default()).await;
    let server = Server::start(&relay.url(), &[]).await;
    let mut calls = tokio::task::JoinSet::new();
    for unit in ["a", "b", "c"] {
        let (url, key) = (relay.url(), server.key.clone());
        calls.spawn(async move {
            let mut client = Client::connect(&url, &key, &[("encryption", "off")]).await;
            let id = client.ask("get", json!({"unit": unit, "count": 800_000, "_meta": {"progressToken": 7}}));
            let answer = client.answer(id).await.unwrap();
            answer["text"].as_str().unwrap() == unit.repeat(800_000)
        });
    }
    assert_eq!(calls.join_all().await, [true; 3]);
    assert_eq!(server.client_count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_gets_in_only_if_nobody_is_named_who_may() {
    let relay = Relay::start(Manner::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("client");
    let server = Server::start(&relay.url(), &[]).await;
    let mut client = Client::connect(&relay.url(), &server.key, &[("key", key.to_str().unwrap())]).await;
    client.get("x", 1).await.unwrap();
    let known = relay.events().iter().find(|event| event["kind"] == 25910).map(|event| event["pubkey"].clone());
    assert!(known.is_none(), "messages are sealed unless they are told not to be");
    let public = {
        let secret = std::fs::read_to_string(&key).unwrap();
        nostr::Keys::parse(secret.trim()).unwrap().public_key().to_hex()
    };
    let closed = Server::start(&relay.url(), &[("allow", &public), ("announce", "closed")]).await;
    let mut friend = Client::connect(&relay.url(), &closed.key, &[("key", key.to_str().unwrap())]).await;
    assert_eq!(friend.get("x", 3).await.unwrap(), "xxx");
    let mut stranger = Client::connect(&relay.url(), &closed.key, &[]).await;
    assert!(stranger.get("x", 3).await.unwrap_err().contains("does not take requests of your key"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_of_clients_is_bounded_and_who_finds_no_room_is_told() {
    let relay = Relay::start(Manner::default()).await;
    let server = Server::start(&relay.url(), &[("max_clients", "2")]).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(&relay.url(), &server.key, &[]).await;
        client.get("x", 1).await.unwrap();
        clients.push(client);
    }
    let mut third = Client::connect(&relay.url(), &server.key, &[]).await;
    assert!(third.get("x", 1).await.unwrap_err().contains("too many clients"));
    for client in &mut clients {
        assert_eq!(client.get("x", 2).await.unwrap(), "xx");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_silent_for_long_leaves_its_place_and_may_come_again() {
    let relay = Relay::start(Manner::default()).await;
    let server = Server::start(&relay.url(), &[("idle", "1"), ("max_clients", "1")]).await;
    let mut client = Client::connect(&relay.url(), &server.key, &[]).await;
    client.get("x", 1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(7)).await;
    let mut other = Client::connect(&relay.url(), &server.key, &[]).await;
    assert_eq!(other.get("x", 2).await.unwrap(), "xx");
    assert_eq!(server.client_count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_initializes_again_gets_a_new_session() {
    let relay = Relay::start(Manner::default()).await;
    let server = Server::start(&relay.url(), &[]).await;
    let mut client = Client::connect(&relay.url(), &server.key, &[]).await;
    for sessions in 1..=3 {
        let id = client.ask("initialize", json!({}));
        client.answer(id).await.unwrap();
        client.get("x", 1).await.unwrap();
        assert_eq!(server.client_count(), sessions);
    }
}
