//! Links through a relay: frames both ways, drops, several clients, several hosts, and what ends a link.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use std::time::Duration;

use breakbulk::{Arrival, BoxLink, DialError};
use breakbulk_proto::{CloseReason, Transmit};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};

use common::{CAP, Running, accept, receive, send, within};

/// A frame of about this length, which contains its number and characters that have to be escaped.
fn frame(number: usize, len: usize) -> String {
    format!("{{\"n\":{number},\"text\":\"{}\"}}", "ab\\\"cé".repeat(len / 8))
}

/// Sends frames of many sizes, and reads as many, at the same time.
async fn exchange(link: BoxLink, count: usize) -> BoxLink {
    let (mut sink, mut stream) = link.split();
    let sizes = |number: usize| if number.is_multiple_of(20) { 600_000 } else { number * 37 % 5_000 };
    let sending = async {
        for number in 0..count {
            let text = frame(number, sizes(number));
            let bytes = text.into();
            let sent = Transmit::Frame { tag: Default::default(), bytes, meta: Default::default() };
            sink.send(sent).await.unwrap();
        }
    };
    let reading = async {
        for number in 0..count {
            let Some(Ok(Arrival::Frame { bytes, .. })) = stream.next().await else {
                panic!("frame {number} is missing")
            };
            assert!(bytes == frame(number, sizes(number)), "frame {number} is another");
        }
    };
    within(async { tokio::join!(sending, reading) }).await;
    sink.reunite(stream).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_pass_both_ways_whole_and_in_order() {
    let relay = Running::start(|_| {}).await;
    let mut host = relay.host("").await;
    let (client, accepted) = tokio::join!(relay.dial("&user=ann"), accept(&mut host));
    assert_eq!((accepted.name.as_str(), accepted.principal.as_deref()), ("ann", Some("user:ann")));
    let (mut client, mut accepted) = tokio::join!(exchange(client.unwrap(), 60), exchange(accepted.link, 60));
    assert!(relay.relay.stats().largest_frame <= CAP);
    // A close arrives with its code and text.
    client.send(Transmit::Close(CloseReason::Program(4123, "done".into()))).await.unwrap();
    let closed = within(accepted.next()).await.unwrap().unwrap();
    assert_eq!(closed, Arrival::Closed { code: 4123, text: "done".into() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_repeated_while_all_connections_are_cut_again_and_again() {
    let relay = Running::start(|_| {}).await;
    let mut host = relay.host("").await;
    let (client, accepted) = tokio::join!(relay.dial(""), accept(&mut host));
    let cutting = async {
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            relay.relay.cut(|_| true);
        }
    };
    let work = async { tokio::join!(exchange(client.unwrap(), 80), exchange(accepted.link, 80)) };
    let _ends = tokio::join!(work, cutting);
    let stats = relay.relay.stats();
    assert!(stats.recoveries >= 2 && stats.largest_frame <= CAP, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_several_hosts_share_a_hub_and_do_not_hear_each_other() {
    let relay = Running::start(|_| {}).await;
    let (mut one, mut two) = (relay.host("&host=one").await, relay.host("&host=two").await);
    let (a, b, c) = (relay.dial("&host=one&user=a"), relay.dial("&host=one&user=b"), relay.dial("&host=two&user=c"));
    let (a, b, c, first, second, third) =
        tokio::join!(a, b, c, async { accept(&mut one).await }, std::future::ready(()), accept(&mut two));
    let _: () = second;
    let next = accept(&mut one).await;
    let mut hosts = vec![first, next, third];
    hosts.sort_by(|one, other| one.name.cmp(&other.name));
    for (client, host) in [a, b, c].into_iter().zip(hosts) {
        let (mut client, mut link) = (client.unwrap(), host.link);
        send(&mut client, format!("from {}", host.name)).await;
        assert_eq!(receive(&mut link).await, format!("from {}", host.name));
        send(&mut link, format!("to {}", host.name)).await;
        assert_eq!(receive(&mut client).await, format!("to {}", host.name));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_frames_nobody_takes_does_not_stop_another_one() {
    let relay = Running::start(|_| {}).await;
    let mut host = relay.host("").await;
    let (stalled, held) = tokio::join!(relay.dial("&user=a"), accept(&mut host));
    let mut stalled = stalled.unwrap();
    // Sends until nothing more is taken.
    let sent = async {
        for number in 0..100 {
            send(&mut stalled, frame(number, 600_000)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(2), sent).await.is_err());
    let (client, accepted) = tokio::join!(relay.dial("&user=b"), accept(&mut host));
    tokio::join!(exchange(client.unwrap(), 30), exchange(accepted.link, 30));
    assert!(relay.relay.stats().queued_bytes < 16_000_000);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_five_clients_three_whose_frames_nobody_takes_do_not_stop_the_other_two_and_lose_nothing() {
    const FRAMES: usize = 30;
    let relay = Running::start(|_| {}).await;
    let mut host = relay.host("").await;
    let mut links = Vec::new();
    for user in ["a", "b", "c", "d", "e"] {
        let options = format!("&user={user}");
        let (client, accepted) = tokio::join!(relay.dial(&options), accept(&mut host));
        assert_eq!(accepted.name, user);
        links.push((client.unwrap(), accepted.link));
    }
    let served = links.split_off(3);
    let sends = |mut client: BoxLink| async move {
        for number in 0..FRAMES {
            send(&mut client, frame(number, 600_000)).await;
        }
        client
    };
    let stalled: Vec<_> = links.into_iter().map(|(client, held)| (tokio::spawn(sends(client)), held)).collect();
    let served = served.into_iter().map(|(client, link)| async move {
        tokio::join!(exchange(client, 40), exchange(link, 40));
    });
    futures_util::future::join_all(served).await;
    assert!(stalled.iter().all(|(sending, _)| !sending.is_finished()));
    assert!(relay.relay.stats().queued_bytes < 16_000_000);
    // What waited arrives when it is taken.
    for (sending, mut held) in stalled {
        for number in 0..FRAMES {
            assert!(receive(&mut held).await == frame(number, 600_000), "frame {number} is another");
        }
        within(sending).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_dropped_ends_the_other_end() {
    let relay = Running::start(|_| {}).await;
    let mut host = relay.host("").await;
    let (client, accepted) = tokio::join!(relay.dial(""), accept(&mut host));
    drop(client.unwrap());
    let mut accepted = accepted.link;
    assert!(within(accepted.next()).await.unwrap().is_err());

    let (client, accepted) = tokio::join!(relay.dial(""), accept(&mut host));
    drop(accepted.link);
    assert!(within(client.unwrap().next()).await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_cannot_be_recovered_ends_its_links_and_new_ones_work() {
    // Whoever is cut is forgotten at once.
    let relay = Running::start(|config| config.keep = Duration::ZERO).await;
    let mut host = relay.host("").await;
    let (client, accepted) = tokio::join!(relay.dial(""), accept(&mut host));
    relay.relay.cut(|_| true);
    let (mut client, mut accepted) = (client.unwrap(), accepted.link);
    assert!(within(client.next()).await.unwrap().is_err());
    assert!(within(accepted.next()).await.unwrap().is_err());
    let (client, accepted) = tokio::join!(relay.dial(""), accept(&mut host));
    tokio::join!(exchange(client.unwrap(), 20), exchange(accepted.link, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_host_or_with_another_key_there_is_no_link_and_the_error_says_why() {
    let relay = Running::start(|_| {}).await;
    let nobody = relay.dial("&host=nobody").await.err().unwrap().to_string();
    assert_eq!(nobody, "webpubsub: no host \"nobody\" has answered in the hub \"agents\"");
    let mut other = Running::start(|_| {}).await;
    other.string.endpoint = relay.string.endpoint.clone();
    let refused = other.dial("").await.err().unwrap();
    assert!(matches!(refused, DialError::Status { status: 401, .. }), "{refused}");
    assert!(refused.to_string().contains("another key"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_cannot_take_the_places_of_all() {
    let relay = Running::start(|_| {}).await;
    let mut host = relay.host("").await;
    let mut links = Vec::new();
    for _ in 0..32 {
        let (client, accepted) = tokio::join!(relay.dial("&user=greedy"), accept(&mut host));
        links.push((client.unwrap(), accepted.link));
    }
    let refused = relay.dial("&user=greedy").await.err().unwrap().to_string();
    assert_eq!(refused, "webpubsub: the host refused the link (1013): \"too many clients of one user\"");
    let (other, accepted) = tokio::join!(relay.dial("&user=modest"), accept(&mut host));
    let (mut other, mut accepted) = (other.unwrap(), accepted.link);
    send(&mut other, "hello").await;
    assert_eq!(receive(&mut accepted).await, Bytes::from("hello"));
}
