//! How fast v2 events are made, followed, written and read, on one core: medians of rounds.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ahp_types::actions::StateAction;
use breakbulk_lifecycle::projection::{Change, Entry, Projection};
use breakbulk_lifecycle::v2::wire::Event;
use breakbulk_lifecycle::v2::{Config, Model, Projector};
use serde_json::{Value, json};

const CHAT: &str = "ahp-chat:/6c1b2b1e-0d5e-4f6a-9d55-3f0f3b0e5c11";
const SESSION: &str = "ahp-session:/0e5c116c-1b2b-4e0d-8e5f-6a9d553f0f3b";
const TURN: &str = "5d5a7ef2-88f4-4f6b-9b3c-2a6f0a1d9c77";

/// Deltas of a message, and messages of a turn.
const DELTAS: usize = 2_000;
const MESSAGES: usize = 100;
const ROUNDS: usize = 9;

fn main() {
    let log = log();
    let mut events = Vec::new();
    let mut projector = begun();
    log.iter().for_each(|entry| projector.apply(entry.clone(), &mut events));
    println!("{} entries, {} events, deltas of 12 bytes in {MESSAGES} messages", log.len(), events.len());
    row("projector", events.len(), || {
        let mut projector = begun();
        let mut out = Vec::with_capacity(16);
        timed(&log, |entry| {
            projector.apply(entry, &mut out);
            black_box(&out);
            out.clear();
        })
    });
    row("model", events.len(), || {
        let mut model = Model::new("s");
        let start = Instant::now();
        events.iter().for_each(|event| assert!(model.apply(event)));
        let time = start.elapsed();
        black_box(model.state().messages.len());
        time
    });
    row("projector and model", events.len(), || {
        let (mut projector, mut model) = (begun(), Model::new("s"));
        let mut out = Vec::with_capacity(16);
        timed(&log, |entry| {
            projector.apply(entry, &mut out);
            out.drain(..).for_each(|event| assert!(model.apply(&event)));
        })
    });
    row("written as JSON", events.len(), || {
        let mut text = Vec::with_capacity(1 << 10);
        let start = Instant::now();
        for event in &events {
            text.clear();
            serde_json::to_writer(&mut text, event).unwrap();
            black_box(&text);
        }
        start.elapsed()
    });
    let texts: Vec<String> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    row("read from JSON", events.len(), || {
        let start = Instant::now();
        for text in &texts {
            black_box(serde_json::from_str::<Event>(text).unwrap());
        }
        start.elapsed()
    });
}

/// How long this takes for all entries. They are copied a few at a time: an entry that was just read is in the cache.
fn timed(log: &[Entry], mut take: impl FnMut(Entry)) -> Duration {
    let mut time = Duration::ZERO;
    for some in log.chunks(256) {
        let entries = some.to_vec();
        let start = Instant::now();
        entries.into_iter().for_each(&mut take);
        time += start.elapsed();
    }
    time
}

fn row(name: &str, count: usize, mut round: impl FnMut() -> Duration) {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    times.sort();
    let median = times[ROUNDS / 2].as_secs_f64();
    println!("{name:<22}{:>8.2} million events a second", count as f64 / median / 1e6);
}

/// A projector in the middle of a session.
fn begun() -> Projector {
    let mut projector = Projector::new(Config::new("s", SESSION, CHAT));
    let turn = json!({"type": "chat/turnStarted", "turnId": TURN, "startedAt": "2026-01-01T00:00:00Z",
        "message": {"text": "p", "origin": {"kind": "user"}}});
    projector.apply(entry(1, turn), &mut Vec::new());
    projector
}

fn log() -> Vec<Entry> {
    let mut log = Vec::new();
    for message in 0..MESSAGES {
        let name = format!("msg_01XFDUDYJgAACzvnptvVoYEL{message}");
        let part = format!("{name}/{message}");
        let mark = |ended: &str| {
            json!({"type": "chat/delta", "turnId": TURN, "partId": part, "content": "",
                "_meta": {"breakbulk": {"message": name, "ended": ended}}})
        };
        let begun = json!({"type": "chat/responsePart", "turnId": TURN, "part": {"kind": "markdown", "id": part,
            "content": ""}, "_meta": {"breakbulk": {"message": name}}});
        let delta = json!({"type": "chat/delta", "turnId": TURN, "partId": part, "content": "twelve bytes"});
        let deltas = std::iter::repeat_n(delta, DELTAS);
        for action in std::iter::once(begun).chain(deltas).chain([mark("block"), mark("message")]) {
            log.push(entry(log.len() as u64 + 2, action));
        }
    }
    log
}

fn entry(seq: u64, action: Value) -> Entry {
    let action: StateAction = serde_json::from_value(action).unwrap();
    let change = Change::Action(Box::new(action));
    Entry { seq, at_ms: 1_700_000_000_000 + seq, channel: Arc::from(CHAT), change }
}
