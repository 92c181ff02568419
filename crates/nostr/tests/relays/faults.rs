//! Relays that do wrong. What is sent arrives exactly, or its caller gets an error with a name, within its time.

use std::time::Duration;

use super::relay::{Manner, Relay, TooLarge};
use super::world::{Client, Server};

/// A relay, a server and a client that encrypts nothing.
async fn world(manner: Manner) -> (Relay, Server, Client) {
    let relay = Relay::start(manner).await;
    let server = Server::start(&relay.url(), &[]).await;
    let client = Client::connect(&relay.url(), &server.key, &[("encryption", "off")]).await;
    (relay, server, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_are_delayed_reordered_and_repeated_arrive_exactly() {
    for seed in 1..=4 {
        let manner = Manner {
            holds: Duration::from_millis(30),
            confirms_after: Duration::from_millis(35),
            repeats_one_in: Some(3),
            seed,
            ..Manner::default()
        };
        let (_relay, _server, mut client) = world(manner).await;
        assert!(client.get("漢字\\", 60_000).await.unwrap() == "漢字\\".repeat(60_000));
        assert_eq!(client.put(&"é\n".repeat(200_000)).await.unwrap(), 600_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_of_which_an_event_is_lost_fails_with_a_name_and_the_next_one_passes_or_fails_so_too() {
    let mut named = 0;
    for seed in 1..=3 {
        let (_relay, _server, mut client) = world(Manner { seed, ..Manner::default() }).await;
        client.get("x", 1).await.unwrap();
        drop(client);
        // The handshake is done on a good relay, because a whole message that is lost is noticed by nobody but its caller.
        let manner = Manner { drops_one_in: Some(25), seed, ..Manner::default() };
        let (_relay, _server, mut client) = world(manner).await;
        for _ in 0..3 {
            let id = client.ask("get", serde_json::json!({"unit": "z", "count": 1_500_000}));
            match tokio::time::timeout(Duration::from_secs(12), client.answer(id)).await {
                Ok(Ok(result)) => assert!(result["text"].as_str().unwrap() == "z".repeat(1_500_000)),
                Ok(Err(name)) => {
                    assert!(
                        ["chunks-missing", "outside-window", "timed-out", "aborted"].contains(&name.as_str()),
                        "{name}"
                    );
                    named += 1;
                }
                // The request itself, or the start of its answer, was lost.
                Err(_) => {}
            }
        }
    }
    assert!(named > 0, "no transfer was hit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_says_too_fast_is_given_time_and_everything_passes() {
    let (_relay, _server, mut client) = world(Manner { too_fast: 2, ..Manner::default() }).await;
    assert!(client.get("x", 300_000).await.unwrap() == "x".repeat(300_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_confirms_nothing_is_noticed_once_and_everything_passes() {
    let (_relay, _server, mut client) = world(Manner { confirms: false, ..Manner::default() }).await;
    let begin = std::time::Instant::now();
    assert!(client.get("x", 3_000_000).await.unwrap() == "x".repeat(3_000_000));
    assert_eq!(client.put(&"y".repeat(1_000_000)).await.unwrap(), 1_000_000);
    assert!(begin.elapsed() < Duration::from_secs(40), "each event waits for a confirmation that never comes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_tells_its_limit_gets_no_longer_event() {
    let manner = Manner { max_event: 16_000, tells_limit: true, too_large: TooLarge::Closed, ..Manner::default() };
    let (relay, _server, mut client) = world(manner).await;
    assert!(client.get("x", 500_000).await.unwrap() == "x".repeat(500_000));
    assert_eq!(client.put(&"\\".repeat(100_000)).await.unwrap(), 100_000);
    assert!((8_000..=16_000).contains(&relay.longest()), "{}", relay.longest());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_refuses_for_size_gets_shorter_events_the_next_time() {
    for too_large in [TooLarge::Refused, TooLarge::Closed] {
        let manner = Manner { max_event: 25_000, too_large, ..Manner::default() };
        let (_relay, _server, mut client) = world(manner).await;
        let mut tries = 0;
        while client.put(&"x".repeat(300_000)).await.is_err() {
            tries += 1;
            assert!(tries < 4, "{too_large:?}");
        }
        assert!(tries > 0, "{too_large:?}: the first transfer was not refused");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_without_a_clear_reason_is_not_taken_for_one_of_size() {
    let (relay, _server, mut client) = world(Manner { refuses_from: Some(6), ..Manner::default() }).await;
    let name = client.put(&"x".repeat(900_000)).await.unwrap_err();
    assert_eq!(name, "send-refused");
    let longest = relay.longest();
    assert!(client.put(&"x".repeat(900_000)).await.is_err());
    assert!(longest > 55_000 && relay.longest() == longest, "the events were made shorter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_in_a_transfer_is_made_again_and_the_transfer_goes_on() {
    let (_relay, _server, mut client) = world(Manner { breaks_after: Some(12), ..Manner::default() }).await;
    assert_eq!(client.put(&"x".repeat(1_500_000)).await.unwrap(), 1_500_000);
}

/// Some servers run a request again when its event comes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_may_have_arrived_when_the_connection_broke_is_not_sent_again() {
    let (relay, _server, mut client) = world(Manner { breaks_after: Some(3), ..Manner::default() }).await;
    client.put("a").await.unwrap();
    assert_eq!(client.put("b").await.unwrap_err(), "send-refused");
    let contents: Vec<_> = relay.events().iter().map(|event| event["content"].to_string()).collect();
    assert_eq!(contents.iter().filter(|content| content.contains(r#"\"text\":\"b\""#)).count(), 1);
    assert_eq!(client.put("c").await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_relays_each_may_fail_as_long_as_one_works() {
    let good = Relay::start(Manner { repeats_one_in: Some(2), ..Manner::default() }).await;
    let refusing = Relay::start(Manner { refuses_from: Some(1), ..Manner::default() }).await;
    let gone = Relay::start(Manner::default()).await;
    let relays = format!("{},{},{}", gone.url(), refusing.url(), good.url());
    drop(gone);
    let server = Server::start(&relays, &[]).await;
    let mut client = Client::connect(&relays, &server.key, &[]).await;
    assert!(client.get("x", 1_000_000).await.unwrap() == "x".repeat(1_000_000));
    assert_eq!(client.put(&"é".repeat(100_000)).await.unwrap(), 200_000);
    assert_eq!(server.client_count(), 1);
}
