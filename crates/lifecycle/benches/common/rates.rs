//! How many events a second are made and followed on one core: from an agent's lines, and from there to a v2 client's state.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1::SessionUpdate;
use ahp_types::actions::StateAction;
use breakbulk_lifecycle::projection::{Change, Entry, Projection};
use breakbulk_lifecycle::v2::wire::Event;
use breakbulk_lifecycle::v2::{Config, Model, Projector};
use breakbulk_lifecycle::{acp, claude};
use serde_json::{Value, json};

const CHAT: &str = "ahp-chat:/6c1b2b1e-0d5e-4f6a-9d55-3f0f3b0e5c11";
const SESSION: &str = "ahp-session:/0e5c116c-1b2b-4e0d-8e5f-6a9d553f0f3b";
const TURN: &str = "5d5a7ef2-88f4-4f6b-9b3c-2a6f0a1d9c77";

/// Deltas of a message, and messages of a turn.
const DELTAS: usize = 2_000;
const MESSAGES: usize = 100;
const ROUNDS: usize = 9;

/// What is measured, and how many events it handled in a second, as a median of rounds.
pub(crate) type Rate = (&'static str, f64);

/// The translators of agents' lines.
pub(crate) fn translators() -> [Rate; 2] {
    let lines = claude_lines();
    let count = lines.len();
    let claude = rate(count, || {
        let mut conversation = claude::Conversation::new("c", claude::Limits::default());
        conversation.send(claude::Prompt::text(TURN, "6f1f9c0e-0b1b-4c8e-9a51-2f0f3b0e5c22", "Go on"));
        time(|| {
            for line in &lines {
                black_box(conversation.receive(line.as_bytes()));
                while let Some(event) = conversation.poll_event() {
                    black_box(event);
                }
            }
        })
    });
    let updates = acp_updates();
    let acp = rate(updates.len(), || {
        let mut translator = acp::Translator::new(acp::Limits::default());
        translator.begin(TURN.into());
        time(|| {
            for update in &updates {
                translator.update(serde_json::from_str::<SessionUpdate>(update).unwrap());
                while let Some(event) = translator.poll_event() {
                    black_box(event);
                }
            }
        })
    });
    [("translator, Claude's lines", claude), ("translator, updates of ACP", acp)]
}

/// The way from logged actions to the state of a v2 client.
pub(crate) fn v2() -> [Rate; 5] {
    let log = log();
    let mut events = Vec::new();
    let mut projector = begun();
    log.iter().for_each(|entry| projector.apply(entry.clone(), &mut events));
    let count = events.len();
    let projected = rate(count, || {
        let (mut projector, mut out) = (begun(), Vec::with_capacity(16));
        each(&log, |entry| {
            projector.apply(entry, &mut out);
            black_box(&out);
            out.clear();
        })
    });
    let followed = rate(count, || {
        let mut model = Model::new("s");
        let took = time(|| events.iter().for_each(|event| assert!(model.apply(event))));
        black_box(model.state().messages.len());
        took
    });
    let both = rate(count, || {
        let (mut projector, mut model, mut out) = (begun(), Model::new("s"), Vec::with_capacity(16));
        each(&log, |entry| {
            projector.apply(entry, &mut out);
            out.drain(..).for_each(|event| assert!(model.apply(&event)));
        })
    });
    let written = rate(count, || {
        let mut text = Vec::with_capacity(1 << 10);
        time(|| {
            for event in &events {
                text.clear();
                serde_json::to_writer(&mut text, event).unwrap();
                black_box(&text);
            }
        })
    });
    let texts: Vec<String> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    let read = rate(count, || {
        time(|| texts.iter().for_each(|text| drop(black_box(serde_json::from_str::<Event>(text).unwrap()))))
    });
    [
        ("v2 projector", projected),
        ("v2 model", followed),
        ("v2 projector and model", both),
        ("v2 events written as JSON", written),
        ("v2 events read from JSON", read),
    ]
}

fn rate(count: usize, mut round: impl FnMut() -> Duration) -> f64 {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    times.sort();
    count as f64 / times[ROUNDS / 2].as_secs_f64()
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// How long this takes for all entries. They are copied a few at a time: an entry that was just read is in the cache.
fn each(log: &[Entry], mut take: impl FnMut(Entry)) -> Duration {
    let mut took = Duration::ZERO;
    for some in log.chunks(256) {
        let entries = some.to_vec();
        took += time(|| entries.into_iter().for_each(&mut take));
    }
    took
}

/// What the Claude Code program writes while it streams text.
fn claude_lines() -> Vec<String> {
    let event = |event: Value| {
        json!({"type": "stream_event", "event": event, "session_id": SESSION, "parent_tool_use_id": null,
            "uuid": "6f1f9c0e-0b1b-4c8e-9a51-2f0f3b0e5c22"})
        .to_string()
    };
    let delta = event(json!({"type": "content_block_delta", "index": 0,
        "delta": {"type": "text_delta", "text": "twelve bytes"}}));
    let mut lines = Vec::new();
    for message in 0..MESSAGES {
        let message = json!({"id": format!("msg_{message}"), "role": "assistant", "content": []});
        lines.push(event(json!({"type": "message_start", "message": message})));
        let block = json!({"type": "text", "text": ""});
        lines.push(event(json!({"type": "content_block_start", "index": 0, "content_block": block})));
        lines.extend(std::iter::repeat_n(delta.clone(), DELTAS));
        lines.push(event(json!({"type": "content_block_stop", "index": 0})));
        lines.push(event(json!({"type": "message_stop"})));
    }
    lines
}

/// What an ACP agent writes while it streams text.
fn acp_updates() -> Vec<String> {
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "twelve bytes"}});
    vec![update.to_string(); DELTAS * MESSAGES]
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
