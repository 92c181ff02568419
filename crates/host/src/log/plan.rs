//! What becomes of the batches that share a transaction: which are appended, as which entries, and what each caller gets.
//!
//! A plan knows nothing of stores. It is told what is known of channels and batches before it, collects entries (deltas of one
//! part become one entry), and at last gives each entry its seq.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{AppendError, Batch, BatchId, Merge, NewEntry, Seq};

/// The longest merged entry: readers should not wait for more.
const MERGED_BYTES: usize = 256 << 10;

/// What is known of a channel before the transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownChannel<'a> {
    pub(super) uri: &'a Arc<str>,
    pub(super) session: Option<&'a Arc<str>>,
    /// The seq of its last entry.
    pub(super) last: Seq,
}

/// Finds what is known of a channel.
pub(super) trait ChannelDirectory {
    fn channel(&self, uri: &str) -> Option<KnownChannel<'_>>;
}

/// The batches of a transaction. `S` is what a store keeps of a body that it has stored already.
#[derive(Debug)]
pub(super) struct Plan<S> {
    opened: Vec<OpenedChannel>,
    /// Where each of them is.
    opened_at: HashMap<Arc<str>, usize>,
    pending: Vec<PendingEntry<S>>,
    /// The index of each channel's last pending entry.
    last_of_channel: HashMap<Arc<str>, usize>,
    /// The batches that are appended, with the indices of their outcomes.
    accepted: HashMap<BatchId, usize>,
    outcomes: Vec<BatchOutcome>,
    merges: bool,
}

/// A channel that a batch opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenedChannel {
    pub(super) uri: Arc<str>,
    pub(super) session: Option<Arc<str>>,
}

/// An entry to be written, or several deltas that may be merged into one.
#[derive(Debug)]
struct PendingEntry<S> {
    channel: Arc<str>,
    about: Option<Arc<str>>,
    part: Option<Arc<str>>,
    bodies: Vec<Bytes>,
    /// Where its only body is stored already.
    stored: Option<S>,
    bytes: usize,
    seqs: Vec<Seq>,
}

/// The outcome of a batch, before seqs are assigned.
#[derive(Debug)]
enum BatchOutcome {
    /// For each entry, the index of its pending entry and of its body in there.
    New(BatchId, Vec<(usize, usize)>),
    /// The same as an earlier outcome of this transaction.
    Like(usize),
    /// The batch is in the log already.
    Known(Vec<Seq>),
    /// A channel that the batch has expectations for got an entry in this transaction.
    Overtaken {
        channel: Arc<str>,
        expected: Seq,
        pending_entry: usize,
    },
    Refused(AppendError),
}

/// An entry with its seq.
#[derive(Debug, Clone)]
pub(super) struct PlannedEntry<S> {
    pub(super) seq: Seq,
    pub(super) channel: Arc<str>,
    pub(super) about: Option<Arc<str>>,
    pub(super) body: Bytes,
    pub(super) stored: Option<S>,
}

/// A plan whose entries have seqs.
#[derive(Debug)]
pub(super) struct Planned<S> {
    pub(super) opened: Vec<OpenedChannel>,
    pub(super) entries: Vec<PlannedEntry<S>>,
    /// The batches that are appended, with the seqs of their entries.
    pub(super) batches: Vec<(BatchId, Vec<Seq>)>,
    /// One result for each batch, in their order.
    pub(super) answers: Vec<Result<Vec<Seq>, AppendError>>,
    /// How many batches were in the log already.
    pub(super) repeated: u64,
    /// How many deltas became part of the entry before them.
    pub(super) merged: u64,
}

/// Whether a batch was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It will be appended.
    Accepted,
    /// It is in the log already, or refused: nothing of it is needed.
    Settled,
}

impl<S> Plan<S> {
    /// An empty plan. Only with `merges` deltas of one part become one entry.
    pub(super) fn new(merges: bool) -> Self {
        Self {
            opened: Vec::new(),
            opened_at: HashMap::new(),
            pending: Vec::new(),
            last_of_channel: HashMap::new(),
            accepted: HashMap::new(),
            outcomes: Vec::new(),
            merges,
        }
    }

