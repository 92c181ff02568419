//! One transaction: which of the waiting batches are appended, as which entries, and what each caller gets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use super::super::maintenance::now_ms;
use super::super::{AppendError, Batch, BatchId, Entry, Metrics, NewEntry, Save, Seq, WriteError};
use super::blob;
use super::db::{ChannelRecord, Db, Failure, none_is};
use super::insert::{self, BatchRecord, EntryRecord};
use super::pieces::{self, StoredPieces};
use super::record;

/// The longest merged entry: readers should not wait for more.
const MERGED_BYTES: usize = 256 << 10;

/// An open transaction.
pub(super) struct Commit<'a> {
    db: &'a mut Db,
    metrics: &'a Metrics,
    pending: Vec<PendingEntry>,
    /// The index of each channel's last pending entry.
    last_of_channel: HashMap<i64, usize>,
    /// The batches in this transaction, with the indices of their outcomes.
    accepted: HashMap<BatchId, usize>,
    outcomes: Vec<BatchOutcome>,
    opened: Vec<(i64, Arc<str>)>,
}

/// What became durable.
pub(super) struct Committed {
    pub(super) entries: Vec<Entry>,
    pub(super) opened: Vec<(i64, Arc<str>)>,
    /// One result for each batch, in their order.
    pub(super) answers: Vec<Result<Vec<Seq>, AppendError>>,
}

/// An entry to be written, or several deltas that may be merged into one.
struct PendingEntry {
    channel: i64,
    uri: Arc<str>,
    about: Option<Arc<str>>,
    part: Option<Arc<str>>,
    bodies: Vec<Bytes>,
    /// Where its only body is stored already.
    stored: Option<StoredPieces>,
    bytes: usize,
    seqs: Vec<Seq>,
}

/// The outcome of a batch, before seqs are assigned.
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

impl<'a> Commit<'a> {
    /// Begins a transaction.
    pub(super) fn begin(db: &'a mut Db, metrics: &'a Metrics) -> Result<Self, Failure> {
        db.begin()?;
        Ok(Self {
            db,
            metrics,
            pending: Vec::new(),
            last_of_channel: HashMap::new(),
            accepted: HashMap::new(),
            outcomes: Vec::new(),
            opened: Vec::new(),
        })
    }

