//! What passes on good relays: every text, both ways, plain and sealed, in as few events as the text allows.

use serde_json::Value;

use super::relay::{Manner, Relay};
use super::world::{Client, Server};

const UNITS: [&str; 4] = ["x", "\\\"\n", "日本語", "🚢👩🏽‍💻"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_text_passes_both_ways_plain_and_sealed() {
    for encryption in ["off", "required"] {
        let relay = Relay::start(Manner::default()).await;
        let server = Server::start(&relay.url(), &[("encryption", encryption)]).await;
        let mut client = Client::connect(&relay.url(), &server.key, &[("encryption", encryption)]).await;
        for unit in UNITS {
            for bytes in [10, 100_000, 400_000] {
                let count = bytes / unit.len();
                assert!(client.get(unit, count).await.unwrap() == unit.repeat(count), "{encryption} {unit:?} {bytes}");
                assert_eq!(client.put(&unit.repeat(count)).await.unwrap(), unit.len() * count);
            }
        }
        assert!(relay.longest() <= 60_000, "{}", relay.longest());
        let kinds = relay.events().iter().map(|event| event["kind"].as_u64().unwrap()).collect::<Vec<_>>();
        if encryption == "off" {
            assert!(kinds.iter().all(|kind| *kind == 25910));
        } else {
            // Until the server has said that it takes wraps which relays do not store, they are stored.
            let stored = kinds.iter().filter(|kind| **kind == 1059).count();
            assert!((1..=4).contains(&stored) && kinds.iter().all(|kind| [1059, 21059].contains(kind)), "{kinds:?}");
        }
    }
}

/// A backslash takes four bytes in an event, and a letter one. Sized for the worst case, both would take as many events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_letters_take_about_a_quarter_of_the_events_of_the_worst_case() {
    let mut events = Vec::new();
    for unit in ["x", "\\"] {
        let relay = Relay::start(Manner::default()).await;
        let server = Server::start(&relay.url(), &[("encryption", "off")]).await;
        let mut client = Client::connect(&relay.url(), &server.key, &[("encryption", "off")]).await;
        // The worst case is a text whose JSON is all backslashes: each is escaped twice more on its way.
        let count = if unit == "x" { 2_000_000 } else { 1_000_000 };
        client.get(unit, count).await.unwrap();
        events.push(relay.events().len());
    }
    let [letters, backslashes] = events[..] else { panic!() };
    assert!(letters * 100 <= backslashes * 27, "{letters} events for letters, {backslashes} for backslashes");
    assert!(letters <= 2_000_000 / 59_000 + 6, "{letters}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_frames_tell_what_is_supported_and_answers_name_the_event_that_they_answer() {
    let relay = Relay::start(Manner::default()).await;
    let server = Server::start(&relay.url(), &[]).await;
    let mut client = Client::connect(&relay.url(), &server.key, &[("encryption", "off")]).await;
    client.put(&"y".repeat(200_000)).await.unwrap();
    let events = relay.events();
    let tags = |event: &Value, name: &str| -> Vec<Value> {
        event["tags"].as_array().unwrap().iter().filter(|tag| tag[0] == name).cloned().collect()
    };
    let part = |event: &Value| {
        let content: Value = serde_json::from_str(event["content"].as_str().unwrap()).unwrap();
        content["params"]["cvm"]["frameType"].as_str().map(str::to_owned)
    };
    let (of_server, of_client): (Vec<_>, Vec<_>) =
        events.iter().partition(|event| event["pubkey"] == server.key.as_str());
    let start = of_client.first().unwrap();
    assert_eq!((part(start).as_deref(), tags(start, "support_oversized_transfer").len()), (Some("start"), 1));
    let accept = of_server.first().unwrap();
    assert_eq!(part(accept).as_deref(), Some("accept"));
    let end = of_client.iter().find(|event| part(event).as_deref() == Some("end")).unwrap();
    let answer = of_server.last().unwrap();
    assert_eq!(part(answer), None);
    assert_eq!((tags(answer, "e")[0][1].clone(), tags(answer, "p").len()), (end["id"].clone(), 1));
    assert_eq!(tags(answer, "support_oversized_transfer").len(), 1);
}

/// Two sides of a bridge may each wait for the other to read. What is under way has to leave all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_not_read_goes_on_sending_beyond_the_window() {
    let relay = Relay::start(Manner::default()).await;
    let server = Server::start(&relay.url(), &[]).await;
    let mut client = Client::connect(&relay.url(), &server.key, &[("encryption", "off")]).await;
    client.put("x").await.unwrap();
    let id = client.send_unread("put", serde_json::json!({"text": "x".repeat(2_500_000)})).await;
    assert_eq!(client.answer(id).await.unwrap()["len"], 2_500_000);
}
