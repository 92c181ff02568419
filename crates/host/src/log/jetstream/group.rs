//! The messages of a group: entries that are appended together, cut into runs.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::super::plan::{OpenedChannel, Planned, PlannedEntry};
use super::super::{Batch, Seq};
use super::index::ranges;
use super::names::HostName;
use super::wire::{AppendedBatch, Decision, Group, Head, Outgoing, Run, WireId};
use super::{INLINE, LongBody};

/// The most messages of an atomic batch, less some.
pub(super) const MAX_MESSAGES: usize = 900;
/// Bytes of bodies in one message. With the longest of a body and its header it is below the smallest usual limit, 1 MiB.
const MESSAGE_BYTES: usize = 512 << 10;
/// Entries in one message: each has a number in the header.
const MESSAGE_ENTRIES: usize = 4_096;
/// What a group says of its batches is in the first message of entries if it is no longer than this.
const HEAD_BATCHES: usize = 512;

/// How much a group has already: a batch that does not fit waits for the next one.
#[derive(Debug, Default)]
pub(super) struct GroupRoom {
    messages: usize,
    batches: usize,
    last: Option<(Arc<str>, Option<Arc<str>>)>,
}

impl GroupRoom {
    /// Counts a batch; false if it does not fit.
    pub(super) fn add(&mut self, batch: &Batch) -> bool {
        let mut last = self.last.clone();
        let mut messages = self.messages;
        for entry in &batch.entries {
            let run = Some((entry.channel.clone(), entry.about.clone()));
            // A run that is too long for one message is cut, so its bytes count too.
            messages += usize::from(run != last) + entry.body.len() / (MESSAGE_BYTES / 2);
            last = run;
        }
        let batches = self.batches + 1 + batch.open.len();
        if self.batches > 0 && (messages > MAX_MESSAGES || batches > MAX_MESSAGES) {
            return false;
        }
        *self = Self { messages, batches, last };
        true
    }
}

/// How many messages a batch is alone, at most.
pub(super) fn count(batch: &Batch) -> usize {
    let mut room = GroupRoom::default();
    room.add(batch);
    room.messages
}

/// The messages of a planned group. Its head is in the first.
pub(super) fn messages(
    host: &HostName,
    group_id: u64,
    at_ms: u64,
    planned: &Planned<LongBody>,
    session_of: impl Fn(&str) -> Option<Arc<str>>,
) -> Vec<Outgoing> {
    let opened: HashMap<&str, &OpenedChannel> = planned.opened.iter().map(|it| (&*it.uri, it)).collect();
    let session_of = |uri: &str| match opened.get(uri) {
        Some(opened) => opened.session.clone(),
        None => session_of(uri),
    };
    let mut messages = Vec::new();
    let mut rest = planned.entries.as_slice();
    while let Some(first) = rest.first() {
        let count = run_length(rest);
        let (run, after) = rest.split_at(count);
        rest = after;
        let owner = first.about.clone().or_else(|| session_of(&first.channel)).unwrap_or_else(|| first.channel.clone());
        messages.push(run_message(host.entries(&owner, &first.channel), at_ms, run));
    }
    let mut group = Group {
        id: group_id,
        messages: 0,
        batches: planned.batches.iter().map(|(id, seqs)| AppendedBatch(WireId(*id), ranges(seqs))).collect(),
        opened: planned.opened.iter().map(|opened| (opened.uri.clone(), opened.session.clone())).collect(),
    };
    let is_long = group.batches.len() + group.opened.len() > HEAD_BATCHES;
    if is_long || messages.is_empty() {
        messages.insert(0, Outgoing { subject: host.control(), head: Head::default(), payload: Bytes::new() });
    }
    group.messages = messages.len() as u64;
    if let Some(first) = messages.first_mut() {
        first.head.group = Some(group);
    }
    messages
}

/// A group without entries.
pub(super) fn head(host: &HostName, group: Group) -> Outgoing {
    let head = Head { group: Some(group), run: None, decision: None };
    Outgoing { subject: host.control(), head, payload: Bytes::new() }
}

/// The messages of entries that have their seqs and times already.
pub(super) fn copied(
    host: &HostName,
    group_id: u64,
    entries: &[(u64, PlannedEntry<LongBody>)],
    owner: impl Fn(&PlannedEntry<LongBody>) -> Arc<str>,
) -> Vec<Outgoing> {
    let mut messages = Vec::new();
    for entries in entries.chunk_by(|(one, _), (other, _)| one == other) {
        let at_ms = entries.first().map_or(0, |(at_ms, _)| *at_ms);
        let entries: Vec<PlannedEntry<LongBody>> = entries.iter().map(|(_, entry)| entry.clone()).collect();
        let mut rest = entries.as_slice();
        while let Some(first) = rest.first() {
            let (run, after) = rest.split_at(run_length(rest));
            rest = after;
            messages.push(run_message(host.entries(&owner(first), &first.channel), at_ms, run));
        }
    }
    let group = Group { id: group_id, messages: messages.len() as u64, ..Group::default() };
    if let Some(first) = messages.first_mut() {
        first.head.group = Some(group);
    }
    messages
}

/// A message that decides something, as a group of its own.
pub(super) fn decision(host: &HostName, group: Group, decision: Decision) -> Vec<Outgoing> {
    let head = Head { group: Some(Group { messages: 1, ..group }), run: None, decision: Some(decision) };
    vec![Outgoing { subject: host.control(), head, payload: Bytes::new() }]
}

/// How many of the first entries are one run.
fn run_length(entries: &[PlannedEntry<LongBody>]) -> usize {
    let Some(first) = entries.first() else { return 0 };
    let mut bytes = 0;
    let belongs = |(at, entry): &(usize, &PlannedEntry<LongBody>)| {
        bytes += entry.body.len();
        let fits = *at == 0 || (bytes <= MESSAGE_BYTES && *at < MESSAGE_ENTRIES);
        fits && entry.channel == first.channel && entry.about == first.about && entry.seq == first.seq + *at as Seq
    };
    entries.iter().enumerate().take_while(belongs).count()
}

fn run_message(subject: String, at_ms: u64, entries: &[PlannedEntry<LongBody>]) -> Outgoing {
    let Some(first) = entries.first() else {
        return Outgoing { subject, head: Head::default(), payload: Bytes::new() };
    };
    let (mut lengths, mut blobs) = (Vec::with_capacity(entries.len()), Vec::new());
    let mut payload = BytesMut::with_capacity(entries.iter().map(|entry| entry.body.len()).sum());
    for (at, entry) in entries.iter().enumerate() {
        match &entry.stored {
            Some(long) => {
                lengths.push(long.blob.length);
                blobs.push((at, long.blob.clone()));
            }
            None => {
                lengths.push(entry.body.len() as u64);
                payload.extend_from_slice(&entry.body);
            }
        }
    }
    let payload = payload.freeze();
    let (channel, about) = (first.channel.clone(), first.about.clone());
    let mut run = Run { channel, about, first: first.seq, at_ms, lengths, blobs, sum: 0 };
    run.sum = run.checksum(&payload);
    Outgoing { subject, head: Head { group: None, run: Some(run), decision: None }, payload }
}

/// Whether a body is kept in the other stream. A merged one is never as long as two messages.
pub(super) fn is_long(body: &Bytes) -> bool {
    body.len() > INLINE
}
