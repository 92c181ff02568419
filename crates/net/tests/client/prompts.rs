//! What was dispatched reaches the host once and in order, or is reported as lost.

use std::collections::VecDeque;
use std::time::Duration;

use breakbulk::client::{Client, Event, LossReason, State};
use breakbulk_proto::{Message, SendError};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::line::{Line, SOON, live, next, pick, seqs, state};
use super::{CHAT, TERMINAL, turn};

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

/// Eight prompts over links that break, and actions beside them. How many links broke, and how many prompts replays showed.
async fn survive(seed: u64) -> (usize, usize) {
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
    let replayed = line.host.lock().replayed_own;
    (line.dials() - 1, replayed)
}

#[tokio::test(start_paused = true)]
async fn every_prompt_reaches_the_host_once_and_in_order_over_seeded_drops() {
    let (mut drops, mut replayed) = (0, 0);
    for seed in 0..100 {
        let (broken, shown) = survive(seed).await;
        (drops, replayed) = (drops + broken, replayed + shown);
    }
    println!("{drops} drops, {replayed} prompts shown by replays");
    assert!(drops >= 200 && replayed >= 20, "{drops}, {replayed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn prompts_survive_on_many_threads_too() {
    let runs: Vec<_> = (1000..1020).map(|seed| tokio::spawn(survive(seed))).collect();
    for run in runs {
        run.await.unwrap();
    }
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

#[tokio::test(start_paused = true)]
async fn what_is_sent_again_goes_before_what_was_asked_later() {
    let line = Line::default();
    let (client, _events) = line.client(&[CHAT]);
    live(&client).await;
    line.host.set(|knobs| knobs.close_on_dispatch = Some(1001));
    for n in 0..4 {
        client.dispatch(CHAT, turn(&n.to_string(), 3 << 20)).await.unwrap();
    }
    state(&client, |state| *state != State::Live).await;
    line.host.set(|knobs| knobs.close_on_dispatch = None);
    line.host.lock().heard.clear();
    client.request("echo", "{}").await.unwrap();
    let heard: Vec<_> = line.host.lock().heard.iter().map(|(method, _)| method.clone()).collect();
    assert_eq!(heard, ["reconnect", "dispatchAction", "dispatchAction", "dispatchAction", "dispatchAction", "echo"]);
}

/// A prompt leaves, the host hides what it did with it, and the link is cut.
async fn in_doubt(line: &Line, client: &Client, is_taken: bool) {
    live(client).await;
    line.host.set(|knobs| {
        knobs.mute = true;
        knobs.close_on_dispatch = (!is_taken).then_some(1001);
    });
    assert_eq!(client.dispatch(CHAT, turn("doubt", 10)).await, Ok(1));
    line.host.hears("dispatchAction").await;
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
    assert_eq!((lost.client_seq, lost.why, lost.action), (1, LossReason::Unknown, turn("doubt", 10)));
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
async fn an_action_that_is_too_large_is_reported_and_does_not_come_again() {
    let line = Line::default();
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    client.dispatch(CHAT, turn("too large", 40 << 20)).await.unwrap();
    client.dispatch(CHAT, turn("small", 10)).await.unwrap();
    let lost = pick(&mut events, |event| if let Event::Lost(lost) = event { Some(lost) } else { None }).await;
    assert!(
        lost.client_seq == 1 && matches!(lost.why, LossReason::Unsendable(SendError::TooLarge(_))),
        "{:?}",
        lost.why
    );
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
    assert_eq!((lost.client_seq, lost.why), (1, LossReason::TooBigForHost));
    live(&client).await;
    assert_eq!(line.host.counts()["dispatchAction"], 3);
}

/// What the host has heard, in order: methods, and types of actions.
fn heard(line: &Line) -> Vec<String> {
    let name = |(method, params): &(String, Value)| params["action"]["type"].as_str().unwrap_or(method).to_owned();
    line.host.lock().heard.iter().map(name).filter(|name| name != "initialize").collect()
}

#[tokio::test(start_paused = true)]
async fn a_cancel_answers_and_what_is_typed_pass_a_slow_upload_and_a_prompt_does_not() {
    let line = Line { rate: Some(1_000_000), ..Line::default() };
    let (client, mut events) = line.client(&[CHAT]);
    live(&client).await;
    let upload = format!(r#"{{"uri":"file:///a","data":"{}"}}"#, "x".repeat(15_000_000));
    let writing = {
        let client = client.clone();
        tokio::spawn(async move { client.request("echo", upload).await })
    };
    tokio::task::yield_now().await;
    let began = Instant::now();
    client.dispatch(TERMINAL, json!({ "type": "terminal/input", "data": "ls" }).to_string()).await.unwrap();
    client.dispatch(CHAT, json!({ "type": "chat/turnCancelled", "turnId": "t0" }).to_string()).await.unwrap();
    client.dispatch(CHAT, turn("t1", 10)).await.unwrap();
    // It must not pass the turn before it.
    client.dispatch(CHAT, json!({ "type": "chat/turnCancelled", "turnId": "t1" }).to_string()).await.unwrap();
    assert_eq!(client.request_free("echo", r#"{"free":1}"#).await, Ok(Message::from(r#"{"free":1}"#)));
    assert!(client.request("ping", "{}").await.is_err(), "the host knows no ping");
    client.dispatch_free(TERMINAL, json!({ "type": "terminal/input", "data": "^C" }).to_string()).await.unwrap();
    line.host.send(&json!({ "jsonrpc": "2.0", "id": "q", "method": "resourceRead", "params": {} }));
    let answer = pick(&mut events, |event| match event {
        Event::Request { responder, .. } => Some(responder),
        _ => None,
    });
    answer.await.respond("{}").await.unwrap();
    line.host.until(|state| state.answers.len() == 1).await;
    // The upload takes 20 s at this rate.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    line.host.until(|state| state.heard.len() == 9).await;
    assert!(began.elapsed() > Duration::from_secs(19));
    let first = ["terminal/input", "chat/turnCancelled", "echo", "ping", "terminal/input"];
    let rest = ["echo", "chat/turnStarted", "chat/turnCancelled"];
    assert_eq!(heard(&line), [&first[..], &rest[..]].concat());
    assert!(writing.await.unwrap().is_ok());
}
