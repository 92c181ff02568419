//! When a client tries again, when it ends, and what it says of itself.

use std::time::Duration;

use breakbulk::client::{Client, Config, ConnectError, DispatchError, Event, LossReason, Reason, RequestError, State};
use breakbulk::link::InProcessLink;
use tokio::time::{Instant, sleep, timeout};

use super::line::{Line, SOON, live, next, state};
use super::{CHAT, turn};

#[tokio::test(start_paused = true)]
async fn states_follow_each_other_and_a_steady_connection_counts_anew() {
    let line = Line::default();
    let (client, _events) = line.client(&[CHAT]);
    let mut states = client.state();
    let mut seen = vec![states.borrow_and_update().clone()];
    let seen = tokio::spawn(async move {
        while states.changed().await.is_ok() {
            seen.push(states.borrow_and_update().clone());
        }
        seen
    });
    live(&client).await;
    line.host.cut();
    state(&client, |state| *state != State::Live).await;
    live(&client).await;
    sleep(Duration::from_secs(11)).await;
    line.host.cut();
    state(&client, |state| *state != State::Live).await;
    live(&client).await;
    client.close().await;
    let attempts: Vec<_> = seen.await.unwrap();
    let short = |state: &State| match state {
        State::Connecting { attempt, .. } => format!("connecting {attempt}"),
        State::Closed(reason) => format!("closed: {reason}"),
        other => format!("{other:?}").to_lowercase(),
    };
    assert_eq!(
        attempts.iter().map(short).collect::<Vec<_>>(),
        [
            "connecting 1",
            "replaying",
            "live",
            "connecting 2",
            "replaying",
            "live",
            "connecting 1",
            "replaying",
            "live",
            "closed: closed by us"
        ]
    );
}

/// The waits of a client that finds no host, as it says them, and as they are.
async fn waits(seed: u64, count: usize) -> Vec<Duration> {
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let connect = move || {
        told.send(Instant::now()).unwrap();
        async { Err::<InProcessLink, _>(ConnectError::again("nobody there")) }
    };
    let mut config = Config::new("me");
    config.seed = Some(seed);
    let (client, _events) = Client::start(connect, config);
    let mut last = heard.recv().await.unwrap();
    let mut waits = Vec::new();
    for _ in 0..count {
        let State::Connecting { after, .. } = state(
            &client,
            |state| matches!(state, State::Connecting { attempt, .. } if *attempt as usize == waits.len() + 2),
        )
        .await
        else {
            panic!()
        };
        let at = heard.recv().await.unwrap();
        assert!((at - last).abs_diff(after) <= Duration::from_millis(2), "{:?} against {after:?}", at - last);
        last = at;
        waits.push(after);
    }
    waits
}

#[tokio::test(start_paused = true)]
async fn waits_between_attempts_are_jittered_and_bounded() {
    let (one, other) = (waits(1, 12).await, waits(2, 12).await);
    assert_ne!(one, other);
    for waits in [one, other] {
        for (n, wait) in waits.iter().enumerate() {
            assert!(*wait <= Duration::from_millis(250 << n.min(7)).min(Duration::from_secs(30)), "{n}: {wait:?}");
        }
        assert!(waits.iter().max() > Some(&Duration::from_secs(2)));
    }
}

