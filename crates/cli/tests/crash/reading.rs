//! What is read of a log: entries as `breakbulk log export` prints them and as the wire carries them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::ledger::Line;

/// An action in the log.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) seq: u64,
    pub(crate) channel: String,
    /// Of all of it.
    pub(crate) digest: u64,
    /// If a client dispatched it.
    pub(crate) line: Option<Line>,
    /// What it says of a turn.
    pub(crate) turn: Option<Turn>,
}

/// The beginning or the end of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    Started(String),
    Ended {
        id: String,
        /// The type of the error with which it ended.
        error: Option<String>,
    },
}

#[derive(Deserialize)]
struct Body {
    channel: Option<String>,
    action: Option<Action>,
    origin: Option<Origin>,
    #[serde(rename = "rejectionReason")]
    rejection: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Origin {
    client_id: String,
    client_seq: u64,
}

/// Of all actions, what this test looks at.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Action {
    #[serde(rename = "type")]
    kind: String,
    turn_id: Option<String>,
    annotation: Option<Annotation>,
    draft: Option<Text>,
    message: Option<Text>,
    part: Option<Part>,
}

#[derive(Deserialize)]
struct Annotation {
    entries: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
}

#[derive(Deserialize)]
struct Part {
    error: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    error_type: String,
}

impl Entry {
    /// An entry by its body; `None` if it is no action.
    pub(crate) fn of_body(seq: u64, body: &str) -> Option<Self> {
        Self::read(seq, body, body.strip_prefix('{').expect("an object"))
    }

    /// An action by its envelope, which is a body with the seq before it. An error if it was refused.
    pub(crate) fn of_envelope(seq: u64, envelope: &str) -> Result<Self, String> {
        let body: Body = serde_json::from_str(envelope).map_err(|error| format!("{error} in {envelope:.200}"))?;
        if let Some(reason) = body.rejection {
            return Err(format!("refused: {reason}: {envelope:.200}"));
        }
        let front = format!("{{\"serverSeq\":{seq},");
        let rest = envelope.strip_prefix(&front).ok_or_else(|| format!("no seq {seq} first in {envelope:.200}"))?;
        Self::read(seq, envelope, rest).ok_or_else(|| format!("no action: {envelope:.200}"))
    }

    fn read(seq: u64, text: &str, rest: &str) -> Option<Self> {
        let Body { channel, action, origin, .. } = serde_json::from_str(text).expect(text);
        let (channel, action) = (channel?, action?);
        let name = origin.map(|origin| (origin.client_id, origin.client_seq));
        let line = name.map(|name| Line { seq, name, digest: action.text().map_or(0, digest) });
        Some(Self { seq, channel, digest: digest(rest), line, turn: action.turn() })
    }
}

impl Action {
    fn text(&self) -> Option<&str> {
        let annotated = self.annotation.as_ref().and_then(|annotation| annotation.entries.first());
        annotated.or(self.draft.as_ref()).or(self.message.as_ref()).map(|text| text.text.as_str())
    }

    fn turn(self) -> Option<Turn> {
        let id = self.turn_id?;
        match self.kind.as_str() {
            "chat/turnStarted" => Some(Turn::Started(id)),
            "chat/turnComplete" | "chat/turnCancelled" => Some(Turn::Ended { id, error: None }),
            "chat/error" => Some(Turn::Ended { id, error: Some(self.part?.error?.error_type) }),
            _ => None,
        }
    }
}

/// A digest that holds within one run.
pub(crate) fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// All of a log.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) last: u64,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct ExportLine<'a> {
    log: Option<String>,
    last: Option<u64>,
    seq: Option<u64>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

impl Reading {
    /// What `breakbulk log export` printed.
    pub(crate) fn of_export(text: &str) -> Self {
        let mut reading = Self::default();
        for line in text.lines() {
            let line: ExportLine = serde_json::from_str(line).expect(line);
            if line.log.is_some() {
                reading.last = line.last.expect("the last seq");
            }
            if let (Some(seq), Some(body)) = (line.seq, line.body) {
                reading.add(seq, body.get());
            }
        }
        reading
    }

    /// Adds an entry of the log, if clients see it.
    pub(crate) fn add(&mut self, seq: u64, body: &str) {
        self.entries.extend(Entry::of_body(seq, body));
    }

    /// Clients' actions.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.entries.iter().filter_map(|entry| entry.line.clone()).collect()
    }

    /// The turn that was open behind this seq, and with which error it ended since, if it did.
    pub(crate) fn open_turn(&self, behind: u64) -> Option<(String, Option<Option<String>>)> {
        let mut open: Option<String> = None;
        for entry in &self.entries {
            match (&entry.turn, &open) {
                (Some(Turn::Started(id)), None) if entry.seq <= behind => open = Some(id.clone()),
                (Some(Turn::Ended { id, .. }), Some(now)) if id == now && entry.seq <= behind => open = None,
                (Some(Turn::Ended { id, error }), Some(now)) if id == now => {
                    return Some((id.clone(), Some(error.clone())));
                }
                _ => {}
            }
        }
        open.map(|id| (id, None))
    }
}

/// What one client was shown, over all its connections.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    /// What its first snapshots held.
    from: HashMap<String, u64>,
    shown: BTreeMap<String, Vec<(u64, u64)>>,
}

impl Trail {
    /// A channel begins with a snapshot; a second one says that something was not replayed.
    pub(crate) fn snapshot(&mut self, channel: &str, seq: u64) -> Result<(), String> {
        match self.from.insert(channel.to_owned(), seq) {
            None => Ok(()),
            Some(before) => Err(format!("{channel} has a snapshot as of {seq} after one as of {before}")),
        }
    }

    /// The next that is shown.
    pub(crate) fn action(&mut self, entry: &Entry) -> Result<(), String> {
        let Entry { seq, channel, digest, .. } = entry;
        let from = self.from.get(channel).ok_or_else(|| format!("{channel} is shown without a snapshot"))?;
        let shown = self.shown.entry(channel.clone()).or_default();
        let last = shown.last().map_or(*from, |(seq, _)| *seq);
        shown.push((*seq, *digest));
        if *seq > last { Ok(()) } else { Err(format!("{channel}: {seq} comes after {last}")) }
    }

    /// The last seq that was shown, or held by the first snapshots.
    pub(crate) fn last(&self, channel: &str) -> u64 {
        let shown = self.shown.get(channel).and_then(|shown| shown.last()).map(|(seq, _)| *seq);
        shown.or_else(|| self.from.get(channel).copied()).unwrap_or(0)
    }

    /// Compares it with the log: from the first snapshot to the last that was shown, it is the same. How many there are.
    pub(crate) fn check(&self, log: &Reading) -> Result<usize, String> {
        for (channel, from) in &self.from {
            let (last, none) = (self.last(channel), Vec::new());
            let is_ours = |entry: &&Entry| entry.channel == *channel && entry.seq > *from && entry.seq <= last;
            let logged = log.entries.iter().filter(is_ours).map(|entry| (entry.seq, entry.digest));
            let shown = self.shown.get(channel).unwrap_or(&none);
            let (logged, mut n) = (logged.collect::<Vec<_>>(), 0);
            while n < shown.len().max(logged.len()) {
                if shown.get(n) != logged.get(n) {
                    let [shown, logged] = [shown.get(n), logged.get(n)].map(|at| at.map(|(seq, _)| seq));
                    return Err(format!("{channel}: {shown:?} was shown where the log has {logged:?}"));
                }
                n += 1;
            }
        }
        Ok(self.shown.values().map(Vec::len).sum())
    }
}
