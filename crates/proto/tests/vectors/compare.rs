//! Holds what happened against what a case expects.

use std::collections::BTreeMap;
use std::fmt::Debug;

use breakbulk_proto::ahp::Chunking;
use breakbulk_proto::json::Found;
use breakbulk_proto::{Kind, Message, Meta, Progress, Subject};
use serde::Deserialize;
use serde_json::{Value, json};

use super::drive::Driver;
use super::expect::{Expect, FramesLike};
use super::record::Arrived;
use super::step::MetaSpec;
use super::text::{Text, shown};
use super::wire;

/// Everything in which a driver's record differs from what was expected; empty when nothing does.
pub(super) fn differences(driver: &mut Driver<'_>, expect: &Expect) -> Vec<String> {
    let mut found = driver.promises.broken();
    let mut differ = |what: &str, got: String, want: String| {
        if got != want {
            found.push(format!("{what}: got {got}, want {want}"));
        }
    };
    let record = &driver.record;
    let messages: Vec<Text> = record.messages.iter().map(|message| Text(message.bytes.clone())).collect();
    match expect.message_count {
        Some(count) => differ("message_count", debug(&messages.len()), debug(&count)),
        None => differ("messages", list(&messages), list(&expect.messages)),
    }
    let failed: Vec<_> = record.failed.iter().map(|(n, error, reply)| (*n, error.name(), text(reply))).collect();
    let want = expect.failed.iter().map(|f| (f.ticket, f.error.as_str(), f.reply.clone())).collect::<Vec<_>>();
    differ("failed", debug(&failed), debug(&want));
    let refused: Vec<_> = record.refused.iter().map(|(n, why, reply)| (*n, why.name(), text(reply))).collect();
    let want = expect.refused.iter().map(|f| (f.ordinal, f.violation.as_str(), f.reply.clone())).collect::<Vec<_>>();
    differ("refused", debug(&refused), debug(&want));
    differ("expired", debug(&record.expired), debug(&expect.expired));
    let lines: Vec<Text> = record.lines.iter().map(|line| Text(line.to_vec())).collect();
    differ("lines", list(&lines), list(&expect.lines));
    let closed = record.closed.as_ref().map(|reason| (reason.name().to_owned(), reason.code()));
    differ("closed", debug(&closed), debug(&expect.closed));
    if let Some(because) = &expect.because {
        differ("because", record.closed.as_ref().map(ToString::to_string).unwrap_or_default(), because.clone());
    }
    if let Some(like) = &expect.frames_like {
        found.extend(unlike(driver, like));
    } else {
        let frames: Vec<Text> = record.frames.iter().map(|frame| Text(frame.to_vec())).collect();
        differ("frames", list(&frames), list(&expect.frames));
    }
    found.extend(driver.record.messages.iter().flat_map(misread));
    found.extend(uncounted(driver));
    found.extend(mentioned(driver, expect));
    found
}

/// Messages up to this size are parsed once more, to hold their envelopes against them.
const PARSED: usize = 1 << 20;

