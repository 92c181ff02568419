//! The queue from an agent to the host.

use std::time::Duration;

use breakbulk_host::agent::{EventsConfig, NoListener, events};
use breakbulk_lifecycle::Event;
use tokio::time::timeout;

/// Long enough for what is not blocked.
const SOON: Duration = Duration::from_millis(100);

#[tokio::test]
async fn an_agent_waits_when_nobody_listens_and_goes_on_when_somebody_does() {
    let (sender, mut stream) = events(EventsConfig { max_bytes: 10_000, max_events: 100 });
    sender.send(Event::TurnStarted { turn: "t".into() }).await.unwrap();
    let big = || Event::text("m", "b", "x".repeat(8_000));
    sender.send(big()).await.unwrap();
    assert!(timeout(SOON, sender.send(big())).await.is_err());
    let (sent, ()) = tokio::join!(sender.send(big()), async {
        while let Some(event) = stream.next().await {
            if matches!(*event, Event::BlockDelta { .. }) {
                break;
            }
        }
    });
    sent.unwrap();
}

#[tokio::test]
async fn one_event_of_any_size_fits_and_a_count_is_a_limit_too() {
    let (sender, mut stream) = events(EventsConfig { max_bytes: 1_000, max_events: 2 });
    sender.send(Event::Notice { text: "x".repeat(1 << 20) }).await.unwrap();
    assert!(stream.ready().is_none(), "it was said outside of a turn");
    assert_eq!(stream.strays(), 1);
    let (sender, _stream) = events(EventsConfig { max_bytes: 1 << 20, max_events: 2 });
    for _ in 0..2 {
        sender.send(Event::Resumable { token: String::new() }).await.unwrap();
    }
    assert!(timeout(SOON, sender.send(Event::Resumable { token: String::new() })).await.is_err());
}

#[tokio::test]
async fn an_agent_that_nobody_listens_to_is_told_so() {
    let (sender, stream) = events(EventsConfig { max_bytes: 1_000, max_events: 2 });
    sender.send(Event::Notice { text: "x".repeat(1_000) }).await.unwrap();
    let (sent, ()) = tokio::join!(sender.send(Event::Notice { text: "y".repeat(1_000) }), async { drop(stream) });
    assert_eq!(sent, Err(NoListener));
}
