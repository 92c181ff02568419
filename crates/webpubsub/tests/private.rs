//! Private links through a relay: frames that just fit its cap, and connections that are cut.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[expect(dead_code, reason = "some parts are for other tests")]
mod common;

use std::future::poll_fn;

use breakbulk::BoxLink;
use breakbulk::external::Acceptor;
use breakbulk::private::{self, HostKey, PrivateAcceptor, longest_within};
use breakbulk_proto::Measure;
use common::{CAP, Running, receive, send, within};

/// A relay, and both ends of a private link through it: the client's, and the host's.
async fn open() -> (Running, PrivateAcceptor, BoxLink, BoxLink) {
    let relay = Running::start(|_| {}).await;
    let key = HostKey::generate().unwrap();
    let code = key.pairing_code();
    let mut host = PrivateAcceptor::new(Box::new(relay.host("").await), key, CAP);
    let connecting = async { private::connect(relay.dial("").await.unwrap(), &code, CAP).await.unwrap() };
    let (client, peer) = within(async { tokio::join!(connecting, poll_fn(|cx| host.poll_accept(cx))) }).await;
    (relay, host, client, peer.unwrap().link)
}

/// The longest text of quotes that the link says it takes: one that would be twice as long if it were escaped.
fn longest(link: &BoxLink) -> String {
    let capacity = link.capacity();
    let fits = |bytes: u64| capacity.fits(Measure { bytes, escaped: 2 * bytes });
    let most = (0..=longest_within(CAP)).rev().find(|bytes| fits(*bytes)).unwrap();
    "\"".repeat(usize::try_from(most).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_private_frame_just_fits_the_cap_of_the_relay_in_both_directions() {
    let (relay, _acceptor, mut client, mut host) = open().await;
    for _ in 0..3 {
        let text = longest(&client);
        send(&mut client, text.clone()).await;
        assert!(receive(&mut host).await == text);
        let text = longest(&host);
        send(&mut host, text.clone()).await;
        assert!(receive(&mut client).await == text);
    }
    let stats = relay.relay.stats();
    // Digits of numbers are counted as the longest that there can be.
    assert!((CAP - 100..=CAP).contains(&stats.largest_frame), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_repeated_on_a_private_link_while_connections_are_cut() {
    let (relay, _acceptor, mut client, mut host) = open().await;
    for number in 0..60 {
        if number % 5 == 0 {
            relay.relay.cut(|_| true);
        }
        let text = format!("{number} {}", "x".repeat(number * 997));
        send(&mut client, text.clone()).await;
        assert!(receive(&mut host).await == text, "{number}");
        send(&mut host, text.clone()).await;
        assert!(receive(&mut client).await == text, "{number}");
    }
    assert!(relay.relay.stats().recoveries > 0);
}