#[tokio::test(start_paused = true)]
async fn some_ends_are_for_good_and_the_rest_are_not() {
    for code in [1008, 4401, 4403] {
        let line = Line::default();
        let (client, mut events) = line.client(&[CHAT]);
        live(&client).await;
        line.host.close(code);
        let closed = state(&client, |state| matches!(state, State::Closed(_))).await;
        assert_eq!(closed, State::Closed(Reason::Peer { code }));
        assert_eq!(client.request("echo", "{}").await, Err(RequestError::Closed));
        assert_eq!(client.dispatch(CHAT, "{}").await, Err(DispatchError::Closed));
        while timeout(SOON, events.next()).await.unwrap().is_some() {}
    }
    for code in [1000, 1001, 1009, 1012, 1013, 4400] {
        let line = Line::default();
        let (client, _events) = line.client(&[CHAT]);
        live(&client).await;
        line.host.close(code);
        state(&client, |state| *state != State::Live).await;
        live(&client).await;
    }
    let refused = || async { Err::<InProcessLink, _>(ConnectError::never("HTTP 401")) };
    let (client, mut events) = Client::start(refused, Config::new("me"));
    let closed = state(&client, |state| matches!(state, State::Closed(_))).await;
    assert_eq!(closed, State::Closed(Reason::Refused("HTTP 401".into())));
    assert!(events.next().await.is_none());
    let line = Line::default();
    line.host.set(|knobs| knobs.initialize_error = Some(-32005));
    let (client, _events) = line.client(&[]);
    let closed = state(&client, |state| matches!(state, State::Closed(_))).await;
    assert_eq!(closed, State::Closed(Reason::Rejected { code: -32005, message: "no".into() }));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_not_ready_yet_is_asked_again() {
    let line = Line::default();
    line.host.set(|knobs| knobs.initialize_error = Some(-32000));
    let (client, _events) = line.client(&[]);
    state(&client, |state| matches!(state, State::Connecting { attempt: 4, .. })).await;
    line.host.set(|knobs| knobs.initialize_error = None);
    live(&client).await;
    assert!(line.dials() >= 4);
}

#[tokio::test(start_paused = true)]
async fn the_state_says_why_the_attempt_before_failed() {
    let failure = |client: &Client| {
        let mut states = client.state();
        async move {
            let seen = states.wait_for(|state| matches!(state, State::Connecting { failure: Some(_), .. })).await;
            let State::Connecting { failure, .. } = seen.unwrap().clone() else { panic!() };
            failure.unwrap()
        }
    };
    let line = Line::default();
    line.host.set(|knobs| knobs.initialize_error = Some(-32000));
    let (client, _events) = line.client(&[]);
    assert_eq!(failure(&client).await, "the host refused to begin: no (-32000)");
    line.host.set(|knobs| knobs.initialize_error = None);
    live(&client).await;
    // A connection that was live has not failed.
    line.host.cut();
    let dropped = state(&client, |state| *state != State::Live).await;
    assert!(matches!(dropped, State::Connecting { failure: None, .. }), "{dropped:?}");
    let line = Line::default();
    line.host.set(|knobs| knobs.silence("initialize"));
    let (client, _events) = line.client(&[]);
    assert_eq!(failure(&client).await, "the handshake was not answered within 30 s");
    let refused = || async { Err::<InProcessLink, _>(ConnectError::again("nobody there")) };
    let (client, _events) = Client::start(refused, Config::new("me"));
    assert_eq!(failure(&client).await, "nobody there");
}

#[tokio::test(start_paused = true)]
async fn a_close_lets_go_what_was_asked_before_it() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    for n in 0..20 {
        client.dispatch(CHAT, turn(&n.to_string(), 100_000)).await.unwrap();
    }
    client.close().await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(line.host.turns().len(), 20);
    assert_eq!(client.state().borrow().clone(), State::Closed(Reason::Asked));
    let mut shown = 0;
    while let Some(event) = timeout(SOON, events.next()).await.unwrap() {
        shown += usize::from(matches!(event, Event::Action { own: Some(_), .. }));
    }
    assert_eq!(shown, 20, "and then there is an end");
}

#[tokio::test(start_paused = true)]
async fn a_close_without_a_connection_reports_what_was_dispatched() {
    let nobody = || async { Err::<InProcessLink, _>(ConnectError::again("nobody there")) };
    let (client, mut events) = Client::start(nobody, Config::new("me"));
    client.dispatch(CHAT, turn("a", 10)).await.unwrap();
    client.close().await;
    let Event::Lost(lost) = next(&mut events).await else { panic!() };
    assert_eq!((lost.client_seq, lost.why), (1, LossReason::Closed));
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_dropped_closes() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    drop(client);
    while timeout(SOON, events.next()).await.unwrap().is_some() {}
    assert_eq!(line.dials(), 1);
}