    /// Adds a batch to the transaction, or records why not. Some of its bodies may be stored already.
    pub(super) fn add(&mut self, batch: Batch, stored: &[Option<StoredPieces>]) -> Result<(), Failure> {
        let outcome = match self.known(batch.id)?.or_else(|| self.rejection(&batch)) {
            Some(outcome) => {
                pieces::remove(&self.db.connection, stored)?;
                outcome
            }
            None => self.accept(batch, stored)?,
        };
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Whether a batch would be accepted now. Rolls the transaction back.
    pub(super) fn would_take(mut self, batch: &Batch) -> Result<bool, Failure> {
        let takes = self.known(batch.id)?.or_else(|| self.rejection(batch)).is_none();
        self.db.connection.execute_batch("ROLLBACK")?;
        Ok(takes)
    }

    /// Writes the next piece of a batch that is not in this transaction.
    pub(super) fn write_piece(&self, staging: &mut pieces::StagedBatch) -> Result<(), Failure> {
        Ok(staging.write(&self.db.connection)?)
    }

    fn known(&mut self, id: BatchId) -> Result<Option<BatchOutcome>, Failure> {
        if let Some(at) = self.accepted.get(&id) {
            return Ok(Some(BatchOutcome::Like(*at)));
        }
        if !self.db.ids.may_know(id) {
            return Ok(None);
        }
        let mut known = self.db.connection.prepare_cached("SELECT seqs FROM batch WHERE id = ?1")?;
        let seqs = known.query_row([id.to_bytes()], |row| Ok(Some(record::unpack(record::blob(row.get_ref(0)?)))));
        Ok(seqs.or_else(none_is(None))?.map(BatchOutcome::Known))
    }

    fn rejection(&self, batch: &Batch) -> Option<BatchOutcome> {
        for (uri, expected) in &batch.expect {
            let (channel, expected) = (self.db.channels.get(uri), *expected);
            if let Some(&pending_entry) = channel.and_then(|channel| self.last_of_channel.get(&channel.id)) {
                return Some(BatchOutcome::Overtaken { channel: uri.clone(), expected, pending_entry });
            }
            let last = channel.map_or(0, |channel| channel.last);
            if last != expected {
                return Some(BatchOutcome::Refused(AppendError::Conflict { channel: uri.clone(), expected, last }));
            }
        }
        for (at, (uri, session)) in batch.open.iter().enumerate() {
            let known = self.db.channels.get(uri).map(|channel| &channel.session);
            let earlier = || batch.open.iter().take(at).find(|(other, _)| other == uri).map(|(_, session)| session);
            if known.or_else(earlier).is_some_and(|before| before != session) {
                return Some(BatchOutcome::Refused(AppendError::OtherSession(uri.clone())));
            }
        }
        let opens = |uri: &Arc<str>| batch.open.iter().any(|(opened, _)| opened == uri);
        let closed = |entry: &&NewEntry| !self.db.channels.contains_key(&entry.channel) && !opens(&entry.channel);
        let entry = batch.entries.iter().find(closed)?;
        Some(BatchOutcome::Refused(AppendError::NotOpen(entry.channel.clone())))
    }

    fn accept(&mut self, batch: Batch, stored: &[Option<StoredPieces>]) -> Result<BatchOutcome, Failure> {
        for (uri, session) in batch.open {
            self.open(uri, session)?;
        }
        let mut places = Vec::with_capacity(batch.entries.len());
        for (at, entry) in batch.entries.into_iter().enumerate() {
            // Whether the channel is open was checked before.
            let Some(channel) = self.db.channels.get(&entry.channel) else { continue };
            let (id, uri) = (channel.id, channel.uri.clone());
            places.push(self.add_entry(id, uri, entry, stored.get(at).copied().flatten()));
        }
        self.accepted.insert(batch.id, self.outcomes.len());
        Ok(BatchOutcome::New(batch.id, places))
    }

    fn open(&mut self, uri: Arc<str>, session: Option<Arc<str>>) -> Result<(), Failure> {
        if self.db.channels.contains_key(&uri) {
            return Ok(());
        }
        let mut insert = self.db.connection.prepare_cached("INSERT INTO channel (uri, session) VALUES (?1, ?2)")?;
        let id = insert.insert((&uri, &session))?;
        self.opened.push((id, uri.clone()));
        let channel = ChannelRecord { id, uri: uri.clone(), session, last: 0, trimmed: 0, snapshot: 0 };
        self.db.channels.insert(uri, channel);
        Ok(())
    }

    /// Adds an entry, or adds it to the channel's last pending entry if the two may be merged.
    fn add_entry(
        &mut self,
        channel: i64,
        uri: Arc<str>,
        entry: NewEntry,
        stored: Option<StoredPieces>,
    ) -> (usize, usize) {
        let merges = self.db.options().merge.is_some() && entry.part.is_some();
        let last = self.last_of_channel.get(&channel).copied().filter(|_| merges);
        if let Some((at, pending_entry)) = last.and_then(|at| Some((at, self.pending.get_mut(at)?))) {
            let bytes = pending_entry.bytes.saturating_add(entry.body.len());
            if pending_entry.part == entry.part && pending_entry.about == entry.about && bytes <= MERGED_BYTES {
                pending_entry.bytes = bytes;
                pending_entry.bodies.push(entry.body);
                return (at, pending_entry.bodies.len() - 1);
            }
        }
        let bytes = entry.body.len();
        let (about, part, bodies) = (entry.about, entry.part, vec![entry.body]);
        self.pending.push(PendingEntry { channel, uri, about, part, bodies, stored, bytes, seqs: Vec::new() });
        self.last_of_channel.insert(channel, self.pending.len() - 1);
        (self.pending.len() - 1, 0)
    }

    /// Saves a snapshot and rows in the same transaction.
    pub(super) fn save(&mut self, save: Save) -> Result<Result<(), WriteError>, Failure> {
        let durable = self.db.last;
        let Some(channel) = self.db.channels.get_mut(&save.channel) else {
            return Ok(Err(WriteError::NotOpen(save.channel)));
        };
        if let Some((index, _)) = save.rows.iter().find(|(index, _)| *index > u64::from(u32::MAX)) {
            return Ok(Err(WriteError::RowIndex(*index)));
        }
        let (connection, id) = (&self.db.connection, channel.id);
        if let Some(snapshot) = save.snapshot {
            if channel.snapshot > snapshot.seq {
                return Ok(Err(WriteError::Older { saved: channel.snapshot }));
            }
            if snapshot.seq > durable {
                return Ok(Err(WriteError::Future { seq: snapshot.seq }));
            }
            let crc = record::snapshot_sum(id, snapshot.seq, &snapshot.version, &snapshot.body);
            let mut insert =
                connection.prepare_cached("INSERT OR REPLACE INTO snapshot VALUES (?1, ?2, ?3, ?4, ?5)")?;
            insert.execute((id, snapshot.seq, snapshot.version, crc, blob::blob_value(&snapshot.body)))?;
            blob::fill(connection, "snapshot", id, &snapshot.body)?;
            channel.snapshot = snapshot.seq;
        }
        if let Some(from) = save.cut_rows {
            let mut cut = connection.prepare_cached("DELETE FROM part WHERE id >= ?1 AND id < ?2")?;
            cut.execute((record::row_key(id, from), record::row_key(id + 1, 0)))?;
        }
        let mut insert = connection.prepare_cached("INSERT OR REPLACE INTO part VALUES (?1, ?2, ?3)")?;
        for (index, body) in save.rows {
            let key = record::row_key(id, index);
            insert.execute((key, record::row_sum(key, &body), blob::blob_value(&body)))?;
            blob::fill(connection, "part", key, &body)?;
        }
        Ok(Ok(()))
    }

    /// Writes all pending entries and makes them durable.
    pub(super) fn finish(mut self) -> Result<Committed, Failure> {
        self.db.at_ms = self.db.at_ms.max(now_ms());
        let entries = self.write_pending()?;
        let mut batches = Vec::with_capacity(self.outcomes.len());
        let mut answers: Vec<Result<Vec<Seq>, AppendError>> = Vec::with_capacity(self.outcomes.len());
        for outcome in std::mem::take(&mut self.outcomes) {
            answers.push(match outcome {
                BatchOutcome::New(id, places) => {
                    let seq = |(pending_entry, body): &(usize, usize)| {
                        self.pending.get(*pending_entry)?.seqs.get(*body).copied()
                    };
                    let seqs: Vec<Seq> = places.iter().filter_map(seq).collect();
                    self.db.ids.add(id);
                    batches.push(BatchRecord { id, seqs: record::pack(&seqs) });
                    Ok(seqs)
                }
                BatchOutcome::Like(at) => answers.get(at).cloned().unwrap_or(Err(AppendError::Unknown)),
                BatchOutcome::Known(seqs) => {
                    self.metrics.repeated.fetch_add(1, Relaxed);
                    Ok(seqs)
                }
                BatchOutcome::Overtaken { channel, expected, pending_entry } => {
                    let last = self
                        .pending
                        .get(pending_entry)
                        .and_then(|pending_entry| pending_entry.seqs.last().copied())
                        .unwrap_or_default();
                    Err(AppendError::Conflict { channel, expected, last })
                }
                BatchOutcome::Refused(error) => Err(error),
            });
        }
        // In the order of the table, so that each one is inserted after the one before.
        batches.sort_unstable_by_key(|batch| batch.id);
        insert::all(&self.db.connection, &batches)?;
        self.db.commit(self.metrics)?;
        if !entries.is_empty() {
            self.db.note_acknowledged();
        }
        Ok(Committed { entries, opened: self.opened, answers })
    }

    fn write_pending(&mut self) -> Result<Vec<Entry>, Failure> {
        let (at_ms, merge) = (self.db.at_ms, self.db.options().merge.clone());
        let (mut entries, mut pending) =
            (Vec::with_capacity(self.pending.len()), Vec::with_capacity(self.pending.len()));
        for (at, pending_entry) in self.pending.iter_mut().enumerate() {
            let deltas = pending_entry.bodies.len();
            if deltas > 1
                && let Some(body) = merge.as_ref().and_then(|merge| merge.merge(&pending_entry.bodies))
            {
                pending_entry.bodies = vec![body];
                self.metrics.merged.fetch_add(deltas as u64 - 1, Relaxed);
            }
            for body in pending_entry.bodies.drain(..) {
                let seq = self.db.next;
                self.db.next += 1;
                self.db.last = seq;
                pending_entry.seqs.push(seq);
                pending.push(at);
                entries.push(Entry::new(seq, at_ms, pending_entry.uri.clone(), body));
            }
            // Merged deltas share one seq.
            pending_entry.seqs.resize(deltas, self.db.last);
            if let Some(channel) = self.db.channels.get_mut(&pending_entry.uri) {
                channel.last = self.db.last;
            }
        }
        let records = entries.iter().zip(pending).filter_map(|(entry, pending_entry)| {
            let PendingEntry { channel, about, stored, .. } = self.pending.get(pending_entry)?;
            let (channel, about, body) = (*channel, about.as_deref(), &*entry.body);
            Some(EntryRecord { seq: entry.seq, channel, at_ms, about, body, stored: *stored })
        });
        insert::all(&self.db.connection, &records.collect::<Vec<_>>())?;
        Ok(entries)
    }
}