    /// Whether a batch with this id was accepted into this plan.
    pub(super) fn has(&self, id: BatchId) -> bool {
        self.accepted.contains_key(&id)
    }

    /// Adds a batch, or records why not. `known` are its seqs if it is in the log already; `stored` is what is stored of each
    /// entry's body, for as many as there are.
    pub(super) fn add(
        &mut self,
        batch: Batch,
        known: Option<Vec<Seq>>,
        stored: Vec<Option<S>>,
        directory: &impl ChannelDirectory,
    ) -> Verdict {
        let settled = match self.accepted.get(&batch.id) {
            Some(at) => Some(BatchOutcome::Like(*at)),
            None => known.map(BatchOutcome::Known).or_else(|| self.rejection(&batch, directory)),
        };
        let (outcome, verdict) = match settled {
            Some(outcome) => (outcome, Verdict::Settled),
            None => (self.accept(batch, stored, directory), Verdict::Accepted),
        };
        self.outcomes.push(outcome);
        verdict
    }

    /// The channels that batches have opened so far.
    pub(super) fn opened(&self) -> &[OpenedChannel] {
        &self.opened
    }

    /// Whether a batch that is not in the log would be accepted now.
    pub(super) fn would_accept(&self, batch: &Batch, directory: &impl ChannelDirectory) -> bool {
        !self.has(batch.id) && self.rejection(batch, directory).is_none()
    }

    fn rejection(&self, batch: &Batch, directory: &impl ChannelDirectory) -> Option<BatchOutcome> {
        for (uri, expected) in &batch.expect {
            let expected = *expected;
            if let Some(&pending_entry) = self.last_of_channel.get(uri) {
                return Some(BatchOutcome::Overtaken { channel: uri.clone(), expected, pending_entry });
            }
            let last = directory.channel(uri).map_or(0, |channel| channel.last);
            if last != expected {
                return Some(BatchOutcome::Refused(AppendError::Conflict { channel: uri.clone(), expected, last }));
            }
        }
        for (at, (uri, session)) in batch.open.iter().enumerate() {
            let earlier =
                || batch.open.iter().take(at).find(|(other, _)| other == uri).map(|(_, session)| session.as_ref());
            if self.session(uri, directory).or_else(earlier).is_some_and(|before| before != session.as_ref()) {
                return Some(BatchOutcome::Refused(AppendError::OtherSession(uri.clone())));
            }
        }
        let opens = |uri: &Arc<str>| batch.open.iter().any(|(opened, _)| opened == uri);
        let closed = |entry: &&NewEntry| !opens(&entry.channel) && self.session(&entry.channel, directory).is_none();
        let entry = batch.entries.iter().find(closed)?;
        Some(BatchOutcome::Refused(AppendError::NotOpen(entry.channel.clone())))
    }

    /// The session of a channel that is open.
    fn session<'a>(&'a self, uri: &Arc<str>, directory: &'a impl ChannelDirectory) -> Option<Option<&'a Arc<str>>> {
        let opened = || self.opened_at.get(uri).and_then(|at| Some(self.opened.get(*at)?.session.as_ref()));
        directory.channel(uri).map(|channel| channel.session).or_else(opened)
    }

    fn accept(&mut self, batch: Batch, stored: Vec<Option<S>>, directory: &impl ChannelDirectory) -> BatchOutcome {
        for (uri, session) in batch.open {
            if self.session(&uri, directory).is_none() {
                self.opened_at.insert(uri.clone(), self.opened.len());
                self.opened.push(OpenedChannel { uri, session });
            }
        }
        let mut places = Vec::with_capacity(batch.entries.len());
        let stored = stored.into_iter().chain(std::iter::repeat_with(|| None));
        for (entry, stored) in batch.entries.into_iter().zip(stored) {
            // The name that is known already, so that all entries share one.
            let uri =
                directory.channel(&entry.channel).map_or_else(|| entry.channel.clone(), |known| known.uri.clone());
            places.push(self.add_entry(uri, entry, stored));
        }
        self.accepted.insert(batch.id, self.outcomes.len());
        BatchOutcome::New(batch.id, places)
    }

