//! A client that comes back: whatever happens to its links, its application sees each action once, and its host each prompt.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod host;
mod line;

use std::collections::VecDeque;
use std::time::Duration;

use breakbulk::client::{Client, Config, ConnectError, DispatchError, Event, Reason, RequestError, State, Why};
use breakbulk::link::Memory;
use breakbulk_proto::{Message, SendError};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use self::host::CAP;
use self::line::{Line, SOON, live, next, pick, seqs, state};

const CHAT: &str = "ahp-chat:/1";
const TERMINAL: &str = "ahp-terminal:/1";
/// More than one frame of the official transport takes, and 350 frames here.
const LARGE: usize = 17_000_000;

fn turn(id: &str, len: usize) -> Message {
    json!({ "type": "chat/turnStarted", "turnId": id, "message": { "text": "x".repeat(len) } }).to_string().into()
}

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
    line.host.publish(CHAT, &"y".repeat(LARGE));
    // They pass the large one, are delivered past the cursor, and are replayed: but not delivered again.
    (0..20).for_each(|_| line.host.publish(TERMINAL, "beside"));
    let mut seen = Vec::new();
    while seen.len() < 22 {
        let (seq, len) = pick(&mut events, |event| match event {
            Event::Action { seq, envelope, .. } => Some((seq, envelope.len())),
            _ => None,
        })
        .await;
        assert_eq!(len > LARGE, seq == 2);
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
async fn a_message_that_never_ends_makes_the_client_come_back_for_it() {
    let line = Line { silent: true, ..Line::default() };
    line.cuts.lock().unwrap().push_back(150);
    let (client, mut events) = line.client(&[CHAT, TERMINAL]);
    live(&client).await;
    line.host.publish(CHAT, &"y".repeat(LARGE));
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
    while line.host.counts().get("subscribe").is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    line.host.publish(TERMINAL, "x");
    assert_eq!(seqs(&mut events, 1).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_request_in_flight_is_rejected_and_not_sent_again() {
    let line = Line::default();
    line.host.set(|knobs| knobs.silence("echo"));
    let (client, _events) = line.client(&[]);
    live(&client).await;
    let asked = client.request("echo", r#"{"n":1}"#);
    let cut = async {
        while line.host.counts().get("echo").is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        line.host.cut();
    };
    let (outcome, ()) = tokio::join!(asked, cut);
    assert_eq!(outcome, Err(RequestError::Disconnected));
    state(&client, |state| *state != State::Live).await;
    live(&client).await;
    line.host.set(|knobs| knobs.silent.clear());
    let result = client.request("echo", r#"{"n":2}"#).await.unwrap();
    assert_eq!(result, Message::from(r#"{"n":2}"#));
    assert_eq!(line.host.counts()["echo"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_connection_waits_for_one_or_for_its_time() {
    let line = Line::default();
    line.host.set(|knobs| knobs.silence("initialize"));
    let (client, _events) = line.client_with(&[], |config| config.connect_timeout = Duration::from_secs(40));
    let began = Instant::now();
    assert_eq!(client.request("echo", "{}").await, Err(RequestError::Timeout));
    assert_eq!(began.elapsed().as_secs(), 30);
    line.host.set(|knobs| knobs.silent.clear());
    assert_eq!(client.request("echo", "[2]").await, Ok(Message::from("[2]")));
    assert_eq!(line.host.counts()["echo"], 1, "who gave up gets nothing sent");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_host_is_told_and_nonsense_is_not_sent() {
    let line = Line::default();
    let (client, _events) = line.client(&[]);
    let Err(RequestError::Remote { code: -32601, message, data: None }) = client.request("unheard", "{}").await else {
        panic!()
    };
    assert_eq!(message, "no");
    assert_eq!(client.request("echo", "{").await, Err(RequestError::NotJson));
    assert_eq!(client.dispatch(CHAT, "{} {}").await, Err(DispatchError::NotJson));
    let large = format!("\"{}\"", "x".repeat(40 << 20));
    let Err(RequestError::Unsendable(SendError::TooLarge(over))) = client.request("echo", large).await else {
        panic!()
    };
    assert_eq!(over.limit, 32 << 20);
    assert_eq!(client.request("echo", "1").await, Ok(Message::from("1")), "the connection lives");
    assert_eq!(line.dials(), 1);
}

/// A seeded splitmix64 generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

#[tokio::test(start_paused = true)]
async fn every_prompt_reaches_the_host_once_and_in_order_over_seeded_drops() {
    let (mut drops, mut replayed) = (0, 0);
    for seed in 0..100 {
        let mut dice = Dice(seed);
        let line = Line::default();
        let cuts: VecDeque<_> = (0..2 + dice.below(4)).map(|_| 1 + dice.below(24)).collect();
        *line.cuts.lock().unwrap() = cuts.clone();
        let (client, mut events) = line.client_with(&[CHAT, TERMINAL], |config| config.seed = Some(seed));
        let (mut shown, mut others) = (Vec::new(), Vec::new());
        let dispatched = async {
            for n in 1..=8 {
                let len = if dice.below(3) == 0 { 300_000 } else { 100 };
                assert_eq!(client.dispatch(CHAT, turn(&n.to_string(), len)).await, Ok(n));
                line.host.publish(TERMINAL, "beside");
                sleep(Duration::from_millis(dice.below(300))).await;
            }
        };
        let taken = async {
            while shown.len() < 8 || others.len() < 8 {
                match next(&mut events).await {
                    Event::Action { own: Some(number), .. } => shown.push(number),
                    Event::Action { own: None, seq, .. } => others.push(seq),
                    // What happened before the first connection is in its snapshot.
                    Event::Snapshot { channel, from_seq, .. } if channel == TERMINAL => {
                        let log = line.host.lock().log.clone();
                        let known = log.iter().filter(|entry| entry.channel == TERMINAL && entry.seq <= from_seq);
                        others = known.map(|entry| entry.seq).collect();
                    }
                    Event::Lost(lost) => panic!("seed {seed}: {lost:?}"),
                    _ => {}
                }
            }
        };
        timeout(SOON * 100, async { tokio::join!(dispatched, taken) }).await.unwrap_or_else(|_| panic!("seed {seed}"));
        let numbers: Vec<_> = (1..=8).map(|n| n.to_string()).collect();
        assert_eq!(line.host.turns(), numbers, "seed {seed}, cuts {cuts:?}");
        assert_eq!(shown, (1..=8).collect::<Vec<_>>(), "seed {seed}, cuts {cuts:?}");
        assert!(others.is_sorted_by(|a, b| a < b), "seed {seed}: {others:?}");
        drops += line.dials() - 1;
        replayed += line.host.lock().replayed_own;
    }
    println!("{drops} drops, {replayed} prompts shown by replays");
    assert!(drops >= 200 && replayed >= 20, "{drops}, {replayed}");
}

#[tokio::test(start_paused = true)]
async fn a_prompt_dispatched_without_a_connection_goes_out_on_the_next() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    line.host.cut();
    state(&client, |state| matches!(state, State::Connecting { .. })).await;
    assert_eq!(client.dispatch(CHAT, turn("a", 10)).await, Ok(1));
    assert_eq!(client.dispatch(CHAT, turn("b", 10)).await, Ok(2));
    assert_eq!(seqs(&mut events, 2).await, [1, 2]);
    assert_eq!(line.host.turns(), ["a", "b"]);
}

/// A prompt leaves, the host hides what it did with it, and the link is cut.
async fn in_doubt(line: &Line, client: &Client, is_taken: bool) {
    live(client).await;
    line.host.set(|knobs| {
        knobs.mute = true;
        knobs.close_on_dispatch = (!is_taken).then_some(1001);
    });
    assert_eq!(client.dispatch(CHAT, turn("doubt", 10)).await, Ok(1));
    while line.host.counts().get("dispatchAction").is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    line.host.set(|knobs| (knobs.mute, knobs.close_on_dispatch) = (false, None));
    line.host.cut();
    state(client, |state| *state != State::Live).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_replay_shows_is_not_sent_again() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT]);
    in_doubt(&line, &client, true).await;
    let own = pick(&mut events, |event| if let Event::Action { own, .. } = event { Some(own) } else { None }).await;
    assert_eq!((own, line.host.turns().len(), line.host.counts()["dispatchAction"]), (Some(1), 1, 1));
}

#[tokio::test(start_paused = true)]
async fn without_resending_what_is_in_doubt_is_reported_lost() {
    let line = Line::default();
    let (client, mut events) = line.client_with(&[CHAT], |config| config.resend = false);
    in_doubt(&line, &client, false).await;
    let lost = pick(&mut events, |event| if let Event::Lost(lost) = event { Some(lost) } else { None }).await;
    assert_eq!((lost.client_seq, lost.why, lost.action), (1, Why::Unknown, turn("doubt", 10)));
    live(&client).await;
    assert!(line.host.turns().is_empty());
}

#[tokio::test(start_paused = true)]
async fn after_a_snapshot_a_prompt_is_sent_again_only_if_its_turn_is_absent() {
    for is_taken in [true, false] {
        let line = Line::default();
        line.host.set(|knobs| knobs.snapshots = true);
        let (client, mut events) = line.client(&[CHAT]);
        in_doubt(&line, &client, is_taken).await;
        let mut resumed = false;
        let from_seq = pick(&mut events, |event| {
            resumed |= matches!(event, Event::Resumed);
            if let Event::Snapshot { from_seq, .. } = event { resumed.then_some(from_seq) } else { None }
        })
        .await;
        assert_eq!(from_seq, u64::from(is_taken));
        live(&client).await;
        assert_eq!(client.dispatch(CHAT, turn("next", 10)).await, Ok(2));
        let shown = if is_taken { vec![2] } else { vec![1, 2] };
        assert_eq!(seqs(&mut events, shown.len()).await.len(), shown.len());
        assert_eq!(line.host.turns(), ["doubt", "next"]);
        assert_eq!(line.host.counts()["dispatchAction"], if is_taken { 2 } else { 3 });
    }
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
        while line.host.counts().get("subscribe").is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        line.host.set(|knobs| knobs.silent.clear());
        line.host.cut();
    };
    let (subscribed, ()) = tokio::join!(subscribed, cut);
    assert_eq!(subscribed, Ok(()), "it is asked again on the next connection");
    pick(&mut events, |event| matches!(event, Event::Snapshot { channel, .. } if channel == CHAT).then_some(())).await;
    assert!(matches!(client.subscribe("nowhere").await, Err(RequestError::Remote { code: -32008, .. })));
    client.unsubscribe(CHAT).await.unwrap();
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
        async { Err::<Memory, _>(ConnectError::again("nobody there")) }
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
    let refused = || async { Err::<Memory, _>(ConnectError::never("HTTP 401")) };
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
async fn an_application_that_wants_no_events_can_still_ask() {
    let line = Line::default();
    let (client, events) = line.client_with(&[CHAT], |config| config.max_events = 1);
    drop(events);
    live(&client).await;
    (0..100).for_each(|_| line.host.publish(CHAT, "x"));
    assert_eq!(client.request("echo", "7").await, Ok(Message::from("7")));
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
        line.host.publish(CHAT, &"y".repeat(LARGE));
        client.dispatch(CHAT, turn("large", LARGE)).await.unwrap();
        for _ in 0..2 {
            let len = pick(&mut events, |event| match event {
                Event::Action { envelope, .. } => Some(envelope.len()),
                _ => None,
            });
            assert!(len.await > LARGE, "round {round}");
        }
    }
    assert_eq!(line.host.counts()["reconnect"], 2);
    assert_eq!(line.dials(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_host_can_ask_and_each_request_gets_one_answer() {
    let line = Line::default();
    let (client, mut events) = line.client(&[]);
    live(&client).await;
    for id in ["1", "2", "3"] {
        line.host.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "resourceRead", "params": { "uri": id } }));
    }
    let mut answers = Vec::new();
    while answers.len() < 3 {
        answers.push(
            pick(&mut events, |event| match event {
                Event::Request { method, answer, .. } if method == "resourceRead" => Some(answer),
                _ => None,
            })
            .await,
        );
    }
    drop(answers.pop());
    answers.pop().unwrap().refuse(-32008, "no such file");
    answers.pop().unwrap().give(format!("\"{}\"", "x".repeat(1_000_000))).await.unwrap();
    while line.host.lock().answers.len() < 3 {
        sleep(Duration::from_millis(1)).await;
    }
    let answers = line.host.lock().answers.clone();
    let of = |id: &str| answers.iter().find(|answer| answer["id"] == id).unwrap();
    assert_eq!(of("3")["error"]["code"], -32601);
    assert_eq!(of("2")["error"]["code"], -32008);
    assert_eq!(of("1")["result"].as_str().unwrap().len(), 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn an_action_that_is_too_large_is_reported_and_does_not_come_again() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    client.dispatch(CHAT, turn("too large", 40 << 20)).await.unwrap();
    client.dispatch(CHAT, turn("small", 10)).await.unwrap();
    let lost = pick(&mut events, |event| if let Event::Lost(lost) = event { Some(lost) } else { None }).await;
    assert!(lost.client_seq == 1 && matches!(lost.why, Why::Unsendable(SendError::TooLarge(_))), "{:?}", lost.why);
    assert_eq!(seqs(&mut events, 1).await, [1]);
    assert_eq!((line.host.turns(), line.dials()), (vec!["small".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn an_action_over_which_the_host_closes_with_1009_is_given_up() {
    let line = Line::default();
    line.host.set(|knobs| knobs.close_on_dispatch = Some(1009));
    let (client, mut events) = line.client(&[CHAT]);
    client.dispatch(CHAT, turn("poison", 10)).await.unwrap();
    let lost = pick(&mut events, |event| if let Event::Lost(lost) = event { Some(lost) } else { None }).await;
    assert_eq!((lost.client_seq, lost.why), (1, Why::TooBigForHost));
    live(&client).await;
    assert_eq!(line.host.counts()["dispatchAction"], 3);
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
    let nobody = || async { Err::<Memory, _>(ConnectError::again("nobody there")) };
    let (client, mut events) = Client::start(nobody, Config::new("me"));
    client.dispatch(CHAT, turn("a", 10)).await.unwrap();
    client.close().await;
    let Event::Lost(lost) = next(&mut events).await else { panic!() };
    assert_eq!((lost.client_seq, lost.why), (1, Why::Closed));
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
