//! Merges deltas of one part that follow each other, for a client that accepts a delay.
//!
//! Only deltas that follow each other directly in the order of the whole connection are merged. If a later action of another
//! channel overtook a delayed delta, a client that resumes from the highest seq it saw would lose the delta.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Duration, Instant};

use super::wire;
use crate::log::{Entry, Seq};

/// Longer bodies are sent at once: merging them gains nothing.
const MAX_BODY: usize = 16 << 10;
/// The longest merged text.
const MAX_TEXT: usize = 64 << 10;

/// A delta that is delayed so that later ones can be merged into it. A connection has at most one.
#[derive(Debug)]
pub(super) struct DelayedDelta {
    channel: Arc<str>,
    /// The seq of the last delta in it.
    seq: Seq,
    delta: DeltaText,
    due: Instant,
    /// The body as the log has it, while nothing was merged.
    only: Option<Bytes>,
    /// Bytes of all their bodies. The merged body is no longer than that.
    bytes: u64,
}

/// A delta: its text, and the rest of the action.
#[derive(Debug, PartialEq)]
struct DeltaText {
    /// The member that holds the text.
    field: &'static str,
    text: String,
    /// All other members of the action.
    rest: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
struct DeltaBody<'a> {
    channel: std::borrow::Cow<'a, str>,
    action: Map<String, Value>,
    #[serde(default, skip_serializing)]
    origin: Option<serde::de::IgnoredAny>,
}

impl DelayedDelta {
    /// Delays an entry for at most `latency`; `None` if it is no delta.
    pub(super) fn new(entry: &Entry, latency: Duration) -> Option<Self> {
        let delta = DeltaText::read(&entry.body)?;
        let (due, only) = (Instant::now() + latency, Some(entry.body.clone()));
        let bytes = u64::try_from(entry.body.len()).unwrap_or(u64::MAX);
        Some(Self { channel: entry.channel.clone(), seq: entry.seq, delta, due, only, bytes })
    }

    /// Merges a later delta into this one. Returns it if they cannot be merged, or would be more than `most` bytes on the wire.
    pub(super) fn merge(&mut self, later: Self, most: u64) -> Option<Self> {
        let bytes = self.bytes.saturating_add(later.bytes);
        let (mine, its) = (&mut self.delta, &later.delta);
        let same = self.channel == later.channel && mine.field == its.field && mine.rest == its.rest;
        let is_much = mine.text.len().saturating_add(its.text.len()) > MAX_TEXT;
        if !same || is_much || bytes.saturating_add(wire::ENVELOPE) > most {
            return Some(later);
        }
        mine.text.push_str(&its.text);
        (self.seq, self.only, self.bytes) = (later.seq, None, bytes);
        None
    }

    /// When it has to be sent.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// The seq of the last delta, and a body with the effect of all of them.
    pub(super) fn into_entry(self) -> (Seq, Bytes) {
        let Self { channel, seq, delta, only, .. } = self;
        let merged = || {
            let mut action = delta.rest;
            action.insert(delta.field.to_owned(), Value::String(delta.text));
            let body = DeltaBody { channel: std::borrow::Cow::Borrowed(&channel), action, origin: None };
            // A map of strings and values always has a JSON.
            serde_json::to_vec(&body).unwrap_or_default().into()
        };
        (seq, only.unwrap_or_else(merged))
    }
}

impl DeltaText {
    fn read(body: &[u8]) -> Option<Self> {
        if body.len() > MAX_BODY {
            return None;
        }
        let body: DeltaBody<'_> = serde_json::from_slice(body).ok()?;
        // The client that dispatched it waits for exactly this action.
        if body.origin.is_some() {
            return None;
        }
        let mut rest = body.action;
        let field = match rest.get("type")?.as_str()? {
            "chat/delta" | "chat/reasoning" => "content",
            "terminal/data" => "data",
            _ => return None,
        };
        match rest.remove(field)? {
            Value::String(text) => Some(Self { field, text, rest }),
            _ => None,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;
    use serde_json::json;

    fn delayed(seq: Seq, channel: &str, action: Value) -> Option<DelayedDelta> {
        let body = json!({"channel": channel, "action": action}).to_string().into();
        DelayedDelta::new(&Entry::new(seq, 0, channel.into(), body), Duration::from_millis(5))
    }

    fn delta(seq: Seq, part: &str, text: &str) -> DelayedDelta {
        delayed(seq, "c", json!({"type": "chat/delta", "turnId": "t", "partId": part, "content": text})).unwrap()
    }

    #[tokio::test]
    async fn deltas_of_one_part_become_one_with_the_seq_of_the_last() {
        let mut first = delta(4, "p", "a\"");
        assert!(first.merge(delta(6, "p", "é"), u64::MAX).is_none());
        let (seq, body) = first.into_entry();
        let action = json!({"type": "chat/delta", "turnId": "t", "partId": "p", "content": "a\"é"});
        assert_eq!(seq, 6);
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({"channel": "c", "action": action}));
    }

    #[tokio::test]
    async fn what_differs_in_anything_but_its_text_stays_apart() {
        let others = [
            delayed(6, "d", json!({"type": "chat/delta", "turnId": "t", "partId": "p", "content": "x"})),
            delayed(6, "c", json!({"type": "chat/reasoning", "turnId": "t", "partId": "p", "content": "x"})),
            delayed(6, "c", json!({"type": "chat/delta", "turnId": "t", "partId": "p", "content": "x", "_meta": {}})),
            delayed(6, "c", json!({"type": "terminal/data", "data": "x"})),
            Some(delta(6, "q", "x")),
        ];
        for other in others {
            assert!(delta(4, "p", "a").merge(other.unwrap(), u64::MAX).is_some());
        }
        assert!(delta(4, "p", &"a".repeat(MAX_BODY / 2)).merge(delta(6, "p", "b"), u64::MAX).is_none());
    }

    #[tokio::test]
    async fn what_is_no_delta_or_has_an_origin_does_not_wait() {
        assert!(delayed(1, "c", json!({"type": "chat/turnComplete", "turnId": "t"})).is_none());
        assert!(delayed(1, "c", json!({"type": "terminal/data", "data": "x".repeat(MAX_BODY)})).is_none());
        let body = json!({"channel": "c", "action": {"type": "terminal/data", "data": "x"}, "origin": {}});
        assert!(DeltaText::read(body.to_string().as_bytes()).is_none());
    }

    #[tokio::test]
    async fn one_that_stays_alone_is_sent_as_the_log_has_it() {
        let body = Bytes::from_static(br#"{"channel":"c","action":{"type":"terminal/data","data":"x"}}"#);
        let entry = Entry::new(1, 0, "c".into(), body);
        let delayed = DelayedDelta::new(&entry, Duration::ZERO).unwrap();
        assert_eq!(delayed.into_entry().1.as_ptr(), entry.body.as_ptr());
    }
}