/// In what the envelope of a message differs from what a parser makes of its text. What no parser here takes, such as deep
/// nesting, is left out; so is a channel or a seq that only some dialects look for, where the envelope has none.
fn misread(arrived: &Arrived) -> Vec<String> {
    let Arrived { bytes, envelope, .. } = arrived;
    let parsed = if bytes.len() <= PARSED { serde_json::from_slice::<Value>(bytes).ok() } else { None };
    let Some(text) = parsed.filter(|_| envelope.is_final()) else { return Vec::new() };
    let message = Message::from(bytes.clone());
    let found = |found: Option<Found>| {
        found.map(|found| serde_json::from_slice::<Value>(&message.read(found.span)).expect("a value"))
    };
    let there = |key: &str| text.get(key).filter(|value| !value.is_null()).cloned();
    let has_id = text.get("id").is_some_and(|id| id.is_string() || id.is_number());
    let has_outcome = text.get("result").is_some() || there("error").is_some();
    let kind = match (text["method"].is_string(), has_id) {
        (true, true) => Kind::Request,
        (true, false) => Kind::Notification,
        (false, _) if has_outcome && text.get("id").is_some() => Kind::Response,
        (false, _) => Kind::Other,
    };
    let action = &text["params"];
    // Of a key that comes twice in params, the application decides which one counts.
    let is_repeated = serde_json::from_slice::<Channelled>(bytes).is_err();
    let channel = envelope.channel(&message).filter(|_| !is_repeated).map(|channel| Value::from(channel.as_ref()));
    let origin = envelope.origin(&message).map(|(client, seq)| json!({ "clientId": client, "clientSeq": seq }));
    [
        ("kind", debug(&envelope.kind()), debug(&kind)),
        ("method", debug(&envelope.method(&message).as_deref()), debug(&text["method"].as_str())),
        ("id", debug(&found(envelope.id_value())), debug(&text.get("id").cloned())),
        ("params", debug(&found(envelope.params())), debug(&there("params"))),
        ("error", debug(&found(envelope.error())), debug(&there("error"))),
        ("channel", debug(&channel), debug(&channel.as_ref().map(|_| action["channel"].clone()))),
        ("seq", debug(&envelope.seq()), debug(&envelope.seq().and_then(|_| integral(&action["serverSeq"])))),
        ("origin", debug(&origin), debug(&origin.as_ref().map(|_| action["origin"].clone()))),
    ]
    .into_iter()
    .filter(|(_, got, want)| got != want)
    .map(|(what, got, want)| format!("envelope of message {}: {what} is {got}, want {want}", arrived.ordinal))
    .collect()
}

/// A message with params. Does not parse where the channel comes twice.
#[derive(Deserialize)]
struct Channelled {
    #[serde(default, rename = "params")]
    _params: Option<ChannelledParams>,
}

#[derive(Deserialize)]
struct ChannelledParams {
    #[serde(default, rename = "channel")]
    _channel: Value,
}

/// A number that is an integer, however it is spelled: `7`, `7.0`, `70e-1`.
fn integral(value: &Value) -> Option<u64> {
    let parsed = value.as_f64().filter(|number| number.fract() == 0.0).map(|number| format!("{number}"));
    value.as_u64().or_else(|| parsed?.parse().ok())
}

/// What is compared only where a case mentions it.
fn mentioned(driver: &mut Driver<'_>, expect: &Expect) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, got: String, want: Option<String>| {
        if let Some(want) = want.filter(|want| *want != got) {
            found.push(format!("{what}: got {got}, want {want}"));
        }
    };
    let record = &driver.record;
    let ordinals: Vec<u64> = record.messages.iter().map(|message| message.ordinal).collect();
    differ("ordinals", debug(&ordinals), expect.ordinals.as_ref().map(debug));
    let metas: Vec<MetaSpec> = record.messages.iter().map(|message| spec(&message.meta)).collect();
    differ("metas", debug(&metas), expect.metas.as_ref().map(debug));
    let metas: Vec<MetaSpec> = record.frame_metas.iter().map(spec).collect();
    differ("frame_metas", debug(&metas), expect.frame_metas.as_ref().map(debug));
    differ("sent", debug(&record.sent), expect.sent.as_ref().map(debug));
    let progress: Vec<String> = record.progress.iter().map(told).collect();
    differ("progress", debug(&progress), expect.progress.as_ref().map(debug));
    let machine = driver.built.machine();
    let counters: BTreeMap<String, u64> = machine.counters().iter().map(|(name, n)| (name.to_owned(), n)).collect();
    differ("counters", debug(&counters), expect.counters.as_ref().map(debug));
    let timeout = machine.poll_timeout().map(|due| due.saturating_duration_since(driver.now).as_millis() as u64);
    differ("timeout", debug(&timeout), expect.timeout.as_ref().map(debug));
    let stopped = !machine.wants_frames();
    differ("stopped", debug(&stopped), Some(debug(&expect.stopped)));
    differ("held", debug(&driver.budget.held()), expect.held.as_ref().map(debug));
    if let Some(connection) = driver.built.ahp() {
        differ("settled", debug(&connection.settled()), expect.settled.as_ref().map(debug));
        differ("cursor", debug(&connection.cursor()), expect.cursor.as_ref().map(debug));
        let peer = expect.peer.map(|peer| peer.map(Chunking::from));
        differ("peer", debug(&connection.peer()), peer.as_ref().map(debug));
    }
    found
}

