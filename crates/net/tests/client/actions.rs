//! What the host shows is seen once and in order, whatever happens to the links.

use std::time::Duration;

use breakbulk::client::{Client, Config, Event, RequestError, State};
use breakbulk::{AccessPolicy, Address, Dialer, ListenConfig, Listener};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::host::{CAP, limits};
use super::line::{Line, live, next, pick, seqs, state};
use super::{CHAT, LARGE_BYTES, TERMINAL, turn};

#[tokio::test(start_paused = true)]
async fn live_actions_come_in_order_after_the_snapshots() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT, TERMINAL]);
    assert!(matches!(next(&mut events).await, Event::Started { .. }));
    for channel in [CHAT, TERMINAL] {
        let Event::Snapshot { channel: of, from_seq: 0, .. } = next(&mut events).await else { panic!() };
        assert_eq!(of, channel);
    }
    live(&client).await;
    for n in 0..1000 {
        line.host.publish([CHAT, TERMINAL, "elsewhere"][n % 3], "x");
    }
    let expected: Vec<u64> = (1..=1000).filter(|seq| seq % 3 != 0).collect();
    assert_eq!(seqs(&mut events, expected.len()).await, expected);
}

#[tokio::test(start_paused = true)]
async fn an_action_cut_in_the_middle_is_replayed_and_each_is_seen_once() {
    let line = Line::default();
    line.cuts.lock().unwrap().push_back(150);
    let (client, mut events) = line.client(&[CHAT, TERMINAL]);
    live(&client).await;
    line.host.publish(TERMINAL, "before");
    line.host.publish(CHAT, &"y".repeat(LARGE_BYTES));
    // They pass the large one, are delivered past the cursor, and are replayed: but not delivered again.
    (0..20).for_each(|_| line.host.publish(TERMINAL, "beside"));
    let mut seen = Vec::new();
    while seen.len() < 22 {
        let (seq, len) = pick(&mut events, |event| match event {
            Event::Action { seq, envelope, .. } => Some((seq, envelope.len())),
            _ => None,
        })
        .await;
        assert_eq!(len > LARGE_BYTES, seq == 2);
        seen.push(seq);
    }
    assert_eq!(line.dials(), 2);
    assert_ne!(seen, (1..=22).collect::<Vec<_>>(), "some passed the large one");
    seen.sort_unstable();
    assert_eq!(seen, (1..=22).collect::<Vec<_>>());
    assert!(
        line.host.lock().heard.iter().any(|(method, params)| method == "reconnect" && params["lastSeenServerSeq"] == 1)
    );
    line.host.publish(TERMINAL, "after");
    assert_eq!(seqs(&mut events, 1).await, [23]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_a_page_of_older_turns_are_seen_although_their_seq_is_not_new() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    (0..2).for_each(|_| line.host.publish(CHAT, "x"));
    assert_eq!(seqs(&mut events, 2).await, [1, 2]);
    let say = |seq: u64, mut params: Value| {
        (params["channel"], params["serverSeq"]) = (json!(CHAT), json!(seq));
        line.host.send(&json!({"jsonrpc": "2.0", "method": "action", "params": params}));
    };
    say(2, json!({"action": {"type": "chat/turnsLoaded", "turns": []}}));
    // A refusal says nothing about the order, however high its seq is.
    say(9, json!({"action": {"type": "chat/delta"}, "rejectionReason": "no turn is under way"}));
    say(2, json!({"action": {"type": "chat/delta"}}));
    line.host.publish(CHAT, "y");
    assert_eq!(seqs(&mut events, 3).await, [2, 9, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_ends_makes_the_client_come_back_for_it() {
    let line = Line { silent: true, ..Line::default() };
    line.cuts.lock().unwrap().push_back(150);
    let (client, mut events) = line.client(&[CHAT, TERMINAL]);
    live(&client).await;
    line.host.publish(CHAT, &"y".repeat(LARGE_BYTES));
    line.host.publish(TERMINAL, "beside");
    let mut seen = seqs(&mut events, 2).await;
    seen.sort_unstable();
    assert_eq!((seen, line.dials()), (vec![1, 2], 2));
}

#[tokio::test(start_paused = true)]
async fn what_a_hasty_host_shows_before_its_answer_comes_after_the_replay() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    line.host.set(|knobs| (knobs.mute, knobs.hasty) = (true, true));
    (0..3).for_each(|_| line.host.publish(CHAT, "missed"));
    line.host.set(|knobs| knobs.mute = false);
    line.host.cut();
    assert_eq!(seqs(&mut events, 4).await, [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_the_snapshots_leave_out_is_asked_for_again() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT, TERMINAL]);
    live(&client).await;
    line.host.set(|knobs| {
        knobs.snapshots = true;
        knobs.stateless.insert(TERMINAL.into());
    });
    line.host.cut();
    pick(&mut events, |event| matches!(event, Event::Resumed).then_some(())).await;
    line.host.hears("subscribe").await;
    line.host.publish(TERMINAL, "x");
    assert_eq!(seqs(&mut events, 1).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_resume_is_begun_with_again() {
    let line = Line::default();
    line.host.set(|knobs| knobs.refuse_reconnect = true);
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    (0..5).for_each(|_| line.host.publish(CHAT, "x"));
    assert_eq!(seqs(&mut events, 5).await, [1, 2, 3, 4, 5]);
    // It lost its log, and counts from 1 again.
    line.host.lock().log.clear();
    line.host.cut();
    pick(&mut events, |event| matches!(event, Event::Started { .. }).then_some(())).await;
    assert!(matches!(next(&mut events).await, Event::Snapshot { from_seq: 0, .. }));
    live(&client).await;
    line.host.publish(CHAT, "y");
    assert_eq!(seqs(&mut events, 1).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn missing_channels_are_reported_and_followed_no_more() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT, TERMINAL]);
    live(&client).await;
    line.host.set(|knobs| knobs.missing = vec![TERMINAL.into()]);
    line.host.cut();
    let missing =
        pick(&mut events, |event| if let Event::Missing { channels } = event { Some(channels) } else { None });
    assert_eq!(missing.await, [TERMINAL]);
    line.host.cut();
    state(&client, |state| *state != State::Live).await;
    live(&client).await;
    let heard = line.host.lock().heard.clone();
    let lists: Vec<_> =
        heard.iter().filter(|(method, _)| method == "reconnect").map(|(_, p)| &p["subscriptions"]).collect();
    assert_eq!(lists, [&json!([CHAT, TERMINAL]), &json!([CHAT])]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_is_remembered_and_one_that_fails_is_not() {
    let line = Line::default();
    let (client, mut events) = line.client(&[]);
    line.host.set(|knobs| knobs.silence("subscribe"));
    let subscribed = client.subscribe(CHAT);
    let cut = async {
        line.host.hears("subscribe").await;
        line.host.set(|knobs| knobs.silent.clear());
        line.host.cut();
    };
    let (subscribed, ()) = tokio::join!(subscribed, cut);
    assert_eq!(subscribed, Ok(()), "it is asked again on the next connection");
    pick(&mut events, |event| matches!(event, Event::Snapshot { channel, .. } if channel == CHAT).then_some(())).await;
    assert!(matches!(client.subscribe("nowhere").await, Err(RequestError::Remote { code: -32008, .. })));
    line.host.set(|knobs| knobs.silence("subscribe"));
    let (withdrawn, unsubscribed) = tokio::join!(client.subscribe(CHAT), client.unsubscribe(CHAT));
    assert_eq!((withdrawn, unsubscribed), (Err(RequestError::Withdrawn), Ok(())));
    line.host.set(|knobs| knobs.silent.clear());
    client.subscribe(TERMINAL).await.unwrap();
    line.host.publish(CHAT, "nobody hears it");
    line.host.cut();
    state(&client, |state| *state != State::Live).await;
    live(&client).await;
    line.host.publish(TERMINAL, "x");
    assert_eq!(seqs(&mut events, 1).await, [2]);
    let heard = line.host.lock().heard.clone();
    let (_, last) = heard.iter().rfind(|(method, _)| method == "reconnect").unwrap();
    assert_eq!(last["subscriptions"], json!([TERMINAL]));
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_slows_the_link_and_misses_nothing() {
    let line = Line::default();
    let (client, mut events) = line.client_with(&[CHAT], |config| config.max_events = 16);
    live(&client).await;
    let text = "z".repeat(10_000);
    (0..1000).for_each(|_| line.host.publish(CHAT, &text));
    sleep(Duration::from_secs(10)).await;
    let sent = line.host.lock().sent;
    assert!(sent < 40, "{sent} left the host while 16 events fit");
    assert_eq!(seqs(&mut events, 1000).await, (1..=1000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_was_negotiated_outlives_the_connection() {
    let line = Line::default();
    // Their names alone need more than one frame, so the reconnect request has to go in segments.
    let names: Vec<_> = (0..1000).map(|n| format!("ahp-chat:/{n}/{}", "c".repeat(100))).collect();
    assert!(names.concat().len() as u64 > CAP);
    let (client, mut events) = line.client_with(&[CHAT], |config| config.max_events = 2000);
    live(&client).await;
    for name in &names {
        client.subscribe(name).await.unwrap();
    }
    for round in 0..2 {
        line.host.cut();
        state(&client, |state| *state != State::Live).await;
        live(&client).await;
        line.host.publish(CHAT, &"y".repeat(LARGE_BYTES));
        client.dispatch(CHAT, turn("large", LARGE_BYTES)).await.unwrap();
        for _ in 0..2 {
            let len = pick(&mut events, |event| match event {
                Event::Action { envelope, .. } => Some(envelope.len()),
                _ => None,
            });
            assert!(len.await > LARGE_BYTES, "round {round}");
        }
    }
    assert_eq!(line.host.counts()["reconnect"], 2);
    assert_eq!(line.dials(), 3);
}

#[tokio::test]
async fn it_comes_back_over_a_real_websocket_too() {
    let line = Line::default();
    let mut listen = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open());
    (listen.link.cap, listen.link.max_frame_bytes) = (CAP, CAP);
    let mut listener = Listener::bind(listen).await.unwrap();
    let address: Address = format!("ws://{}?cap={CAP}", listener.local_address()).parse().unwrap();
    let host = line.host.clone();
    tokio::spawn(async move {
        loop {
            host.serve(listener.accept().await.link);
        }
    });
    let dial = move || {
        let address = address.clone();
        async move { Ok(Dialer::default().dial(&address).await?) }
    };
    let mut config = Config::new("me");
    (config.subscriptions, config.limits) = (vec![CHAT.into()], limits());
    let (client, mut events) = Client::start(dial, config);
    live(&client).await;
    line.host.publish(CHAT, "before");
    assert_eq!(seqs(&mut events, 1).await, [1]);
    line.host.close(1012);
    state(&client, |state| *state != State::Live).await;
    line.host.publish(CHAT, &"y".repeat(LARGE_BYTES));
    client.dispatch(CHAT, turn("large", LARGE_BYTES)).await.unwrap();
    assert_eq!(seqs(&mut events, 2).await, [2, 3]);
    client.close().await;
    assert_eq!(line.host.turns(), ["large"]);
}