    /// Adds an entry, or adds it to the channel's last pending entry if the two may be merged.
    fn add_entry(&mut self, channel: Arc<str>, entry: NewEntry, stored: Option<S>) -> (usize, usize) {
        let merges = self.merges && entry.part.is_some();
        let last = self.last_of_channel.get(&channel).copied().filter(|_| merges);
        if let Some((at, pending_entry)) = last.and_then(|at| Some((at, self.pending.get_mut(at)?))) {
            let bytes = pending_entry.bytes.saturating_add(entry.body.len());
            let is_one_part = pending_entry.part == entry.part && pending_entry.about == entry.about;
            let is_stored = stored.is_some() || pending_entry.stored.is_some();
            if is_one_part && !is_stored && bytes <= MERGED_BYTES {
                pending_entry.bytes = bytes;
                pending_entry.bodies.push(entry.body);
                return (at, pending_entry.bodies.len() - 1);
            }
        }
        let bytes = entry.body.len();
        let (about, part, bodies) = (entry.about, entry.part, vec![entry.body]);
        let pending_entry =
            PendingEntry { channel: channel.clone(), about, part, bodies, stored, bytes, seqs: Vec::new() };
        self.pending.push(pending_entry);
        self.last_of_channel.insert(channel, self.pending.len() - 1);
        (self.pending.len() - 1, 0)
    }

    /// Gives each entry its seq, from `next` on.
    pub(super) fn finish(mut self, next: Seq, merge: Option<&dyn Merge>) -> Planned<S> {
        let (entries, merged) = self.assign(next, merge);
        let mut repeated = 0;
        let mut batches = Vec::with_capacity(self.outcomes.len());
        let mut answers: Vec<Result<Vec<Seq>, AppendError>> = Vec::with_capacity(self.outcomes.len());
        for outcome in std::mem::take(&mut self.outcomes) {
            answers.push(match outcome {
                BatchOutcome::New(id, places) => {
                    let seq = |(pending_entry, body): &(usize, usize)| {
                        self.pending.get(*pending_entry)?.seqs.get(*body).copied()
                    };
                    let seqs: Vec<Seq> = places.iter().filter_map(seq).collect();
                    batches.push((id, seqs.clone()));
                    Ok(seqs)
                }
                BatchOutcome::Like(at) => answers.get(at).cloned().unwrap_or(Err(AppendError::Unknown)),
                BatchOutcome::Known(seqs) => {
                    repeated += 1;
                    Ok(seqs)
                }
                BatchOutcome::Overtaken { channel, expected, pending_entry } => {
                    let seqs = self.pending.get(pending_entry).map(|pending_entry| pending_entry.seqs.as_slice());
                    let last = seqs.and_then(<[Seq]>::last).copied().unwrap_or_default();
                    Err(AppendError::Conflict { channel, expected, last })
                }
                BatchOutcome::Refused(error) => Err(error),
            });
        }
        Planned { opened: self.opened, entries, batches, answers, repeated, merged }
    }

    fn assign(&mut self, mut next: Seq, merge: Option<&dyn Merge>) -> (Vec<PlannedEntry<S>>, u64) {
        let (mut entries, mut merged) = (Vec::with_capacity(self.pending.len()), 0);
        for pending_entry in &mut self.pending {
            let deltas = pending_entry.bodies.len();
            if deltas > 1
                && let Some(body) = merge.and_then(|merge| merge.merge(&pending_entry.bodies))
            {
                pending_entry.bodies = vec![body];
                merged += deltas as u64 - 1;
            }
            for body in pending_entry.bodies.drain(..) {
                pending_entry.seqs.push(next);
                let (channel, about) = (pending_entry.channel.clone(), pending_entry.about.clone());
                entries.push(PlannedEntry { seq: next, channel, about, body, stored: pending_entry.stored.take() });
                next += 1;
            }
            // Merged deltas share one seq.
            if let Some(last) = pending_entry.seqs.last().copied() {
                pending_entry.seqs.resize(deltas, last);
            }
        }
        (entries, merged)
    }
}