/// What was promised of the frames and is not so.
fn unlike(driver: &Driver<'_>, like: &FramesLike) -> Vec<String> {
    let FramesLike { count, longest, at_most, messages, trace, contain } = like;
    let frames = &driver.record.frames;
    let mut found = Vec::new();
    let mut differ = |what: &str, got: String, want: Option<String>| {
        if let Some(want) = want.filter(|want| *want != got) {
            found.push(format!("frames' {what}: got {got}, want {want}"));
        }
    };
    let most = frames.iter().map(|frame| frame.len()).max().unwrap_or(0);
    differ("count", debug(&frames.len()), count.as_ref().map(debug));
    differ("longest", debug(&most), longest.as_ref().map(debug));
    differ("at_most", debug(&at_most.map_or(most, |limit| most.max(limit))), at_most.as_ref().map(debug));
    let carried = || match wire::messages(driver.dialect, frames) {
        Ok(messages) => list(&messages.into_iter().map(Text).collect::<Vec<_>>()),
        Err(how) => how,
    };
    differ("messages", messages.as_ref().map(|_| carried()).unwrap_or_default(), messages.as_deref().map(list));
    let traced = || debug(&wire::trace(driver.dialect, &driver.sends, frames));
    differ("trace", trace.as_ref().map(|_| traced()).unwrap_or_default(), trace.as_ref().map(debug));
    if let Some(text) = contain {
        let has = |frame: &bytes::Bytes| frame.windows(text.0.len().max(1)).any(|window| window == text.0);
        differ("contain", debug(&frames.iter().all(has)), Some(debug(&true)));
    }
    found
}

/// Reasons that were told to the application and not counted.
fn uncounted(driver: &mut Driver<'_>) -> Vec<String> {
    let record = &driver.record;
    let failed = record.failed.iter().map(|(_, error, _)| error.name());
    let refused = record.refused.iter().map(|(_, violation, _)| violation.name());
    let closed = record.closed.iter().map(|reason| reason.name());
    let names: Vec<&str> = failed.chain(refused).chain(closed).collect();
    let counters = driver.built.machine().counters();
    let missing = names.into_iter().filter(|name| counters.count(name) == 0);
    missing.map(|name| format!("{name} happened and is not counted")).collect()
}

fn told(progress: &Progress) -> String {
    let Progress { subject, done, total } = progress;
    match subject {
        Subject::Outgoing(ticket) => format!("our {}: {done} of {total}", ticket.0),
        Subject::Incoming(ordinal) => format!("their {ordinal}: {done} of {total}"),
    }
}

fn spec(meta: &Meta) -> MetaSpec {
    let text = |field: &Option<std::sync::Arc<str>>| field.as_deref().map(str::to_owned);
    MetaSpec {
        peer: text(&meta.peer),
        id: text(&meta.id),
        about: text(&meta.about),
        supports_parts: meta.supports_parts,
    }
}

fn text(bytes: &Option<Vec<u8>>) -> Option<Text> {
    bytes.clone().map(Text)
}

/// A list of texts: short to read, and different for different bytes.
fn list(texts: &[Text]) -> String {
    let one = |text: &Text| {
        let hash = if text.0.len() > 300 { wire::sha256(&text.0) } else { String::new() };
        format!("{}{hash}", shown(&text.0))
    };
    format!("[{}]", texts.iter().map(one).collect::<Vec<_>>().join(" | "))
}

fn debug(value: &impl Debug) -> String {
    format!("{value:?}")
}
